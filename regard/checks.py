"""What a person asks for, checked: one line that names the value, and what to do. Over the standard library alone."""

import re
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from linecache import getlines
from typing import Any, TypeVar

Item = TypeVar("Item")
INF = float("inf")


def hint(name: str, among: Iterable[str]) -> str:
    """What may have been meant by a name that is none of these.

    >>> hint("Beem", ["beam", "best"]), hint("x", ["beam", "best"])
    ("did you mean 'beam'?", 'there are beam, best')
    """
    names = {each.lower(): each for each in among}
    near = get_close_matches(name.lower(), names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else f"there are {', '.join(names.values())}"


def choose(what: str, name: str, among: Mapping[str, Item]) -> Item:
    """among[name], or an error that says what there is.

    >>> choose("gate", "swiglo", {"glu": 1, "swiglu": 2})
    Traceback (most recent call last):
    ValueError: unknown gate 'swiglo': did you mean 'swiglu'?
    """
    if name not in among:
        raise ValueError(f"unknown {what} {name!r}: {hint(name, among)}")
    return among[name]


def one_of(among: Iterable[str], **values: str | None) -> None:
    """Each value is one of these, or None.

    >>> one_of(["paper", "mean"], penalty="man")
    Traceback (most recent call last):
    ValueError: penalty = 'man': choose paper or mean
    """
    names = list(among)
    for name, value in values.items():
        if value is not None and value not in names:
            raise ValueError(f"{name} = {value!r}: choose {', '.join(names[:-1])} or {names[-1]}")


def at_least(low: float, **values: float | None) -> None:
    """Each value is a number from `low` on, and no infinite one, or None.

    >>> at_least(1, beam=0)
    Traceback (most recent call last):
    ValueError: beam = 0: it must be at least 1
    """
    for name, value in values.items():
        if value is not None and not low <= value < INF:
            raise ValueError(f"{name} = {value}: it must be {'finite' if value == INF else f'at least {low}'}")


def above(low: float, **values: float | None) -> None:
    """Each value is a number above `low`, and no infinite one, or None."""
    for name, value in values.items():
        if value is not None and not low < value < INF:
            raise ValueError(f"{name} = {value}: it must be {'finite' if value == INF else f'above {low}'}")


def share(*, whole: bool = True, **values: float | None) -> None:
    """Each value is from 0 to 1, or None; unless it may be the `whole`, below 1.

    >>> share(whole=False, dropout=1.0)
    Traceback (most recent call last):
    ValueError: dropout = 1.0: it lies in [0, 1)
    """
    for name, value in values.items():
        if value is not None and not (0.0 <= value < 1.0 or (whole and value == 1.0)):
            raise ValueError(f"{name} = {value}: it lies in [0, 1{']' if whole else ')'}")


@cache
def described(kind: Any) -> dict[str, str]:
    """What the comments beside the fields of a dataclass, or the parameters of a function, say of each: its help."""
    found: dict[str, str] = {}
    for each in reversed(getattr(kind, "__mro__", (kind, object))[:-1]):
        if each is kind or "__dataclass_fields__" in vars(each):
            module = sys.modules[each.__module__]
            text = "".join(getlines(str(module.__file__), vars(module)))  # `inspect` would parse the whole file
            own = re.search(rf"^(class|def) {each.__name__}\b.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
            found |= re.findall(r"^    (\w+): [^#\n]+# (.+)$", own[0] if own else "", re.MULTILINE)
    return found


def need(package: str, extra: str) -> Any:
    """The module of an optional package, or an error that says how to get it.

    >>> need("no_such_package", "convert")
    Traceback (most recent call last):
    ValueError: this needs the package no_such_package: pip install 'regard[convert]'
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ValueError(f"this needs the package {error.name}: pip install 'regard[{extra}]'") from None
