"""The C kernels of a training step (training.c), lent to a model from outside: its modules know nothing of them.

`lend(model)` walks the modules by type and puts a faster method before each one's own; the functions of the core have
registers for such ways. In a thread inside `lending(kernels())` the kernels are asked; where they answer None, and
everywhere else, the core does the work itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.core import backends, dropout, losses, stems
from regard.core.attention import MultiHeadAttention
from regard.core.layers import FeedForward, GatedFeedForward, Residual
from regard.core.ways import Ways
from regard.native.layout import number
from regard.native.training import NativeKernels

_lent: ContextVar[NativeKernels | None] = ContextVar("_lent", default=None)


@contextmanager
def lending(kernels: NativeKernels | None) -> Iterator[None]:
    """Inside the block, and in this thread, these kernels are asked."""
    token = _lent.set(kernels)
    try:
        yield
    finally:
        _lent.reset(token)


def lent() -> NativeKernels | None:
    """The kernels that `lending` named, if any."""
    return _lent.get()


def lend(model: nn.Module) -> None:
    """Let the modules of a model, where their types are known, ask for kernels at each call. Before `recompute`.

    >>> layer = FeedForward(16, 32)
    >>> lend(layer)
    >>> layer.forward.func.__name__
    '_asked'
    """
    for module in model.modules():
        if (known := FAST.get(type(module))) is not None:
            name, fast = known
            setattr(module, name, partial(_asked, partial(fast, module), getattr(module, name)))


def _asked(fast: Callable[..., Any], own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    kernels = _lent.get()
    y = None if kernels is None else fast(kernels, *args, **kwargs)
    return own(*args, **kwargs) if y is None else y


def _feed_forward(m: FeedForward, kernels: NativeKernels, x: Tensor, **_: Any) -> Tensor | None:
    if not type(m.inner) is type(m.outer) is nn.Linear or _hooked(m.inner, m.dropout, m.outer):
        return None
    return kernels.feed_forward(x, m.inner, m.outer, number(m.activation, m), m.dropout.now)


def _residual(m: Residual, kernels: NativeKernels, x: Tensor, s: Tensor) -> Tensor | None:
    if _hooked(m.dropout, m.norm):
        return None
    return kernels.residual(x, s, m.dropout.now, m.norm if m.place == "post" else None)


# Of each type, the method that a kernel may do the work of, and how it is asked.
FAST: dict[type[nn.Module], tuple[str, Callable[..., Any]]] = {
    nn.Linear: ("forward", lambda m, kernels, x: kernels.linear(x, m.weight, m.bias)),
    nn.Embedding: ("forward", lambda m, kernels, tokens: kernels.embedding(tokens, m)),
    FeedForward: ("forward", _feed_forward),
    GatedFeedForward: ("gated", lambda m, kernels, z, value: kernels.gated(z, value, m.gate)),
    Residual: ("add", _residual),
    MultiHeadAttention: ("split", lambda m, kernels, x, widths: kernels.split(x, widths)),
}


def _hooked(*modules: nn.Module) -> bool:
    """Whether one has hooks: then somebody wants it to be called."""
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in modules)


def _attend(kernels: NativeKernels, q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor | None:
    mask, bias, scale, dropout = more
    return kernels.attend(q, k, v, mask, scale, dropout, bias)


# Of each function that has a register of ways, this one.
WAYS: dict[Ways[Any, Any], Callable[..., Any]] = {
    backends.auto: _attend,
    dropout.dropped: lambda kernels, *args: kernels.dropout(*args),
    stems.bags: lambda kernels, *args: kernels.bags(*args),
    losses.cross_entropy_in_blocks: lambda kernels, *args: kernels.cross_entropy(*args),
}
for ways, way in WAYS.items():
    ways.others.append(partial(_asked, way, lambda *_: None))
