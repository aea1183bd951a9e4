"""The parallel scan equals the recurrence step by step, in value and gradient; the unit around it is its formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.core.recurrence import LinearRecurrence, RecurrentPast, reverse, scan, scan_by_step


def inputs(B: int, T: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    a, b = torch.rand(B, T, d, generator=g, dtype=dtype), torch.randn(B, T, d, generator=g, dtype=dtype)
    return a.requires_grad_(), b.requires_grad_(), torch.randn(B, d, generator=g, dtype=dtype).requires_grad_()


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4), st.integers(0, 99), st.booleans())
@settings(max_examples=60, deadline=None)
def test_all_steps_at_once_are_one_after_the_other(B: int, T: int, d: int, seed: int, started: bool) -> None:
    a, b, start = inputs(B, T, d, seed)
    begin = start if started else None
    fast, slow = scan(a, b, begin), scan_by_step(a, b, begin)
    torch.testing.assert_close(fast, slow)
    g, wanted = torch.randn_like(fast), [a, b, start] if started else [a, b]
    for quick, true in zip(torch.autograd.grad(fast, wanted, g), torch.autograd.grad(slow, wanted, g), strict=True):
        torch.testing.assert_close(quick, true)


def test_first_and_second_derivatives() -> None:
    a, b, start = inputs(2, 5, 2)
    assert torch.autograd.gradcheck(scan, (a, b, start))
    assert torch.autograd.gradgradcheck(scan, (a, b, start))


def test_a_long_sequence_in_parts_goes_on_where_it_stopped() -> None:
    a, b, start = inputs(2, 23, 3)
    first = scan(a[:, :9], b[:, :9], start)
    rest = scan(a[:, 9:], b[:, 9:], first[:, -1])
    torch.testing.assert_close(torch.cat([first, rest], 1), scan(a, b, start))


@pytest.mark.parametrize("decay", [0.0, 1e-38, 0.5, 1 - 2**-12, 1.0])
def test_four_thousand_positions_are_exact_at_every_decay(decay: float) -> None:
    T = 4096
    a = torch.full((1, T, 1), decay, requires_grad=True)
    b = torch.linspace(-1.0, 2.0, T)[None, :, None].requires_grad_()
    h = scan(a, b)
    h.sum().backward()
    exact = scan_by_step(a.double(), b.double()).detach()
    assert (h.detach() - exact).abs().max() <= 1e-6 * exact.abs().max()  # the digits of fp32
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.isfinite().all()
    # d Σh / d b_t = 1 + a + ... + a^(T - 1 - t), here of the first.
    geometric = math.fsum(decay**i for i in range(T))
    assert float(b.grad[0, 0, 0]) == pytest.approx(geometric, rel=1e-4)


def test_reverse_leaves_padding_where_it_is() -> None:
    x = torch.arange(1, 11).reshape(2, 5, 1)
    lengths = torch.tensor([3, 0])
    assert reverse(x, lengths)[:, :, 0].tolist() == [[3, 2, 1, 4, 5], [6, 7, 8, 9, 10]]
    assert torch.equal(reverse(reverse(x, lengths), lengths), x)


def by_hand(unit: LinearRecurrence, x: Tensor) -> Tensor:
    """The unit's formula, one position and one matrix at a time, for a single row (T, d)."""
    W_z, W_v, W_g = unit.inner.weight.chunk(3)
    b_z, b_v, b_g = unit.inner.bias.chunk(3)
    h, out = torch.zeros_like(x[0]), []
    for word in x:
        z = 1 / (1 + torch.exp(-(W_z @ word + b_z)))
        h = h - z * h + z * (W_v @ word + b_v)
        g = W_g @ word + b_g
        out.append(unit.outer.weight @ (h * g / (1 + torch.exp(-g))) + unit.outer.bias)
    return torch.stack(out)


def make(d: int = 6) -> LinearRecurrence:
    torch.manual_seed(1)
    return LinearRecurrence(d).double()


def test_the_unit_is_its_formula() -> None:
    unit, x = make(), torch.randn(2, 7, 6, dtype=torch.float64)
    for row, expected in zip(unit(x), x, strict=True):
        torch.testing.assert_close(row, by_hand(unit, expected))


def test_step_by_step_is_the_whole_and_keeps_one_state() -> None:
    unit, x, past = make(), torch.randn(2, 9, 6, dtype=torch.float64), RecurrentPast()
    steps = []
    for word in x.split([1, 1, 3, 1, 3], 1):
        steps.append(unit(word, cache=past))
        assert [tuple(part.shape) for part in past.state] == [(2, 6)]
    torch.testing.assert_close(torch.cat(steps, 1), unit(x))


def test_step_by_step_has_the_gradient_of_the_whole() -> None:
    unit, x, past = make(), torch.randn(2, 5, 6, dtype=torch.float64), RecurrentPast()
    wanted = list(unit.parameters())
    whole = torch.autograd.grad(unit(x).square().sum(), wanted)
    steps = torch.autograd.grad(sum(unit(word, cache=past).square().sum() for word in x.split(1, 1)), wanted)
    for one, other in zip(steps, whole, strict=True):
        torch.testing.assert_close(one, other)


def test_the_second_half_of_the_channels_reads_from_the_end() -> None:
    unit, x = make(), torch.randn(1, 7, 6, dtype=torch.float64)
    before = unit.outer
    unit.outer = torch.nn.Identity()  # type: ignore[assignment]  # channels as they are
    there, back = unit(x), unit(x.flip(1)).flip(1)
    both = unit(x, lengths=torch.tensor([7]))
    torch.testing.assert_close(both[:, :, :3], there[:, :, :3])
    torch.testing.assert_close(both[:, :, 3:], back[:, :, 3:])
    unit.outer = before


def test_padding_changes_nothing_in_either_direction() -> None:
    unit, x = make(), torch.randn(1, 4, 6, dtype=torch.float64)
    padded = torch.cat([x, torch.full((1, 3, 6), 9.0)], 1)
    lengths = torch.tensor([4])
    torch.testing.assert_close(unit(padded, lengths=lengths)[:, :4], unit(x, lengths=lengths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_thousand_words_in_any_precision(dtype: torch.dtype) -> None:
    unit, x = make(8), torch.randn(1, 4096, 8, dtype=torch.float64)
    exact = unit(x).detach()
    y = unit.to(dtype)(x.to(dtype))
    y.float().square().mean().backward()
    assert y.dtype == dtype
    assert all(p.grad is not None and p.grad.isfinite().all() for p in unit.parameters())
    torch.testing.assert_close(y.detach().double(), exact, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.1)


def test_channels_forget_at_many_rates_at_first() -> None:
    unit = LinearRecurrence(16)
    z = unit.inner.bias[:16].detach().sigmoid()
    for half in z.split(8):
        assert half.tolist() == sorted(half.tolist(), reverse=True)
        assert 1 / float(half[0]) == pytest.approx(2.0)
        assert 1 / float(half[-1]) == pytest.approx(LinearRecurrence.LONGEST)


def test_a_past_keeps_the_rows_that_survive() -> None:
    past = RecurrentPast(state=(torch.tensor([[1.0], [2.0], [3.0]]),))
    past.reorder(torch.tensor([2, 0, 2]), None)
    assert past.state[0].flatten().tolist() == [3.0, 1.0, 3.0]
    past.reorder(None, None)
    assert past.state[0].flatten().tolist() == [3.0, 1.0, 3.0]
