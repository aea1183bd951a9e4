"""Changes to a model that its config knows nothing of, by the types of its modules; a model directory lists them.

A change is a frozen dataclass of plain settings. `changed` makes those that config.json lists, `apply` makes one and
notes it in `model.changes`, `listed` is what to write. Those that are TAUGHT add parameters (`regard.core.added`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Protocol, get_args

from torch import nn

from regard.adaptation.adapters import Adapter
from regard.adaptation.ia3 import IA3, Biases
from regard.adaptation.lora import Lora
from regard.adaptation.prompts import Prefix, SoftPrompt
from regard.adaptation.prune import Prune
from regard.adaptation.recall import Neighbours
from regard.checks import choose, hint
from regard.core.added import called, frozen
from regard.core.quantised import bits_of, quantise


class Change(Protocol):
    """What is done to a model, in place: also to one without memory, whose names and shapes change likewise."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def apply(self, model: nn.Module) -> nn.Module:
        """The model changed; an error of one line if it does not fit."""


@dataclass(frozen=True)
class Int8:
    """Whole numbers of eight bits in every product and embedding: `regard.core.quantised`."""

    def apply(self, model: nn.Module) -> nn.Module:
        return quantise(model)


@dataclass(frozen=True)
class Int4:
    """Groups of four bits in the products between a model's two ends, and eight bits elsewhere."""

    def apply(self, model: nn.Module) -> nn.Module:
        return quantise(model, 4)


CHANGES: dict[str, type[Change]] = {
    "int8": Int8,
    "int4": Int4,
    "prune": Prune,
    "lora": Lora,
    "adapter": Adapter,
    "prompt": SoftPrompt,
    "prefix": Prefix,
    "ia3": IA3,
    "biases": Biases,
    "neighbours": Neighbours,
}
NAMES = {kind: name for name, kind in CHANGES.items()}
WHOLE: tuple[dict[str, Any], ...] = ({"int8": {}}, {"int4": {}})  # as they are listed, those that make whole numbers
TAUGHT = (Lora, Adapter, SoftPrompt, Prefix, IA3, Biases)  # what adds parameters, which alone learn
BESIDE = (*TAUGHT, Neighbours)  # what a model may have that only adds to another
PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}  # kinds of settings


def read(listed: Sequence[Mapping[str, Any]]) -> list[Change]:
    """The changes of a list such as [{"lora": {"rank": 4}}, {"int8": {}}]; each says what differs from its defaults.

    >>> read([{"lora": {"rnak": 4}}])
    Traceback (most recent call last):
    ValueError: the change lora has no setting 'rnak': did you mean 'rank'?
    """
    if not isinstance(listed, list | tuple) or not all(isinstance(each, dict) and len(each) == 1 for each in listed):
        raise ValueError(f"changes = {listed!r}: they are a list of objects with one name each, as [{{'int8': {{}}}}]")
    found = []
    for each in listed:
        ((name, settings),) = each.items()
        change, settings = choose("change", name, CHANGES), {} if settings is None else settings
        if not isinstance(settings, dict):
            raise ValueError(f"the change {name} has settings by name, not {settings!r}")
        known = {field.name: field for field in fields(change)}
        for key in settings:
            if key not in known:
                what = f": {hint(key, known)}" if known else ", nor any other"
                raise ValueError(f"the change {name} has no setting {key!r}{what}")
        for key, field in known.items():
            if key not in settings and field.default is MISSING:
                raise ValueError(f"the change {name} has no value for {key!r}: give it one")
            kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
            kind = next((each for each in PLAIN if each in kinds), None)
            if kind is not None and key in settings and not (settings[key] is field.default is None):
                _typed(f"{name}.{key}", settings[key], kind)
        found.append(change(**settings))
    return found


def _typed(key: str, value: Any, kind: type) -> None:
    """Refuse what is of another type; a whole number is a number."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{key} = {value!r}: expected {PLAIN[kind]}")


def changed(model: nn.Module, listed: Sequence[Mapping[str, Any]]) -> nn.Module:
    """The model with all changes of a list such as [{"prune": {"kept": {...}}}, {"int8": {}}], in this order.

    >>> model = changed(nn.Sequential(nn.Linear(4, 3)), [{"int8": {}}])
    >>> model.changes, type(model[0]).__name__
    ([Int8()], 'Int8Linear')
    """
    for change in read(listed):
        model = apply(change, model)
    return model


def apply(change: Change, model: nn.Module) -> nn.Module:
    """The model changed, and the change noted in it. Where it adds parameters, all others learn no more."""
    before: list[Change] = getattr(model, "changes", [])
    if isinstance(change, Lora | Adapter | IA3 | Biases) and change.name in map(_name, before):
        raise ValueError(f"there is something called {change.name!r} already: give each change a name of its own")
    model = change.apply(model)
    model.changes = [*before, change]  # type: ignore[assignment]
    return frozen(model) if isinstance(change, BESIDE) else model


def listed(model: nn.Module) -> list[dict[str, Any]]:
    """The changes of a model, as `changed` reads them; that it is quantised, it need not have noted."""
    changes: list[Change] = list(getattr(model, "changes", []))
    if (bits := bits_of(model)) is not None and not any(isinstance(change, Int8 | Int4) for change in changes):
        changes.append(Int4() if bits == 4 else Int8())
    return [{NAMES[type(change)]: _plain(asdict(change))} for change in changes]


def plain(listed: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The changes of a list that leave a model's numbers no whole ones."""
    return [each for each in listed if each not in WHOLE]


class Addition(NamedTuple):
    """Something that was added to a model, as a person is told of it."""

    name: str
    says: str  # lora r=8 on 12 matrices
    parameters: int


def additions(model: nn.Module) -> list[Addition]:
    """What was added to a model, change by change."""
    parts, found = called(model), list[Addition]()
    for change in getattr(model, "changes", []):
        if isinstance(change, BESIDE):
            name, of = _name(change), [part for _, part in parts[_name(change)]]
            says = change.says(sum(len(part.roles) for part in of))
            count = sum(p.numel() for p in {p for part in of for p in part.parameters()})
            plain = name in re.findall(r"\w+", says)  # it is called what it is
            found.append(Addition(name, says if plain else f"{name}: {says}", count))
    return found


def amounts(model: nn.Module, name: str) -> list[tuple[str, str, float | None]]:
    """Of a change by this name, what it changes: the path of a module, a role in it, |ΔW| / |W| where it is known."""
    return [
        (place, role, float(sizes[role]) if role in sizes and sizes[role].isfinite() else None)  # of zeros nothing
        for place, part in called(model)[name]
        for sizes in [part.amounts(model.get_submodule(place))]
        for role in part.roles
    ]


def _name(change: Change) -> str:
    """By which its tensors are called."""
    return str(getattr(change, "name", NAMES[type(change)]))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON gives it back."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def settled(model: nn.Module) -> nn.Module:
    """The model as it is kept, in place: without what only served to teach it."""
    changes: list[Change] = getattr(model, "changes", [])
    model.changes = [change.settled(model) if isinstance(change, Prefix) else change for change in changes]  # type: ignore[assignment]
    return model
