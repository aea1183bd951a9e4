"""CTC beside plain loops over all paths: its loss, what is likeliest, and how likely that is."""

import math
from collections import defaultdict
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from regard.decoding.ctc import collapsed, greedy, prefix_beam, shortest_path
from regard.training.objectives import CTC


def said(log_p: Tensor) -> dict[tuple[int, ...], float]:
    """The log of the probability of every text, by every path that says it."""
    T, V = log_p.shape
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for path in product(range(V), repeat=T):
        found[tuple(collapsed(path))] += math.exp(sum(float(log_p[t, token]) for t, token in enumerate(path)))
    return {text: math.log(p) for text, p in found.items()}


def forward(log_p: Tensor, labels: list[int]) -> float:
    """The forward algorithm of Graves et al. (2006), §4.1, in plain loops: log p of the labels."""
    between = [0, *(each for label in labels for each in (label, 0))]
    alpha = [math.exp(log_p[0, between[s]]) if s < 2 else 0.0 for s in range(len(between))]
    for t in range(1, len(log_p)):
        before, alpha = alpha, []
        for s, label in enumerate(between):
            total = before[s] + (before[s - 1] if s > 0 else 0.0)
            if s > 1 and label != 0 and label != between[s - 2]:
                total += before[s - 2]
            alpha.append(total * math.exp(log_p[t, label]))
    return math.log(sum(alpha[-2:]))


def draw(seed: int, T: int = 5, V: int = 3) -> Tensor:
    torch.manual_seed(seed)
    return (2 * torch.randn(T, V, dtype=torch.float64)).log_softmax(-1)


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_what_all_paths_say(seed: int) -> None:
    log_p = draw(seed)
    truth = sorted(said(log_p).items(), key=lambda each: -each[1])
    found = prefix_beam(log_p, beam=1000)
    assert [tuple(tokens) for tokens, _ in found] == [text for text, _ in truth]
    assert [p for _, p in found] == pytest.approx([p for _, p in truth], abs=1e-9)


def test_a_beam_sums_over_paths_where_the_likeliest_path_says_something_else() -> None:
    log_p = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()  # blank blank is the likeliest path; a has three others
    assert greedy(log_p)[0] == []
    tokens, score = prefix_beam(log_p, beam=2)[0]
    assert (tokens, round(math.exp(score), 6)) == ([1], 0.64)


def test_a_token_that_is_said_again_needs_a_blank() -> None:
    log_p = torch.full((3, 2), -50.0)
    log_p[[0, 1, 2], [1, 0, 1]] = 0.0
    assert greedy(log_p)[0] == prefix_beam(log_p, 4)[0][0] == [1, 1]
    assert [shortest_path(each) for each in ([], [5], [5, 5], [5, 6, 6, 6])] == [0, 1, 3, 6]
    with pytest.raises(ValueError, match="beam"):
        prefix_beam(log_p, 0)


class Known(nn.Module):
    """A model that says what it is given."""

    def forward(self, frames: Tensor) -> Tensor:
        return frames


@pytest.mark.parametrize("labels", [[[1, 2], [2, 2]], [[1], [2, 1]], [[2, 2, 1], [1]]])
def test_the_objective_is_the_sum_of_a_plain_loop(labels: list[list[int]]) -> None:
    log_p = torch.stack([draw(seed, T=6) for seed in (7, 8)])
    longest = max(map(len, labels))
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in labels])
    loss = CTC(Known())(padded, frames=log_p)
    each = [forward(x, row) for x, row in zip(log_p, labels, strict=True)]
    assert float(loss) == pytest.approx(-sum(each), abs=1e-5)
    truth = [said(x)[tuple(row)] for x, row in zip(log_p, labels, strict=True)]
    assert each == pytest.approx(truth, abs=1e-9)
