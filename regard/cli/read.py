"""The verbs of models that read: classify, embed, map, search, fill, tag, answer.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.checks import at_least
from regard.cli.options import ERRORS, Batched, Lines, Said, Spreading
from regard.decoding.protocol import SearchConfig
from regard.shipped import located
from regard.tasks.uses import AnswerUse, ClassifyUse, EmbedUse, FillUse, Prompting, SearchUse, TagUse

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


def _graph_cells(each: Any, use: ClassifyUse) -> Iterator[list[str]]:
    if not hasattr(each, "parts"):
        yield from _class_cells(each, use)
        return
    for i, part in enumerate(each.parts):  # of a graph, its nodes or edges
        yield [str(i), *next(_class_cells(part, use))]


def _graph_row(each: Any) -> dict[str, Any]:
    row = asdict(each)
    for part in row.get("parts", ()):
        for key in UNSAID:
            del part[key]
    return row


def _hit_cells(hits: Any, use: SearchUse) -> Iterator[list[str]]:
    for rank, hit in enumerate(hits, start=1):
        yield [str(rank), f"{hit.score:.4f}", hit.id, " ".join(hit.text.split())]


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


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """What there is of a row."""
    return {key: value for key, value in row.items() if value is not None}


CAPTIONS = Verb("caption", "describing", lambda each, _: iter([[each.text], *([other] for other in each.others)]))
CLASSES = Verb("classify", "classifying", _class_cells, keys=("text", "pair"))
SEEN = ("match", "recognise", "caption", "look")  # tasks of models that see
SHOWN = {"recognise": "image", "hear": "sound", "graph": "graph"}  # tasks that read no text, and what each is shown
GRAPHS = Verb("classify", "classifying", _graph_cells, _graph_row)
VECTORS = Verb(
    "embed", "embedding", lambda each, _: iter([[json.dumps(each.numbers)]]), lambda each: {"vector": each.numbers}
)
MAPPED = Verb(
    "graph", "mapping", lambda each, _: iter([[each.text]]), lambda each: {"mapped": each.text, "pairs": each.pairs}
)
HITS = Verb("embed", "searching", _hit_cells, lambda hits: {"hits": [each._asdict() for each in hits]}, ("query",))
GAPS = Verb("mask", "filling", _gap_cells, lambda gaps: {"gaps": [_told(asdict(gap)) for gap in gaps]})
SPANS = Verb("tag", "tagging", _span_cells)
REPLIES = Verb("answer", "answering", _reply_cells, _reply_row, ("question", "context"))


def classify(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to classify (default: stdin); pictures, videos, sounds, graphs
    *,
    pair: str | None = None,  # a second text, beside each that is read
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(ClassifyUse)],
    asked: Prompting,
    lines: Spreading,
    engine: Reads,
) -> None:
    """Say of each line what it is, or of each picture, sound or graph: its class, and how probable that is; by a
    language model, as --prompt asks it."""
    kind = CLASSES if pair is None else replace(CLASSES, keys=("text",))
    from regard.api import told
    from regard.cli.look import look

    models = [model, *(ensemble or ())]
    name = told(located(model)).task.name
    if lines.ray and (name in (*SHOWN, "match") or asked.prompt is not None):
        raise ValueError("--ray is for texts, by a model that classifies: ask others here, without it")
    if name in (*SHOWN, "match") and (pair is not None or engine.attended):
        raise ValueError(f"{model} takes no text: --pair and --attended are for texts")
    if name in SHOWN:
        if asked.prompt is not None or asked.labels is not None:
            raise ValueError(f"{model} has classes of its own: leave --prompt and --labels out")
        seen = GRAPHS if name == "graph" else replace(CLASSES, task=name)
        look(seen, models, texts or [], lines, engine, settings, part=SHOWN[name])
        return
    if name == "match":
        if asked.labels is None:
            raise ValueError(f"{model} knows no classes: say which there are by --labels dog,cat")
        look(replace(kind, task="match"), models, texts or [], lines, engine, settings, lambda m: m.told(asked))
        return
    if asked.prompt is None:
        if asked.labels is not None:
            raise ValueError("--labels is for a language model that is asked: say how by --prompt")
        if name == "generate":
            raise ValueError(f"{model} is a language model: say what it is to read by --prompt and --labels")
        _read(kind, models, texts, lines, engine, settings, pair)
        return

    if engine.attended:
        raise ValueError("--attended is of models that read all at once: leave it out where there is a --prompt")
    if "long" in settings:
        raise ValueError("--long is of models that read windows: a text that does not fit a --prompt is refused")

    def make(generator: Any) -> Any:
        from regard.tasks.prompted import Prompted

        return Prompted.of(generator, asked)

    about = {name: str(x) for name, x in vars(asked).items()}
    asks = replace(kind, task="generate")
    prompted = _read(asks, models, texts, lines, engine, settings, pair, make=make, about=about)
    if prompted.report():
        typer.echo(f"note: {prompted.report()}", err=True)


def embed(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to embed (default: stdin); pictures, of a model that sees them
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(EmbedUse)],
    lines: Spreading,
    engine: Reads,
) -> None:
    """Make a vector of each line: as JSON, or in an array of numpy's where -o names a .npy."""
    from regard.api import told
    from regard.cli.look import look
    from regard.data.labelled_pictures import is_picture

    models = [model, *(ensemble or ())]
    shown, name = any(is_picture(each) or Path(each).is_dir() for each in texts or ()), told(located(model)).task.name
    if lines.ray and (shown or name == "graph"):
        raise ValueError("--ray is for texts: embed the rest here, without it")
    if name == "graph":
        look(replace(VECTORS, task=name), models, texts or [], lines, engine, settings, lambda m: m.vectors, "graph")
        return
    if shown and name in SEEN:  # of which all but one are refused, by what they are for
        look(replace(VECTORS, task="match"), models, texts or [], lines, engine, settings)
        return
    _read(VECTORS, models, texts, lines, engine, settings)


def map_(
    model: Path,  # a model directory, as `regard import rxnmap` makes it
    reactions: list[str] | None = None,  # `REACTION|FILE` reactions as SMILES, a line each (default: stdin)
    *,
    lines: Lines,
    engine: Batched,
) -> None:
    """Say of each reaction, such as 'CC(=O)O.OCC>>CC(=O)OCC', which atom becomes which: the same with numbers."""
    from regard.cli.look import look

    look(MAPPED, [model], reactions or [], lines, engine, {}, lambda m: m.mapping, "reaction")


def caption(
    model: Path,  # a model directory
    pictures: list[str] | None = None,  # `FILE` pictures, folders of them, a .jsonl that names them (default: stdin)
    *,
    question: str | None = None,  # of a language model that sees (default: the one that it was taught by)
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(SearchConfig, but=("extra", "ordered"))],
    lines: Lines,
    engine: Batched,
) -> None:
    """Say of each picture in words what it shows, or answer a question about it."""
    from regard.api import told
    from regard.cli.look import look

    models = [model, *(ensemble or ())]
    if told(located(model)).task.name == "look":
        kind = replace(CAPTIONS, task="look")
        look(kind, models, pictures or [], lines, engine, settings, lambda looker: looker.describing(question))
        return
    if question is not None:
        raise ValueError(f"{model} describes pictures, and is asked nothing: leave --question out")
    look(CAPTIONS, models, pictures or [], lines, engine, settings)


def search(
    model: Path,  # `MODEL|INDEX` a model directory, of a model that embeds; or an index of documents
    documents: str | None = None,  # a text file or a folder, a .tsv, .csv or .jsonl, a folder of BEIR's, or of pictures
    queries: list[str] | None = None,  # `QUERY|FILE` what to look for (default: stdin); of pictures, also another one
    *,
    unit: str = "line",  # of plain text, what a document is: line, paragraph, file, passage
    column: list[str] | None = None,  # `PART=PLACE` where in a table a part stands, as text=abstract or id=0
    index: Path | None = None,  # keep the vectors in this folder (default: in the cache)
    embedder: Path | None = None,  # `--model` `MODEL` of an index: where its model is (default: where it was)
    rerank: Path | None = None,  # `MODEL` rank what is found by a model that classifies pairs
    settings: Annotated[dict[str, Any], Said(SearchUse)],
    lines: Lines,
    engine: Batched,
) -> None:
    """Find the documents that are nearest to each query: of each its rank, score, id and text; or pictures, by a model
    that sees. Vectors are kept."""
    from hashlib import sha256

    from regard.api import told
    from regard.cli import look
    from regard.cli.find import of_index, ranker, several
    from regard.cli.telling import telling
    from regard.data.collection import Documents
    from regard.data.shelf import is_index
    from regard.data.text import Skipped, count_of
    from regard.files import cache_folder

    about = {"rerank": str(rerank)}

    if is_index(model):
        if column or index or unit != "line":
            raise ValueError(f"{model} is an index, and has its documents: leave out --unit, --column and --index")
        asked = None if documents is None else [documents, *(queries or ())]
        of_index(HITS, model, embedder, asked, lines, engine, settings, about, rerank)
        return
    if documents is None or embedder is not None:
        raise ValueError(f"{model} is no index: name a model, then documents, then what to look for")
    if told(located(model)).task.name == "match" and Path(documents).is_dir():
        if rerank is not None or column or unit != "line":
            raise ValueError(f"{documents} is a folder of pictures to {model}: leave --rerank, --column and --unit out")
        if settings.get("by", "meaning") != "meaning":
            raise ValueError(f"{documents} is a folder of pictures to {model}, which have no words: leave --by out")
        look.search(HITS, model, Path(documents), queries or [], index, settings, lines, engine)
        return
    given, skipped = Documents(Path(documents), unit, tuple(column or ())), Skipped()
    where = sha256(json.dumps([str(Path(documents).absolute()), unit, given.columns]).encode()).hexdigest()[:16]

    def make(embedder: Any) -> Any:
        from regard.tasks.index import Index, fingerprint

        use = SearchUse(**vars(embedder.use) | settings)
        how: dict[str, Any] = {"name": str(model), "use": use, "reranker": ranker(rerank, engine)}
        kept = index or cache_folder() / "search" / f"{where}-{fingerprint(embedder, use.embedding)[:16]}"
        found = Index(embedder, kept, **how)
        with telling("embedding") as progress:
            new = found.renew(given.read(skipped), progress)
        about["documents"] = found.store.documents
        typer.echo(f"{count_of(len(found), 'document')}, {count_of(new, 'new text')} embedded: {kept}", err=True)
        if skipped.report():
            typer.echo(f"note: {skipped.report()}", err=True)
        return found

    _read(HITS, [model], several(queries), lines, engine, settings, make=make, about=about)


def fill(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` text with gaps, written [MASK] or <mask> (default: stdin)
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(FillUse)],
    lines: Spreading,
    engine: Reads,
) -> None:
    """Say what may stand in the gaps of a text: for each gap a line, the likeliest first."""
    _read(GAPS, [model, *(ensemble or ())], texts, lines, engine, settings)


def tag(
    model: Path,  # a model directory
    texts: list[str] | None = None,  # `TEXT|FILE` what to tag (default: stdin)
    *,
    ensemble: list[Path] | None = None,  # `MODEL` one more model to ask
    settings: Annotated[dict[str, Any], Said(TagUse)],
    lines: Spreading,
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
    lines: Spreading,
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
    engine: Batched,
    settings: dict[str, Any],
    second: str | None = None,
    *,
    make: Callable[[Any], Any] = lambda model: model,
    about: dict[str, Any] | None = None,
) -> Any:
    """Have a model read a text, or the lines of what is named, each with the same `second` text if there is one.

    What answers is what it is made into; `about` says what an output then hangs on, too.
    """
    from hashlib import sha256

    import numpy as np

    from regard.api import load
    from regard.cli import bulk
    from regard.cli.bulk import ANYTHING, ONE, Input, Notes, Output, about_models, named_texts
    from regard.tasks.reader import Given

    array = lines.output is not None and lines.output.suffix == ".npy"
    if array and (kind is not VECTORS or lines.as_json):
        raise ValueError(f"{lines.output} is for vectors alone: name another file, or leave --json out")
    how = {**vars(engine)}
    attended = how.pop("attended", None)  # which Reads have
    at_least(1, attended=attended)
    if attended and not lines.objects:
        raise ValueError("--attended is told in JSON: say --json as well")
    keys = {**dict.fromkeys(kind.keys, ONE), "id": ANYTHING}

    def ask(place: str, id: object = None, **given: str) -> Given:
        text, pair = (given.get(key, second) for key in (*kind.keys, "")[:2])
        return Given(str(text), pair, place, id)

    inputs, text = ([], texts) if isinstance(texts, str) else named_texts(texts or [])
    reader = Input(inputs, text, jsonl=lines.jsonl, errors=ERRORS[lines.invalid], ask=ask, keys=keys)
    places = [located(each).absolute() for each in models]

    def opening() -> Any:
        return make(load(places, task=kind.task, **how))

    predictor = opening()
    if second is not None and not predictor.pairs:
        raise ValueError(f"{models[0]} learnt from single texts: leave --pair out")
    bulk.note_engine(predictor, engine.engine)
    use = replace(predictor.use, **settings)

    def looked(predictor: Any, ask: Given, answer: Any) -> dict[str, Any]:
        if attended is None:
            return {}
        told = predictor.attended(ask.text, ask.pair, long=getattr(use, "long", "windows"))
        found = sorted(told, key=lambda each: -each.probability)[:attended]
        second = [{"pair": True}, {}]
        return ({"windows": answer.windows} if getattr(answer, "windows", 1) > 1 else {}) | {
            "attended": [
                {"text": x.text, "start": x.start, "end": x.end, "share": x.probability, **second[not x.label]}
                for x in found
            ]
        }

    def form(predictor: Any, both: list[tuple[Any, Any]], first: int) -> Any:
        if array:
            return np.stack([answer.vector for _, answer in both])
        if lines.objects:
            rows = (_object(kind, *each) | looked(predictor, *each) for each in both)
            return [json.dumps(row, ensure_ascii=False) for row in rows]
        return ["\t".join(row).replace("\n", " ") for _, answer in both for row in kind.cells(answer, use)]

    notes, known = Notes(predictor.longest), dict[str, Any]()
    if lines.output is not None:
        said = {"engine": engine.engine, "precision": engine.precision, "jsonl": lines.jsonl, "json": lines.as_json}
        said |= {"second text": sha256(repr(second).encode()).hexdigest()[:16]}
        said |= {} if attended is None else {"attended": attended}
        known = about_models(places, task=kind.task, **said, **asdict(use), **(about or {}))
    ray = lines.ray if isinstance(lines, Spreading) else None
    work = bulk.spreading(ray, predictor, opening, places, engine, reader)
    with work as spread, Output(lines, known, reader, kind.doing) as written:
        if array and not written.done:
            written.write(np.zeros((0, predictor.width(use)), np.float32), reader.window([], 0))
        bulk.go_through(reader, written, spread, bulk.answering(use, form, notes), notes)
    notes.report(reader.skipped)
    return predictor


def _object(kind: Verb, ask: Any, answer: Any) -> dict[str, Any]:
    """What was asked, but for a long context, and what was answered."""
    names = ("text", "pair") if kind.keys[0] == "text" else kind.keys[:1]
    asked = {"id": ask.id, **dict(zip(names, (ask.text, ask.pair), strict=False))}
    told = {key: value for key, value in kind.row(answer).items() if key not in UNSAID}
    return _told({**asked, **told})
