"""The Transformer of "Attention Is All You Need": Figure 1, Table 3, and everything that can be swapped in it.

Letters: B batch, S source length, T target length, V vocabulary, d_model width of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.core.attention import AttentionConfig, MultiHeadAttention
from regard.core.blocks import DecoderLayer, EncoderLayer, Stack
from regard.core.cache import Cache
from regard.core.efficient import Kind
from regard.core.generation import EncoderDecoder
from regard.core.layers import (
    ACTIVATIONS,
    GATES,
    NORMS,
    ConvolutionFeedForward,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Residual,
)
from regard.core.masks import causal, padding
from regard.core.normalisers import ALONG_A_MEMORY, read_normaliser
from regard.core.positions import (
    ABSOLUTE,
    BIASED,
    RELATIVE,
    Positions,
    absolute_positions,
    check_rotary,
    relative_positions,
)
from regard.models.family import Config, Family


@dataclass(frozen=True)
class TransformerConfig(Config):
    """Everything that makes a Transformer; the defaults are the paper's base model.

    `TransformerConfig.base(37_000)` is the model of Table 3's first row, and every other row is a change to it:
    heads, d_k, d_v, layers, d_model, d_ff, dropout, positions="learned".
    """

    vocabulary: int
    source_vocabulary: int | None = None  # the same, if left out
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    kv_heads: int | None = None  # heads, if left out
    d_k: int | None = None  # d_model / heads, if left out
    d_v: int | None = None
    scale: float | None = None  # of the scores: 1/√d_k, if left out
    positions: str = "sinusoidal"
    max_length: int = 1024  # of learned positions, the score location, and what linformer:R projects
    norm: str = "post"  # or pre
    norm_kind: str = "layer"  # or rms
    norm_eps: float = 1e-5
    feed_forward: str = "relu"  # gelu, silu, glu, swiglu, convolution
    bias: bool = True  # in the products of attention and feed-forward
    tie: str = "all"  # which embeddings are one matrix (§3.4): all, target (with the output), none
    scale_embedding: bool = True  # by √d_model (§3.4)
    embedding_norm: bool = False  # of words plus positions, as in BART
    output_bias: bool = False  # a number for each word, added to its logit
    dropout: float = 0.1  # of each sub-layer's output and of the embeddings (§5.4)
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    stochastic_depth: float = 0.0  # in the last layer; grows linearly from the first
    backend: str = "auto"  # of attention
    score: str = "dot"  # general, additive, concat, location
    normaliser: str = "softmax"  # topk:K, hard, sparsemax, entmax
    cross_score: str | None = None  # of attention to the memory: score, if left out
    cross_normaliser: str | None = None  # normaliser, if left out; or monotonic, chunkwise:W
    self_attention: str = "full"  # window:W, linear, ...: its efficient form, in encoder and decoder
    decoder_self_attention: str | None = None  # self_attention, if left out
    pad: int = 0

    def __post_init__(self) -> None:
        self.check(
            positions=ABSOLUTE + RELATIVE,
            norm=("post", "pre"),
            norm_kind=NORMS,
            feed_forward=(*ACTIVATIONS, *GATES, "convolution"),
        )
        self.attention, self.cross_attention  # noqa: B018  check heads and widths, scores and normalisers
        if read_normaliser(self.normaliser)[0] in ALONG_A_MEMORY:
            raise ValueError(
                f"normaliser = {self.normaliser!r} walks along a memory, which self-attention has not: give it as "
                "cross_normaliser"
            )
        if self.positions == "rope":
            check_rotary(self.d_k or self.d_model // self.heads)
        self._check_kinds()

    def _check_kinds(self) -> None:
        """Refuse an efficient self-attention where it cannot be."""
        setting = "self_attention" if self.decoder_self_attention is None else "decoder_self_attention"
        kind = self.decoder_attention.kind
        if not Kind.read(kind).causal:
            raise ValueError(
                f"{setting} = {kind!r} has no causal form, which the decoder needs: set decoder_self_attention to one "
                "that has, such as full, or window:64"
            )
        if self.positions in BIASED and not self.attention.kind == kind == "full":
            raise ValueError(
                f"positions = {self.positions!r} add to the scores of full attention: choose sinusoidal, learned, rope "
                "or none, or leave self_attention at full"
            )

    @property
    def longest(self) -> int | None:
        """The most positions that it can read if it has a parameter for each of them; None: it reads any number."""
        tables = {"learned", "location"} & {self.positions, self.score, self.cross_score}
        return self.max_length if tables or self.self_attention.startswith("linformer") else None

    @property
    def attention(self) -> AttentionConfig:
        """The part that each self-attention of the encoder needs."""
        return AttentionConfig(
            self.d_model,
            self.heads,
            self.kv_heads,
            self.d_k,
            self.d_v,
            bias=self.bias,
            scale=self.scale,
            dropout=self.attention_dropout,
            backend=self.backend,
            score=self.score,
            normaliser=self.normaliser,
            kind=self.self_attention,
            max_length=self.max_length,
        )

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


class Memory(NamedTuple):
    """What the encoder hands to the decoder."""

    states: Tensor  # (B, S, d_model)
    mask: Tensor | None = None  # (B, 1, 1, S): which states may be attended to

    def reorder(self, index: Tensor) -> "Memory":
        """The rows `index` of the batch, in that order."""
        mask = None if self.mask is None else self.mask.index_select(0, index)
        return Memory(self.states.index_select(0, index), mask)


class Transformer(EncoderDecoder, nn.Module):
    """Figure 1.

    >>> import torch
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> source, target = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
    >>> model(source, target).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        target = _tokens(c.vocabulary, c.d_model)
        source = target if c.tie == "all" else _tokens(c.source_vocabulary or c.vocabulary, c.d_model)
        self.source_embedding = _embedding(c, source)
        self.target_embedding = _embedding(c, target)
        self.encoder = _encoder(c)
        self.decoder = _decoder(c)
        self.output = nn.Linear(c.d_model, c.vocabulary, bias=c.output_bias)
        if c.output_bias:
            nn.init.zeros_(self.output.bias)
        if c.tie == "none":
            nn.init.normal_(self.output.weight, std=c.d_model**-0.5)
        else:
            self.output.weight = target.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S), target (B, T), right-padded -> logits of each next token (B, T, V)."""
        return self.decode(target, self.encode(source))

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """What the output layer reads, (B, T, d_model): for `linear_cross_entropy` with `output`'s weight and bias."""
        return self._features(target, self.encode(source))

    def encode(self, source: Tensor) -> Memory:
        """source (B, S), padded with `pad` -> what the decoder attends to."""
        keep = source != self.config.pad
        mask = padding(keep).dense(1, keep.shape[1], keep.device)
        return Memory(self.encoder(self.source_embedding(source), mask=mask, keep=keep), mask)

    def decode(self, target: Tensor, memory: Memory, cache: Cache | None = None) -> Tensor:
        """target (B, T) -> logits (B, T, V). With a cache (`new_cache()`), target holds the new tokens only."""
        return self.output(self._features(target, memory, cache))

    def new_cache(self) -> Cache:
        """An empty cache for `decode`; the caller holds it."""
        cache = Cache.empty(self.config.decoder_layers)
        for past, layer in zip(cache, self.decoder.layers, strict=True):
            past.self_attention = layer.self_attention.sublayer.new_cache()  # type: ignore[union-attr, operator]
        return cache

    def _features(self, target: Tensor, memory: Memory, cache: Cache | None = None) -> Tensor:
        # Right-padding needs no mask here: what comes after a token is hidden from it by causality.
        offset = 0 if cache is None else cache.length
        x = self.target_embedding(target, offset)
        one = cache is not None and target.shape[1] == 1  # the newest position sees all the others
        mask = None if one else causal(offset)
        return self.decoder(x, memory.states, mask=mask, memory_mask=memory.mask, cache=cache)


def _tokens(vocabulary: int, d_model: int) -> nn.Embedding:
    tokens = nn.Embedding(vocabulary, d_model)
    nn.init.normal_(tokens.weight, std=d_model**-0.5)  # times √d_model: of unit variance, like the positions
    return tokens


def _embedding(c: TransformerConfig, tokens: nn.Embedding) -> Embedding:
    positions = absolute_positions(c.positions, d_model=c.d_model, maximum=c.max_length)
    norm, scale = _norm(c) if c.embedding_norm else None, None if c.scale_embedding else 1.0
    return Embedding(tokens, positions, norm=norm, dropout=c.dropout, scale=scale)


def _encoder(c: TransformerConfig) -> Stack:
    return Stack(
        (
            EncoderLayer(
                _residual(c, MultiHeadAttention(c.attention, positions=positions), depth),
                _residual(c, _feed_forward(c, causal=False), depth),
            )
            for positions, depth in _levels(c, c.encoder_layers, both_ways=True)
        ),
        _norm(c) if c.norm == "pre" else None,
    )


def _decoder(c: TransformerConfig) -> Stack:
    return Stack(
        (
            DecoderLayer(
                _residual(c, MultiHeadAttention(c.decoder_attention, positions=positions), depth),
                _residual(c, MultiHeadAttention(c.cross_attention, d_memory=c.d_model), depth),
                _residual(c, _feed_forward(c, causal=True), depth),
            )
            for positions, depth in _levels(c, c.decoder_layers, both_ways=False)
        ),
        _norm(c) if c.norm == "pre" else None,
    )


def _levels(c: TransformerConfig, layers: int, both_ways: bool) -> Iterator[tuple[Positions, float]]:
    """For each layer its positions inside attention, and how deep it lies, from 0 to 1."""
    positions = None
    for i in range(layers):
        if positions is None or not positions.shared:
            d_k = c.d_k or c.d_model // c.heads
            positions = relative_positions(c.positions, heads=c.heads, d_k=d_k, both_ways=both_ways)
        yield positions, i / max(1, layers - 1)


def _residual(c: TransformerConfig, sublayer: nn.Module, depth: float) -> Residual:
    return Residual(sublayer, _norm(c), c.norm, dropout=c.dropout, skip=c.stochastic_depth * depth)


def _norm(c: TransformerConfig) -> nn.Module:
    return NORMS[c.norm_kind](c.d_model, eps=c.norm_eps)


def _feed_forward(c: TransformerConfig, causal: bool) -> nn.Module:
    dropout, bias = c.feed_forward_dropout, c.bias
    if c.feed_forward == "convolution":
        return ConvolutionFeedForward(c.d_model, c.d_ff, causal=causal, dropout=dropout, bias=bias)
    kind = GatedFeedForward if c.feed_forward in GATES else FeedForward
    return kind(c.d_model, c.d_ff, c.feed_forward, dropout=dropout, bias=bias)


FAMILY = Family(
    TransformerConfig,
    Transformer,
    {name: getattr(TransformerConfig, name) for name in ("tiny", "shallow", "small", "base", "big")},
)
