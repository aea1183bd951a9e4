"""What a table is: plain text, which is read in both directions.

A line of `settings` is one of ours, the names of theirs that say it, which must agree, and after a colon which values
of theirs are which of ours, if they are not the same: `swish>silu`; * is any value, and stands for the same in ours. Of
several lines for one setting the last counts. A dot leads into an object or a list, | is followed by an older name, -N
says that ours is so much less, = is followed by what stands for a name that is missing: a value as in JSON, or a number
times another name.

A line of `tensors` is a name of ours, theirs, and words. @ is encoder and decoder, # the number of a layer, * weight
and bias; {a,b} are several of theirs that are one of ours, one below the other, and where {a,,b} has a gap they have
none and ours is 0; | another name where theirs may be found: tied tensors are written once, under the first name that
all of them have. Words, which may have a number, or a setting that is one:

transposed      inputs before outputs
offset:N        N rows come before the first of ours
row             a vector is a matrix of one row
flat            a matrix of one row is a vector, and a vector of one number is a number
folded:N        their second dimension, of N, and third are one of ours
even            of queries, keys and values as many, whatever heads the config has
optional        it may be missing, and is then 0
ours            it is there if ours is
spare           it must be there, though nothing reads it
gated, plain    of a feed-forward network with a gate, or without
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MARKS = {"pad": "pad_token_id?", "bos": "bos_token_id", "eos": "eos_token_id"}  # ours -> theirs; with ?, maybe none
BRACKETS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ANGLES = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}


@dataclass(frozen=True)
class Top:
    """What one of their classes has on the features. How many classes or tags it has, its labels say."""

    name: str  # of the class
    fixed: dict[str, Any] = field(default_factory=dict)  # of our HeadConfig
    tensors: str = ""
    settings: str = ""
    base: str = ""  # before the names of all others, if it is not that of the table


@dataclass(frozen=True)
class Foreign:
    """A model of theirs."""

    name: str  # its model_type
    family: str  # of ours
    tops: tuple[Top, ...]  # of two that fit, the first
    settings: str
    fixed: dict[str, Any]  # of our settings, what theirs always are
    tensors: str
    base: str = ""  # before the name of each tensor that is not the top's, unless nothing is on top
    constant: dict[str, Any] = field(default_factory=dict)  # of their settings, what ours always are
    marks: Mapping[str, str] = field(default_factory=lambda: MARKS)
    special: Mapping[str, str] = field(default_factory=dict)  # marks by the names that they have unless a file says so
    around: str = ""  # a text: its end after it; or a frame, cls and sep; free: whatever a task puts there
    permuted: bool = False  # in their residual stream sines come first, then cosines; ours alternate
    task: str = ""  # what it is for, if its head does not say
    out: bool = True  # whether a model of ours can be written so: Hugging Face has such a class

    @property
    def words(self) -> bool:
        """Whether it has any, and so a tokenizer."""
        return "vocabulary" in settings(self.settings)

    @property
    def sees(self) -> bool:
        """Whether it reads pictures, and so is told how to look at them."""
        return "patch" in settings(self.settings)


class Name(NamedTuple):
    """What says a setting of ours."""

    keys: list[str]  # of theirs, the newest first
    more: int  # theirs is so much more than ours
    default: str  # what stands for one that is missing; nothing: it must be there


class Setting(NamedTuple):
    """A line of settings."""

    names: list[Name]
    values: list[tuple[list[Any], Any]]  # theirs, one for each name, and ours; none: they are the same


def settings(text: str) -> dict[str, Setting]:
    """Lines of a table, by settings of ours."""
    found = {}
    for line in filter(None, text.split("\n")):
        ours, theirs = line.split(maxsplit=1)
        names, _, values = theirs.partition(": ")
        which = [([_value(each) for each in its.split(",")], _value(own or its)) for its, own in _cut(values, ">")]
        found[ours] = Setting([_name(*name) for name in _cut(names, "=")], which)
    return found


def _cut(words: str, at: str) -> Iterator[tuple[str, str]]:
    return ((before, after) for before, _, after in (word.partition(at) for word in words.split()))


def _name(keys: str, default: str) -> Name:
    names, _, more = keys.partition("-")
    return Name(names.split("|"), int(more or 0), default)


def _value(word: str) -> Any:
    number = int(word) if word.removeprefix("-").isdecimal() else word
    return {"true": True, "false": False, "null": None}.get(word, number)


class Counterpart(NamedTuple):
    """A tensor of ours, and those of theirs that make it, under each of their names."""

    ours: str
    theirs: list[list[str]]
    words: dict[str, str]  # with their numbers


def pairs(tensors: str, names: Iterable[str]) -> Iterator[Counterpart]:
    """The lines of a table for a model whose tensors have these names."""
    known = list(names)
    for line in filter(None, tensors.split("\n")):
        for stack in ("encoder", "decoder") if "@" in line else ("",):
            ours, theirs, *words = line.replace("@", stack).split()
            before, layered, _ = ours.partition("#")
            layers = {name.removeprefix(before).split(".")[0] for name in known if name.startswith(before)}
            for layer in sorted(layers, key=int) if layered else ("",):
                for part in ("weight", "bias") if "*" in ours else ("",):
                    own, *others = (x.replace("#", layer).replace("*", part) for x in (ours, *theirs.split("|")))
                    yield Counterpart(own, [_braces(other) for other in others], dict(_cut(" ".join(words), ":")))


def _braces(name: str) -> list[str]:
    before, brace, rest = name.partition("{")
    some, _, after = rest.partition("}")
    return [each and f"{before}{each}{after}" for each in some.split(",")] if brace else [name]


def told(rules: Mapping[str, Setting], about: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings, for theirs."""
    found = {}
    for ours, (names, values) in rules.items():
        its = [_get(about, name) for name in names]
        words = " and ".join(f"{name.keys[0]} = {value!r}" for name, value in zip(names, its, strict=True))
        its = [x - name.more if name.more and type(x) is int else x for name, x in zip(names, its, strict=True)]
        fits = [
            (theirs, own)
            for theirs, own in values
            if all(a == b or (a == "*" and b is not None) for a, b in zip(theirs, its, strict=True))
        ]
        if values and not fits:
            known = dict.fromkeys(",".join(map(str, theirs)) for theirs, _ in values)
            raise ValueError(f"{words} cannot be expressed, only {', '.join(known)}")
        if not values and any(other != its[0] for other in its):
            raise ValueError(f"{words} differ, which regard cannot express")
        theirs, found[ours] = fits[0] if fits else ([], its[0])
        for star in (b for a, b in zip(theirs, its, strict=False) if a == "*"):
            found[ours] = found[ours].replace("*", str(star), 1)
    return found


def _get(about: Mapping[str, Any], name: Name) -> Any:
    """What they say under a name, or what stands for it."""
    value = next((found for key in name.keys if (found := at(about, key)) is not None), None)
    if value is not None:
        return value
    if not name.default:
        raise ValueError(f"it has no {name.keys[0]}")
    times, several, other = name.default.partition("*")
    return int(times) * _get(about, Name([other], 0, "")) if several else json.loads(name.default)


def at(about: Any, key: str) -> Any:
    """What stands under a key with dots; None if nothing does."""
    for name in key.split("."):
        if isinstance(about, list) and name.isdecimal():
            about = dict(enumerate(about)).get(int(name))
        else:
            about = about.get(name) if isinstance(about, Mapping) else None
    return about


def said(text: str, own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Their settings, for ours."""
    for ours, (names, values) in settings(text).items():
        value = own[ours]
        fits = [(theirs, stars) for theirs, pattern in values if (stars := _stars(pattern, value)) is not None]
        theirs, stars = fits[0] if fits else ([value] * len(names), [])
        if (values and not fits) or (value is None and not values and not all(name.default for name in names)):
            known = ", ".join(dict.fromkeys(repr(each) for _, each in values)) or "a number"
            raise ValueError(f"Hugging Face cannot express {ours} = {value!r}, only {known}")
        for name, each in zip(names, theirs, strict=True):
            its = stars.pop(0) if each == "*" else each
            yield name.keys[0], its + name.more if name.more and its is not None else its


def _stars(pattern: Any, value: Any) -> list[Any] | None:
    """What stands in a value for each * of a pattern; None if it does not fit."""
    if not isinstance(pattern, str) or "*" not in pattern:
        return [] if pattern == value else None
    found = re.fullmatch(re.escape(pattern).replace(r"\*", r"([\d.e+-]+)"), str(value))
    return [json.loads(each) for each in found.groups()] if found else None
