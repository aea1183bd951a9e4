"""Linear attention is its kernel written out; its forms agree; the Performer's error falls as was published."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.core import linear
from regard.core.cache import Sums
from regard.core.linear import Elu, Exponential, Linear, Relu, orthogonal_features
from regard.core.linformer import Linformer

MAPS = {"linear": Elu, "exponential": lambda: Exponential(24, 6), "relu": lambda: Relu(24, 6)}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "CHUNK", 4)


def written_out(name: str, directions: Tensor | None, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j), straight from the papers, without any care for large numbers."""
    if name == "linear":
        phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    elif name == "relu":
        phi_q, phi_k = ((x @ directions.T).clamp(min=0) / math.sqrt(24) + 1e-3 for x in (q, k))
    else:
        roots = (x * 6**-0.25 for x in (q, k))
        phi_q, phi_k = ((x @ directions.T - x.pow(2).sum(-1, keepdim=True) / 2).exp() for x in roots)
    kernel = (phi_q @ phi_k.mT) * allowed
    total = kernel.sum(-1, keepdim=True)
    return kernel @ v / torch.where(total == 0, 1, total)


@pytest.mark.parametrize("name", MAPS)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 14), seed=st.integers(0, 10**6), is_causal=st.booleans(), padded=st.booleans())
def test_value_and_gradient_are_those_of_the_kernel_written_out(
    name: str, n: int, seed: int, is_causal: bool, padded: bool
) -> None:
    torch.manual_seed(seed)
    kernel = Linear(MAPS[name]()).double()
    inputs = [torch.randn(2, 2, n, d, dtype=torch.float64, requires_grad=True) for d in (6, 6, 3)]
    g, keep = torch.randn(2, 2, n, 3, dtype=torch.float64), torch.rand(2, n) < 0.6 if padded else None
    allowed = torch.ones(n, n).tril() if is_causal else torch.ones(n, n)
    if keep is not None:
        allowed = allowed * keep[:, None, None, :]
    ours = kernel(*inputs, is_causal=is_causal, keep=keep, scale=6**-0.5, dropout=0.0)
    truth = written_out(name, getattr(kernel.features, "directions", None), *inputs, allowed.double())
    torch.testing.assert_close(ours, truth)
    for one, other in zip(torch.autograd.grad(ours, inputs, g), torch.autograd.grad(truth, inputs, g), strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-6)
    weights = kernel.weights(*inputs[:2], allowed.bool(), scale=6**-0.5, see=lambda scores: scores)
    torch.testing.assert_close(weights @ inputs[2], truth)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("steps", [[1] * 11, [4, 1, 6], [11], [9, 2]])
def test_the_recurrent_form_is_the_parallel_one_and_its_state_never_grows(name: str, steps: list[int]) -> None:
    torch.manual_seed(0)
    kernel, past, parts, sizes = Linear(MAPS[name]()), Sums(), [], set()
    q, k, v = (3 * x for x in torch.randn(3, 2, 2, 11, 6).unbind())
    k[:, :, 5:] *= 3  # levels that rise on the way
    for x, y, z in zip(*(x.split(steps, 2) for x in (q, k, v)), strict=True):
        parts.append(kernel.step(x, y, z, past, scale=0.4))
        sizes.add((past.sums.shape, past.level.shape))
    assert past.length == 11
    assert len(sizes) == 1
    whole = kernel(q, k, v, is_causal=True, keep=None, scale=0.4, dropout=0.0)
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [5, 50, 5000])
def test_large_keys_never_overflow(dtype: torch.dtype, is_causal: bool, size: float) -> None:
    torch.manual_seed(0)
    kernel = Linear(Exponential(16, 6))
    q, k, v = (x.to(dtype).requires_grad_() for x in torch.randn(3, 1, 1, 9, 6).mul(size).unbind())
    out = kernel(q, k, v, is_causal=is_causal, keep=None, scale=1.0, dropout=0.0)
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, q.grad, k.grad, v.grad))
    assert out.dtype == dtype
    assert size > 5 or (out.abs().sum(-1) > 0).all()  # of larger ones the features have no number in common


def test_keys_that_grow_do_not_drown_those_before_them() -> None:
    torch.manual_seed(0)
    kernel = Linear(Exponential(16, 6))
    q, k, v = torch.randn(3, 1, 1, 9, 6).unbind()
    k = k / k.norm(dim=-1, keepdim=True) * torch.linspace(40, 1, 9)[:, None]  # -|k|²/2 rises from -800
    out = kernel(q, k, v, is_causal=True, keep=None, scale=1.0, dropout=0.0)
    exact = kernel.double()(q.double(), k.double(), v.double(), is_causal=True, keep=None, scale=1.0, dropout=0.0)
    torch.testing.assert_close(out.double(), exact, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])  # the first sees itself alone


def test_a_query_that_sees_only_padding_gives_zeros() -> None:
    q, k, v = torch.randn(3, 1, 1, 9, 6).unbind()
    for make in MAPS.values():
        keep = torch.zeros(1, 9, dtype=torch.bool)
        assert Linear(make())(q, k, v, is_causal=False, keep=keep, scale=1.0, dropout=0.0).eq(0).all()


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_vectors() -> None:
    torch.manual_seed(0)
    omega = orthogonal_features(72, 16)
    assert omega.shape == (72, 16)
    for block in omega.split(16):
        product = block @ block.T
        torch.testing.assert_close(product, product.diag().diag(), atol=1e-4, rtol=0)
    many = torch.cat([orthogonal_features(16, 16) for _ in range(300)])
    assert abs(many.square().sum(1).mean() / 16 - 1) < 0.03  # E |ω|² = d_k
    assert abs(many.mean()) < 0.02


def test_the_error_of_a_performer_falls_with_one_over_the_root_of_its_features() -> None:
    torch.manual_seed(0)
    # The variance of exp(ω·(x + y)) is exp(|x + y|²) times its square: where it is moderate, the law of large numbers
    # is in sight. Here |x + y|² is about 2 · 16 · 0.5² · 0.25 = 2.
    q, k, v = torch.randn(3, 1, 4, 32, 16).unbind()
    q, k = q / 2, k / 2
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def error(features: int) -> float:
        tries = [
            Linear(Exponential(features, 16))(q, k, v, is_causal=False, keep=None, scale=0.25, dropout=0.0)
            for _ in range(12)
        ]
        return float(torch.stack([(x - exact).square().mean() for x in tries]).mean().sqrt())

    errors = {features: error(features) for features in (64, 1024, 16384)}
    slope = math.log(errors[16384] / errors[64]) / math.log(16384 / 64)
    assert -0.6 < slope < -0.4  # -1/2
    assert errors[16384] < 0.1 * float(exact.std())


def test_orthogonal_directions_err_less_than_independent_ones() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 32, 16).unbind()
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    errors = {True: 0.0, False: 0.0}
    for _ in range(40):
        for orthogonal in errors:
            kernel = Linear(Exponential(16, 16))
            if not orthogonal:
                kernel.features.directions = torch.randn(16, 16)
            out = kernel(q, k, v, is_causal=False, keep=None, scale=0.25, dropout=0.0)
            errors[orthogonal] += float((out - exact).square().mean())
    assert errors[True] < errors[False]


def test_a_linformer_of_full_rank_with_identity_projections_is_exact() -> None:
    mix, (q, k, v) = Linformer(12, 12), torch.randn(3, 2, 2, 12, 4).unbind()
    for projection in (mix.keys, mix.values):
        torch.nn.init.eye_(projection)
    out = mix(q, k, v, is_causal=False, keep=None, scale=0.5, dropout=0.0)
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_a_linformer_is_its_formula_and_padding_changes_nothing() -> None:
    mix, (q, k, v) = Linformer(3, 12), torch.randn(3, 2, 2, 9, 4).unbind()
    E, F = mix.keys[:, :7], mix.values[:, :7]
    short = ((q[:, :, :7] @ (E @ k[:, :, :7]).mT) / 2).softmax(-1) @ (F @ v[:, :, :7])
    keep = torch.arange(9).expand(2, 9) < 7
    out = mix(q, k, v, is_causal=False, keep=keep, scale=0.5, dropout=0.0)
    torch.testing.assert_close(out[:, :, :7], short)
    weights = mix.weights(q, k, keep[:, None, None], scale=0.5, see=lambda scores: scores)
    torch.testing.assert_close(weights @ v, out)
    assert weights[..., 7:].eq(0).all()


def test_a_low_rank_mixture_of_values_needs_no_higher_rank() -> None:
    """Keys that repeat with period R: projections that average them lose nothing."""
    q, block, values = torch.randn(1, 1, 12, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    mix = Linformer(3, 12)
    with torch.no_grad():
        mix.keys.copy_(torch.eye(3).repeat(1, 4) / 4)
        mix.values.copy_(torch.eye(3).repeat(1, 4) / 4)
    k, v = block.repeat(1, 1, 4, 1), values.repeat(1, 1, 4, 1)
    out = mix(q, k, v, is_causal=False, keep=None, scale=0.5, dropout=0.0)
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_the_error_of_a_linformer_falls_with_its_rank() -> None:
    """With E as it begins, and the F that is best for it: by least squares, of all that attention gives."""
    errors = torch.zeros(3)
    for seed in range(5):
        torch.manual_seed(seed)
        q, k, v = torch.randn(3, 1, 1, 128, 8, dtype=torch.float64).unbind()
        full = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        for i, rank in enumerate((4, 16, 64)):
            mix = Linformer(rank, 128).double()
            with torch.no_grad():
                weights = (q @ (mix.keys @ k).mT * 8**-0.5).softmax(-1)  # (1, 1, 128, rank)
                mix.values.copy_((torch.linalg.lstsq(weights, full).solution @ torch.linalg.pinv(v))[0, 0])
                out = mix(q, k, v, is_causal=False, keep=None, scale=8**-0.5, dropout=0.0)
            errors[i] += float((out - full).norm() / full.norm()) / 5
    assert errors[1] < 0.9 * errors[0]
    assert errors[2] < 0.5 * errors[1]
    assert errors[2] < 0.3


def test_a_linformer_refuses_what_it_cannot_project() -> None:
    with pytest.raises(ValueError, match="linformer:13 projects max_length = 12"):
        Linformer(13, 12)
    x = torch.zeros(1, 1, 13, 4)
    with pytest.raises(ValueError, match="a sequence of 13 tokens is longer than the 12"):
        Linformer(3, 12)(x, x, x, is_causal=False, keep=None, scale=0.5, dropout=0.0)
