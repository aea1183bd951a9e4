"""Distances, CKA and the plane against their definitions, written out slowly or taken from where they are known."""

from math import log

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.inspection.measures import RowTokens
from regard.inspection.similarity import Likeness, divergences, scaling


def of_rows(counted: Tensor, visible: Tensor) -> RowTokens:
    nothing = torch.empty(0)
    return RowTokens(nothing, nothing, nothing, visible, counted, nothing)


def js(p: list[float], q: list[float]) -> float:
    """½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), of 0.999 p + 0.001 / n."""
    p, q = ([0.999 * x + 0.001 / len(row) for x in row] for row in (p, q))
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return sum(a * log(a / c) + b * log(b / c) for a, b, c in zip(p, q, m, strict=True)) / 2


def test_divergences_by_definition() -> None:
    torch.manual_seed(0)
    maps = torch.rand(3, 4, 5).softmax(-1)
    found = divergences(maps, torch.ones(4, 5, dtype=torch.bool))
    for a in range(3):
        for b in range(3):
            expected = sum(js(p, q) for p, q in zip(maps[a].tolist(), maps[b].tolist(), strict=True))
            assert float(found[a, b]) == pytest.approx(expected, abs=1e-5)


def test_what_is_hidden_takes_no_part_in_the_smoothing() -> None:
    maps = torch.tensor([[[0.9, 0.1, 0.0]], [[0.2, 0.8, 0.0]]])
    found = divergences(maps, torch.tensor([[True, True, False]]))
    assert float(found[0, 1]) == pytest.approx(js([0.9, 0.1], [0.2, 0.8]), abs=1e-6)


def linear_cka(X: Tensor, Y: Tensor) -> float:
    X, Y = X - X.mean(0), Y - Y.mean(0)
    return float((Y.T @ X).norm() ** 2 / ((X.T @ X).norm() * (Y.T @ Y).norm()))


def test_likeness_over_batches_with_padding() -> None:
    torch.manual_seed(0)
    like, rows, said = Likeness(), [], []
    for T in (3, 5):
        counted = torch.ones(2, T, dtype=torch.bool)
        counted[1, 2:] = False
        visible = counted[:, None].expand(2, T, T)
        weights = [torch.rand(2, 2, T, T).masked_fill(~visible[:, None], -torch.inf).softmax(-1) for _ in range(2)]
        outputs = [torch.randn(2, 2, T, 6) for _ in range(2)]
        outputs[1][:, 0] = 3.0 * outputs[0][:, 1].flip(-1) + 7.0  # another basis, scale and centre
        like.add(weights, outputs, of_rows(counted, visible))
        heads, results = torch.cat(weights, 1), torch.cat(outputs, 1)
        for b, i in counted.nonzero().tolist():
            rows.append([heads[b, h, i, : int(counted[b].sum())].tolist() for h in range(4)])
            said.append(results[b, :, i].double())
    assert like.rows == len(rows) == 3 + 2 + 5 + 2
    distances, cka, outputs_ = like.distances(), like.cka(), torch.stack(said)  # (R, N, d_v)
    for a in range(4):
        for b in range(4):
            expected = sum(js(row[a], row[b]) for row in rows) / len(rows)
            assert distances[a, b] == pytest.approx(expected, abs=1e-5)
            assert cka[a, b] == pytest.approx(linear_cka(outputs_[:, a], outputs_[:, b]))
    assert cka[1, 2] == pytest.approx(1.0)
    assert cka[0, 1] < 0.9


def test_a_silent_head_is_like_none() -> None:
    like, counted = Likeness(), torch.ones(1, 3, dtype=torch.bool)
    outputs = torch.cat([torch.zeros(1, 1, 3, 2), torch.randn(1, 1, 3, 2)], 1)
    like.add([torch.full((1, 2, 3, 3), 1 / 3)], [outputs], of_rows(counted, counted[:, None].expand(1, 3, 3)))
    assert like.cka()[0].tolist() == [0.0, 0.0]


def test_a_plane_gives_its_own_distances_back() -> None:
    random = np.random.default_rng(0)
    places = random.normal(size=(7, 2)) * [3, 1]
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    found = scaling(distances)
    assert np.linalg.norm(found[:, None] - found, axis=-1) == pytest.approx(distances)
    assert found[:, 0].var() > found[:, 1].var()
    assert found.mean(0) == pytest.approx([0, 0])
    for axis in (0, 1):
        assert found[np.abs(found[:, axis]).argmax(), axis] > 0  # no eigenvector's sign is chance
    order = random.permutation(7)
    assert scaling(distances[np.ix_(order, order)]) == pytest.approx(found[order])


@pytest.mark.parametrize("N", [1, 2, 3])
def test_few_heads_and_equal_ones_have_places(N: int) -> None:
    assert scaling(np.zeros((N, N))).tolist() == [[0.0, 0.0]] * N
    assert scaling(1.0 - np.eye(N)).shape == (N, 2)


def test_what_always_says_the_same_is_like_nothing() -> None:
    """Two such heads, and one that speaks: rounding must not make the first two alike."""
    torch.manual_seed(0)
    likeness, said = Likeness(), torch.randn(1, 3, 50, 4)
    said[:, 0], said[:, 1] = 0.1, torch.tensor([0.3, 0.7, -1.1, 2.3])
    everything = of_rows(torch.ones(1, 50, dtype=torch.bool), torch.ones(1, 50, 50, dtype=torch.bool))
    likeness.add([torch.full((1, 3, 50, 50), 0.02)], [said], everything)
    np.testing.assert_allclose(likeness.cka(), np.diag([0.0, 0.0, 1.0]), atol=1e-9)
