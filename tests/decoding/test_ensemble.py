"""An ensemble is the mean of its members' probabilities, and a member like any other."""

from typing import Any

import numpy as np
import pytest

from regard.decoding.edits import log_soft_max
from regard.decoding.ensemble import Ensemble
from regard.decoding.protocol import Floats
from tests.decoding.toys import BOS, PAD, Markov, random_markov

SOURCES = [[0, 5, 2], [2, 2], [1, 2]]


def probabilities(model: Any, tokens: list[int]) -> Floats:
    rows = model.rows()
    rows.start(SOURCES)
    rows.reorder(np.array([2, 2, 0]))
    rows.step(np.full(3, BOS))
    return np.exp(log_soft_max(rows.step(np.array(tokens))))


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 2.0], [0.1, 0.1, 3.0]])
def test_probabilities_are_the_weighted_mean(weights: list[float] | None) -> None:
    models = [random_markov(seed) for seed in range(3)]
    each = np.stack([probabilities(model, [3, 4, 5]) for model in models])
    expected = np.average(each, axis=0, weights=weights)
    np.testing.assert_allclose(probabilities(Ensemble(models, weights=weights), [3, 4, 5]), expected, rtol=1e-5)


def test_of_one_model_any_number_of_times_is_the_model() -> None:
    model = random_markov(4, 30)
    for count in (1, 2, 5):
        ensemble = Ensemble([model] * count)
        np.testing.assert_allclose(probabilities(ensemble, [3, 4, 5]), probabilities(model, [3, 4, 5]), rtol=1e-6)
        ours, theirs = ensemble.rows(), model.rows()
        for rows in (ours, theirs):
            rows.start(SOURCES)
        found, expected = (rows.best(np.full(3, BOS), 6) for rows in (ours, theirs))
        assert found.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)


def test_an_ensemble_may_be_a_member_and_what_no_member_says_is_never_said() -> None:
    models = [random_markov(seed) for seed in range(4)]
    flat = probabilities(Ensemble(models), [3, 4, 5])
    nested = Ensemble([Ensemble(models[:2]), Ensemble(models[2:])])
    np.testing.assert_allclose(probabilities(nested, [3, 4, 5]), flat, rtol=1e-5)
    assert (flat[:, [BOS, PAD]] == 0).all()
    assert (flat[:, 2:] > 0).all()


def test_limits_are_the_strictest() -> None:
    table = np.zeros((1, 4, 4), dtype=np.float32)
    free, short, long = Markov(table), Markov(table, longest=7), Markov(table, longest=9, ragged=False)
    assert (Ensemble([free, long, short]).room([1]), Ensemble([free, long, short]).ragged) == (7, False)
    assert (Ensemble([free, free]).room([1]), Ensemble([free, free]).ragged) == (None, True)
    assert Ensemble([free, short]).vocabulary == 4


@pytest.mark.parametrize(
    ("sizes", "weights", "message"),
    [
        ([], None, "at least 1 model"),
        ([4, 5], None, r"share one vocabulary, but these have \[4, 5\] tokens"),
        ([4, 4], [1.0], "2 models but 1 weights"),
        ([4, 4], [1.0, 0.0], r"weights = \[1.0, 0.0\]: each must be above 0"),
    ],
)
def test_an_impossible_ensemble_is_refused(sizes: list[int], weights: list[float] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ensemble([random_markov(0, size) for size in sizes], weights=weights)
