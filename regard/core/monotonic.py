"""Attention that walks along a memory from left to right, and never back.

Letters: B rows, H heads, T queries, S keys, W keys of a chunk, d_q and d_k widths of queries and keys.

For each query in turn, monotonic attention (Raffel et al. 2017) goes on from the key where the query before stopped,
and stops at each key j with probability p_ij. What it reads is that key alone; if it stops nowhere, nothing, and so for
every query after it. Training weighs by the probability α_ij of having stopped there; inference stops where p > 1/2,
which is the same sum with p of 0 and 1. Chunkwise attention (Chiu & Raffel 2018) reads, by a soft-max, the W keys that
end where it stopped.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.cache import KeyValues
from regard.core.dropout import current_generator
from regard.core.normalisers import softmax
from regard.core.recurrence import scan
from regard.core.scores import General


def expected_alignment(p: Tensor, start: Tensor) -> Tensor:
    """The probability α of stopping at each key, from p (B, H, T, S) of stopping where one stands.

    α_ij = p_ij q_ij, where q_ij = (1 - p_i(j-1)) q_i(j-1) + α_(i-1)j is the probability to come by; `start` (B, H, S)
    is α before the first query. Along j that is a scan of products and sums of numbers in [0, 1]: unlike the quotient
    of cumulative products that Raffel et al. give, it neither overflows nor loses digits.

    >>> p = torch.tensor([[0.5, 0.5, 0.5], [0.0, 1.0, 0.5]])
    >>> expected_alignment(p[None, None], torch.tensor([[[1.0, 0.0, 0.0]]]))[0, 0].tolist()
    [[0.5, 0.25, 0.125], [0.0, 0.75, 0.0625]]
    """
    rows, alpha = [], start.transpose(1, 2)  # (B, S, H)
    for p_i in p.permute(2, 0, 3, 1):  # (B, S, H)
        go_on = F.pad(1 - p_i[:, :-1], (0, 0, 1, 0))
        alpha = p_i * scan(go_on, alpha)
        rows.append(alpha)
    return torch.stack(rows).permute(1, 3, 0, 2)  # (T, B, S, H) -> (B, H, T, S)


def chunkwise(alpha: Tensor, scores: Tensor, mask: Tensor | None, width: int) -> Tensor:
    """Weights β_ij = Σ_k α_ik softmax(scores of the keys k - W + 1 .. k)_j (Chiu & Raffel 2018).

    alpha, scores (B, H, T, S), mask broadcastable -> (B, H, T, S).

    >>> alpha = torch.tensor([0.0, 0.0, 1.0, 0.0])[None, None, None]
    >>> chunkwise(alpha, torch.zeros(1, 1, 1, 4), None, 2).flatten().tolist()
    [0.0, 0.5, 0.5, 0.0]
    """
    width = min(width, scores.shape[3])  # no chunk has more keys than there are
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    chunk = F.pad(scores, (width - 1, 0)).unfold(-1, width, 1)  # (B, H, T, S, W): at k those of the keys up to k
    share = alpha[..., None] * softmax(chunk, F.pad(mask, (width - 1, 0)).unfold(-1, width, 1))
    parts = (F.pad(part, (i, width - 1 - i)) for i, part in enumerate(share.unbind(-1)))
    return torch.stack(list(parts)).sum(0)[..., width - 1 :]


class Monotonic(nn.Module):
    """Scores to weights, from left to right: p = sigmoid(score + r), with noise of unit variance while training.

    The noise teaches the scores to be large, so that p is near 0 or 1 and stopping where p > 1/2 is what was learnt; r
    begins below 0, so that at first the whole memory is in reach (Raffel et al. 2017). A chunk has a score of its own,
    qᵀ W k. A cache remembers the last α of each row.
    """

    def __init__(self, heads: int, d_q: int, d_k: int, width: int = 1) -> None:
        super().__init__()
        self.width = width
        self.offset = nn.Parameter(torch.full((heads,), -1.0))  # r
        self.chunk = General(heads, d_q, d_k) if width > 1 else None

    def forward(
        self, scores: Tensor, mask: Tensor | None, q: Tensor, k: Tensor, scale: float, cache: KeyValues | None
    ) -> Tensor:
        """scores (B, H, T, S), q (B, H, T, d_q), k (B, H, S, d_k) -> weights (B, H, T, S)."""
        exact = torch.promote_types(scores.dtype, torch.float32)
        energy = scores.to(exact) + self.offset.to(exact)[:, None, None]
        if self.training:
            generator = current_generator() if energy.device.type == "cpu" else None
            noise = torch.randn(energy.shape, generator=generator, dtype=exact, device=energy.device)
            p = (energy + noise).sigmoid()
        else:
            p = (energy > 0).to(exact)
        if mask is not None:
            p = p.masked_fill(~mask, 0.0)
        start = None if cache is None else cache.alignment
        if start is None:  # before the first key
            start = F.pad(p.new_ones(*p.shape[:2], 1), (0, p.shape[3] - 1))  # (B, H, S)
        alpha = expected_alignment(p, start)
        if cache is not None:
            cache.alignment = alpha[:, :, -1]
        if self.chunk is not None:
            alpha = chunkwise(alpha, self.chunk(q, k, scale).to(exact), mask, self.width)
        return alpha.to(scores.dtype)
