"""How much figures would be others, had other rows been drawn: intervals, and whether two models differ (Efron, 1979).

Letters: N rows.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.checks import at_least

TIMES, SURE = 1_000, 0.95
Figures = Callable[[NDArray[np.int64]], dict[str, float]]  # of some rows, by number


class Interval(NamedTuple):
    """A figure, and between which two it lies in so many of a hundred draws."""

    score: float
    low: float
    high: float


class Difference(NamedTuple):
    """By how much one model is above another, and how often as much would come by chance if none were."""

    score: float
    low: float
    high: float
    p: float


def drawn(n: int, times: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows by chance, as many as there are, some of them more than once: the same for every model."""
    random = np.random.default_rng(seed)
    return (random.integers(0, n, n) for _ in range(times))


def intervals(figures: Figures, n: int, times: int = TIMES, seed: int = 0) -> dict[str, Interval]:
    """Of each figure of N rows, the interval in which 95 % of the draws lie.

    >>> x = np.arange(100.0)
    >>> found = intervals(lambda rows: {"mean": float(x[rows].mean())}, 100)["mean"]
    >>> found.score, abs(found.high - found.low - 2 * 1.96 * 28.9 / 10) < 1.0
    (49.5, True)
    """
    at_least(2, **{"the number of rows": n})
    whole, draws = figures(np.arange(n)), _table([figures(rows) for rows in drawn(n, times, seed)])
    return {name: Interval(x, *_middle(draws[name])) for name, x in whole.items()}


def compared(ours: Figures, theirs: Figures, n: int, times: int = TIMES, seed: int = 0) -> dict[str, Difference]:
    """Of each figure of the same N rows, our own less theirs. p is two-sided: how many draws lie as far from their own
    mean as the difference lies from 0.

    >>> right = np.arange(200) % 4 > 0
    >>> half = np.arange(200) % 2 > 0
    >>> def share(x): return lambda rows: {"accuracy": float(x[rows].mean())}
    >>> found = compared(share(right), share(half), 200)["accuracy"]
    >>> found.score, found.p < 0.01, compared(share(half), share(half), 200)["accuracy"].p
    (0.25, True, 1.0)
    """
    at_least(2, **{"the number of rows": n})

    def difference(rows: NDArray[np.int64]) -> dict[str, float]:
        a, b = ours(rows), theirs(rows)
        return {name: a[name] - b[name] for name in a if name in b}

    whole, draws = difference(np.arange(n)), _table([difference(rows) for rows in drawn(n, times, seed)])
    found = {}
    for name, x in whole.items():
        far = int((np.abs(draws[name] - draws[name].mean()) >= abs(x)).sum())
        found[name] = Difference(x, *_middle(draws[name]), (far + 1) / (times + 1))
    return found


def _table(rows: list[dict[str, float]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _middle(x: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(x, [(1 - SURE) / 2, (1 + SURE) / 2]).tolist()
    return low, high
