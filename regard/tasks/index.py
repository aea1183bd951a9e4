"""Semantic search: the documents whose vectors are nearest to that of a query, exactly.

Letters: Q queries, B documents of a block, d width of a vector.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.checks import one_of
from regard.data.collection import Document, Show, Store, Vectors
from regard.data.near import KINDS, Near, products
from regard.data.words import Bm25, words_of
from regard.tasks.asks import windows
from regard.tasks.classify import Classifier
from regard.tasks.embed import Embedder
from regard.tasks.reader import Given
from regard.tasks.uses import EmbedUse, SearchUse

RANKS = 60  # what is added to a rank before ranks are compared: by how little the first of a list counts more
Ranked = list[tuple[int, float]]  # documents by their numbers, and scores


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    text: str
    score: float  # the cosine of its vector and the query's, or BM25; re-ranked, how likely the two belong together


class Index:
    """Documents in a folder that an embedder finds again; a classifier of pairs may rank what it finds.

    >>> embedder = load("runs/minilm")                                                  # doctest: +SKIP
    >>> index = Index.build(embedder, ["A cat sits.", "Stocks fell."], "animals")       # doctest: +SKIP
    >>> [hit.text for hit in index.search("a feline", top=1)]                           # doctest: +SKIP
    ['A cat sits.']
    """

    def __init__(
        self,
        embedder: Embedder,
        path: str | os.PathLike[str],
        *,
        name: str = "this one",
        use: SearchUse | None = None,
        reranker: Classifier | None = None,
        near: str = "exact",
    ) -> None:
        """What lies in the folder; a new one is empty. `name` is what errors call the model. All vectors are compared
        (exact), or those that faiss proposes (ivf, hnsw)."""
        one_of(KINDS, near=near)
        if reranker is not None:
            reranker.check_ranking()
        self.embedder, self.reranker = embedder, reranker
        self.use = use or SearchUse(**vars(embedder.use))
        embedding = self.use.embedding
        self.store = Store(path, fingerprint(embedder, embedding), name, embedder.width(embedding))
        self.near = None if near == "exact" else Near(self.store.path, near)
        self._words: tuple[str, Bm25] | None = None  # and of which documents
        self._sorted: tuple[str, Any, Any, Any] | None = None

    @classmethod
    def build(cls, embedder: Embedder, documents: Iterable[Any], path: str | os.PathLike[str], **how: Any) -> "Index":
        """A folder with these documents, texts or (id, text); of one that is there, vectors of the same texts stay."""
        index = cls(embedder, path, **how)
        index.renew(documents)
        return index

    @classmethod
    def open(cls, embedder: Embedder, path: str | os.PathLike[str], **how: Any) -> "Index":
        """What `build` has made with this embedder."""
        index = cls(embedder, path, **how)
        if not len(index):
            raise ValueError(f"{path} has no documents yet: build it")
        return index

    def renew(self, documents: Iterable[Any], progress: Show = lambda *_: None, spread: Any = None) -> int:
        """Have these documents, and no others; -> how many texts were embedded. The work may be `spread` over
        machines, as `regard.cluster` does."""
        new = self.store.renew(numbered(documents), partial(self._embedded, spread), progress)
        if self.near is not None:
            self.near.grow(self.store.vectors(), progress)
        return new

    def add(self, documents: Iterable[Any]) -> int:
        """Have these documents, too."""

        def both() -> Iterator[Document]:
            yield from self.store
            yield from numbered(documents, len(self) + 1)

        return self.renew(both())

    def __len__(self) -> int:
        return len(self.store)

    def _embedded(self, spread: Any, texts: Iterator[str]) -> Iterator[Vectors]:
        do, groups = partial(_vectors, self.use.embedding), windows(map(Given, texts))
        return map(partial(do, self.embedder), groups) if spread is None else spread(do, groups)

    def search(self, query: str | Sequence[str], top: int | None = None) -> Any:
        """The nearest documents of a query, the nearest first, or of each in a list."""
        given = [query] if isinstance(query, str) else query
        use = self.use if top is None else replace(self.use, top=top)
        found = self.answers([Given(each) for each in given], use)
        return found[0] if isinstance(query, str) else found

    def ask(self, question: str | Sequence[str], reader: Any, **settings: Any) -> Any:
        """What the documents say to a question, or to each in a list, as a model reads them: one to answer, or one that
        writes."""
        from regard.tasks.ask import Asker  # which stands on this

        return Asker(self, reader).ask(question, **settings)

    def answers(self, asks: Sequence[Given], settings: SearchUse) -> list[list[Hit]]:
        """The same for each of some queries."""
        for ask in asks:
            if not (ask.text.strip() if settings.by == "meaning" else words_of(ask.text)):
                raise ValueError(f"{ask.place or repr(ask.text[:40])}: a question without words: there is none to find")
        most = settings.top
        if self.reranker is not None or settings.by == "both":
            most = settings.candidates or 10 * settings.top
        ways = {"meaning": self._by_meaning, "words": self._by_words}
        each = [ways[by](asks, most) for by in (ways if settings.by == "both" else (settings.by,))]
        near = each[0] if len(each) == 1 else [fused(rows) for rows in zip(*each, strict=True)]
        near = near if self.reranker is not None else [row[: settings.top] for row in near]
        held = iter(self.store.some(number for row in near for number, _ in row))
        found = [[Hit(*next(held), score) for _, score in row] for row in near]
        return found if self.reranker is None else [*map(self._reranked, asks, found, [settings.top] * len(asks))]

    def _by_meaning(self, asks: Sequence[Given], most: int) -> list[Ranked]:
        if not asks:
            return []
        vectors = unit([each.vector for each in self.embedder.answers(asks, self.use.embedding)])
        held = self.store.vectors() if self.near is not None else np.zeros((0, 0), np.float32)
        if self.near is None or len(self.near) != len(held):  # or its building was interrupted
            return nearest(vectors, self.store.blocks(), most)
        if self._sorted is None or self._sorted[0] != self.store.documents:
            live, order = np.zeros(len(held), bool), np.argsort(self.store.rows, kind="stable")
            live[self.store.rows] = True
            self._sorted = self.store.documents, live, order, self.store.rows[order]
        _, live, order, rows = self._sorted
        found = []
        for vector, some in zip(vectors, self.near.rows(vectors, most, live), strict=True):
            first, last = (np.searchsorted(rows, some, side) for side in ("left", "right"))
            numbers = np.sort(np.concatenate([order[a:b] for a, b in zip(first, last, strict=True)]))
            (best,) = nearest(vector[None], [held[self.store.rows[numbers]]], most)
            found.append([(int(numbers[i]), score) for i, score in best])
        return found

    def _by_words(self, asks: Sequence[Given], most: int) -> list[Ranked]:
        return [self.words().search(ask.text, most) for ask in asks]

    def words(self) -> Bm25:
        """The words of the documents, counted when they are first asked for."""
        if self._words is None or self._words[0] != self.store.documents:
            texts = (text for _, text in self.store)
            self._words = self.store.documents, Bm25.kept(self.store.path, self.store.documents, texts)
        return self._words[1]

    def _reranked(self, ask: Given, found: list[Hit], top: int) -> list[Hit]:
        assert self.reranker is not None
        said = self.reranker.answers([Given(ask.text, hit.text) for hit in found], self.reranker.use)
        ranked = [hit._replace(score=self.reranker.likely(each)) for hit, each in zip(found, said, strict=True)]
        return sorted(ranked, key=lambda hit: -hit.score)[:top]

    # What the command, or a server, asks of whoever answers.
    @property
    def model(self) -> Any:
        return self.embedder.model

    def size(self, asks: Sequence[Given], settings: SearchUse) -> tuple[int, int]:
        return self.embedder.size(asks)

    def written(self, answer: object) -> int:
        return 0

    @property
    def longest(self) -> int | None:
        return self.embedder.longest

    @property
    def without_native(self) -> str | None:
        return self.embedder.without_native


def searched(embedder: Embedder, query: str | Sequence[str], documents: Any, top: int) -> Any:
    """The same in an index, or where one lies; or in documents that are held in memory, texts or (id, text)."""
    if isinstance(documents, str | os.PathLike):
        documents = Index.open(embedder, documents)
    if isinstance(documents, Index):
        return documents.search(query, top)
    held, queries = list(numbered(documents)), [query] if isinstance(query, str) else list(query)
    if not (held and queries):
        raise ValueError(f"{len(queries)} queries for {len(held)} documents: there is nothing to find")
    some = windows(Given(each.text) for each in held)
    blocks = (unit(embedder.embed([ask.text for ask in window])) for window in some)
    near = nearest(unit(embedder.embed(queries)), blocks, top)
    found = [[Hit(*held[number], score) for number, score in row] for row in near]
    return found[0] if isinstance(query, str) else found


def numbered(documents: Iterable[Any], first: int = 1) -> Iterator[Document]:
    """Texts by their numbers, and what has an id by that."""
    for number, each in enumerate(documents, start=first):
        id, text = (number, each) if isinstance(each, str) else each
        if not text.strip():
            raise ValueError(f"the document {id} is blank: leave it out")
        yield Document(str(id), text)


def fingerprint(embedder: Embedder, use: EmbedUse) -> str:
    """The same for embedders that make the same vectors."""
    tokens = embedder.tokenizer.__reduce__()[1][0]
    about: Any = [[repr(model.config), repr(model.head)] for model in embedder.models]
    seen = sha256(json.dumps([about, embedder.longest, asdict(use), tokens]).encode())
    for model in embedder.models:
        for name, values in model.state_dict().items():
            seen.update(name.encode())
            seen.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return seen.hexdigest()


def fused(rows: Iterable[Ranked]) -> Ranked:
    """Several lists as one, by the ranks of each document in them (Cormack et al., 2009).

    >>> fused([[(7, 0.9), (3, 0.8)], [(3, 12.0)]])
    [(3, 0.0325...), (7, 0.0163...)]
    """
    scores = Counter[int]()
    for row in rows:
        scores.update({number: 1 / (RANKS + rank) for rank, (number, _) in enumerate(row, start=1)})
    return sorted(scores.items(), key=lambda each: (-each[1], each[0]))


def _vectors(use: EmbedUse, embedder: Embedder, asks: Sequence[Given]) -> Vectors:
    return unit([each.vector for each in embedder.answers(asks, use)])


def unit(vectors: Sequence[Vectors] | Vectors) -> Vectors:
    """Vectors (N, d) of length 1."""
    x = np.asarray(vectors, np.float32)
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12), np.float32)


def nearest(queries: Vectors, blocks: Iterable[Vectors], top: int) -> list[Ranked]:
    """The documents of largest product with each query (Q, d), of vectors (B, d) of length 1, and the products: of
    equals, the first of them first.

    A product of matrices finds all that may be among them. Its last digits hang on its company, so these are multiplied
    once more, each by itself.

    >>> nearest(np.eye(2, dtype=np.float32), [np.eye(2, dtype=np.float32)[[0, 0, 1]]], top=2)
    [[(0, 1.0), (1, 1.0)], [(2, 1.0), (0, 0.0)]]
    """
    margin = 4 * queries.shape[1] * np.finfo(np.float32).eps  # by which two such products may differ
    exact, least = queries.astype(np.float64), np.full(len(queries), -np.inf)
    scores = [np.zeros(0)] * len(queries)
    numbers = [np.zeros(0, np.int64)] * len(queries)
    first = 0
    for block in blocks:
        scored = products(queries, block)  # (Q, B)
        bound = least
        if len(block) > top:
            bound = np.maximum(bound, np.partition(scored, -top, axis=1)[:, -top])
        for i, row in enumerate(scored):
            near = np.flatnonzero(row >= bound[i] - margin)
            if len(near):
                some = np.concatenate([scores[i], (block[near].astype(np.float64) * exact[i]).sum(1)])
                which = np.concatenate([numbers[i], first + near])
                order = np.lexsort((which, -some))[:top]
                scores[i], numbers[i] = some[order], which[order]
                least[i] = scores[i][-1] if len(order) == top else -np.inf
        first += len(block)
    return [list(zip(n.tolist(), x.tolist(), strict=True)) for n, x in zip(numbers, scores, strict=True)]
