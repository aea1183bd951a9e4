"""Every normaliser gives weights, and those that it should: by optimality, by bisection, by counting."""

import pytest
import torch
from torch import Tensor

from regard.core.attention import MultiHeadAttention
from regard.core.mixers import AttentionConfig
from regard.core.normalisers import entmax, hard, make_normaliser, read_normaliser, softmax, sparsemax, top_k

NAMES = ("softmax", "topk:2", "hard", "sparsemax", "entmax")
every = pytest.mark.parametrize("name", NAMES)
smooth = pytest.mark.parametrize("name", ["softmax", "topk:2", "sparsemax", "entmax"])
SHAPE = (2, 3, 4, 6)


def random(seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(SHAPE, generator=g, dtype=dtype)


MASK = torch.rand(SHAPE, generator=torch.Generator().manual_seed(9)) < 0.6
MASK[0, 0, 0], MASK[1, :, 2] = False, False  # rows that see nothing
MASK[0, 1, 1] = torch.arange(6) == 3  # and one that sees one key


@every
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_are_a_distribution_over_what_may_be_seen(name: str, scale: float, dtype: torch.dtype) -> None:
    scores = random(scale=scale).to(dtype).requires_grad_()
    weights = make_normaliser(name)(scores, MASK)
    assert weights.dtype == dtype
    assert weights.min() >= 0
    assert not weights[~MASK].any()
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(weights.sum(-1), MASK.any(-1).to(dtype), atol=tolerance, rtol=0)
    (gradient,) = torch.autograd.grad(weights, scores, torch.randn_like(weights))
    assert gradient.isfinite().all()
    assert not gradient[~MASK].any()


@every
def test_a_mask_that_broadcasts_is_a_mask(name: str) -> None:
    keep = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 1]]).bool()[:, None, None]
    assert torch.equal(make_normaliser(name)(random(), keep), make_normaliser(name)(random(), keep.expand(SHAPE)))


@every
def test_masking_leaves_the_others_as_if_they_were_alone(name: str) -> None:
    scores, normalise = random(), make_normaliser(name)
    weights = normalise(scores, MASK)
    for row in torch.cartesian_prod(*map(torch.arange, SHAPE[:3])).tolist():
        seen, at = MASK[tuple(row)], tuple(row)
        if seen.any():
            alone = normalise(scores[at][seen], None)
            torch.testing.assert_close(weights[at][seen], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["topk:2", "hard", "sparsemax", "entmax"])
def test_a_score_of_minus_infinity_hides_its_key(name: str) -> None:
    scores = random().masked_fill(~MASK, -torch.inf).requires_grad_()
    weights = make_normaliser(name)(scores, None)
    assert torch.equal(weights, make_normaliser(name)(random(), MASK))
    weights.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@every
def test_order_and_origin_are_no_matter(name: str) -> None:
    scores, normalise, order = random(), make_normaliser(name), torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(normalise(scores[..., order], MASK[..., order]), normalise(scores, MASK)[..., order])
    torch.testing.assert_close(normalise(scores + 7.5, MASK), normalise(scores, MASK))


@smooth
@pytest.mark.parametrize("mask", [None, MASK], ids=["open", "masked"])
def test_the_gradient_is_that_of_the_value(name: str, mask: Tensor | None) -> None:
    assert torch.autograd.gradcheck(lambda x: make_normaliser(name)(x, mask), random(3).requires_grad_())


# What each of them is


def threshold(z: Tensor, power: float) -> Tensor:
    """((z - τ)₊)^power with the τ that makes it sum to 1, by bisection."""
    low, high = z.amax(-1, keepdim=True) - 1, z.amax(-1, keepdim=True)
    for _ in range(100):
        middle = (low + high) / 2
        large = (z - middle).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1
        low, high = torch.where(large, middle, low), torch.where(large, high, middle)
    return (z - low).clamp(min=0).pow(power)


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_sparsemax_and_entmax_equal_bisection(scale: float) -> None:
    scores = random(1, scale)
    torch.testing.assert_close(sparsemax(scores), threshold(scores, 1.0), atol=1e-12, rtol=0)
    torch.testing.assert_close(entmax(scores), threshold(scores / 2, 2.0), atol=1e-12, rtol=0)


def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    scores = random(2)
    p = sparsemax(scores)
    # Of a convex problem the optimality conditions are enough: z - p is one number τ on the support, no larger off it.
    rest = scores - p
    tau = (rest * p).sum(-1, keepdim=True)
    assert ((rest - tau).abs()[p > 0] < 1e-12).all()
    assert (rest <= tau + 1e-12).all()
    others = torch.distributions.Dirichlet(torch.ones(6, dtype=torch.float64)).sample((500, *SHAPE[:3]))
    assert ((others - scores).norm(dim=-1) >= (p - scores).norm(dim=-1)).all()


def test_of_two_keys_sparsemax_is_a_clipped_line() -> None:
    difference = torch.linspace(-3, 3, 25, dtype=torch.float64)
    p = sparsemax(torch.stack([difference, torch.zeros_like(difference)], -1))[:, 0]
    torch.testing.assert_close(p, ((1 + difference) / 2).clamp(0, 1), atol=1e-12, rtol=0)


def test_entmax_stands_between_softmax_and_sparsemax() -> None:
    scores = random(4, 2.0)
    supports = [(normalise(scores, None) > 0).sum() for normalise in (softmax, entmax, sparsemax)]
    assert supports[0] == scores.numel()
    assert supports[0] > supports[1] > supports[2] >= scores[..., 0].numel()
    assert not ((sparsemax(scores) > 0) & (entmax(scores) == 0)).any()


def test_many_keys_are_no_trouble_in_fp32() -> None:
    scores = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))
    for name in ("sparsemax", "entmax"):
        normalise = make_normaliser(name)
        exact = normalise(scores.double(), None)
        torch.testing.assert_close(normalise(scores, None).double(), exact, atol=1e-5, rtol=0)
        assert torch.equal(normalise(torch.zeros(1, 4096), None), torch.full((1, 4096), 2.0**-12))


@pytest.mark.parametrize("k", [1, 2, 3, 6, 100])
def test_top_k_is_the_soft_max_of_the_k_best(k: int) -> None:
    scores = random(5)
    weights = top_k(scores, k=k)
    for row, found in zip(scores.flatten(0, 2).tolist(), weights.flatten(0, 2), strict=True):
        best = sorted(row)[-k:]
        expected = torch.tensor([s if s in best else -torch.inf for s in row], dtype=torch.float64).softmax(-1)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_hard_takes_the_best_and_learns_as_the_soft_max() -> None:
    scores = random(6).requires_grad_()
    weights, g = hard(scores, MASK), random(7)
    best = scores.detach().masked_fill(~MASK, -torch.inf).argmax(-1)
    assert torch.equal(weights.argmax(-1)[MASK.any(-1)], best[MASK.any(-1)])
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    (straight,) = torch.autograd.grad(weights, scores, g)
    (soft,) = torch.autograd.grad(softmax(scores, MASK), scores, g)
    torch.testing.assert_close(straight, soft, atol=1e-12, rtol=0)
    assert hard(torch.tensor([2.0, 5.0, 5.0])).tolist() == [0.0, 1.0, 0.0]  # the first of equals


@every
def test_an_attention_normalises_so(name: str) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(AttentionConfig(8, 2, normaliser=name)).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in attention.query_key_value(x).chunk(3, -1))
    weights = make_normaliser(name)(q @ k.mT / 2, None)
    expected = attention.output((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected, atol=1e-12, rtol=0)


# Names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max", "unknown normaliser 'max': choose one of softmax, topk:K, hard, .* chunkwise:W"),
        ("", "unknown normaliser ''"),
        ("entmax:2", "unknown normaliser 'entmax:2'"),
        ("topk", "normaliser 'topk': write topk: and a number from 1 on, as in topk:8"),
        ("topk:0", "a number from 1 on"),
        ("topk:-3", "a number from 1 on"),
        ("topk:3:4", "a number from 1 on"),
        ("chunkwise:1", "write chunkwise: and a number from 2 on, as in chunkwise:8"),
    ],
)
def test_a_name_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_normaliser(text)
    with pytest.raises(ValueError, match=message):
        AttentionConfig(8, 2, normaliser=text)
