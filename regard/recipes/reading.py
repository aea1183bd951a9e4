"""Recipes as YAML, checked against the dataclasses that they fill.

    data:  {corpus: multi30k-en-de}
    model: {preset: tiny, dropout: 0.3}
    train: {minutes: 15}

Text becomes plain values, each with the place it was written at; `section.key=value` overrides are laid over them;
pydantic then makes the dataclasses. What is wrong is told in one line that begins with the place.
"""

import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, field, fields, is_dataclass, make_dataclass
from functools import cache, reduce
from importlib.resources import files
from operator import getitem
from os.path import expanduser
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import yaml  # type: ignore[import-untyped]
from pydantic import TypeAdapter, ValidationError

from regard.checks import described, hint
from regard.data.text import NO_TEXT, decoded
from regard.files import read_whole
from regard.models.family import FAMILIES, NAMES, configure, family, presets
from regard.recipes.recipe import ANY, BEGUN, FROM_TOKENS, ModelConfig, Recipe, begun, family_named, keys_of
from regard.tasks.task import FIRST, TASKS, in_force, task
from regard.training.config import LENGTHS

SHIPPED = files("regard") / "recipes" / "shipped"
SPLITS = ("train", "valid", "test")
# The settings of a split that name files.
PATHS = ("source", "target", "tsv", "csv", "jsonl", "json", "text", "conll", "squad", "folder", "zip", "npz", "idx")
LARGEST = 2**16  # bytes; the longest of those shipped, written out, has a thirtieth of that
DEEPEST = 20  # lists or mappings in each other; it keeps recursion short
# Several answers to one question: an override of a key drops these beside it.
REPLACES: dict[tuple[str, ...], tuple[str, ...]] = {
    **{("train", key): tuple(other for other in LENGTHS if other != key) for key in LENGTHS},
    ("data", "corpus"): SPLITS,
    ("data", "train"): ("corpus",),
}
# YAML 1.1 would read 1e-3 as text, 010 as eight, and no (Norwegian) as false.
INT = re.compile(r"[-+]?[0-9][0-9_]{0,99}\Z")
FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z")
BREAKS = re.compile("[\x85\u2028\u2029]")
WORDS = {"": None, "~": None, "null": None, "true": True, "True": True, "false": False, "False": False}

Place = tuple[str, ...]  # of a value in a recipe: ("train", "steps")
Lines = dict[Place, str]  # where it is written: my.yaml:7, or an override


def load(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name, as shipped, or in that .yaml file, with overrides such as train.steps=100.

    Relative paths of data in a file start from the file's folder; in an override and in a shipped recipe, from the
    current directory. The recipe holds them absolute.
    """
    path = Path(name_or_path)
    own = path.suffix in (".yaml", ".yml")
    if not (path.exists() if own else name_or_path in shipped()):
        raise ValueError(
            f"there is no {'file' if own else 'recipe'} {name_or_path!r}: {hint(path.stem, shipped())} "
            "(`regard recipes` lists them; your own is a file that ends in .yaml)"
        )
    name = name_or_path if own else f"{name_or_path}.yaml"
    values, lines = _read(read_whole(path, LARGEST) if own else (SHIPPED / name).read_bytes(), name)
    _from_folder(path.parent if own else Path(), values)
    _without_repetition(values.get("model"))
    for text in overrides:
        _override(values, lines, text)
    _from_folder(Path(), values)
    about = values.get("task")
    named = about.get("name", FIRST) if isinstance(about, dict) else FIRST
    if named not in TASKS:
        place = lines.get(("task", "name"), name)
        raise ValueError(f"{place}: unknown task {_show(named)}: {hint(str(named), TASKS)}")
    if "decode" in values:
        values["decode"] = in_force(values["decode"], task(named).sections.decode)
    try:  # as JSON: there a list may fill a tuple, strictly
        found = _adapter(named, *FAMILIES).validate_json(json.dumps(values))
    except ValidationError as error:
        raise ValueError(_explain(error, values, lines, named)) from None
    return Recipe(**{each.name: getattr(found, each.name) for each in fields(Recipe)})


def shipped() -> dict[str, str]:
    """The recipes that come with regard: name -> description."""
    recipes = {file.name: file for file in SHIPPED.iterdir() if file.name.endswith(".yaml")}
    return {
        name.removesuffix(".yaml"): str(_read(recipes[name].read_bytes(), name)[0].get("description", ""))
        for name in sorted(recipes)
    }


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, complete: every key with its value. Loading it gives an equal recipe."""
    return str(yaml.dump(recipe.settings(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def schema() -> dict[str, Any]:
    """The JSON Schema of recipes, by which an editor completes keys and shows what each is for."""
    one, *others = ({**_adapter(name, *FAMILIES).json_schema(), "title": name} for name in TASKS)
    models = [family(name).config for name in FAMILIES]
    for name, found in zip(TASKS, (one, *others), strict=True):
        sections = {"Recipe": found, **found["$defs"]}
        ways = found["properties"]["model"]["oneOf"]  # each family by a preset, and then each as begun with another
        sections |= zip((kind.__name__ for kind in models), ways, strict=False)
        other_ways = dict(zip((kind.__name__ for kind in models), ways[len(models) :], strict=True))
        kinds: list[Any] = [Recipe, *models, *_dataclasses(_made(name))]
        for kind in kinds:
            for known in (sections.get(kind.__name__, {}), other_ways.get(kind.__name__, {})):
                settings = known.get("properties", {})
                for key, comment in described(kind).items():
                    if key in settings:
                        settings[key]["description"] = comment
    return {**one, "anyOf": [{"$ref": "#"}, *others]} if others else one


def _dataclasses(kind: Any) -> Iterator[type[Any]]:
    """Those that a dataclass is made of."""
    for each in get_type_hints(kind).values():
        for member in get_args(each) or (each,):
            if is_dataclass(member) and isinstance(member, type) and member is not ModelConfig:
                yield member
                yield from _dataclasses(member)


@cache
def _made(name: str) -> type[Recipe]:
    """The recipes of a task, with its own sections."""
    own = task(name).sections
    sections: list[Any] = [("data", own.data)]
    sections += [(key, kind, field(default_factory=kind)) for key, kind in own._asdict().items() if key != "data"]
    return make_dataclass("Recipe", sections, bases=(Recipe,), frozen=True, kw_only=True)


@cache
def _adapter(name: str, *families: str) -> TypeAdapter[Recipe]:
    """What checks the recipes of a task, whose models are of these families."""
    return TypeAdapter(_made(name))


def _read(data: bytes, name: str) -> tuple[dict[str, Any], Lines]:
    """What a file says, and for each key the line that says it, `name:7`."""
    values, lines = _parse(decoded(data, f"{name}:"), lambda line: f"{name}:{line}")
    if not isinstance(values, dict):
        got = "the file is empty" if values is None else f"got {_show(values)}"
        keys = ", ".join(each.name for each in fields(Recipe))
        raise ValueError(f"{name}: a recipe is a mapping with keys {keys}; {got}")
    return values, {(): name, **lines}


def _parse(text: str, at: Callable[[int], str]) -> tuple[Any, Lines]:
    """The value that YAML text says, and the line of each key in it as `at(line number)`."""
    lines: Lines = {}
    depth = 0
    try:
        for event in yaml.parse(text, yaml.BaseLoader):
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                line = at(event.start_mark.line + 1)
                raise ValueError(f"{line}: a recipe has no anchors, aliases or tags (& * !): quote it, or write it out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(f"{at(event.start_mark.line + 1)}: no part of a recipe lies as deep as this")
        node = yaml.compose(text, yaml.BaseLoader)
        return None if node is None else _value(node, (), lines, at), lines
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"{at(mark.line + 1)}: not YAML at column {mark.column + 1}: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = at(1 + text.count("\n", 0, error.position))
        code = f"U+{ord(text[error.position]):04X}"
        raise ValueError(f"{line}: not YAML: the character {code} may not be in it") from None


def _value(node: Any, place: Place, lines: Lines, at: Callable[[int], str]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        if NO_TEXT.search(node.value):
            raise ValueError(f"{at(node.start_mark.line + 1)}: a text holds NUL or half a character: remove it")
        return node.value if node.style else _scalar(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, place, {}, at) for item in node.value]
    mapping: dict[str, Any] = {}
    for key, value in node.value:
        line = at(key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{line}: a key is a name, as in `steps: 100`")
        if key.value in mapping:
            raise ValueError(f"{line}: duplicate key {key.value!r}: keep one of the two")
        lines[(*place, key.value)] = line
        mapping[key.value] = _value(value, (*place, key.value), lines, at)
    return mapping


def _scalar(text: str) -> str | float | bool | None:
    """
    >>> [_scalar(text) for text in ("no", "1e-3", "100_000", "true", "2016-flickr")]
    ['no', 0.001, 100000, True, '2016-flickr']
    """
    if text in WORDS:
        return WORDS[text]
    if INT.match(text):
        return int(text.replace("_", ""))
    return float(text) if FLOAT.match(text) else text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Mappings down the page, lists across it."""

    def represent_sequence(self, tag: str, sequence: Iterable[Any], flow_style: bool | None = None) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=True)

    def represent_str(self, text: str) -> Any:
        # PyYAML writes U+0085 and its like as they are, and then reads them as the end of a line.
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if BREAKS.search(text) else None)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, _Dumper.represent_str)
for _tag, _pattern in (("int", INT), ("float", FLOAT)):  # so that a text like 1e-3 is written in quotes
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list("-+.0123456789"))


def _from_folder(folder: Path, values: dict[str, Any]) -> None:
    """Make relative paths of data absolute."""
    data = values.get("data")
    for split in SPLITS:
        files = data.get(split) if isinstance(data, dict) else None
        for key in PATHS:
            if isinstance(files, dict) and isinstance(named := files.get(key), str | list) and named:
                files[key] = _absolute(folder, named)
    model = values.get("model")
    for key in ("from", "sees") if isinstance(model, dict) else ():
        if isinstance(base := model.get(key), str) and base:  # type: ignore[union-attr]
            model[key] = _absolute(folder, base)  # type: ignore[index]
    distil = values.get("distil")
    if isinstance(distil, dict) and isinstance(teacher := distil.get("teacher"), str) and teacher:
        distil["teacher"] = _absolute(folder, teacher)
    task = values.get("task")
    if isinstance(task, dict) and str(template := task.get("template")).endswith(".jinja"):
        task["template"] = _absolute(folder, template)
    if isinstance(task, dict) and isinstance(reward := task.get("reward"), str) and reward:
        task["reward"] = _absolute(folder, reward)


def _absolute(folder: Path, named: Any) -> Any:
    if isinstance(named, list):
        return [_absolute(folder, name) for name in named]
    return str(Path(folder, expanduser(named)).absolute()) if isinstance(named, str) else named


def _without_repetition(model: Any) -> None:
    """Drop what a model has of its preset anyway: `dump` writes it, and it must not outlive model.preset=big."""
    if not isinstance(model, dict):
        return
    own: Any = None
    if isinstance(base := model.get("from"), str):
        with suppress(ValueError):
            own = begun(base, model.get("sees"))
    elif (preset := str(model.get("preset", ModelConfig.preset))) in presets():
        own = configure(preset, vocabulary=ANY)
    if own is not None:
        known = keys_of(family_named(model))
        for key, value in asdict(own).items():
            if key in known and key in model and (type(model[key]), model[key]) == (type(value), value):
                del model[key]


def _override(values: dict[str, Any], lines: Lines, text: str) -> None:
    """Lay `section.key=value` over what a file says."""
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"override {text!r}: write section.key=value, as in train.steps=1000")
    keys, line = tuple(path.split(".")), f"override {text}"
    new, inner = _parse(value, lambda _: line)
    model = values.get("model")
    another = keys == ("model", "from") or (
        keys == ("model", "preset")
        and isinstance(model, dict)
        and ("from" in model or family_named({"preset": new}) != family_named(model))
    )
    if another and isinstance(model, dict):
        for key in [key for key in model if not lines.get(("model", key), "").startswith("override ")]:
            if key != "sees" or keys == ("model", "preset"):
                del model[key]  # what the file says is about another model
    section = values
    for i, key in enumerate(keys, start=1):
        for other in REPLACES.get(keys[:i], ()) if new is not None else ():
            section.pop(other, None)
        if i < len(keys) and not isinstance(section.get(key), dict):
            section[key], lines[keys[:i]] = {}, line
        elif i == len(keys):
            section[key] = new
        section = section[key]
    lines.update({(*keys, *place): line for place in ((), *inner)})


def _explain(error: ValidationError, values: dict[str, Any], lines: Lines, named: str) -> str:
    """The first mistake in one line: where it is, what it is, and what to do."""
    order, family = list(lines), family_named(values.get("model"))
    mistakes = []
    for problem in error.errors(include_url=False):
        place = tuple(key for key in problem["loc"] if isinstance(key, str))  # a list is taken as a whole
        if place[:1] == ("model",) and place[1:2] in (
            (family,),
            (family + BEGUN,),
        ):  # which is no key, but says how the model was read
            place = ("model", *place[2:])
        mistakes.append((_written(place, lines), place, problem))
    written, place, problem = min(mistakes, key=lambda mistake: (mistake[0] == (), order.index(mistake[0])))
    name, kind = ".".join(place), problem["type"]
    if kind == "value_error":  # of a __post_init__, which knows no lines, but mostly names the key or its value
        message = str(problem["ctx"]["error"])
        words = re.findall(r"[\w-]+", message.partition(":")[0])
        section = reduce(getitem, place, values)
        named_in = [_written((*place, key), lines) for key in section if key in words or section[key] in words]
        written = min(named_in, key=lambda key: not lines[key].startswith("override "), default=written)
        prefix = f"{name}{'.' if words and words[0] in section else ': '}" if place and place[0] not in words else ""
        return f"{lines[written]}: {prefix}{message}"
    if kind == "missing" and len(place) == 1:
        return f"{lines[written]}: the section {name!r} is missing"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        key, keys = place[-1], _settings(_kind(place[:-1], family, named), family)
        if place[0] == "model" and key in FROM_TOKENS:
            return f"{lines[written]}: {name} comes from the tokens: leave it out"
        inside = f" in {name.removesuffix(f'.{key}')}" if len(place) > 1 else ""
        if owner := next((other for other in TASKS if other != named and _known(place, family, other)), None):
            return f"{lines[written]}: {name} is for the task {owner}, and this recipe's is {named}: leave it out"
        return f"{lines[written]}: unknown key {key!r}{inside}; {hint(key, keys)}"
    wanted, value = _kind(place, family, named), reduce(getitem, place, values)
    quotes = "; put it in quotes" if wanted is str and isinstance(value, bool | int | float) else ""
    return f"{lines[written]}: {name}: expected {_expected(wanted)}, got {_show(value)}{quotes}"


def _written(place: Place, lines: Lines) -> Place:
    """The innermost of what holds a place that has a line."""
    return next(place[:n] for n in range(len(place), -1, -1) if place[:n] in lines)


def _settings(kind: Any, family: str = "") -> dict[str, Any]:
    """The keys of a section and their types; of a model, those of its family."""
    return {"preset": str, "from": str, "sees": str, **keys_of(family)} if kind is ModelConfig else get_type_hints(kind)


def _known(place: Place, family: str, named: str) -> bool:
    """Whether something may stand at a place in a recipe of a task."""
    try:
        return bool(_kind(place, family, named))
    except (KeyError, TypeError):
        return False


def _kind(place: Place, family: str, named: str) -> Any:
    """The type of what stands at a place, None aside."""
    kind: Any = _made(named)
    for key in place:
        kind = _settings(kind, family)[key]
        if isinstance(kind, UnionType):
            kind = next(member for member in get_args(kind) if member is not NoneType)
    return kind


def _expected(kind: Any) -> str:
    """
    >>> _expected(tuple[str, int])
    '[text, a whole number]'
    """
    if members := get_args(kind):
        return f"[{', '.join(map(_expected, members))}]"
    return NAMES.get(kind, "a mapping (key: value)")


def _show(value: Any) -> str:
    if value is None or isinstance(value, bool | dict):
        return "nothing" if value is None else "a mapping" if isinstance(value, dict) else str(value).lower()
    return reprlib.repr(value)
