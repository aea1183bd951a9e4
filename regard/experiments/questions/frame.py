"""What a question is, and what all answers need: means over seeds, and curves of few points."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from regard.experiments.charts import Bars, Chart, Series
from regard.experiments.lab import Results, Trial

POINTS = 30  # of a learning curve


@dataclass(frozen=True)
class Verdict:
    """What was found: in a sentence or two, and at length, where a chart stands as ![what it shows](name.svg)."""

    short: str
    text: str
    charts: Mapping[str, Chart | Bars] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """A question, the trials that ask it, and what to make of their results."""

    name: str  # with which the names of its trials begin
    asked: str
    trials: Callable[[str], Sequence[Trial]]  # of a scale
    answer: Callable[[Results, str], Verdict]  # of the results, at a scale


def repeated(stem: str, run: Callable[..., Any], seeds: int, **settings: Any) -> list[Trial]:
    """The same trial with each seed: stem-0, stem-1, ..."""
    return [Trial(f"{stem}-{seed}", run, {**settings, "seed": seed}) for seed in range(seeds)]


def over_seeds(results: Results, stem: str, key: str) -> list[Any]:
    """What `repeated` trials found under a key, a value for each seed.

    >>> over_seeds({"a-0": {"loss": 1.0}, "a-1": {"loss": 3.0}, "b-0": {"loss": 7.0}}, "a", "loss")
    [1.0, 3.0]
    """
    return [result[key] for name, result in results.items() if name.rpartition("-")[0] == stem]


def mean(results: Results, stem: str, key: str) -> float:
    """The mean over seeds."""
    return fmean(over_seeds(results, stem, key))


def apart(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two groups of runs do not overlap: the worst of the one is better than the best of the other.

    >>> apart([1.0, 2.0], [3.0, 4.0]), apart([1.0, 3.0], [2.0, 4.0])
    (True, False)
    """
    return max(a) < min(b) or max(b) < min(a)


def windows(losses: Sequence[float], points: int = POINTS) -> list[list[float]]:
    """A learning curve as [step, mean loss] of windows of equal length: `points` of them at most.

    >>> windows([4.0, 2.0, 1.0, 1.0], points=2)
    [[1.5, 3.0], [3.5, 1.0]]
    """
    width = math.ceil(len(losses) / points)
    parts = [(i, losses[i : i + width]) for i in range(0, len(losses), width)]
    return [[i + (len(part) + 1) / 2, fmean(part)] for i, part in parts]


def learning_curve(label: str, curves: Sequence[Sequence[Sequence[float]]]) -> Series:
    """The mean of several runs' `windows`, within a band from the lowest to the highest."""
    steps = [point[0] for point in curves[0]]
    losses = [[curve[i][1] for curve in curves] for i in range(len(steps))]
    low, high = [min(each) for each in losses], [max(each) for each in losses]
    return Series(label, steps, [fmean(each) for each in losses], low=low, high=high)


def percent(share: float) -> str:
    """
    >>> percent(0.998), percent(1.0)
    ('99.8 %', '100 %')
    """
    return f"{100 * share:.4g} %"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"]), listed([])
    ('a', 'a, b and c', 'none')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "none"
