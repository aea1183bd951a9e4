from itertools import pairwise

import pytest

from regard.training.schedules import inverse_sqrt, linear_to_zero


def test_the_papers_formula() -> None:
    """§5.3: linear for the first warmup steps, then as the inverse square root of the step."""
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        by_hand = (1 / 512**0.5) * (step / 4000**1.5 if step < 4000 else 1 / step**0.5)
        assert inverse_sqrt(step, 512, 4000) == pytest.approx(by_hand, rel=1e-12)
    rates = [inverse_sqrt(step, 512) for step in range(1, 10_000)]
    assert max(range(len(rates)), key=rates.__getitem__) + 1 == 4000
    assert inverse_sqrt(16_000, 512) == pytest.approx(inverse_sqrt(4000, 512) / 2)
    assert inverse_sqrt(4000, 2048) == pytest.approx(inverse_sqrt(4000, 512) / 2)


def test_linear_to_zero_peaks_after_the_warmup_and_never_is_zero() -> None:
    rates = [linear_to_zero(step, peak=2.0, warmup=10, total=50) for step in range(1, 51)]
    assert max(rates) == rates[9] == 2.0
    assert all(rate > 0 for rate in rates)
    differences = {round(b - a, 9) for a, b in pairwise(rates[9:])}
    assert len(differences) == 1


@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(step: int) -> None:
    with pytest.raises(ValueError, match=f"got step {step}"):
        inverse_sqrt(step, 512)
    with pytest.raises(ValueError, match=f"got step {step}"):
        linear_to_zero(step, peak=1.0, warmup=1, total=5)
