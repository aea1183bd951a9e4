"""Dropout drops as often as it says, keeps the expectation, and treats every element on its own."""

import math

import pytest
import torch

from regard.core.dropout import LEVELS, Dropout, drawing_from, dropout, keep_mask

N = 200_000


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_elements_are_kept_as_often_as_they_should_wherever_they_stand() -> None:
    for p in (0.01, 0.1, 0.5, 0.77):
        keep = keep_mask(torch.Size([N]), p).view(-1, 4)  # one draw decides four
        deviation = math.sqrt(p * (1 - p) / len(keep))
        for lane in keep.T:
            assert abs(lane.double().mean().item() - (1 - p)) < 4.5 * deviation


def test_elements_are_independent_of_their_neighbours() -> None:
    kept = keep_mask(torch.Size([N]), 0.3).double().view(-1, 4)
    for i in range(4):
        for j in range(i):  # in the same draw
            assert abs(torch.corrcoef(kept[:, [i, j]].T)[0, 1]) < 4.5 / math.sqrt(len(kept))
    flat = kept.flatten()
    for lag in range(1, 9):
        assert abs(torch.corrcoef(torch.stack([flat[lag:], flat[:-lag]]))[0, 1]) < 4.5 / math.sqrt(N)
    patterns = (kept @ torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.double)).long().bincount(minlength=16)
    kept_bits = torch.tensor([i.bit_count() for i in range(16)])
    expected = len(kept) * 0.7**kept_bits * 0.3 ** (4 - kept_bits)
    assert ((patterns - expected) ** 2 / expected).sum() < 37.7  # χ² with 15 degrees of freedom: 1 in 1000


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_the_scale_undoes_the_rounded_probability_exactly(p: float) -> None:
    rounded = round(p * LEVELS) / LEVELS  # what is really drawn
    values = dropout(torch.ones(1000, dtype=torch.float64), p).unique()
    assert values.tolist() == [0.0, pytest.approx(1 / (1 - rounded), rel=1e-15)]


def test_a_probability_below_the_rounding_drops_nothing_and_scales_nothing() -> None:
    x = torch.randn(N)
    assert torch.equal(dropout(x, 0.4 / LEVELS), x)


@pytest.mark.parametrize("p", [1.0, 1 - 0.4 / LEVELS])
def test_certainty_drops_everything(p: float) -> None:
    x = torch.randn(1000, requires_grad=True)
    out = dropout(x, p)
    out.sum().backward()
    assert out.eq(0).all()
    assert x.grad is not None
    assert x.grad.eq(0).all()


def test_nothing_is_done_where_nothing_is_asked() -> None:
    x = torch.randn(10)
    assert dropout(x, 0.0) is x
    assert Dropout(0.7).eval()(x) is x
    assert Dropout(0.7)(x).eq(0).any()


def test_torchs_seed_decides() -> None:
    x = torch.ones(1000)
    torch.manual_seed(7)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_another_generator_decides_inside_its_block_alone() -> None:
    x, state = torch.ones(1000), torch.get_rng_state()
    with drawing_from(torch.Generator().manual_seed(1)):
        first, second = dropout(x, 0.5), dropout(x, 0.5)
    assert torch.equal(torch.get_rng_state(), state)  # PyTorch's own was left alone
    with drawing_from(torch.Generator().manual_seed(1)):
        assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)
    dropout(x, 0.5)
    assert not torch.equal(torch.get_rng_state(), state)
    own = keep_mask(torch.Size([1000]), 0.5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(own, first != 0)


def test_backward_goes_through_the_same_mask() -> None:
    x = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    g = torch.randn(7, 11, dtype=torch.float64)
    out = dropout(x, 0.4)
    out.backward(g)
    torch.testing.assert_close(x.grad, g * (out / x).detach(), atol=1e-12, rtol=0)
    assert out.eq(0).any()


def test_gradcheck() -> None:
    def thinned(x: torch.Tensor) -> torch.Tensor:
        with drawing_from(torch.Generator().manual_seed(1)):
            return dropout(x, 0.4)

    assert torch.autograd.gradcheck(thinned, torch.randn(5, 7, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_and_dtype_stay(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype).requires_grad_()
    out = dropout(x, 0.5)
    out.sum().backward()
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert x.grad is not None
    assert (x.grad.shape, x.grad.dtype) == (x.shape, dtype)
    assert torch.equal(out, x * x.grad)  # each element is dropped or doubled
    assert keep_mask(x.shape, 0.5).shape == x.shape


def test_a_view_is_dropped_like_any_other() -> None:
    x = torch.randn(6, 10).T
    out = dropout(x, 0.5)
    assert ((out == 0) | (out == 2 * x)).all()


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_an_impossible_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=rf"lies in \[0, 1\], got {p}"):
        Dropout(p)
