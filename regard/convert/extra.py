"""Packages that only some conversions need."""

from importlib import import_module
from typing import Any


def need(package: str) -> Any:
    """The module of an optional package, or an error that says how to get it.

    >>> need("no_such_package")
    Traceback (most recent call last):
    ValueError: this conversion needs the package no_such_package: pip install regard[convert]
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ValueError(f"this conversion needs the package {error.name}: pip install regard[convert]") from None
