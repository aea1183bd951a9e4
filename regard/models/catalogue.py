"""The families of models and their presets by name; from what a person types, `base heads=16`, to a config."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from torch import nn

from regard.models import convolutional, recurrent, transformer
from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig


class Family(NamedTuple):
    """A config and the model that it builds."""

    config: type[Any]
    model: type[nn.Module]


FAMILIES = {
    "transformer": Family(TransformerConfig, Transformer),
    "recurrent": Family(RecurrentConfig, Recurrent),
    "convolutional": Family(ConvolutionalConfig, Convolutional),
}
# Of all families, in one space of names.
PRESETS: dict[str, Callable[..., Any]] = {**transformer.PRESETS, **recurrent.PRESETS, **convolutional.PRESETS}

NAMES = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none"}
BOOLS = {"true": True, "false": False}


def family_of(preset: str) -> str:
    """The family that a preset belongs to.

    >>> family_of("base"), family_of("lstm")
    ('transformer', 'recurrent')
    """
    if preset not in PRESETS:
        near = get_close_matches(preset, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown preset {preset!r}: {hint}There are {', '.join(PRESETS)}")
    config = type(PRESETS[preset](2))
    return next(name for name, family in FAMILIES.items() if family.config is config)


def build(config: Any) -> nn.Module:
    """The model of a config, of whichever family.

    >>> type(build(configure("tiny", vocabulary=100))).__name__
    'Transformer'
    """
    for family in FAMILIES.values():
        if type(config) is family.config:
            return family.model(config)
    raise ValueError(f"a {type(config).__name__} is no config of a model: the families are {', '.join(FAMILIES)}")


def configure(preset: str, changes: Iterable[str] = (), *, vocabulary: int) -> Any:
    """The config of a preset with changes written `key=value`, each value read as its setting's type asks.

    >>> configure("base", ["positions=rope", "d_k=none", "dropout=0"], vocabulary=37_000).positions
    'rope'
    >>> configure("base", ["heads=many"], vocabulary=37_000)
    Traceback (most recent call last):
    ValueError: heads='many': expected a whole number
    """
    types = get_type_hints(FAMILIES[family_of(preset)].config)
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"{change!r} is not a change: write key=value, as in heads=16")
        values[key] = _read(key, text, types[key]) if key in types else text  # `but` refuses an unknown key
    return PRESETS[preset](vocabulary).but(**values)


def _read(key: str, text: str, kind: Any) -> Any:
    kinds = get_args(kind) or (kind,)  # int | None -> int, None
    if NoneType in kinds and text.lower() == "none":
        return None
    try:
        value = BOOLS[text.lower()] if bool in kinds else kinds[0](text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    except (KeyError, ValueError):
        expected = " or ".join(NAMES[k] for k in kinds)
        raise ValueError(f"{key}={text!r}: expected {expected}") from None
