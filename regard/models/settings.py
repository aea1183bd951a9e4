"""What the configs of all families have in common: checks, and changes by name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

Config = TypeVar("Config", bound=Any)  # a frozen dataclass with vocabulary, source_vocabulary, tie and pad
TIES = ("all", "target", "none")  # which embeddings are one matrix: all, target with the output, none (§3.4)
SIZES = ("vocabulary", "source_vocabulary", "encoder_layers", "decoder_layers", "max_length")  # of every family
COUNTED = ("encoder_layers", "decoder_layers", "heads", "kv_heads")  # what a config, too, goes through one by one
MOST, MOST_COUNTED = 2**30, 2**12  # far beyond any model, and nothing to what a damaged file may say


def check(
    config: Any,
    choices: Mapping[str, Iterable[str]],
    sizes: Iterable[str] = (),
    probabilities: Iterable[str] = ("dropout",),
) -> None:
    """Refuse a setting that is none of its choices, a size below 1 or beyond all measure, a probability outside of
    [0, 1], a pad that is no token, and one matrix for two vocabularies."""
    for name, size in vars(config).items():
        if isinstance(size, int) and size > (most := MOST_COUNTED if name in COUNTED else MOST):
            raise ValueError(f"{name} = {size}: it must be at most {most:,}")
    for name, valid in {**choices, "tie": TIES}.items():
        if (value := getattr(config, name)) not in (valid := tuple(valid)):
            raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(valid)}")
    if config.tie == "all" and config.source_vocabulary not in (None, config.vocabulary):
        raise ValueError(
            f"tie='all' makes one matrix of both vocabularies, but they have {config.source_vocabulary} and "
            f"{config.vocabulary} entries: use one joint vocabulary, or tie='target'"
        )
    for name in (*SIZES, *sizes):
        if (size := getattr(config, name)) is not None and size < 1:
            raise ValueError(f"{name} = {size}: it must be at least 1")
    if not 0 <= config.pad < config.vocabulary:
        raise ValueError(f"pad = {config.pad} is no token: the vocabulary has ids 0..{config.vocabulary - 1}")
    for name in probabilities:
        if not 0.0 <= (p := getattr(config, name)) <= 1.0:
            raise ValueError(f"{name} = {p}: a probability lies in [0, 1]")


def changed(config: Config, model: str, changes: Mapping[str, Any]) -> Config:
    """The config with changes; `model` is what to call its kind where one of them is unknown."""
    known = config.__dataclass_fields__
    for name in changes.keys() - known.keys():
        near = get_close_matches(name, known, n=1) or sorted(known)
        raise ValueError(f"{model} has no setting {name!r}: did you mean {' or '.join(map(repr, near))}?")
    return replace(config, **changes)
