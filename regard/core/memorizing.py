"""Attention to what is near, and to the few best of all that was before it (Memorizing Transformers; Wu et al., 2022).

Letters: B batch, H heads, T queries, S keys, d_v width of a value; L a segment, M what is near before it, K keys.

A query attends to its segment and to the M positions before that; and, by itself, to the K best keys of all that came
earlier in the text, however long ago. A gate for each head, sigmoid(b_h), says what the second counts. Nothing is
learnt from keys and values of other segments, as if they lay in a memory outside of the model. The layer has no
positions of its own: what was said long ago is found by what it is.
"""

import torch
from torch import Tensor, nn

from regard.core.normalisers import See, softmax, top_k
from regard.core.sparse import Segments, Sparse


class Memorizing(nn.Module):
    """The inner part of an attention: see `regard.core.efficient`."""

    def __init__(self, L: int, M: int, K: int, heads: int) -> None:
        super().__init__()
        self.near, self.K = Sparse(Segments(L, M)), K
        self.gate = nn.Parameter(torch.zeros(heads))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, keep: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """A whole text; what is far is gone through a segment at a time."""
        if not is_causal:
            raise ValueError("attention 'memorizing' looks back: take another one where all of a text is seen")
        pattern: Segments = self.near.pattern  # type: ignore[assignment]
        near = self.near(q, k, v, is_causal=True, keep=keep, scale=scale, dropout=dropout)
        memory, parts, g = (k.detach(), v.detach()), list[Tensor](), self._gate(q)
        for start in range(0, q.shape[2], pattern.L):
            rows, end = slice(start, start + pattern.L), max(0, start - pattern.M)
            part = near[:, :, rows]
            if end:
                keys, values = (x[:, :, :end] for x in memory)
                far = top_k((q[:, :, rows] * scale) @ keys.mT, k=self.K) @ values  # (B, H, L, d_v)
                part = g * far + (1 - g) * part
            parts.append(part)
        return torch.cat(parts, 2)

    def _gate(self, q: Tensor) -> Tensor:
        return self.gate.sigmoid().to(q.dtype)[:, None, None]  # (H, 1, 1)

    def step(self, *args: object, **kwargs: object) -> Tensor:
        raise AssertionError("its past has all keys")

    def past(self) -> None:
        return None

    def allowed(self, T: int, S: int, is_causal: bool, device: torch.device) -> Tensor:
        """All that is before each of T queries, the last of them the last of S keys."""
        at = torch.arange(S, device=device)
        return (at <= at[S - T :, None])[None, None]

    def weights(self, q: Tensor, k: Tensor, allowed: Tensor | None, scale: float, see: See) -> Tensor:
        """What values are multiplied with (B, H, T, S): of those that are near, and of those that were found."""
        near = self.near.allowed(q.shape[2], k.shape[2], True, q.device)
        before = self.allowed(q.shape[2], k.shape[2], True, q.device) & ~near
        near, before = (x if allowed is None else x & allowed for x in (near, before))
        scores = see((q * scale) @ k.mT)
        g = self._gate(q) * before.any(-1, keepdim=True)  # at first there is nothing to remember
        return g * top_k(scores, before.expand_as(scores), k=self.K) + (1 - g) * softmax(scores, near)
