"""Minimum Bayes risk: of several outputs the one that the others agree with most, rather than the likeliest."""

from collections import Counter
from collections.abc import Callable, Sequence


def choose(candidates: Sequence[str], utility: Callable[[str, str], float]) -> int:
    """The index of the candidate whose mean utility against all the others is highest; of equals the first.

    `utility(hypothesis, reference)` says how good one text is if the other is right, such as
    `evaluation.translation.sentence_chrf`. Drawn by chance, candidates stand for the model's distribution (Eikema and
    Aziz, 2020), and one that was drawn twice counts twice; its utility is computed once.

    >>> choose(["a cat sat", "the cat sat", "the cat lay", "dogs"], lambda y, r: len({*y.split()} & {*r.split()}))
    1
    """
    if not candidates:
        raise ValueError("there is nothing to choose from: 0 candidates")
    counts = Counter(candidates)  # in the order of their first appearance

    def total(hypothesis: str) -> float:
        others = ((reference, count - (reference == hypothesis)) for reference, count in counts.items())
        return sum(count * utility(hypothesis, reference) for reference, count in others if count)

    return candidates.index(max(counts, key=total))
