"""A decoder alone, which says what comes next: GPT-2 and Llama are two of its configs.

Letters: B batch, T length, V vocabulary, d_model width of the model.

GPT-2 (Radford et al., 2019) is the right half of Figure 1 without its middle, normalised before each sub-layer, with
learned positions and GELU. Llama (Touvron et al., 2023) has rotary positions, RMSNorm, SwiGLU and no biases.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import blocks
from regard.core.cache import Cache
from regard.core.generation import DecoderOnly
from regard.core.layers import Residual
from regard.core.masks import Mask, alike, causal
from regard.core.outputs import HEADS, HeadConfig, head
from regard.core.positions import absolute_positions
from regard.core.stems import Embedding
from regard.models.family import INITIAL, Config, Family, StackSizes


class Decoder(DecoderOnly, nn.Module):
    """A language model.

    >>> import torch
    >>> model = Decoder(gpt_tiny(vocabulary=100))
    >>> model(torch.randint(3, 100, (2, 7))).shape
    torch.Size([2, 7, 100])
    """

    def __init__(self, config: "DecoderConfig", head_config: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.head = config, head_config or HeadConfig()
        c = config
        positions = absolute_positions(c.positions, d_model=c.d_model, maximum=c.max_length)
        scale = None if c.scale_embedding else 1.0
        self.stem = Embedding(nn.Embedding(c.vocabulary, c.d_model), positions, dropout=c.dropout, scale=scale)
        self.decoder = blocks.decoder(c, c.layers)
        if self.head.kind == "tokens":
            self.output: nn.Module = nn.Linear(c.d_model, c.vocabulary, bias=False)
        else:
            self.output = head(self.head, c.d_model, self.stem.tokens)
        self.apply(self._draw)
        if self.head.kind == "tokens" and c.tie != "none":
            self.output.weight = self.stem.tokens.weight

    def _draw(self, module: nn.Module) -> None:
        """First weights: what is added to the residual stream by each of 2 · layers sub-layers is made smaller."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INITIAL)
        if isinstance(module, Residual):
            last = module.sublayer.output if hasattr(module.sublayer, "output") else module.sublayer.outer
            nn.init.normal_(last.weight, std=INITIAL * (2 * self.config.layers) ** -0.5)  # type: ignore[union-attr, arg-type]

    def forward(
        self,
        tokens: Tensor,
        documents: Tensor | None = None,
        keep: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """tokens (B, T) -> logits of each next token (B, T, V); or what another head makes of those to `keep`. The
        `segments` of two texts it does not tell apart."""
        features = self.features(tokens, documents=documents)
        return self.output(features) if self.head.kind == "tokens" else self.output(features, keep=keep)

    def features(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        documents: Tensor | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """What the output layer reads, (B, T, d_model). With a cache (`new_cache()`), tokens are the new ones only.

        Of rows with several documents, `documents` (B, T) has the number of each token's: it sees no other. At places
        (B, T) of what was `seen`, its vectors (..., d_model) stand in place of words.
        """
        offset = 0 if cache is None else cache.length
        ahead = 0 if offset else self.stem.virtual
        one = cache is not None and ahead + tokens.shape[1] == 1  # the newest position sees all the others
        mask = None if one else causal(offset)
        assert cache is None or documents is None, "what is written goes on with one document"
        at: int | Tensor = offset
        if documents is not None:
            if {*(kinds := self.config.self_attention).split()} != {"full"}:
                raise ValueError(
                    f"self_attention = {kinds} keeps no documents of a block apart: set task.apart to false"
                )
            at, mask = within(documents), causal() & alike(documents)
            if ahead:  # a prompt, which every document sees
                mask = causal() & (alike(F.pad(documents, (ahead, 0), value=-1)) | Mask(lambda i, j: j < ahead))
        x = self.decoder(self.stem(tokens, at, seen=seen), mask=mask, cache=cache)
        return x[:, ahead:] if ahead else x

    def new_cache(self) -> Cache:
        """An empty cache for `features`; the caller holds it."""
        return blocks.new_cache(self.decoder)


def within(documents: Tensor) -> Tensor:
    """Where each token stands in its document: (B, T) of the numbers of documents, which rise, -> (B, T).

    >>> import torch
    >>> within(torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])).tolist()
    [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]
    """
    at = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.where(documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0, at, 0)
    return at - begins.cummax(dim=1).values


@dataclass(frozen=True)
class DecoderConfig(blocks.LayerConfig, StackSizes, Config):
    """Everything that makes a decoder; the defaults are those of GPT-2, the smallest."""

    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    positions: str = "learned"  # rope, alibi, t5, shaw, sinusoidal, none
    norm: str = "pre"  # or post
    feed_forward: str = "gelu_tanh"  # relu, gelu, silu, glu, swiglu, geglu, geglu_tanh, convolution
    attention_dropout: float = 0.1
    tie: str = "all"  # the output is the matrix of the embeddings; or none
    scale_embedding: bool = False  # by √d_model

    def __post_init__(self) -> None:
        self.check()
        self.check_layers("self_attention")

    @property
    def longest(self) -> int | None:
        """The most positions that it can read if it has a parameter for each of them; None: it reads any number."""
        return self.max_length if self.positions == "learned" or self.score == "location" else None


def gpt2(vocabulary: int = 50_257, **changes: Any) -> DecoderConfig:
    """GPT-2, the smallest: 124 million parameters."""
    return DecoderConfig(vocabulary).but(**changes)


def gpt_tiny(vocabulary: int, **changes: Any) -> DecoderConfig:
    """4 layers of width 128: what a CPU trains in minutes, and nanoGPT's model for one."""
    small = gpt2(vocabulary, layers=4, d_model=128, d_ff=512, heads=4, dropout=0.0, attention_dropout=0.0)
    return small.but(**changes)


def llama(vocabulary: int, **changes: Any) -> DecoderConfig:
    """The parts of Llama, in the sizes of stories15M."""
    own = {"positions": "rope", "norm_kind": "rms", "feed_forward": "swiglu", "bias": False}
    sizes = {"layers": 6, "d_model": 288, "d_ff": 768, "heads": 6, "dropout": 0.0, "attention_dropout": 0.0}
    return DecoderConfig(vocabulary).but(**own, **sizes).but(**changes)


def llama_tiny(vocabulary: int, **changes: Any) -> DecoderConfig:
    """4 layers of width 128 with the parts of Llama."""
    return llama(vocabulary, layers=4, d_model=128, d_ff=344, heads=4).but(**changes)


def stories15m(vocabulary: int = 32_000, **changes: Any) -> DecoderConfig:
    """The model of llama2.c that writes children's stories: 15 million parameters."""
    return llama(vocabulary, max_length=256).but(**changes)


def smollm2_135m(vocabulary: int = 49_152, **changes: Any) -> DecoderConfig:
    """SmolLM2, the smallest: 135 million parameters, three query heads to a key."""
    sizes = {"layers": 30, "d_model": 576, "d_ff": 1536, "heads": 9, "kv_heads": 3, "max_length": 8192}
    return llama(vocabulary, **sizes, rope_base=100_000.0).but(**changes)


FAMILY = Family(
    DecoderConfig,
    Decoder,
    {
        "gpt-tiny": gpt_tiny,
        "gpt2": gpt2,
        "llama-tiny": llama_tiny,
        "stories15m": stories15m,
        "smollm2-135m": smollm2_135m,
    },
    heads=HEADS,
)
