"""Attention of a training step in C, with its gradient: eq. 1 with a bias and a mask, and dropout of its weights."""

from collections.abc import Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.core import dropout as drawn
from regard.native.build import fields


class Heads(Structure):
    """A tensor (B, H, T, d) of fp32, or of bf16."""

    _fields_ = [("at", c_void_p), *fields(c_int64, "batch head row")]


class Bytes(Structure):
    """A mask (B, H, T, S)."""

    _fields_ = [("at", c_void_p), *fields(c_int64, "batch head row key")]


class Attention(Structure):
    _fields_ = [
        *fields(c_int32, "B H T S d_k d_v causal"),
        ("scale", c_float),
        *fields(Heads, "q k v bias"),
        ("mask", Bytes),
        ("keep", c_void_p),
        ("kept", c_float),
    ]


class Attend(torch.autograd.Function):
    """By these ways there and back: q, k, v and a bias, which learn; a mask, and which weights dropout leaves."""

    @staticmethod
    def forward(
        ctx: Any, ways: Any, how: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *hidden: Tensor | None
    ) -> Tensor:
        out, level = _rows_like(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
        (attend, ctx.back), ctx.how = ways, how
        ctx.save_for_backward(out, level, q, k, v, bias, *hidden)
        done(attend(_attention(how, q, k, v, bias, *hidden), _heads(out), level))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        out, level, q, k, v, bias, *hidden = ctx.saved_tensors
        of_one = q.shape[:3] == k.shape[:3] and q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
        together = [[q, k, v]] if of_one else [[q], [k, v]]
        dq, dk, dv = (x for parts in together for x in _side_by_side(parts))
        about, g = _attention(ctx.how, q, k, v, bias, *hidden), in_rows(g)
        dbias = level.new_empty(*level.shape, k.shape[2]) if ctx.needs_input_grad[5] else None  # (B, H, T, S)
        done(ctx.back(about, _heads(out), _heads(g), level, *map(_heads, (dq, dk, dv)), dbias))
        dbias = None if bias is None or dbias is None else dbias.sum_to_size(bias.shape)
        return None, None, dq, dk, dv, dbias, None, None


def in_rows(x: Tensor) -> Tensor:
    """x with the numbers of a row side by side; of bf16 a row begins with a whole word."""
    whole = x.dtype == torch.float32 or not (x.data_ptr() % 4 or any(stride % 2 for stride in x.stride()[:-1]))
    return x if x.stride(-1) == 1 and whole else x.contiguous()


def _rows_like(x: Tensor, d: int) -> Tensor:
    """Room for (B, H, T, d) that lies as (B, T, H, d): to join the heads is then to do nothing."""
    B, H, T, _ = x.shape
    return x.new_empty(B, T, H, d).transpose(1, 2)


def _side_by_side(parts: Sequence[Tensor]) -> list[Tensor]:
    """The same for several tensors of as many rows, one after the other in each row: what `_Split` need not join."""
    B, H, T, _ = parts[0].shape
    widths = [x.shape[3] * H for x in parts]
    rows = parts[0].new_empty(B, T, sum(widths)).split(widths, -1)
    return [row.unflatten(2, (H, -1)).transpose(1, 2) for row in rows]


def _heads(x: Tensor) -> Heads:
    return Heads(x.data_ptr(), *x.stride()[:3])


def _repeated(x: Tensor | None) -> list[int]:
    """The strides of what may be laid over scores: 0 where it repeats."""
    return [0] * 4 if x is None else [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]


def _attention(
    how: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Tensor | None, keep: Tensor | None
) -> Attention:
    (B, H, T, d_k), S, (causal, scale, p) = q.shape, k.shape[2], how
    added, seen = Heads(address(bias), *_repeated(bias)[:3]), Bytes(address(mask), *_repeated(mask))
    sizes, dropped = (B, H, T, S, d_k, v.shape[3]), (address(keep), drawn.keep_scale(p))
    return Attention(*sizes, causal, scale, *map(_heads, (q, k, v)), added, seen, *dropped)


def done(told: int) -> None:
    """Refuse what a kernel had no memory for."""
    if not told:
        raise MemoryError("no memory for the kernels of a training step: make train.batch_tokens smaller")


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
