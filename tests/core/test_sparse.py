"""Sparse attention equals the oracle under the dense mask, in value and gradient, and touches nothing else."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.core import sparse
from regard.core.attention import attend
from regard.core.dropout import drawing_from
from regard.core.masks import padding, random_picks
from regard.core.sparse import Band, DiagonalBlocks, Pattern, sparse_attend


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "ROWS", 5)  # so that small inputs have several blocks and a ragged last one
    monkeypatch.setattr(sparse, "SIZE", 3)


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    small = st.integers(1, 5)
    W, seed = draw(st.integers(1, 20)), draw(st.integers(0, 1000))
    return draw(
        st.sampled_from(
            [
                Band(W),
                Band(draw(small), dilation=draw(small)),
                Band(W, first=draw(st.integers(1, 9))),
                Band(draw(small), first=draw(small), random=draw(small), seed=seed),
                DiagonalBlocks(draw(st.integers(1, 14))),
            ]
        )
    )


def seen(pattern: Pattern, i: int, j: int, n: int, is_causal: bool) -> bool:
    """Whether query i sees key j, written out from the definition of each pattern."""
    if is_causal and j > i:
        return False
    if isinstance(pattern, DiagonalBlocks):
        return i // pattern.B == j // pattern.B
    assert isinstance(pattern, Band)
    near = any(j == i + m * pattern.dilation for m in range(-pattern.W, pattern.W + 1))
    picks = random_picks(torch.tensor(i // 3), pattern.random, seed=pattern.seed, both_ways=not is_causal)
    return near or min(i, j) < pattern.first or j // 3 in picks.tolist()


def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, how: Any) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = how(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, g)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_value_and_gradient_equal_the_oracle_under_the_dense_mask(dtype: torch.dtype, data: st.DataObject) -> None:
    pattern, is_causal = data.draw(patterns()), data.draw(st.booleans())
    B, H, n = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 24))
    make = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    q, k, v, g = (torch.randn(B, H, n, d, generator=make, dtype=torch.float64).to(dtype) for d in (4, 4, 3, 3))
    keep = torch.rand(B, n, generator=make) < 0.7 if data.draw(st.booleans()) else None
    mask = pattern.mask(is_causal)
    if keep is not None:
        mask = mask & padding(keep)
    ours = run(q, k, v, g, lambda q, k, v: sparse_attend(q, k, v, pattern, is_causal=is_causal, keep=keep))
    wide = (x.double() for x in (q, k, v, g))
    truth = run(*wide, lambda q, k, v: attend(q, k, v, mask=mask, backend="math"))
    atol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.06}[dtype]
    for one, other in zip(ours, truth, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, atol=atol * max(1.0, other.abs().max().item()), rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("pattern", [Band(2), Band(1, 2), Band(1, first=1, random=1), DiagonalBlocks(3)], ids=str)
def test_gradcheck(pattern: Pattern, dropout: float, is_causal: bool) -> None:
    make = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 1, 7, d, generator=make, dtype=torch.float64).requires_grad_() for d in (3, 3, 2)]
    keep = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])

    def thinned(*qkv: Tensor) -> Tensor:
        with drawing_from(torch.Generator().manual_seed(1)):
            return sparse_attend(*qkv, pattern, is_causal=is_causal, keep=keep, dropout=dropout)

    assert torch.autograd.gradcheck(thinned, inputs)


@settings(max_examples=60, deadline=None)
@given(pattern=patterns(), n=st.integers(1, 20), is_causal=st.booleans())
def test_the_mask_is_the_pattern_written_out_and_the_plan_covers_it(pattern: Pattern, n: int, is_causal: bool) -> None:
    dense = pattern.mask(is_causal).dense(n, n)[0, 0]
    assert dense.tolist() == [[seen(pattern, i, j, n, is_causal) for j in range(n)] for i in range(n)]
    planned, times = torch.zeros(n, n, dtype=torch.bool), torch.zeros(n)
    for rows, columns in pattern.plan(n, is_causal):
        times[rows] += 1
        block = torch.zeros(n, dtype=torch.bool)
        block[columns] = True
        planned[rows] = block
    assert times.eq(1).all()  # each row once
    assert not (dense & ~planned).any()


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_window_as_long_as_the_sequence_is_full_attention(is_causal: bool) -> None:
    q, k, v = torch.randn(3, 2, 2, 13, 4).unbind()
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    torch.testing.assert_close(sparse_attend(q, k, v, Band(13), is_causal=is_causal), full)
    torch.testing.assert_close(sparse_attend(q, k, v, DiagonalBlocks(99), is_causal=is_causal), full)


@pytest.mark.parametrize("pattern", [Band(4), Band(4, dilation=3), Band(4, first=2), DiagonalBlocks(8)])
def test_work_grows_with_the_length_alone(pattern: Pattern) -> None:
    def scores(n: int) -> int:
        count = 0
        for rows, columns in pattern.plan(n, is_causal=True):
            assert isinstance(columns, slice | Tensor)
            width = len(columns) if isinstance(columns, Tensor) else len(range(n)[columns])
            count += len(range(n)[rows]) * width
        return count

    assert scores(2000) <= 2.1 * scores(1000)


def test_random_blocks_do_not_depend_on_the_length_and_spread_over_the_past() -> None:
    block = torch.arange(400)
    picks = random_picks(block, 3, seed=1, both_ways=False)
    assert torch.equal(picks, random_picks(block, 3, seed=1, both_ways=False))
    assert torch.equal(picks[:50], random_picks(block[:50], 3, seed=1, both_ways=False))
    assert not torch.equal(picks, random_picks(block, 3, seed=2, both_ways=False))
    assert (picks <= block[:, None]).all()
    assert (picks >= 0).all()
    assert 0.45 < (picks[50:] / block[50:, None]).mean() < 0.55  # uniform over 0..block
    ahead = random_picks(block, 3, seed=1, both_ways=True) > block[:, None]
    assert 0.4 < ahead[50:].float().mean() < 0.6


def test_dropout_keeps_the_expectation_and_the_gradient_follows_the_same_mask() -> None:
    torch.manual_seed(0)
    q, k = torch.zeros(2, 1, 1, 11, 4).unbind()
    v = torch.eye(11)[None, None].requires_grad_()  # the output is then the row of weights, thinned
    total = torch.zeros(11, 11)
    for _ in range(300):
        out = sparse_attend(q, k, v, Band(2), dropout=0.3)[0, 0]
        (gradient,) = torch.autograd.grad(out.sum(), v)
        torch.testing.assert_close(gradient[0, 0, :, 0], out.detach().sum(0))  # ∂Σ out / ∂v_j = Σ_i w_ij
        total += out.detach()
    assert abs(total.sum() / 300 / 11 - 1) < 0.02


def test_shapes_that_are_no_self_attention_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q \(1, 1, 4, 2\), k \(1, 1, 5, 2\)"):
        sparse_attend(torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2), Band(1))
