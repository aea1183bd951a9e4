"""Recurrence in time: the linear kind, whose steps may be taken all at once, and what any kind needs around it.

Letters: B batch, T positions, d width, h state, a decay, b input.

A linear recurrence h_t = a_t ⊙ h_(t-1) + b_t composes: two steps are one, with a = a₂ a₁ and b = a₂ b₁ + b₂. That is
associative, so all T states follow in about 2 log₂ T rounds of products instead of T, with O(T) work (Blelloch, 1990;
Martin & Cundy, 2018); while decoding, a step is a step, and the state all that is kept. Decays lie in [0, 1] and only
their products are formed, no logarithms and no quotients: nothing can overflow, however long the sequence is.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.cache import LayerCache
from regard.core.layers import linear


def scan_by_step(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """h_t = a_t ⊙ h_(t-1) + b_t, one position after the other: what `scan` must equal.

    a, b (B, T, d), start (B, d), or zeros -> h (B, T, d).
    """
    h, states = b.new_zeros(b.shape[0], b.shape[2]) if start is None else start, []
    for decay, new in zip(a.unbind(1), b.unbind(1), strict=True):
        h = decay * h + new
        states.append(h)
    return torch.stack(states, 1)


def scan(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """h_t = a_t ⊙ h_(t-1) + b_t for all t in O(log T) rounds; shapes as in `scan_by_step`.

    >>> scan(torch.full((1, 4, 1), 0.5), torch.ones(1, 4, 1)).flatten().tolist()
    [1.0, 1.5, 1.75, 1.875]
    """
    if start is not None:
        b = torch.cat([torch.addcmul(b[:, :1], a[:, :1], start[:, None]), b[:, 1:]], 1)
    return _Scan.apply(a, b)


class _Scan(torch.autograd.Function):
    """The gradient of a scan is a scan from the end: δ_t = g_t + a_(t+1) δ_(t+1). So only a and h are kept."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        h = _in_pairs(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, h = ctx.saved_tensors
        nothing = torch.zeros_like(a[:, :1])
        after = torch.cat([a[:, 1:], nothing], 1)  # a_(t+1)
        delta = _Scan.apply(after.flip(1), g.flip(1)).flip(1)  # (B, T, d)
        before = torch.cat([nothing, h[:, :-1]], 1)  # h_(t-1)
        return delta * before, delta


def _in_pairs(a: Tensor, b: Tensor) -> Tensor:
    """Two steps are one: scan the pairs, which gives every second state, and from these take one step to the others."""
    T = b.shape[1]
    if T < 2:
        return b.clone()
    first, second = slice(0, T - 1, 2), slice(1, None, 2)
    odd = _in_pairs(
        a[:, second] * a[:, first], torch.addcmul(b[:, second], a[:, second], b[:, first])
    )  # (B, T // 2, d)
    h = torch.empty_like(b)
    h[:, 0], h[:, 1::2] = b[:, 0], odd
    h[:, 2::2] = torch.addcmul(b[:, 2::2], a[:, 2::2], odd[:, : (T - 1) // 2])
    return h


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """The first `lengths` (B,) positions of each row of x (B, T, d) in reverse order; padding stays behind them.

    >>> reverse(torch.tensor([[[1], [2], [0]]]), torch.tensor([2])).flatten().tolist()
    [2, 1, 0]
    """
    t, end = torch.arange(x.shape[1], device=x.device), lengths[:, None]
    index = torch.where(t < end, end - 1 - t, t)  # (B, T)
    return x.gather(1, index[:, :, None].expand_as(x))


@dataclass
class RecurrentPast(LayerCache):
    """What a recurrent layer remembers besides what it has read of a memory: its state, each part (B, d)."""

    state: tuple[Tensor, ...] = ()

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        super().reorder(rows, memory)
        if rows is not None:
            self.state = tuple(part.index_select(0, rows) for part in self.state)


class LinearRecurrence(nn.Module):
    """A gated unit whose gates do not read its state, between two products: it stands where self-attention would.

    z = σ(x W_z), h_t = (1 - z_t) ⊙ h_(t-1) + z_t ⊙ x_t W_v (minGRU; Feng et al., 2024), and y = (h ⊙ silu(x W_g)) W_O,
    the gate at the output as in Griffin (De et al., 2024): 4 d² weights, as many as an attention has. A state is a
    weighted mean of what has passed, so it never grows.

    >>> LinearRecurrence(8)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    LONGEST = 64  # positions that the slowest channels remember at first

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = linear(d_model, d_model, d_model, d_model)  # W_z, W_v, W_g
        self.outer = linear(d_model, d_model)  # W_O
        # A channel forgets in about 1 / z positions: at first from 2 to LONGEST, evenly in their logarithm, as
        # σ(0) = 1/2 and σ(-log 63) = 1/64; in each half of the channels, since these may read in two directions.
        slow = torch.linspace(0.0, -math.log(self.LONGEST - 1), (d_model + 1) // 2)
        with torch.no_grad():
            self.inner.bias[:d_model] = slow.repeat(2)[:d_model]

    def forward(self, x: Tensor, *, lengths: Tensor | None = None, cache: RecurrentPast | None = None) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model). Given the `lengths` (B,) of its rows, the second half of the channels
        reads from the end; with a cache, x holds the new positions only."""
        exact = torch.promote_types(x.dtype, torch.float32)  # a sum over many positions is no matter for bf16
        z, v, gate = self.inner(x).to(exact).chunk(3, -1)  # (B, T, d_model) each
        decay, new = (-z).sigmoid(), z.sigmoid() * v
        if lengths is None:
            h = scan(decay, new, cache.state[0] if cache is not None and cache.state else None)
        else:
            h = _turned(scan(_turned(decay, lengths), _turned(new, lengths)), lengths)
        if cache is not None:
            cache.state = (h[:, -1],)
        return self.outer((h * F.silu(gate)).to(x.dtype))


def _turned(x: Tensor, lengths: Tensor) -> Tensor:
    half = x.shape[2] // 2
    return torch.cat([x[:, :, :half], reverse(x[:, :, half:], lengths)], -1)
