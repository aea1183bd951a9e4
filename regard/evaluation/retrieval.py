"""How well what is wanted is found: nDCG, MRR, recall, as in BEIR and trec_eval.

Letters: Q questions, D documents.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

DEPTH = 10  # of the list that is judged


def retrieval(
    scores: NDArray[np.floating], wanted: Sequence[Mapping[int, float] | Collection[int]], depth: int = DEPTH
) -> dict[str, float]:
    """Of the scores (Q, D) and, for each question, the documents that are wanted (how much, if a mapping says it):
    means over the questions that want any.

    >>> found = retrieval(np.array([[0.9, 0.1, 0.5]]), [{2}])
    >>> {name: round(x, 3) for name, x in found.items()}
    {'ndcg@10': 0.631, 'mrr@10': 0.5, 'recall@1': 0.0, 'recall@10': 1.0, 'recall@100': 1.0}
    """
    rows = []
    for row, want in zip(scores, wanted, strict=True):
        if not want:
            continue
        gains = dict(want) if isinstance(want, Mapping) else dict.fromkeys(want, 1.0)
        ranked = np.argsort(-row, kind="stable")[:100]
        rows.append(judged([int(i) for i in ranked], gains, depth))
    if not rows:
        raise ValueError("no question wants any document: there is nothing to judge")
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def judged(ranked: Sequence[int], gains: Mapping[int, float], depth: int = DEPTH) -> dict[str, float]:
    """The same for one question: documents in their order, and how much each is wanted."""
    got = [gains.get(each, 0.0) for each in ranked]
    best = sorted(gains.values(), reverse=True)
    ideal = sum(gain / math.log2(n + 2) for n, gain in enumerate(best[:depth]))
    ndcg = sum(gain / math.log2(n + 2) for n, gain in enumerate(got[:depth])) / ideal if ideal else 0.0
    first = next((1.0 / (n + 1) for n, gain in enumerate(got[:depth]) if gain > 0), 0.0)
    relevant = sum(gain > 0 for gain in gains.values())
    recall = {f"recall@{n}": sum(gain > 0 for gain in got[:n]) / max(1, relevant) for n in (1, 10, 100)}
    return {f"ndcg@{depth}": ndcg, f"mrr@{depth}": first, **recall}
