"""Modules handed to the C engine one by one: layers, products and norms, laid out as it reads them.

Letters: N outputs and K inputs of a product.
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.blocks import Stack
from regard.core.layers import FeedForward, GatedFeedForward, OffsetRMSNorm, Residual, gelu_quick
from regard.core.quantised import GROUP, Int4Linear, Int8Linear, WholeLinear
from regard.native import build
from regard.native.build import UnsupportedError

NORMS = nn.LayerNorm | nn.RMSNorm | OffsetRMSNorm
ACTIVATIONS: dict[Any, int] = {F.relu: 0, F.gelu: 1, F.silu: 2, torch.sigmoid: 3, torch.tanh: 5, gelu_quick: 6}
GELU_BY_TANH = 4
LARGE = 1 << 21  # bytes of a large page


class Layout:
    """Numbers as the engine reads them: copies, which are kept as long as this is."""

    layer: Any = build.Layer  # what is made of a layer

    def __init__(self, d: int) -> None:
        self.d = d  # the width of the model
        self._kept: list[Any] = []  # what the engine has addresses of

    def place(self, x: Tensor | None, *shape: int) -> int | None:
        """Where a copy of x lies, which has this shape: the engine takes it for granted."""
        if x is None:
            return None
        if x.shape != shape:
            raise UnsupportedError(f"it has numbers of the shape {tuple(x.shape)} where {shape} belong")
        return self._keep(x.detach().cpu().clone(memory_format=torch.contiguous_format))

    def _keep(self, x: Tensor) -> int:
        array = x.numpy()
        self._kept.append(array)
        return int(array.ctypes.data)

    def stack(self, stack: Stack) -> Any:
        made: dict[tuple[nn.Parameter, ...], Any] = {}  # one may be gone through often
        for key, layer in ((tuple(layer.parameters()), layer) for layer in stack.layers):
            made[key] = made[key] if key in made else self._layer(layer)
        layers = (self.layer * len(stack.layers))(*(made[tuple(layer.parameters())] for layer in stack.layers))
        self._kept.append(layers)
        return layers

    def _layer(self, layer: Any) -> Any:
        result = self.layer()
        attention, cross, ffn = layer.self_attention, getattr(layer, "cross_attention", None), layer.feed_forward
        for residual in (attention, cross, ffn):
            assert residual is None or isinstance(residual, Residual)
        result.attention_norm = self.norm(attention.norm, self.d)
        result.own, result.query_key_value, result.output = self.attention(attention.sublayer, "query_key_value")
        if cross is not None:
            result.cross_norm = self.norm(cross.norm, self.d)
            result.read, result.query, result.key_value, result.cross_output = self.attention(
                cross.sublayer, "query", "key_value"
            )
        (result.activation, gated), d_ff = activation_of(ffn.sublayer), ffn.sublayer.outer.in_features
        result.feed_forward_norm = self.norm(ffn.norm, self.d)
        result.inner = self.product(ffn.sublayer.inner, d_ff * (1 + gated), self.d)
        result.outer = self.product(ffn.sublayer.outer, self.d, d_ff)
        return result

    def attention(self, attention: nn.Module, *products: str) -> list[Any]:
        """How many heads it has, these of its products, and W_O."""
        if getattr(attention, "heads", None) == 0:  # all pruned: a product of nothing, and its bias
            b: Any = attention.bias
            bias = None if b is None else b.float()
            last = build.Product(N=self.d, bias=self.place(bias, self.d))
            return [build.Heads(), *(build.Product() for _ in products), last]
        if not isinstance(attention, MultiHeadAttention):
            raise UnsupportedError(f"it has a {type(attention).__name__} in place of attention")
        queries, keys = _heads(attention.heads, attention.d_k), _heads(attention.kv_heads, attention.d_k)
        values, mixed = _heads(attention.kv_heads, attention.d_v), _heads(attention.heads, attention.d_v)
        rows = {"query": queries, "key_value": _beside(keys, values), "query_key_value": _beside(queries, keys, values)}
        return [
            build.Heads(attention.heads, attention.kv_heads),
            *(self.product(getattr(attention, name), _held(rows[name]), self.d, rows[name]) for name in products),
            self.product(attention.output, self.d, _held(mixed), None, mixed),
        ]

    def norm(self, norm: nn.Module | None, d: int) -> Any:
        if norm is None:
            return build.Norm()
        if not isinstance(norm, NORMS):
            raise UnsupportedError(f"a {type(norm).__name__}")
        if norm.weight is None:
            raise UnsupportedError(f"a {type(norm).__name__} without a gain")
        gain = norm.weight.float() + (1 if isinstance(norm, OffsetRMSNorm) else 0)
        if not isinstance(norm, nn.LayerNorm):
            return build.Norm(self.place(gain, d), None, norm.eps)
        bias = torch.zeros_like(gain) if norm.bias is None else norm.bias.float()
        return build.Norm(self.place(gain, d), self.place(bias, d), norm.eps)

    @torch.no_grad()
    def product(
        self, linear: nn.Module, N: int, K: int, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> Any:
        """A linear layer in panels: (N, K) -> (N / 32, K, 32); in int8 (N / 32, K / 4, 32, 4); in int4 see below.

        `rows` and `columns` say which of its outputs and inputs stand where, -1: a zero.
        """
        if not isinstance(linear, nn.Linear | WholeLinear):
            raise UnsupportedError(f"a {type(linear).__name__} in place of a product")
        if (found := (linear.out_features, linear.in_features)) != (N, K):
            raise UnsupportedError(f"it has a product of the shape {found} where {N, K} belongs")
        bias = None if linear.bias is None else _arrange(linear.bias.float(), rows)
        if isinstance(linear, Int4Linear):
            if columns is not None and len(columns) != K:
                raise UnsupportedError("its groups of four bits are not those of its heads, which are filled up")
            blocks = _arrange(linear.weight, rows)  # (N, G, 20)
            laid = _panels_of_blocks(blocks)
            return build.Product(
                K=K, N=len(blocks), bias=self.place(bias, len(blocks)), n=self.place(laid, *laid.shape)
            )
        weight = _arrange(_arrange(linear.weight, rows).T, columns).T  # (N, K)
        (N, K), four = weight.shape, 4 if isinstance(linear, Int8Linear) else 1
        half = weight.dtype == torch.bfloat16
        result = build.Product(K=K, N=N, bias=self.place(bias, N))
        panels, groups = -(-N // build.PANEL), -(-K // four)
        kind = torch.int8 if four > 1 else torch.int16 if half else torch.float32
        laid = _in_large_pages((panels, groups, build.PANEL, four), kind)
        numbers, full = weight.view(torch.int16) if half else weight, N // build.PANEL if K % four == 0 else 0
        last = torch.zeros((panels - full) * build.PANEL, groups * four, dtype=kind)
        last[: N - full * build.PANEL, :K] = numbers[full * build.PANEL :]
        for some, rest in ((numbers[: full * build.PANEL], laid[:full]), (last, laid[full:])):  # no second whole copy
            rest.copy_(some.reshape(-1, build.PANEL, groups, four).transpose(1, 2))
        address = self._keep(laid)
        if isinstance(linear, Int8Linear):
            result.q, result.scale = address, self.place(_arrange(linear.scale, rows), N)
            result.sum = self.place(128 * weight.sum(1, dtype=torch.int32), N)
        elif half:
            result.h = address
        else:
            result.w = address
        return result


def _panels_of_blocks(blocks: Tensor) -> Tensor:
    """Blocks (N, G, 20) of groups in four bits -> panels (N / 32, G, 640): of 32 columns the scales, the least numbers,
    and of each four inputs a row of 64 bytes, which have the columns 0 to 15 below and 16 to 31 above."""
    P, G = -(-len(blocks) // build.PANEL), blocks.shape[1]
    laid = blocks.new_zeros(P * build.PANEL, G, blocks.shape[2])
    laid[: len(blocks)] = blocks
    laid = laid.view(P, build.PANEL, G, -1).transpose(1, 2)  # (P, G, 32, 20)
    q = torch.cat([laid[..., 4:] & 15, laid[..., 4:] >> 4], -1)  # (P, G, 32 columns, 32 inputs)
    q = q.view(P, G, 2, build.PANEL // 2, GROUP // 4, 4).permute(0, 1, 2, 4, 3, 5).flatten(3)  # (P, G, 2, 8, 64)
    two = (q[:, :, 0] | q[:, :, 1] << 4).flatten(2)
    return torch.cat([laid[..., :2].flatten(2), laid[..., 2:4].flatten(2), two], -1)


def _in_large_pages(shape: Sequence[int], kind: torch.dtype) -> Tensor:
    """Zeros, in large pages as far as they fill them and the system has them: of a product of few rows all weights are
    read for little work, and at each small page the processor must ask where the next one lies."""
    size = math.prod(shape) * kind.itemsize
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(*shape, dtype=kind)
    held = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = torch.frombuffer(held, dtype=torch.uint8)
    first = -numbers.data_ptr() % LARGE
    with suppress(OSError):  # a system without them
        held.madvise(mmap.MADV_HUGEPAGE, first, size // LARGE * LARGE)
    return numbers[first : first + size].view(kind).view(*shape)


def whole(d: int) -> int:
    """So many numbers, filled up to whole vectors."""
    return -(-d // build.VECTOR) * build.VECTOR


def _heads(heads: int, d: int) -> Tensor:
    """Where the numbers of each head stand when it is filled up: their old places, or -1."""
    places = torch.full((heads, whole(d)), -1)
    places[:, :d] = torch.arange(heads * d).view(heads, d)
    return places.flatten()


def _held(places: Tensor) -> int:
    """How many of them are of something."""
    return int((places >= 0).sum())


def _beside(*parts: Tensor) -> Tensor:
    """The places of several matrices that lie side by side."""
    first, placed = 0, []
    for part in parts:
        placed.append(torch.where(part < 0, -1, part + first))
        first += int(part.max()) + 1
    return torch.cat(placed)


def _arrange(x: Tensor, places: Tensor | None) -> Tensor:
    """The rows of x at these places, zeros for -1."""
    if places is None:
        return x
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])[places]


def activation_of(ffn: nn.Module) -> tuple[int, bool]:
    """Its number in C, and whether it is a gate."""
    f: Any = ffn.gate if isinstance(ffn, GatedFeedForward) else isinstance(ffn, FeedForward) and ffn.activation
    return number(f, ffn), isinstance(ffn, GatedFeedForward)


def number(f: Any, of: nn.Module) -> int:
    """What C calls an activation."""
    by_tanh = isinstance(f, partial) and (f.func, f.args, f.keywords) == (F.gelu, (), {"approximate": "tanh"})
    number = GELU_BY_TANH if by_tanh else ACTIVATIONS.get(f)
    if number is None:
        raise UnsupportedError(f"a {type(of).__name__} of this kind")
    return number
