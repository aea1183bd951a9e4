"""What must not be said is not, exactly as Hugging Face's processors have it; nothing else is touched."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from regard.decoding.edits import edit, log_soft_max
from regard.decoding.protocol import Floats, Request, SearchConfig, best_of
from tests.decoding.toys import asking

EOS = 2
V = 7

phrase = st.lists(st.integers(0, V - 1), min_size=1, max_size=4).map(tuple)


def scores(rows: int, seed: int = 0) -> Floats:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)).log_softmax(-1).numpy()


def hugging_face(log_p: Floats, written: list[list[int]], requests: list[Request], config: SearchConfig) -> Floats:
    """Each row on its own through their processors."""
    rows = []
    for row, tokens, request in zip(log_p, written, requests, strict=True):
        processors: list[LogitsProcessor] = []
        if config.repetition != 1.0:
            processors.append(RepetitionPenaltyLogitsProcessor(config.repetition))
        if config.block:
            processors.append(NoRepeatNGramLogitsProcessor(config.block))
        if request.forbidden:
            processors.append(NoBadWordsLogitsProcessor([list(p) for p in request.forbidden], eos_token_id=-1))
        if config.shortest:
            processors.append(MinLengthLogitsProcessor(config.shortest, EOS))
        said = torch.tensor([tokens], dtype=torch.long)
        scored: Tensor = torch.from_numpy(row[None].copy())
        for process in processors:
            scored = process(said, scored)
        rows.append(scored[0].numpy())
    return np.stack(rows)


@settings(max_examples=150, deadline=None)
@given(
    written=st.lists(st.lists(st.integers(3, V - 1), max_size=9), min_size=1, max_size=5),
    forbidden=st.lists(st.lists(phrase, max_size=4).map(tuple), min_size=5, max_size=5),
    shortest=st.integers(0, 6),
    block=st.integers(0, 4),
    repetition=st.sampled_from([1.0, 1.5, 0.5]),
)
def test_equals_hugging_face(
    written: list[list[int]],
    forbidden: list[tuple[tuple[int, ...], ...]],
    shortest: int,
    block: int,
    repetition: float,
) -> None:
    config = SearchConfig(shortest=shortest, block=block, repetition=repetition)
    requests = [asking([5, 2], forbidden=phrases) for phrases in forbidden[: len(written)]]
    log_p = scores(len(written))
    expected = hugging_face(log_p, written, requests, config)
    edit(log_p, written, requests, config, EOS)
    np.testing.assert_allclose(log_p, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "request_changes", "written", "gone"),
    [
        ({"shortest": 3}, {}, [4, 5], [2]),
        ({"shortest": 3}, {}, [4, 5, 6], []),
        ({"block": 1}, {}, [4, 5, 4], [4, 5]),
        ({"block": 2}, {}, [4, 5, 4], [5]),
        ({"block": 3}, {}, [4, 5, 4], []),
        ({"block": 3}, {}, [6, 6, 6], [6]),
        ({}, {"forbidden": ((4,), (5, 6), (3, 5, 3), (5, 5, 5, 2))}, [5], [4, 6]),
        ({}, {"forbidden": ((4,), (5, 6), (3, 5, 3), (3, 5, 2))}, [3, 5], [2, 3, 4, 6]),
        ({}, {"forbidden": ((3, 5, 3),)}, [5], []),
    ],
)
def test_by_hand(changes: dict[str, Any], request_changes: dict[str, Any], written: list[int], gone: list[int]) -> None:
    log_p, before = scores(1), scores(1)
    edit(log_p, [written], [asking([5, 2], **request_changes)], SearchConfig(**changes), EOS)
    assert np.flatnonzero(np.isneginf(log_p[0])).tolist() == gone
    rest = [token for token in range(V) if token not in gone]
    assert log_p[0, rest].tolist() == before[0, rest].tolist()


def test_repetition_counts_a_token_once_and_keeps_what_is_impossible_so() -> None:
    log_p = np.array([[-1.0, -2.0, 0.0, -math.inf]], dtype=np.float32)
    edit(log_p, [[1, 1, 2, 3]], [asking([3])], SearchConfig(repetition=2.0), EOS)
    assert log_p.tolist() == [[-1.0, -4.0, 0.0, -math.inf]]


def test_no_row_at_all() -> None:
    edit(scores(0), [], [], SearchConfig(shortest=1, block=2, repetition=2.0), EOS)


def test_log_soft_max_is_torchs_and_rounds_like_the_slow_truth() -> None:
    logits = 30.0 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    logits[:, 3] = -math.inf
    ours = log_soft_max(logits.numpy())
    np.testing.assert_allclose(ours, logits.double().log_softmax(-1).numpy(), rtol=1e-6, atol=1e-6)
    best = best_of(logits.numpy(), 40)
    assert np.array_equal(np.take_along_axis(ours, best.tokens, 1), best.scores)
    for value in (math.nan, math.inf):
        logits[7, 7] = value
        with pytest.raises(ValueError, match="the model's scores are not numbers"):
            log_soft_max(logits.numpy())
