"""Attention to a summary: keys and values are projected along their length, to R rows (Wang et al. 2020, Linformer).

Letters: B batch, H heads, T queries, S keys, R rank, d_k and d_v widths of keys and values.
"""

import torch
from torch import Tensor, nn

from regard.core.normalisers import See


def check_rank(rank: int, max_length: int) -> None:
    """Refuse a summary that is longer than what it is of."""
    if rank > max_length:
        raise ValueError(
            f"linformer:{rank} projects max_length = {max_length} keys or fewer: choose a smaller rank than that"
        )


class Linformer(nn.Module):
    """softmax(scale · Q (EK)ᵀ) FV, where E and F (R, max_length) are learnt, and shared by the heads: O(T R).

    A shorter sequence uses their first columns. There is no causal form: each row of EK mixes all positions.

    >>> mix, x = Linformer(rank=4, max_length=9), torch.randn(2, 1, 7, 8)
    >>> mix(x, x, x, is_causal=False, keep=None, scale=1.0, dropout=0.0).shape
    torch.Size([2, 1, 7, 8])
    """

    def __init__(self, rank: int, max_length: int) -> None:
        super().__init__()
        check_rank(rank, max_length)
        self.keys, self.values = (nn.Parameter(torch.empty(rank, max_length)) for _ in range(2))
        for projection in (self.keys, self.values):
            nn.init.normal_(projection, std=rank**-0.5)  # lengths are kept on average (Johnson & Lindenstrauss 1984)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, keep: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        E, F = self._projections(k.shape[2], keep)
        return ((q * scale) @ (E @ k).mT).softmax(-1) @ (F @ v)

    def _projections(self, S: int, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """E and F for S keys, (1 or B, 1, R, S); zero at padding."""
        if self.keys.shape[1] < S:
            raise ValueError(
                f"a sequence of {S} tokens is longer than the {self.keys.shape[1]} that linformer:{len(self.keys)} "
                "projects: split it, or raise max_length when building the model"
            )
        E, F = self.keys[None, None, :, :S], self.values[None, None, :, :S]
        return (E, F) if keep is None else (E * keep[:, None, None], F * keep[:, None, None])

    def past(self) -> None:
        """Nothing: it cannot go on from a past."""

    def step(self, q: Tensor, k: Tensor, v: Tensor, past: object, *, scale: float) -> Tensor:
        raise AssertionError("no causal form: refused before")

    def allowed(self, T: int, S: int, is_causal: bool, device: torch.device) -> None:
        """Whatever the mask leaves."""

    def weights(self, q: Tensor, k: Tensor, allowed: Tensor | None, scale: float, see: See) -> Tensor:
        """softmax(scale · Q (EK)ᵀ) F, which may be negative. There are no scores of single keys to see."""
        E, F = self._projections(k.shape[2], None if allowed is None else allowed[:, 0, 0])
        return ((q * scale) @ (E @ k).mT).softmax(-1) @ F
