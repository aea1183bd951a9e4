"""Embedding: a text in, a vector out, so that texts that mean the same are near; searching, clustering, comparing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from regard.checks import above, at_least, one_of
from regard.core.generation import padded
from regard.core.outputs import POOLS, HeadConfig
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.rows import Row, RowFiles
from regard.data.tokenizers import Tokenizer
from regard.evaluation.classes import CORRELATION, correlation
from regard.evaluation.retrieval import RETRIEVAL, means, retrieval
from regard.tasks.reader import BARS, Given, Pictured, Rated, Reader, check_length
from regard.tasks.task import Data, Evidence, Measured, Sections, Task
from regard.tasks.uses import EmbedUse
from regard.training.objectives import Alike, Contrastive, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

KINDS = ("contrast", "score")
SHOWN = 100  # samples


class PairedFiles(RowFiles):
    """Where texts are that belong together."""

    parts = ("text", "pair")
    optional = ("score", "negative")


@dataclass(frozen=True)
class PairedConfig(Data):
    """Where the texts come from."""

    train: PairedFiles | None = None  # your own files
    valid: PairedFiles | None = None  # held out of train if left out
    test: PairedFiles | None = None  # held out of train if left out
    max_length: int = 128  # tokens of a text; longer ones are cut in training

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})


@dataclass(frozen=True)
class EmbedConfig:
    """What a model is for."""

    name: str = "embed"
    learns: str = "contrast"  # which of a batch belongs to which (negative: a wrong one); or the score of each pair
    scale: float = 20.0  # what similarities are multiplied by before a soft-max
    most: float = 5.0  # of the scores: what two texts have that mean the same
    pool: str = "mean"  # what stands for a text: first, last, mean, max

    def __post_init__(self) -> None:
        one_of(KINDS, **{"task.learns": self.learns})
        one_of(POOLS, **{"task.pool": self.pool})
        above(0, **{"task.scale": self.scale, "task.most": self.most})


@dataclass(frozen=True)
class Judging:
    """It is judged by all that there is."""


class Embedded(NamedTuple):
    """What a text becomes."""

    vector: NDArray[np.float32]  # (d,)
    tokens: int  # of the text
    windows: int = 1  # in which it was read

    @property
    def normal(self) -> "Embedded":
        """The same of length 1."""
        return self._replace(vector=self.vector / max(float(np.linalg.norm(self.vector)), 1e-12))

    @property
    def numbers(self) -> list[float]:
        """The vector as it is written: nine digits tell any two of fp32 apart."""
        return [float(f"{x:.9g}") for x in self.vector.tolist()]


def near(answers: Sequence[Embedded]) -> list[float]:
    """The cosine of the first vector with each other."""
    first, *others = (each.normal.vector for each in answers)
    return [float(first @ each) for each in others]


class Embedder(Reader):
    """A model that makes vectors of texts, and its tokenizer.

    >>> embedder = load("runs/minilm")                                             # doctest: +SKIP
    >>> embedder.embed(["A cat sits.", "A feline is sitting."]).shape              # doctest: +SKIP
    (2, 384)
    """

    second = "lines"

    @overload
    def embed(self, text: str, **settings: Any) -> NDArray[np.float32]: ...
    @overload
    def embed(self, text: Sequence[str], **settings: Any) -> NDArray[np.float32]: ...
    def embed(self, text: str | Sequence[str], **settings: Any) -> NDArray[np.float32]:
        """The vector of a text (d,), or of each in a list (N, d), of length 1 if the model has them so."""
        given = [text] if isinstance(text, str) else text
        found = self.answers([Given(each) for each in given], EmbedUse(**vars(self.use) | settings))
        rows = np.stack([each.vector for each in found]) if found else np.zeros((0, self.width(None)), np.float32)
        return rows[0] if isinstance(text, str) else rows

    def answers(self, asks: Sequence[Given], settings: EmbedUse) -> list[Embedded]:
        """The vector of each text. One that is read in several windows has the mean of theirs, by their tokens."""
        if settings.dimensions is not None and settings.dimensions > self.width(None):
            raise ValueError(f"dimensions = {settings.dimensions}: the model's vectors have {self.width(None)} numbers")
        windows = self.framed(asks, long=settings.long)
        said = iter(self.outputs([each for row in windows for each in row]))
        found = []
        for row in windows:
            vector = next(said)
            if len(row) > 1:
                shares = torch.tensor([float(max(1, each.tokens)) for each in row])
                each_of = torch.stack([vector, *(next(said) for _ in row[1:])])
                vector = each_of.mul(shares[:, None]).sum(0) / shares.sum()
            vector = vector[: settings.dimensions]
            normal = len(row) > 1 or len(self.models) > 1 or settings.dimensions is not None
            if normal and self.model.head.normalise:  # type: ignore[union-attr]
                vector = F.normalize(vector, dim=-1)
            found.append(Embedded(vector.numpy(), row[-1].first + row[-1].tokens, len(row)))
        return found

    def pictured(self, ask: Given) -> Pictured:
        lines = [line for line in (ask.pair or "").splitlines() if line.strip()]
        first, *others = self.answers([Given(text) for text in (ask.text, *lines[:BARS])], self.use)
        bars = [Rated(*each) for each in zip(lines, near([first, *others]), strict=False)]
        said = " · ".join(f"{bar.value:.2f}" for bar in bars)
        numbers = {"norm": float(np.linalg.norm(first.vector)), "dimensions": len(first.vector)}
        return Pictured(said, [bars] if bars else [], cosines=True, numbers=numbers, vector=first.numbers)

    def width(self, settings: EmbedUse | None) -> int:
        """How many numbers a vector has."""
        own = int(self.model.config.d_model)  # type: ignore[union-attr, arg-type]
        return own if settings is None or settings.dimensions is None else settings.dimensions

    def search(self, query: str | Sequence[str], documents: Any, *, top: int = 10) -> Any:
        """The nearest of some documents, texts or (id, text), or of an `Index` or its folder: for a query, or each."""
        from regard.tasks.index import searched  # which stands on this

        return searched(self, query, documents, top)

    def similarity(self, texts: Sequence[str], others: Sequence[str]) -> NDArray[np.float32]:
        """The cosine of each text with each other: (N, M)."""
        a, b = (F.normalize(torch.from_numpy(self.embed(some)), dim=-1) for some in (texts, others))
        return (a @ b.T).numpy()


@dataclass(frozen=True)
class Embed(Task):
    """A text in, a vector out."""

    learns: str = "contrast"
    scale: float = 20.0
    most: float = 5.0
    pool: str = "mean"
    longest: int | None = PairedConfig.max_length

    name, called = "embed", "embedding"
    sections = Sections(EmbedConfig, PairedConfig, EmbedUse, Judging)
    row, rows, by_rows, stands = "pair", "pairs", True, "vector"

    @classmethod
    def of(cls, recipe: Any) -> "Embed":
        t = recipe.task
        return cls(t.learns, t.scale, t.most, t.pool, recipe.data.max_length)

    def check(self, recipe: Any) -> None:
        check_length(recipe)

    def head(self, model: type[nn.Module]) -> HeadConfig:
        return HeadConfig("vector", pool=self.pool, normalise=True)

    def texts(self, row: Row) -> Sequence[str]:
        return [row[name] for name in ("text", "pair", "negative") if name in row]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        ids = Column.ids(vocabulary)
        return {"first": ids, "second": ids, "negative": ids, "score": Column("float32", ragged=False)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        if self.learns == "score" and (missing := next((row for row in rows if "score" not in row), None)):
            raise ValueError(f"{missing['text'][:40]!r} has no score: name its column, or set task.learns to contrast")
        each = [tokenizer.encode_batch([row.get(part, "") for row in rows]) for part in ("text", "pair", "negative")]
        around = tokenizer.marks.around
        room = (self.longest or 2**30) - len(around([])[0])
        for row, *ids in zip(rows, *each, strict=True):
            framed = [
                around(x[:room])[0] if part in row else []
                for part, x in zip(("text", "pair", "negative"), ids, strict=True)
            ]
            yield (*framed, [_score(row) / self.most])

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad = tokenizer.marks.pad or 0

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            texts = [(group, ids.tolist()) for group in range(3) for ids in (row[group] for row in rows) if len(ids)]
            tokens = padded([ids for _, ids in texts], pad, 2**31)
            keep = torch.arange(tokens.shape[1]) < torch.tensor([len(ids) for _, ids in texts])[:, None]
            tensors = {"tokens": tokens, "keep": keep, "group": torch.tensor([group for group, _ in texts])}
            if self.learns == "score":
                scores = torch.from_numpy(np.concatenate([row[3] for row in rows]))
                tensors["labels"] = torch.cat([scores, scores.new_zeros(len(texts) - len(rows))])
            return Batch(tensors, len(rows))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Contrastive(model, self.scale) if self.learns == "contrast" else Alike(model)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: EmbedUse, **how: Any) -> Embedder:
        return Embedder(models, tokenizer, use, longest=self.longest, **how)

    def measure(self, predictor: Embedder, held_out: Sequence[Row], recipe: Any) -> Measured:
        texts, pairs = ([row[part] for row in held_out] for part in ("text", "pair"))
        a, b = predictor.embed(texts), predictor.embed(pairs)
        alike = (a * b).sum(1)
        samples = [Sample(t, f"{x:.2f}", p) for t, x, p in zip(texts[:SHOWN], alike, pairs, strict=False)]
        if all("score" in row for row in held_out):
            score = np.array([_score(row) for row in held_out])

            def figures(rows: NDArray[np.int64]) -> dict[str, float]:
                found = correlation(score[rows], alike[rows])
                del found["rmse"]  # of a cosine and a score: of no meaning
                return found

            return Measured.of(Evidence(len(score), figures, made=CORRELATION), "spearman", samples)
        found = retrieval(a @ b.T, [{i} for i in range(len(held_out))])
        evidence = Evidence(len(texts), lambda rows: means(found, rows), made=RETRIEVAL)
        return Measured.of(evidence, "mrr@10", samples)


def _score(row: Row) -> float:
    """How alike the texts of a row are."""
    try:
        return float(row.get("score", 0.0))
    except (TypeError, ValueError):
        raise ValueError(f"the score {row['score']!r} of {row['text'][:40]!r} is no number") from None


TASK = Embed
