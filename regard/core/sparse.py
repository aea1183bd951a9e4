"""Exact attention over few keys: windows, dilated windows, global positions, random blocks, diagonal blocks, segments.

Letters: B batch, H heads, n positions, w keys that a query sees, d_k and d_v widths of keys and values.

A pattern says twice which keys a query sees: as a `Mask`, the truth, and as a plan of the work, blocks of rows with
the columns that any row of the block sees. Each block is a small dense attention under the mask, of which nothing is
kept but its output; the backward pass computes its weights again. So time is O(n w) and memory O(n).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.core.backends import each_head
from regard.core.cache import Recent
from regard.core.dropout import fresh_seed, keep_mask, keep_scale
from regard.core.masks import Mask, causal, diagonal_blocks, first, random_blocks, random_picks, window
from regard.core.normalisers import See, exact, softmax

ROWS = 128  # of a block, where the pattern does not ask for others
SIZE = 32  # of a random block

Columns = slice | Tensor


class Pattern(Protocol):
    """Which keys each query sees."""

    def mask(self, is_causal: bool) -> Mask:
        """The truth."""

    def plan(self, n: int, is_causal: bool) -> Iterator[tuple[slice, Columns]]:
        """Each of n rows once, in blocks, and the columns that any row of the block sees."""

    def past(self) -> Recent | None:
        """What a decoder must remember; None: everything."""

    def learns(self) -> Mask | None:
        """From which keys and values a query learns: the others have no gradient of it. None: from all that it sees."""


@dataclass(frozen=True)
class Band:
    """A window, perhaps dilated; perhaps with the first positions for all to see, and blocks at random.

    W alone is the sliding window; with a dilation, every so many positions (Beltagy et al. 2020); with `first` global
    positions it is their Longformer; with `random` blocks as well, BigBird (Zaheer et al. 2020).

    >>> [(rows, columns) for rows, columns in Band(2).plan(200, is_causal=True)]
    [(slice(0, 128, 1), slice(0, 128, 1)), (slice(128, 200, 1), slice(126, 200, 1))]
    """

    W: int
    dilation: int = 1
    first: int = 0
    random: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        assert self.dilation == 1 or not (self.first or self.random)

    def mask(self, is_causal: bool) -> Mask:
        mask = window(self.W, self.dilation)
        if self.first:
            mask = mask | first(self.first)
        if self.random:
            mask = mask | random_blocks(self.random, SIZE, seed=self.seed, both_ways=not is_causal)
        return mask & causal() if is_causal else mask

    def plan(self, n: int, is_causal: bool) -> Iterator[tuple[slice, Columns]]:
        D, size = self.dilation, SIZE if self.random else ROWS
        done = 0 if is_causal else min(self.first, n)
        for start in range(0, done, ROWS):  # what is global sees everything
            yield slice(start, min(start + ROWS, done), 1), slice(0, n, 1)
        for r in range(min(D, n)):  # among the positions r, r + D, r + 2D, ... the window is a plain one
            count = len(range(r, n, D))
            edges = [done, *range((done // size + 1) * size, count, size), count]
            for start, stop in pairwise(edges):
                low, high = max(0, start - self.W), stop if is_causal else min(count, stop + self.W)
                if start < stop:
                    rows = slice(r + start * D, r + (stop - 1) * D + 1, D)
                    columns = slice(r + low * D, r + (high - 1) * D + 1, D)
                    yield rows, self._more(rows, columns, n, is_causal)

    def _more(self, rows: slice, columns: slice, n: int, is_causal: bool) -> Columns:
        """The columns of the window, those of the global positions, and those of the blocks that these rows pick."""
        if not self.first and not self.random:
            return columns
        if not self.random and columns.start <= self.first:
            return slice(0, columns.stop, 1)
        block = torch.tensor(rows.start // SIZE)
        picks = random_picks(block, self.random, seed=self.seed, both_ways=not is_causal)
        near = torch.arange(columns.start, columns.stop)
        far = (picks[:, None] * SIZE + torch.arange(SIZE)).flatten()
        together = torch.cat([torch.arange(self.first), near, far]).unique()
        return together[together < n]

    def past(self) -> Recent | None:
        return None if self.random else Recent(first=self.first, last=self.W * self.dilation)

    def learns(self) -> None:
        return None


@dataclass(frozen=True)
class DiagonalBlocks:
    """Blocks of B positions along the diagonal."""

    B: int

    def mask(self, is_causal: bool) -> Mask:
        mask = diagonal_blocks(self.B)
        return mask & causal() if is_causal else mask

    def plan(self, n: int, is_causal: bool) -> Iterator[tuple[slice, Columns]]:
        size = self.B * max(1, ROWS // self.B)  # small ones are taken together
        for start in range(0, n, size):
            yield slice(start, min(start + size, n), 1), slice(start, min(start + size, n), 1)

    def past(self) -> Recent:
        return Recent(last=self.B - 1)

    def learns(self) -> None:
        return None


@dataclass(frozen=True)
class Segments:
    """Segments of L positions, of which each sees the M before it as well, and learns nothing from these.

    This is the recurrence of Transformer-XL (Dai et al. 2019): what layer n says of a segment hangs on n segments
    before it, and no gradient crosses a segment's beginning. As Wu et al. (2022) do, keys and values are remembered,
    not the states that they are made of. All segments of a row are one pass: no state goes from batch to batch.

    >>> Segments(2, 1).mask(True).dense(4, 4)[0, 0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]
    """

    L: int
    M: int

    def mask(self, is_causal: bool) -> Mask:
        L, M = self.L, self.M
        mask = Mask(lambda i, j: (j // L <= i // L) & (j >= i // L * L - M))
        return mask & causal() if is_causal else mask

    def plan(self, n: int, is_causal: bool) -> Iterator[tuple[slice, Columns]]:
        size = self.L * max(1, ROWS // self.L)  # short ones are taken together
        for start in range(0, n, size):
            yield slice(start, min(start + size, n), 1), slice(max(0, start - self.M), min(start + size, n), 1)

    def past(self) -> Recent:
        return Recent(last=self.L - 1 + self.M)

    def learns(self) -> Mask:
        return diagonal_blocks(self.L)


def sparse_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    *,
    is_causal: bool = False,
    keep: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention(Q, K, V) of a sequence to itself, each query over the keys that the pattern gives it.

    q (B, H, n, d_k), k (B, H, n, d_k), v (B, H, n, d_v) -> (B, H, n, d_v). `keep` (B, n) is True for keys that are
    no padding. A window as long as the sequence is attention to all of it.

    >>> q, k, v = torch.randn(3, 1, 2, 9, 4).unbind()
    >>> full = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    >>> torch.allclose(sparse_attend(q, k, v, Band(9)), full, atol=1e-6)
    True
    """
    if q.shape != k.shape or q.shape[:3] != v.shape[:3]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        raise ValueError(f"a sparse attention is one of a sequence to itself: {shapes} must agree but for d_v")
    scale = q.shape[3] ** -0.5 if scale is None else scale
    with exact(q):
        return _Sparse.apply(q, k, v, keep, pattern, is_causal, scale, dropout, fresh_seed() if dropout else 0)


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        pattern: Pattern,
        is_causal: bool,
        scale: float,
        p: float,
        seed: int,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, keep)
        ctx.constants = pattern, is_causal, scale, p, seed
        out, mask = q.new_empty(*q.shape[:3], v.shape[3]), pattern.mask(is_causal)
        for rows, columns in pattern.plan(q.shape[2], is_causal):
            q_i, k_j, v_j = q[:, :, rows], _take(k, columns), _take(v, columns)
            weights = _drop(_weights(q_i, k_j, _allowed(mask, keep, rows, columns, q.device), scale), p, seed, rows)
            out[:, :, rows] = (weights @ v_j.to(weights.dtype)).to(out.dtype)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        q, k, v, keep = ctx.saved_tensors
        pattern, is_causal, scale, p, seed = ctx.constants
        mask, learns, wide = pattern.mask(is_causal), pattern.learns(), torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
        for rows, columns in pattern.plan(q.shape[2], is_causal):
            q_i, k_j, v_j, g_i = (
                x.to(wide) for x in (q[:, :, rows], _take(k, columns), _take(v, columns), g[:, :, rows])
            )
            weights = _weights(q_i, k_j, _allowed(mask, keep, rows, columns, q.device), scale)
            own = None if learns is None else _allowed(learns, None, rows, columns, q.device)
            _add(dv, columns, _where(own, _drop(weights, p, seed, rows)).mT @ g_i)
            dweights = _drop(g_i @ v_j.mT, p, seed, rows)
            ds = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))  # the soft-max's Jacobian
            dq[:, :, rows] = scale * (ds @ k_j)
            _add(dk, columns, scale * (_where(own, ds).mT @ q_i))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None, None, None


def _weights(q: Tensor, k: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """softmax(scale · QKᵀ) of a block, zeros where nothing is allowed; never in half precision."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) * scale) @ k.to(wide).mT
    return softmax(scores, allowed)


def _allowed(mask: Mask, keep: Tensor | None, rows: slice, columns: Columns, device: torch.device) -> Tensor:
    """The mask of a block, (1 or B, 1, rows, columns)."""
    i = torch.arange(rows.start, rows.stop, rows.step, device=device)
    if isinstance(columns, Tensor):
        j = columns.to(device)
    else:
        j = torch.arange(columns.start, columns.stop, columns.step, device=device)
    allowed = mask.block(i, j)
    return allowed if keep is None else allowed & keep[:, None, None, j]


def _take(x: Tensor, columns: Columns) -> Tensor:
    return x.index_select(2, columns.to(x.device)) if isinstance(columns, Tensor) else x[:, :, columns]


def _add(x: Tensor, columns: Columns, part: Tensor) -> None:
    if isinstance(columns, Tensor):
        x.index_add_(2, columns.to(x.device), part)
    else:
        x[:, :, columns] += part


def _where(own: Tensor | None, x: Tensor) -> Tensor:
    return x if own is None else x * own


def _drop(x: Tensor, p: float, seed: int, rows: slice) -> Tensor:
    """x with the dropout mask of its block, a function of the seed and of its first row."""
    if not p:
        return x
    place = torch.Generator().manual_seed(seed + rows.start)
    return x * keep_mask(x.shape, p, generator=place).to(x.device) * keep_scale(p)


class Sparse(nn.Module):
    """A pattern as the inner part of an attention: see `regard.core.efficient`."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        self.pattern = pattern

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, keep: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        return sparse_attend(q, k, v, self.pattern, is_causal=is_causal, keep=keep, scale=scale, dropout=dropout)

    def step(self, q: Tensor, k: Tensor, v: Tensor, past: Any, *, scale: float) -> Tensor:
        offset, (_, H, T, _) = past.length, q.shape
        keys, values, at = past.extend(k, v)
        keys, values = each_head(keys, H), each_head(values, H)
        if not offset:  # nothing before it: a sequence of its own
            return self(q, keys, values, is_causal=True, keep=None, scale=scale, dropout=0.0)
        allowed = self.pattern.mask(True).block(torch.arange(offset, offset + T, device=q.device), at)
        with exact(q):
            weights = _weights(q, keys, allowed, scale)
            return (weights @ values.to(weights.dtype)).to(q.dtype)

    def past(self) -> Recent | None:
        return self.pattern.past()

    def allowed(self, T: int, S: int, is_causal: bool, device: torch.device) -> Tensor:
        """What the pattern leaves of T queries, the last of them the last of S keys."""
        at = torch.arange(S, device=device)
        return self.pattern.mask(is_causal).block(at[S - T :], at)

    def weights(self, q: Tensor, k: Tensor, allowed: Tensor | None, scale: float, see: See) -> Tensor:
        return softmax(see((q * scale) @ k.mT), allowed)
