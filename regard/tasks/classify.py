"""Classification: a text, or a pair of them, in; one class, several, or a number out; accuracy, F1, correlation."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checks import at_least, hint, one_of, share
from regard.core.generation import DecoderOnly
from regard.core.outputs import POOLS, HeadConfig
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.corpora import fetched
from regard.data.rows import Row, RowFiles
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer
from regard.evaluation.classes import (
    AGREEMENT,
    CORRELATION,
    agreement,
    among_first,
    correlation,
    decided,
    fitted_temperature,
    indicated,
    probable,
)
from regard.tasks.reader import BARS, Framed, Given, Pictured, Rated, Reader, asked, batched, check_length
from regard.tasks.task import Data, Evidence, Measured, Sections, Task
from regard.tasks.uses import ClassifyUse
from regard.training.objectives import Labelled, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

KINDS = ("one", "several", "number")
SHOWN = 100  # samples


class LabelledFiles(RowFiles):
    """Where texts and their labels are."""

    optional = ("pair",)


@dataclass(frozen=True)
class LabelledConfig(Data):
    """Where texts and labels come from."""

    train: LabelledFiles | None = None  # your own files
    valid: LabelledFiles | None = None  # held out of train if left out
    test: LabelledFiles | None = None  # held out of train if left out
    max_length: int = 128  # tokens of a text and its pair; longer ones are cut in training, and counted

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})

    def of_corpus(self, name: str, progress: Any) -> dict[str, LabelledFiles]:
        found = fetched(name, progress=progress)
        if any(paths[0].suffix != ".jsonl" for paths in found.values()):
            raise ValueError(f"{name} has no labels: choose a corpus that has, such as trec")
        return {split: LabelledFiles(jsonl=str(path)) for split, (path,) in found.items()}


@dataclass(frozen=True)
class ClassifyConfig:
    """What a model is for."""

    name: str = "classify"
    kind: str = "one"  # of the labels: one of them, several (a list, or joined by |), number
    pool: str | None = None  # what stands for a text: first, last, mean, max; left out: as the model is made
    hidden: str | None = "tanh"  # a layer before the classes, with this activation; null: none
    dropout: float = 0.1  # before the classes

    def __post_init__(self) -> None:
        one_of(KINDS, **{"task.kind": self.kind})
        one_of(POOLS, **{"task.pool": self.pool})
        share(whole=True, **{"task.dropout": self.dropout})


@dataclass(frozen=True)
class Evaluation:
    """A classifier is judged by all that there is."""


@dataclass(frozen=True)
class Classified:
    """What a text is."""

    label: str  # the likeliest; of several, joined by |
    probability: float | None  # its; None for a number
    probabilities: dict[str, float]  # of all classes, or of the `top` ones, the likeliest first
    value: float | None = None  # of a number
    windows: int = 1  # in which the text was read
    logits: tuple[float, ...] = ()  # of all classes in their order, before any temperature


class Classifier(Reader):
    """A model that classifies, and its tokenizer.

    >>> classifier = load("runs/sst2")                            # doctest: +SKIP
    >>> classifier.classify("a charming and affecting journey")   # doctest: +SKIP
    Classified(label='1', probability=0.99, ...)
    """

    second = "pair"
    labels: tuple[str, ...]
    kind: str

    @overload
    def classify(self, text: str, pair: str | None = None, **settings: Any) -> Classified: ...
    @overload
    def classify(self, text: Sequence[Any], **settings: Any) -> list[Classified]: ...
    def classify(self, text: Any, pair: str | None = None, **settings: Any) -> Any:
        """What a text is, or a pair, or each of a list of them."""
        chosen = replace(self.use, **settings)
        if isinstance(text, str):
            return self.answers([Given(text, pair)], chosen)[0]
        return self.answers(asked(text), chosen)

    def answers(self, asks: Sequence[Given], settings: ClassifyUse) -> list[Classified]:
        """What each of some texts is: what the other methods are made of."""
        windows = self.framed(asks, long=settings.long)
        said = iter(self.outputs([each for row in windows for each in row]))
        means = [(torch.stack([next(said) for _ in row]).mean(0), len(row)) for row in windows]
        return [classified(mean, self.labels, self.kind, settings, count) for mean, count in means]

    def check_ranking(self) -> None:
        """Refuse to rank texts by what is no word of how much a pair belongs together."""
        if not self.pairs:
            raise ValueError("texts are ranked by a model that learnt from pairs: this one learnt from single texts")
        if self.kind != "number" and len(self.labels) != 2:
            raise ValueError(f"texts are ranked by one number or two classes: this model has {len(self.labels)}")

    def likely(self, each: Classified, raw: bool = False) -> float:
        """How much a pair belongs together: the number that is told, or how much likelier the second class is; by its
        logit if `raw`, else as a probability."""
        if self.kind == "number":
            x = each.logits[0]
        else:
            x = (each.logits[1] - each.logits[0]) / (1.0 if raw else self.use.temperature)
        return float(x if raw else 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x)))

    def pictured(self, ask: Given) -> Pictured:
        (told,) = self.answers([ask], replace(self.use, top=BARS))
        if told.value is not None:
            return Pictured(f"{told.value:.3f}", numbers={"value": told.value})
        several = self.kind == "several"
        chosen = (lambda label, p: p >= self.use.threshold) if several else (lambda label, p: label == told.label)
        bars = [Rated(label, p, chosen=chosen(label, p)) for label, p in told.probabilities.items()]
        return Pictured(" · ".join(bar.text for bar in bars if bar.chosen), [bars])


def classified(logits: Tensor, labels: Sequence[str], kind: str, use: ClassifyUse, windows: int = 1) -> Classified:
    """What logits (C,) say."""
    raw = tuple(logits.tolist())
    if kind == "number":
        return Classified(f"{raw[0]:g}", None, {}, raw[0], windows, raw)
    p = probable(np.array(raw) / use.temperature, kind == "one").tolist()
    order = sorted(range(len(p)), key=lambda i: -p[i])
    shown = {labels[i]: p[i] for i in order[: use.top]}
    if kind == "one":
        return Classified(labels[order[0]], p[order[0]], shown, windows=windows, logits=raw)
    apply = [i for i in order if p[i] >= use.threshold]
    least = min((p[i] for i in apply), default=max(p))
    return Classified("|".join(labels[i] for i in apply), least, shown, windows=windows, logits=raw)


@dataclass(frozen=True)
class Classify(Task):
    """A text in, its class out."""

    labels: tuple[str, ...] = ()  # found in the data
    kind: str = "one"
    longest: int | None = LabelledConfig.max_length
    pool: str | None = None
    hidden: str | None = "tanh"
    dropout: float = 0.1
    pairs: bool | None = field(default=None, kw_only=True)  # whether it learnt from pairs; None: not known

    name, called = "classify", "classification"
    sections = Sections(ClassifyConfig, LabelledConfig, ClassifyUse, Evaluation)
    row, rows = "text", "texts"
    by_rows = True
    stands = "classes"
    first: ClassVar[bool] = False  # whether one of the five likeliest may be right, is told

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))

    @classmethod
    def of(cls, recipe: Any) -> "Classify":
        t = recipe.task
        return cls((), t.kind, recipe.data.max_length, t.pool, t.hidden, t.dropout)

    def check(self, recipe: Any) -> None:
        check_length(recipe)

    def fitted(self, rows: Iterable[Row]) -> "Classify":
        """With the labels that there are, in their order, and whether there are pairs."""
        labels, pairs = set[str](), False
        for row in rows:
            pairs = pairs or "pair" in row
            labels.update(() if self.kind == "number" else self._labels(row))
        taught = replace(self, pairs=pairs if self.worded else None)
        if self.kind == "number":
            return taught
        found = sorted(labels, key=_in_order)
        if len(found) < 2 and self.kind == "one":
            few = f"{len(found)} label ({', '.join(found)})"
            raise ValueError(f"the training {self.rows} have {few}: two are needed to tell")
        if len(found) > MOST:
            raise ValueError(
                f"the training {self.rows} have {len(found):,} labels: for numbers, set task.kind to number"
            )
        return replace(taught, labels=tuple(found))

    def _labels(self, row: Row) -> list[str]:
        label = row["label"]
        if self.kind == "several":
            each = label if isinstance(label, list) else str(label).split("|")
            return [str(x).strip() for x in each if str(x).strip()]
        if isinstance(label, list | dict):
            raise ValueError(f"the label {label!r} is several: set task.kind to several")
        return [str(label).strip()]

    def head(self, model: type[nn.Module]) -> HeadConfig:
        pool = self.pool or ("last" if issubclass(model, DecoderOnly) else "first")
        size = 1 if self.kind == "number" else len(self.labels)
        return HeadConfig("classes", size, pool=pool, hidden=self.hidden, dropout=self.dropout)

    def texts(self, row: Row) -> Sequence[str]:
        return [row["text"], *([row["pair"]] if "pair" in row else [])]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        label = Column("float32" if self.kind == "number" else "uint32", ragged=False)
        return {"tokens": Column.ids(vocabulary), "segments": Column("uint8", ragged=False), "label": label}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        """Cut to what is read together: of a pair, the longer text first."""
        known = {label: i for i, label in enumerate(self.labels)}
        texts = tokenizer.encode_batch([row["text"] for row in rows])
        pairs = iter(tokenizer.encode_batch([row["pair"] for row in rows if "pair" in row]))
        for row, text in zip(rows, texts, strict=True):
            pair = next(pairs) if "pair" in row else None
            marks = len(tokenizer.marks.around([], None if pair is None else [])[0])
            text, pair = shortened(text, pair, (self.longest or 2**30) - marks)
            yield (*tokenizer.marks.around(text, pair), self._target(row, known))

    def _target(self, row: Row, known: dict[str, int]) -> list[float] | list[int]:
        if self.kind == "number":
            try:
                return [float(row["label"])]
            except (TypeError, ValueError):
                raise ValueError(f"the label {row['label']!r} is no number: task.kind is number") from None
        own = self._labels(row)
        for label in own:
            if label not in known:
                place = f"{row['name']}: " if "name" in row else ""
                raise ValueError(f"{place}the label {label!r} is none of training: {hint(label, known)}")
        if self.kind == "one":
            return [known[own[0]]]
        return [int(label in own) for label in self.labels]

    def held(self, rows: Iterable[Row], place: Path, skipped: Skipped) -> list[Row]:
        """As they are; a label that no training row has is found before the first step, and not after the last."""
        found, known = list(rows), {label: i for i, label in enumerate(self.labels)}
        for row in found:
            self._target(row, known)
        return found

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad = tokenizer.marks.pad or 0

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            read = [Framed(ids.tolist(), segments.tolist()) for ids, segments, _ in rows]
            inputs = batched(read, pad, True).tensors
            labels = torch.from_numpy(np.stack([label for *_, label in rows]))
            labels = labels.float() if self.kind == "number" else labels.long()
            return Batch({**inputs, "labels": labels if self.kind == "several" else labels[:, 0]}, len(rows))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Labelled(model, self.kind, smoothing)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: ClassifyUse, **how: Any) -> Classifier:
        classifier = Classifier(models, tokenizer, use, longest=self.longest, **how)
        classifier.labels, classifier.kind = self.labels, self.kind
        classifier.second = "" if self.pairs is False else classifier.second
        return classifier

    def shown(self, row: Row) -> str:
        """A row, as a sample shows it."""
        return " ║ ".join(self.texts(row))

    def measure(self, predictor: Classifier, held_out: Sequence[Row], recipe: Any) -> Measured:
        return self.judged(held_out, self.logits(predictor, held_out), predictor.use)

    def logits(self, predictor: Classifier, rows: Sequence[Row]) -> NDArray[np.float64]:
        """What a model says of each class of some rows, (N, C)."""
        asks = [Given(row["text"], row.get("pair")) for row in rows]
        return np.array([each.logits for each in predictor.answers(asks, predictor.use)])

    def judged(self, rows: Sequence[Row], logits: NDArray[np.float64], use: ClassifyUse) -> Measured:
        """How good that is."""
        texts = list(map(self.shown, rows[:SHOWN]))
        if self.kind == "number":
            x, y = np.array([self._target(row, {})[0] for row in rows]), logits[:, 0]
            numbers = [Sample(text, f"{b:g}", f"{a:g}") for text, a, b in zip(texts, x, y, strict=False)]
            evidence = Evidence(len(x), lambda some: correlation(x[some], y[some]), made=CORRELATION)
            return Measured.of(evidence, "spearman", numbers)
        own, one = [self._labels(row) for row in rows], self.kind == "one"
        check_known(own, self.labels, self.rows, "labels")
        truth, p = indicated(own, self.labels), probable(logits / use.temperature, one)
        told = p.argmax(1)[:, None] == np.arange(p.shape[1]) if one else p >= use.threshold
        said = ["|".join(self.labels[i] for i in np.flatnonzero(row)) for row in told[:SHOWN]]
        samples = [Sample(text, b, "|".join(a)) for text, a, b in zip(texts, own, said, strict=False)]

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            found = agreement(truth[some], told[some], p[some], one)
            return found | ({"top5": among_first(truth[some], p[some], 5)} if self.first and p.shape[1] > 5 else {})

        evidence = Evidence(len(p), figures, *decided(truth, p, one), AGREEMENT)
        return Measured.of(evidence, "accuracy" if one else "f1", samples)

    def temperature(self, rows: Sequence[Row], logits: NDArray[np.float64]) -> float:
        """At which the loss is least on what a model has said of some rows."""
        if self.kind == "number":
            raise ValueError("a model that tells a number has no probabilities: there is nothing to calibrate")
        return fitted_temperature(logits, indicated(list(map(self._labels, rows)), self.labels), self.kind == "one")


def check_known(rows: Iterable[Iterable[str]], labels: Iterable[str], called: str, which: str) -> None:
    """Refuse rows with what a model was never taught: it would count as a mistake that nobody can help."""
    if unseen := {label for row in rows for label in row}.difference(labels):
        raise ValueError(f"these {called} have {which} that the model does not know: {', '.join(sorted(unseen))}")


MOST = 10_000  # labels


def _in_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their value, then words by the alphabet."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def shortened(text: list[int], pair: list[int] | None, most: int) -> tuple[list[int], list[int] | None]:
    """A text, and its pair, cut to so many tokens together, the longer of the two first.

    >>> shortened([1, 2, 3, 4, 5], [6, 7], 4)
    ([1, 2], [6, 7])
    """
    if pair is None:
        return text[:most], None
    over = max(0, len(text) + len(pair) - most)
    first = min(over, max(0, len(text) - len(pair)))
    second = min(over, max(0, len(pair) - len(text)))
    rest = over - first - second
    return text[: len(text) - first - (rest + 1) // 2], pair[: len(pair) - second - rest // 2]


TASK = Classify
