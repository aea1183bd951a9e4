"""The verbs of models that read: classify, embed, fill.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from regard.cli.options import ERRORS, Lines, Batched, Said
from regard.shipped import located
from regard.tasks.uses import ClassifyUse, EmbedUse, FillUse

UNSAID = ("logits", "windows", "tokens")  # of an answer: what is not written


@dataclass(frozen=True)
class Verb:
    """What a verb asks of which task, and how its answers are written."""

    task: str
    doing: str
    cells: Callable[[Any, Any], Iterator[list[str]]]  # of an answer, by the settings: lines, and what is between tabs
    row: Callable[[Any], dict[str, Any]] = asdict  # and as JSON
    keys: tuple[str, ...] = ("text",)  # that JSON may have


def _class_cells(each: Any, use: ClassifyUse) -> Iterator[list[str]]:
    told = each.probabilities if use.top else {each.label: each.probability}
    yield [cell for label, p in told.items() for cell in ([label] if p is None else [label, f"{p:.4f}"])]


def _gap_cells(gaps: Any, use: FillUse) -> Iterator[list[str]]:
    for gap in gaps:
        yield [cell for each in zip(gap.tokens, gap.probabilities, strict=True) for cell in (each[0], f"{each[1]:.4f}")]


CLASSES = Verb("classify", "classifying", _class_cells, keys=("text", "pair"))
VECTORS = Verb(
    "embed", "embedding", lambda each, _: iter([[json.dumps(each.numbers)]]), lambda each: {"vector": each.numbers}
)
GAPS = Verb("mask", "filling", _gap_cells, lambda gaps: {"gaps": [asdict(gap) for gap in gaps]})


def classify(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to classify (default: stdin)
    *,
    pair: str | None = None,  # a second text, beside each that is read
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(ClassifyUse)],
    lines: Lines,
    engine: Batched,
) -> None:
    """Say of each line what it is: its class, and how probable that is."""
    kind = CLASSES if pair is None else replace(CLASSES, keys=("text",))
    _read(kind, [model, *(ensemble or ())], texts, lines, engine, settings, pair=pair)


def embed(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to embed (default: stdin)
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(EmbedUse)],
    lines: Lines,
    engine: Batched,
) -> None:
    """Make a vector of each line: as JSON, or in an array of numpy's where -o names a .npy."""
    _read(VECTORS, [model, *(ensemble or ())], texts, lines, engine, settings)


def fill(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` text with gaps, written [MASK] or <mask> (default: stdin)
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(FillUse)],
    lines: Lines,
    engine: Batched,
) -> None:
    """Say what may stand in the gaps of a text: for each gap a line, the likeliest first."""
    _read(GAPS, [model, *(ensemble or ())], texts, lines, engine, settings)


def _read(
    kind: Verb,
    models: list[Path],
    texts: list[str] | None,
    lines: Lines,
    engine: Batched,
    settings: dict[str, Any],
    **asked: Any,
) -> None:
    """Have all lines read by a model; `asked` of each of them, beside what stands in it."""
    import numpy as np

    from regard.api import load
    from regard.cli.bulk import ANYTHING, ONE, Input, Notes, Output, about_models, go_through, named_texts
    from regard.tasks.reader import Given

    array = lines.output is not None and lines.output.suffix == ".npy"
    if array and (kind.task != "embed" or lines.as_json):
        raise ValueError(f"{lines.output} is for vectors alone: name another file, or leave --json out")
    ask, keys = partial(Given, **asked), {**dict.fromkeys(kind.keys, ONE), "id": ANYTHING}
    inputs, text = named_texts(texts or [])
    reader = Input(inputs, text, jsonl=lines.jsonl, errors=ERRORS[lines.invalid], ask=ask, keys=keys)
    places = list(map(located, models))
    predictor = load(places, task=kind.task, **vars(engine))
    use = replace(predictor.use, **settings)

    def form(both: list[tuple[Any, Any]], first: int) -> Any:
        if array:
            return np.stack([answer.vector for _, answer in both])
        if lines.objects:
            return [json.dumps(_object(ask, kind.row(answer)), ensure_ascii=False) for ask, answer in both]
        return ["\t".join(row).replace("\n", " ") for _, answer in both for row in kind.cells(answer, use)]

    notes, about = Notes(predictor.longest), dict[str, Any]()
    if lines.output is not None:
        how = {"engine": engine.engine, "precision": engine.precision, "jsonl": lines.jsonl, "json": lines.as_json}
        about = about_models(places, task=kind.task, **how, **asdict(use), **asked)
    with Output(lines, about, reader, kind.doing) as written:
        if array and not written.done:
            written.write(np.zeros((0, predictor.width(use)), np.float32), 0)
        go_through(reader, written, lambda window: predictor.answers(window, use), form, notes)
    notes.report(reader.skipped)


def _object(ask: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """What was asked, and what was answered."""
    asked = {"id": ask.id, "text": ask.text, "pair": ask.pair}
    told = {key: value for key, value in answer.items() if key not in UNSAID}
    return {key: value for key, value in {**asked, **told}.items() if value is not None}
