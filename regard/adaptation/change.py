"""Changes to a model that its config knows nothing of, by the types of its modules; a model directory lists them.

A change is a frozen dataclass of plain settings. `changed` makes those that config.json lists, `apply` makes one and
notes it in `model.changes`, `listed` is what to write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

from torch import nn

from regard.adaptation.prune import Prune
from regard.checks import choose
from regard.core.quantised import is_quantised, quantise


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


CHANGES: dict[str, type[Change]] = {"int8": Int8, "prune": Prune}


def changed(model: nn.Module, listed: Sequence[Mapping[str, Any]]) -> nn.Module:
    """The model with all changes of a list such as [{"prune": {"kept": {...}}}, {"int8": {}}], in this order.

    >>> model = changed(nn.Sequential(nn.Linear(4, 3)), [{"int8": {}}])
    >>> model.changes, type(model[0]).__name__
    ([Int8()], 'Int8Linear')
    """
    if not isinstance(listed, list) or not all(isinstance(each, dict) and len(each) == 1 for each in listed):
        raise ValueError(f"changes = {listed!r}: they are a list of objects with one name each, as [{{'int8': {{}}}}]")
    for each in listed:
        ((name, settings),) = each.items()
        kind = choose("change", name, CHANGES)
        known = {field.name for field in fields(kind)}
        if not isinstance(settings, dict) or settings.keys() != known:
            raise ValueError(f"the change {name!r} has the settings {{{', '.join(known)}}}, not {settings!r}")
        model = apply(kind(**settings), model)
    return model


def apply(change: Change, model: nn.Module) -> nn.Module:
    """The model changed, and the change noted in it."""
    before: list[Change] = getattr(model, "changes", [])
    model = change.apply(model)
    model.changes = [*before, change]  # type: ignore[assignment]
    return model


def listed(model: nn.Module) -> list[dict[str, Any]]:
    """The changes of a model, as `changed` reads them; that it is quantised, it need not have noted."""
    names = {kind: name for name, kind in CHANGES.items()}
    changes: list[Change] = list(getattr(model, "changes", []))
    if is_quantised(model) and Int8() not in changes:
        changes.append(Int8())
    return [{names[type(change)]: asdict(change)} for change in changes]
