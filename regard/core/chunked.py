"""Exact attention in O(T) memory: the soft-max is taken online over blocks of keys.

Letters: B batch, H heads, T queries, S keys, d_k and d_v widths of keys and values.

For a row of scores s split into blocks, keep the running maximum m, the running sum l = Σ exp(s - m) and the
running mix o = Σ exp(s - m) v. A new block with a larger maximum m' rescales l and o by exp(m - m'); at the end
the row of the output is o / l. Only m + log l is kept for the backward pass, which computes each block of
weights again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.core.dropout import fresh_seed, keep_mask, keep_scale
from regard.core.masks import AnyMask, Mask

BLOCK = 256  # rows and columns of scores held at a time


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AnyMask | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """softmax(scale · QKᵀ + bias) V without the (T, S) weights: q (B, H, T, d_k), k (B, H, S, d_k), v (B, H, S, d_v)"""
    seed = fresh_seed() if dropout else 0
    return _Chunked.apply(q, k, v, mask, bias, scale, dropout, seed)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, scale: float, p: float, seed: int
    ) -> Tensor:
        blocks = _Blocks(q, k, mask, bias, scale, p, seed)
        B, H, T, _ = q.shape
        out = q.new_empty(B, H, T, v.shape[3])
        lse = q.new_empty(B, H, T, 1, dtype=blocks.dtype)
        for rows in _ranges(T):
            m = q.new_full((B, H, len(rows), 1), -torch.inf, dtype=blocks.dtype)
            l = torch.zeros_like(m)
            o = q.new_zeros((B, H, len(rows), v.shape[3]), dtype=blocks.dtype)
            for columns in _ranges(k.shape[2]):
                s = blocks.scores(rows, columns)
                if s is None:
                    continue
                new = torch.maximum(m, s.amax(-1, keepdim=True))
                base = new.masked_fill(new == -torch.inf, 0.0)  # a row with nothing to see yet: exp(-inf - 0) = 0
                weights = s.sub_(base).exp_()
                shrink = (m - base).exp_()
                l = l * shrink + weights.sum(-1, keepdim=True)
                o = o * shrink + blocks.drop(weights, rows, columns) @ v[:, :, _slice(columns)].to(o.dtype)
                m = new
            seen = l > 0
            out[:, :, _slice(rows)] = torch.where(seen, o / l, 0.0)
            lse[:, :, _slice(rows)] = torch.where(seen, m + l.log(), torch.inf)  # inf: all weights exp(s - inf) = 0
        ctx.save_for_backward(q, k, v, bias, mask if isinstance(mask, Tensor) else None, out, lse)
        ctx.rule = mask if isinstance(mask, Mask) else None
        ctx.constants = scale, p, seed
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, bias, mask, out, lse = ctx.saved_tensors
        scale, p, seed = ctx.constants
        blocks = _Blocks(q, k, ctx.rule or mask, bias, scale, p, seed)
        dq, dk, dv = (torch.zeros_like(x, dtype=blocks.dtype) for x in (q, k, v))
        dbias = torch.zeros_like(bias, dtype=blocks.dtype) if bias is not None and ctx.needs_input_grad[4] else None
        for rows in _ranges(q.shape[2]):
            i = _slice(rows)
            g_i, lse_i, q_i = g[:, :, i].to(blocks.dtype), lse[:, :, i], q[:, :, i].to(blocks.dtype)
            delta = (g_i * out[:, :, i]).sum(-1, keepdim=True)  # Σ_j w_ij ∂w_ij = g_i · out_i
            for columns in _ranges(k.shape[2]):
                s = blocks.scores(rows, columns)
                if s is None:
                    continue
                j = _slice(columns)
                weights = s.sub_(lse_i).exp_()
                dv[:, :, j] += blocks.drop(weights, rows, columns).transpose(2, 3) @ g_i
                dweights = blocks.drop(g_i @ v[:, :, j].to(blocks.dtype).transpose(2, 3), rows, columns)
                ds = weights * (dweights - delta)  # the soft-max's Jacobian
                dq[:, :, i] += scale * (ds @ k[:, :, j].to(blocks.dtype))
                dk[:, :, j] += scale * (ds.transpose(2, 3) @ q_i)
                if dbias is not None:
                    part = _part(dbias, rows, columns)
                    part += ds.sum_to_size(part.shape)
        grads = (
            dq.to(q.dtype),
            dk.to(k.dtype),
            dv.to(v.dtype),
            None,
            None if dbias is None else dbias.to(bias.dtype),
        )
        return *grads, None, None, None


class _Blocks:
    """The block (rows, columns) of the masked scores and of the dropout mask, the same in both passes."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        mask: AnyMask | None,
        bias: Tensor | None,
        scale: float,
        p: float,
        seed: int,
    ) -> None:
        self.q, self.k, self.mask, self.bias, self.scale, self.p, self.seed = q, k, mask, bias, scale, p, seed
        self.dtype = torch.promote_types(q.dtype, torch.float32)  # sums over many keys: never in half precision

    def scores(self, rows: range, columns: range) -> Tensor | None:
        """scale · QKᵀ + bias, -inf where masked, (B, H, rows, columns); None where all of it is masked."""
        allowed = None
        if isinstance(self.mask, Mask):
            device = self.q.device
            allowed = self.mask.block(
                torch.arange(rows.start, rows.stop, device=device),
                torch.arange(columns.start, columns.stop, device=device),
            )
        elif self.mask is not None:
            allowed = _part(self.mask, rows, columns)
        if allowed is not None and not allowed.any():
            return None
        q, k = self.q[:, :, _slice(rows)].to(self.dtype), self.k[:, :, _slice(columns)].to(self.dtype)
        s = (q * self.scale) @ k.transpose(2, 3)
        if self.bias is not None:
            s += _part(self.bias, rows, columns)
        return s if allowed is None else s.masked_fill_(~allowed, -torch.inf)

    def drop(self, x: Tensor, rows: range, columns: range) -> Tensor:
        """x with this block's dropout mask applied: a function of the seed and the block's place."""
        if not self.p:
            return x
        place = torch.Generator().manual_seed(self.seed + rows.start * self.k.shape[2] + columns.start)
        return x * keep_mask(x.shape, self.p, generator=place).to(x.device) * keep_scale(self.p)


def _ranges(n: int) -> Iterator[range]:
    return (range(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def _slice(r: range) -> slice:
    return slice(r.start, r.stop)


def _part(x: Tensor, rows: range, columns: range) -> Tensor:
    """The block of x (B, H, T, S), where T and S may be 1 and then serve every block."""
    if x.shape[2] > 1:
        x = x[:, :, _slice(rows)]
    return x[..., _slice(columns)] if x.shape[3] > 1 else x
