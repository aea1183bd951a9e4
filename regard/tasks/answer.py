"""Answering: a question and a text in; the part of the text that answers it, or that none does, out; SQuAD's figures.

Letters: N tokens of a context, L tokens of an answer at most.

A model reads [cls] question [sep] context [sep], and says how likely an answer begins, and ends, at each place. The
first one, [cls], stands for no answer (Devlin et al., 2019).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checks import at_least, share
from regard.core.generation import DecoderOnly
from regard.core.outputs import HeadConfig
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.rows import WAYS, Row, RowFiles
from regard.data.text import Skipped, decoded, from_json, open_bytes
from regard.data.tokenizers import Tokenizer
from regard.evaluation.spans import ANSWERING, marked, of_marks
from regard.tasks.classify import SHOWN, Evaluation
from regard.tasks.reader import (
    BARS,
    Framed,
    Given,
    Pictured,
    Rated,
    Reader,
    Span,
    asked,
    batched,
    check_length,
    windows,
)
from regard.tasks.task import Data, Evidence, Measured, Sections, Task
from regard.tasks.uses import AnswerUse
from regard.training.objectives import Objective, Spans
from regard.training.run import Sample
from regard.training.stream import Collate

INF = float("inf")
Place = tuple[int, int]  # from one character to before another


@dataclass(frozen=True)
class QuestionFiles(RowFiles):
    """Where questions, contexts and answers are: SQuAD's own JSON, or a jsonl, a csv or a tsv with a question a row.

    There an answer is a text, and `start` where it begins in the context; left out, it is where it first stands. None,
    or a blank one, is none. In a jsonl `answers` may be several: [text, ...], [{"text": ..., "answer_start": ...}, ...]
    or {"text": [...], "answer_start": [...]}.
    """

    ways = (*WAYS, "squad")
    parts = ("question", "context")
    optional = ("answers", "answer", "start")

    squad: str | None = None  # one file, as SQuAD 1.1 and 2.0 are distributed
    absent: str = ""  # what an answer says where there is none

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The questions, in order; answers that are not in their contexts are counted in `skipped`, the first named."""
        counts, first = Skipped() if skipped is None else skipped, ""
        for number, row in enumerate(super().read(skipped), start=1):
            try:
                answers = [(text, at) for text, at in _answers(row) if text.strip() not in ("", self.absent)]
                assert isinstance(row["question"], str)
                assert isinstance(row["context"], str)
            except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
                what = "text as question and context, and answers as texts with their starts"
                raise ValueError(f"{self.path}, question {number}: {what} are needed, got {row}"[:300]) from None
            places = [located(row["context"], text, at) for text, at in answers]
            for (text, _), place in zip(answers, places, strict=True):
                if place is None:
                    first = first or f"{text[:40]!r} to {row['question'][:60]!r}"
                    counts.notes[f"answers are not in their contexts, and not learnt from (the first: {first})"] += 1
            found = {"answers": [text for text, _ in answers], "places": [each for each in places if each is not None]}
            yield {"question": row["question"], "context": row["context"], **found}

    def rows(self) -> Iterator[Row]:
        if not self.squad:
            yield from super().rows()
            return
        with open_bytes(self.path) as stream:
            held = from_json(decoded(stream.read(), f"{self.path}:"), self.path, "; SQuAD is one object")
        try:
            for paragraph in (each for article in held["data"] for each in article["paragraphs"]):
                for one in paragraph["qas"]:
                    answers = [] if one.get("is_impossible") else one["answers"]
                    row = {"question": one["question"], "context": paragraph["context"], "answers": answers}
                    yield self._complete(row, f"{self.path}, {one.get('id')}", one)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} is not as SQuAD is ({error!r}): see data, paragraphs, qas there") from None


def _answers(row: Row) -> list[tuple[str, int | None]]:
    """The answers of a row, each with its beginning, if that is told."""
    held = row.get("answers", row.get("answer"))
    if isinstance(held, str):
        held = {"text": held, "start": row.get("start")}
    if isinstance(held, Mapping) and isinstance(held["text"], list):
        starts = held.get("answer_start") or [None] * len(held["text"])
        held = [{"text": text, "start": at} for text, at in zip(held["text"], starts, strict=True)]
    each = [held] if isinstance(held, Mapping) else [{"text": x} if isinstance(x, str) else x for x in held or ()]
    return [(x["text"], _number(x.get("answer_start", x.get("start")))) for x in each]


def _number(told: object) -> int | None:
    """The number with which a text begins, a bracket aside: (25, 47) is 25."""
    found = re.match(r"\(?(\d+)", str(told))
    return int(found[1]) if found else None


def located(context: str, answer: str, start: int | None) -> Place | None:
    """Where an answer stands in its context, white space aside; `start` is where it begins, or it is the first.

    >>> located("It's $11, or $12.", "$ 11", 5), located("$1, $1", "$1", None), located("$1", "$2", 0)
    ((5, 8), (0, 2), None)
    """
    if start is not None and context.startswith(answer, start):
        return start, start + len(answer)
    pattern = re.compile(r"\s*".join(map(re.escape, "".join(answer.split()))))
    found = pattern.search(context) if start is None else pattern.match(context, min(start, len(context)))
    return found.span() if found else None


@dataclass(frozen=True)
class QuestionConfig(Data):
    """Where questions and answers come from."""

    train: QuestionFiles | None = None  # your own files
    valid: QuestionFiles | None = None  # held out of train if left out
    test: QuestionFiles | None = None  # held out of train if left out
    max_length: int = 384  # tokens of a question and its context; a longer context is read in windows

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})


@dataclass(frozen=True)
class AnswerConfig:
    """What a model is for."""

    name: str = "answer"
    dropout: float = 0.0  # before the begins and ends

    def __post_init__(self) -> None:
        share(whole=True, **{"task.dropout": self.dropout})


@dataclass(frozen=True)
class Reply:
    """What answers a question."""

    text: str  # "" where nothing does
    start: int | None  # its first character in the context
    end: int | None  # and the one after its last
    probability: float  # of it, among all parts of the context and none
    none: float  # how probable it is that there is no answer; 0 where none is never said
    best: list[Span] = field(default_factory=list)  # the likeliest parts, none aside
    windows: int = 1  # in which the context was read


class Answerer(Reader):
    """A model that answers questions, and its tokenizer.

    >>> answerer = load("runs/squad")                                                    # doctest: +SKIP
    >>> answerer.answer("Who fled?", "The army, led by Ney, fled.")                      # doctest: +SKIP
    Reply(text='The army', start=0, end=8, probability=0.93, ...
    """

    second = "context"
    unanswerable: bool  # whether it has learnt that there may be no answer

    @overload
    def answer(self, question: str, context: str, **settings: Any) -> Reply: ...
    @overload
    def answer(self, question: Sequence[Any], **settings: Any) -> list[Reply]: ...
    def answer(self, question: Any, context: str | None = None, **settings: Any) -> Any:
        """What in a context answers a question; or the same of each pair of a list: [(question, context), ...]."""
        several = [Given(question, context)] if isinstance(question, str) else asked(question)
        found = self.answers(several, replace(self.use, **settings))
        return found[0] if isinstance(question, str) else found

    def answers(self, asks: Sequence[Given], settings: AnswerUse) -> list[Reply]:
        """What answers each of some questions, of which `pair` is the context: what the other methods are made of."""
        for ask in asks:
            if ask.pair is None:
                raise ValueError(f"{ask.place or repr(ask.text[:40])} has no context to find an answer in: give one")
        read = self.framed(asks)
        said = iter(self.outputs([each for row in read for each in row]))
        places = placed(self.tokenizer, [ask.pair or "" for ask in asks])
        return [
            self._told(ask.pair or "", own, row, [next(said) for _ in row], settings)
            for ask, own, row in zip(asks, places, read, strict=True)
        ]

    def pictured(self, ask: Given) -> Pictured:
        (reply,) = self.answers([ask], replace(self.use, top=BARS))
        bars = [
            Rated(each.text, each.probability, chosen=(each.start, each.end) == (reply.start, reply.end))
            for each in reply.best
        ]
        if reply.none:
            bars = sorted([*bars, Rated("", reply.none, chosen=not reply.text)], key=lambda bar: -bar.value)
        return Pictured(reply.text, [bars], text=ask.pair or "", spans=reply.best[:1] if reply.text else [])

    def _told(
        self, context: str, places: list[Place], read: list[Framed], logits: list[Tensor], use: AnswerUse
    ) -> Reply:
        said = [each.double().numpy() for each in logits]
        words = np.array([bool(context[a:b].strip()) for a, b in places], bool)
        if not words.any():
            return Reply("", None, None, 1.0, 1.0, [], len(read))
        scores = best_of(read, said, len(places), use.longest)
        ends = np.add.outer(np.arange(len(places)), np.arange(use.longest))
        scores[~(words[:, None] & words[np.minimum(ends, len(places) - 1)])] = -INF
        null = -INF
        if self.unanswerable or use.null is not None:
            null = min(float(each[0].sum()) for each in said)  # there is none if there is none in any window
        peak = max(null, float(scores.max()))
        likely, none = np.exp(scores - peak), float(np.exp(null - peak))
        total = float(likely.sum()) + none
        found: dict[Place, Span] = {}
        for i in np.argsort(-scores, axis=None, kind="stable"):
            first, more = divmod(int(i), use.longest)
            if len(found) == use.top or scores[first, more] == -INF:
                break
            start, end = stripped(context, places[first][0], places[first + more][1])
            found.setdefault((start, end), Span(context[start:end], start, end, float(likely[first, more]) / total))
        one, *_ = best = [*found.values()]
        if null - float(scores.max()) > (use.null or 0.0):
            return Reply("", None, None, none / total, none / total, best, len(read))
        return Reply(one.text, one.start, one.end, one.probability, none / total, best, len(read))


@dataclass(frozen=True)
class Answering(Task):
    """A question and a context in, a part of the context out."""

    unanswerable: bool = False  # whether some questions have no answer: found in the data
    longest: int | None = QuestionConfig.max_length
    dropout: float = 0.0

    name, called = "answer", "question answering"
    sections = Sections(AnswerConfig, QuestionConfig, AnswerUse, Evaluation)
    row, rows = "question", "questions"
    stands = "spans"

    @classmethod
    def of(cls, recipe: Any) -> "Answering":
        return cls(False, recipe.data.max_length, recipe.task.dropout)

    @classmethod
    def can(cls, model: type[nn.Module], heads: Sequence[str]) -> bool:
        """A model that reads one way knows nothing yet at its first place, which stands for no answer."""
        return super().can(model, heads) and not issubclass(model, DecoderOnly)

    def check(self, recipe: Any) -> None:
        check_length(recipe)

    def fitted(self, rows: Iterable[Row]) -> "Answering":
        """With whether there are questions without an answer."""
        there = {bool(row["answers"]) for row in rows}
        if True not in there:
            raise ValueError("no training question has an answer: say by `columns` where they stand")
        return replace(self, unanswerable=False in there)

    def head(self, model: type[nn.Module]) -> HeadConfig:
        return HeadConfig("spans", dropout=self.dropout)

    def texts(self, row: Row) -> Sequence[str]:
        return [row["context"], row["question"]]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        fixed = {"segments": Column("uint8", ragged=False), "span": Column("uint32", ragged=False)}
        return {"tokens": Column.ids(vocabulary), **fixed}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        """Each window of a context, with the answer if the whole of it lies there, else with none."""
        contexts = list(dict.fromkeys(row["context"] for row in rows))
        ids, places = tokenizer.encode_batch(contexts), placed(tokenizer, contexts)
        known = dict(zip(contexts, zip(ids, places, strict=True), strict=True))
        for row, question in zip(rows, tokenizer.encode_batch([row["question"] for row in rows]), strict=True):
            context, own = known[row["context"]]
            answer = covering(own, row["places"][0]) if row["places"] else None
            if row["answers"] and answer is None:
                continue
            try:
                read = list(windows(tokenizer.marks, question, context, self.longest))
            except ValueError:  # the question alone is too long
                yield None
                continue
            for each in read:
                yield each.ids, each.segments, _inside(each, answer)

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad = tokenizer.marks.pad or 0

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            inputs = batched([Framed(ids.tolist(), segments.tolist()) for ids, segments, _ in rows], pad, True).tensors
            labels = torch.from_numpy(np.stack([span for *_, span in rows])).long()
            return Batch({**inputs, "labels": labels}, len(rows))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Spans(model)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: AnswerUse, **how: Any) -> Answerer:
        answerer = Answerer(models, tokenizer, use, longest=self.longest, **how)
        answerer.unanswerable = self.unanswerable
        return answerer

    def measure(self, predictor: Answerer, held_out: Sequence[Row], recipe: Any) -> Measured:
        said = predictor.answer([(row["question"], row["context"]) for row in held_out])
        marks = marked([row["answers"] for row in held_out], [each.text for each in said])
        samples = [
            Sample(row["question"], one.text or "–", " | ".join(row["answers"]) or "–")
            for row, one in zip(held_out[:SHOWN], said, strict=False)
        ]
        evidence = Evidence(len(marks), lambda rows: of_marks(marks, rows), made=ANSWERING)
        return Measured.of(evidence, "f1", samples)


def best_of(
    read: Sequence[Framed], said: Sequence[NDArray[np.float64]], tokens: int, longest: int
) -> NDArray[np.float64]:
    """The score of each part of a context, that of its begin plus that of its end, in the window where it is best:
    (N, L), by its first token, and how many follow."""
    scores = np.full((tokens, longest), -INF)
    for each, logits in zip(read, said, strict=True):
        begin, end = logits[each.begins : each.begins + each.tokens].T
        for more in range(min(longest, each.tokens)):
            part = scores[each.first : each.first + each.tokens - more, more]
            np.maximum(part, begin[: each.tokens - more] + end[more:], out=part)
    return scores


def placed(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Place]]:
    """Where in each text its tokens stand, on all cores."""
    return [row.offsets for row in tokenizer.rust.encode_batch(texts)]


def covering(places: Sequence[Place], part: Place) -> Place | None:
    """The first and the last token of a part of a text, by where each token stands in the text.

    >>> covering([(0, 3), (3, 8), (8, 9)], (4, 9))
    (1, 2)
    """
    inside = [i for i, (a, b) in enumerate(places) if a < b and b > part[0] and a < part[1]]
    return (inside[0], inside[-1]) if inside else None


def _inside(read: Framed, answer: Place | None) -> Place:
    """Where in a window an answer stands; at its first place if not the whole of it does."""
    if answer is None or answer[0] < read.first or answer[1] >= read.first + read.tokens:
        return 0, 0
    return answer[0] - read.first + read.begins, answer[1] - read.first + read.begins


def stripped(text: str, start: int, end: int) -> Place:
    """The same part of a text without white space around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


TASK = Answering
