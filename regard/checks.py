"""Packages that only some of regard needs: the extras of an installation."""

from importlib import import_module
from typing import Any


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
