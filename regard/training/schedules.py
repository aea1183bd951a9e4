"""Learning rates as functions of the step, which counts from 1."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard.checks import above, at_least, one_of, share

SCHEDULES = ("paper", "inverse_sqrt", "constant", "linear", "cosine", "trapezoid")
ENDING = ("linear", "cosine", "trapezoid")  # those that need to know the last step


def inverse_sqrt(step: int, d_model: int, warmup: int = 4000) -> float:
    """The paper's: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), eq. 3.

    >>> round(inverse_sqrt(4000, 512), 6)  # the peak of the base model
    0.000699
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"steps count from 1 and warmup is at least 1, got step {step}, warmup {warmup}")
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


PEAK, DECAY = 0.008, 0.75  # what small models learn fastest with, by muon: measured on Multi30k


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate goes: up linearly for `warmup` steps, all the way to `peak`; then by its name.

    paper        eq. 3: its peak follows from d_model and warmup
    inverse_sqrt peak · √(warmup / step)
    constant     peak
    linear       down to zero just after the last step
    cosine       down half a cosine to floor · peak at the last step
    trapezoid    peak, then linear over the last `decay` of all steps
    """

    name: str = "trapezoid"  # paper, inverse_sqrt, constant, linear, cosine
    peak: float | None = None  # the highest learning rate; 0.008 if left out, good with muon; not for paper
    warmup: int = 200  # steps; 1 is none
    decay: float | None = None  # trapezoid: the share of all steps on the way down; 0.75 if left out, 1 is linear
    floor: float = 0.0  # cosine: where it ends, as a share of peak

    def __post_init__(self) -> None:
        one_of(SCHEDULES, schedule=self.name)
        at_least(1, warmup=self.warmup)
        above(0, peak=self.peak)
        share(decay=self.decay, floor=self.floor)
        for setting, idle, default, to in (
            ("peak", self.name == "paper", None, "null"),
            ("decay", self.name != "trapezoid", None, "null"),
            ("floor", self.name != "cosine", 0.0, "0"),
        ):
            if idle and (value := getattr(self, setting)) != default:
                raise ValueError(f"{setting} = {value} does nothing in the schedule {self.name!r}: set it to {to}")


def schedule(config: ScheduleConfig, *, d_model: int | None = None, total: int | None = None) -> Callable[[int], float]:
    """The learning rate of each step, 1..total. `paper` needs `d_model`; linear, cosine and trapezoid need `total`.

    >>> rate = schedule(ScheduleConfig("linear", peak=1.0, warmup=2), total=5)
    >>> [rate(step) for step in (1, 2, 3, 5)]
    [0.5, 1.0, 0.75, 0.25]
    >>> rate = schedule(ScheduleConfig("trapezoid", peak=1.0, warmup=2, decay=0.4), total=10)
    >>> [round(rate(step), 2) for step in range(1, 11)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    name, peak, warmup = config.name, PEAK if config.peak is None else config.peak, config.warmup
    decay = DECAY if config.decay is None else config.decay
    if name == "paper":
        if d_model is None:
            raise ValueError("the schedule 'paper' needs d_model (eq. 3): give it, or use inverse_sqrt with a peak")
        return lambda step: inverse_sqrt(step, d_model, warmup)
    end = math.inf
    if name in ENDING:
        if total is None:
            raise ValueError(
                f"the schedule {name!r} needs the total number of steps: give it, or use inverse_sqrt or constant"
            )
        if warmup > total:
            raise ValueError(f"warmup = {warmup} is longer than the whole training, {total} steps: make it shorter")
        end = total
    fall = max(warmup, end - decay * end) if name == "trapezoid" else warmup  # the last step at the peak

    def after_warmup(step: int) -> float:
        if name == "inverse_sqrt":
            return math.sqrt(warmup / step)
        if name == "constant":
            return 1.0
        if name == "cosine":
            cosine = math.cos(math.pi * (step - warmup) / (end - warmup))
            return config.floor + (1 - config.floor) * (1 + cosine) / 2
        return min(1.0, (end + 1 - step) / (end + 1 - fall))

    def rate(step: int) -> float:
        if not 1 <= step <= end:
            raise ValueError(f"need 1 <= step <= {end}, got step {step}")
        return peak * (step / warmup if step <= warmup else after_warmup(step))

    return rate
