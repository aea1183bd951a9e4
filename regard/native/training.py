"""The C kernels of a training step (training.c), as the core borrows them: `lending(kernels())`."""

import ctypes
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.core import dropout as drawn
from regard.core.lent import LossAndGradients
from regard.core.masks import AnyMask, Mask
from regard.native.build import VECTOR, UnavailableError, library

LARGE = 2**16  # scores of a head: beyond, they leave the cache, and PyTorch's kernel is the better one


class Heads(Structure):
    """A tensor (B, H, T, d) of fp32."""

    _fields_ = [("at", c_void_p), ("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class Bytes(Structure):
    """A mask (B, H, T, S)."""

    _fields_ = [("at", c_void_p), *((name, c_int64) for name in ("batch", "head", "row", "key"))]


class Attention(Structure):
    _fields_ = [
        *((name, c_int32) for name in ("B", "H", "T", "S", "d_k", "d_v", "causal")),
        ("scale", c_float),
        *((name, Heads) for name in ("q", "k", "v")),
        ("mask", Bytes),
    ]


@cache
def _library() -> ctypes.CDLL | None:
    try:
        lib = library()
    except UnavailableError:
        return None
    lib.worth_it.restype = c_int32
    lib.cross_entropy.argtypes = [*[c_int32] * 3, *[c_void_p] * 4, c_float, *[c_void_p] * 3, POINTER(c_double)]
    lib.cross_entropy.restype = lib.attend.restype = lib.attend_back.restype = c_int32
    lib.attend.argtypes = [POINTER(Attention), POINTER(Heads), c_void_p]
    lib.attend_back.argtypes = [POINTER(Attention), *[POINTER(Heads)] * 2, c_void_p, *[POINTER(Heads)] * 3]
    lib.linear.argtypes, lib.linear.restype = [*[c_int32] * 3, *[c_void_p] * 4], c_int32
    lib.linear_back.argtypes, lib.linear_back.restype = [*[c_int32] * 3, *[c_void_p] * 6], None
    lib.dropout.argtypes = [c_int64, c_void_p, c_void_p, c_int32, c_float, c_void_p, c_void_p]
    lib.dropout_back.argtypes = [c_int64, c_void_p, c_void_p, c_float, c_void_p]
    lib.dropout.restype = lib.dropout_back.restype = None
    return lib if lib.worth_it() else None


def kernels() -> "NativeKernels | None":
    """What this thread may lend to the core: none without the engine, nor where PyTorch has several threads for it."""
    lib = _library() if torch.get_num_threads() == 1 else None
    return None if lib is None else NativeKernels(lib)


class NativeKernels:
    """`regard.core.lent.Kernels` for numbers of fp32 on the CPU."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, scale: float) -> Tensor | None:
        T, S = q.shape[2], k.shape[2]
        widths = q.shape[3], v.shape[3]
        if not all(map(_known, (q, k, v))) or any(w % VECTOR for w in widths) or not 0 < T * S <= LARGE:
            return None
        causal = isinstance(mask, Mask) and mask.triangle
        if causal:
            mask = None
        elif isinstance(mask, Mask):
            mask = mask.dense(T, S)
        out: Tensor = _Attend.apply(self.lib, _in_rows(q), _in_rows(k), _in_rows(v), mask, causal, scale)
        return out

    def linear(self, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor | None:
        cast = torch.is_autocast_enabled("cpu")
        if cast or not all(_known(t) for t in (x, W, b) if t is not None) or any(n % VECTOR for n in W.shape):
            return None
        y: Tensor = _Linear.apply(self.lib, x, W, b)
        return y

    def dropout(self, x: Tensor, p: float) -> Tensor | None:
        if not _known(x) or round(p * drawn.LEVELS) == drawn.LEVELS:
            return None
        y: Tensor = _Dropout.apply(self.lib, x, p)
        return y

    def cross_entropy(
        self, h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, hit: float, needs: tuple[bool, bool, bool]
    ) -> LossAndGradients | None:
        if not all(_known(x) for x in (h, W, b) if x is not None) or h.shape[1] % VECTOR:
            return None
        h, W, y, b = h.contiguous(), W.contiguous(), y.contiguous(), None if b is None else b.contiguous()
        dh = torch.empty_like(h) if needs[0] else None
        dW = torch.zeros_like(W) if needs[1] else None
        db = torch.zeros_like(b) if needs[2] and b is not None else None
        loss, given, gradients = c_double(), map(_at, (h, W, b, y)), map(_at, (dh, dW, db))
        _done(self.lib.cross_entropy(len(h), *W.shape, *given, hit, *gradients, byref(loss)))
        return LossAndGradients(h.new_tensor(loss.value), dh, dW, db)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, lib: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> Tensor:
        out, level = _rows_like(q, v.shape[3]), q.new_empty(q.shape[:3])
        ctx.lib, ctx.causal, ctx.scale = lib, causal, scale
        ctx.save_for_backward(q, k, v, mask, out, level)
        _done(lib.attend(byref(_attention(q, k, v, mask, causal, scale)), byref(_heads(out)), level.data_ptr()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, mask, out, level = ctx.saved_tensors
        dq, dk, dv = (_rows_like(x, x.shape[3]) for x in (q, k, v))
        about, g = _attention(q, k, v, mask, ctx.causal, ctx.scale), _in_rows(g)
        given, gradients = (byref(_heads(x)) for x in (out, g)), (byref(_heads(x)) for x in (dq, dk, dv))
        _done(ctx.lib.attend_back(byref(about), *given, level.data_ptr(), *gradients))
        return None, dq, dk, dv, None, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: Any, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        x, W = x.contiguous(), W.contiguous()
        y = x.new_empty(*x.shape[:-1], len(W))
        ctx.lib = lib
        ctx.save_for_backward(x, W)
        _done(lib.linear(y.numel() // len(W), *W.shape, *map(_at, (x, W, b, y))))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, W), (_, *needs) = ctx.saved_tensors, ctx.needs_input_grad
        g = g.contiguous()
        shapes = x.shape, W.shape, W.shape[:1]
        gradients = [x.new_empty(shape) if need else None for shape, need in zip(shapes, needs, strict=True)]
        ctx.lib.linear_back(g.numel() // len(W), *W.shape, *map(_at, (x, W, g, *gradients)))
        return None, *gradients


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: Any, x: Tensor, p: float) -> Tensor:
        x = x.contiguous()
        y, keep, draws = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool), drawn.draws(x.numel())
        ctx.lib, ctx.scale = lib, drawn.keep_scale(p)
        ctx.save_for_backward(keep)
        lib.dropout(x.numel(), _at(x), _at(draws), drawn.threshold(p), ctx.scale, _at(y), _at(keep))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (keep,), g = ctx.saved_tensors, g.contiguous()
        dx = torch.empty_like(g)
        ctx.lib.dropout_back(g.numel(), _at(g), _at(keep), ctx.scale, _at(dx))
        return None, dx, None


def _known(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _in_rows(x: Tensor) -> Tensor:
    """x with the numbers of a row side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _rows_like(x: Tensor, d: int) -> Tensor:
    """Room for (B, H, T, d) that lies as (B, T, H, d): to join the heads is then to do nothing."""
    B, H, T, _ = x.shape
    return x.new_empty(B, T, H, d).transpose(1, 2)


def _heads(x: Tensor) -> Heads:
    return Heads(x.data_ptr(), *x.stride()[:3])


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Attention:
    (B, H, T, d_k), S = q.shape, k.shape[2]
    strides = [0] * 4 if mask is None else [0 if n == 1 else s for n, s in zip(mask.shape, mask.stride(), strict=True)]
    bytes_ = Bytes(_at(mask), *strides)
    return Attention(B, H, T, S, d_k, v.shape[3], causal, scale, _heads(q), _heads(k), _heads(v), bytes_)


def _done(told: int) -> None:
    if not told:
        raise MemoryError("no memory for the kernels of a training step: make train.batch_tokens smaller")
