"""A new member of the family, as small as one can be: what docs/extend.md shows.

Letters: B batch, T length, V vocabulary, d_model width of the model.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.cache import Cache
from regard.core.generation import DecoderOnly
from regard.core.masks import alike, causal
from regard.core.mixers import AttentionConfig
from regard.models.family import Config, Family


class Bag(DecoderOnly, nn.Module):
    """A language model that knows no order: what comes next hangs on the last word, and on a mean of all before it."""

    def __init__(self, config: "BagConfig") -> None:
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocabulary, c.d_model)
        self.attention = MultiHeadAttention(AttentionConfig(c.d_model, c.heads))
        self.output = nn.Linear(c.d_model, c.vocabulary)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> logits of each next token (B, T, V)."""
        return self.output(self.features(tokens, documents=documents))

    def features(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Tensor:
        """What the output layer reads, (B, T, d_model)."""
        x, mask = self.embedding(tokens), causal(0 if cache is None else cache.length)
        if documents is not None:
            mask = mask & alike(documents)
        return x + self.attention(x, mask=mask, cache=None if cache is None else cache[0].self_attention)

    def new_cache(self) -> Cache:
        return Cache.empty(1)


@dataclass(frozen=True)
class BagConfig(Config):
    """Everything that makes a bag."""

    vocabulary: int
    d_model: int = 64
    heads: int = 2
    longest = None  # it reads any number of tokens

    def __post_init__(self) -> None:
        self.check()


def bag(vocabulary: int, **changes: Any) -> BagConfig:
    """The only preset."""
    return BagConfig(vocabulary).but(**changes)


FAMILY = Family(BagConfig, Bag, {"bag": bag})
