"""Graphs as a model reads them: the words of each node, how far each is from each, and what lies on the way.

Letters: N nodes, E edges, R edges of a path that are read.

What a node or an edge is, words say, as they do in a text: `C charge=1`, `-`. So the words of a graph have a tokenizer,
and what no training graph had is unknown to it. All pairs of nodes are compared: that takes N² places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Column
from regard.data.tokenizers import Tokenizer

EDGE = "-"  # what an edge is of which nothing is said
NODE = "o"  # and a node
FAR = 255  # the distance of two nodes that no path joins
MOST = 2**24  # nodes: of more nobody makes a list, be it to refuse them
Ints = NDArray[np.int64]


class GraphError(ValueError):
    """Why something is no graph, or none that can be read: a line for a person."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes, and the edges between them.

    >>> graph = Graph.of({"nodes": ["C", "C", "O"], "edges": [[0, 1], [1, 2, "="]]})
    >>> graph.size, graph.kinds
    (3, ('-', '='))
    """

    nodes: tuple[str, ...]  # the words of each, with spaces between them
    edges: Ints  # (E, 2): from, to
    kinds: tuple[str, ...]  # what each edge is: a word
    numbers: NDArray[np.float32] | None = None  # (N, any): what else is known of each node
    directed: bool = False  # edges lead one way
    loops: int = 0  # edges from a node to itself, which were left out
    source: str = ""  # the text that it was, of a molecule its SMILES

    def __post_init__(self) -> None:
        if not self.nodes:
            raise GraphError("a graph without nodes: there is nothing to read")
        if len(self.edges) and not 0 <= self.edges.min() <= self.edges.max() < self.size:
            raise GraphError(
                f"an edge joins the nodes {self.edges.min()} to {self.edges.max()}: they are numbered from 0 to "
                f"{self.size - 1}"
            )
        if (loops := self.edges[:, 0] == self.edges[:, 1]).any():
            kept = tuple(kind for kind, loop in zip(self.kinds, loops, strict=True) if not loop)
            for name, value in (("edges", self.edges[~loops]), ("kinds", kept), ("loops", self.loops + loops.sum())):
                object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    @classmethod
    def of(cls, held: Any, place: str = "a graph") -> "Graph":
        """A graph as JSON has it: nodes, a list of words or how many there are, and edges, lists of two and a word."""
        if not isinstance(held, Mapping) or "edges" not in held:
            raise GraphError(f'{place}: a graph is written {{"nodes": ["C", "O"], "edges": [[0, 1, "="]]}}')
        try:
            edges = [(index(u), index(v), word(str(kind[0])) if kind else EDGE) for u, v, *kind in held["edges"]]
            nodes = held.get("nodes", 1 + max((max(u, v) for u, v, _ in edges), default=-1))
            if isinstance(nodes, int) and nodes > MOST:
                raise ValueError(f"{nodes:,} nodes are more than the {MOST:,} that a graph may have")
            nodes = [NODE] * nodes if isinstance(nodes, int) else [str(node) for node in nodes]
            numbers = held.get("numbers")
            given = None if numbers is None else np.asarray(numbers, np.float32).reshape(len(nodes), -1)
            if given is not None and not np.isfinite(given).all():
                raise ValueError("numbers that are none")
        except (TypeError, ValueError) as error:
            raise GraphError(f"{place} cannot be read: {error}") from None
        kinds = tuple(kind for *_, kind in edges)
        try:
            pairs = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2)
            return cls(tuple(nodes), pairs, kinds, given, bool(held.get("directed", False)))
        except (GraphError, OverflowError) as error:
            raise GraphError(f"{place}: {error}") from None

    def reordered(self, order: Sequence[int]) -> "Graph":
        """The same graph with its nodes in another order."""
        places = np.argsort(order)
        numbers = None if self.numbers is None else self.numbers[list(order)]
        return replace(self, nodes=tuple(self.nodes[i] for i in order), edges=places[self.edges], numbers=numbers)

    def both_ways(self) -> tuple[Ints, tuple[str, ...]]:
        """Edges as one goes along them, and what they are."""
        if self.directed:
            return self.edges, self.kinds
        return np.concatenate([self.edges, self.edges[:, ::-1]]), self.kinds * 2


def word(text: str) -> str:
    """A text as one word."""
    return "_".join(text.split()) or EDGE


@dataclass(frozen=True)
class GraphReading:
    """What of a graph a model reads."""

    reach: int = 0  # edges of a path
    laplacian: int = 0  # eigenvectors of the Laplacian, for positions
    walk: int = 0  # steps of a random walk, for positions
    attributes: int = 0  # numbers of each node
    most: int = 1024  # nodes

    def bytes(self, nodes: int) -> int:
        """That a graph takes, before a model has read it: a score and a weight for each pair are not all of it."""
        return nodes**2 * (1 + 2 * self.reach + 8)

    def check(self, graph: Graph, place: str) -> None:
        """Refuse a graph that is too large, or has other numbers."""
        if graph.size > self.most:
            raise GraphError(
                f"{place} has {graph.size:,} nodes: all pairs of them would take {self.bytes(graph.size) / 1e9:,.1f} "
                f"GB, for each head again; at most {self.most:,} are read (data.max_nodes)"
            )
        own = 0 if graph.numbers is None else graph.numbers.shape[1]
        if own != self.attributes:
            raise GraphError(
                f"{place} has {own} numbers a node, the model reads {self.attributes}: set model.attributes to {own}"
            )


class GraphArrays(NamedTuple):
    """A graph as arrays, each flat."""

    sizes: Ints  # (N,): words of each node
    words: Ints  # all of them
    distances: NDArray[np.uint8]  # N²: the edges of a shortest path, FAR where there is none
    paths: NDArray[np.uint16]  # N² · R: what each of its edges is, 0 behind its end
    numbers: NDArray[np.float32]  # N · any: attributes, then eigenvectors, then the walk


COLUMNS = {
    "sizes": Column("uint8"),
    "words": Column("uint16", ragged=False),
    "distances": Column("uint8", ragged=False),
    "paths": Column("uint16", ragged=False),
    "numbers": Column("float32", ragged=False),
}


def read(graph: Graph, tokenizer: Tokenizer, how: GraphReading) -> GraphArrays:
    """What a model reads of a graph."""
    ids = tokenizer.encode_batch(graph.nodes)
    edges, kinds = graph.both_ways()
    types = np.array([each[0] for each in tokenizer.encode_batch(kinds)] or [], np.int64)
    distances, paths = shortest(graph.size, edges, types, how.reach)
    parts = [np.zeros((graph.size, 0), np.float32) if graph.numbers is None else graph.numbers]
    if how.laplacian:
        parts.append(eigenvectors(graph.size, edges, how.laplacian))
    if how.walk:
        parts.append(returns(graph.size, edges, how.walk))
    numbers = np.concatenate(parts, 1, dtype=np.float32)
    sizes, words = np.array(list(map(len, ids))), np.array([i for row in ids for i in row], np.int64)
    return GraphArrays(sizes, words, distances.ravel(), paths.ravel(), numbers.ravel())


def shortest(n: int, edges: Ints, types: Ints, reach: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """How far each of n nodes is from each, (N, N), and what the first `reach` edges on the way are, (N, N, R).

    Of several shortest paths it is the one whose types come first, edge by edge: whatever the order of the nodes. All
    sources take a step at once.
    """
    distances, paths = np.full((n, n), FAR, np.uint8), np.zeros((n, n, reach), np.uint16)
    np.fill_diagonal(distances, 0)
    rank = np.zeros((n, n), np.int64)  # of a path among those of its length
    by = np.argsort(edges[:, 0], kind="stable")
    to, types = edges[by, 1], types[by]
    starts = np.searchsorted(edges[by, 0], np.arange(n + 1))
    source = via = np.arange(n)
    step = 0
    while len(source):
        step += 1
        degree = starts[via + 1] - starts[via]
        k = np.repeat(np.arange(len(via)), degree)  # which path goes on,
        e = np.arange(len(k)) - np.repeat(np.cumsum(degree) - degree, degree) + starts[via[k]]  # by which edge
        new = distances[source[k], to[e]] == FAR
        k, e = k[new], e[new]
        pair, before = source[k] * n + to[e], rank[source[k], via[k]]
        order = np.lexsort((types[e], before, pair))
        best = order[np.flatnonzero(np.diff(pair[order], prepend=-1))]
        k, e, before = k[best], e[best], before[best]
        start, middle, end = source[k], via[k], to[e]
        distances[start, end] = min(step, FAR - 1)
        paths[start, end] = paths[start, middle]
        if step <= reach:
            paths[start, end, step - 1] = types[e]
        by_rank = np.lexsort((types[e], before))
        changes = np.diff(before[by_rank], prepend=-1) | np.diff(types[e][by_rank], prepend=-1)
        rank[start[by_rank], end[by_rank]] = np.cumsum(changes != 0)
        source, via = start, end
    return distances, paths


def _adjacency(n: int, edges: Ints) -> NDArray[np.float64]:
    A = np.zeros((n, n))
    A[edges[:, 0], edges[:, 1]] = 1.0
    return A


def eigenvectors(n: int, edges: Ints, count: int) -> NDArray[np.float32]:
    """(N, count): those of I - D^-½ A D^-½ with the least eigenvalues but the first (Dwivedi & Bresson, 2021).

    The sign of one is of no meaning: here its cubes have a positive sum; in training it is drawn. Where an eigenvalue
    has several, they are not the only ones: symmetric graphs are told by a walk rather.
    """
    A = _adjacency(n, edges)
    A = np.maximum(A, A.T)
    scale = A.sum(1).clip(1.0) ** -0.5
    _, vectors = np.linalg.eigh(np.eye(n) - scale[:, None] * A * scale)
    found = vectors[:, 1 : count + 1]
    found = found * np.where((found**3).sum(0) < 0, -1.0, 1.0)
    return np.pad(found, ((0, 0), (0, count - found.shape[1]))).astype(np.float32)


def returns(n: int, edges: Ints, steps: int) -> NDArray[np.float32]:
    """(N, steps): how likely a random walk is back where it began, after each step (Dwivedi et al., 2022)."""
    A = _adjacency(n, edges)
    walk = A / A.sum(1, keepdims=True).clip(1.0)
    found, power = [], np.eye(n)
    for _ in range(steps):
        power = power @ walk
        found.append(power.diagonal())
    return np.stack(found, 1).astype(np.float32)
