"""How well classes and numbers are told: accuracy, F1, Matthews' and other correlations, calibration.

Letters: N texts, C classes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.evaluation.calibration import reliability


def agreement(
    given: Sequence[Sequence[str]],
    probabilities: Sequence[dict[str, float]],
    said: Sequence[Sequence[str]],
    labels: Sequence[str],
) -> dict[str, float]:
    """Of N texts the classes they have, how probable each was held, and which were told: every figure.

    `f1` is the mean over classes (macro), `f1 micro` counts all decisions alike; `mcc` is Matthews' correlation of
    several classes (Gorodkin, 2004), where each text has one; `ece` is how far confidence is from accuracy.

    >>> found = agreement([["a"], ["b"]], [{"a": 0.8, "b": 0.2}, {"b": 0.6, "a": 0.4}], [["a"], ["b"]], ["a", "b"])
    >>> found["accuracy"], found["f1"], found["mcc"], round(found["loss"], 3)
    (1.0, 1.0, 1.0, 0.367)
    """
    place = {label: i for i, label in enumerate(labels)}
    truth, told = np.zeros((len(given), len(labels)), bool), np.zeros((len(given), len(labels)), bool)
    for n, (own, each) in enumerate(zip(given, said, strict=True)):
        truth[n, [place[label] for label in own]] = True
        told[n, [place[label] for label in each]] = True
    right = (truth == told).all(1)
    figures = {"accuracy": float(right.mean()), "f1": f1(truth, told), "f1 micro": f1(truth.ravel(), told.ravel())}
    held = [[p[label] for label in own] for own, p in zip(given, probabilities, strict=True)]
    if (truth.sum(1) == 1).all() and (told.sum(1) == 1).all():
        figures["mcc"] = matthews(truth.argmax(1), told.argmax(1), len(labels))
        figures["loss"] = -float(np.mean([math.log(max(row[0], 1e-300)) for row in held]))
        figures["ece"] = reliability([max(p.values()) for p in probabilities], right).ece
    return figures


def f1(truth: NDArray[np.bool_], told: NDArray[np.bool_]) -> float:
    """2 TP / (2 TP + FP + FN): of (N,) decisions, or the mean over the classes of (N, C); 0 where there are none.

    >>> f1(np.array([True, True, False]), np.array([True, False, False]))
    0.666...
    """
    hit, all_of_them = (truth & told).sum(0), truth.sum(0) + told.sum(0)
    return float(np.mean(np.divide(2.0 * hit, all_of_them, out=np.zeros(np.shape(hit)), where=all_of_them > 0)))


def matthews(truth: NDArray[np.int64], told: NDArray[np.int64], classes: int) -> float:
    """Matthews' correlation coefficient of N pairs of classes; 0 where one side never varies."""
    table = np.zeros((classes, classes))
    np.add.at(table, (truth, told), 1.0)
    rows, columns, n = table.sum(1), table.sum(0), table.sum()
    both = (n * n - rows @ rows) * (n * n - columns @ columns)
    return float((n * np.trace(table) - rows @ columns) / math.sqrt(both)) if both > 0 else 0.0


def correlation(truth: ArrayLike, told: ArrayLike) -> dict[str, float]:
    """Of N pairs of numbers: Pearson's and Spearman's correlation, and the root of the mean squared error.

    >>> {name: round(x, 3) for name, x in correlation([1, 2, 3, 4], [1, 3, 2, 9]).items()}
    {'spearman': 0.8, 'pearson': 0.826, 'rmse': 2.598}
    """
    x, y = np.asarray(truth, np.float64), np.asarray(told, np.float64)
    error = float(np.sqrt(np.mean((x - y) ** 2)))
    return {"spearman": pearson(ranks(x), ranks(y)), "pearson": pearson(x, y), "rmse": error}


def pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's correlation of two rows of numbers; 0 where one of them never varies."""
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The place of each number among all, from 1 on; equal ones share the mean of theirs.

    >>> ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]
