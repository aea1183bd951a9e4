"""What a family of models is: a config, the model that it builds, and presets; from `base heads=16` to a config.

The last statement of a model's file is `FAMILY = Family(...)`, and its name stands in `FAMILIES`: with these two lines
a new family can be trained, saved, served and accounted for. A file is imported when its family is asked for.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib import import_module
from types import NoneType
from typing import Any, Self, get_args, get_type_hints

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.checks import at_least, choose, hint, one_of
from regard.core.outputs import HeadConfig
from regard.core.positions import Learned
from regard.core.stems import Patches

FAMILIES = {
    "transformer": "regard.models.transformer",
    "recurrent": "regard.models.recurrent",
    "convolutional": "regard.models.convolutional",
    "decoder": "regard.models.decoder",
    "encoder": "regard.models.encoder",
    "vision": "regard.models.vision",
    "video": "regard.models.video",
    "pair": "regard.models.pair",
    "captioner": "regard.models.captioner",
    "speech": "regard.models.speech",
    "seer": "regard.models.seer",
    "graph": "regard.models.graph",
    "audio": "regard.models.audio",
}
INITIAL = 0.02  # standard deviation of a weight at first, as in GPT-2, BERT and ViT
NAMES = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none", str: "text"}
VOCABULARY = 37_000  # of the paper's base model
WORDS = {"none": None, "true": True, "false": False}
TIES = ("all", "target", "none")  # which embeddings are one matrix: all, target with the output, none (§3.4)
PROBABILITIES = ("dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth")
COUNTED = (
    "layers",
    "time_layers",
    "encoder_layers",
    "decoder_layers",
    "heads",
    "kv_heads",
)  # what a config goes through one by one
MOST, MOST_COUNTED = 2**30, 2**12  # far beyond any model, and nothing to what a damaged file may say


class Config:
    """What the config of every family can do; it is a frozen dataclass, and has of these settings what it needs."""

    def but(self, **changes: Any) -> Self:
        """The same with changes.

        >>> configure("base", vocabulary=37_000).but(head=16)
        Traceback (most recent call last):
        ValueError: a Transformer model has no setting 'head': did you mean 'heads'?
        """
        known = [field.name for field in fields(self)]  # type: ignore[arg-type]
        for name in changes.keys() - set(known):
            kind = type(self).__name__.removesuffix("Config")
            raise ValueError(f"a {kind} model has no setting {name!r}: {hint(name, known)}")
        return replace(self, **changes)  # type: ignore[type-var]

    def check(self, **choices: Iterable[str]) -> None:
        """Refuse a setting that is none of its choices, a size below 1 or beyond all measure, a probability outside of
        [0, 1], a pad that is no token, and one matrix for two vocabularies.

        A whole number may be 0 if that is its default, or its field says so.
        """
        values = vars(self)
        for field in fields(self):  # type: ignore[arg-type]
            name, size = field.name, values[field.name]
            if type(size) is int:
                if size > (most := MOST_COUNTED if name in COUNTED else MOST):
                    raise ValueError(f"{name} = {size}: it must be at most {most:,}")
                at_least(field.metadata.get("least", int(field.default != 0)), **{name: size})
        for name, valid in ({"tie": TIES} | choices if "tie" in values else choices).items():
            one_of(valid, **{name: values[name]})
        for name in PROBABILITIES:
            if not 0.0 <= (p := values.get(name, 0.0)) <= 1.0:
                raise ValueError(f"{name} = {p}: a probability lies in [0, 1]")
        source, vocabulary = values.get("source_vocabulary"), values.get("vocabulary") or math.inf
        if source is not None and (tie := values["tie"]) in ("all", "inputs") and source != vocabulary:
            raise ValueError(
                f"tie={tie!r} makes one matrix of both vocabularies, but they have {source} and {vocabulary} entries: "
                "use one joint vocabulary, or tie='target'"
            )
        if (pad := values.get("pad", 0)) >= vocabulary:
            raise ValueError(f"pad = {pad} is no token: the vocabulary has ids 0..{vocabulary - 1}")


@dataclass(frozen=True)
class StackSizes:
    """What a config of one stack begins with."""

    vocabulary: int
    layers: int = 12


def draw_first(module: nn.Module) -> None:
    """First weights of products and embeddings; convolutions have theirs."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def draw_seeing(model: nn.Module) -> None:
    """First weights of a model that sees: also of the tokens before its patches, and of learned positions."""
    model.apply(draw_first)
    for module in model.modules():
        if isinstance(module, Patches | Learned):
            each = module.tokens if isinstance(module, Patches) else module.table
            if each is not None:
                nn.init.normal_(each, std=INITIAL)


@dataclass(frozen=True)
class Family:
    """A config, the model that it builds, and configs of note: of a vocabulary, if the model has one, and changes."""

    config: type[Any]
    model: type[nn.Module]
    presets: Mapping[str, Callable[..., Any]]  # names are unique among all families
    heads: tuple[str, ...] = ("tokens",)  # what may stand on it: `HeadConfig.kind`


@cache
def family(name: str) -> Family:
    """A family by its name."""
    found: Family = import_module(choose("family", name, FAMILIES)).FAMILY
    return found


def presets() -> dict[str, Callable[..., Any]]:
    """Those of all families."""
    return {preset: make for name in FAMILIES for preset, make in family(name).presets.items()}


def family_of(preset: str) -> str:
    """The family that a preset belongs to.

    >>> family_of("base"), family_of("lstm")
    ('transformer', 'recurrent')
    """
    name = next((name for name in FAMILIES if preset in family(name).presets), None)
    if name is None:
        raise ValueError(f"unknown preset {preset!r}: {hint(preset, presets())}")
    return name


def named(config: Any) -> str:
    """The family that a config is of."""
    for name in FAMILIES:
        if type(config) is family(name).config:
            return name
    raise ValueError(f"a {type(config).__name__} is no config of a model: the families are {', '.join(FAMILIES)}")


def build(config: Any, head: HeadConfig | None = None) -> nn.Module:
    """The model of a config, of whichever family; what stands on it is `head`, or what its family has by itself.

    >>> type(build(configure("tiny", vocabulary=100))).__name__
    'Transformer'
    """
    found = family(name := named(config))
    if head is not None:
        one_of(found.heads, **{f"head.kind of a model of the family {name}": head.kind})
    return found.model(config) if len(found.heads) == 1 else found.model(config, head)


def blank(config: Any, head: HeadConfig | None = None) -> nn.Module:
    """The same with names and shapes, but without memory. No random number is drawn."""
    with torch.device("meta"), _Undrawn():
        return build(config, head)


class _Undrawn(TorchFunctionMode):
    """Where there is no memory, nothing is drawn into it: for that, PyTorch would load its compiler, for a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


def configure(preset: str, changes: Iterable[str] = (), *, vocabulary: int | None = None) -> Any:
    """The config of a preset with changes written `key=value`, each value read as its setting's type asks.

    Without a vocabulary it is the preset's own, or that of the paper's base model.

    >>> configure("base", ["positions=rope", "d_k=none", "dropout=0"], vocabulary=37_000).positions
    'rope'
    >>> configure("base", ["heads=many"], vocabulary=37_000)
    Traceback (most recent call last):
    ValueError: heads = 'many': expected a whole number
    """
    found = family(family_of(preset))
    types = get_type_hints(found.config)
    own = inspect.signature(found.presets[preset]).parameters
    if vocabulary is None and "vocabulary" in own and own["vocabulary"].default is inspect.Parameter.empty:
        vocabulary = VOCABULARY
    given = {} if vocabulary is None or "vocabulary" not in own else {"vocabulary": vocabulary}
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"{change!r} is not a change: write key=value, as in heads=16")
        if key in types:  # `but` refuses an unknown one
            values[key] = checked(key, _typed(text, _kinds(types[key])), types[key])
        else:
            values[key] = text
    return found.presets[preset](**given).but(**values)


def configured(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """A config from what JSON holds. A setting that is left out, as by an older regard, has its default."""
    types = get_type_hints(kind)
    for name, value in settings.items():
        checked(name, value, choose("setting", name, types))
    for field in fields(kind):
        if field.default is MISSING and field.name not in settings:
            raise ValueError(f"the setting {field.name!r} is missing")
    return kind(**settings)


def checked(name: str, value: Any, kind: Any) -> Any:
    """The value of a setting, if it is of its type; a whole number is a number, but infinity is none."""
    kinds = _kinds(kind)
    fits = type(value) in kinds or (float in kinds and type(value) is int)
    if not fits or (type(value) is float and not math.isfinite(value)):
        raise ValueError(f"{name} = {value!r}: expected {' or '.join(NAMES[k] for k in kinds)}")
    return value


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) or (kind,)  # int | None -> int, None


def _typed(text: str, kinds: tuple[Any, ...]) -> Any:
    """What a person typed, as one of these kinds if it can be."""
    if text.lower() in WORDS and type(word := WORDS[text.lower()]) in kinds:
        return word
    for kind in (int, float):
        if kind in kinds:
            with suppress(ValueError):
                return kind(text)
    return text
