"""Who tells what graphs are, and what heads look at in them: a model that reads graphs, and its tokenizer.

Letters: N nodes, E edges, d_model width of the model.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.arrays import Table
from regard.data.graphs import FAR, NODE, Graph, GraphArrays, GraphError, read
from regard.data.molecules import ALL, Reaction, molecule
from regard.data.molecules import drawn as placed
from regard.inspection.graphs import DrawnGraph, graph_data, graph_page, laid_out, paired
from regard.inspection.importance import ablate_each
from regard.inspection.maps import attention_maps, without
from regard.inspection.page import AttentionMap
from regard.inspection.taps import record
from regard.native import UnsupportedError
from regard.tasks.classify import Classified, classified
from regard.tasks.embed import Embedded
from regard.tasks.reader import Given
from regard.tasks.recognise import Recogniser
from regard.tasks.uses import ClassifyUse, EmbedUse
from regard.tasks.viewer import Looks, Viewed

WHOLE = "graph"  # what the virtual node stands for


class Example(NamedTuple):
    """A graph as a model reads it, and of which pairs of nodes something is told."""

    read: GraphArrays
    pairs: NDArray[np.int64]  # (E, 2)


@dataclass(frozen=True)
class StoredGraph:
    """A graph that was read, on disk."""

    table: Table
    row: int

    def example(self) -> Example:
        """What was read."""
        *parts, pairs, _, _ = self.table.rows([self.row])[0]
        return Example(GraphArrays(*parts), pairs.reshape(-1, 2))


@dataclass(frozen=True)
class ClassifiedParts:
    """What the nodes of a graph are, or its edges."""

    parts: tuple[Classified, ...]


class GraphVectors:
    """Graphs in, vectors out."""

    def __init__(self, predictor: "GraphPredictor") -> None:
        self.predictor, self.use, self.unknown = predictor, EmbedUse(), predictor.unknown

    def answers(self, asks: Sequence[Viewed], settings: EmbedUse) -> list[Embedded]:
        """The vector of each graph."""
        return [Embedded(x[: settings.dimensions].numpy(), 0) for x in self.predictor.outputs(asks)]


@dataclass(frozen=True)
class MappedReaction:
    """Which atom is which, before a reaction and after it."""

    text: str  # the reaction, its atoms numbered
    pairs: tuple[tuple[int, int], ...]  # atoms before and after, counted from 0 on either side
    weights: NDArray[np.float32]  # (atoms, atoms): how much each looks at each in the last layer, of all sides


class GraphMapping:
    """Reactions in, which atom is which out."""

    def __init__(self, predictor: "GraphPredictor") -> None:
        self.predictor, self.use, self.unknown = predictor, EmbedUse(), predictor.unknown

    def answers(self, asks: Sequence[Viewed], settings: EmbedUse) -> list[MappedReaction]:
        """The atoms of each reaction."""
        return [self.predictor.mapped(ask.image) for ask in asks]


class GraphPredictor(Recogniser):
    """A model that tells what graphs are: molecules as SMILES, `Graph`s, or objects as JSON has them.

    >>> model = load("runs/esol")                     # doctest: +SKIP
    >>> model.classify("CCO").value                   # doctest: +SKIP
    0.87
    """

    task: Any  # a `GraphTask`
    unknown: Counter[str]  # words that no training graph had, and how often they were met

    def seen(self, asks: Sequence[Viewed]) -> list[Any]:
        return [self._example(ask) for ask in asks]

    def _example(self, ask: Viewed | Given) -> Example:
        if isinstance(stored := getattr(ask, "image", None), StoredGraph):
            return stored.example()
        graph, place = self.graph(ask), ask.place or "a graph"
        self.task.reading.check(graph, place)
        found, unknown = read(graph, self.tokenizer, self.task.reading), self.tokenizer.marks.unk
        if unknown in found.words or unknown in found.paths:
            words = {word for text in (*graph.nodes, *graph.kinds) for word in text.split()}
            self.unknown.update(word for word in words if self.tokenizer.encode(word) == [unknown])
        return Example(found, graph.edges)

    def graph(self, ask: Viewed | Given) -> Graph:
        """What is asked about, as a graph; a text is SMILES."""
        if isinstance(ask, Given) and ask.pair is not None:
            raise GraphError("a graph is read alone: leave the pair out")
        given = ask.text if isinstance(ask, Given) else ask.image
        if isinstance(given, GraphError):  # as its file was read
            raise given
        if isinstance(given, Graph):
            own = self.task.atoms != ALL and given.source
            return molecule(given.source, self.task.atoms) if own else given
        return molecule(given, self.task.atoms) if isinstance(given, str) else Graph.of(given, ask.place or "a graph")

    @property
    def vectors(self) -> GraphVectors:
        """What answers with vectors, of a model that was taught no classes."""
        if (kind := self.model.head.kind) != "vector":  # type: ignore[union-attr]
            raise ValueError(f"this model tells {kind}, and no vectors: `regard classify` is its verb")
        return GraphVectors(self)

    def embed(self, graphs: Sequence[Any]) -> NDArray[np.float32]:
        """The vector of each graph, (N, d): SMILES, `Graph`s, or objects as JSON has them."""
        asks = [each if isinstance(each, Viewed) else Viewed(each) for each in graphs]
        return np.stack([each.vector for each in self.vectors.answers(asks, EmbedUse())])

    @property
    def mapping(self) -> GraphMapping:
        """What answers with reactions whose atoms are mapped."""
        if not self.model.config.across:  # type: ignore[union-attr]
            raise ValueError("this model reads no reactions: `regard import rxnmap` brings one that does")
        return GraphMapping(self)

    def mapped(self, text: str) -> MappedReaction:
        """Which atom is which in a reaction such as CC(=O)O.OCC>>CC(=O)OCC."""
        reaction, model = Reaction.of(text), self.model
        asks = [Viewed(each, each) for each in (*reaction.before, *reaction.after)]
        graphs, first = list(map(self.graph, asks)), len(reaction.before)
        if (size := sum(graph.size for graph in graphs)) > self.task.reading.most:
            raise GraphError(f"{text[:60]!r} has {size:,} atoms: at most {self.task.reading.most:,} are read")
        last = f"across.layers.{model.config.across - 1}.self_attention"  # type: ignore[union-attr]
        inputs = self.task.inputs(list(map(self._example, asks)), None) | {"after": torch.arange(len(asks)) >= first}
        with record(model, last) as seen, torch.inference_mode():
            model.reaction(**{name: x.to(self.device) for name, x in inputs.items()})  # type: ignore[operator]
        weights = seen[last][0].mean(0)[1:, 1:].float().cpu().numpy()  # (atoms, atoms)
        n, near = sum(graph.size for graph in graphs[:first]), _joined(graphs)
        kinds = np.array([node.split()[0] for graph in graphs for node in graph.nodes])
        looks = (weights[n:, :n] + weights[:n, n:].T) * (kinds[n:, None] == kinds[:n])
        before = paired(looks, near[n:, n:], near[:n, :n])
        numbers = [*range(1, n + 1), *(0 if i is None else i + 1 for i in before)]
        pairs = tuple((i, j) for j, i in enumerate(before) if i is not None)
        return MappedReaction(reaction.numbered(numbers), pairs, weights)

    def attention(
        self,
        graph: Any,
        *,
        names: str | Sequence[str] = "*",
        heads: Sequence[int] | None = None,
        view: str = "weights",
        words: bool = False,
        special: bool = True,
    ) -> list[AttentionMap]:
        """What every head looks at while the model reads a graph; without `special`, the virtual node is left out."""
        if words:
            raise ValueError("words are of texts: a node is one by itself")
        ask = graph if isinstance(graph, Viewed) else Viewed(graph)
        inputs = {name: x.to(self.device) for name, x in self.task.inputs([self._example(ask)], None).items()}
        texts = {"nodes": [*([WHOLE] if self._virtual else []), *self._named(self.graph(ask))]}
        maps = attention_maps(self.model, inputs, texts, names=names, heads=heads, view=view)
        return maps if special else [without(each, {WHOLE}) for each in maps]

    @property
    def _virtual(self) -> bool:
        return bool(self.model.config.virtual)  # type: ignore[union-attr]

    @staticmethod
    def _named(graph: Graph) -> list[str]:
        return [f"{(text.split() or [NODE])[0]} {i}" for i, text in enumerate(graph.nodes)]

    def attention_page(self, graph: Any) -> str:
        """A self-contained HTML page that draws a graph, what each head looks at, and what is said without it."""
        ask = graph if isinstance(graph, Viewed) else Viewed(graph)
        return graph_page(self.drawn(ask), self.graph(ask).source or ask.place or "a graph")

    def drawn(self, ask: Viewed, alone: bool = True) -> dict[str, Any]:
        """What such a page shows; `alone`, also what is said without each head."""
        own, maps = self.graph(ask), self.attention(ask)
        far = read(own, self.tokenizer, self.task.reading).distances.reshape(own.size, own.size)
        places = placed(own.source) if own.source else laid_out(far.astype(np.int64), FAR)
        edges = [(int(u), int(v), kind) for (u, v), kind in zip(own.edges, own.kinds, strict=True)]
        nodes = [(text.split() or [NODE])[0] for text in own.nodes]

        def said() -> str:
            if self.model.head.kind == "vector":  # type: ignore[union-attr]
                return ""
            (told,) = self.answers([ask], replace(self.use, top=3))
            if isinstance(told, ClassifiedParts):
                return ", ".join(f"{part.label}" for part in told.parts)
            each = [f"{label} {p:.1%}" for label, p in told.probabilities.items()]
            return " · ".join(each) if each else told.label

        missed = ablate_each(self.model, said) if alone else {}
        return graph_data(DrawnGraph(places, edges, nodes, self._virtual), maps, said(), missed)

    def size(self, asks: Sequence[Viewed], settings: Any = None) -> tuple[int, int]:
        """Nodes that some graphs have; nothing is written."""
        return sum(self.graph(ask).size for ask in asks), 0

    def answers(self, asks: Sequence[Viewed], settings: ClassifyUse) -> list[Any]:
        """What each of some graphs is, or their nodes or edges are."""
        if not self.labels and self.kind != "number":
            raise ValueError("this model knows no classes yet: teach it some, by a recipe with model.from")
        said = self.outputs(asks)
        if self.task.level == "graph":
            return [classified(each, self.labels, self.kind, settings) for each in said]
        each = [tuple(classified(part, self.labels, self.kind, settings) for part in graph) for graph in said]
        return list(map(ClassifiedParts, each))

    def outputs(self, asks: Sequence[Viewed]) -> list[Tensor]:
        mean, spread = self.task.scale
        said = super().outputs(asks)
        return [mean + spread * each for each in said] if self.kind == "number" else said

    def native(self, model: nn.Module) -> Looks:
        raise UnsupportedError("graphs")

    def module(self, model: nn.Module, reason: str) -> Looks:
        @torch.inference_mode()
        def looks(examples: Sequence[Any]) -> list[Tensor]:
            found, how = list[Tensor](), self.task
            groups = [[each] for each in examples] if self.bitwise else [list(examples)]
            for some in groups:
                inputs = how.inputs(some, None)
                said = model(**{name: x.to(self.device) for name, x in inputs.items()}).float().cpu()
                sizes = [len(each.read.sizes) if how.level == "node" else len(each.pairs) for each in some]
                found += list(said) if how.level == "graph" else [x[:n] for x, n in zip(said, sizes, strict=True)]
            return found

        return looks


def _joined(graphs: Sequence[Graph]) -> NDArray[np.bool_]:
    """(N, N): which nodes of some graphs, one after the other, are next to each other."""
    found, begin = np.zeros((size := sum(graph.size for graph in graphs), size), bool), 0
    for graph in graphs:
        u, v = begin + graph.edges.T
        found[u, v] = found[v, u] = True
        begin += graph.size
    return found
