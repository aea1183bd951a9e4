"""The layers of Table 1 (§4), and what can be counted on them: FLOPs, bytes, operations in a row, layers on the way.

Letters: n positions, d width, k kernel, r neighbours on each side of a restricted attention.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.core.attention import MultiHeadAttention
from regard.core.mixers import AttentionConfig
from regard.core.recurrence import LinearRecurrence
from regard.models import costs
from regard.models.convolutional import Convolution
from regard.models.recurrent import Cell

KERNEL, REACH = 3, 32  # k and r
HEAD = 64  # width of a head, as in the paper's models


@dataclass(frozen=True)
class Layer:
    """A kind of layer, what the paper says of it, and how one is made."""

    label: str
    complexity: str  # of a layer
    sequential: str  # operations
    path: str  # between the farthest positions
    make: Callable[[int, int], nn.Module]  # of width d, the i-th of a stack


def _attending(**settings: Any) -> Callable[[int, int], nn.Module]:
    return lambda d, i: MultiHeadAttention(AttentionConfig(d, max(1, d // HEAD), max_length=2**20, **settings))


def _convolution(label: str, path: str, dilation: Callable[[int], int]) -> Layer:
    def make(d: int, i: int) -> nn.Module:
        return Convolution(d, d, kernel=KERNEL, dilation=dilation(i), causal=False)

    return Layer(label, "k·n·d²", "1", path, make)


LAYERS: Mapping[str, Layer] = {
    "attention": Layer("self-attention", "n²·d", "1", "1", _attending()),
    "written": Layer("self-attention, weights kept", "n²·d", "1", "1", _attending(backend="math")),
    "window": Layer(
        f"self-attention, restricted (r = {REACH})", "r·n·d", "1", "n/r", _attending(kind=f"window:{REACH}")
    ),
    "lstm": Layer("recurrent: LSTM", "n·d²", "n", "n", lambda d, i: Cell("lstm", d, d)),
    "gru": Layer("recurrent: GRU", "n·d²", "n", "n", lambda d, i: Cell("gru", d, d)),
    "linear": Layer("linear recurrent", "–", "–", "–", lambda d, i: LinearRecurrence(d)),
    "convolution": _convolution(f"convolutional (k = {KERNEL})", "n/k", lambda i: 1),
    "dilated": _convolution(f"convolutional, dilated (k = {KERNEL})", "log_k(n)", lambda i: int(2**i)),
}


@cache
def flops(name: str, n: int, d: int) -> int:
    """Of a forward pass over one sequence: 2 for each weight that a token meets.

    >>> flops("lstm", 10, 64) == 2 * 10 * 8 * 64**2
    True
    """
    with torch.device("meta"):
        return costs.flops_of(LAYERS[name].make(d, 0), torch.empty(1, n, d)).total()


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """x (B, n, d) -> (B, n, d): a cell gives its last state besides."""
    y = layer(x)
    return y[0] if isinstance(y, tuple) else y


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """What autograd keeps of one forward pass for the backward pass, besides input and parameters."""
    return costs.kept_bytes(lambda: through(layer, x), (x, *layer.parameters()))


class Chain(TorchDispatchMode):
    """The longest chain of operations in which each needs what the one before it gives; views are none.

    However many run side by side, no machine is through in fewer steps than that. A tensor counts as ready when all
    of its storage is; what overwrites a part of it needs nothing of what was there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ready: dict[int, int] = {}  # by storage: operations in a row until its numbers are there
        self.held: list[Tensor] = []  # so that no storage is used again for another tensor

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        read = inputs[1:] if "copy_" in func.__name__ else inputs
        step = 1 + max((self.ready.get(_storage(x), 0) for x in read), default=-1)
        given = {_storage(x) for x in inputs}
        for x in outputs:
            if func._schema.is_mutable:
                self.ready[_storage(x)] = max(self.ready.get(_storage(x), 0), step)
            elif _storage(x) not in given:  # no view
                self.ready[_storage(x)] = step
        self.held += outputs
        return out


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [x for each in value for x in _tensors(each)] if isinstance(value, list | tuple | type({}.values())) else []


def operations_in_a_row(layer: nn.Module, x: Tensor) -> int:
    """How many tensor operations of a forward pass must wait for one another."""
    # With gradients, and without the kernels that do all steps of a recurrence in one call: each step is seen.
    with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False), Chain() as chain:
        y = through(layer, x)  # (PyTorch warns that there is no Intel GPU, which nobody asked for)
    return chain.ready[_storage(y)]


def layers_on_the_way(make: Callable[[int], nn.Module], n: int, d: int) -> int:
    """How many layers of a stack it takes until the first position moves the last, by the gradient of real ones.

    The gradient of the last position goes down the stack until it is at the first; in fp64, where no position is
    reached by rounding and none is lost: what is zero has no path.
    """
    g = torch.zeros(1, n, d, dtype=torch.float64)
    g[:, -1] = 1.0
    for i in range(n):
        x = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(through(make(i).double(), x), x, g)
        if g[:, 0].any():
            return i + 1
        g = g / g.abs().max()  # only whether it is zero matters: it must not vanish on the way
    raise ValueError(f"{n} layers carry nothing from the first of {n} positions to the last")
