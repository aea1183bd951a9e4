"""A recipe: YAML that says everything about a training run, checked against the dataclasses it fills.

    data:  {corpus: multi30k-en-de}
    model: {preset: tiny, dropout: 0.3}
    train: {minutes: 15}

Text becomes plain values, each with the place it was written at; `section.key=value` overrides are laid over them;
pydantic then makes the dataclasses. What is wrong is told in one line that begins with the place.
"""

import inspect
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cache, reduce
from importlib.resources import files
from operator import getitem
from os.path import expanduser
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import yaml  # type: ignore[import-untyped]
from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from regard.data.text import NO_TEXT, PairFiles
from regard.data.tokenizers import TokensConfig
from regard.files import read_whole
from regard.models.family import FAMILIES, NAMES, family, family_of, presets
from regard.training.config import LENGTHS, TrainConfig
from regard.training.optimisers import OptimiserConfig
from regard.training.schedules import ScheduleConfig

SHIPPED = files("regard") / "recipes" / "shipped"
SPLITS = ("train", "valid", "test")
ORDERS = ("forward", "backward")
PATHS = ("source", "target", "tsv", "jsonl")  # the settings of PairFiles that name a file
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "spm", "flores101", "flores200", "none")
LARGEST = 2**16  # bytes; the longest of those shipped, written out, has a thirtieth of that
DEEPEST = 20  # lists or mappings in each other; it keeps recursion short
ANY = 2**16  # a vocabulary, where the true one is not known yet and does not matter
FROM_TOKENS = ("vocabulary", "source_vocabulary", "pad")  # what a model has of its tokens
MODEL = {  # the settings of each family
    name: {key: kind for key, kind in get_type_hints(family(name).config).items() if key not in FROM_TOKENS}
    for name in FAMILIES
}
PRESETS = presets()
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


def _at_least(low: int, config: object, section: str, *names: str) -> None:
    for name in names:
        if (value := getattr(config, name)) is not None and not value >= low:
            raise ValueError(f"{section}.{name} = {value}: it must be at least {low}")


@dataclass(frozen=True)
class DataConfig:
    """Where the sentences come from: a corpus by its name, or files."""

    corpus: str | None = None  # a name that `regard data` lists; or give train
    train: PairFiles | None = None  # your own files
    valid: PairFiles | None = None  # held out of train if left out
    test: PairFiles | None = None  # held out of train if left out
    languages: tuple[str, str] = ("", "")  # source and target, for display only: [en, de]
    hold_out: int = 1000  # sentences kept from training where valid or test is not given
    max_length: int = 256  # sub-words of a side; longer pairs are skipped and counted
    limit: int | None = None  # use only the first so many training pairs
    target_order: str = "forward"  # or backward: the target is written from its end, for a second opinion on outputs

    def __post_init__(self) -> None:
        if self.target_order not in ORDERS:
            raise ValueError(f"data.target_order = {self.target_order!r}: choose {' or '.join(ORDERS)}")
        if (self.corpus is None) == (self.train is None):
            raise ValueError("data: give exactly one of corpus (a name) and train (your files)")
        _at_least(1, self, "data", "hold_out", "max_length", "limit")


@dataclass(frozen=True)
class ModelConfig:
    """A preset, which is of some family of models, and what differs from it; in YAML both stand side by side.

    >>> ModelConfig("tiny", {"positions": "rope", "heads": 4}).changes  # 4 heads are tiny's own
    {'positions': 'rope'}
    >>> ModelConfig("tiny", {"dropout": 0.3}).build(vocabulary=8000).dropout
    0.3
    """

    preset: str = "small"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_preset(self.preset)
        for key in FROM_TOKENS:
            if key in self.changes:
                raise ValueError(f"model.{key} comes from the tokens: leave it out")
        full = self.build(ANY)  # checks the changes
        own = PRESETS[self.preset](ANY)
        keys = MODEL[family_of(self.preset)]
        changed = {key: getattr(full, key) for key in keys if getattr(full, key) != getattr(own, key)}
        object.__setattr__(self, "changes", changed)

    def build(self, vocabulary: int) -> Any:
        """The config of a model over so many tokens."""
        return PRESETS[self.preset](vocabulary, **self.changes)

    def settings(self) -> dict[str, Any]:
        """Every key with its value, as in YAML."""
        full = self.build(ANY)
        return {"preset": self.preset, **{key: getattr(full, key) for key in MODEL[family_of(self.preset)]}}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Side by side in YAML, apart in the dataclass; the preset says which keys there are."""

        def of(family: str) -> CoreSchema:
            presets = [name for name in PRESETS if family_of(name) == family]
            needed = cls.preset not in presets  # without it, the model is of the default preset's family
            settings = {"preset": core_schema.typed_dict_field(core_schema.literal_schema(presets), required=needed)}
            for key, kind in MODEL[family].items():
                settings[key] = core_schema.typed_dict_field(handler.generate_schema(kind), required=False)
            return core_schema.typed_dict_schema(settings, extra_behavior="forbid")

        def checked(given: Any) -> Any:
            if isinstance(given, dict) and isinstance(given.get("preset"), str):
                _check_preset(given["preset"])
            if isinstance(given, dict) and given.get("kept_heads") == "":  # as every recipe of an older regard says
                given = {key: value for key, value in given.items() if key != "kept_heads"}
            return given

        families = core_schema.tagged_union_schema({name: of(name) for name in FAMILIES}, _family)
        return core_schema.no_info_after_validator_function(
            lambda given: cls(given.pop("preset", cls.preset), given),
            core_schema.no_info_before_validator_function(checked, families),
        )


def _check_preset(preset: str) -> None:
    if preset not in PRESETS:
        raise ValueError(f"model.preset = {preset!r}: choose one of {', '.join(PRESETS)}")


def _family(model: Any) -> str:
    """The family of what stands under `model`, be it right or wrong."""
    preset = model.get("preset") if isinstance(model, dict) else None
    return family_of(preset if isinstance(preset, str) and preset in PRESETS else ModelConfig.preset)


@dataclass(frozen=True)
class DecodeConfig:
    """How a text is read, and how its translation is searched for (§6.1)."""

    beam: int = 4  # hypotheses kept; 1: greedy
    alpha: float = 0.6  # length penalty; 0: off
    extra: int = 50  # an output has at most this many tokens more than its input
    split: bool | None = None  # read sentence by sentence; left out: unless most training lines have several
    stops: bool | None = None  # no full stop where the input has none; left out: if training pairs have it so

    def __post_init__(self) -> None:
        _at_least(1, self, "decode", "beam", "extra")
        _at_least(0, self, "decode", "alpha")


@dataclass(frozen=True)
class EvaluateConfig:
    """How translations are scored, in sacreBLEU's terms."""

    tokenize: str = "13a"  # none, for text that is tokenised already
    lowercase: bool = False  # before comparing

    def __post_init__(self) -> None:
        if self.tokenize not in TOKENIZERS:
            raise ValueError(f"evaluate.tokenize = {self.tokenize!r}: choose one of {', '.join(TOKENIZERS)}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run."""

    description: str = ""  # one line, for people
    data: DataConfig  # where the sentences come from
    tokens: TokensConfig = field(default_factory=TokensConfig)  # how text becomes sub-words
    model: ModelConfig = field(default_factory=ModelConfig)  # what is trained
    train: TrainConfig  # how it is trained
    decode: DecodeConfig = field(default_factory=DecodeConfig)  # how a translation is searched for
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)  # how translations are scored

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # here and in every section

    def __post_init__(self) -> None:
        if self.data.target_order == "backward" and self.tokens.dropout:
            raise ValueError("tokens.dropout is for text that is read forward: set it to 0 for target_order backward")
        model = self.model.build(ANY)
        longest = model.longest
        if longest is not None and longest <= self.data.max_length:  # an end is added to each side
            raise ValueError(
                f"model.max_length = {longest}: what is learned of each position must reach further than "
                f"data.max_length = {self.data.max_length}"
            )


def load(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name, as shipped, or in that .yaml file, with overrides such as train.steps=100.

    Relative paths of data in a file start from the file's folder; in an override and in a shipped recipe, from the
    current directory. The recipe holds them absolute.
    """
    path = Path(name_or_path)
    own = path.suffix in (".yaml", ".yml")
    if not (path.exists() if own else name_or_path in shipped()):
        names = list(shipped())
        near = get_close_matches(path.stem, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"there is no {'file' if own else 'recipe'} {name_or_path!r}: {hint}"
            f"The recipes shipped are {', '.join(names)}; your own is a file that ends in .yaml"
        )
    name = name_or_path if own else f"{name_or_path}.yaml"
    values, lines = _read(read_whole(path, LARGEST) if own else (SHIPPED / name).read_bytes(), name)
    _from_folder(path.parent if own else Path(), values)
    _without_repetition(values.get("model"))
    for text in overrides:
        _override(values, lines, text)
    _from_folder(Path(), values)
    try:
        return _adapter().validate_json(json.dumps(values))  # as JSON, for there a list may fill a tuple, strictly
    except ValidationError as error:
        raise ValueError(_explain(error, values, lines)) from None


def imported_decode(directory: Path) -> DecodeConfig:
    """How to search with a model that has no recipe, as `regard import` has noted it."""
    path = directory / "decode.json"
    if not path.exists():
        return DecodeConfig()
    try:
        return DecodeConfig(**json.loads(read_whole(path, LARGEST)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: mend or remove it") from None


def shipped() -> dict[str, str]:
    """The recipes that come with regard: name -> description."""
    recipes = {file.name: file for file in SHIPPED.iterdir() if file.name.endswith(".yaml")}
    return {
        name.removesuffix(".yaml"): str(_read(recipes[name].read_bytes(), name)[0].get("description", ""))
        for name in sorted(recipes)
    }


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, complete: every key with its value. Loading it gives an equal recipe."""
    values = {**asdict(recipe), "model": recipe.model.settings()}
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def schema() -> dict[str, Any]:
    """The JSON Schema of recipes, by which an editor completes keys and shows what each is for."""
    result = _adapter().json_schema()
    models = [family(name).config for name in FAMILIES]
    sections = {"Recipe": result, **result["$defs"]}
    sections |= zip((kind.__name__ for kind in models), result["properties"]["model"]["oneOf"], strict=True)
    kinds = (Recipe, DataConfig, PairFiles, TokensConfig, *models, TrainConfig, OptimiserConfig)
    for kind in (*kinds, ScheduleConfig, DecodeConfig, EvaluateConfig):
        settings = sections[kind.__name__]["properties"]
        for key, comment in re.findall(r"^    (\w+): [^#\n]+# (.+)$", inspect.getsource(kind), re.MULTILINE):
            if key in settings:
                settings[key]["description"] = comment
    return result


@cache
def _adapter() -> TypeAdapter[Recipe]:
    return TypeAdapter(Recipe)


def _read(data: bytes, name: str) -> tuple[dict[str, Any], Lines]:
    """What a file says, and for each key the line that says it, `name:7`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ValueError(f"{name}:{line}: this is not UTF-8 text: save it as UTF-8") from None
    values, lines = _parse(text, lambda line: f"{name}:{line}")
    if not isinstance(values, dict):
        got = "the file is empty" if values is None else f"got {_show(values)}"
        raise ValueError(f"{name}: a recipe is a mapping with keys {', '.join(_settings(Recipe))}; {got}")
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
            if isinstance(files, dict) and isinstance(name := files.get(key), str) and name:
                files[key] = str(Path(folder, expanduser(name)).absolute())


def _without_repetition(model: Any) -> None:
    """Drop what a model has of its preset anyway: `dump` writes it, and it must not outlive model.preset=big."""
    if isinstance(model, dict) and (preset := PRESETS.get(str(model.get("preset", ModelConfig.preset)))):
        for key, value in asdict(preset(ANY)).items():
            if key in MODEL[_family(model)] and key in model and (type(model[key]), model[key]) == (type(value), value):
                del model[key]


def _override(values: dict[str, Any], lines: Lines, text: str) -> None:
    """Lay `section.key=value` over what a file says."""
    path, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"override {text!r}: write section.key=value, as in train.steps=1000")
    keys, line = tuple(path.split(".")), f"override {text}"
    new, inner = _parse(value, lambda _: line)
    model = values.get("model")
    if keys == ("model", "preset") and isinstance(model, dict) and _family({"preset": new}) != _family(model):
        for key in [key for key in model if not lines.get(("model", key), "").startswith("override ")]:
            del model[key]  # what the file says is about a model of another family
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


def _explain(error: ValidationError, values: dict[str, Any], lines: Lines) -> str:
    """The first mistake in one line: where it is, what it is, and what to do."""
    order, family = list(lines), _family(values.get("model"))
    mistakes = []
    for problem in error.errors(include_url=False):
        place = tuple(key for key in problem["loc"] if isinstance(key, str))  # a list is taken as a whole
        if place[:1] == ("model",) and place[1:2] == (family,):  # which is no key, but says how the model was read
            place = ("model", *place[2:])
        mistakes.append((_written(place, lines), place, problem))
    written, place, problem = min(mistakes, key=lambda mistake: (mistake[0] == (), order.index(mistake[0])))
    name, kind = ".".join(place), problem["type"]
    if kind == "value_error":  # of a __post_init__, which knows no lines, but mostly names the key or its value
        message = str(problem["ctx"]["error"])
        words = re.findall(r"[\w-]+", message.partition(":")[0])
        section = reduce(getitem, place, values)
        named = [_written((*place, key), lines) for key in section if key in words or section[key] in words]
        written = min(named, key=lambda key: not lines[key].startswith("override "), default=written)
        prefix = f"{name}: " if place and place[0] not in words else ""
        return f"{lines[written]}: {prefix}{message}"
    if kind == "missing" and len(place) == 1:
        return f"{lines[written]}: the section {name!r} is missing"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        key, keys = place[-1], _settings(_kind(place[:-1], family), family)
        if place[0] == "model" and key in FROM_TOKENS:
            return f"{lines[written]}: {name} comes from the tokens: leave it out"
        inside = f" in {name.removesuffix(f'.{key}')}" if len(place) > 1 else ""
        near = get_close_matches(key, keys, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(keys)}"
        return f"{lines[written]}: unknown key {key!r}{inside}; {hint}"
    wanted, value = _kind(place, family), reduce(getitem, place, values)
    quotes = "; put it in quotes" if wanted is str and isinstance(value, bool | int | float) else ""
    return f"{lines[written]}: {name}: expected {_expected(wanted)}, got {_show(value)}{quotes}"


def _written(place: Place, lines: Lines) -> Place:
    """The innermost of what holds a place that has a line."""
    return next(place[:n] for n in range(len(place), -1, -1) if place[:n] in lines)


def _settings(kind: Any, family: str = "") -> dict[str, Any]:
    """The keys of a section and their types; of a model, those of its family."""
    return {"preset": str, **MODEL[family]} if kind is ModelConfig else get_type_hints(kind)


def _kind(place: Place, family: str) -> Any:
    """The type of what stands at a place, None aside."""
    kind: Any = Recipe
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
