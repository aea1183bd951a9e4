"""A verb of the command is a function. Its parameters are arguments, those after `*` options, and the comment beside
each is its help. Before that may stand, in back quotes, another flag, and what a value is called: `-o` `FILE`.

Fields of dataclasses become options the same way.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from regard.checks import described, one_of
from regard.decoding.protocol import SamplingConfig, SearchConfig

FLAGS = {  # of fields: names that programs of others have for the same, and those in place of their own
    "SearchConfig.beam": ["--beam", "--num-beams"],
    "SearchConfig.best": ["--best", "--n-best"],
    "SearchConfig.limit": ["--limit", "--max-length"],
    "SearchConfig.block": ["--block", "--no-repeat-ngram"],
    "SamplingConfig.temperature": ["--sample", "--temperature"],
    "Settings.stops": ["--stops/--no-stops"],  # for a recipe may say either
    "ServeConfig.host_names": ["--host-name"],
    "ServeConfig.wait_ms": ["--wait"],
}
NEVER = ("search", "sampling", "prefix", "api_keys")  # fields that no option says
ERRORS = {"refuse": "strict", "replace": "replace"}  # of decoding, by what a person chooses
KEYWORD = inspect.Parameter.KEYWORD_ONLY
Count = Annotated[int, typer.Option(min=1)]
HELP = re.compile(r"(?:`(-[^`]+)` )?(?:`([^`]+)` )?(.*)")


@dataclass(frozen=True)
class Engine:
    """What does the work, as `regard.load` is told."""

    engine: str = "auto"  # by which: native, torch, or auto, the first of them that can
    device: str = "cpu"  # where: cpu, cuda, mps
    workers: int | None = None  # threads (default: all cores)
    precision: str | None = None  # of the weights: fp32, bf16, int8, int4 (default: the model's)


@dataclass(frozen=True)
class Batched(Engine):
    """The same where many texts are read side by side."""

    rows: int = 256  # `--batch-size` rows side by side, at most
    bitwise: bool = False  # with torch: the same bits in any company


@dataclass(frozen=True)
class Searched(Batched):
    """The same for a translator."""

    shortlist: bool = False  # only tokens that go with the source
    rescore: Path | None = None  # `MODEL` rank outputs by its word, too
    weight: float = 1.0  # what its word counts


@dataclass(frozen=True)
class Lines:
    """How lines come in and go out, in every verb that takes files of any size."""

    output: Path | None = None  # `-o` write here (default: stdout)
    resume: bool = False  # go on with an output that was interrupted
    overwrite: bool = False  # replace an output that is there
    invalid: str = "refuse"  # what is not UTF-8: refuse, replace
    jsonl: bool = False  # lines are JSON, in and out
    as_json: bool = False  # write JSON lines

    def __post_init__(self) -> None:
        one_of(ERRORS, invalid=self.invalid)
        if (self.resume or self.overwrite) and self.output is None:
            raise ValueError("--resume and --overwrite are about an output file: name it by -o")
        if self.resume and self.overwrite:
            raise ValueError("--resume goes on with an output and --overwrite begins again: choose one")

    @property
    def objects(self) -> bool:
        """Whether JSON is written."""
        return self.as_json or self.jsonl


@dataclass(frozen=True)
class Spreading(Lines):
    """The same where the work may be spread over machines."""

    ray: str | None = None  # `ADDRESS` do the work on the machines of a Ray cluster; local: one here


PANELS = {  # where the options of a verb that has many are shown
    **dict.fromkeys((each.name for each in fields(SearchConfig)), "How outputs are searched for"),
    **dict.fromkeys([*(each.name for each in fields(SamplingConfig)), "seed", "mbr"], "Outputs by chance"),
    **dict.fromkeys(
        ("require", "forbid", "stop", "ordered", "shortest", "block", "repetition", "schema", "regex", "grammar"),
        "What outputs must be like",
    ),
    **dict.fromkeys(("split", "keep", "stops", "long", "prompt", "invalid", "jsonl"), "How text is read"),
    **dict.fromkeys(("align", "echo", "as_json", "tokens", "stream"), "What is written"),
    **dict.fromkeys([*(each.name for each in fields(Searched)), "ensemble", "ray"], "What does the work"),
}


class Said:
    """Settings of dataclasses, of which a verb takes what a person has said: a dict, by name."""

    def __init__(self, *kinds: type[Any], but: tuple[str, ...] = ()) -> None:
        self.kinds, self.but = kinds, but


def command_of(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer wants it: each of its arguments and options a parameter that says all of itself."""
    about, shown = described(verb), dict[str, list[inspect.Parameter]]()
    makers: dict[str, Callable[..., Any]] = {}
    searched = False  # then there are many
    for name, p in inspect.signature(verb).parameters.items():
        kind, noted = _unwrapped(p.annotation)
        if isinstance(noted, Said):
            options = [option for each in noted.kinds for option in _options(each) if option.name not in noted.but]
            shown[name], makers[name] = [option.replace(default=None) for option in options], dict
            searched = SearchConfig in noted.kinds
        elif isinstance(kind, type) and is_dataclass(kind):
            shown[name], makers[name] = list(_options(kind)), kind
        else:
            shown[name] = [_shown(p, about.get(name, ""))]
    every = [p for options in shown.values() for p in options]
    if searched:
        for p in every:
            p.annotation.__metadata__[0].rich_help_panel = PANELS.get(p.name)

    @wraps(verb)
    def run(**given: Any) -> None:
        for name, make in makers.items():
            said = {p.name: given.pop(p.name) for p in shown[name]}
            said = {key: tuple(x) if isinstance(x, list) else x for key, x in said.items()}
            given[name] = make(**{key: x for key, x in said.items() if x not in (None, ())})
        verb(**given)

    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in every}
    return run


def _options(kind: Any) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass, each as an option."""
    types, about = get_type_hints(kind, include_extras=True), described(kind)
    for each in fields(kind):
        if each.name not in NEVER:
            default = None if each.default == () else each.default
            p = inspect.Parameter(each.name, KEYWORD, default=default, annotation=types[each.name])
            yield _shown(p, about.get(each.name, ""), FLAGS.get(f"{kind.__name__}.{each.name}"))


def _unwrapped(kind: Any) -> tuple[Any, Any]:
    """A type without None, and what is noted of it."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(member for member in get_args(kind) if member is not NoneType)
    return get_args(kind) if get_origin(kind) is Annotated else (kind, None)


def _shown(p: inspect.Parameter, about: str, flags: list[str] | None = None) -> inspect.Parameter:
    """A parameter with its help; of a yes or no that is no by default, a switch."""
    kind, noted = _unwrapped(p.annotation)
    flag, metavar, text = HELP.fullmatch(about).groups()  # type: ignore[union-attr]
    text = f"{text[:1].upper()}{text[1:]}."
    if get_origin(kind) is tuple:
        kind, metavar = list[str], metavar or "PHRASE"
    name = p.name.removeprefix("as_").replace("_", "-")
    own = f"--{name}/--no-{name}" if kind is bool and p.default is not False else f"--{name}"
    info: Any = typer.Argument(help=text, metavar=metavar)
    if p.kind is KEYWORD:
        info = typer.Option(*(flags or filter(None, (own, flag))), help=text, metavar=metavar)
        info.min = getattr(noted, "min", None)
    return p.replace(kind=KEYWORD, annotation=Annotated[kind | None, info])
