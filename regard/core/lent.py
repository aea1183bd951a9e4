"""Faster kernels, lent to the core by whoever has them (regard/native/training.py).

What takes the time of a training step asks here first. Where none are lent, or they answer None, the core does the
work itself: its own way is the truth that the tests hold the others to.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from regard.core.masks import AnyMask


class LossAndGradients(NamedTuple):
    """A loss and its gradients by h, W and b, as far as they were asked for."""

    loss: Tensor
    h: Tensor | None
    W: Tensor | None
    b: Tensor | None


class Kernels(Protocol):
    """What can be lent. Each answers None to what it does not know."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, scale: float) -> Tensor | None:
        """`regard.core.attention.attend` without bias and dropout."""

    def linear(self, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor | None:
        """x Wᵀ + b."""

    def split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """x in parts of these widths, whose gradients join without a copy if they lie side by side already."""

    def embedding(self, tokens: Tensor, table: nn.Embedding) -> Tensor | None:
        """The table's rows for these tokens. Its gradient may be sparse, for a borrower that can do with it."""

    def feed_forward(self, x: Tensor, inner: nn.Linear, outer: nn.Linear, p: float) -> Tensor | None:
        """outer(dropout(relu(inner(x)), p)), of the same draws."""

    def residual(self, x: Tensor, s: Tensor, p: float, norm: nn.Module | None) -> Tensor | None:
        """norm(x + dropout(s, p)), of the same draws; without a norm the sum alone."""

    def dropout(self, x: Tensor, p: float) -> Tensor | None:
        """`regard.core.dropout.dropout`, of the same draws."""

    def cross_entropy(
        self, h: Tensor, W: Tensor, b: Tensor | None, y: Tensor, hit: float, needs: tuple[bool, bool, bool]
    ) -> LossAndGradients | None:
        """`regard.core.losses.cross_entropy_in_blocks`."""


_lent: ContextVar[Kernels | None] = ContextVar("_lent", default=None)


@contextmanager
def lending(kernels: Kernels | None) -> Iterator[None]:
    """Inside the block, and in this thread, the core asks these kernels."""
    token = _lent.set(kernels)
    try:
        yield
    finally:
        _lent.reset(token)


def lent() -> Kernels | None:
    """The kernels that `lending` named, if any."""
    return _lent.get()
