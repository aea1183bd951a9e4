"""What a model is for: from text to what it learns from, and from a model to answers and figures.

A task is one file. It knows no model: one is an argument. What it is made of are the sections of a recipe that are its
own, and what it leaves in a model's config.json is all that is needed to use the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.checks import at_least, choose
from regard.core.outputs import HeadConfig
from regard.data.arrays import Column, Table
from regard.data.batching import Position
from regard.data.corpora import letters
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer
from regard.training.objectives import Objective
from regard.training.run import Sample, Work
from regard.training.stream import Collate, Readable, stream

TASKS = {
    "translate": "regard.tasks.translate",
    "summarise": "regard.tasks.summarise",
    "transcribe": "regard.tasks.speech",
    "generate": "regard.tasks.generate",
    "classify": "regard.tasks.classify",
    "recognise": "regard.tasks.recognise",
    "graph": "regard.tasks.graph",
    "hear": "regard.tasks.hear",
    "tag": "regard.tasks.tag",
    "answer": "regard.tasks.answer",
    "embed": "regard.tasks.embed",
    "match": "regard.tasks.match",
    "caption": "regard.tasks.caption",
    "look": "regard.tasks.look",
    "mask": "regard.tasks.mask",
    "denoise": "regard.tasks.denoise",
    "converse": "regard.tasks.converse",
    "reward": "regard.tasks.reward",
    "prefer": "regard.tasks.prefer",
    "reinforce": "regard.tasks.reinforce",
}
FIRST = "translate"  # what a recipe is for that does not say


class Cut(tuple[Any, ...]):
    """The values of an example of which something was cut off."""


class Damaged(str):
    """Why a row is no example: its file cannot be read."""


class Evidence(NamedTuple):
    """What figures were taken of: so that they can be taken of some of it, and be drawn."""

    rows: int
    figures: Callable[[NDArray[np.int64]], dict[str, float]]  # of some of the rows, by number
    confidence: NDArray[np.float64] | None = None  # of each decision,
    right: NDArray[np.bool_] | None = None  # and whether it was
    made: Mapping[str, str] = MappingProxyType({})  # of a figure by its name, how it is made: part of its signature


class Measured(NamedTuple):
    """How good a model is; `score` is what is to be as large as possible."""

    score: float
    measures: dict[str, float]
    samples: list[Sample]
    evidence: Evidence | None = None

    @classmethod
    def of(cls, evidence: Evidence, score: str, samples: list[Sample]) -> "Measured":
        """All figures, of which this one is the score; of a loss, the less the better."""
        measures = evidence.figures(np.arange(evidence.rows))
        return cls(-measures[score] if score == "loss" else measures[score], measures, samples, evidence)


class Sections(NamedTuple):
    """The sections of a recipe that belong to its task, each a frozen dataclass."""

    task: type[Any]  # `name`, and what is particular to it
    data: type[Any]  # where examples come from
    decode: type[Any]  # how a model is used
    evaluate: type[Any]  # how it is judged


@dataclass(frozen=True)
class Data:
    """Where examples come from: a corpus by its name, or files, which know how they are read."""

    corpus: str | None = None  # a name that `regard data` lists; or give train
    train: Any = None  # your own files
    valid: Any = None  # held out of train if left out
    test: Any = None  # held out of train if left out
    hold_out: int = 1000  # rows kept from training where valid or test is not given
    limit: int | None = None  # use only the first so many training rows

    def __post_init__(self) -> None:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("data: give exactly one of corpus (a name) and train (your files)")
        at_least(1, **{f"data.{name}": getattr(self, name) for name in ("hold_out", "limit")})

    def files(self, progress: Any = None) -> dict[str, Any]:
        """The files of each split; a corpus is fetched if need be."""
        if self.corpus is not None:
            return self.of_corpus(self.corpus, progress)
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: split for name, split in given.items() if split is not None}

    def of_corpus(self, name: str, progress: Any) -> dict[str, Any]:
        """The same of a corpus."""
        raise ValueError(f"data.corpus = {name!r}: there is no corpus for this task; give your files as data.train")


@dataclass(frozen=True)
class Task(ABC):
    """A frozen dataclass: its fields are what config.json keeps of it.

    A row is an example as it stands in a file: a pair of texts, a document. The methods down to `open` are what a task
    must say; those after it have answers that fit most.
    """

    name: ClassVar[str]
    verb: ClassVar[str] = ""  # of the command, if it is not the name
    called: ClassVar[str]  # a model for it: a translation model
    sections: ClassVar[Sections]
    row: ClassVar[str]  # what an example is called: pair
    rows: ClassVar[str]  # and several
    by_rows: ClassVar[bool] = False  # a row has one label, not one a token
    ordered: ClassVar[bool] = False  # rows belong together in their order: of one text, its end is held out
    needs: ClassVar[type] = nn.Module  # the shape of a model that can do it
    stands: ClassVar[str] = "tokens"  # and the kind of head on it
    beforehand: ClassVar[bool] = False  # a model is measured before its first step, too
    marks: ClassVar[tuple[str, ...]] = ()  # that its sub-words have beside pad, bos, eos and unk
    shares: ClassVar[str] = ""  # who has the sub-words in common
    reads: ClassVar[str] = "tokens"  # what a model is given: tokens, or pixels
    worded: ClassVar[bool] = True  # there is text, so there are sub-words

    @abstractmethod
    def texts(self, row: Any) -> Sequence[str]:
        """What sub-words are learnt from; by the first, a row is held out, and known again elsewhere."""

    @abstractmethod
    def columns(self, vocabulary: int) -> Mapping[str, Column]:
        """What an example is made of."""

    @abstractmethod
    def examples(self, rows: Sequence[Any], tokenizer: Tokenizer) -> Iterable[Sequence[Any] | None]:
        """The values of each column for each row; None for a row that is too long, `Cut` for one that is shortened,
        `Damaged` for one that cannot be read."""

    @abstractmethod
    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        """What makes a batch of examples, with so much BPE-dropout."""

    @abstractmethod
    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        """What training minimises."""

    @abstractmethod
    def measure(self, predictor: Any, held_out: Sequence[Any], recipe: Any) -> Measured:
        """How good a model is by now, quickly: `predictor` is what `open` made of it."""

    @abstractmethod
    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: Any, **how: Any) -> Any:
        """What a person holds: a predictor. `use` is of the section `decode`."""

    @classmethod
    def of(cls, recipe: Any) -> "Task":
        """The task of a recipe: each of its fields is a setting of that name."""
        given: dict[str, Any] = {}
        for section in (recipe.evaluate, recipe.data, recipe.task):
            given |= vars(section)
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})

    def fitted(self, rows: Iterable[Any]) -> "Task":
        """The same, with what only the training rows say: which labels there are."""
        return self

    def head(self, model: type[nn.Module]) -> HeadConfig:
        """What must stand on the features of a model of this class."""
        return HeadConfig()

    @classmethod
    def can(cls, model: type[nn.Module], heads: Sequence[str]) -> bool:
        """Whether a model of this class, on which such heads may stand, can do it."""
        reads = getattr(model, "reads", "tokens")
        return issubclass(model, cls.needs) and cls.stands in heads and cls.reads == reads

    def drawn_by(self, row: Any) -> str:
        """What decides whether a row is held out."""
        return self.texts(row)[0]

    def trace(self, row: Any) -> str:
        """What a row is known by in another split."""
        return letters(self.texts(row)[0])

    def held(self, rows: Iterable[Any], place: Path, skipped: Skipped) -> Sequence[Any]:
        """Held-out rows, to be judged by again and again: as they are, or made ready once, in a new folder."""
        return list(rows)

    def prepared_by(self) -> list[Any]:
        """What of the task its token arrays hang on, beside files, sub-words and data.limit."""
        return [self.name, asdict(self)]

    def corpus(self, table: Table) -> Readable:
        """What is drawn from in training."""
        return table

    def tokens(self, tokenizer: Tokenizer) -> Tokenizer:
        """The sub-words, with what it needs of marks beside its `marks`."""
        return tokenizer

    def recalled(self, model: nn.Module, corpus: Any, tokenizer: Tokenizer, held_out: Sequence[Sequence[Any]]) -> Any:
        """The same as `corpus`, with what a model says of it before its first step; held-out rows may note it, too."""
        return corpus

    def equipped(self, model: nn.Module, tokenizer: Tokenizer, worth: Any, processes: int) -> "Task":
        """The same with what it needs in training: the model before its first step, what tells an answer's worth."""
        return self

    def stream(self, corpus: Any, collate: Collate, config: Any, world: Any, position: Position) -> Iterator[Work]:
        """The work of each step that follows a position in `corpus`; `config` is the section train."""
        return stream(corpus, collate, config, world, position)

    def steps(self) -> int:
        """That are made of each batch of the corpus."""
        return 1

    def length(self, recipe: Any) -> int:
        """Tokens that a row of a batch has, at most."""
        return int(recipe.data.max_length)

    def judge(self, predictor: Any, held_out: Sequence[Any], recipe: Any) -> tuple[dict[str, Any], list[Sample]]:
        """Every figure at the end, each {"score", "signature"} by its name, and what is to be shown."""
        _, measures, samples, _ = self.measure(predictor, held_out, recipe)
        how = f"{self.rows}:{len(held_out)}"
        return {name: {"score": value, "signature": how} for name, value in measures.items()}, samples

    def check(self, recipe: Any) -> None:  # noqa: B027  most have nothing to say
        """Refuse a recipe whose sections contradict each other."""

    def habits(self, rows: Iterable[Any]) -> dict[str, Any]:
        """Settings of `decode` that follow from what the text is like."""
        return {}

    def rehearse(self) -> None:  # noqa: B027
        """Refuse what would otherwise show at the end of a run."""

    def counted(self, train: Table, valid: Sequence[Any], test: Sequence[Any]) -> str:
        """How much there is to learn from."""
        return f"{len(train):,} {self.rows} · held out {len(valid):,} + {len(test):,}"

    def title(self, recipe: Any) -> str:
        """What it is about, in a few words."""
        return self.name

    @property
    def a_model(self) -> str:
        """What a model for it is: a translation model, an embedding model."""
        return f"a{'n' if self.called[0] in 'aeiou' else ''} {self.called} model"

    def noted(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {"name": self.name, **asdict(self)}


def in_force(settings: Any, kind: type[Any]) -> Any:
    """Settings without what an older regard has written of a search, `scores`, which is no setting any more."""
    if not (isinstance(settings, dict) and hasattr(kind, "scores")):
        return settings
    return {key: value for key, value in settings.items() if key != "scores"}


@cache
def task(name: str) -> type[Task]:
    """A task by its name; its file is imported when it is asked for."""
    found: type[Task] = import_module(choose("task", name, TASKS)).TASK
    return found
