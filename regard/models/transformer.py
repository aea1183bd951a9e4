"""The Transformer of "Attention Is All You Need": Figure 1, Table 3, and everything that can be swapped in it.

Letters: B batch, S source length, T target length, V vocabulary, d_model width of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.core import blocks
from regard.core.cache import Cache
from regard.core.generation import Begun, EncoderDecoder, Reading, longest
from regard.core.masks import causal, padding
from regard.core.mixers import AttentionConfig
from regard.core.outputs import logits
from regard.core.positions import absolute_positions
from regard.core.stems import Embedding, Frames, words
from regard.models.family import TIES, Config, Family


class Transformer(EncoderDecoder, nn.Module):
    """Figure 1.

    >>> import torch
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> source, target = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
    >>> model(source, target).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, config: "TransformerConfig") -> None:
        super().__init__()
        self.config = c = config
        target = words(c.vocabulary, c.d_model)
        self.source_embedding = self.reading(target)
        self.alike = c.bands is not None
        self.target_embedding = _embedding(c, target)
        self.encoder = blocks.encoder(c.encoding, c.encoder_layers)
        self.decoder = blocks.decoder(c, c.decoder_layers, c.decoder_attention, c.cross_attention)
        self.decoder.scale = c.d_model**-0.5 if c.scale_output else 1.0
        self.output = logits(target, tied=c.tie in ("all", "target"), bias=c.output_bias)

    def reading(self, target: nn.Embedding) -> Any:
        """What makes vectors of a source: words, which may be those of the target, or sound."""
        c = self.config
        if c.bands is not None:
            return Frames(c.bands, c.d_model, c.places, c.dropout)
        one = c.tie in ("all", "inputs")
        return _embedding(c, target if one else words(c.source_vocabulary or c.vocabulary, c.d_model))

    def encode(self, source: Tensor) -> "Memory":
        """source (B, S), padded with `pad`, or frames (B, S, bands) -> what the decoder attends to."""
        if isinstance(self.source_embedding, Frames):
            return Memory(self.encoder(self.source_embedding(source)))
        keep = self.source_embedding.kept(source != self.config.pad)
        mask = padding(keep).dense(1, keep.shape[1], keep.device)
        return Memory(self.encoder(self.source_embedding(source), mask=mask, keep=keep), mask)

    def start(self, sources: Sequence[Any], device: torch.device) -> Reading:
        """B sources -> what `step` continues, a row for each. Sound is encoded before a search begins."""
        if not isinstance(self.source_embedding, Frames):
            return super().start(sources, device)
        begun: Sequence[Begun] = sources
        state = Reading(Memory(torch.cat([each.memory.states for each in begun]).to(device)), self.new_cache())
        if len(begun[0]):
            self.extend(torch.tensor([[*each.written] for each in begun], device=device), state)
        return state

    def room(self, source: Any) -> int | None:
        most = longest(self)
        return most - len(source) if isinstance(source, Begun) and most is not None else super().room(source)

    def continued(self, target: Tensor, memory: "Memory", cache: Cache | None = None) -> Tensor:
        """target (R, T) -> what the output layer reads, (R, T, d_model)."""
        # Right-padding needs no mask here: what comes after a token is hidden from it by causality.
        offset = 0 if cache is None else cache.length
        one = cache is not None and target.shape[1] == 1  # the newest position sees all the others
        mask = None if one else causal(offset)
        x = self.target_embedding(target, offset)
        return self.decoder(x, memory.states, mask=mask, memory_mask=memory.mask, cache=cache)

    def new_cache(self) -> Cache:
        """An empty cache for `decode`; the caller holds it."""
        return blocks.new_cache(self.decoder)


def _embedding(c: "TransformerConfig", tokens: nn.Embedding) -> Embedding:
    positions = absolute_positions(c.positions, d_model=c.d_model, maximum=c.max_length)
    norm, scale = blocks.make_norm(c) if c.embedding_norm else None, None if c.scale_embedding else 1.0
    return Embedding(tokens, positions, norm=norm, dropout=c.dropout, scale=scale)


class Memory(NamedTuple):
    """What the encoder hands to the decoder."""

    states: Tensor  # (B, S, d_model)
    mask: Tensor | None = None  # (B, 1, 1, S): which states may be attended to

    def reorder(self, index: Tensor) -> "Memory":
        """The rows `index` of the batch, in that order."""
        mask = None if self.mask is None else self.mask.index_select(0, index)
        return Memory(self.states.index_select(0, index), mask)


@dataclass(frozen=True)
class _Sizes:
    """What there is to read and to write, and through how many layers it goes."""

    vocabulary: int
    source_vocabulary: int | None = None  # the same, if left out
    encoder_layers: int = 6
    decoder_layers: int = 6


@dataclass(frozen=True)
class TransformerConfig(blocks.LayerConfig, _Sizes, Config):
    """Everything that makes a Transformer; the defaults are the paper's base model.

    `TransformerConfig.base(37_000)` is the model of Table 3's first row, and every other row is a change to it:
    heads, d_k, d_v, layers, d_model, d_ff, dropout, positions="learned".
    """

    tie: str = "all"  # which embeddings are one matrix (§3.4): all, target (with the output), inputs, none
    scale_embedding: bool = True  # by √d_model (§3.4)
    embedding_norm: bool = False  # of words plus positions, as in BART
    scale_output: bool = False  # what the output layer reads, by 1/√d_model, as in T5
    output_bias: bool = False  # a number for each word, added to its logit
    cross_score: str | None = None  # of attention to the memory: score, if left out
    cross_normaliser: str | None = None  # normaliser, if left out; or monotonic, chunkwise:W
    decoder_self_attention: str | None = None  # self_attention, if left out
    pad: int = 0
    bands: int | None = None  # numbers in each frame of sound, which is read instead of words: 80 in Whisper
    places: int = 1500  # positions of the encoder, two frames each, if it reads sound

    def __post_init__(self) -> None:
        self.check(tie=(*TIES, "inputs"))
        if self.bands is not None and self.tie in ("all", "inputs"):
            raise ValueError(f"tie = {self.tie!r}: a model that reads sound has words to write only: target, or none")
        self.check_layers("self_attention" if self.decoder_self_attention is None else "decoder_self_attention")
        self.decoder_attention, self.cross_attention  # noqa: B018  check scores and normalisers

    @property
    def longest(self) -> int | None:
        """The most positions that it can read if it has a parameter for each of them; None: it reads any number."""
        tables = {"learned", "location"} & {self.positions, self.score, self.cross_score}
        return self.max_length if tables or self.self_attention.startswith("linformer") else None

    @property
    def encoding(self) -> blocks.LayerConfig:
        """The layers of the encoder."""
        return self

    @property
    def decoder_attention(self) -> AttentionConfig:
        """The same in the decoder."""
        return replace(self.attention, kind=self.decoder_self_attention or self.self_attention)

    @property
    def cross_attention(self) -> AttentionConfig:
        """The same for attention to the memory."""
        score, normaliser = self.cross_score or self.score, self.cross_normaliser or self.normaliser
        return replace(self.attention, score=score, normaliser=normaliser, kind="full")

    @classmethod
    def tiny(cls, vocabulary: int, **changes: Any) -> "TransformerConfig":
        """4+4 layers of width 128: what a CPU trains in minutes (Transformer-Tiny of Wu et al., 2021)."""
        return cls(vocabulary, encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, heads=4).but(**changes)

    @classmethod
    def shallow(cls, vocabulary: int, **changes: Any) -> "TransformerConfig":
        """6+1 layers of width 128, pre-norm: a student that is quick to use (Kasai et al., 2021).

        The encoder reads a sentence once, all words in one product; each decoder layer is paid for word by word. Of
        their 12+1 layers, half is enough at this width: with a shortlist the encoder is most of the work already.
        """
        return cls.tiny(vocabulary, encoder_layers=6, decoder_layers=1, norm="pre").but(**changes)

    @classmethod
    def small(cls, vocabulary: int, **changes: Any) -> "TransformerConfig":
        """6+6 layers of width 256, pre-norm: what a CPU trains in hours."""
        return cls(vocabulary, d_model=256, d_ff=1024, heads=4, norm="pre").but(**changes)

    @classmethod
    def base(cls, vocabulary: int, **changes: Any) -> "TransformerConfig":
        """The paper's base model."""
        return cls(vocabulary).but(**changes)

    @classmethod
    def big(cls, vocabulary: int, **changes: Any) -> "TransformerConfig":
        """The paper's big model (Table 3, last row; dropout as for English-German)."""
        return cls(vocabulary, d_model=1024, d_ff=4096, heads=16, dropout=0.3).but(**changes)


DROPPED = {"attention_dropout": 0.1, "feed_forward_dropout": 0.1}


def t5_small(vocabulary: int = 32_128, **changes: Any) -> TransformerConfig:
    """T5 of Raffel et al. (2020), the smallest: 61 million parameters."""
    own = {"positions": "t5", "norm": "pre", "norm_kind": "rms", "norm_eps": 1e-6, "bias": False, "scale": 1.0}
    ends = {"scale_embedding": False, "scale_output": True, "d_k": 64, "d_v": 64}
    return TransformerConfig(vocabulary).but(**own, **ends, **DROPPED).but(**changes)


def flan_t5_small(vocabulary: int = 32_128, **changes: Any) -> TransformerConfig:
    """T5 v1.1, which Flan (Chung et al., 2022) has: 77 million parameters."""
    own = t5_small(vocabulary, feed_forward="geglu_tanh", tie="inputs", scale_output=False)
    return own.but(encoder_layers=8, decoder_layers=8, heads=6, d_ff=1024).but(**changes)


def bart_base(vocabulary: int = 50_265, **changes: Any) -> TransformerConfig:
    """BART of Lewis et al. (2020): 139 million parameters."""
    own = TransformerConfig(vocabulary, d_model=768, d_ff=3072, heads=12, feed_forward="gelu", positions="learned")
    return own.but(embedding_norm=True, scale_embedding=False, output_bias=True, **DROPPED).but(**changes)


def whisper_tiny(vocabulary: int = 51_865, **changes: Any) -> TransformerConfig:
    """Whisper of Radford et al. (2022), the smallest: 38 million parameters."""
    sizes = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 384, "d_ff": 1536, "heads": 6, "max_length": 448}
    own = {"norm": "pre", "feed_forward": "gelu", "positions": "learned", "scale_embedding": False, "dropout": 0.0}
    return TransformerConfig(vocabulary, tie="target", bands=80).but(**sizes, **own).but(**changes)


FAMILY = Family(
    TransformerConfig,
    Transformer,
    {name: getattr(TransformerConfig, name) for name in ("tiny", "shallow", "small", "base", "big")}
    | {"t5-small": t5_small, "flan-t5-small": flan_t5_small, "bart-base": bart_base, "whisper-tiny": whisper_tiny},
)
