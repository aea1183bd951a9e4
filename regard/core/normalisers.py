"""From scores to weights: soft-max, and what may stand in its place.

Letters: B batch, H heads, T queries, S keys. A normaliser takes scores (B, H, T, S) and a bool mask that broadcasts to
them (True = may attend), or None, and gives weights (B, H, T, S): nowhere negative, zero where masked, of sum 1 in
each row. A row that may see nothing is zero, in value and in gradient. A score of -inf hides its key as well; only
soft-max itself wants a finite one in every row that the mask leaves open, as PyTorch's does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Normaliser = Callable[[Tensor, Tensor | None], Tensor]
See = Callable[[Tensor], Tensor]  # of scores, by whoever watches


def exact(x: Tensor) -> torch.autocast:
    """Inside the block products are as precise as their factors: autocast would halve what was widened for a sum."""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Weights proportional to exp(score), eq. 1."""
    if mask is None:
        return scores.softmax(-1)
    hidden = ~mask
    # The lowest finite number in place of -inf, and zeros afterwards: a row that is masked whole is then zero in
    # value and in gradient, and no NaN ever arises.
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0.0)


def top_k(scores: Tensor, mask: Tensor | None = None, *, k: int) -> Tensor:
    """Soft-max over the k best keys of each query (Zhao et al. 2019); equals of the k-th come along.

    >>> top_k(torch.tensor([1.0, 3.0, 2.0, 3.0]), k=2).tolist()
    [0.0, 0.5, 0.0, 0.5]
    """
    seen, hidden = _seen(scores, mask)
    least = seen.detach().topk(min(k, scores.shape[-1]), sorted=True).values[..., -1:]
    return softmax(seen, (seen >= least) & ~hidden)


def hard(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The best key alone, the first of equals, and the gradient of the soft-max: straight-through (Bengio et al. 2013).

    >>> hard(torch.tensor([1.0, 3.0, 2.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    seen, hidden = _seen(scores, mask)
    best = torch.zeros_like(seen).scatter(-1, seen.argmax(-1, keepdim=True), 1.0).masked_fill(hidden, 0.0)
    return _StraightThrough.apply(softmax(seen, ~hidden), best)


class _StraightThrough(torch.autograd.Function):
    """The value of one, the gradient of another; `best + soft - soft` would round."""

    @staticmethod
    def forward(ctx: Any, soft: Tensor, best: Tensor) -> Tensor:
        return best

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """The point of the simplex nearest to the scores (Martins & Astudillo 2016): (z - τ)₊.

    >>> sparsemax(torch.tensor([0.5, 0.25, -1.0])).tolist()
    [0.625, 0.375, 0.0]
    """
    return _sparse(scores, mask, 2.0)


def entmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """1.5-entmax, half way from soft-max to sparsemax (Peters et al. 2019): (z/2 - τ)₊².

    >>> entmax(torch.tensor([1.0, 1.0, -1.0])).round(decimals=4).tolist()
    [0.5, 0.5, 0.0]
    """
    return _sparse(scores, mask, 1.5)


def _sparse(scores: Tensor, mask: Tensor | None, alpha: float) -> Tensor:
    seen, hidden = _seen(scores, mask)
    seen = seen.to(torch.promote_types(seen.dtype, torch.float32))
    return _Entmax.apply(seen, alpha).masked_fill(hidden, 0.0).to(scores.dtype)


class _Entmax(torch.autograd.Function):
    """α-entmax p = ((α - 1) z - τ)₊^(1/(α - 1)) for α = 1.5 and 2, τ from the sorted scores.

    The gradient is s (g - Σ g s / Σ s) with s = p^(2 - α), zero off the support (Peters et al. 2019).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float) -> Tensor:
        # With the largest at 0, τ lies in [-1, 0]: what is below -1 gets nothing, and how far below is no matter.
        z = ((alpha - 1) * (z - z.amax(-1, keepdim=True))).clamp(min=-2.0)
        falling = z.sort(-1, descending=True).values
        n = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        mean = falling.cumsum(-1) / n  # of the n largest
        if alpha == 2.0:
            tau = mean - 1 / n  # Σ (z - τ) = 1 over the n largest
        else:
            spread = falling.square().cumsum(-1) - n * mean.square()
            tau = mean - ((1 - spread) / n).clamp(min=0.0).sqrt()  # Σ (z - τ)² = 1
        support = (falling >= tau).sum(-1, keepdim=True)
        p = (z - tau.gather(-1, support - 1)).clamp(min=0.0)
        p = p if alpha == 2.0 else p.square()
        ctx.save_for_backward(p)
        ctx.alpha = alpha
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        s = (p > 0).to(p.dtype) if ctx.alpha == 2.0 else p.sqrt()
        return s * (g - (g * s).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)), None


def _seen(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scores, the lowest finite number where a key is hidden; and where that is."""
    hidden = scores.isneginf() if mask is None else scores.isneginf() | ~mask
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min), hidden


NORMALISERS: dict[str, Normaliser] = {"softmax": softmax, "hard": hard, "sparsemax": sparsemax, "entmax": entmax}
ALONG_A_MEMORY = ("monotonic", "chunkwise")  # these have a memory of their own: regard.core.monotonic
FORMS = "softmax, topk:K, hard, sparsemax, entmax, monotonic, chunkwise:W"


def read_normaliser(text: str) -> tuple[str, int]:
    """The name of a normaliser, and its number: of keys that topk keeps, or of a chunk; otherwise 1.

    >>> read_normaliser("entmax"), read_normaliser("topk:8")
    (('entmax', 1), ('topk', 8))
    """
    name, colon, number = text.partition(":")
    if name in ("topk", "chunkwise"):
        least = 1 if name == "topk" else 2  # a chunk of one key is monotonic attention
        if not (number.isascii() and number.isdigit() and int(number) >= least):
            raise ValueError(f"normaliser {text!r}: write {name}: and a number from {least} on, as in {name}:8")
        return name, int(number)
    if colon or name not in (*NORMALISERS, "monotonic"):
        raise ValueError(f"unknown normaliser {text!r}: choose one of {FORMS} (as topk:8)")
    return name, 1


def make_normaliser(text: str) -> Normaliser:
    """The normaliser of this name, if it is a function of the scores alone."""
    name, number = read_normaliser(text)
    return partial(top_k, k=number) if name == "topk" else NORMALISERS[name]
