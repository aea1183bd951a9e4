"""Every backend equals the oracle, the oracle equals an independent reference, and bad input is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.core import backends, chunked
from regard.core.attention import MultiHeadAttention, attend, attention_weights
from regard.core.cache import KeyValues
from regard.core.masks import Mask, causal, padding
from regard.core.mixers import AttentionConfig
from regard.core.positions import ALiBi
from regard.core.quantised import quantise

FAST = ["fused", "chunked"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "BLOCK", 5)  # so that small inputs have several blocks and a ragged last one


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    """Attention written out one number at a time."""
    B, H, T, _ = q.shape
    out = torch.zeros(B, H, T, v.shape[3], dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                seen = [j for j in range(k.shape[2]) if mask is None or mask.expand(B, H, T, -1)[b, h, i, j]]
                s = [scale * float(q[b, h, i] @ k[b, h, j]) for j in seen]
                if bias is not None:
                    s = [x + float(bias.expand(B, H, T, -1)[b, h, i, j]) for x, j in zip(s, seen, strict=True)]
                e = [math.exp(x - max(s)) for x in s]
                for w, j in zip(e, seen, strict=True):
                    out[b, h, i] += w / sum(e) * v[b, h, j]
    return out


def draw(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@st.composite
def problems(draw_from: st.DrawFn) -> dict[str, object]:
    size = st.integers(1, 3)
    B, G, group = draw_from(size), draw_from(size), draw_from(st.integers(1, 2))
    T, S = draw_from(st.integers(1, 13)), draw_from(st.integers(1, 13))
    d_k, d_v = draw_from(st.integers(1, 6)), draw_from(st.integers(1, 6))
    H, seed = G * group, draw_from(st.integers(0, 2**31))
    full = (B, H, T, S)
    mask_shape = draw_from(st.none() | st.tuples(*(st.sampled_from(sorted({1, n})) for n in full)))
    bias_shape = draw_from(st.none() | st.tuples(*(st.sampled_from(sorted({1, n})) for n in full)))
    density = draw_from(st.sampled_from([0.2, 0.7, 1.0]))
    mask: Tensor | Mask | None = None
    if mask_shape is not None:
        mask = torch.rand(mask_shape, generator=torch.Generator().manual_seed(seed)) < density
    elif draw_from(st.booleans()):
        mask = causal(draw_from(st.integers(0, 3)))
        if draw_from(st.booleans()):
            mask = mask & padding(torch.rand((B, S), generator=torch.Generator().manual_seed(seed)) < density)
    return {
        "shapes": [(B, H, T, d_k), (B, G, S, d_k), (B, G, S, d_v)],
        "mask": mask,
        "bias_shape": bias_shape,
        "scale": draw_from(st.none() | st.floats(0.0, 2.0)),
        "seed": seed,
    }


def run(problem: dict, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """The output and the gradients of q, k, v and the bias."""
    inputs = [draw(s, problem["seed"] + i, dtype).requires_grad_() for i, s in enumerate(problem["shapes"])]
    bias = None
    if problem["bias_shape"] is not None:
        bias = draw(problem["bias_shape"], problem["seed"] + 3, dtype).requires_grad_()
        inputs.append(bias)
    out = attend(*inputs[:3], mask=problem["mask"], bias=bias, scale=problem["scale"], backend=backend)
    grads = torch.autograd.grad(out, inputs, draw(tuple(out.shape), problem["seed"] + 4, dtype), allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(grads, inputs, strict=True))]


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_backends_equal_math_in_value_and_gradient(backend: str, dtype: torch.dtype, problem: dict) -> None:
    atol = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 0.12}[dtype]
    # The truth for half precision is the oracle in double precision on the same rounded numbers.
    exact = dict(problem)
    for ours, oracle in zip(run(problem, backend, dtype), run(exact, "math", torch.float64), strict=True):
        assert not ours.isnan().any()
        torch.testing.assert_close(ours.double(), oracle, atol=atol * max(1.0, oracle.abs().max().item()), rtol=0)


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_math_equals_attention_written_out(problem: dict) -> None:
    (B, H, T, d_k), (_, G, S, _), _ = problem["shapes"]
    q, k, v = (draw(s, problem["seed"] + i, torch.float64) for i, s in enumerate(problem["shapes"]))
    bias = problem["bias_shape"] and draw(problem["bias_shape"], problem["seed"] + 3, torch.float64)
    mask = problem["mask"]
    dense = mask.dense(T, S) if isinstance(mask, Mask) else mask
    wide = None if dense is None else dense.expand(B, H, T, S)
    k_all, v_all = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    scale = d_k**-0.5 if problem["scale"] is None else problem["scale"]
    expected = reference(q, k_all, v_all, wide, None if bias is None else bias.expand(B, H, T, S), scale)
    ours = attend(q, k, v, mask=mask, bias=bias, scale=problem["scale"], backend="math")
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    weights = attention_weights(q, k, mask=mask, bias=bias, scale=problem["scale"])
    torch.testing.assert_close(weights @ v_all, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", ["math", *FAST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fully_masked_rows_are_zero_in_value_and_gradient(backend: str, dtype: torch.dtype) -> None:
    q, k, v = (draw((2, 2, 7, 4), i, dtype).requires_grad_() for i in range(3))
    mask = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    mask[:, :, 3] = False  # one query sees nothing
    mask[1] = False  # one example sees nothing at all
    with torch.autograd.set_detect_anomaly(True):
        out = attend(q, k, v, mask=mask, backend=backend)
        out.sum().backward()
    assert out[:, :, 3].eq(0).all()
    assert out[1].eq(0).all()
    for gradient in (q.grad, k.grad, v.grad):
        assert gradient.isfinite().all()
        assert gradient[1].eq(0).all()
        assert gradient[0].ne(0).any()
    assert q.grad[:, :, 3].eq(0).all()


@pytest.mark.parametrize("backend", ["math", *FAST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_ten_thousand_stay_finite(backend: str, dtype: torch.dtype) -> None:
    q, k = (draw((1, 1, 9, 4), i, dtype).sign().mul(100).requires_grad_() for i in range(2))
    v = draw((1, 1, 9, 4), 2, dtype).requires_grad_()
    out = attend(q, k, v, scale=1.0, backend=backend)  # q·k is as large as 4 · 100 · 100
    out.sum().backward()
    assert all(x is not None and x.isfinite().all() for x in (out, q.grad, k.grad, v.grad))
    best = (q @ k.mT).amax(-1, keepdim=True) == q @ k.mT
    hard = (best.double() @ v.double()) / best.sum(-1, keepdim=True)
    torch.testing.assert_close(out.double(), hard, atol=0.02, rtol=0)


def test_chunked_passes_gradcheck() -> None:
    inputs = [draw((1, 2, 7, 3), i, torch.float64).requires_grad_() for i in range(3)]
    bias = draw((1, 2, 7, 7), 3, torch.float64).requires_grad_()
    mask = torch.rand(1, 2, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    for kind in (mask, causal(), None):
        assert torch.autograd.gradcheck(
            lambda q, k, v, b, kind=kind: attend(q, k, v, mask=kind, bias=b, backend="chunked"), (*inputs, bias)
        )


@pytest.mark.parametrize("backend", ["math", *FAST])
def test_dropout_keeps_the_expectation_and_the_gradient_follows_the_same_mask(backend: str) -> None:
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 11, 4), torch.zeros(1, 1, 11, 4)
    v = torch.eye(11)[None, None].requires_grad_()  # the output is then the row of weights, thinned
    total = torch.zeros(11, 11)
    for _ in range(300):
        out = attend(q, k, v, dropout=0.3, backend=backend)[0, 0]
        (gradient,) = torch.autograd.grad(out.sum(), v)
        torch.testing.assert_close(gradient[0, 0, :, 0], out.detach().sum(0))  # ∂Σ out / ∂v_j = Σ_i w_ij
        total += out.detach()
    values = out.detach().unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / 11 / 0.7]), atol=1e-5, rtol=0)
    assert abs(total.mean() / 300 * 11 - 1) < 0.02


def test_chunked_skips_what_the_mask_hides() -> None:
    q, k, v = (draw((1, 1, 12, 4), i, torch.float32) for i in range(3))
    k[:, :, 10:] = torch.nan  # the last block is hidden from everyone: nobody may touch it
    v[:, :, 10:] = torch.nan
    out = attend(q, k, v, mask=Mask(lambda i, j: (j < 10) & (i >= 0)), backend="chunked")
    torch.testing.assert_close(out, attend(q, k[:, :, :10], v[:, :, :10]))


Q = torch.zeros(2, 4, 3, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(3, 8)}, r"four dimensions.*q \(3, 8\)"),
        ({"k": torch.zeros(2, 4, 5, 7)}, r"do not fit together.*k \(2, 4, 5, 7\)"),
        ({"k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 8)}, "4 query heads cannot share 3"),
        ({"v": torch.zeros(2, 4, 6, 8)}, r"v \(2, 4, 6, 8\)"),
        ({"k": torch.zeros(2, 4, 5, 8).double()}, "float64.*convert"),
        ({"mask": torch.zeros(2, 1, 1, 5)}, "a mask is bool.*float32"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask of shape \(2, 5\).*\(2, 4, 3, 5\)"),
        ({"mask": torch.ones(1, 1, 2, 5, dtype=torch.bool)}, r"mask of shape \(1, 1, 2, 5\)"),
        ({"mask": padding(torch.ones(2, 9, dtype=torch.bool))}, r"mask of shape \(2, 1, 1, 9\)"),
        ({"bias": torch.zeros(4, 3, 5)}, r"bias of shape \(4, 3, 5\)"),
        ({"bias": torch.zeros(1, 4, 3, 5).double()}, "bias is torch.float64"),
        ({"backend": "flash"}, "unknown attention backend 'flash': there are math, fused, chunked"),
    ],
)
def test_bad_input_is_refused_by_name(change: dict, message: str) -> None:
    arguments = {"q": Q, "k": torch.zeros(2, 4, 5, 8), "v": torch.zeros(2, 4, 5, 8), **change}
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(ValueError, match=message):
        attend(q, k, v, **arguments)


def torch_attention(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch.nn.MultiheadAttention with the same weights."""
    c = ours.config
    theirs = nn.MultiheadAttention(c.d_model, c.heads, batch_first=True, dtype=ours.output.weight.dtype)
    with torch.no_grad():
        parts = [ours.query, ours.key_value] if ours.cross else [ours.query_key_value]
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in parts]).normal_())
        for p, bias in zip(parts, theirs.in_proj_bias.split([len(p.bias) for p in parts]), strict=True):
            p.bias.copy_(bias)
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias.normal_())
    return theirs


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", ["self", "masked", "cross"])
def test_multi_head_equals_torchs_weight_for_weight(kind: str, dtype: torch.dtype, atol: float) -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(AttentionConfig(12, 3), d_memory=12 if kind == "cross" else None).to(dtype)
    theirs = torch_attention(ours)
    x, memory = torch.randn(2, 5, 12, dtype=dtype), torch.randn(2, 7, 12, dtype=dtype)
    keep = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7]).bool()
    if kind == "cross":
        out = ours(x, memory, mask=padding(keep))
        expected, weights = theirs(x, memory, memory, key_padding_mask=~keep, average_attn_weights=False)
    elif kind == "masked":
        out = ours(x, mask=causal())
        hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
        expected, weights = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    else:
        out = ours(x)
        expected, weights = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(out, expected, atol=atol, rtol=0)
    seen: list[Tensor] = []
    ours.weights.watchers.append(lambda w: seen.append(w) or w)
    ours(x, memory, mask=padding(keep)) if kind == "cross" else ours(x, mask=causal() if kind == "masked" else None)
    torch.testing.assert_close(seen[0], weights, atol=atol, rtol=0)


@pytest.mark.parametrize("config", [AttentionConfig(12, 4, 2), AttentionConfig(10, 4, 1, d_k=6, d_v=5)])
def test_grouped_heads_equal_full_heads_with_copied_weights(config: AttentionConfig) -> None:
    torch.manual_seed(0)
    grouped = MultiHeadAttention(config)
    full = MultiHeadAttention(AttentionConfig(config.d_model, 4, d_k=grouped.d_k, d_v=grouped.d_v))
    with torch.no_grad():
        for name in ("weight", "bias"):
            q, k, v = getattr(grouped.query_key_value, name).normal_().split(grouped.widths)
            k = k.unflatten(0, (grouped.kv_heads, -1)).repeat_interleave(4 // grouped.kv_heads, 0).flatten(0, 1)
            v = v.unflatten(0, (grouped.kv_heads, -1)).repeat_interleave(4 // grouped.kv_heads, 0).flatten(0, 1)
            getattr(full.query_key_value, name).copy_(torch.cat([q, k, v]))
    full.output.load_state_dict(grouped.output.state_dict())
    x = torch.randn(2, 5, config.d_model)
    torch.testing.assert_close(grouped(x, mask=causal()), full(x, mask=causal()))
    grouped.weights.watchers.append(lambda w: w)
    torch.testing.assert_close(grouped(x, mask=causal()), full(x, mask=causal()))


def test_without_the_output_matrix_the_heads_are_concatenated() -> None:
    attention = MultiHeadAttention(AttentionConfig(12, 3, d_k=2, d_v=5, output=False))
    assert attention(torch.randn(2, 4, 12)).shape == (2, 4, 15)


def test_a_caller_held_cache_gives_the_same_as_all_at_once() -> None:
    attention, x = MultiHeadAttention(AttentionConfig(12, 3)), torch.randn(2, 40, 12)
    whole, cache = attention(x, mask=causal()), KeyValues()
    steps = [attention(x[:, :3], mask=causal(), cache=cache)]
    steps += [attention(x[:, i : i + 1], cache=cache) for i in range(3, 39)]
    steps += [attention(x[:, 39:], mask=causal(39), cache=cache)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    assert cache.length == 40


def test_cross_attention_projects_its_memory_once() -> None:
    attention, cache = MultiHeadAttention(AttentionConfig(12, 3), d_memory=7), KeyValues()
    x, memory = torch.randn(2, 1, 12), torch.randn(2, 5, 7)
    first = attention(x, memory, cache=cache)
    torch.testing.assert_close(attention(x, None, cache=cache), first)
    with pytest.raises(ValueError, match="reads a memory: pass it"):
        attention(x)
    with pytest.raises(ValueError, match="build it with d_memory="):
        MultiHeadAttention(AttentionConfig(12, 3))(x, memory)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("K", [2, 5])
def test_rows_that_read_one_memory_share_it(K: int, T: int, watched: bool) -> None:
    attention = MultiHeadAttention(AttentionConfig(12, 4, kv_heads=2), d_memory=7)
    x, memory = torch.randn(3 * K, T, 12), torch.randn(3, 6, 7)
    mask = padding(torch.tensor([[1] * 6, [1] * 2 + [0] * 4, [0] * 6]).bool()).dense(1, 6, memory.device)
    expected = attention(x, memory.repeat_interleave(K, 0), mask=mask.repeat_interleave(K, 0))
    seen: list[Tensor] = []
    if watched:
        attention.weights.watchers.append(lambda weights: seen.append(weights) or weights)
    cache = KeyValues()
    torch.testing.assert_close(attention(x, memory, mask=mask), expected)
    torch.testing.assert_close(attention(x, memory, mask=mask, cache=cache), expected)
    torch.testing.assert_close(attention(x, None, mask=mask, cache=cache), expected)
    assert cache.keys is not None
    assert len(cache.keys) == 3  # as it was, for every row
    assert [weights.shape for weights in seen] == [(3 * K, 4, T, 6)] * (3 if watched else 0)
    with pytest.raises(ValueError, match=f"do not fit together: {3 * K + 1} rows read 3"):
        attention(torch.cat([x, x[:1]]), memory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 10, "heads": 3}, "d_model = 10 does not divide into 3 heads"),
        ({"d_model": 12, "heads": 4, "kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"d_model": 12, "heads": 4, "backend": "flash"}, "backend = 'flash': choose auto, math, fused or chunked"),
        ({"d_model": 12, "heads": 0}, "heads = 0"),
        ({"d_model": 12, "heads": 4, "scale": math.nan}, "scale = nan: it must be a finite number"),
    ],
)
def test_impossible_shapes_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionConfig(**arguments)


def test_inputs_of_another_width_are_refused() -> None:
    itself, cross = MultiHeadAttention(AttentionConfig(12, 3)), MultiHeadAttention(AttentionConfig(12, 3), d_memory=7)
    with pytest.raises(ValueError, match=r"x of shape \(batch, length, 12\), got \(2, 5, 10\)"):
        itself(torch.randn(2, 5, 10))
    with pytest.raises(ValueError, match=r"memory of shape \(batch, length, 7\), got \(2, 5, 12\)"):
        cross(torch.randn(2, 5, 12), torch.randn(2, 5, 12))


X = torch.zeros(4, 5, 16)


@pytest.mark.parametrize("path", ["attend", "tapped", "additive", "positions"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(4, 5, 5, dtype=torch.bool)}, r"mask of shape \(4, 5, 5\) does not fit .* \(4, 4, 5, 5\)"),
        ({"mask": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, r"mask of shape \(2, 1, 1, 5\) does not fit"),
        ({"mask": torch.ones(4, 1, 1, 5)}, "a mask is bool, True = may attend; got torch.float32"),
        ({"bias": torch.zeros(4, 5, 5)}, r"bias of shape \(4, 5, 5\) does not fit .* \(4, 4, 5, 5\)"),
        ({"bias": torch.zeros(1, 1, 5, 5).double()}, "bias is torch.float64 and q is torch.float32"),
        ({"x": X.double()}, r"x is torch.float64, and the weights torch.float32: convert one of them with .to\(\)"),
    ],
)
def test_a_module_refuses_on_every_path_what_attend_refuses(path: str, change: dict, message: str) -> None:
    config = AttentionConfig(16, 4, score="additive" if path == "additive" else "dot")
    module = MultiHeadAttention(config, positions=ALiBi(4) if path == "positions" else None)
    if path == "tapped":
        module.weights.watchers.append(lambda weights: weights)
    arguments = {"x": X, **change}
    with pytest.raises(ValueError, match=message):
        module(arguments.pop("x"), **arguments)


@pytest.mark.parametrize("score", ["dot", "general", "additive"])
def test_a_memory_of_another_dtype_is_refused(score: str) -> None:
    with pytest.raises(ValueError, match=r"memory is torch.float64, and the weights torch.float32"):
        MultiHeadAttention(AttentionConfig(16, 4, score=score), d_memory=16)(X, X.double())
    bare = MultiHeadAttention(AttentionConfig(16, 4, score=score, project=False, output=False), d_memory=16)
    bare.weights.watchers.append(lambda weights: weights)
    with pytest.raises(ValueError, match=r"float64.*float32|float32.*float64"):
        bare(X, X.double())
    with pytest.raises(ValueError, match=r"float64.*float32"):
        bare(X.double(), X)


@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize("score", ["dot", "general", "additive"])
def test_autocast_may_mix_what_it_casts(score: str, project: bool) -> None:
    module = MultiHeadAttention(AttentionConfig(16, 4, score=score, project=project), d_memory=16)
    for x, memory in ((X, X), (X.bfloat16(), X), (X, X.bfloat16())):
        with torch.autocast("cpu", torch.bfloat16):
            assert module(x, memory).shape == X.shape
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="float64"):
        module(X.double(), X)


def test_quantised_weights_read_what_they_did() -> None:
    module = quantise(MultiHeadAttention(AttentionConfig(16, 4)))
    assert module(X).shape == module(X.double()).shape == X.shape


@pytest.mark.parametrize("K", [1, 3])
def test_rows_that_read_one_memory_may_have_masks_and_biases_of_their_own(K: int) -> None:
    attention = MultiHeadAttention(AttentionConfig(12, 4, kv_heads=2), d_memory=7)
    x, memory = torch.randn(2 * K, 5, 12), torch.randn(2, 6, 7)
    for rows in (1, 2):
        mask, bias = torch.rand(rows, 1, 5 * K, 6) < 0.7, torch.randn(rows, 4, 5 * K, 6)
        expected = attention(x, memory, mask=mask, bias=bias)
        attention.weights.watchers.append(lambda weights: weights)
        torch.testing.assert_close(attention(x, memory, mask=mask, bias=bias), expected)
        attention.weights.watchers.clear()


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_dropout_that_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"got {p}"):
        attend(Q, Q, Q, dropout=p)
    with pytest.raises(ValueError, match=f"got {p}"):
        AttentionConfig(12, 3, dropout=p)


def test_auto_writes_out_weights_only_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for name, backend in backends.BACKENDS.items():
        spy = lambda *a, name=name, backend=backend: taken.append(name) or backend(*a)  # noqa: E731
        monkeypatch.setitem(backends.BACKENDS, name, spy)
    bias = torch.zeros(1, 4, 3, 3, requires_grad=True)
    for large in (2**20, 1):
        monkeypatch.setattr(backends, "LARGE", large)
        attend(Q, Q, Q, mask=causal())
        attend(Q, Q, Q, dropout=0.1)
        attend(Q, Q, Q, bias=bias)
        attend(Q, Q, Q, mask=causal(1))
    assert taken == ["fused", "math", "fused", "fused", "fused", "chunked", "chunked", "chunked"]


@pytest.mark.parametrize("backend", ["math", *FAST])
def test_dropout_of_everything_gives_zeros(backend: str) -> None:
    q, k, v = (draw((1, 2, 7, 4), i, torch.float32).requires_grad_() for i in range(3))
    out = attend(q, k, v, dropout=1.0, backend=backend)
    out.sum().backward()
    assert out.eq(0).all()
    assert v.grad is not None
    assert v.grad.eq(0).all()
