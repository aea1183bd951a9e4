"""Functions that others may compute faster: a register, into which whoever has a faster way writes it."""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Ways(Generic[Arguments, Result]):
    """A function, and other ways to its result. Each is asked first, and answers None to what it does not know.

    >>> @Ways
    ... def double(x: int) -> int:
    ...     return x + x
    >>> double.others.append(lambda x: None if x else -1)
    >>> double(2), double(0)
    (4, -1)
    """

    def __init__(self, own: Callable[Arguments, Result]) -> None:
        self.own = own  # the truth that the tests hold the others to
        self.others: list[Callable[Arguments, Result | None]] = []

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for other in () if torch.compiler.is_compiling() else self.others:  # who traces wants plain operations
            if (done := other(*args, **kwargs)) is not None:
                return done
        return self.own(*args, **kwargs)
