"""`regard evaluate` by rows: every figure of a model with its interval, beside another model's, and calibrated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from regard.api import load, told
from regard.data import beir
from regard.data.rows import Row, RowFiles
from regard.data.text import PairFiles, Skipped
from regard.evaluation.bootstrap import compared, intervals
from regard.evaluation.calibration import check_picture, reliability
from regard.evaluation.calibration import picture as draw
from regard.evaluation.retrieval import DEEPEST, RETRIEVAL, means, ranks_judged
from regard.evaluation.rouge import overlaps
from regard.evaluation.texts import ROUGE
from regard.models import storage
from regard.shipped import located
from regard.tasks.asks import windows
from regard.tasks.classify import Classify
from regard.tasks.converse import Converse, last, written
from regard.tasks.embed import Embedder
from regard.tasks.generator import Generator
from regard.tasks.index import nearest, unit
from regard.tasks.match import Matcher, Worded
from regard.tasks.prompted import Prompted
from regard.tasks.reader import Given, Reader
from regard.tasks.recognise import Recognise
from regard.tasks.reward import Rewarder
from regard.tasks.summarise import Summarise
from regard.tasks.task import Evidence, Measured, Task
from regard.tasks.transcribe import Transcriber
from regard.tasks.translate import Translate
from regard.tasks.uses import Prompting

UNASKED = Prompting()
Show = Callable[[str, int, int], None]


class PairRows(RowFiles):
    """Pairs as they are judged."""

    parts = ("source", "target")


def judge(
    directory: Path,
    data: Path,
    *,
    columns: Sequence[str] = (),
    asked: Prompting = UNASKED,
    against: Path | None = None,
    calibrate: bool = False,
    picture: Path | None = None,
    search: Mapping[str, Any] = MappingProxyType({}),
    reward: Path | None = None,
    progress: Show = lambda *_: None,
) -> dict[str, Any]:
    """Every figure of a model on a file, or on a folder, with its 95 % interval; and by how much it is above that of
    the model `against` it. A language model is `asked` by a prompt, or answers in conversations, and a `reward` model
    may judge its answers; `search` says how models that write do so, if not as they are used."""
    if picture is not None:
        check_picture(picture)
    task, predictor = _predictor(directory, asked, columns, search)
    before = Prompting(asked.prompt) if isinstance(task, Summarise) else UNASKED
    if asked != before and not isinstance(predictor, Prompted | Worded):
        raise ValueError(f"{directory} is {task.a_model}: --prompt is for a language model")
    held, rows, skipped = _given(task, data, columns)
    if reward is not None and not isinstance(task, Converse):
        raise ValueError(f"{directory} is {task.a_model}: --reward is for a language model that answers")
    rewarder = None if reward is None else load(reward, task="reward")
    changed: dict[str, Any] = {}
    if calibrate:
        if isinstance(predictor, Prompted | Worded):
            raise ValueError("a prompt has no directory that would keep a temperature: leave out --calibrate")
        if not isinstance(task, Classify) or held is not None:
            raise ValueError(f"{directory} tells no classes, but is {task.a_model}: --calibrate is for a classifier")
        measured, changed = _calibrated(directory, task, predictor, rows)
    else:
        measured = _measured(task, predictor, rows, held, progress, rewarder)
    evidence = measured.evidence
    assert evidence is not None
    if picture is not None:
        if evidence.confidence is None or evidence.right is None:
            raise ValueError(f"{task.a_model} says nothing of how sure it is: leave --picture out")
        draw(
            reliability(evidence.confidence, evidence.right),
            picture,
            task.rows if isinstance(task, Classify) else "tokens",
        )
    left_out = "; ".join(filter(None, (skipped.report(), getattr(predictor, "report", str)())))
    counted = "questions" if held is not None else "blocks" if task.name == "mask" else task.rows
    found = {"task": task.name, "counted": counted, "rows": evidence.rows, "skipped": left_out, **changed}
    if isinstance(task, Translate):
        found["read"] = predictor.reads
    found["figures"] = within(evidence)
    if against is not None:
        other, another = _predictor(against, asked, columns, search)
        if other.name != task.name:
            raise ValueError(f"{against} is {other.a_model}, {directory} {task.a_model}: compare like with like")
        theirs = _measured(other, another, rows, held, progress, rewarder).evidence
        assert theirs is not None
        if theirs.rows != evidence.rows:
            raise ValueError(
                f"{against} reads {theirs.rows:,} {counted}, {directory} {evidence.rows:,}: they have other tokens"
            )
        found["against"] = beside(evidence, theirs)
        if rewarder is not None:
            found["wins"] = _wins(evidence, theirs)
    return found


def within(evidence: Evidence) -> dict[str, Any]:
    """Every figure with its interval, and how it is made."""
    found = intervals(evidence.figures, evidence.rows)
    return {name: {**x._asdict(), "signature": signature(evidence.made.get(name, ""))} for name, x in found.items()}


def signature(made: str) -> str:
    """How a figure is made, and by which version: without it, it compares with nothing.

    >>> signature("unit:nats").replace(version("regard"), "1.0"), signature("nrefs:1|version:2.6.0")
    ('unit:nats|version:regard-1.0', 'nrefs:1|version:2.6.0')
    """
    return made if "version:" in made else "|".join(filter(None, (made, f"version:regard-{version('regard')}")))


def beside(ours: Evidence, theirs: Evidence) -> dict[str, Any]:
    """Every figure that two models have, of the same rows: theirs, and by how much ours is above it."""
    alone = theirs.figures(np.arange(theirs.rows))
    found = compared(ours.figures, theirs.figures, ours.rows)
    return {name: {"theirs": alone[name], **x._asdict()} for name, x in found.items()}


def _given(task: Task, data: Path, columns: Sequence[str]) -> tuple[beir.Judgements | None, list[Any], Skipped]:
    """What there is to judge by: a folder of BEIR's, or rows."""
    if task.name == "embed" and (data.is_dir() or data.parent.name == "qrels"):
        return beir.load(data), [], Skipped()
    kind: Any = next(each for each in get_args(get_type_hints(task.sections.data)["train"]) if each is not NoneType)
    kind = PairRows if kind is PairFiles else kind
    if not issubclass(kind, RowFiles):
        if columns:
            raise ValueError(f"columns are those of a table: {data} is plain text")
        rows = list(kind(str(data)).read())
        return None, rows, Skipped()
    skipped = Skipped()
    rows = list(kind.at(data, columns).read(skipped))
    if len(rows) < 2:
        raise ValueError(f"{data} has {len(rows)} {task.rows}: there is nothing to judge by")
    return None, [(row["source"], row["target"]) for row in rows] if kind is PairRows else rows, skipped


def _predictor(
    directory: Path, asked: Prompting, columns: Sequence[str], search: Mapping[str, Any]
) -> tuple[Task, Any]:
    """What a model is for, and the model."""
    wanted = "summarise" if any(column.startswith("summary=") for column in columns) else None
    task = told(located(directory), wanted).task
    found = load(directory, task=wanted and task.name)
    if isinstance(task, Translate):
        if isinstance(task, Summarise) and asked.prompt is not None:
            search = {**search, "prompt": asked.prompt}
        found.decode = replace(found.decode, **search)
        return task, found
    if search:
        raise ValueError(f"--{next(iter(search))} is for a model that translates or summarises: leave it out")
    if asked != UNASKED and task.name == "generate":
        found = Prompted.of(found, asked, columns)
        return Classify(found.labels), found
    if asked != UNASKED and isinstance(found, Matcher):  # classes in words, of pictures that have labels
        if asked.labels is None or asked != Prompting(asked.prompt, asked.labels):
            raise ValueError(f"{directory} compares pictures with words: say which by --labels, and --prompt alone")
        worded = found.told(asked)
        return Recognise(worded.labels), worded
    if task.name == "generate":  # by conversations: of a row, its last answer
        if found.template is None:
            raise ValueError(f"{directory} has no chat template to be judged by answers with: name a --text")
        return Converse(found.memory or Converse.longest, found.template), found
    if not (isinstance(found, Reader | Transcriber) or hasattr(task, "sight") or isinstance(task, Classify)):
        raise ValueError(f"{directory} is {task.a_model}: name --source and --reference, or a --text")
    return task, found


def _measured(
    task: Task,
    predictor: Any,
    rows: Sequence[Any],
    held: beir.Judgements | None,
    progress: Show,
    rewarder: Rewarder | None = None,
) -> Measured:
    if isinstance(task, Converse):
        return _answers(task, predictor, rows, rewarder)
    if held is None:
        return task.measure(predictor, rows, None)
    assert isinstance(predictor, Embedder)
    found = ranks_judged(_ranked(predictor, held, progress))
    count = len(held.questions)
    return Measured.of(Evidence(count, lambda some: means(found, some), made=RETRIEVAL), "ndcg@10", [])


def _answers(task: Converse, generator: Generator, rows: Sequence[Row], rewarder: Rewarder | None) -> Measured:
    """How likely answers are held, how near those come to them that the model writes, and what is thought of these."""
    both = zip(rows, task.examples(rows, generator.tokenizer), strict=True)
    fit = [row for row, example in both if example is not None]  # its answer begins within what the model reads
    likely, asked, said = task.measure(generator, fit, None), [last(row) for row in fit], written(generator, fit)
    each = {"rougeL": [100 * overlaps(text, answer)[-1] for text, (_, answer) in zip(said, asked, strict=True)]}
    if rewarder is not None:
        given = [rewarder.given(text, before) for text, (before, _) in zip(said, asked, strict=True)]
        each["reward"] = [told.value for told in rewarder.answers(given, rewarder.use)]
    columns = {name: np.array(x) for name, x in each.items()}

    def figures(some: NDArray[np.int64]) -> dict[str, float]:
        assert likely.evidence is not None
        return likely.evidence.figures(some) | {name: float(x[some].mean()) for name, x in columns.items()}

    return Measured.of(Evidence(len(fit), figures, made={"rougeL": f"stem:porter|{ROUGE}"}), "loss", [])


def _wins(ours: Evidence, theirs: Evidence) -> float:
    """The share of rows of which we have the better answer; one of the same worth counts half."""
    our, their = (np.array([x.figures(np.array([i]))["reward"] for i in range(x.rows)]) for x in (ours, theirs))
    return float(np.mean(our > their) + np.mean(our == their) / 2)


def _ranked(embedder: Embedder, held: beir.Judgements, progress: Show) -> list[tuple[list[str], dict[str, float]]]:
    """For each question the documents nearest to it, itself aside as in BEIR, and those that are wanted."""
    names, total = list[str](), sum(1 for _ in held.documents())

    def blocks() -> Iterator[NDArray[np.float32]]:
        for window in windows((Given(text, id=id) for id, text in held.documents())):
            names.extend(str(ask.id) for ask in window)
            yield unit([each.vector for each in embedder.answers(window, embedder.use)])
            progress("documents", len(names), total)

    near = nearest(unit(embedder.embed(list(held.questions.values()))), blocks(), DEEPEST + 1)
    rows = zip(held.questions, near, strict=True)
    return [([name for n, _ in row if (name := names[n]) != id], held.gains[id]) for id, row in rows]


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
