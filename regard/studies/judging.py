"""`regard evaluate` of models that read: every figure with its interval, beside another model's, and calibrated.

Letters: Q questions, D documents, K of them found.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from regard.api import load, told
from regard.data import beir
from regard.data.rows import RowFiles
from regard.data.text import Skipped
from regard.evaluation.bootstrap import compared, intervals
from regard.evaluation.calibration import check_picture, reliability
from regard.evaluation.calibration import picture as draw
from regard.evaluation.retrieval import DEEPEST, means, ranks_judged
from regard.models import storage
from regard.shipped import located
from regard.tasks.asks import windows
from regard.tasks.classify import Classify
from regard.tasks.embed import Embedder
from regard.tasks.reader import Given, Reader
from regard.tasks.task import Evidence, Measured, Task

WAYS = {"json": ("squad",), "txt": ("conll",), "bio": ("conll",)}  # how files are read that end so
Show = Callable[[str, int, int], None]


def judge(
    directory: Path,
    data: Path,
    *,
    columns: Sequence[str] = (),
    against: Path | None = None,
    calibrate: bool = False,
    picture: Path | None = None,
    progress: Show = lambda *_: None,
) -> dict[str, Any]:
    """Every figure of a model on a file, or on a folder of BEIR's, with its 95 % interval; and by how much it is above
    that of the model `against` it."""
    if picture is not None:
        check_picture(picture)
    task = told(located(directory)).task
    predictor = _predictor(directory, task)
    held, rows, skipped = _given(task, data, columns)
    changed: dict[str, Any] = {}
    if calibrate:
        if not isinstance(task, Classify) or held is not None:
            raise ValueError(f"{directory} tells no classes, but is {task.a_model}: --calibrate is for a classifier")
        measured, changed = _calibrated(directory, task, predictor, rows)
    else:
        measured = _measured(task, predictor, rows, held, progress)
    evidence = measured.evidence
    assert evidence is not None
    if picture is not None:
        if evidence.confidence is None or evidence.right is None:
            raise ValueError(f"{task.a_model} says nothing of how sure it is: leave --picture out")
        draw(
            reliability(evidence.confidence, evidence.right),
            picture,
            task.rows if task.name == "classify" else "tokens",
        )
    counted = "questions" if held is not None else "blocks" if task.name == "mask" else task.rows
    found = {"task": task.name, "counted": counted, "rows": evidence.rows, "skipped": skipped.report(), **changed}
    found["figures"] = {name: x._asdict() for name, x in intervals(evidence.figures, evidence.rows).items()}
    if against is not None:
        other = told(located(against)).task
        if other.name != task.name:
            raise ValueError(f"{against} is {other.a_model}, {directory} {task.a_model}: compare like with like")
        theirs = _measured(other, _predictor(against, other), rows, held, progress).evidence
        assert theirs is not None
        if theirs.rows != evidence.rows:
            raise ValueError(
                f"{against} reads {theirs.rows:,} {counted}, {directory} {evidence.rows:,}: they have other tokens"
            )
        found["against"] = {
            name: {"theirs": theirs.figures(np.arange(theirs.rows))[name], **x._asdict()}
            for name, x in compared(evidence.figures, theirs.figures, evidence.rows).items()
        }
    return found


def _given(task: Task, data: Path, columns: Sequence[str]) -> tuple[beir.Judgements | None, list[Any], Skipped]:
    """What there is to judge by: a folder of BEIR's, or rows."""
    if task.name == "embed" and (data.is_dir() or data.parent.name == "qrels"):
        return beir.load(data), [], Skipped()
    kind: Any = next(each for each in get_args(get_type_hints(task.sections.data)["train"]) if each is not NoneType)
    places = dict(each.partition("=")[::2] for each in columns)
    if not issubclass(kind, RowFiles):
        if places:
            raise ValueError(f"columns are those of a table: {data} is plain text")
        rows = list(kind(str(data)).read())
        return None, rows, Skipped()
    ending = data.name.removesuffix(".gz").rpartition(".")[2]
    ways = [way for way in (ending, *WAYS.get(ending, ())) if way in kind.ways]
    if not ways:
        raise ValueError(f"{data} ends in none of .{', .'.join(kind.ways)}: give it the ending of what it holds")
    where = {part: int(place) if place.isdecimal() else place for part, place in places.items()}
    skipped = Skipped()
    rows = list(kind(**{ways[0]: str(data), "columns": where}).read(skipped))
    if len(rows) < 2:
        raise ValueError(f"{data} has {len(rows)} {task.rows}: there is nothing to judge by")
    return None, rows, skipped


def _predictor(directory: Path, task: Task) -> Reader:
    found = load(directory)
    if not isinstance(found, Reader):
        raise ValueError(f"{directory} is {task.a_model}: name --source and --reference")
    return found


def _measured(
    task: Task, predictor: Reader, rows: Sequence[Any], held: beir.Judgements | None, progress: Show
) -> Measured:
    if held is None:
        return task.measure(predictor, rows, None)
    assert isinstance(predictor, Embedder)
    found = ranks_judged(_ranked(predictor, held, progress))
    count = len(held.questions)
    return Measured.of(Evidence(count, lambda some: means(found, some)), "ndcg@10", [])


def _ranked(embedder: Embedder, held: beir.Judgements, progress: Show) -> list[tuple[list[str], dict[str, float]]]:
    """For each question the documents nearest to it, itself aside as in BEIR, and those that are wanted."""
    questions = _normal(embedder.embed(list(held.questions.values())))  # (Q, d)
    scores = np.full((len(questions), 0), -np.inf, np.float32)  # (Q, K), the best so far
    places, names = np.zeros((len(questions), 0), np.int64), list[str]()
    total = sum(1 for _ in held.documents())
    for window in windows((Given(text, id=id) for id, text in held.documents())):
        vectors = _normal(np.stack([each.vector for each in embedder.answers(window, embedder.use)]))
        numbers = np.broadcast_to(np.arange(len(names), len(names) + len(window)), (len(questions), len(window)))
        scores, places = np.hstack([scores, questions @ vectors.T]), np.hstack([places, numbers])
        if scores.shape[1] > DEEPEST:
            best = np.argpartition(-scores, DEEPEST, axis=1)[:, : DEEPEST + 1]
            scores, places = np.take_along_axis(scores, best, 1), np.take_along_axis(places, best, 1)
        names += [str(ask.id) for ask in window]
        progress("documents", len(names), total)
    places = np.take_along_axis(places, np.lexsort((places, -scores), axis=1), 1)
    found = []
    for id, row in zip(held.questions, places.tolist(), strict=True):
        found.append(([name for name in (names[i] for i in row) if name != id], held.gains[id]))
    return found


def _normal(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12), np.float32)


def _calibrated(
    directory: Path, task: Classify, predictor: Any, rows: Sequence[Any]
) -> tuple[Measured, dict[str, Any]]:
    """Figures after the temperature was fitted, and noted in the directory; and what has changed."""
    logits = task.logits(predictor, rows)
    before, temperature = task.judged(rows, logits, predictor.use).measures, task.temperature(rows, logits)
    after = task.judged(rows, logits, replace(predictor.use, temperature=temperature))
    storage.use_so(located(directory), temperature=temperature)
    now = {"temperature": {"before": predictor.use.temperature, "after": temperature}}
    now |= {name: {"before": before[name], "after": after.measures[name]} for name in ("loss", "ece")}
    return after, {"calibrated": now}
