"""regard for a person: `load` a model directory, and use it."""

import json
from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from regard.checks import at_least, hint
from regard.core.added import added
from regard.core.quantised import bits_of, quantise
from regard.data.lexicon import Shortlist
from regard.data.shelf import PICTURE, Shelf, is_index
from regard.data.states import States
from regard.data.text import decoded
from regard.data.tokenizers import Tokenizer
from regard.files import read_whole
from regard.heap import give_freed_memory_back
from regard.models import storage
from regard.recipes import reading
from regard.shipped import located
from regard.shipped import shipped as shipped  # regard.api.shipped() is part of this door
from regard.tasks.asks import DecodeConfig
from regard.tasks.gallery import Gallery
from regard.tasks.index import Index
from regard.tasks.task import Task, in_force
from regard.tasks.task import task as task_named
from regard.tasks.translate import Translate
from regard.tasks.translator import Translator as Translator
from regard.tasks.uses import SearchUse

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": None, "int4": None}


def load(
    directory: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str = "cpu",
    engine: str = "auto",
    workers: int | None = None,
    rows: int = 256,
    bitwise: bool = False,
    precision: str | None = None,
    shortlist: bool = False,
    rescore: str | Path | None = None,
    weight: float = 1.0,
    task: str | None = None,
    base: str | Path | None = None,
    beside: Any = None,
) -> Any:
    """The model in a directory that `regard train` has written; several directories make an ensemble.

    Without a directory, the model that comes with regard: English to Spanish, which also goes by its name, en-es.
    `engine` is native (compiled C, on the CPU), torch, or the first of them that there is; `workers` are threads.
    `precision` is that of the weights as they are on the disk, or fp32, bf16, int8, int4.
    `shortlist` restricts the output to tokens that go with the source, as `regard shortlist` has learned it. `rescore`
    is another model, by whose word, of this `weight`, outputs are ranked as well. Where a `task` is named, a model for
    another one is refused. A model that only adds to another one finds it where its directory says, or at `base`; or it
    has the weights of one that was loaded, `beside` which it is, on the device and in the precision of that one. An
    index that `regard index` has built is loaded with its model.
    """
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision = {precision!r}: choose one of {', '.join(PRECISIONS)}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"there is no device {device!r} here ({str(error).splitlines()[0]}): use cpu") from None
    if isinstance(directory, str | Path) and is_index(Path(directory)):
        own = {"engine": engine, "workers": workers, "rows": rows, "bitwise": bitwise, "precision": precision}
        return _index(Path(directory), base, task, device=device, **own)
    places = [located(directory)] if isinstance(directory, str | Path | None) else list(map(located, directory))
    if not places:
        raise ValueError("an ensemble has at least 1 model, got none")
    if beside is not None:
        if len(places) + len(beside.models) > 2 or base is not None or precision is not None:
            raise ValueError("one model is beside one other, which is its base: leave out base, precision, ensembles")
        models = [storage.beside(places[0], beside.model)]
    else:
        dtype = PRECISIONS.get(precision or "")
        models = [storage.load(place, device=device, dtype=dtype, base=base) for place in places]
    for place, model in zip(places, models, strict=True):
        part: Any
        for part in (part for part in added(model) if part.folder):
            part.memory = States.at(place / part.folder, part.width, model.base.digest, part.near)  # type: ignore[union-attr, arg-type]
    if precision is not None and dtype is None:
        bits = int(precision.removeprefix("int"))
        for place, model in zip(places, models, strict=True):
            if (found := bits_of(model) or bits) != bits:
                raise ValueError(
                    f"{place} is int{found}, of which no {precision} is made: take the model it was made of"
                )
        models = [model if bits_of(model) else quantise(model, bits) for model in models]
    tokenizers = [_tokenizer(place / "tokenizer.json", beside) for place in places]
    for place, tokenizer in zip(places, tokenizers, strict=True):
        if tokenizer.__reduce__() != tokenizers[0].__reduce__():
            raise ValueError(f"{places[0]} and {place} have different tokens: an ensemble shares one tokenizer")
    for place in places:
        known = getattr(storage.config(place), "vocabulary", 0) or 2**31
        if known < (count := len(tokenizers[0])):
            raise ValueError(f"{place} has {count:,} tokens, and its model {known:,}: they do not belong together")
    all_told = [told(place, task) for place in places]
    first = all_told[0].task
    if len({(each.task.name, getattr(each.task, "order", "")) for each in all_told}) > 1:
        raise ValueError(
            "these models have different tasks or write in different orders: an ensemble has one order and one task"
        )
    if task is not None:
        check_task(places[0], task)
    listed = Shortlist.load(places[0]) if shortlist else None
    if listed is not None and len(listed.offsets) - 1 != len(tokenizers[0]):
        raise ValueError(
            f"{places[0]} has a shortlist for {len(listed.offsets) - 1:,} tokens, not for its {len(tokenizers[0]):,}: "
            f"make it again with `regard shortlist {places[0]}`"
        )
    how = {"engine": engine, "workers": workers, "rows": rows, "bitwise": bitwise, "shortlists": listed}
    predictor = first.open(models, tokenizers[0], all_told[0].use, **how)
    predictor.beside = beside
    if (template := places[0] / storage.TEMPLATE).is_file():
        predictor.template = decoded(read_whole(template, storage.LARGEST), f"{template}:")
    if rescore is not None:
        at_least(0, weight=weight)
        predictor.second = load(rescore, device=device, precision=precision), weight
    give_freed_memory_back()  # to read 50,000 words takes three times the memory that they take
    return predictor


def _index(folder: Path, base: str | Path | None, task: str | None, **how: Any) -> Index | Gallery:
    """An index, of pictures a gallery, with the model that embeds for it where it says, or at `base`."""
    if task is not None:
        raise ValueError(f"{folder} is an index of documents: `regard search` and `regard ask` are its verbs")
    shelf = Shelf.at(folder)
    place = located(base or shelf.model)
    if not place.is_dir():
        raise ValueError(f"{place}, the model of {folder}, is not there: say where it is by --model")
    use = SearchUse(shelf.dimensions, shelf.long)
    if shelf.unit == PICTURE:
        return Gallery(load(place, **how), folder, name=str(place), use=use)
    return Index.open(load(place, task="embed", **how), folder, name=str(place), use=use, near=shelf.near)


def _tokenizer(path: Path, beside: Any) -> Tokenizer:
    """That of a model, if it has words; one that is equal to the one beside is the same."""
    if not getattr(storage.config(path.parent), "vocabulary", 0):
        return Tokenizer.none()
    theirs = None if beside is None else beside.model.directory / path.name
    if theirs is not None and theirs.is_file() and path.is_file() and theirs.read_bytes() == path.read_bytes():
        return beside.tokenizer
    return Tokenizer.load(path)


class Told(NamedTuple):
    """What a model directory says of its model."""

    task: Task
    use: Any  # of the section `decode` of the task


def told(directory: Path, asked: str | None = None) -> Told:
    """What the model of a directory is for, and how it is used: of an older regard, as its recipe has it.

    Where all that is known is that it makes texts of texts, as of a T5 of others, it may be `asked` to summarise, too.
    """
    purpose, recipe = storage.purpose(directory), directory / "recipe.yaml"
    if purpose is None and recipe.exists():
        known = reading.load(str(recipe))
        return Told(known.purpose(), known.decode)
    if purpose is None:
        return Told(Translate(), _of(DecodeConfig, directory / "decode.json"))
    path, (own, use) = directory / storage.CONFIG, purpose
    if own == {"name": "translate"} and asked == "summarise":
        own = {"name": asked, "longest": None}
    try:
        kind = task_named(own["name"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    facts = {key: value for key, value in own.items() if key != "name"}
    return Told(_made(kind, facts, f"{path}: task"), _made(kind.sections.decode, use, f"{path}: use"))


def check_task(directory: Path, task: str) -> None:
    """Refuse a model directory that is for another task."""
    if task not in ((known := told(directory, task).task).name, known.verb):
        asked, own = (each.verb or each.name for each in (task_named(task), known))
        raise ValueError(f"{directory} cannot {asked}: it is a model to {own}, so `regard {own}` is its verb")


def _of(kind: type[Any], path: Path) -> Any:
    """What a file of settings says, if it is there."""
    if not path.exists():
        return kind()
    try:
        return _made(kind, json.loads(read_whole(path, storage.LARGEST)), str(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{error}: mend or remove {path}") from None


def _made(kind: type[Any], settings: Any, place: str) -> Any:
    """A dataclass out of what JSON holds: every setting known, and of its type."""
    strict = {"__pydantic_config__": ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)}
    held: TypeAdapter[Any] = TypeAdapter(make_dataclass("Held", [("it", kind)], namespace=strict))
    try:
        return held.validate_json(json.dumps({"it": in_force(settings, kind)})).it
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"][1:]))
        if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            raise ValueError(f"{place}: there is no setting {key!r}: {hint(key, get_type_hints(kind))}") from None
        raise ValueError(f"{place}{key and '.'}{key}: {problem['msg']}") from None
