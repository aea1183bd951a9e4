"""How well classes and numbers are told: accuracy, F1, Matthews' and other correlations, calibration.

Letters: N texts, C classes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.evaluation.calibration import reliability

# How figures are made, for their signatures: `equals` names what tests compare them with, and its version.
SKLEARN, SCIPY = "equals:scikit-learn-1.9.1", "equals:scipy-1.17.1"
AGREEMENT = {
    "accuracy": SKLEARN,
    "f1": f"average:macro|classes:all|{SKLEARN}",
    "f1 micro": f"average:micro|{SKLEARN}",
    "mcc": SKLEARN,
    "loss": f"unit:nats|{SKLEARN}",
    "ece": "bins:15|width:equal",
    "top5": SKLEARN,
}
CORRELATION = {"spearman": SCIPY, "pearson": SCIPY, "rmse": SKLEARN}


def agreement(
    truth: NDArray[np.bool_], told: NDArray[np.bool_], p: NDArray[np.float64], one: bool = True
) -> dict[str, float]:
    """Which classes N texts have, which were told, and how probable each was held, all (N, C): every figure.

    `f1` is the mean over classes (macro), `f1 micro` counts all decisions alike; `mcc` is Matthews' correlation of
    several classes (Gorodkin, 2004), where each text has `one`; `ece` is how far confidence is from accuracy.

    >>> truth, p = indicated([["a"], ["b"]], ["a", "b"]), np.array([[0.8, 0.2], [0.4, 0.6]])
    >>> found = agreement(truth, truth, p)
    >>> found["accuracy"], found["f1"], found["mcc"], round(found["loss"], 3), round(found["ece"], 3)
    (1.0, 1.0, 1.0, 0.367, 0.3)
    """
    figures = {
        "accuracy": float((truth == told).all(1).mean()),
        "f1": f1(truth, told),
        "f1 micro": f1(truth.ravel(), told.ravel()),
    }
    if one:
        figures["mcc"] = matthews(truth.argmax(1), told.argmax(1), truth.shape[1])
    return figures | {"loss": surprise(truth, p, one), "ece": reliability(*decided(truth, p, one)).ece}


def among_first(truth: NDArray[np.bool_], p: NDArray[np.float64], count: int) -> float:
    """How often one of the likeliest classes is right; (N, C) each."""
    likeliest = np.argsort(-p, axis=1, kind="stable")[:, :count]
    return float(np.take_along_axis(truth, likeliest, 1).any(1).mean())


def indicated(rows: Sequence[Sequence[str]], labels: Sequence[str]) -> NDArray[np.bool_]:
    """Which of the labels each row has, (N, C)."""
    place = {label: i for i, label in enumerate(labels)}
    found = np.zeros((len(rows), len(labels)), bool)
    for n, own in enumerate(rows):
        found[n, [place[label] for label in own]] = True
    return found


def probable(logits: NDArray[np.float64], one: bool) -> NDArray[np.float64]:
    """How probable each class is, (..., C): of those of which `one` applies, or each by itself."""
    if one:
        e = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))
    e = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1.0, e) / (1.0 + e))


def surprise(truth: NDArray[np.bool_], p: NDArray[np.float64], one: bool) -> float:
    """The loss in nats: of a text, or of a decision where each class is one."""
    held = p[truth] if one else np.where(truth, p, 1.0 - p)
    return -float(np.log(held.clip(1e-300)).mean())


def decided(
    truth: NDArray[np.bool_], p: NDArray[np.float64], one: bool
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How sure each decision was, and whether it was right: the likeliest class of a text, or each class by itself."""
    if one:
        return p.max(1), truth[np.arange(len(p)), p.argmax(1)]
    return np.maximum(p, 1.0 - p).ravel(), ((p >= 0.5) == truth).ravel()


def fitted_temperature(logits: NDArray[np.float64], truth: NDArray[np.bool_], one: bool = True) -> float:
    """The temperature by which logits (N, C) are divided where the loss is least: between 0.01 and 100.

    The loss is convex in its inverse, so that a golden section of the logarithm finds it.

    >>> logits, truth = np.array([[4.0, 0.0]] * 3), np.array([[True, False], [True, False], [False, True]])
    >>> round(4 / fitted_temperature(logits, truth), 3), round(math.log(2), 3)  # as sure as it is right: two to one
    (0.693, 0.693)
    """

    def loss(x: float) -> float:
        return surprise(truth, probable(logits / math.exp(x), one), one)

    golden, (a, b) = (math.sqrt(5) - 1) / 2, (math.log(0.01), math.log(100.0))
    c, d = b - golden * (b - a), a + golden * (b - a)
    at_c, at_d = loss(c), loss(d)
    while b - a > 1e-6:
        if at_c <= at_d:
            b, d, at_d = d, c, at_c
            c = b - golden * (b - a)
            at_c = loss(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + golden * (b - a)
            at_d = loss(d)
    return math.exp((a + b) / 2)


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


def roc_auc(truth: NDArray[np.bool_], told: NDArray[np.float64]) -> float:
    """How often what is so is held likelier than what is not, of N decisions; NaN where one of the two is not there.

    >>> roc_auc(np.array([True, False, True]), np.array([0.9, 0.4, 0.4]))
    0.75
    """
    so, other = int(truth.sum()), int((~truth).sum())
    return float((ranks(told)[truth].sum() - so * (so + 1) / 2) / (so * other)) if so and other else math.nan


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
