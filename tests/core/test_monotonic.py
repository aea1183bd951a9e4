"""Monotonic attention equals the sum over all walks, and the walk that Raffel et al. describe."""

import itertools

import pytest
import torch
from torch import Tensor

from regard.core import monotonic
from regard.core.attention import MultiHeadAttention
from regard.core.cache import KeyValues
from regard.core.dropout import drawing_from
from regard.core.masks import padding
from regard.core.mixers import AttentionConfig
from regard.core.monotonic import Monotonic, chunkwise, expected_alignment

B, H, T, S = 2, 3, 4, 5
CLOSE = {"atol": 1e-12, "rtol": 0}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def first(*shape: int) -> Tensor:
    start = torch.zeros(shape, dtype=torch.float64)
    start[..., 0] = 1.0
    return start


def over_all_walks(p: Tensor) -> Tensor:
    """α (T, S) of p (T, S): the probability of every sequence of stops that never goes back, S for none, added up."""
    T, S = p.shape
    alpha = torch.zeros_like(p)
    for stops in itertools.combinations_with_replacement(range(S + 1), T):
        probability, at = torch.ones((), dtype=p.dtype), 0
        for i, stop in enumerate(stops):
            for j in range(at, stop):
                probability = probability * (1 - p[i, j])
            if stop < S:
                probability = probability * p[i, stop]
            at = stop
        for i, stop in enumerate(stops):
            if stop < S:
                alpha[i, stop] += probability
    return alpha


def walk(stops: Tensor) -> Tensor:
    """Algorithm 1 of Raffel et al. for one head: from bool (T, S) to weights (T, S)."""
    weights, at = torch.zeros(stops.shape, dtype=torch.float64), 0
    for i in range(len(stops)):
        while at < stops.shape[1] and not stops[i, at]:
            at += 1
        if at < stops.shape[1]:
            weights[i, at] = 1.0
    return weights


def test_expected_alignment_is_the_sum_over_all_walks() -> None:
    p = random(B, H, T, S).sigmoid()
    found = expected_alignment(p, first(B, H, S))
    for b, h in itertools.product(range(B), range(H)):
        torch.testing.assert_close(found[b, h], over_all_walks(p[b, h]), **CLOSE)
    assert (found.sum(-1).diff(dim=-1) < 0).all()  # what has walked past the end does not return


def test_expected_alignment_has_the_gradient_of_its_value() -> None:
    p, start = random(1, 2, 3, 4).sigmoid().requires_grad_(), random(1, 2, 4).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(expected_alignment, (p, start))


def test_expected_alignment_goes_on_from_where_it_was() -> None:
    p = random(B, H, T, S).sigmoid()
    whole = expected_alignment(p, first(B, H, S))
    later = expected_alignment(p[:, :, 2:], whole[:, :, 1])
    torch.testing.assert_close(later, whole[:, :, 2:], **CLOSE)


def test_certain_stops_make_the_hard_walk() -> None:
    stops = random(20, H, T, S) > 0.5
    found = expected_alignment(stops.double(), first(20, H, S))
    expected = torch.stack([torch.stack([walk(head) for head in row]) for row in stops])
    assert torch.equal(found, expected)
    nearly = expected_alignment(torch.where(stops, 40.0, -40.0).sigmoid().double(), first(20, H, S))
    torch.testing.assert_close(nearly, expected, **CLOSE)


def test_long_memories_and_certain_stops_lose_no_digits() -> None:
    g = torch.Generator().manual_seed(0)
    energy = (30 * torch.randn(1, 1, 20, 700, generator=g) - 60).requires_grad_()  # products far below 1e-38
    alpha = expected_alignment(energy.sigmoid(), first(1, 1, 700).float())
    exact, q = torch.zeros(20, 700, dtype=torch.float64), first(700)
    p = energy.detach().double().sigmoid()[0, 0]
    for i in range(20):
        before, q = q, torch.zeros(700, dtype=torch.float64)
        come = 0.0
        for j in range(700):
            come = (come * (1 - p[i, j - 1]) if j else 0.0) + before[j]
            q[j] = p[i, j] * come
        exact[i] = q
    torch.testing.assert_close(alpha[0, 0].double(), exact, atol=1e-5, rtol=0)
    alpha.square().sum().backward()
    assert energy.grad is not None
    assert energy.grad.isfinite().all()


@pytest.mark.parametrize("width", [2, 3, 9])
def test_a_chunk_is_a_soft_max_over_the_keys_before_the_stop(width: int) -> None:
    alpha, u = random(B, H, T, S).softmax(-1), 30 * random(B, H, T, S, seed=1)  # far apart: no exp may underflow
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0]]).bool()[:, None, None]
    alpha = alpha.masked_fill(~mask, 0.0)
    expected = torch.zeros_like(alpha)
    for b, h, i, k in itertools.product(range(B), range(H), range(T), range(S)):
        keys = [j for j in range(max(0, k - width + 1), k + 1) if mask[b, 0, 0, j]]
        if keys:
            expected[b, h, i, keys] += alpha[b, h, i, k] * u[b, h, i, keys].softmax(-1)
    torch.testing.assert_close(chunkwise(alpha, u, mask, width), expected, **CLOSE)
    torch.testing.assert_close(chunkwise(alpha, u, None, 9).sum(-1), alpha.sum(-1), **CLOSE)
    assert torch.equal(chunkwise(alpha, u, mask, 10**12), chunkwise(alpha, u, mask, S))  # as long as the memory


def test_a_chunk_has_the_gradient_of_its_value() -> None:
    alpha, u = random(1, 1, 2, 4).softmax(-1).requires_grad_(), random(1, 1, 2, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, u: chunkwise(a, u, None, 3), (alpha, u))


# Inside an attention

every_kind = pytest.mark.parametrize("name", ["monotonic", "chunkwise:2"])
every_score = pytest.mark.parametrize("score", ["dot", "additive"])
MASK = padding(torch.arange(S) < torch.tensor([[5], [4]])).dense(1, S)


def build(name: str, score: str = "dot") -> MultiHeadAttention:
    """An attention whose scores are large, so that it goes as often as it stops."""
    torch.manual_seed(1)
    attention = MultiHeadAttention(AttentionConfig(12, 3, score=score, normaliser=name), d_memory=6).double()
    with torch.no_grad():
        attention.query.weight *= 4
        for p in attention.score.parameters():
            p *= 3
    return attention.eval()


@every_kind
@every_score
def test_one_query_at_a_time_is_all_at_once(name: str, score: str) -> None:
    attention, x, memory = build(name, score), random(B, 8, 12), random(B, S, 6)
    whole, cache = attention(x, memory, mask=MASK), KeyValues()
    parts = [attention(part, memory, mask=MASK, cache=cache) for part in x.split([1, 1, 3, 1, 2], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, **CLOSE)


@every_kind
def test_inference_walks_from_left_to_right(name: str) -> None:
    attention, seen = build(name), {}
    for tap in ("scores", "weights"):
        getattr(attention, tap).watchers.append(lambda x, tap=tap: seen.setdefault(tap, x.detach()))
    attention(random(B, 8, 12), random(B, S, 6), mask=MASK)
    stops = ((seen["scores"] - 1 > 0) & MASK).expand(B, H, 8, S)  # r = -1 at first
    expected = torch.stack([torch.stack([walk(head) for head in row]) for row in stops])
    assert len(expected.sum((0, 1, 2)).nonzero()) > 3  # many keys are stopped at
    if name == "monotonic":
        assert torch.equal(seen["weights"], expected)
    else:  # the key before may have a part of it
        assert ((seen["weights"] > 0) <= ((expected + expected.roll(-1, -1)) > 0)).all()
        torch.testing.assert_close(seen["weights"].sum(-1), expected.sum(-1), **CLOSE)


@every_kind
@every_score
def test_hypotheses_stand_apart_in_the_memory_they_share(name: str, score: str) -> None:
    attention, memory, x = build(name, score), random(B, S, 6), random(3 * B, 6, 12)
    cache = KeyValues()
    attention(x[:, :2], memory, mask=MASK, cache=cache)
    rows = torch.tensor([2, 0, 0, 4, 4, 3])  # the survivors, three for each sentence
    cache.follow(rows)
    found = attention(x[rows, 2:], memory, mask=MASK, cache=cache)
    for i, row in enumerate(rows.tolist()):
        b = row // 3
        alone = attention(x[row : row + 1], memory[b : b + 1], mask=MASK[b : b + 1])
        torch.testing.assert_close(found[i], alone[0, 2:], **CLOSE)


@every_kind
def test_training_by_steps_is_training_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monotonic.torch, "randn", lambda *shape, **how: torch.zeros(*shape, dtype=how["dtype"]))
    attention, x, memory = build(name).train(), random(B, 6, 12), random(B, S, 6)
    cache, parameters = KeyValues(), list(attention.parameters())
    steps = torch.cat([attention(part, memory, mask=MASK, cache=cache) for part in x.split(1, 1)], 1)
    whole = attention(x, memory, mask=MASK)
    torch.testing.assert_close(steps, whole, **CLOSE)
    gradients = [torch.autograd.grad(y.square().sum(), parameters) for y in (steps, whole)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_noise_is_drawn_in_training_only_and_from_the_named_generator() -> None:
    attention, x, memory = build("monotonic"), random(B, T, 12), random(B, S, 6)
    assert torch.equal(attention(x, memory), attention(x, memory))
    attention.train()
    assert not torch.equal(attention(x, memory), attention(x, memory))
    runs = []
    for _ in range(2):
        with drawing_from(torch.Generator().manual_seed(3)):
            runs.append(attention(x, memory))
    assert torch.equal(*runs)


def test_at_first_it_rather_goes_on() -> None:
    module = Monotonic(H, 4, 4)
    assert (module.offset < 0).all()
    module.eval()
    nothing = torch.zeros(1, H, T, S)
    assert not module(nothing, None, nothing, nothing, 1.0, None).any()  # a score of 0 does not stop it


def test_self_attention_has_nothing_to_walk_along() -> None:
    with pytest.raises(ValueError, match="the normaliser monotonic walks along a memory: self-attention has none"):
        MultiHeadAttention(AttentionConfig(8, 2, normaliser="monotonic"))
