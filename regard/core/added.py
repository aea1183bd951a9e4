"""What is added to a model that stays as it is: parameters beside its own, which alone are taught.

An `Added` is a child of the module that it adds to. That module keeps its type, its parameters and its kernels; hooks
ask what was added, in the order in which it was, of what it reads and of what it makes. Switched off, it adds nothing.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.checks import hint


class Added(nn.Module):
    """Parameters beside those of a module."""

    on = True
    folder = ""  # of a model's directory: what it reads lies there, and who opens that sets its `memory`

    def before(self, x: Tensor) -> Tensor:
        """What the module is to read in place of x."""
        return x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """What is to become of y, which the module has made of x."""
        return y

    @property
    def roles(self) -> Sequence[str]:
        """What it changes of a module, each by a name."""
        return ("",)

    def amounts(self, module: nn.Module) -> dict[str, Tensor]:
        """By role, how much of a matrix it changes: |ΔW| / |W|; none where it changes no matrix."""
        return {}

    def matrices(self) -> list[Tensor]:
        """Those of its parameters that lead from one hidden state to another."""
        return []

    def weight(self, W: Tensor) -> Tensor:
        """The numbers of a product with its part in them, through which gradients flow."""
        raise ValueError(f"a {type(self).__name__} is no part of the numbers of a product")

    def low(self) -> tuple[Tensor, Tensor] | None:
        """A (r, d_in) and B (d_out, r), if all that it does is to add B A x; None if it is not."""
        return None

    def merge(self, module: nn.Module) -> None:
        """Change the module's own parameters so that it does the same alone; a `ValueError` says why it cannot."""
        raise ValueError(f"a {type(self).__name__} is no change of weights that a model has")


class Base(NamedTuple):
    """The model that another one has begun with, and adds to."""

    path: str
    digest: str
    own: frozenset[str]  # the tensors that the other one has for itself
    head: bool = False  # whether its head is among them


def add(module: nn.Module, name: str, part: Added) -> None:
    """Add a part to a module by this name."""
    if hasattr(module, name):
        raise ValueError(f"there is something called {name!r} already: give each change a name of its own")
    module.add_module(name, part)
    if _after not in module._forward_hooks.values():
        module.register_forward_pre_hook(_before)
        module.register_forward_hook(_after)


def _before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    x = args[0]
    for part in module.children():
        if isinstance(part, Added) and part.on:
            x = part.before(x)
    return None if x is args[0] else (x, *args[1:])


def _after(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
    for part in module.children():
        if isinstance(part, Added) and part.on:
            y = part.after(args[0], y)
    return y


def added(model: nn.Module) -> list[Added]:
    """All that was added to a model."""
    return [module for module in model.modules() if isinstance(module, Added)]


def called(model: nn.Module) -> dict[str, list[tuple[str, Added]]]:
    """All that was added to a model by the names of changes: each part, and the path of what it adds to."""
    found: dict[str, list[tuple[str, Added]]] = {}
    for path, module in model.named_modules():
        if isinstance(module, Added):
            place, _, name = path.rpartition(".")
            found.setdefault(name, []).append((place, module))
    return found


def new(model: nn.Module) -> list[str]:
    """The names of what a model adds to the one that it began with, which may have had something added before."""
    base: Base | None = getattr(model, "base", None)
    return [name for name in called(model) if base is None or any(f".{name}." in key for key in base.own)]


@contextmanager
def without(model: nn.Module, *names: str) -> Iterator[None]:
    """`with without(model):` the model is as if nothing (or nothing of these names) had been added, bit for bit."""
    known = called(model)
    for name in names:
        if name not in known:
            raise ValueError(f"nothing that was added to this model is called {name!r}: {hint(name, known)}")
    parts = [(part, part.on) for name in names or known for _, part in known[name]]
    try:
        for part, _ in parts:
            part.on = False
        yield
    finally:
        for part, was in parts:
            part.on = was


def merged(model: nn.Module) -> nn.Module:
    """A model that does the same with no more than its own parameters: itself if nothing was added, or a copy of what
    was added to, which has all other parameters in common with it."""
    if not added(model):
        return model
    touched = {
        id(p) for m in model.modules() if any(isinstance(c, Added) for c in m.children()) for p in m.parameters()
    }
    model = copy.deepcopy(model, {id(p): p for p in model.parameters() if id(p) not in touched})
    done: set[Added] = set()  # one part may serve several modules that have the same parameters
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, Added):
                if part.on and part not in done:
                    part.merge(module)
                    done.add(part)
                delattr(module, name)
                for hooks in (module._forward_hooks, module._forward_pre_hooks):
                    for number in [number for number, hook in hooks.items() if hook in (_before, _after)]:
                        del hooks[number]
    return model


def frozen(model: nn.Module) -> nn.Module:
    """The model, of which only what was added learns."""
    for p in model.parameters():
        p.requires_grad_(False)
    for part in added(model):
        for p in part.parameters():
            p.requires_grad_(True)
    return model


def own(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and stored buffers of a model by name, each once: of one that adds to another, what it adds."""
    stored, base = model.state_dict().keys(), getattr(model, "base", None)
    named = dict(model.named_parameters()) | {name: b for name, b in model.named_buffers() if name in stored}
    return {name: x for name, x in named.items() if base is None or name in base.own}
