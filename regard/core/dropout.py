"""Dropout, with random bits spent sparingly where drawing them is slow.

On a CPU, PyTorch draws one generator output for every element, on one thread: about 9 ns an element measured, against
1 ns here, where one 64-bit draw decides four elements. A probability is thereby rounded to a multiple of 2**-16, and
the scale 1/(1 - p) uses the rounded one, so that the expectation is exact.

All randomness of the core is drawn here, from PyTorch's default generator or the one that `drawing_from` names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.ways import Ways

LEVELS = 2**16
_source: ContextVar[torch.Generator | None] = ContextVar("_source", default=None)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Inside the block, and in this thread, dropout on the CPU draws from `generator`.

    >>> with drawing_from(torch.Generator().manual_seed(1)):
    ...     a = dropout(torch.ones(9), 0.5)
    >>> with drawing_from(torch.Generator().manual_seed(1)):
    ...     b = dropout(torch.ones(9), 0.5)
    >>> torch.equal(a, b)
    True
    """
    token = _source.set(generator)
    try:
        yield
    finally:
        _source.reset(token)


def current_generator() -> torch.Generator | None:
    """The generator that `drawing_from` named, if any."""
    return _source.get()


def check_probability(p: float) -> float:
    """p, or an error if it is none."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability lies in [0, 1], got {p}")
    return p


def fresh_seed() -> int:
    """A seed for a generator of one's own, drawn like everything else."""
    return int(torch.randint(2**62, (), generator=_source.get()).item())


def keep_mask(shape: torch.Size, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    """A bool mask on the CPU, each element True with probability 1 - p; p is rounded to a multiple of 2**-16."""
    if round(p * LEVELS) == LEVELS:  # a threshold beyond 16 bits
        return torch.zeros(shape, dtype=torch.bool)
    return (draws(shape.numel(), generator=generator) >= threshold(p)).view(shape)


def draws(n: int, *, generator: torch.Generator | None = None) -> Tensor:
    """n random numbers of 16 bits, int16: four of one draw of the generator."""
    whole = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator or _source.get())
    return whole.view(torch.int16)[:n]


def threshold(p: float) -> int:
    """The least of the `draws` that keeps its element, but at p = 1, where none does."""
    return round(p * LEVELS) - LEVELS // 2


def keep_scale(p: float) -> float:
    """What the kept elements are multiplied with: 1 / (1 - p), p rounded as in `keep_mask`; none is kept at p = 1."""
    return LEVELS / max(1, LEVELS - round(p * LEVELS))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep = keep_mask(x.shape, p)
        ctx.save_for_backward(keep)
        ctx.scale = keep_scale(p)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (g * keep) * ctx.scale, None


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p)."""
    check_probability(p)
    if p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return dropped(x, p)


@Ways
def dropped(x: Tensor, p: float) -> Tensor:
    """`dropout` on the CPU, of a p above 0."""
    return _Dropout.apply(x, p)


class Dropout(nn.Module):
    """`dropout` while training, identity otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_probability(p)

    @property
    def now(self) -> float:
        """p while training, otherwise 0."""
        return self.p if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.now)

    def extra_repr(self) -> str:
        return f"p={self.p}"
