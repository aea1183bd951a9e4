"""The upper end of a stack: what is made of its features. A head is what a task needs, not what a model is.

Letters: B batch, T positions, d_model width of the model, V vocabulary, C classes.

Tokens are a product with the vectors of the words (§3.4); classes are one of a text; tags one of each token; spans are
where something begins and ends; a vector is the text itself, for comparing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checks import at_least, one_of
from regard.core.dropout import Dropout, check_probability
from regard.core.layers import ACTIVATIONS
from regard.core.quantised import whole_matrix

HEADS = ("tokens", "classes", "tags", "spans", "vector")
POOLED = ("classes", "vector")  # of these, what makes one thing of a text
POOLS = ("first", "last", "mean", "max")  # which vector stands for a text
WEIGHED = ("attention", "both")  # or one that is learnt: as a CCT weighs them; the first two, with classes each (DeiT)
INNER = {**ACTIVATIONS, "tanh": torch.tanh}


@dataclass(frozen=True)
class HeadConfig:
    """What stands on the features of a stack: `head` in config.json."""

    kind: str = "tokens"  # classes (of a text), tags (of each token), spans (begin and end), vector (of a text)
    size: int = 0  # how many classes, or tags
    pool: str = "first"  # what its classes or its vector are made of: first, last, mean, max, attention, both
    hidden: str | None = None  # a layer in between, with this activation: tanh for BERT's classes, gelu for its tokens
    bias: bool = True
    dropout: float = 0.0  # before the last product
    relation: int = 0  # beside tokens, so many classes of a pair of sentences: 2 for BERT's next sentence
    normalise: bool = False  # a vector has length 1

    def __post_init__(self) -> None:
        one_of(HEADS, **{"head.kind": self.kind})
        one_of((*POOLS, *WEIGHED), **{"head.pool": self.pool})
        if self.pool == "both" and (self.kind, self.hidden) != ("classes", None):
            raise ValueError(f"head.pool = 'both' is for classes without a hidden layer, not for {self.kind}")
        one_of(INNER, **{"head.hidden": self.hidden})
        at_least(int(self.kind in ("classes", "tags")), **{"head.size": self.size})
        check_probability(self.dropout)


def logits(tokens: nn.Embedding, *, tied: bool, bias: bool = False) -> nn.Linear:
    """The output layer: a product with the vectors of the words, these if `tied` (§3.4), or others."""
    output = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=bias)
    if bias:
        nn.init.zeros_(output.bias)
    if tied:
        output.weight = tokens.weight
    else:
        nn.init.normal_(output.weight, std=tokens.embedding_dim**-0.5)
    return output


class TokenHead(nn.Module):
    """Tokens after a layer of their own, as in BERT: (B, T, d_model) -> logits (B, T, V). Beside them, if there is one,
    what two sentences have to do with each other."""

    def __init__(
        self, c: HeadConfig, d_model: int, tokens: nn.Embedding, norm: Callable[[int], nn.Module], tied: bool
    ) -> None:
        super().__init__()
        assert c.hidden is not None
        self.activation, self.inner = INNER[c.hidden], nn.Linear(d_model, tokens.embedding_dim)
        self.norm, self.tokens = norm(tokens.embedding_dim), logits(tokens, tied=tied, bias=c.bias)
        self.relation = None
        if c.relation:
            self.relation = ClassHead(HeadConfig("classes", c.relation, hidden="tanh", dropout=c.dropout), d_model)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.tokens(self.before(x))

    def before(self, x: Tensor) -> Tensor:
        """What the product with the vectors of the words reads: (B, T, d_model) -> (B, T, any width)."""
        return self.norm(self.activation(self.inner(x)))

    @property
    def weight(self) -> Tensor:
        return whole_matrix(self.tokens)

    @property
    def bias(self) -> Tensor | None:
        return self.tokens.bias


class VectorHead(nn.Module):
    """A text as one vector: (B, T, d_model), keep (B, T) -> (B, d_model)."""

    def __init__(self, c: HeadConfig, d_model: int) -> None:
        super().__init__()
        self.pool, self.normalise = c.pool, c.normalise
        self.weigh = nn.Linear(d_model, 1) if c.pool == "attention" else None
        self.activation = INNER[c.hidden] if c.hidden else None
        self.inner = nn.Linear(d_model, d_model) if c.hidden else None

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = pooled(x, keep, self.pool) if self.weigh is None else weighed(x, keep, self.weigh(x))
        if self.inner is not None:
            x = self.inner(x)
        if self.activation is not None:
            x = self.activation(x)
        return F.normalize(x, dim=-1) if self.normalise else x


class ClassHead(VectorHead):
    """Classes of a text: (B, T, d_model), keep (B, T) -> (B, C); of two tokens with classes each, their mean."""

    def __init__(self, c: HeadConfig, d_model: int) -> None:
        super().__init__(c, d_model)
        self.dropout, self.outer = Dropout(c.dropout), nn.Linear(d_model, c.size, bias=c.bias)
        self.other = nn.Linear(d_model, c.size, bias=c.bias) if c.pool == "both" else None

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        if self.other is not None:
            first, second = self.both(x)
            return (first + second) / 2
        return self.outer(self.dropout(super().forward(x, keep)))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What each of the two tokens says, (B, C)."""
        assert self.other is not None
        return self.outer(self.dropout(x[:, 0])), self.other(self.dropout(x[:, 1]))


class TagHead(nn.Module):
    """Classes of each token: (B, T, d_model) -> (B, T, C). Where a span begins and ends is two numbers a token."""

    def __init__(self, c: HeadConfig, d_model: int) -> None:
        super().__init__()
        self.dropout = Dropout(c.dropout)
        self.outer = nn.Linear(d_model, c.size or 2, bias=c.bias)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.outer(self.dropout(x))


def pooled(x: Tensor, keep: Tensor | None, pool: str) -> Tensor:
    """One vector for each row, of those that are kept: (B, T, d), keep (B, T) -> (B, d).

    >>> x = torch.tensor([[[1.0], [3.0], [8.0]]])
    >>> keep = torch.tensor([[True, True, False]])
    >>> [pooled(x, keep, how).item() for how in POOLS]
    [1.0, 3.0, 2.0, 3.0]
    """
    if pool == "first":
        return x[:, 0]
    if keep is None:
        keep = x.new_ones(x.shape[:2], dtype=torch.bool)
    if pool == "last":
        at = (keep * torch.arange(x.shape[1], device=x.device)).argmax(1)
        return x[torch.arange(x.shape[0], device=x.device), at]
    if pool == "max":
        return x.masked_fill(~keep[:, :, None], float("-inf")).amax(1)
    return (x * keep[:, :, None]).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


def weighed(x: Tensor, keep: Tensor | None, score: Tensor) -> Tensor:
    """The sum of all positions by the soft-max of their scores: (B, T, d), keep (B, T), score (B, T, 1) -> (B, d)."""
    if keep is not None:
        score = score.masked_fill(~keep[:, :, None], float("-inf"))
    return (score.softmax(1).transpose(1, 2) @ x)[:, 0]


def head(
    c: HeadConfig,
    d_model: int,
    tokens: nn.Embedding | None = None,
    norm: Callable[[int], nn.Module] = nn.LayerNorm,
    tied: bool = True,
) -> nn.Module:
    """The head that a config describes, on features of this width; `norm` makes a normalisation of a width."""
    if c.kind == "tokens":
        assert tokens is not None, "a model without words says none"
        return logits(tokens, tied=tied, bias=c.bias) if c.hidden is None else TokenHead(c, d_model, tokens, norm, tied)
    made: type[Any] = {"classes": ClassHead, "tags": TagHead, "spans": TagHead, "vector": VectorHead}[c.kind]
    return made(c, d_model)
