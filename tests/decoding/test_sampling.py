"""Draws follow the distribution that was asked for, and hang on the seed alone."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from regard.decoding.pool import common_beginning
from regard.decoding.protocol import Hypothesis, Request, SamplingConfig, SearchConfig
from regard.decoding.sampling import Sampling, chances, distribution
from tests.decoding.toys import BOS, EOS, Markov, asking, drive, random_markov


def sample(
    model: Markov, requests: Sequence[Request], *, ahead: int = 99, longest: int | None = None, **changes: Any
) -> list[list[Hypothesis]]:
    sampling = SamplingConfig(**{name: changes.pop(name) for name in list(changes) if hasattr(SamplingConfig, name)})
    config = SearchConfig(**{"sampling": sampling, "extra": 10} | changes)
    return drive(Sampling, config, model, requests, ahead=ahead, longest=longest)


# Filters


WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical": TypicalLogitsWarper,
}


def hugging_face(log_p: Tensor, **settings: float) -> Tensor:
    for name in WARPERS:
        if name in settings:
            warper: LogitsProcessor = WARPERS[name](settings[name])
            log_p = warper(torch.empty(len(log_p), 0), log_p)
    return log_p.softmax(-1)


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-300])
def test_at_any_low_temperature_the_likeliest_prevails(temperature: float) -> None:
    log_p = np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32))
    assert distribution(log_p, SamplingConfig(temperature=temperature)).tolist() == [[0.0, 1.0, 0.0]]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1000),
    sharpness=st.sampled_from([0.3, 1.0, 4.0]),
    asked=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0.2, 3.0),
            "top_k": st.integers(1, 25),
            "top_p": st.floats(0.01, 0.999),
            "min_p": st.floats(0.001, 1.0),
            "typical": st.floats(0.01, 0.999),
        },
    ),
)
def test_filters_equal_hugging_face(seed: int, sharpness: float, asked: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(seed)
    log_p = (sharpness * torch.randn(4, 20, generator=g, dtype=torch.float64)).log_softmax(-1)
    theirs = hugging_face(log_p, **asked).numpy()
    assume(np.allclose(theirs, hugging_face(log_p.float(), **asked).numpy(), atol=2e-6))  # no tie but for rounding
    ours = distribution(log_p.float().numpy(), SamplingConfig(**asked))
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert (ours > 0).any(1).all()


def test_equals_stay_together_and_nothing_stays_nothing() -> None:
    log_p = np.array([[math.log(p) for p in (0.4, 0.2, 0.2, 0.2)], [-math.inf] * 4], dtype=np.float32)
    for asked in ({"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.45}, {"typical": 0.7}, {"top_p": 1.0}, {"typical": 1.0}):
        p = distribution(log_p, SamplingConfig(**asked))  # type: ignore[arg-type]
        np.testing.assert_allclose(p, [[0.4, 0.2, 0.2, 0.2], [0.0] * 4], rtol=1e-6)


def test_a_low_temperature_takes_the_likeliest() -> None:
    p = distribution(np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32)), SamplingConfig(temperature=1e-4))
    assert p.tolist() == [[1.0, 0.0, 0.0]]


# Draws


# The 0.999 quantile of chi-square by its degrees of freedom.
QUANTILE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"typical": 0.7},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.9},
    ],
)
def test_frequencies_match_the_distribution(asked: dict[str, Any]) -> None:
    """Of the first token, and of the second after each first."""
    model, n = random_markov(3, 8, sharpness=1.0), 4000
    (drawn,) = sample(model, [asking([1, EOS], seed=5)], best=n, extra=0, **asked)
    says = [h.tokens if len(h.tokens) == 2 else [*h.tokens, EOS] for h in drawn]
    after: dict[int, list[int]] = {BOS: [y[0] for y in says]}
    for y in says:
        if y[0] != EOS:
            after.setdefault(y[0], []).append(y[1])
    for before, tokens in after.items():
        log_p = torch.from_numpy(model.tables[1, before][None]).log_softmax(-1)
        expected = hugging_face(log_p, **asked)[0].tolist()
        counts = Counter(tokens)
        possible = [token for token, p in enumerate(expected) if p > 0]
        assert set(counts) <= set(possible)
        if len(tokens) > 200 and len(possible) > 1:
            scale = len(tokens)
            square = sum((counts[k] - scale * expected[k]) ** 2 / (scale * expected[k]) for k in possible)
            assert square < QUANTILE[len(possible) - 1], (before, counts)


@pytest.mark.parametrize("best", [1, 3])
def test_company_order_and_refill_change_nothing(best: int) -> None:
    model = random_markov(0)
    requests = [asking([i % 3, *[5] * (i % 4), EOS], prefix=(4, 3)[: i % 3], seed=i // 2) for i in range(12)]
    together = sample(model, requests, best=best, top_p=0.9)
    assert together == sample(model, requests, best=best, top_p=0.9)
    assert together == sample(model, requests, ahead=2, best=best, top_p=0.9)
    assert together == sample(model, requests[::-1], ahead=5, best=best, top_p=0.9)[::-1]
    assert together == [sample(model, [request], best=best, top_p=0.9)[0] for request in requests]
    assert together != sample(model, [replace(r, seed=r.seed + 99) for r in requests], best=best, top_p=0.9)
    lengths = {len(h.tokens) for each in together for h in each}
    assert len(lengths) > 3


def test_more_draws_begin_with_the_fewer_and_may_repeat() -> None:
    model = random_markov(1, 5)
    requests = [asking([0, EOS], seed=4), asking([2, EOS], seed=4)]
    many, few = sample(model, requests, best=40), sample(model, requests, best=7)
    assert [each[:7] for each in many] == few
    assert len({tuple(h.tokens) for h in many[0]}) not in (1, 40)


def test_scores_are_the_models_own() -> None:
    model = random_markov(2)
    changes = {"temperature": 3.0, "top_k": 4, "repetition": 1.3, "shortest": 2, "alpha": 1.0}
    cut = 0
    for i, drawn in enumerate(sample(model, [asking([i, 4, EOS], seed=i) for i in range(3)], best=20, **changes)):
        for h in drawn:
            ended = [*h.tokens, EOS][:13]
            assert h.token_scores == pytest.approx(model.log_probabilities(i, ended), abs=1e-5)
            assert h.log_probability == pytest.approx(sum(h.token_scores))
            assert h.score == pytest.approx(h.log_probability / ((5 + len(ended)) / 6))
            cut += len(h.tokens) == 13
    assert 0 < cut < 60


def test_edits_and_prefixes_are_held() -> None:
    model = random_markov(4, sharpness=1.0)
    request = asking([0, 5, EOS], prefix=(4, 5), forbidden=((6,), (5, 3)), seed=1)
    (drawn,) = sample(model, [request], best=200, shortest=4, block=2)
    said = {tuple(h.tokens) for h in drawn}
    assert len(said) > 20
    for y in said:
        pairs = list(pairwise(y))
        assert y[:2] == (4, 5)
        assert len(y) >= 4
        assert 6 not in y
        assert (5, 3) not in pairs
        assert len(pairs) == len(set(pairs))


def test_a_prefix_costs_one_row_and_may_fill_the_output() -> None:
    model = random_markov(4)
    (drawn,) = sample(model, [asking([0, EOS], prefix=(4, 5, 3, 4))], best=3, extra=2)
    assert model.steps == [1, 1, 1, 1]
    assert [h.tokens for h in drawn] == [[4, 5, 3, 4]] * 3
    model.steps.clear()
    sample(model, [asking([0, EOS], prefix=(4, 5))], best=3, extra=2)
    assert model.steps[:3] == [1, 1, 1]
    (short,) = sample(model, [asking([0, EOS])], best=50, extra=40, longest=2)
    assert {len(h.tokens) for h in short} <= {0, 1, 2}


def test_where_everything_is_forbidden_it_ends_as_it_is() -> None:
    model = random_markov(0, 5)
    (drawn,) = sample(model, [asking([0, EOS], prefix=(3,), forbidden=((3,), (4,)))], best=2, shortest=3)
    assert [h.tokens for h in drawn] == [[3], [3]]
    assert all(math.isfinite(h.score) and len(h.token_scores) == 1 for h in drawn)


def test_settled_is_what_all_draws_share() -> None:
    model = random_markov(0)
    config = SearchConfig(best=2, sampling=SamplingConfig())
    fleet, rows = Sampling(config, EOS), model.rows()
    rows.start([[0, EOS], [1, EOS]])
    fleet.add([(7, asking([0, EOS], prefix=(4, 5, 3), seed=1)), (8, asking([1, EOS], seed=2))])
    known: dict[int, list[list[int]]] = {7: [], 8: []}
    results: dict[int, list[Hypothesis]] = {}
    while len(fleet):
        results.update(fleet.step(rows))
        for index in known.keys() - results.keys():
            known[index].append(common_beginning(fleet.said(index)))
    assert known[7][:3] == [[4], [4, 5], [4, 5, 3]]
    for index, seen in known.items():
        assert all(h.tokens[: len(tokens)] == tokens for tokens in seen for h in results[index])
        assert [len(tokens) for tokens in seen] == sorted(len(tokens) for tokens in seen)


def test_random_numbers_are_uniform_and_a_seed_is_a_whole_number_from_0() -> None:
    numbers = np.stack([chances(seed, draw, 50) for seed in range(20) for draw in range(20)])
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # the 0.999 quantile of 19 degrees of freedom
    assert len(np.unique(numbers)) == numbers.size
    with pytest.raises(ValueError, match="seed = -1"):
        sample(random_markov(0), [asking([0], seed=-1)])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_refused(value: float) -> None:
    model = random_markov(0)
    model.tables[0, :, 5] = value
    with pytest.raises(ValueError, match="the model's scores are not numbers"):
        sample(model, [asking([0, EOS])])
