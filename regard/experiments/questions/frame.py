"""What a question is, and what all answers need: trials of every choice, means over seeds, learning curves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from regard.experiments.charts import Bars, Chart, Series
from regard.experiments.lab import Results, Trial, page
from regard.experiments.questions.tasks import LENGTHS, SIZES

Charts = Mapping[str, Chart | Bars]  # by name, as ![what it shows](name.svg) stands on a page
Found = tuple[Mapping[str, object], Charts]  # what there is for the holes of a page, and its charts


@dataclass(frozen=True)
class Verdict:
    """What was found: in a sentence or two, and at length."""

    short: str
    text: str
    charts: Charts


@dataclass(frozen=True)
class Question:
    """A question, the trials that ask it, and what to make of their results."""

    name: str  # of its page, and what the names of its trials begin with
    asked: str
    trials: Callable[[str], Sequence[Trial]]  # of a scale
    found: Callable[[Results, str], Found]  # of the results, at a scale

    def answer(self, results: Results, scale: str) -> Verdict:
        """The page, which begins with the answer in short."""
        values, charts = self.found(results, scale)
        text = page(f"questions/{self.name}", size=SIZES[scale], low=LENGTHS[0], high=LENGTHS[-1], **values)
        short, _, text = text.partition("\n\n")
        return Verdict(short, text, charts)


def repeated(
    stem: str, run: Callable[..., Any], seeds: int, settings: Mapping[str, Any], **choices: Iterable[Any]
) -> list[Trial]:
    """The same trial with each of some choices and each seed: stem-choice-0, stem-choice-1, ...

    A choice is a value, or the name of one: heads=(1, 4), exponent={"root": -0.5}.
    """
    trials, named = [], [each if isinstance(each, Mapping) else {x: x for x in each} for each in choices.values()]
    for chosen in product(*named):
        own = {key: each[name] for key, each, name in zip(choices, named, chosen, strict=True)}
        name = "-".join(map(str, (stem, *chosen)))
        trials += [Trial(f"{name}-{seed}", run, {**settings, **own, "seed": seed}) for seed in range(seeds)]
    return trials


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


def falling(title: str, results: Results, stems: Mapping[str, str]) -> Chart:
    """The mean losses of `repeated` trials under a label each, within a band from the lowest to the highest."""
    series = []
    for stem, label in stems.items():
        curves = over_seeds(results, stem, "curve")  # each [step, loss] of some `windows`
        losses = [[loss for _, loss in points] for points in zip(*curves, strict=True)]
        low, middle, high = ([function(each) for each in losses] for function in (min, fmean, max))
        series.append(Series(label, [step for step, _ in curves[0]], middle, low, high))
    return Chart(title, "step", "loss (nats a symbol)", series, log_y=True)


def percent(share: float) -> str:
    """
    >>> percent(0.998), percent(1.0)
    ('99.8 %', '100 %')
    """
    return f"{100 * share:.4g} %"
