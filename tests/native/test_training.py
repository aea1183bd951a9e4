"""The C kernels of a training step equal the core's own, in value and gradient, and a run with them is repeatable."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.core.attention import attend
from regard.core.dropout import drawing_from, dropout
from regard.core.layers import GATES, FeedForward, GatedFeedForward, Residual, linear
from regard.core.losses import cross_entropy_in_blocks, linear_cross_entropy
from regard.core.masks import causal, padding
from regard.core.outputs import HeadConfig
from regard.core.positions import Positions
from regard.core.stems import Embedding, bags
from regard.models.family import build, configure
from regard.models.transformer import FAMILY, Transformer, TransformerConfig
from regard.native import training
from regard.native.lend import lend, lending, lent
from regard.native.training import NativeKernels
from regard.training.objectives import NextToken
from regard.training.parallel import Shards


@pytest.fixture(scope="module", autouse=True)
def needs_kernels() -> None:
    torch.set_num_threads(1)
    if training.kernels() is None:
        pytest.skip("there is no C compiler here, or no AVX-512")


def native() -> NativeKernels:
    found = training.kernels()
    assert found is not None
    return found


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(7))
    return [out.detach(), *torch.autograd.grad(out, inputs, g.to(out.dtype))]


def close(mine: list[Tensor], exact: list[Tensor], tolerance: float = 1e-4) -> None:
    for a, b in zip(mine, exact, strict=True):
        torch.testing.assert_close(a.double(), b, atol=tolerance * max([1.0, *b.abs().flatten().tolist()]), rtol=0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_attention_equals_math_in_fp64(data: st.DataObject) -> None:
    def size(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    B, H, T, S, kind = (
        size(1, 3),
        size(1, 3),
        size(1, 50),
        size(1, 50),
        data.draw(st.sampled_from(["none", "keys", "any", "triangle"])),
    )
    half = data.draw(st.booleans()) and bool(native().lib.halves())
    dtype, unit = (torch.bfloat16, 32) if half else (torch.float32, data.draw(st.sampled_from([1, 8, 16])))
    d_k, d_v, seed = unit * size(1, 5), unit * size(1, 5), size(0, 2**31)
    scale = data.draw(st.sampled_from([None, 0.05] if half else [None, 1.0, 0.05]))  # what is rounded is not enlarged
    g = torch.Generator().manual_seed(seed)
    # As in a model: heads are slices of one product, so their strides are not those of a tensor of its own.
    q = torch.randn(B, T, H, d_k + 3, generator=g).to(dtype).transpose(1, 2)[..., :d_k]
    k, v = torch.randn(B, S, H, d_k + d_v, generator=g).to(dtype).transpose(1, 2).split([d_k, d_v], -1)
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    mask: Any = None
    if kind == "keys":
        mask = padding(torch.rand(B, S, generator=g) < 0.6)
    elif kind == "any":
        mask = torch.rand(*(data.draw(st.sampled_from([1, n])) for n in (B, H, T, S)), generator=g) < 0.6
    elif kind == "triangle":
        mask = causal()
    if data.draw(st.booleans()):  # a bias, which learns as well
        # In halves a full one: a sum of many that are rounded, whose true sum may be 0, is as wrong as they are many.
        shape = (n if half else data.draw(st.sampled_from([1, n])) for n in (B, H, T, S))
        inputs.append(torch.randn(*shape, generator=g).to(dtype).requires_grad_())
    p = data.draw(st.sampled_from([0.0, 0.1, 0.5]))

    def run(inputs: list[Tensor], backend: str) -> list[Tensor]:
        q, k, v, *bias = inputs
        with drawing_from(torch.Generator().manual_seed(seed)):
            how = {"mask": mask, "scale": scale, "dropout": p, "backend": backend}
            return gradients(attend(q, k, v, bias=bias[0] if bias else None, **how), inputs)

    with lending(native()):
        mine = run(inputs, "auto")
    assert {x.dtype for x in mine} == {dtype}
    truth = run([x.detach().double().requires_grad_() for x in inputs], "math")
    close([x.float() for x in mine], truth, 0.05 if half else 1e-4)


def test_weights_are_dropped_by_the_draws_of_the_core_however_many_there_are() -> None:
    q = torch.randn(1, 3, 603, 16)  # three times as many as are drawn at a time, in rows that begin within a word
    with lending(native()), drawing_from(torch.Generator().manual_seed(1)):
        mine = attend(q, q, q, dropout=0.5)
    with drawing_from(torch.Generator().manual_seed(1)):
        torch.testing.assert_close(mine, attend(q, q, q, dropout=0.5, backend="math"))


def test_large_scores_stay_finite_and_a_blind_query_gets_nothing() -> None:
    q, k, v = (torch.randn(1, 2, 5, 16).mul(s).requires_grad_() for s in (100.0, 100.0, 1.0))
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    mask[..., 2, :] = False
    with lending(native()):
        out, dq, dk, dv = gradients(attend(q, k, v, mask=mask), [q, k, v])
    assert all(bool(x.isfinite().all()) for x in (out, dq, dk, dv))
    assert not out[:, :, 2].any()
    assert not dq[:, :, 2].any()


@pytest.mark.parametrize("N", [1, 95, 96, 97, 200])
@pytest.mark.parametrize(("V", "d"), [(1, 16), (11, 16), (300, 48), (1000, 128)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_equals_the_cores_in_fp64(N: int, V: int, d: int, bias: bool, smoothing: float) -> None:
    g = torch.Generator().manual_seed(N)
    h, W, b = (torch.randn(*shape, generator=g).requires_grad_() for shape in ((N, d), (V, d), (V,)))
    y, inputs = torch.randint(V, (N,), generator=g), [h, W, b] if bias else [h, W]

    def loss(h: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        return linear_cross_entropy(h, W, y, bias=b, smoothing=smoothing)

    with lending(native()):
        mine = gradients(loss(*inputs), inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    close(mine, gradients(loss(*exact), exact), 1e-5 + 3e-7 * N)  # of N numbers of about 1 a sum of about 0


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3])
def test_the_loss_computes_what_is_asked_for(needs: tuple[bool, bool, bool]) -> None:
    h, W, b, y = torch.randn(100, 32), torch.randn(50, 32), torch.randn(50), torch.randint(50, (100,))
    mine = native().cross_entropy(h, W, b, y, 0.9, needs)
    truth = cross_entropy_in_blocks(h, W, b, y, 0.9, needs)
    assert mine is not None
    torch.testing.assert_close(mine.loss, truth.loss)
    for a, t, needed in zip(mine[1:], truth[1:], needs, strict=True):
        assert (a is not None) == (t is not None) == needed
        if a is not None:
            torch.testing.assert_close(a, t, atol=1e-4, rtol=0)


def test_what_is_no_number_is_not_hidden() -> None:
    h, W = torch.randn(10, 16), torch.randn(40, 16)
    h[3, 2] = torch.nan
    with lending(native()):
        assert linear_cross_entropy(h, W, torch.zeros(10, dtype=torch.int64)).isnan()
        q = torch.randn(1, 1, 4, 16)
        k = q.clone()
        k[0, 0, 1, 3] = torch.nan
        assert attend(q, k, q).isnan().all()


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 16, 33), (0,)])
@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_dropout_draws_as_the_core_does(shape: tuple[int, ...], p: float) -> None:
    x = torch.randn(shape).requires_grad_()
    results = []
    for kernels in (None, native()):
        with drawing_from(torch.Generator().manual_seed(3)), lending(kernels):
            results.append(gradients(dropout(x, p), [x]))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_models_loss_and_gradients_are_those_without(norm: str) -> None:
    torch.manual_seed(0)
    model = Transformer(FAMILY.presets["tiny"](300, dropout=0.2, norm=norm))
    source, target = (torch.randint(3, 300, (9, n)) for n in (17, 13))
    source[3, 9:] = target[5, 4:] = 0
    labels = torch.where(target != 0, target.roll(-1, 1), 0)
    parameters, exact = list(model.parameters()), copy.deepcopy(model).double()
    lend(model)

    def run(model: Transformer, kernels: NativeKernels | None) -> list[Tensor]:
        with drawing_from(torch.Generator().manual_seed(1)), lending(kernels):
            value = NextToken(model, 0.1)(labels, source=source, target=target)
            return [value.detach(), *torch.autograd.grad(value, list(model.parameters()))]

    mine = run(model, native())
    close(mine, run(exact, None), 1e-4)
    assert all(torch.equal(a, b) for a, b in zip(mine, run(model, native()), strict=True))
    assert len(mine) == len(parameters) + 1


def test_each_kernel_has_a_place_in_a_model_and_no_other_thread_comes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Transformer(TransformerConfig.tiny(300, feed_forward_dropout=0.1))
    tokens, asked = torch.randint(3, 300, (2, 7)), set()
    lend(model)
    for name in ("attend", "linear", "split", "embedding", "feed_forward", "residual", "dropout", "cross_entropy"):
        kernel = getattr(NativeKernels, name)

        def spy(self: NativeKernels, *args: Any, kernel: Any = kernel, name: str = name) -> Any:
            answer = kernel(self, *args)
            asked.add(name if answer is not None else f"{name} in vain")
            return answer

        monkeypatch.setattr(NativeKernels, name, spy)
    NextToken(model)(tokens, source=tokens, target=tokens)
    assert not asked
    with lending(training.kernels(sparse=True)):
        NextToken(model)(tokens, source=tokens, target=tokens)
    assert asked == {"attend", "linear", "split", "embedding", "feed_forward", "residual", "dropout", "cross_entropy"}


@pytest.mark.parametrize("shape", [(1, 16), (241, 32), (5, 50, 48), (0, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_maps_gradients_equal_pytorchs_in_fp64(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer = linear(shape[-1], 32, 48, bias=bias)
    exact, x = copy.deepcopy(layer).double(), torch.randn(shape).requires_grad_()
    y = x.detach().double().requires_grad_()
    lend(layer)
    with lending(native()):
        mine = gradients(layer(x), [x, *layer.parameters()])
    close(mine, gradients(F.linear(y, exact.weight, exact.bias), [y, *exact.parameters()]))


@pytest.fixture
def halves() -> None:
    if not native().lib.halves():
        pytest.skip("this processor multiplies no numbers of bf16")


def in_halves(layer: torch.nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What autocast's way through the kernels makes of a layer, and what fp64 makes of the numbers that it rounds."""
    for parameter in layer.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    exact, x = copy.deepcopy(layer).double(), x.to(torch.bfloat16).float().requires_grad_()
    y = x.detach().double().requires_grad_()
    lend(layer)
    with lending(native()), torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert (out.dtype, "Half" in out.grad_fn.name()) == (torch.bfloat16, True)
    mine = gradients(out, [x, *layer.parameters()])
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16).double()
    said = exact(y)
    return mine, [said.detach(), *torch.autograd.grad(said, [y, *exact.parameters()], g)]


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("shape", [(1, 32), (241, 64), (5, 97, 96), (0, 32)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map_in_bf16_equals_fp64(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    mine, exact = in_halves(linear(shape[-1], 32, 64, bias=bias), torch.randn(shape))
    close(mine[:2], exact[:2], 2**-8)  # results are rounded,
    close(mine[2:], exact[2:])  # and sums over rows are not


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("shape", [(1, 32), (241, 64), (5, 97, 96), (0, 32)])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "gelu_tanh", "gelu_quick"])
def test_a_feed_forward_network_in_bf16_equals_fp64(shape: tuple[int, ...], activation: str) -> None:
    torch.manual_seed(0)
    layer = FeedForward(shape[-1], 160, activation, bias=shape[0] != 5)
    close(*in_halves(layer, torch.randn(shape)), 2**-6)  # what is inside is rounded, too


@pytest.mark.usefixtures("halves")
def test_maps_in_bf16_are_no_less_exact_than_pytorchs() -> None:
    torch.manual_seed(0)
    layer, x = FeedForward(96, 384, "gelu"), torch.randn(333, 96)
    plain = copy.deepcopy(layer)
    mine, exact = in_halves(layer, x)
    for parameter in plain.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    x = x.to(torch.bfloat16).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        theirs = gradients(plain(x), [x, *plain.parameters()])
    for a, b, truth in zip(mine, theirs, exact, strict=True):
        assert (a.double() - truth).norm() <= 1.1 * (b.double() - truth).norm()


@pytest.mark.parametrize("kept", [0, 2**30])
@pytest.mark.parametrize("shape", [(1, 16), (241, 32), (5, 50, 48), (0, 16)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_feed_forward_network_equals_the_cores_in_fp64(
    monkeypatch: pytest.MonkeyPatch, kept: int, shape: tuple[int, ...], bias: bool, p: float
) -> None:
    monkeypatch.setattr(training, "KEPT", kept)
    torch.manual_seed(0)
    layer = FeedForward(shape[-1], 96, dropout=p, bias=bias)
    if layer.inner.bias is not None:
        torch.nn.init.normal_(layer.inner.bias)
    exact, x = copy.deepcopy(layer).double(), torch.randn(shape).requires_grad_()
    y = x.detach().double().requires_grad_()
    lend(layer)
    with drawing_from(torch.Generator().manual_seed(2)), lending(native()):
        mine = gradients(layer(x), [x, *layer.parameters()])
    with drawing_from(torch.Generator().manual_seed(2)):
        close(mine, gradients(exact(y), [y, *exact.parameters()]))


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("gain", [1.0, 1e-3, 0.0])
def test_a_residual_connection_equals_the_cores_in_fp64(place: str, p: float, gain: float) -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(48)
    torch.nn.init.normal_(norm.weight, mean=2.0, std=0.3)
    torch.nn.init.normal_(norm.bias)
    with torch.no_grad():
        norm.weight[3] = gain
    layer = Residual(torch.nn.Tanh(), norm, place, dropout=p)
    exact, x = copy.deepcopy(layer).double(), torch.randn(7, 5, 48).requires_grad_()
    y = x.detach().double().requires_grad_()
    lend(layer)
    with drawing_from(torch.Generator().manual_seed(2)), lending(native()):
        mine = gradients(layer(x), [x, *layer.parameters()])
    with drawing_from(torch.Generator().manual_seed(2)):
        close(mine, gradients(exact(y), [y, *exact.parameters()]), 1e-5)


def test_other_norms_and_activations_are_left_to_the_core() -> None:
    x, s = torch.randn(3, 32), torch.randn(3, 32)
    plain = torch.nn.LayerNorm(32, elementwise_affine=False)
    assert all(native().residual(x, s, 0.1, norm) is None for norm in (torch.nn.RMSNorm(32), plain))
    assert native().residual(x, s[:1], 0.1, None) is None  # the core broadcasts; the kernels do not
    layer = FeedForward(32, 64, "gelu")
    lend(layer)
    with lending(native()):
        torch.testing.assert_close(layer(x), layer.outer(F.gelu(layer.inner(x))))


@pytest.mark.parametrize("name", ["inner", "outer", "norm"])
def test_a_module_with_a_hook_is_called(name: str) -> None:
    network, x, calls = FeedForward(32, 64), torch.randn(2, 3, 32), []
    layer = Residual(network, torch.nn.LayerNorm(32))
    module = layer.norm if name == "norm" else getattr(network, name)
    module.register_forward_hook(lambda *_: calls.append(name))
    lend(layer)
    with lending(native()):
        layer(x)
    assert calls == [name]


def test_gradients_that_lie_side_by_side_are_joined_without_a_copy() -> None:
    x = torch.randn(2, 5, 96, requires_grad=True)

    def way_back(*gradients: Tensor) -> Tensor:
        parts = native().split(x, [32, 48, 16])
        assert all(torch.equal(a, b) for a, b in zip(parts, x.split([32, 48, 16], -1), strict=True))
        return torch.autograd.grad(parts, x, gradients)[0]

    g = torch.randn(2, 5, 96)
    parts = g.split([32, 48, 16], -1)
    assert way_back(*parts).data_ptr() == g.data_ptr()
    assert torch.equal(way_back(*parts), g)
    assert torch.equal(way_back(*(part.clone() for part in parts)), g)
    assert torch.equal(way_back(parts[0], parts[1], g[..., :16]), torch.cat([g[..., :80], g[..., :16]], -1))


def test_a_shards_embedding_has_a_gradient_for_every_row() -> None:
    table = torch.nn.Embedding(50, 16, padding_idx=0)
    embed, tokens = Embedding(table, Positions()), torch.tensor([[3, 7, 3, 0], [9, 3, 0, 0]])
    weights = torch.randn(2, 4, 16)

    def loss(tokens: Tensor, weights: Tensor) -> Tensor:
        return (embed(tokens) * weights).sum()

    lend(embed)
    loss(tokens, weights).backward()
    truth, table.weight.grad = table.weight.grad, None
    with Shards(2) as shards:
        shards.backward(loss, [table.weight], {"tokens": tokens, "weights": weights})
    assert truth is not None
    torch.testing.assert_close(table.weight.grad, truth)


@pytest.mark.parametrize(("shape", "d"), [((7, 1), 8), ((2, 5, 6), 8), ((2, 3, 3, 4), 33)])
def test_sums_of_rows_of_a_table_equal_the_cores(shape: tuple[int, ...], d: int) -> None:
    rows, table = torch.randint(0, 9, shape), torch.randn(9, d, requires_grad=True)
    with lending(native()):
        mine = gradients(bags(rows, table), [table])
    exact = table.detach().double().requires_grad_()
    close(mine, gradients(bags(rows, exact), [exact]))
    assert exact.dtype == torch.float64


def test_a_model_of_graphs_learns_as_it_does_without() -> None:
    config = configure("graphormer-tiny", vocabulary=9).but(layers=2, attention_dropout=0.1)
    model = build(config, HeadConfig("classes", 2))
    lend(model)
    given = {"distances": torch.randint(0, 30, (3, 7, 7)), "paths": torch.randint(0, 9, (3, 7, 7, config.reach))}
    given["keep"] = torch.arange(7) < torch.tensor([[7], [5], [1]])
    nodes, parameters = torch.randint(1, 9, (3, 7, 2)), list(model.parameters())

    def run(kernels: NativeKernels | None) -> list[Tensor]:
        with lending(kernels), drawing_from(torch.Generator().manual_seed(1)):
            return gradients(model(nodes, **given), parameters)

    torch.testing.assert_close(run(native()), run(None), atol=1e-5, rtol=1e-4)


def test_only_what_needs_a_gradient_gets_one() -> None:
    layer, x = linear(16, 16), torch.randn(3, 16)
    layer.weight.requires_grad_(False)
    lend(layer)
    with lending(native()):
        layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [3.0] * 16


@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_a_product_whose_matrix_learns_nothing_does_not_hold_what_it_has_read(low: bool) -> None:
    layer, kept = linear(32, 64), list[tuple[int, ...]]()
    layer.weight.requires_grad_(False)
    lend(layer)
    x = torch.randn(3, 32, requires_grad=True)

    def keep(t: Tensor) -> Tensor:
        kept.append(tuple(t.shape))
        return t

    with (
        lending(native()),
        torch.autocast("cpu", torch.bfloat16, enabled=low),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
    ):
        y = layer(x)
    y.float().sum().backward()
    assert (3, 32) not in kept
    assert x.grad is not None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 32), atol=0.1 if low else 1e-4, rtol=0)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_is_opened_again_on_the_way_back_to_the_same_bits(gate: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module, ways, held = GatedFeedForward(16, 32, gate), list[list[Tensor]](), list[int]()
    z, value = (torch.randn(2, 5, 32, dtype=dtype, requires_grad=True) for _ in range(2))
    lend(module)

    def hold(t: Tensor) -> Tensor:
        held.append(t.data_ptr())
        return t

    for kernels in (None, native()):
        held.clear()
        with lending(kernels), torch.autograd.graph.saved_tensors_hooks(hold, lambda t: t):
            product = module.gated(z, value)
        ways.append(gradients(product, [z, value]))
    assert all(map(torch.equal, *ways))
    assert set(held) == {z.data_ptr(), value.data_ptr()}


def test_only_this_thread_and_block_borrow() -> None:
    assert lent() is None
    with lending(native()):
        assert lent() is not None
    assert lent() is None
    torch.set_num_threads(2)
    assert training.kernels() is None  # PyTorch's kernels share their work among threads; ours do not
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_are_left_to_the_core(dtype: torch.dtype) -> None:
    q, W = torch.randn(1, 2, 4, 16, dtype=dtype), torch.randn(20, 16, dtype=dtype)
    y = torch.zeros(4, dtype=torch.int64)
    assert native().attend(q, q, q, None, 1.0) is None
    assert native().attend(*(torch.randn(1, 2, 4, 8, dtype=torch.bfloat16) for _ in range(3)), None, 1.0) is None
    assert native().attend(*(torch.randn(1, 2, 4, 16) for _ in range(3)), None, 1.0, 0.0, q[..., :4]) is None
    assert native().attend(*(torch.randn(1, 2, 4, 0) for _ in range(3)), None, 1.0) is None
    assert native().bags(y[None], W) is None
    assert native().dropout(q, 0.5) is None
    assert native().linear(q, W[:16], None) is None
    assert native().cross_entropy(q[0, 0], W, None, y, 1.0, (False,) * 3) is None


def test_what_does_not_fit_is_left_to_the_core_which_refuses_it() -> None:
    lent, x, W = native(), torch.randn(3, 32), torch.randn(48, 32)
    maps = [torch.nn.Linear(32, 64), torch.nn.Linear(64, 32), torch.nn.Linear(48, 32), torch.nn.Linear(16, 64)]
    assert lent.linear(x[:, :16], W, None) is None  # narrower than the map
    assert lent.linear(x, W, torch.randn(32)) is None
    assert lent.linear(x, W, torch.randn(96)[::2]) is None
    assert lent.linear(x, W[:0], None) is None
    assert lent.linear(x[:, :0], W[:, :0], None) is None
    assert lent.linear(x, W[0], None) is None
    assert lent.feed_forward(x, maps[3], maps[1], 0, 0.1) is None
    assert lent.feed_forward(x, maps[0], maps[2], 0, 0.1) is None
    assert lent.residual(x[:, :0], x[:, :0], 0.1, None) is None
    assert lent.residual(torch.zeros(()), torch.zeros(()), 0.1, None) is None
    norm = torch.nn.LayerNorm(32)
    norm.bias = torch.nn.Parameter(torch.zeros(16))
    assert lent.residual(x, x, 0.1, norm) is None
    q, k, v = torch.randn(2, 2, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 32)
    for other in ((q[:1], k, v), (q, k[:, :1], v), (q, k, v[:, :, :5]), (q, torch.randn(2, 2, 7, 32), v), (q[0], k, v)):
        assert lent.attend(*other, None, 1.0) is None
    for mask in (torch.ones(5, 7), torch.ones(1, 1, 5, 6), torch.ones(2, 1, 7)):
        assert lent.attend(q, k, v, mask.bool(), 1.0) is None
    assert lent.attend(q, k, v, torch.ones(1, 1, 5, 7), 1.0) is None
    assert lent.attend(q, k, v, None, 1.0, 0.0, torch.zeros(1, 1, 5, 6)) is None
    for rows in (torch.tensor([[48]]), torch.tensor([[-1]]), torch.zeros(0, 3).long()):
        assert lent.bags(rows, W) is None
    layer = torch.nn.Sequential(linear(32, 48))
    lend(layer)
    with lending(lent), pytest.raises(RuntimeError):
        layer(x[:, :16])


def test_labels_are_of_the_vocabulary() -> None:
    h, W, y = torch.randn(4, 32), torch.randn(20, 32), torch.tensor([0, 19, 3, 4])
    for wrong in (20, -1, -100, 2**40):
        y[2] = wrong
        with pytest.raises(ValueError, match=r"labels lie in 0..19"):
            native().cross_entropy(h, W, None, y, 1.0, (True,) * 3)
    for other in ((h, W, None, y[:3]), (h, W, None, y.int()), (h[:, :16], W, None, y), (h, W[:0], None, y)):
        assert native().cross_entropy(*other, 1.0, (True,) * 3) is None
    assert native().cross_entropy(h, W, torch.randn(19), y, 1.0, (True,) * 3) is None


def test_the_shards_of_a_step_borrow_them() -> None:
    parameter, seen = torch.nn.Parameter(torch.ones(())), []

    def loss(x: Tensor) -> Tensor:
        seen.append(lent())
        return (x * parameter).sum()

    with Shards(2) as shards:
        shards.backward(loss, [parameter], {"x": torch.ones(4)})
    with Shards(2, lend=False) as shards:
        shards.backward(loss, [parameter], {"x": torch.ones(4)})
    assert [kernels is not None for kernels in seen] == [True, True, False, False]
