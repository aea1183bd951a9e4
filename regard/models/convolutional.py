"""Convolutions in place of self-attention: ConvS2S (Gehring et al., 2017) and ByteNet (Kalchbrenner et al., 2016).

Letters: B batch, S source length, T target length, K rows of the target for each of the source, V vocabulary,
d = d_model.

A layer sees `kernel` neighbours, so that n tokens meet only after many layers: n / (kernel - 1) of ConvS2S; about
log2(n) of ByteNet, whose kernels have gaps that double. ConvS2S attends to the source in every decoder layer. ByteNet
does not attend at all: its decoder stands on top of its encoder, and position t of the target reads column t of it.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.blocks import Stack
from regard.core.cache import KeyValues, Window
from regard.core.dropout import Dropout
from regard.core.generation import EncoderDecoder
from regard.core.layers import Residual, linear
from regard.core.masks import padding
from regard.core.mixers import AttentionConfig
from regard.core.outputs import logits
from regard.core.positions import ABSOLUTE, Learned, absolute_positions
from regard.core.stems import Embedding, words
from regard.models.family import Config, Family

STYLES = ("convs2s", "bytenet")
MOST_DILATIONS = 12  # gaps up to 2,048 tokens: the zeros beyond a sentence take memory too
MOST_UNFOLD = 100.0  # columns take memory as well
HALF = math.sqrt(0.5)  # a sum of two numbers of variance 1, times this, has variance 1
SMALL = 0.1  # standard deviation of ConvS2S's embeddings


@dataclass(frozen=True)
class ConvolutionalConfig(Config):
    """Everything that makes a convolutional encoder-decoder; the defaults are the preset `convs2s`."""

    vocabulary: int
    source_vocabulary: int | None = None  # the same, if left out
    style: str = "convs2s"  # or bytenet
    encoder_layers: int = 6
    decoder_layers: int = 4
    d_model: int = 128
    kernel: int = 3
    dilations: int = 1  # of the layers in turn: 1, 2, 4, ..., so many, and again from 1
    attention: bool = True  # to the source; of bytenet, after each whole turn of dilations
    heads: int = 1
    scale: float | None = None  # of the scores: 1/√d_k, if left out
    score: str = "dot"
    normaliser: str = "softmax"
    unfold: float = 1.2  # of bytenet: target tokens expected for a source token
    positions: str = "learned"  # sinusoidal, none
    max_length: int = 1024  # of learned positions, and of a source whose score is location
    tie: str = "all"  # which embeddings are one matrix: all, target (with the output), none
    dropout: float = 0.1
    pad: int = 0

    def __post_init__(self) -> None:
        self.check(style=STYLES, positions=ABSOLUTE)
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel}: the encoder's looks as far back as ahead, so it must be odd")
        if self.style == "bytenet" and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model}: bytenet convolves at half this width, so it must be even")
        if self.style == "convs2s" and not self.attention:
            raise ValueError("style='convs2s' reads the source by attention=True: without it, choose style='bytenet'")
        if self.attention and not self.attending:
            raise ValueError(
                f"attention=True comes after each turn of dilations = {self.dilations} layers, and decoder_layers = "
                f"{self.decoder_layers} never end one: choose as many at least, or attention=False"
            )
        if self.dilations > MOST_DILATIONS:
            raise ValueError(
                f"dilations = {self.dilations}: gaps double, and the last would be 2^{self.dilations - 1} tokens: "
                f"choose {MOST_DILATIONS} at most"
            )
        if not 1.0 <= self.unfold <= MOST_UNFOLD:
            raise ValueError(
                f"unfold = {self.unfold}: it is the columns for each source token, from 1 to {MOST_UNFOLD:.0f}"
            )
        self.cross_attention  # noqa: B018  checks heads, score and normaliser

    @property
    def longest(self) -> int | None:
        """The most positions that it can read if it has a parameter for each of them; None: it reads any number."""
        return self.max_length if self.positions == "learned" or self.score == "location" else None

    @property
    def cross_attention(self) -> AttentionConfig:
        """The part that each attention needs."""
        return AttentionConfig(
            self.d_model,
            self.heads,
            scale=self.scale,
            score=self.score,
            normaliser=self.normaliser,
            max_length=self.max_length,
        )

    @property
    def attending(self) -> list[int]:
        """The decoder layers that attend to the source.

        >>> ConvolutionalConfig.bytenet(100, attention=True).attending
        [4, 9]
        """
        turn = self.dilations if self.style == "bytenet" else 1
        return [i for i in range(self.decoder_layers) if self.attention and (i + 1) % turn == 0]

    def dilation(self, layer: int) -> int:
        """The distance of the neighbours that a layer sees."""
        return int(2 ** (layer % self.dilations))

    @classmethod
    def convs2s(cls, vocabulary: int, **changes: Any) -> "ConvolutionalConfig":
        """6+4 gated layers of width 128: about as many parameters as the Transformer's `tiny` has."""
        return cls(vocabulary).but(**changes)

    @classmethod
    def bytenet(cls, vocabulary: int, **changes: Any) -> "ConvolutionalConfig":
        """10+10 dilated layers of width 192, without attention and positions; theirs had 30+30 of 1600."""
        bytenet = cls(vocabulary, style="bytenet", encoder_layers=10, decoder_layers=10, d_model=192, dilations=5)
        return bytenet.but(attention=False, positions="none").but(**changes)


class ConvolutionalMemory(NamedTuple):
    """What the encoder hands to the decoder."""

    states: Tensor  # (B, S, 2·d) of convs2s: outputs beside embeddings; (B, S, d) of bytenet
    mask: Tensor  # (B, 1, 1, S): which states may be attended to
    columns: Tensor | None = None  # (B, unfold · S, d) of bytenet: what each target position reads

    def reorder(self, index: Tensor) -> "ConvolutionalMemory":
        """The rows `index` of the batch, in that order."""
        columns = None if self.columns is None else self.columns.index_select(0, index)
        return ConvolutionalMemory(self.states.index_select(0, index), self.mask.index_select(0, index), columns)


@dataclass
class LayerPast:
    """The past of one decoder layer: the last inputs of its convolution; what it attends to, filled once."""

    convolution: Window = field(default_factory=Window)
    cross_attention: KeyValues = field(default_factory=KeyValues)


class ConvolutionalPast(list[LayerPast]):
    """The past of a decoder: of a size that does not grow with what was decoded."""

    length = 0  # positions decoded

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        """Keep these rows (n,) of what was decoded, and these of the memory, in that order; None leaves them alone."""
        for layer in self:
            if rows is not None:
                layer.convolution.reorder(rows)
                layer.cross_attention.follow(rows)
            if memory is not None:
                layer.cross_attention.reorder(memory)


class Convolution(nn.Module):
    """y_t = W [x_(t - dilation), x_t, x_(t + dilation)] + b for a kernel of 3; `causal` looks back only.

    Neighbours side by side and one product: as quick as PyTorch's conv1d in training, quicker token by token, and a
    matrix like any other to whoever counts, quantises or prunes.

    >>> Convolution(8, 16, kernel=3, dilation=2, causal=True)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, d_in: int, *d_out: int, kernel: int, dilation: int = 1, causal: bool) -> None:
        super().__init__()
        self.kernel, self.dilation, self.causal = kernel, dilation, causal
        self.product = linear(kernel * d_in, *d_out)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, cache: Window | None = None) -> Tensor:
        """x (B, T, d_in), keep (B, T) bool -> (B, T, d_out); what is not kept counts as zero, as what is outside."""
        T, reach = x.shape[1], (self.kernel - 1) * self.dilation
        if keep is not None:
            x = x * keep[:, :, None]
        if self.causal:
            x = (cache or Window()).slide(x, reach + 1)  # (B, reach + T, d_in)
        else:
            x = F.pad(x, (0, 0, reach // 2, reach // 2))
        neighbours = [x[:, start : start + T] for start in range(0, reach + 1, self.dilation)]
        return self.product(torch.cat(neighbours, -1))  # (B, T, kernel · d_in) W


class GatedLayer(nn.Module):
    """A layer of ConvS2S: GLU(conv(x)) + x; in the decoder with attention to the source between the two.

    Their score is (W h_t + g_t) · z_s, of state, target embedding and encoder output, and what is read is the mean of
    z_s + e_s, e the source embedding. Attention to the memory [z; e] holds this: W_K = [1, 0] picks z, W_V = [1, 1]
    their sum. W_Q acts on state and embedding together, where their W acts on the state alone.
    """

    def __init__(self, c: ConvolutionalConfig, dilation: int, cross_attention: MultiHeadAttention | None) -> None:
        super().__init__()
        self.dropout = Dropout(c.dropout)
        causal = cross_attention is not None
        self.convolution = Convolution(
            c.d_model, c.d_model, c.d_model, kernel=c.kernel, dilation=dilation, causal=causal
        )
        self.cross_attention = cross_attention
        # Their §3.5: a GLU leaves about a quarter of the variance, and dropout makes it 1 / (1 - p) times as large.
        nn.init.normal_(self.convolution.product.weight, std=math.sqrt(4 * (1 - c.dropout) / (c.kernel * c.d_model)))

    def forward(
        self,
        x: Tensor,
        words: Tensor | None = None,
        memory: ConvolutionalMemory | None = None,
        *,
        keep: Tensor | None = None,
        cache: LayerPast | None = None,
    ) -> Tensor:
        """x (B, T, d) -> (B, T, d). `keep` (B, T) tells real tokens from padding; `words` are target embeddings."""
        y = F.glu(self.convolution(self.dropout(x), keep=keep, cache=cache and cache.convolution))  # (B, T, 2·d) -> d
        if self.cross_attention is not None and words is not None and memory is not None:
            read = self.cross_attention(
                (y + words) * HALF, memory.states, mask=memory.mask, cache=cache and cache.cross_attention
            )
            # A mean of n vectors of variance 1 has variance 1/n: their §3.4 undoes that.
            n = memory.mask.sum(-1, dtype=x.dtype)  # (B, 1, 1)
            y = (y + read * n.sqrt().repeat_interleave(len(x) // len(n), 0)) * HALF
        return (y + x) * HALF


class GatedDecoder(nn.Module):
    """The decoder of ConvS2S."""

    def __init__(self, c: ConvolutionalConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GatedLayer(c, c.dilation(i), MultiHeadAttention(c.cross_attention, d_memory=2 * c.d_model))
            for i in range(c.decoder_layers)
        )
        self.dropout = Dropout(c.dropout)

    def forward(self, words: Tensor, memory: ConvolutionalMemory, cache: ConvolutionalPast | None = None) -> Tensor:
        """words (B·K, T, d), memory of B rows -> (B·K, T, d)."""
        x = words
        for i, layer in enumerate(self.layers):
            x = layer(x, words, memory, cache=cache and cache[i])
        return self.dropout(x)


class Bottleneck(nn.Module):
    """The inside of ByteNet's residual block (their Figure 3): narrow, convolve, widen; norm and ReLU before each.

    The first of the three norms is that of the `Residual` around it.
    """

    def __init__(self, c: ConvolutionalConfig, dilation: int, *, causal: bool) -> None:
        super().__init__()
        d, half = c.d_model, c.d_model // 2
        self.narrow, self.wide = linear(d, half), linear(half, d)
        self.convolution = Convolution(half, half, kernel=c.kernel, dilation=dilation, causal=causal)
        self.narrow_norm, self.convolution_norm = nn.LayerNorm(half), nn.LayerNorm(half)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, cache: Window | None = None) -> Tensor:
        """x (B, T, d) -> (B, T, d)."""
        x = self.narrow_norm(self.narrow(x.relu())).relu()  # (B, T, d / 2)
        x = self.convolution_norm(self.convolution(x, keep=keep, cache=cache)).relu()
        return self.wide(x)


class DilatedLayer(nn.Module):
    """A residual block of ByteNet, and attention to the source where it is given."""

    def __init__(self, c: ConvolutionalConfig, dilation: int, *, causal: bool, attends: bool = False) -> None:
        super().__init__()
        self.block = Residual(Bottleneck(c, dilation, causal=causal), nn.LayerNorm(c.d_model), "pre", dropout=c.dropout)
        self.cross_attention = (
            Residual(
                MultiHeadAttention(c.cross_attention, d_memory=c.d_model),
                nn.LayerNorm(c.d_model),
                "pre",
                dropout=c.dropout,
            )
            if attends
            else None
        )

    def forward(
        self,
        x: Tensor,
        memory: ConvolutionalMemory | None = None,
        *,
        keep: Tensor | None = None,
        cache: LayerPast | None = None,
    ) -> Tensor:
        """x (B, T, d) -> (B, T, d). `keep` (B, T) tells what is computed from what lies beyond."""
        x = self.block(x, keep=keep, cache=cache and cache.convolution)
        if self.cross_attention is None or memory is None:
            return x
        return self.cross_attention(x, memory.states, mask=memory.mask, cache=cache and cache.cross_attention)


class DilatedDecoder(nn.Module):
    """The decoder of ByteNet, on top of its encoder: position t reads column t, and zeros after the last one."""

    def __init__(self, c: ConvolutionalConfig) -> None:
        super().__init__()
        self.column = linear(c.d_model, c.d_model, bias=False)
        self.layers = nn.ModuleList(
            DilatedLayer(c, c.dilation(i), causal=True, attends=i in c.attending) for i in range(c.decoder_layers)
        )
        self.norm = nn.LayerNorm(c.d_model)

    def forward(self, words: Tensor, memory: ConvolutionalMemory, cache: ConvolutionalPast | None = None) -> Tensor:
        """words (B·K, T, d), memory of B rows -> (B·K, T, d)."""
        assert memory.columns is not None
        (R, T, _), B = words.shape, len(memory.columns)
        start = 0 if cache is None else cache.length
        column = self.column(memory.columns[:, start : start + T])  # (B, T or fewer, d)
        column = F.pad(column, (0, 0, 0, T - column.shape[1]))
        x = words + column.repeat_interleave(R // B, 0)
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, cache=cache and cache[i])
        return self.norm(x)


class Convolutional(EncoderDecoder, nn.Module):
    """An encoder-decoder of convolutions.

    >>> model = Convolutional(ConvolutionalConfig.convs2s(vocabulary=100))
    >>> source, target = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
    >>> model(source, target).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.config = c = config
        std = SMALL if c.style == "convs2s" else None
        target = words(c.vocabulary, c.d_model, std)
        source = target if c.tie == "all" else words(c.source_vocabulary or c.vocabulary, c.d_model, std)
        self.source_embedding, self.target_embedding = _embedding(c, source), _embedding(c, target)
        dilations = [c.dilation(i) for i in range(c.encoder_layers)]
        self.encoder: nn.Module
        self.decoder: nn.Module
        if c.style == "convs2s":
            self.encoder = Stack(GatedLayer(c, dilation, None) for dilation in dilations)
            self.decoder = GatedDecoder(c)
        else:
            layers = (DilatedLayer(c, dilation, causal=False) for dilation in dilations)
            self.encoder = Stack(layers, nn.LayerNorm(c.d_model))
            self.decoder = DilatedDecoder(c)
        self.output = logits(target, tied=c.tie != "none")

    def encode(self, source: Tensor) -> ConvolutionalMemory:
        """source (B, S), padded with `pad` -> what the decoder reads."""
        keep, S = source != self.config.pad, source.shape[1]
        mask = padding(keep).dense(1, S, keep.device)  # (B, 1, 1, S)
        words = self.source_embedding(source)  # (B, S, d)
        if self.config.style == "convs2s":
            return ConvolutionalMemory(torch.cat([self.encoder(words, keep=keep), words], -1), mask)
        # Dynamic unfolding: a source of n tokens has unfold · n columns, of which the last ones see its end only.
        length = int(self.config.unfold * S) + 1  # one may be too many
        x = F.pad(words * keep[:, :, None], (0, 0, 0, length - S))  # (B, length, d)
        columns = (keep.sum(1, keepdim=True) * self.config.unfold).round()  # (B, 1)
        within = torch.arange(length, device=keep.device) < columns  # (B, length)
        states = self.encoder(x, keep=within)
        return ConvolutionalMemory(states[:, :S], mask, states * within[:, :, None])

    def new_cache(self) -> ConvolutionalPast:
        """An empty cache for `decode`; the caller holds it."""
        return ConvolutionalPast(LayerPast() for _ in range(self.config.decoder_layers))

    def continued(self, target: Tensor, memory: ConvolutionalMemory, cache: ConvolutionalPast | None = None) -> Tensor:
        """target (R, T) -> what the output layer reads, (R, T, d)."""
        # Right-padding needs no mask here: what comes after a token is hidden from it by causality.
        if not len(memory.mask) or len(target) % len(memory.mask):
            raise ValueError(
                f"target and source do not fit together: {len(target)} rows read {len(memory.mask)}; give as many, or "
                "a multiple"
            )
        x: Tensor = self.decoder(self.target_embedding(target, cache.length if cache else 0), memory, cache)
        if cache is not None:
            cache.length += target.shape[1]
        return x


def _embedding(c: ConvolutionalConfig, tokens: nn.Embedding) -> Embedding:
    positions = absolute_positions(c.positions, d_model=c.d_model, maximum=c.max_length)
    if c.style == "bytenet":  # normed before every layer: times √d_model, of unit variance
        return Embedding(tokens, positions, dropout=c.dropout)
    # Small, as theirs: attention is then about uniform at first, which the √n of a layer counts on. With words and
    # positions of unit variance the features begin seven times too large, and Multi30k is not learnt at all.
    if isinstance(positions, Learned):
        nn.init.normal_(positions.table, std=SMALL)
    return Embedding(tokens, positions, dropout=c.dropout, scale=1.0)


FAMILY = Family(
    ConvolutionalConfig, Convolutional, {name: getattr(ConvolutionalConfig, name) for name in ("convs2s", "bytenet")}
)
