"""A second opinion moves hypotheses by its weight."""

import math

import pytest

from regard.decoding.protocol import Hypothesis
from regard.decoding.rescoring import rescore


def some() -> list[Hypothesis]:
    return [Hypothesis([5, i], score, 2 * score, [score, score]) for i, score in enumerate((-1.0, -2.0, -3.0))]


def test_the_order_follows_the_sum_and_the_rest_stays() -> None:
    found = rescore(some(), [-9.0, -1.0, -3.0], 0.5)
    assert [(h.tokens, h.score, h.log_probability) for h in found] == [
        ([5, 1], -2.5, -4.0),
        ([5, 2], -4.5, -6.0),
        ([5, 0], -5.5, -2.0),
    ]
    assert rescore(some(), [-9.0, -1.0, -3.0], 0.0) == some()


def test_equals_keep_their_order() -> None:
    assert [h.tokens[1] for h in rescore(some(), [-3.0, -2.0, -1.0], 1.0)] == [0, 1, 2]


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="3 hypotheses but 2 scores"):
        rescore(some(), [0.0, 0.0], 1.0)
    with pytest.raises(ValueError, match="hypothesis 2 has no score"):
        rescore([*some()[:1], Hypothesis([4], math.nan, -1.0, [])], [0.0, 0.0], 1.0)
