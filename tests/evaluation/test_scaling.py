"""Power laws: planted ones are found again, outliers do not pull, confidence covers."""

from itertools import product

import numpy as np
import pytest

from regard.evaluation.scaling import Fit, Law, fit

JOINT = Law(1.7, {"N": 60.0, "D": 90.0}, {"N": 0.35, "D": 0.42})
GRID = list(product([1e4, 4e4, 2e5, 1e6, 4e6], [1e3, 5e3, 3e4, 2e5]))


def numbers(law: Law) -> list[float]:
    return [law.floor, *law.coefficients.values(), *law.exponents.values()]


def measured(noise: float, seed: int = 0, grid: list[tuple[float, float]] = GRID) -> Fit:
    draw = np.random.default_rng(seed)
    loss = [JOINT(N=N, D=D) * float(np.exp(draw.normal(0, noise))) for N, D in grid]
    return fit(loss, {"N": [N for N, _ in grid], "D": [D for _, D in grid]})


def test_planted_numbers_are_found() -> None:
    found = measured(0.0)
    assert numbers(found.law) == pytest.approx(numbers(JOINT), rel=1e-3)
    assert found.error < 1e-5


@pytest.mark.parametrize("law", [Law(0.5, {"D": 3.0}, {"D": 0.08}), Law(3.0, {"D": 1e4}, {"D": 1.2})], ids=str)
def test_one_size(law: Law) -> None:
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    found = fit([law(D=D) for D in sizes], {"D": sizes})
    assert found.law.exponents["D"] == pytest.approx(law.exponents["D"], rel=0.02)
    assert found.law(D=1e9) == pytest.approx(law(D=1e9), rel=0.02)


def test_without_a_floor_the_floor_is_nearly_nothing() -> None:
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    found = fit([20 / N**0.25 for N in sizes], {"N": sizes})
    assert found.law.floor < 0.02
    assert found.law.exponents["N"] == pytest.approx(0.25, rel=0.02)


def test_confidence_covers_the_truth_and_shrinks_with_the_noise() -> None:
    covered = []
    for seed in range(4):
        found = measured(0.01, seed)
        for low, true, high in zip(numbers(found.low), numbers(JOINT), numbers(found.high), strict=True):
            covered.append(low <= true <= high)
    assert sum(covered) / len(covered) > 0.75  # 0.95 of many; here of 20 that hang together
    narrow, wide = measured(0.002), measured(0.02)
    for name in "ND":
        assert (narrow.high.exponents[name] - narrow.low.exponents[name]) < (
            wide.high.exponents[name] - wide.low.exponents[name]
        )


def test_a_run_that_went_wrong_does_not_pull() -> None:
    loss = [JOINT(N=N, D=D) for N, D in GRID]
    loss[7] *= 1.5
    found = fit(loss, {"N": [N for N, _ in GRID], "D": [D for _, D in GRID]})
    assert found.law.exponents["N"] == pytest.approx(0.35, abs=0.03)
    assert found.law.exponents["D"] == pytest.approx(0.42, abs=0.03)


def test_the_same_points_give_the_same_fit() -> None:
    assert measured(0.01) == measured(0.01)


def test_what_cannot_be_fitted_is_named() -> None:
    with pytest.raises(ValueError, match="3 points cannot hold the 3 numbers of a law of N: measure 4 or more"):
        fit([3, 2, 1], {"N": [1, 2, 3]})
    with pytest.raises(ValueError, match="N has 2 values, loss has 3"):
        fit([3, 2, 1], {"N": [1, 2]})
    with pytest.raises(ValueError, match="D = 0: a power law is of numbers above 0"):
        fit([3, 2, 1, 1], {"D": [0, 1, 2, 3]})
    with pytest.raises(ValueError, match="N has 2 different values: a curve takes 3 or more"):
        fit([4, 3, 2, 1], {"N": [1, 1, 2, 2]})
