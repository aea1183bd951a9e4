"""The C kernels of a training step (training.c). `regard.native.lend` puts them in their places."""

from collections.abc import Callable, Sequence
from ctypes import Structure, c_void_p
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.core import dropout as drawn
from regard.core.losses import LossAndGradients
from regard.core.masks import AnyMask, Mask
from regard.native.attending import Attend, address, done, in_rows
from regard.native.build import VECTOR, fields, library
from regard.native.compiler import UnavailableError

KEPT = 2**21  # numbers inside a feed-forward network for the way back: more than that are made again there
LARGE = 2**16  # scores of a head: beyond, they leave the cache, and PyTorch's kernel is the better one
DRAWN = 2**20  # numbers of dropout at a time
LARGEST = 2**22  # the same with dropout, for which PyTorch writes all of them out


class TwoMaps(Structure):
    """Weights and biases of a feed-forward network, or their gradients."""

    _fields_ = fields(c_void_p, "W1 b1 W2 b2")


@cache
def _library() -> SimpleNamespace | None:
    try:
        lib = library()
    except UnavailableError:
        return None
    return lib if lib.worth_it() else None


def kernels(*, sparse: bool = False) -> "NativeKernels | None":
    """What this thread may lend to the core: none without the engine, nor where PyTorch has several threads for it.

    `sparse`: the gradient of an embedding may be a sparse tensor, of the rows that were looked up.
    """
    lib = _library() if torch.get_num_threads() == 1 else None
    return None if lib is None else NativeKernels(lib, sparse)


class NativeKernels:
    """For numbers of fp32 on the CPU, some also of bf16. Each answers None to what it does not know: the core does that
    itself."""

    def __init__(self, lib: SimpleNamespace, sparse: bool = False) -> None:
        self.lib, self.sparse = lib, sparse

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AnyMask | None,
        scale: float,
        p: float = 0.0,
        bias: Tensor | None = None,
    ) -> Tensor | None:
        """`regard.core.attention.attend`; of the weights p are dropped, by the draws of `math`."""
        half = q.dtype == torch.bfloat16 and self.lib.halves()
        dtype, unit = (torch.bfloat16, 2 * VECTOR) if half else (torch.float32, 1)
        if not all(_known(x, dtype) and x.dim() == 4 for x in (q, k, v)):
            return None
        (B, H, T, d_k), S = q.shape, k.shape[2]
        if not d_k or not v.shape[3] or d_k % unit or v.shape[3] % unit:
            return None
        if k.shape != (B, H, S, d_k) or v.shape[:3] != k.shape[:3] or not 0 < T * S <= (LARGEST if p else LARGE):
            return None
        if _drops_all(p):
            return None
        causal = isinstance(mask, Mask) and mask.triangle
        if causal:
            mask = None
        elif isinstance(mask, Mask):
            mask = mask.dense(T, S)
        if mask is not None and not (_over(mask, (B, H, T, S)) and mask.dtype == torch.bool):
            return None
        if bias is not None and not (_over(bias, (B, H, T, S)) and _known(bias, dtype)):
            return None
        bias = None if bias is None else in_rows(bias.float().expand(-1, -1, -1, S))
        ways = (self.lib.attend_half, self.lib.attend_half_back) if half else (self.lib.attend, self.lib.attend_back)
        keep = self._kept(torch.Size((B, H, T, S)), p) if p else None
        return Attend.apply(ways, (causal, scale, p), *map(in_rows, (q, k, v)), bias, mask, keep)

    def _kept(self, shape: torch.Size, p: float) -> Tensor:
        """Which weights (B, H, T, S) dropout leaves: a bit of each, in whole words a row. Drawn by and by."""
        *rows, S = shape
        keep = torch.empty(*rows, -(-S // VECTOR), dtype=torch.int16)
        for some in keep.view(-1, keep.shape[-1]).split(-(-DRAWN // (4 * S)) * 4):  # a draw is of four
            self.lib.keep_rows(len(some), S, drawn.draws(len(some) * S), drawn.threshold(p), some)
        return keep

    def linear(self, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor | None:
        """x Wᵀ + b; under autocast, as it says."""
        if torch.is_autocast_enabled("cpu"):
            return _HalfLinear.apply(self.lib, _half(x), W, b) if self._halves(x, W, b) else None
        return _Linear.apply(self.lib, x, W, b) if _known(x) and _fits(x.shape[-1:], W, b) else None

    def _halves(self, x: Tensor, W: Tensor, b: Tensor | None) -> bool:
        """Whether autocast asks for a map of bf16 that the kernels know."""
        known = _known(x) or _known(x, torch.bfloat16)
        whole = known and _fits(x.shape[-1:], W, b) and not any(n % (2 * VECTOR) for n in W.shape)
        return whole and torch.get_autocast_dtype("cpu") == torch.bfloat16 and bool(self.lib.halves())

    def split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """x in parts of these widths, whose gradients join without a copy if they lie side by side already."""
        return _Split.apply(x, *widths)

    def embedding(self, tokens: Tensor, table: nn.Embedding) -> Tensor | None:
        """The table's rows for these tokens, with a sparse gradient for a borrower that can do with it."""
        if not self.sparse or type(table) is not nn.Embedding or table.max_norm is not None:
            return None
        return F.embedding(tokens, table.weight, table.padding_idx, sparse=True)

    def bags(self, rows: Tensor, table: Tensor) -> Tensor | None:
        """`regard.core.stems.bags`, whose gradient PyTorch would sort its rows for."""
        if not rows.numel() or not _known(table):
            return None
        least, most = map(int, rows.aminmax())
        if not 0 <= least <= most < len(table):
            return None
        return _Bags.apply(self.lib, rows.int().contiguous(), table)

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, kind: int, p: float) -> Tensor | None:
        """outer(dropout(activation(inner(x)), p)), of the same draws; activations by their numbers in C. In fp32 relu
        alone, in bf16 without dropout."""
        weights = inner.weight, inner.bias, outer.weight, outer.bias
        if torch.is_autocast_enabled("cpu") and not p and self._halves(x, *weights[:2]):
            fits = _fits(inner.weight.shape[:1], *weights[2:]) and not len(outer.weight) % (2 * VECTOR)
            return _HalfFeedForward.apply(self.lib, _half(x), *weights, kind) if fits else None
        known = _known(x) and _fits(x.shape[-1:], *weights[:2]) and _fits(inner.weight.shape[:1], *weights[2:])
        if kind or not known or torch.is_autocast_enabled("cpu") or _drops_all(p):
            return None
        return _FeedForward.apply(self.lib, x, *weights, p)

    def gated(self, z: Tensor, value: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
        """gate(z) ⊙ value, in less memory."""
        return _Gated.apply(gate, z, value)

    def residual(self, x: Tensor, s: Tensor, p: float, norm: nn.Module | None) -> Tensor | None:
        """norm(x + dropout(s, p)), of the same draws; without a norm the sum alone."""
        if norm is None and not p:
            return None  # a sum is PyTorch's business
        if norm is not None and not (type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None):
            return None
        w, b, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
        known = _known(x) and _known(s) and x.shape == s.shape and all(_row(t, x.shape[-1:]) for t in (w, b))
        if not known or not _whole(*x.shape[-1:]) or _drops_all(p):
            return None
        return _Residual.apply(self.lib, x, s, p, w, b, eps)

    def dropout(self, x: Tensor, p: float) -> Tensor | None:
        """`regard.core.dropout.dropout`, of the same draws."""
        if not _known(x) or _drops_all(p):
            return None
        return _Dropout.apply(self.lib, x, p)

    def cross_entropy(
        self, h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, hit: float, needs: tuple[bool, bool, bool]
    ) -> LossAndGradients | None:
        """`regard.core.losses.cross_entropy_in_blocks`."""
        known = all(_known(x) and x.dim() == 2 for x in (h, W)) and _row(b, W.shape[:1]) and y.dtype == torch.int64
        if not known or not len(W) or h.shape[1:] != W.shape[1:] or not _whole(h.shape[1]) or y.shape != h.shape[:1]:
            return None
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(W):
            raise ValueError(f"labels lie in 0..{len(W) - 1}, got {int(y.min())}..{int(y.max())}")
        h, W, y, b = h.contiguous(), W.contiguous(), y.contiguous(), None if b is None else b.contiguous()
        dh = torch.empty_like(h) if needs[0] else None
        dW = torch.empty_like(W) if needs[1] else None
        db = torch.zeros_like(b) if needs[2] and b is not None else None
        loss = torch.zeros((), dtype=torch.float64)
        done(self.lib.cross_entropy(len(h), *W.shape, h, W, b, y, hit, dh, dW, db, loss))
        return LossAndGradients(loss.float(), dh, dW, db)


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        return x.split(widths, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, end = gradients[0], gradients[0].storage_offset()
        for x in gradients:
            apart = x.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or x.stride() != first.stride()
            if apart or x.storage_offset() != end:
                return torch.cat(gradients, -1), *[None] * len(gradients)
            end += x.shape[-1]
        shape = *first.shape[:-1], end - first.storage_offset()
        return first.as_strided(shape, first.stride(), first.storage_offset()), *[None] * len(gradients)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: Any, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        x, W = x.contiguous(), W.contiguous()
        y = x.new_empty(*x.shape[:-1], len(W))
        ctx.lib = lib
        ctx.save_for_backward(*_needed(ctx, x, W))
        done(lib.linear(y.numel() // len(W), *W.shape, x, W, b, y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, W), (_, *needs) = ctx.saved_tensors, ctx.needs_input_grad
        g = g.contiguous()
        shapes = (*g.shape[:-1], W.shape[1]), W.shape, W.shape[:1]
        gradients = [g.new_empty(shape) if need else None for shape, need in zip(shapes, needs, strict=True)]
        ctx.lib.linear_back(g.numel() // len(W), *W.shape, x, W, g, *gradients)
        return None, *gradients


def _needed(ctx: Any, x: Tensor, W: Tensor) -> tuple[Tensor | None, Tensor]:
    """What the way back of a product reads: not x if W learns nothing, as beside LoRA."""
    return x if ctx.needs_input_grad[2] else None, W


class _Bags(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: Any, rows: Tensor, table: Tensor) -> Tensor:
        ctx.lib, ctx.shape = lib, table.shape
        ctx.save_for_backward(rows)
        y = table.new_empty(*rows.shape[:-1], table.shape[1])
        lib.bags(rows[..., 0].numel(), rows.shape[-1], table.shape[1], rows, table.contiguous(), y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (rows,), dtable = ctx.saved_tensors, g.new_zeros(ctx.shape)
        ctx.lib.bags_back(rows[..., 0].numel(), rows.shape[-1], ctx.shape[1], rows, g.contiguous(), dtable)
        return None, None, dtable


class _Gated(torch.autograd.Function):
    """gate(z) ⊙ value, of which gate(z) is made again on the way back, to the same bits: of all that a layer of a Llama
    holds, one part in eight."""

    @staticmethod
    def forward(ctx: Any, gate: Callable[[Tensor], Tensor], z: Tensor, value: Tensor) -> Tensor:
        ctx.gate = gate
        ctx.save_for_backward(z, value)
        return gate(z) * value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        z, value = ctx.saved_tensors
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            opened = ctx.gate(z)
        return None, *torch.autograd.grad(opened, z, g * value), g * opened.detach()


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, lib: Any, x: Tensor, W1: Tensor, b1: Tensor | None, W2: Tensor, b2: Tensor | None, p: float
    ) -> Tensor:
        x, W1, W2 = x.contiguous(), W1.contiguous(), W2.contiguous()
        M, sizes = x.shape[:-1], (len(W2), *W1.shape)
        y, (dropped, keep) = x.new_empty(*M, len(W2)), _drops(M.numel() * len(W1), p)
        h = x.new_empty(*M, len(W1)) if M.numel() * len(W1) <= KEPT else None
        ctx.lib, ctx.scale = lib, dropped[-1]
        ctx.save_for_backward(x, h, None if h is not None else keep, W1, b1, W2)
        done(lib.feed_forward(M.numel(), *sizes, x, _maps(W1, b1, W2, b2), *dropped, keep, h, y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, h, keep, W1, b1, W2 = ctx.saved_tensors
        g, needs = g.contiguous(), ctx.needs_input_grad[1:6]
        shapes = x.shape, W1.shape, W1.shape[:1], W2.shape, W2.shape[:1]
        dx, *to = [x.new_empty(shape) if need else None for shape, need in zip(shapes, needs, strict=True)]
        given = x.shape[:-1].numel(), len(W2), *W1.shape, x, h, _maps(W1, b1, W2), keep, ctx.scale, g
        done(ctx.lib.feed_forward_back(*given, dx, _maps(*to)))
        return None, dx, *to, None


class _HalfLinear(torch.autograd.Function):
    """Of x in bf16; weights and their gradients are fp32."""

    @staticmethod
    def forward(ctx: Any, lib: Any, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        W, y = W.contiguous(), x.new_empty(*x.shape[:-1], len(W))
        ctx.lib = lib
        ctx.save_for_backward(*_needed(ctx, x, W))
        done(lib.linear_half(y.numel() // len(W), *W.shape, x, W, b, y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, W), needs = ctx.saved_tensors, ctx.needs_input_grad[1:]
        made = zip((g, W, W), ((*g.shape[:-1], W.shape[1]), W.shape, W.shape[:1]), needs, strict=True)
        gradients = [like.new_empty(shape) if need else None for like, shape, need in made]
        done(ctx.lib.linear_half_back(g.numel() // len(W), *W.shape, x, W, g.contiguous(), *gradients))
        return None, *gradients


class _HalfFeedForward(torch.autograd.Function):
    """The same; what the activation is taken of is kept, and no more."""

    @staticmethod
    def forward(
        ctx: Any, lib: Any, x: Tensor, W1: Tensor, b1: Tensor | None, W2: Tensor, b2: Tensor | None, kind: int
    ) -> Tensor:
        W1, W2, M = W1.contiguous(), W2.contiguous(), x.shape[:-1]
        z, y = x.new_empty(*M, len(W1)), x.new_empty(*M, len(W2))
        ctx.lib, ctx.kind = lib, kind
        ctx.save_for_backward(x, z, W1, W2)
        done(lib.feed_forward_half(M.numel(), len(W2), *W1.shape, x, _maps(W1, b1, W2, b2), kind, z, y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (x, z, W1, W2), needs = ctx.saved_tensors, ctx.needs_input_grad[1:6]
        shapes = x.shape, W1.shape, W1.shape[:1], W2.shape, W2.shape[:1]
        made = zip((x, W1, W1, W2, W2), shapes, needs, strict=True)
        dx, *to = [like.new_empty(shape) if need else None for like, shape, need in made]
        given = x.shape[:-1].numel(), len(W2), *W1.shape, x, z, _maps(W1, None, W2, None), ctx.kind, g.contiguous()
        done(ctx.lib.feed_forward_half_back(*given, dx, _maps(*to)))
        return None, dx, *to, None


class _Residual(torch.autograd.Function):
    """The way back finds the rows in y, which the next map keeps anyway, unless a gain is next to nothing."""

    @staticmethod
    def forward(
        ctx: Any, lib: Any, x: Tensor, s: Tensor, p: float, w: Tensor | None, b: Tensor | None, eps: float
    ) -> Tensor:
        x, s, d = x.contiguous(), s.contiguous(), x.shape[-1]
        y, (dropped, keep), slope, standard = torch.empty_like(x), _drops(s.numel(), p), None, None
        if w is not None:
            slope = x.new_empty(x.shape[:-1])
            standard = None if lib.tells(d, w, b) else torch.empty_like(x)
        ctx.lib, ctx.scale = lib, dropped[-1]
        ctx.save_for_backward(y if w is not None and standard is None else None, standard, keep, w, b, slope)
        lib.residual(x.numel() // d, d, x, s, *dropped, w, b, eps, y, keep, slope, standard)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        y, standard, keep, w, b, slope = ctx.saved_tensors
        g, d = g.contiguous(), g.shape[-1]
        ds = None if keep is None else torch.empty_like(g)
        if w is None:  # the sum alone, of what dropout left
            ctx.lib.dropout_back(g.numel(), g, keep, ctx.scale, ds)
            return None, g, ds, None, None, None, None
        dx, dw, db = torch.empty_like(g), torch.empty_like(w), torch.empty_like(w)
        given = g, y, standard, keep, ctx.scale, w, b, slope
        ctx.lib.residual_back(g.numel() // d, d, *given, dx, ds, dw, db)
        return None, dx, dx if ds is None else ds, None, dw, db, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: Any, x: Tensor, p: float) -> Tensor:
        x = x.contiguous()
        y, (dropped, keep) = torch.empty_like(x), _drops(x.numel(), p)
        ctx.lib, ctx.scale = lib, dropped[-1]
        ctx.save_for_backward(keep)
        lib.dropout(x.numel(), x, *dropped, y, keep)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        (keep,), g = ctx.saved_tensors, g.contiguous()
        dx = torch.empty_like(g)
        ctx.lib.dropout_back(g.numel(), g, keep, ctx.scale, dx)
        return None, dx, None


def _known(x: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    return x.dtype == dtype and x.device.type == "cpu"


def _half(x: Tensor) -> Tensor:
    """In bf16, number beside number."""
    return x.to(torch.bfloat16).contiguous()


def _whole(*widths: int) -> bool:
    """Whether there are widths, and each is one of whole vectors."""
    return bool(widths) and all(width > 0 and width % VECTOR == 0 for width in widths)


def _row(x: Tensor | None, shape: Sequence[int]) -> bool:
    """Whether x has this shape, number beside number, or is not there."""
    return x is None or (_known(x) and x.shape == shape and x.is_contiguous())


def _fits(width: Sequence[int], W: Tensor, b: Tensor | None) -> bool:
    """Whether W and b are a map that the kernels know, of rows as wide."""
    return _known(W) and W.dim() == 2 and W.shape[1:] == width and _whole(*W.shape) and _row(b, W.shape[:1])


def _over(x: Tensor, shape: Sequence[int]) -> bool:
    """Whether x can be laid over scores of this shape."""
    full = x.dim() == 4 and all(n in (1, size) for n, size in zip(x.shape, shape, strict=True))
    return full and x.device.type == "cpu"


def _drops_all(p: float) -> bool:
    """A threshold beyond 16 bits."""
    return round(p * drawn.LEVELS) == drawn.LEVELS


def _drops(n: int, p: float) -> tuple[tuple[Tensor | None, int, float], Tensor | None]:
    """What decides of n numbers which are dropped: draws, threshold, scale; and room for a bit of each."""
    draws, keep = (drawn.draws(n), torch.empty(n // VECTOR + 1, dtype=torch.int16)) if p else (None, None)
    return (draws, drawn.threshold(p), drawn.keep_scale(p)), keep


def _maps(*tensors: Tensor | None) -> TwoMaps:
    return TwoMaps(*map(address, tensors))
