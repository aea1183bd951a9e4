"""Activation checkpointing: memory for time. What a module computed is thrown away, and computed again when needed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.core.dropout import current_generator, drawing_from


def recompute(modules: Iterable[nn.Module]) -> None:
    """Between forward and backward pass, let each of these modules keep its inputs only.

    Value and gradient stay the same to the last bit, dropout included: it draws the same masks again.

    >>> layer = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> recompute([layer])
    >>> layer(torch.ones(2, 4)).sum().backward()
    """
    for module in modules:
        module.forward = partial(_run, module, module.forward)


def _run(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=_same_draws, **kwargs)


def _same_draws() -> tuple[Any, Any]:
    """Contexts of the two computations. PyTorch restores its own generators, but not one of `drawing_from`."""
    generator = current_generator()
    if generator is None:
        return _nothing(), _nothing()
    return _nothing(), _replay(generator.get_state())


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _replay(state: torch.Tensor) -> Iterator[None]:
    with drawing_from(torch.Generator().set_state(state)):
        yield
