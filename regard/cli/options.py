"""Options of a verb, out of the settings of dataclasses: a field is an option, and the comment beside it its help."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from regard.checks import described
from regard.decoding.protocol import SamplingConfig, SearchConfig

# Names beside a field's own that programs of others have for the same.
ALSO = {
    "beam": ["--num-beams"],
    "best": ["--n-best"],
    "limit": ["--max-length"],
    "block": ["--no-repeat-ngram"],
}
NAMED = {"temperature": ["--sample", "--temperature"]}
SWITCHES = ("ordered", "align", "echo")  # of yes or no: said, or not
NEVER = ("search", "sampling", "scores", "prefix")  # what no option says
SEARCH, CHANCE, PHRASES, TEXT, WRITTEN, ENGINE = (
    "How outputs are searched for",
    "Outputs by chance",
    "What outputs must be like",
    "How text is read",
    "What is written",
    "What does the work",
)
PANELS = {
    **dict.fromkeys((each.name for each in fields(SearchConfig)), SEARCH),
    **dict.fromkeys([*(each.name for each in fields(SamplingConfig)), "seed", "mbr"], CHANCE),
    **dict.fromkeys(("require", "forbid", "stop", "ordered", "shortest", "block", "repetition"), PHRASES),
    **dict.fromkeys(("split", "keep", "stops", "long"), TEXT),
    **dict.fromkeys(("align", "echo"), WRITTEN),
}


def settings(*kinds: type[Any], but: Iterable[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb every setting of some dataclasses, and those of a search; it takes them as `settings`, by name.

    What a person does not say is None.
    """
    added: dict[str, Any] = {}
    for kind in (SearchConfig, SamplingConfig, *kinds):
        types, about = get_type_hints(kind), described(kind)
        for each in fields(kind):
            if each.name not in (*NEVER, *but):
                added[each.name] = _option(each.name, types[each.name], about.get(each.name, ""))

    def given(verb: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(verb).parameters.values() if p.name != "settings"]

        @wraps(verb)
        def run(**all_given: Any) -> None:
            verb(**{p.name: all_given.pop(p.name) for p in own}, settings=all_given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        extra = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in added.items()]
        own = [p.replace(kind=keyword) for p in own]
        first = [p for p in own if isinstance(p.annotation.__metadata__[0], ArgumentInfo)]
        rest = [p for p in own if p not in first]
        run.__signature__ = inspect.Signature([*first, *extra, *rest])  # type: ignore[attr-defined]
        run.__annotations__ = {**{p.name: p.annotation for p in own}, **added}
        return run

    return given


def _option(name: str, kind: Any, about: str) -> Any:
    """The option of a field: of a yes or no that is no by default, a switch."""
    flag = f"--{name.replace('_', '-')}"
    flags = NAMED.get(name) or [flag, *ALSO.get(name, ())]
    several = getattr(kind, "__origin__", None) is tuple
    inner: Any = list[str] if several else next(k for k in get_args(kind) or (kind,) if k is not NoneType)
    if inner is bool and name not in SWITCHES:
        flags = [f"{flag}/--no-{flag[2:]}"]
    about = f"{about[:1].upper()}{about[1:]}."
    metavar = "PHRASE" if several else None
    return Annotated[inner | None, typer.Option(*flags, help=about, metavar=metavar, rich_help_panel=PANELS[name])]


def said(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of what may be given, what a person has said."""
    return {name: value for name, value in given.items() if value is not None and value != []}
