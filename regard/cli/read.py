"""The verbs of models that read: classify, embed, fill, tag, answer.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.checks import at_least
from regard.cli.options import ERRORS, Batched, Lines, Said
from regard.shipped import located
from regard.tasks.uses import AnswerUse, ClassifyUse, EmbedUse, FillUse, Prompting, TagUse

UNASKED = Prompting()
UNSAID = ("logits", "windows", "tokens")  # of an answer: what is not written


@dataclass(frozen=True)
class Reads(Batched):
    """What reads, and whether it tells what it looked at."""

    attended: int | None = None  # of each text, tell so many words that the last layer attends to most, in JSON


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


def _span_cells(found: Any, use: TagUse) -> Iterator[list[str]]:
    yield [cell for each in found.spans for cell in (each.text, each.label, f"{each.probability:.4f}")]


def _reply_cells(found: Any, use: AnswerUse) -> Iterator[list[str]]:
    told = found.best if use.top > 1 else [found]
    yield [cell for each in told for cell in (each.text, f"{each.probability:.4f}")]


def _reply_row(found: Any) -> dict[str, Any]:
    row = asdict(found)
    return {"answer": row.pop("text"), **row}


CLASSES = Verb("classify", "classifying", _class_cells, keys=("text", "pair"))
VECTORS = Verb(
    "embed", "embedding", lambda each, _: iter([[json.dumps(each.numbers)]]), lambda each: {"vector": each.numbers}
)
GAPS = Verb("mask", "filling", _gap_cells, lambda gaps: {"gaps": [asdict(gap) for gap in gaps]})
SPANS = Verb("tag", "tagging", _span_cells)
REPLIES = Verb("answer", "answering", _reply_cells, _reply_row, ("question", "context"))


def classify(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to classify (default: stdin)
    *,
    pair: str | None = None,  # a second text, beside each that is read
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(ClassifyUse)],
    asked: Prompting,
    lines: Lines,
    engine: Reads,
) -> None:
    """Say of each line what it is: its class, and how probable that is; by a language model, as --prompt asks it."""
    kind = CLASSES if pair is None else replace(CLASSES, keys=("text",))
    _read(kind, [model, *(ensemble or ())], texts, lines, engine, settings, pair, asked)


def embed(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to embed (default: stdin)
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(EmbedUse)],
    lines: Lines,
    engine: Reads,
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
    _read(GAPS, [model, *(ensemble or ())], texts, lines, Reads(**vars(engine)), settings)


def tag(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to tag (default: stdin)
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(TagUse)],
    lines: Lines,
    engine: Reads,
) -> None:
    """Find names, or what else a model was taught to find, in each line: of each its text, kind and probability."""
    _read(SPANS, [model, *(ensemble or ())], texts, lines, engine, settings)


def answer(
    model: Path,  # a model directory
    questions: list[str] | None = None,  # `FILE` questions, one a line (default: stdin)
    *,
    question: str | None = None,  # or the question itself
    context: str | None = None,  # `TEXT|FILE` what the answer stands in (default, with --question: stdin)
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(AnswerUse)],
    lines: Lines,
    engine: Reads,
) -> None:
    """Find in a text what answers a question; of each line of JSON, in its own context."""
    models = [model, *(ensemble or ())]
    if lines.jsonl:
        if question is not None or context is not None:
            raise ValueError("each line of JSON has its question and context: leave --question and --context out")
        _read(REPLIES, models, questions, lines, engine, settings)
        return
    if question is not None and questions:
        raise ValueError("--question is one, and a file has others: leave one of them out")
    if question is None and context is None:
        raise ValueError("say where answers stand by --context; or by --jsonl, where each line has its own context")
    from regard.cli.bulk import whole_text

    kind = replace(REPLIES, keys=("question",))
    _read(kind, models, questions if question is None else question, lines, engine, settings, whole_text(context))


def _read(
    kind: Verb,
    models: list[Path],
    texts: list[str] | str | None,
    lines: Lines,
    engine: Reads,
    settings: dict[str, Any],
    second: str | None = None,
    asked: Prompting = UNASKED,
) -> None:
    """Have a model read a text, or the lines of what is named, each with the same `second` text if there is one; a
    language model as it is `asked`."""
    from hashlib import sha256

    import numpy as np

    from regard.api import load, told
    from regard.cli.bulk import ANYTHING, ONE, Input, Notes, Output, about_models, go_through, named_texts, note_engine
    from regard.tasks.reader import Given

    array = lines.output is not None and lines.output.suffix == ".npy"
    if array and (kind.task != "embed" or lines.as_json):
        raise ValueError(f"{lines.output} is for vectors alone: name another file, or leave --json out")
    how = {**vars(engine)}
    attended = how.pop("attended")
    at_least(1, attended=attended)
    if attended and not lines.objects:
        raise ValueError("--attended is told in JSON: say --json as well")
    keys = {**dict.fromkeys(kind.keys, ONE), "id": ANYTHING}

    def ask(place: str, id: object = None, **given: str) -> Given:
        text, pair = (given.get(key, second) for key in (*kind.keys, "")[:2])
        return Given(str(text), pair, place, id)

    inputs, text = ([], texts) if isinstance(texts, str) else named_texts(texts or [])
    reader = Input(inputs, text, jsonl=lines.jsonl, errors=ERRORS[lines.invalid], ask=ask, keys=keys)
    places = list(map(located, models))
    if kind is CLASSES and asked == UNASKED and told(places[0]).task.name == "generate":
        raise ValueError(f"{models[0]} is a language model: say what it is to read by --prompt and --labels")
    predictor = load(places, task=kind.task if asked == UNASKED else "generate", **how)
    if asked != UNASKED:
        if attended:
            raise ValueError("--attended is of models that read all at once: leave it out where there is a --prompt")
        from regard.tasks.prompted import Prompted

        predictor = Prompted.of(predictor, asked)
    note_engine(predictor, engine.engine)
    use = replace(predictor.use, **settings)

    def looked(ask: Given) -> dict[str, Any]:
        if attended is None:
            return {}
        found = sorted(predictor.attended(ask.text, ask.pair), key=lambda each: -each.probability)[:attended]
        second = [{"pair": True}, {}]
        return {
            "attended": [
                {"text": x.text, "start": x.start, "end": x.end, "share": x.probability, **second[not x.label]}
                for x in found
            ]
        }

    def form(both: list[tuple[Any, Any]], first: int) -> Any:
        if array:
            return np.stack([answer.vector for _, answer in both])
        if lines.objects:
            return [json.dumps(_object(kind, *each) | looked(each[0]), ensure_ascii=False) for each in both]
        return ["\t".join(row).replace("\n", " ") for _, answer in both for row in kind.cells(answer, use)]

    notes, about = Notes(predictor.longest), dict[str, Any]()
    if lines.output is not None:
        said = {"engine": engine.engine, "precision": engine.precision, "jsonl": lines.jsonl, "json": lines.as_json}
        said |= {"second text": sha256(repr(second).encode()).hexdigest()[:16]}
        said |= {} if attended is None else {"attended": attended}
        said |= {name: str(x) for name, x in vars(asked).items()} if asked != UNASKED else {}
        about = about_models(places, task=kind.task, **said, **asdict(use))
    with Output(lines, about, reader, kind.doing) as written:
        if array and not written.done:
            written.write(np.zeros((0, predictor.width(use)), np.float32), 0)
        go_through(reader, written, lambda window: predictor.answers(window, use), form, notes)
    notes.report(reader.skipped)
    if asked != UNASKED and predictor.report():
        typer.echo(f"note: {predictor.report()}", err=True)


def _object(kind: Verb, ask: Any, answer: Any) -> dict[str, Any]:
    """What was asked, but for a long context, and what was answered."""
    names = ("text", "pair") if kind.keys[0] == "text" else kind.keys[:1]
    asked = {"id": ask.id, **dict(zip(names, (ask.text, ask.pair), strict=False))}
    told = {key: value for key, value in kind.row(answer).items() if key not in UNSAID}
    return {key: value for key, value in {**asked, **told}.items() if value is not None}
