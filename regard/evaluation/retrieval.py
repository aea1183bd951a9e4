"""How well what is wanted is found: nDCG, MRR, recall, as in BEIR and trec_eval.

Letters: Q questions, D documents.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEPTH, DEEPEST = 10, 100  # of the list that is judged; and of all that is looked at
TREC = "equals:pytrec_eval-terrier-0.5.11"  # which tests compare figures with: part of their signatures
RETRIEVAL = dict.fromkeys(("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100"), TREC)
RANKS = "ties:last"  # how `hits` are counted
Found = dict[str, NDArray[np.float64]]  # figures by name, (Q,) each


def retrieval(
    scores: NDArray[np.floating], wanted: Sequence[Mapping[int, float] | Collection[int]], depth: int = DEPTH
) -> Found:
    """Of the scores (Q, D) and, for each question, the documents that are wanted (how much, if a mapping says it):
    figures of the questions that want any.

    >>> found = retrieval(np.array([[0.9, 0.1, 0.5], [0.0, 0.0, 0.0]]), [{2}, {}])
    >>> {name: x.round(3).tolist() for name, x in found.items()}
    {'ndcg@10': [0.631], 'mrr@10': [0.5], 'recall@1': [0.0], 'recall@10': [1.0], 'recall@100': [1.0]}
    """
    ranked = (np.argsort(-row, kind="stable")[:DEEPEST].tolist() for row in scores)
    gains: Iterator[dict[Any, float]] = (
        dict(want) if isinstance(want, Mapping) else dict.fromkeys(want, 1.0) for want in wanted
    )
    return ranks_judged(((row, want) for row, want in zip(ranked, gains, strict=True) if want), depth)


def ranks_judged(questions: Iterable[tuple[Sequence[Any], Mapping[Any, float]]], depth: int = DEPTH) -> Found:
    """The same of lists: the documents that were found for each question, in their order, and those wanted."""
    rows = [judged(ranked, gains, depth) for ranked, gains in questions]
    if not rows:
        raise ValueError("no question wants any document: there is nothing to judge")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def hits(scores: NDArray[np.floating], wanted: Sequence[NDArray[np.integer[Any]]], what: str) -> Found:
    """Of the scores (Q, D), and for each question what is wanted: whether any of it is among the first 1, 5 and 10, as
    pictures and captions are found by each other. Of two with one score, what is wanted comes last.

    >>> found = hits(np.array([[0.9, 0.1, 0.5]]), [np.array([1, 2])], "text")
    >>> {name: x.tolist() for name, x in found.items()}
    {'text r@1': [0.0], 'text r@5': [1.0], 'text r@10': [1.0]}
    """
    before = np.array([(row >= row[want].max()).sum() - 1 for row, want in zip(scores, wanted, strict=True)])
    return {f"{what} r@{depth}": (before < depth).astype(np.float64) for depth in (1, 5, 10)}


def means(found: Found, rows: NDArray[np.int64]) -> dict[str, float]:
    """Of some of the questions."""
    return {name: float(x[rows].mean()) for name, x in found.items()}


def judged(ranked: Sequence[Any], gains: Mapping[Any, float], depth: int = DEPTH) -> dict[str, float]:
    """The same for one question: documents in their order, and how much each is wanted."""
    got = [max(0.0, gains.get(each, 0.0)) for each in ranked]
    best = sorted((gain for gain in gains.values() if gain > 0), reverse=True)
    ideal = sum(gain / math.log2(n + 2) for n, gain in enumerate(best[:depth]))
    ndcg = sum(gain / math.log2(n + 2) for n, gain in enumerate(got[:depth])) / ideal if ideal else 0.0
    first = next((1.0 / (n + 1) for n, gain in enumerate(got[:depth]) if gain > 0), 0.0)
    recall = {f"recall@{n}": sum(gain > 0 for gain in got[:n]) / max(1, len(best)) for n in (1, 10, DEEPEST)}
    return {f"ndcg@{depth}": ndcg, f"mrr@{depth}": first, **recall}
