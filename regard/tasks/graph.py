"""Graphs: one in, what it is out, or what each of its nodes or edges is; molecules are graphs, too.

Letters: B batch, N nodes, F words of a node, A numbers of a node, R edges of a path, E edges, C classes.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checks import at_least, one_of, share
from regard.core.outputs import POOLS, WEIGHED, HeadConfig
from regard.data.arrays import Column, Table
from regard.data.batching import Batch
from regard.data.graphs import COLUMNS, Graph, GraphArrays, GraphError, GraphReading, read
from regard.data.labelled_graphs import FOLDS, PARTS, GraphFiles
from regard.data.molecules import ALL, canonical, check_atoms, molecule
from regard.data.pictures import Sight
from regard.data.rows import Row
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer
from regard.evaluation.classes import probable, roc_auc
from regard.tasks.classify import KINDS, SHOWN, Classify, Evaluation
from regard.tasks.grapher import Example, GraphPredictor, StoredGraph
from regard.tasks.task import Damaged, Data, Evidence, Measured, Sections
from regard.tasks.uses import ClassifyUse
from regard.tasks.viewer import Viewed
from regard.training.objectives import IGNORE
from regard.training.run import Sample
from regard.training.stream import Collate

LEVELS = ("graph", "node", "edge")
SPLITS = ("hash", "scaffold")
UNTOLD = (None, "")  # of a node or an edge of which nothing is known


@dataclass(frozen=True)
class GraphData(Data):
    """Where graphs and labels come from."""

    train: GraphFiles | None = None  # your own files
    valid: GraphFiles | None = None  # held out of train if left out
    test: GraphFiles | None = None  # held out of train if left out
    split: str = "hash"  # how train is split where valid and test are left out: hash; scaffold, by skeletons
    fold: int | None = None  # of ten, from 1 on: it is held out, as valid and as test, and the other nine are learnt
    max_nodes: int = 1024  # a graph that has more is left out, and counted
    atoms: tuple[str, ...] = ALL  # what is said of an atom

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(SPLITS, **{"data.split": self.split})
        check_atoms(self.atoms)
        at_least(1, **{"data.max_nodes": self.max_nodes, "data.fold": self.fold})
        if self.fold is not None and self.fold > FOLDS:
            raise ValueError(f"data.fold = {self.fold}: there are {FOLDS}")
        whole = self.valid is None and self.test is None
        if not whole and (self.fold is not None or self.split != "hash"):
            raise ValueError("data.split and data.fold are of train: leave valid and test out")

    def files(self, progress: Any = None) -> dict[str, GraphFiles]:
        """Those of each split; of one file, its parts."""
        if self.train is None or (self.fold is None and self.split == "hash"):
            return super().files(progress)
        how = self.split if self.fold is None else f"fold:{self.fold}"
        return {part: replace(self.train, part=f"{how}:{part}") for part in PARTS}


@dataclass(frozen=True)
class GraphTaskConfig:
    """What a model is for."""

    name: str = "graph"
    level: str = "graph"  # what is told something of: graph, node, edge
    kind: str = "one"  # of the labels: one of them, several (columns of 0 and 1, some blank), number
    pool: str | None = None  # what stands for a graph: first, mean, max, attention; left out: as the model is made
    hidden: str | None = None  # a layer before the classes, with this activation
    dropout: float = 0.0  # before the classes

    def __post_init__(self) -> None:
        one_of(LEVELS, **{"task.level": self.level})
        one_of(KINDS, **{"task.kind": self.kind})
        one_of((*POOLS, *WEIGHED[:1]), **{"task.pool": self.pool})
        share(whole=True, **{"task.dropout": self.dropout})
        if self.level != "graph" and self.kind != "one":
            raise ValueError(f"task.kind = {self.kind}: nodes and edges have one class each")


@dataclass(frozen=True)
class GraphTask(Classify):
    """A graph in, what it is out."""

    longest: int | None = None  # what is read is said by `reading`
    hidden: str | None = None
    dropout: float = 0.0
    level: str = "graph"
    reading: GraphReading = field(default_factory=GraphReading)
    atoms: tuple[str, ...] = ALL
    scale: tuple[float, float] = (0.0, 1.0)  # of numbers that are told, in training: their mean and their spread

    name, called, verb = "graph", "graph", "classify"
    sections = Sections(GraphTaskConfig, GraphData, ClassifyUse, Evaluation)
    row, rows, by_rows = "graph", "graphs", False  # its nodes and edges may have labels
    reads = "graph"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "atoms", tuple(self.atoms))
        object.__setattr__(self, "scale", tuple(self.scale))
        if isinstance(self.reading, dict):  # as JSON has it
            object.__setattr__(self, "reading", GraphReading(**self.reading))

    @classmethod
    def of(cls, recipe: Any) -> "GraphTask":
        t, d, c = recipe.task, recipe.data, recipe.model.build(2**16)
        if not hasattr(c, "reach"):
            raise ValueError(f"task.name = graph: {recipe.model.preset} reads no graphs; take graphormer-tiny")
        reading = GraphReading(c.reach, c.laplacian, c.walk, c.attributes, d.max_nodes)
        pool = t.pool or ("first" if c.virtual else "mean")
        return cls((), t.kind, None, pool, t.hidden, t.dropout, t.level, reading, d.atoms)

    def check(self, recipe: Any) -> None:
        if recipe.model.base is None and recipe.tokens.kind != "none":
            raise ValueError(
                "tokens.kind: what nodes are called stands between spaces: write tokens: {kind: none, size: 0}"
            )
        if not recipe.train.batch:
            raise ValueError("train.batch_tokens = 0: say how many nodes make a batch, or how many graphs (batch_rows)")

    def fitted(self, rows: Iterable[Row]) -> "GraphTask":
        """With the labels that there are, or the mean and the spread of the numbers."""
        if self.kind != "number":
            return super().fitted(rows)  # type: ignore[return-value]
        told = np.array([self._target(row, {})[0] for row in rows])
        return replace(self, scale=(float(told.mean()), float(told.std()) or 1.0))

    def head(self, model: type[nn.Module]) -> HeadConfig:
        size = 1 if self.kind == "number" else len(self.labels)
        if self.level != "graph":
            return HeadConfig("tags", size, dropout=self.dropout)
        return HeadConfig("classes", size, pool=self.pool or "first", hidden=self.hidden, dropout=self.dropout)

    def noted(self) -> dict[str, Any]:
        return {"name": self.name, **{key: value for key, value in asdict(self).items() if key != "longest"}}

    def prepared_by(self) -> list[Any]:
        return [self.name, self.kind, self.level, asdict(self.reading), self.atoms]

    def graph(self, row: Row) -> Graph:
        """That of a row, said as the model is told."""
        own: Graph = row["graph"]
        return molecule(own.source, self.atoms) if own.source and self.atoms != ALL else own

    def texts(self, row: Row) -> Sequence[str]:
        graph = self.graph(row)
        return [" ".join(graph.nodes), " ".join(graph.kinds)]

    def shown(self, row: Row) -> str:
        return str(row["name"])

    def drawn_by(self, row: Row) -> str:
        return str(row["name"])

    def trace(self, row: Row) -> str:
        graph: Graph = row["graph"]
        if graph.source:
            return canonical(graph.source)
        said = hashlib.sha256(repr((graph.nodes, graph.kinds)).encode() + graph.edges.tobytes())
        said.update(b"" if graph.numbers is None else graph.numbers.tobytes())
        return said.hexdigest()

    def length(self, recipe: Any) -> int:
        return self.reading.most

    def _labels(self, row: Row) -> list[str]:
        label = row["label"]
        if self.level != "graph":
            return [str(x).strip() for x in self._each(row) if x not in UNTOLD]
        if isinstance(label, dict) and self.kind == "several":
            return [name for name, applies in label.items() if applies]
        return super()._labels(row)

    def _each(self, row: Row) -> list[Any]:
        """The labels of its nodes or edges, some of which may be None."""
        label, graph = row["label"], row["graph"]
        if isinstance(graph, Graph):
            count = graph.size if self.level == "node" else len(graph.edges)
            if graph.loops and self.level == "edge":
                raise ValueError(f"{row['name']} has edges from a node to itself: they cannot have labels")
            if not isinstance(label, list) or len(label) != count:
                there = len(label) if isinstance(label, list) else repr(label)[:20]
                raise ValueError(f"{row['name']} has {count} {self.level}s, and as labels {there}: give one for each")
        return list(label)

    def _target(self, row: Row, known: dict[str, int]) -> list[Any]:
        if self.level != "graph":
            alone = replace(self, level="graph")
            return [IGNORE if x in UNTOLD else alone._target({"label": x}, known)[0] for x in self._each(row)]
        label = row["label"]
        if isinstance(label, dict) and self.kind == "several":
            return [int(label[name]) if name in label else IGNORE for name in self.labels]
        return super()._target(row, known)

    def columns(self, vocabulary: int) -> dict[str, Column]:
        label = Column("float32" if self.kind == "number" else "int32", ragged=False)
        return {**COLUMNS, "pairs": Column("int32", ragged=False), "label": label}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        known = {label: i for i, label in enumerate(self.labels)}
        for row in rows:
            target, graph = self._target(row, known), self.graph(row)
            try:
                self.reading.check(graph, row["name"])
            except GraphError as error:
                yield Damaged(error)
                continue
            pairs = graph.edges.ravel() if self.level == "edge" else np.zeros(0, np.int64)
            yield (*read(graph, tokenizer, self.reading), pairs, np.array(target))

    def held(self, rows: Iterable[Row], place: Path, skipped: Skipped) -> list[Row]:
        """GraphArrays once; those that are too large are counted."""
        tokenizer, damaged = Tokenizer.load(place.parent / "tokenizer.json"), list[str]()

        def examples() -> Iterator[Any]:
            for row in rows:
                (example,) = self.examples([row], tokenizer)
                if isinstance(example, Damaged):
                    damaged.append(example)
                else:
                    yield (*example, np.frombuffer(row["name"].encode(), np.uint8))

        table = Table.build(place, examples(), {**self.columns(1), "name": Column("uint8", ragged=False)})
        if damaged:
            skipped.notes[f"graphs are left out ({damaged[0]})"] += len(damaged)
        every = range(len(table))
        both = zip(table.column("label", every), table.column("name", every), strict=True)
        return [
            {"graph": StoredGraph(table, i), "label": self._told(label), "name": name.tobytes().decode()}
            for i, (label, name) in enumerate(both)
        ]

    def _told(self, label: NDArray[Any]) -> Any:
        """A label as its file has it."""
        if self.kind == "number":
            return float(label[0])
        if self.kind == "several":
            return {name: bool(x) for name, x in zip(self.labels, label, strict=True) if x != IGNORE}
        each = [None if x == IGNORE else self.labels[x] for x in label]
        return each if self.level != "graph" else each[0]

    def inputs(self, examples: Sequence[Example], draw: Random | None) -> dict[str, Tensor]:
        """What a model reads of some graphs together; signs of eigenvectors are drawn, if there is a `draw`."""
        B, r = len(examples), self.reading
        N = max(len(each.read.sizes) for each in examples)
        width = max(1, *(int(each.read.sizes.max(initial=0)) for each in examples))
        nodes, keep = np.zeros((B, N, width), np.int64), np.zeros((B, N), bool)
        distances, paths = np.zeros((B, N, N), np.int32), np.zeros((B, N, N, r.reach), np.int32)
        numbers = np.zeros((B, N, r.attributes + r.laplacian + r.walk), np.float32)
        pairs = np.zeros((B, max(len(each.pairs) for each in examples), 2), np.int64)
        for i, (own, between) in enumerate(examples):
            n = len(own.sizes)
            keep[i, :n] = True
            nodes[i, :n][np.arange(width) < own.sizes[:, None]] = own.words
            distances[i, :n, :n] = own.distances.reshape(n, n)
            paths[i, :n, :n] = own.paths.reshape(n, n, r.reach)
            numbers[i, :n] = own.numbers.reshape(n, -1)
            pairs[i, : len(between)] = between
            if draw is not None and r.laplacian:
                signs = [draw.choice((-1.0, 1.0)) for _ in range(r.laplacian)]
                numbers[i, :, r.attributes : r.attributes + r.laplacian] *= signs
        found = {"nodes": nodes, "keep": keep, "distances": distances}
        found |= {"paths": paths} if r.reach else {}
        found |= {"numbers": numbers} if numbers.shape[2] else {}
        found |= {"pairs": pairs} if self.level == "edge" else {}
        return {name: torch.from_numpy(x) for name, x in found.items()}

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            examples = [Example(GraphArrays(*parts), pairs.reshape(-1, 2)) for *parts, pairs, _ in rows]
            targets = [target for *_, target in rows]
            if self.level != "graph":
                longest = max(map(len, targets))
                targets = [np.pad(each, (0, longest - len(each)), constant_values=IGNORE) for each in targets]
            labels = torch.from_numpy(np.stack(targets))
            mean, spread = self.scale
            labels = ((labels - mean) / spread).float() if self.kind == "number" else labels.long()
            count = len(rows) if self.level == "graph" else int((labels != IGNORE).sum())
            labels = labels[:, 0] if self.level == "graph" and self.kind != "several" else labels
            return Batch({**self.inputs(examples, draw), "labels": labels}, count)

        return batch

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: ClassifyUse, **how: Any) -> GraphPredictor:  # type: ignore[override]
        predictor = GraphPredictor(models, tokenizer, use, Sight(), **how)  # of which nothing is seen
        predictor.labels, predictor.kind, predictor.task, predictor.unknown = self.labels, self.kind, self, Counter()
        return predictor

    def logits(self, predictor: Any, rows: Sequence[Row]) -> NDArray[np.float64]:
        """Of each graph, or of each node or edge that has a label."""
        said = predictor.outputs([Viewed(row["graph"], row["name"]) for row in rows])
        if self.level == "graph":
            return np.array([each.tolist() for each in said])
        kept = [each[[x not in UNTOLD for x in self._each(row)]] for each, row in zip(said, rows, strict=True)]
        return np.concatenate([each.double().numpy() for each in kept])

    def judged(self, rows: Sequence[Row], logits: NDArray[np.float64], use: ClassifyUse) -> Measured:
        if self.level != "graph":
            return replace(self, level="graph").judged(self._parts(rows), logits, use)
        if self.kind == "several" and any(isinstance(row["label"], dict) for row in rows):
            return self._several(rows, logits, use)
        found = super().judged(rows, logits, use)
        return found._replace(score=-found.measures["rmse"]) if self.kind == "number" else found

    def temperature(self, rows: Sequence[Row], logits: NDArray[np.float64]) -> float:
        if self.level != "graph":
            return replace(self, level="graph").temperature(self._parts(rows), logits)
        return super().temperature(rows, logits)

    def _parts(self, rows: Sequence[Row]) -> list[Row]:
        """Nodes or edges that have labels, as rows of their own."""
        each = ((row, i, x) for row in rows for i, x in enumerate(self._each(row)) if x not in UNTOLD)
        return [{"label": x, "name": f"{row['name']}, {self.level} {i}"} for row, i, x in each]

    def _several(self, rows: Sequence[Row], logits: NDArray[np.float64], use: ClassifyUse) -> Measured:
        """Where some labels are not known: each class by those of which it is."""
        truth = np.array([self._target(row, {}) for row in rows])
        known, p = truth != IGNORE, probable(logits / use.temperature, False)

        def figures(some: NDArray[np.int64]) -> dict[str, float]:
            k, t, q = known[some], truth[some] == 1, p[some]
            areas = [roc_auc(t[k[:, c], c], q[k[:, c], c]) for c in range(q.shape[1])]
            held = np.where(t, q, 1.0 - q)[k].clip(1e-300)
            right = (t == (q >= use.threshold))[k]
            return {
                "roc_auc": float(np.nanmean(areas)),
                "accuracy": float(right.mean()),
                "loss": -float(np.log(held).mean()),
            }

        said = ["|".join(self.labels[i] for i in np.flatnonzero(row >= use.threshold)) for row in p[:SHOWN]]
        own = zip(rows, said, strict=False)
        samples = [Sample(self.shown(row), said, "|".join(self._labels(row))) for row, said in own]
        return Measured.of(Evidence(len(rows), figures), "roc_auc", samples)


TASK = GraphTask
