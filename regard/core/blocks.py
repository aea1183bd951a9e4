"""The layers of Figure 1, their stacks, and the settings that every model made of them has.

Letters: B batch, T positions, S positions of the memory, d_model width of the model.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.checks import above, one_of
from regard.core.attention import MultiHeadAttention
from regard.core.cache import Cache, LayerCache
from regard.core.efficient import Kind
from regard.core.layers import (
    ACTIVATIONS,
    GATES,
    NORMS,
    ConvolutionFeedForward,
    FeedForward,
    GatedFeedForward,
    LateResidual,
    Residual,
)
from regard.core.masks import AnyMask
from regard.core.mixers import AttentionConfig
from regard.core.normalisers import ALONG_A_MEMORY, read_normaliser
from regard.core.positions import ABSOLUTE, BIASED, RELATIVE, Positions, Rotary, relative_positions


class EncoderLayer(nn.Module):
    """Figure 1, left: self-attention, feed-forward."""

    def __init__(self, self_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward

    def forward(
        self, x: Tensor, *, mask: AnyMask | None = None, bias: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model). `bias` is for the scores; `keep` (B, T) tells tokens from padding."""
        x = self.self_attention(x, mask=mask, bias=bias)
        return self.feed_forward(x, keep=keep)


class DividedLayer(nn.Module):
    """TimeSformer's, for a video (Bertasius et al., 2021): attention over time, then over space, then feed-forward.

    A patch attends to the same place at all times, and then, after that, to its own time. The tokens before the patches
    are part of every time: what they hear in each is averaged.
    """

    def __init__(self, time: Residual, self_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.time, self.self_attention, self.feed_forward = time, self_attention, feed_forward

    def forward(self, x: Tensor, *, tokens: int, times: int) -> Tensor:
        """x (B, tokens + T · N, d_model), N patches at each of T times -> the same."""
        B, first = len(x), x[:, :tokens]
        x = x[:, tokens:].unflatten(1, (times, -1)).transpose(1, 2)  # (B, N, T, d_model)
        x = self.time(x.flatten(0, 1)).unflatten(0, (B, -1)).transpose(1, 2)  # (B, T, N, d_model)
        x = torch.cat([first[:, None].expand(-1, times, -1, -1), x], 2)  # (B, T, tokens + N, d_model)
        x = self.self_attention(x.flatten(0, 1)).unflatten(0, (B, times))
        return self.feed_forward(torch.cat([x[:, :, :tokens].mean(1), x[:, :, tokens:].flatten(1, 2)], 1))


class DecoderLayer(nn.Module):
    """Figure 1, right: masked self-attention, attention to the memory (if there is one), feed-forward."""

    def __init__(self, self_attention: Residual, cross_attention: Residual | None, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AnyMask | None = None,
        memory_mask: AnyMask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, d_model), memory (B, S, any width) -> (B, T, d_model)."""
        x = self.self_attention(x, mask=mask, cache=cache and cache.self_attention)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, mask=memory_mask, cache=cache and cache.cross_attention)
        return self.feed_forward(x, cache=cache and cache.feed_forward)


class Stack(nn.Module):
    """N layers, one after the other; a pre-norm stack ends with a normalisation of its own, T5's with a factor."""

    scale = 1.0

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def repeat(self, times: int) -> None:
        """Go through the layers so often: each pass has taps of its own, and all have the same parameters."""
        own = {id(x): x for x in (*self.parameters(), *self.buffers())}
        self.layers.extend([copy.deepcopy(layer, dict(own)) for _ in range(times - 1) for layer in self.layers])

    def forward(self, x: Tensor, *args: Any, cache: Cache | None = None, **kwargs: Any) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model); each layer gets its part of the cache and everything else."""
        for i, layer in enumerate(self.layers):
            x = layer(x, *args, **kwargs) if cache is None else layer(x, *args, cache=cache[i], **kwargs)
        x = x if self.norm is None else self.norm(x)
        return x if self.scale == 1.0 else x * self.scale


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What every layer of a stack is made of; the defaults are those of the paper's base model."""

    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    kv_heads: int | None = None  # heads, if left out
    d_k: int | None = None  # d_model / heads, if left out
    d_v: int | None = None
    scale: float | None = None  # of the scores: 1/√d_k, if left out
    positions: str = "sinusoidal"
    rope_base: float = 10000.0  # of the angles of positions = rope; Llama 3 has 500000
    rope_scaling: str | None = None  # for longer texts than it was trained on: linear:2, llama3:8,1,4,8192
    max_length: int = 1024  # of learned positions, the score location, and what linformer:R projects
    norm: str = "post"  # or pre
    norm_kind: str = "layer"  # rms, rms_offset (its gain is 1 + w)
    norm_eps: float = 1e-5
    feed_forward: str = "relu"  # gelu, gelu_tanh, silu, glu, swiglu, geglu, geglu_tanh, convolution
    bias: bool = True  # in the products of attention and feed-forward
    qkv_bias: bool | None = None  # in those of queries, keys and values: bias, if left out
    qk_norm: bool = False  # queries and keys of each head are normalised
    dropout: float = 0.1  # of each sub-layer's output and of the embeddings (§5.4)
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    stochastic_depth: float = 0.0  # in the last layer; grows linearly from the first
    backend: str = "auto"  # of attention
    score: str = "dot"  # general, additive, concat, location
    normaliser: str = "softmax"  # topk:K, hard, sparsemax, entmax
    self_attention: str = "full"  # window:W, linear, ...: its efficient form; of several, layers have each in turn

    def check_layers(self, decoder: str | None = None) -> None:
        """Refuse settings that do not go together. `decoder` is the setting that says how a decoder attends to itself,
        if there is one."""
        one_of((*ABSOLUTE, *RELATIVE), positions=self.positions)
        one_of(("post", "pre"), norm=self.norm)
        one_of(NORMS, norm_kind=self.norm_kind)
        one_of((*ACTIVATIONS, *GATES, "convolution"), feed_forward=self.feed_forward)
        above(0, rope_base=self.rope_base)
        if not self.kinds:
            raise ValueError(f"self_attention = {self.self_attention!r}: name a kind, such as full")
        for kind in self.kinds:  # checks heads and widths, score and normaliser
            replace(self.attention, kind=kind)
        if read_normaliser(self.normaliser)[0] in ALONG_A_MEMORY:
            raise ValueError(
                f"normaliser = {self.normaliser!r} walks along a memory, which self-attention has not: give it as "
                "cross_normaliser"
            )
        if self.positions == "rope":
            Rotary(self.d_k or self.d_model // self.heads, self.rope_base, self.rope_scaling)
        elif (self.rope_base, self.rope_scaling) != (LayerConfig.rope_base, None):
            raise ValueError(f"rope_base and rope_scaling are of positions = 'rope', not {self.positions!r}")
        kind = self.self_attention if decoder is None else getattr(self, decoder)
        if decoder is not None and not all(Kind.read(each).causal for each in kind.split()):
            raise ValueError(
                f"{decoder} = {kind!r} has no causal form, which the decoder needs: set decoder_self_attention to one "
                "that has, such as full, or window:64"
            )
        if self.positions in BIASED and not self.self_attention == kind == "full":
            raise ValueError(
                f"positions = {self.positions!r} add to the scores of full attention: choose sinusoidal, learned, rope "
                "or none, or leave self_attention at full"
            )

    @property
    def kinds(self) -> list[str]:
        """Of self-attention, that layers have in turn."""
        return self.self_attention.split()

    @property
    def attention(self) -> AttentionConfig:
        """The part that each self-attention needs; of several kinds, the first."""
        return AttentionConfig(
            self.d_model,
            self.heads,
            self.kv_heads,
            self.d_k,
            self.d_v,
            bias=self.bias,
            qkv_bias=self.qkv_bias,
            scale=self.scale,
            dropout=self.attention_dropout,
            backend=self.backend,
            score=self.score,
            normaliser=self.normaliser,
            kind=self.kinds[0],
            max_length=self.max_length,
        )


def encoder(c: LayerConfig, layers: int) -> Stack:
    """Figure 1, left, without the embedding."""
    return Stack(
        (
            EncoderLayer(
                residual(c, _own(c, replace(c.attention, kind=kind), positions), depth),
                residual(c, feed_forward(c, causal=False), depth),
            )
            for kind, positions, depth in _levels(c, layers, c.kinds, both_ways=True)
        ),
        make_norm(c) if c.norm == "pre" else None,
    )


def divided(c: LayerConfig, layers: int) -> Stack:
    """Layers that attend over time, then over space."""
    return Stack(
        (
            DividedLayer(
                residual(c, _own(c, replace(c.attention, kind=kind), positions), depth, LateResidual),
                residual(c, _own(c, replace(c.attention, kind=kind), positions), depth),
                residual(c, feed_forward(c, causal=False), depth),
            )
            for kind, positions, depth in _levels(c, layers, c.kinds, both_ways=True)
        ),
        make_norm(c) if c.norm == "pre" else None,
    )


def decoder(
    c: LayerConfig, layers: int, own: AttentionConfig | None = None, cross: AttentionConfig | None = None
) -> Stack:
    """Figure 1, right, without the embedding: `own` attention, which is c's if left out, and, if given, `cross`."""
    return Stack(
        (
            DecoderLayer(
                residual(c, _own(c, replace(own or c.attention, kind=kind), positions), depth),
                None if cross is None else residual(c, MultiHeadAttention(cross, d_memory=c.d_model), depth),
                residual(c, feed_forward(c, causal=True), depth),
            )
            for kind, positions, depth in _levels(c, layers, [own.kind] if own else c.kinds, both_ways=False)
        ),
        make_norm(c) if c.norm == "pre" else None,
    )


def new_cache(stack: Stack) -> Cache:
    """An empty past of a decoder; the caller holds it."""
    cache = Cache.empty(len(stack.layers))
    for past, layer in zip(cache, stack.layers, strict=True):
        past.self_attention = layer.self_attention.sublayer.new_cache()  # type: ignore[union-attr, operator]
    return cache


def residual(c: LayerConfig, sublayer: nn.Module, depth: float = 0.0, kind: type[Residual] = Residual) -> Residual:
    """A sub-layer with what is around it, in a layer that lies so deep, from 0 to 1."""
    return kind(sublayer, make_norm(c), c.norm, dropout=c.dropout, skip=c.stochastic_depth * depth)


def make_norm(c: LayerConfig, width: int | None = None) -> nn.Module:
    """A normalisation of d_model numbers, or so many."""
    return NORMS[c.norm_kind](width or c.d_model, eps=c.norm_eps)


def _own(c: LayerConfig, attention: AttentionConfig, positions: Positions) -> MultiHeadAttention:
    """A self-attention."""
    return MultiHeadAttention(attention, positions=positions, norm=partial(make_norm, c) if c.qk_norm else None)


def feed_forward(c: LayerConfig, *, causal: bool) -> nn.Module:
    """The sub-layer of §3.3, or what may stand in its place."""
    dropout, bias = c.feed_forward_dropout, c.bias
    if c.feed_forward == "convolution":
        return ConvolutionFeedForward(c.d_model, c.d_ff, causal=causal, dropout=dropout, bias=bias)
    kind = GatedFeedForward if c.feed_forward in GATES else FeedForward
    return kind(c.d_model, c.d_ff, c.feed_forward, dropout=dropout, bias=bias)


def _levels(
    c: LayerConfig, layers: int, kinds: Sequence[str], *, both_ways: bool
) -> Iterator[tuple[str, Positions, float]]:
    """For each layer its kind of attention, its positions inside that, and how deep it lies, from 0 to 1."""
    positions = None
    for i in range(layers):
        kind = kinds[i % len(kinds)]
        if positions is None or not positions.shared:
            positions = relative_positions(
                c.positions,
                heads=c.heads,
                d_k=c.d_k or c.d_model // c.heads,
                both_ways=both_ways,
                base=c.rope_base,
                scaling=c.rope_scaling,
            )
        yield kind, Positions() if kind.startswith("memorizing") else positions, i / max(1, layers - 1)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Every layer of every stack in a model: a stack is whatever holds a list of `layers`, whichever the family."""
    stacks = [getattr(module, "layers", None) for module in model.modules()]
    return [layer for stack in stacks if isinstance(stack, nn.ModuleList) for layer in stack]
