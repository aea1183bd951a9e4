import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers

from regard.training.schedules import SCHEDULES, ScheduleConfig, inverse_sqrt, schedule


def test_the_papers_formula() -> None:
    """§5.3: linear for the first warmup steps, then as the inverse square root of the step."""
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        by_hand = (1 / 512**0.5) * (step / 4000**1.5 if step < 4000 else 1 / step**0.5)
        assert inverse_sqrt(step, 512, 4000) == pytest.approx(by_hand, rel=1e-12)
    rates = [inverse_sqrt(step, 512) for step in range(1, 10_000)]
    assert max(range(len(rates)), key=rates.__getitem__) + 1 == 4000
    assert inverse_sqrt(16_000, 512) == pytest.approx(inverse_sqrt(4000, 512) / 2)
    assert inverse_sqrt(4000, 2048) == pytest.approx(inverse_sqrt(4000, 512) / 2)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(step: int) -> None:
    with pytest.raises(ValueError, match=f"got step {step}"):
        inverse_sqrt(step, 512)
    with pytest.raises(ValueError, match=f"got step {step}"):
        schedule(ScheduleConfig("linear", peak=1.0, warmup=1), total=5)(step)


# By name


def rates(name: str, total: int = 50, *, upto: int | None = None, **settings: Any) -> list[float]:
    """Steps 1, 2, ..., `upto`; the rate of step n is at n - 1."""
    rate = schedule(ScheduleConfig(name, **{"peak": 2.0, "warmup": 10, **settings}), total=total)
    return [rate(step) for step in range(1, (upto or total) + 1)]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "paper"])
def test_all_warm_up_linearly_and_touch_the_peak_once_they_have(name: str) -> None:
    assert rates(name, upto=10) == pytest.approx([0.2 * step for step in range(1, 11)])
    assert max(rates(name)) == rates(name)[9] == 2.0
    assert rates(name, warmup=1)[0] == 2.0
    assert rates(name, total=10) == rates(name, upto=10)  # all of it is warm-up


def test_each_falls_by_its_formula() -> None:
    after = range(11, 51)
    assert rates("constant")[10:] == [2.0] * 40
    assert rates("inverse_sqrt")[10:] == pytest.approx([2.0 * 10**0.5 / step**0.5 for step in after])
    assert rates("linear")[10:] == pytest.approx([2.0 * (1 - (step - 10) / 41) for step in after])
    fall = [0.5 + 0.5 * math.cos(math.pi * (step - 10) / 40) for step in after]
    assert rates("cosine")[10:] == pytest.approx([2.0 * x for x in fall])
    assert rates("cosine", floor=0.1)[10:] == pytest.approx([2.0 * (0.1 + 0.9 * x) for x in fall])
    assert rates("cosine", floor=0.1)[-1] == pytest.approx(0.2)
    slope = [2.0 * min(1.0, (51 - step) / 11) for step in after]  # 10 of 50 steps fall, to zero at the 11th
    assert rates("trapezoid", decay=0.2)[10:] == pytest.approx(slope)


def test_linear_peaks_after_the_warmup_and_never_is_zero() -> None:
    found = rates("linear")
    assert max(found) == found[9] == 2.0
    assert all(rate > 0 for rate in found)
    differences = {round(b - a, 9) for a, b in pairwise(found[9:])}
    assert len(differences) == 1


def test_linear_is_a_trapezoid_that_falls_all_the_way() -> None:
    assert rates("linear") == [2.0 * min(step / 10, (51 - step) / 41) for step in range(1, 51)]
    assert rates("trapezoid", decay=1.0) == rates("trapezoid", decay=0.9) == rates("linear")
    assert rates("trapezoid", decay=0.0) == rates("constant")
    assert len([rate for rate in rates("trapezoid", decay=0.3) if rate == 2.0]) == 26  # steps 10 to 35


def test_the_papers_is_inverse_sqrt_whose_peak_follows_from_the_width() -> None:
    paper = schedule(ScheduleConfig("paper", warmup=4000), d_model=512)
    ours = schedule(ScheduleConfig("inverse_sqrt", peak=(512 * 4000) ** -0.5, warmup=4000))
    for step in (1, 3999, 4000, 4001, 100_000):
        assert paper(step) == inverse_sqrt(step, 512, 4000) == pytest.approx(ours(step), rel=1e-12)


LIBRARY: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "constant": ({}, lambda o: transformers.get_constant_schedule_with_warmup(o, 10)),
    "inverse_sqrt": ({}, lambda o: transformers.get_inverse_sqrt_schedule(o, 10)),
    "cosine": ({}, lambda o: transformers.get_cosine_schedule_with_warmup(o, 10, 50)),
    # A step more than there are: theirs reaches zero at the last step, ours just after it.
    "linear": ({}, lambda o: transformers.get_linear_schedule_with_warmup(o, 10, 51)),
    "trapezoid": (
        {"decay": 0.2},
        lambda o: transformers.get_wsd_schedule(o, 10, 11, num_stable_steps=30, decay_type="linear"),
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_ours_of_step_n_is_the_librarys_after_n_steps(name: str) -> None:
    """A PyTorch scheduler makes its first step with the rate of step 0, which is 0; ours with that of step 1."""
    settings, make = LIBRARY[name]
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = make(optimiser)
    theirs = [scheduler.get_last_lr()[0]]
    for _ in range(50):
        optimiser.step()
        scheduler.step()
        theirs.append(scheduler.get_last_lr()[0])
    assert theirs[0] == 0.0
    assert rates(name, **settings) == pytest.approx(theirs[1:], abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "cosin"}, "schedule = 'cosin': choose paper, .*cosine or trapezoid"),
        ({"name": "Paper"}, "schedule = 'Paper': choose paper, "),
        ({"warmup": 0}, "warmup = 0: it must be at least 1"),
        ({"peak": 0.0}, r"peak = 0\.0: it must be above 0"),
        ({"peak": math.nan}, "peak = nan"),
        ({"name": "trapezoid", "decay": 1.5}, r"decay = 1\.5: it lies in \[0, 1\]"),
        ({"name": "cosine", "floor": -0.1}, r"floor = -0\.1: it lies in"),
        ({"name": "paper", "peak": 0.1}, r"peak = 0\.1 does nothing in the schedule 'paper': set it to null"),
        ({"name": "linear", "decay": 0.5}, r"decay = 0\.5 does nothing in the schedule 'linear': set it to null"),
        ({"name": "constant", "floor": 0.5}, r"floor = 0\.5 does nothing in the schedule 'constant': set it to 0"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleConfig(**settings)


def test_what_a_schedule_needs_it_asks_for() -> None:
    with pytest.raises(ValueError, match="'paper' needs d_model"):
        schedule(ScheduleConfig("paper"), total=10)
    assert schedule(ScheduleConfig(), total=1000)(200) == 0.008  # a peak and a decay that are good with muon
    assert schedule(ScheduleConfig(), total=1000)(1000) == pytest.approx(0.008 / 751)
    for name in ("linear", "cosine", "trapezoid"):
        config = ScheduleConfig(name, peak=1.0, warmup=10)
        with pytest.raises(ValueError, match=f"'{name}' needs the total number of steps"):
            schedule(config)
        with pytest.raises(ValueError, match="warmup = 10 is longer than the whole training, 9 steps"):
            schedule(config, total=9)
        with pytest.raises(ValueError, match="need 1 <= step <= 20, got step 21"):
            schedule(config, total=20)(21)
    assert rates("constant", total=5, upto=60)[-1] == 2.0  # no end is needed, so none is kept to
    with pytest.raises(ValueError, match="got step 0"):
        schedule(ScheduleConfig("constant", peak=1.0))(0)
