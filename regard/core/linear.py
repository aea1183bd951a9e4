"""Attention in O(n): a kernel φ(q)·φ(k) in the place of exp(q·k), and the sums over keys taken first.

Letters: B batch, H query and G key/value heads, T queries, S keys, F features, d_k and d_v widths of keys and values.

    out_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) = φ(q_i) [Σ_j φ(k_j) v_jᵀ] / φ(q_i) [Σ_j φ(k_j)]

The sums in brackets are the same for all queries; under a causal mask they are running sums, and all that a decoder has
to remember (Katharopoulos et al. 2020, "Transformers are RNNs"). With v extended by a 1, both are one: Σ φ(k) [v, 1]ᵀ.

A feature map gives φ(x) as a pair: numbers of moderate size, and a level in the exponent, φ(x) = numbers · e^level.
The level of a query cancels in the fraction; those of keys are compared with the largest seen.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.backends import each_head
from regard.core.cache import Sums
from regard.core.normalisers import See, exact, softmax

CHUNK = 128  # positions that look at each other directly; what is before them they see as sums

Features = tuple[Tensor, Tensor]  # numbers (B, H, T, F), levels (B, H, T, 1)


class Elu(nn.Module):
    """φ(x) = elu(x) + 1, of as many features as x is wide (Katharopoulos et al. 2020)."""

    def forward(self, x: Tensor, scale: float) -> Features:
        return F.elu(x) + 1, torch.zeros_like(x[..., :1])


class Relu(nn.Module):
    """φ(x) = relu(Ωx)/√F + ε: the generalised kernel of Choromanski et al. (2021), and their ε."""

    directions: Tensor

    def __init__(self, features: int, d_k: int) -> None:
        super().__init__()
        self.register_buffer("directions", orthogonal_features(features, d_k))

    def forward(self, x: Tensor, scale: float) -> Features:
        omega = self.directions.to(x.dtype)
        return F.relu(x @ omega.T) * len(omega) ** -0.5 + 1e-3, torch.zeros_like(x[..., :1])


class Exponential(nn.Module):
    """φ(x) = exp(Ωx - |x|²/2)/√F: positive features, of which E φ(x)·φ(y) = exp(x·y) (Choromanski et al. 2021, FAVOR+).

    For ω of a normal distribution E exp(ω·(x + y)) = exp(|x + y|²/2) = exp(|x|²/2 + x·y + |y|²/2). The scale of the
    scores is shared by both sides: x = √scale q, y = √scale k.
    """

    directions: Tensor

    def __init__(self, features: int, d_k: int) -> None:
        super().__init__()
        self.register_buffer("directions", orthogonal_features(features, d_k))

    def forward(self, x: Tensor, scale: float) -> Features:
        x, omega = x * scale**0.5, self.directions.to(x.dtype)
        exponent = x @ omega.T - x.square().sum(-1, keepdim=True) / 2  # (B, H, T, F)
        level = exponent.detach().amax(-1, keepdim=True)  # a mere unit of measure: no gradient goes through it
        return (exponent - level).exp() * len(omega) ** -0.5, level


def orthogonal_features(features: int, d_k: int) -> Tensor:
    """Directions Ω (F, d_k): each normal, those of a block of d_k at right angles (Yu et al. 2016).

    The error of the kernel falls as 1/√F, and is smaller than that of independent directions.
    """
    blocks = []
    for start in range(0, features, d_k):
        q, r = torch.linalg.qr(torch.randn(d_k, d_k))
        signs = r.diagonal().sign()  # with them, Q is uniform among the rotations
        lengths = torch.randn(d_k, d_k).norm(dim=1, keepdim=True)  # as long as normal vectors are
        blocks.append((lengths * (q * signs).T)[: min(d_k, features - start)])
    return torch.cat(blocks)


def kernel_attend(
    q: Features, k: Features, v: Tensor, *, is_causal: bool, keep: Tensor | None = None, past: Sums | None = None
) -> Tensor:
    """out_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j), over all j, or those up to i.

    v (B, G, S, d_v) -> (B, H, S, d_v); G divides H, each key/value head and its sums then serve H / G query heads.
    Causal, it goes over chunks: within one directly, before it by the sums, which is O(n). With a `past` the sums
    start from there and are left there: one position at a time is the recurrent form. `keep` (B, S) is True for keys
    that are no padding. A query that sees no key gives zeros.
    """
    (q_all, _), (k_all, levels) = q, k
    H = q_all.shape[1]
    if not v.shape[2]:
        return each_head(v, H)
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # (B, G, S, d_v + 1)
    if keep is not None:
        k_all = k_all.masked_fill(~keep[:, None, :, None], 0.0)
        levels = levels.masked_fill(~keep[:, None, :, None], -torch.inf)
    B, G, S, width = v.shape
    sums, level = v.new_zeros(B, G, k_all.shape[3], width), v.new_full((B, G, 1, 1), torch.finfo(v.dtype).min)
    if past is not None:
        if past.sums is not None and past.level is not None:
            if len(past.sums) != B:
                raise ValueError(f"the cache holds a batch of {len(past.sums)}, not of {B}: start a new one")
            sums, level = past.sums, past.level
        past.length += S
    mixed = []
    # Not causal, all keys are one chunk, and all of them are summed before any query looks.
    for q_i, k_i, v_i, levels_i in zip(
        *(x.split(CHUNK if is_causal else max(1, S), 2) for x in (q_all, k_all, v, levels)), strict=True
    ):
        before, below = sums, level
        level = torch.maximum(below, levels_i.amax(2, keepdim=True))
        sums = before * (below - level).exp() + (k_i * (levels_i - level).exp()).mT @ v_i
        if is_causal:
            mixed.append(_causal(q_i, *(each_head(x, H) for x in (k_i, v_i, levels_i, before, below))))
        else:
            mixed.append(q_i @ each_head(sums, H))
    if past is not None:
        past.sums, past.level = sums, level
    out = torch.cat(mixed, 2)  # (B, H, S, d_v + 1)
    out, total = out[..., :-1], out[..., -1:]
    # Without a key, or with none that the numbers can tell from none: zero, and no gradient.
    return out / total.masked_fill(total < torch.finfo(total.dtype).tiny ** 0.75, torch.inf)


def _causal(q: Tensor, k: Tensor, v: Tensor, levels: Tensor, before: Tensor, below: Tensor) -> Tensor:
    """A chunk of C queries over the keys of the chunk up to each of them, and over the sums before the chunk.

    Each query has a level of its own, the highest that it sees: what is still to come must not drown what there is.
    """
    level = torch.maximum(below, levels.cummax(2).values)  # (B, H, C, 1)
    ahead = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    share = (levels.mT - level).masked_fill(ahead, -torch.inf).exp()  # (B, H, C, C)
    return (q @ before) * (below - level).exp() + ((q @ k.mT) * share) @ v


class Linear(nn.Module):
    """A feature map as the inner part of an attention: see `regard.core.efficient`."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, keep: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)  # sums over many keys: never in half precision
        with exact(q):
            phi_q, phi_k = self.features(q.to(wide), scale), self.features(k.to(wide), scale)
            return kernel_attend(phi_q, phi_k, v.to(wide), is_causal=is_causal, keep=keep).to(v.dtype)

    def step(self, q: Tensor, k: Tensor, v: Tensor, past: Any, *, scale: float) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        with exact(q):
            phi_q, phi_k = self.features(q.to(wide), scale), self.features(k.to(wide), scale)
            return kernel_attend(phi_q, phi_k, v.to(wide), is_causal=True, past=past).to(v.dtype)

    def past(self) -> Sums:
        return Sums()

    def allowed(self, T: int, S: int, is_causal: bool, device: torch.device) -> None:
        """Whatever the mask leaves."""

    def weights(self, q: Tensor, k: Tensor, allowed: Tensor | None, scale: float, see: See) -> Tensor:
        """Its scores are the logarithms of the kernel: the soft-max of them are its weights."""
        wide = torch.promote_types(q.dtype, torch.float32)
        with exact(q):
            (phi_q, _), (phi_k, levels) = self.features(q.to(wide), scale), self.features(k.to(wide), scale)
            scores = (phi_q @ phi_k.mT).clamp(min=torch.finfo(wide).tiny).log() + levels.mT  # (B, H, T, S)
        return softmax(see(scores), allowed).to(q.dtype)
