"""Steps equal those of independent references, continue bit for bit from their state, and touch what they should."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Adafactor as Reference

from regard.core.blocks import Stack
from regard.core.layers import linear
from regard.core.outputs import HeadConfig
from regard.models.encoder import Encoder, bert_tiny
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vision import Vision, cct_2
from regard.training import optimisers
from regard.training.optimisers import (
    Adafactor,
    Average,
    Muon,
    OptimiserConfig,
    build,
    hidden_matrices,
    named_like,
    orthogonalise,
    set_learning_rate,
)

MUON = OptimiserConfig("muon")
CONFIGS = [
    OptimiserConfig("adam"),
    OptimiserConfig("adamw", weight_decay=0.1),
    OptimiserConfig("adafactor", weight_decay=0.1, scale_parameter=True),
    OptimiserConfig("muon", weight_decay=0.1),
]


def tiny(**changes: Any) -> Transformer:
    changes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "heads": 2, **changes}
    return Transformer(TransformerConfig(30, **changes))


def parameters(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def run(optimiser: torch.optim.Optimizer, trained: list[Any], steps: range, rate: float | None = 0.01) -> None:
    """Steps with gradients that depend on nothing but the step: of every size, some of them zero."""
    if rate is not None:
        set_learning_rate(optimiser, rate)
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for p in trained:
            gradient = torch.randn(p.shape, generator=generator) * 10 ** (step % 5 - 3)
            p.grad = (gradient * (torch.rand(p.shape, generator=generator) > 0.1)).to(p.dtype)
        optimiser.step()


def names(model: nn.Module, group: dict[str, Any]) -> set[str]:
    return {name for name, p in model.named_parameters() if any(p is q for q in group["params"])}


# Which parameters go where


def test_adam_is_the_papers() -> None:
    ours, theirs = parameters((3, 4), (5,)), parameters((3, 4), (5,))
    run(build(nn.ParameterList(ours), OptimiserConfig("adam")), ours, range(10), 0.01)
    run(torch.optim.Adam(theirs, lr=0.01, betas=(0.9, 0.98), eps=1e-9), theirs, range(10), None)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_matrices_decay_and_vectors_and_tables_do_not(name: str, tie: str) -> None:
    model = tiny(tie=tie, positions="learned", feed_forward="convolution")
    optimiser = build(model, OptimiserConfig(name, weight_decay=0.1))
    decayed, spared = optimiser.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() > 1 for p in decayed["params"])
    for kind in ("query_key_value.weight", "output.weight", "inner.weight", "depthwise.weight"):
        assert any(n.endswith(kind) for n in names(model, decayed)), kind
    assert any("norm" in n for n in names(model, spared))
    assert {n for n in names(model, spared) if "tokens" in n or "table" in n} == {
        n for n, _ in model.named_parameters() if "embedding" in n
    }
    assert ("output.weight" in names(model, decayed)) == (tie == "none")  # tied, it is an embedding
    assert len(names(model, decayed) | names(model, spared)) == len(list(model.parameters()))


@pytest.mark.parametrize("tie", ["all", "target", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "shaw", "t5"])
def test_muon_takes_the_matrices_inside_the_stacks_whatever_is_tied(tie: str, positions: str) -> None:
    model = tiny(tie=tie, positions=positions, feed_forward="convolution")
    ends = ("query_key_value.weight", "query.weight", "key_value.weight", "inner.weight", "outer.weight")
    expected = {n for n, _ in model.named_parameters() if n.endswith((*ends, "sublayer.output.weight"))}
    assert len(expected) == 11  # 2 in each self-attention, 3 in the cross-attention, 2 in each feed-forward
    optimiser = build(model, MUON)
    assert names(model, optimiser.param_groups[0]) == expected
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(model.parameters()))


def test_a_product_of_several_matrices_remembers_them() -> None:
    model = tiny(kv_heads=1, feed_forward="swiglu")
    parts = hidden_matrices(model)
    attention = model.decoder.layers[0].self_attention.sublayer
    assert parts[attention.query_key_value.weight] == (16, 8, 8)
    assert parts[attention.output.weight] == (16,)
    assert parts[model.decoder.layers[0].cross_attention.sublayer.key_value.weight] == (8, 8)
    assert parts[model.encoder.layers[0].feed_forward.sublayer.inner.weight] == (24, 24)
    stack = Stack([nn.Linear(3, 5)])  # somebody's own layer
    assert list(hidden_matrices(stack).values()) == [(5,)]


def test_what_is_frozen_is_left_alone() -> None:
    model = tiny()
    model.encoder.requires_grad_(False)
    frozen = {id(p) for p in model.encoder.parameters()}
    for config in CONFIGS:
        groups = build(model, config).param_groups
        assert not frozen & {id(p) for group in groups for p in group["params"]}
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        build(model, OptimiserConfig())


def test_muon_takes_the_kernels_that_read_no_pixels_a_row_for_each_channel() -> None:
    model = Vision(cct_2(size=8), HeadConfig("classes", size=2))
    pixels, hidden = (m.weight for m in model.modules() if isinstance(m, nn.Conv2d))
    found = hidden_matrices(model)
    assert pixels not in found
    assert found[hidden] == (128,)
    before = hidden.detach().clone()
    optimiser = build(model, MUON)
    optimiser.param_groups[0]["lr"] = 1.0
    hidden.grad = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    optimiser.step()
    sizes = torch.linalg.svdvals((hidden.detach() - before).flatten(1)) / (0.2 * math.sqrt(576))
    assert 0.6 < sizes.min() <= sizes.max() < 1.3  # of a drawn matrix they are 0.5 to 1.5 times their mean


def test_muon_asks_for_a_stack() -> None:
    with pytest.raises(ValueError, match="this model has none to train: use adamw"):
        build(nn.Linear(3, 3), MUON)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adamm"}, "optimiser = 'adamm': choose adam, adamw"),
        ({"name": "muom"}, "optimiser = 'muom': choose .* or muon"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\] = 1.0"),
        ({"momentum": -0.1}, "momentum = -0.1"),
        ({"eps": 0.0}, "eps = 0.0: it must be above 0"),
        ({"adam_ratio": math.nan}, "adam_ratio = nan"),
        ({"name": "adamw", "weight_decay": -1.0}, "weight_decay = -1.0: it must be at least 0"),
        ({"name": "adam", "weight_decay": 0.1}, "weight_decay = 0.1 does nothing in adam: use adamw"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimiserConfig(**settings)


# What holds for all of them


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_through_json_and_tensors_continues_bit_for_bit(config: OptimiserConfig, dtype: torch.dtype) -> None:
    def start() -> tuple[Transformer, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = tiny().to(dtype)
        return model, build(model, config)

    whole, optimiser = start()
    run(optimiser, list(whole.parameters()), range(4))
    first, before = start()
    run(before, list(first.parameters()), range(2))
    saved = before.state_dict()
    tensors = {f"{i}.{k}": v for i, slot in saved["state"].items() for k, v in slot.items() if isinstance(v, Tensor)}
    numbers = {i: {k: v for k, v in slot.items() if not isinstance(v, Tensor)} for i, slot in saved["state"].items()}
    plain = json.loads(json.dumps({"state": numbers, "param_groups": saved["param_groups"]}))
    state: dict[int, dict[str, Any]] = {int(i): slot for i, slot in plain["state"].items()}
    for key, value in tensors.items():
        i, name = key.split(".")
        state[int(i)][name] = value
    second, after = start()
    second.load_state_dict(first.state_dict())
    after.load_state_dict({"state": state, "param_groups": plain["param_groups"]})
    run(after, list(second.parameters()), range(2, 4))
    for p, q in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_no_gradient_no_step_and_no_state(config: OptimiserConfig) -> None:
    model = tiny()
    optimiser = build(model, config)
    before = [p.detach().clone() for p in model.parameters()]
    trained = [p for i, p in enumerate(model.parameters()) if i % 2]
    run(optimiser, trained, range(2))
    for i, (p, q) in enumerate(zip(model.parameters(), before, strict=True)):
        assert torch.equal(p, q) == (i % 2 == 0)
    assert len(optimiser.state) == len(trained)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_the_same_way(config: OptimiserConfig, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    if dtype == torch.float16 and config.name.startswith("adam"):  # PyTorch's, whose state is in fp16 as well
        with pytest.raises(ValueError, match=f"fp16 cannot hold the squares of gradients that {config.name} needs"):
            build(tiny().half(), config)
        return
    model, half = tiny().to(dtype).float(), tiny()
    half.load_state_dict(model.state_dict())
    half.to(dtype)
    before = [p.detach().clone() for p in model.parameters()]
    for m in (model, half):
        run(build(m, config), list(m.parameters()), range(3), 0.1)
    for p, q, r in zip(model.parameters(), half.parameters(), before, strict=True):
        assert q.dtype == dtype
        assert (p - q).norm() < 0.05 * (p - r).norm()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_the_rate_is_zero_until_it_is_set_and_scales_the_step(config: OptimiserConfig) -> None:
    moved = []
    for rate in (None, 0.01, 0.02):
        torch.manual_seed(0)
        model = tiny()
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        run(build(model, config), list(model.parameters()), range(1), rate)
        moved.append(torch.cat([p.detach().flatten() for p in model.parameters()]) - before)
    assert moved[0].eq(0).all()
    torch.testing.assert_close(moved[2], 2 * moved[1], atol=1e-5, rtol=1e-3)


# Adafactor


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("relative", [True, False])
def test_adafactor_equals_its_reference_step_for_step(relative: bool, scale: bool, decay: float) -> None:
    shapes = (7, 5), (5, 7), (6,), (3, 4, 5), (1, 8), (9, 1), ()
    ours, theirs = parameters(*shapes), parameters(*shapes)
    for small in (ours[0], theirs[0]):
        small.data *= 1e-5  # below what a step is scaled by at least
    groups = [{"params": ours, "weight_decay": decay}]
    optimiser = Adafactor(groups, scale_parameter=scale, relative_step=relative)
    reference = Reference(
        theirs, lr=None if relative else 0.02, scale_parameter=scale, relative_step=relative, weight_decay=decay
    )
    for step in range(8):
        run(optimiser, ours, range(step, step + 1), 0.02)
        run(reference, theirs, range(step, step + 1), None)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert (ours[1] - parameters(*shapes)[1]).abs().max() > 1e-2  # it moved


def test_adafactor_keeps_a_row_and_a_column_in_fp32() -> None:
    (p,) = parameters((6, 4), dtype=torch.bfloat16)
    optimiser = Adafactor([p])
    run(optimiser, [p], range(1))
    state = optimiser.state[p]
    assert {key: tuple(x.shape) for key, x in state.items() if key != "step"} == {"row": (6,), "column": (4,)}
    assert state["row"].dtype == state["column"].dtype == torch.float32
    other = Adafactor([p])
    other.load_state_dict(optimiser.state_dict())
    assert torch.equal(other.state[p]["row"], state["row"])
    run(other, [p], range(1, 2))  # the loaded state is no alias of the saved one
    assert not torch.equal(other.state[p]["row"], state["row"])


# Muon


def slow_muon(p: Tensor, gradients: list[Tensor], rate: float, momentum: float, decay: float) -> Tensor:
    """One matrix, as it is defined, by its singular values: the iteration moves nothing else."""
    p, b = p.detach().double(), torch.zeros_like(p).double()
    for gradient in gradients:
        g = gradient.double()
        b = momentum * b + (1 - momentum) * g
        U, s, V = torch.linalg.svd((1 - momentum) * g + momentum * b, full_matrices=False)
        s = s / s.square().sum().sqrt()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        p = p * (1 - rate * decay) - rate * 0.2 * max(p.shape) ** 0.5 * (U * s @ V)
    return p


@pytest.mark.parametrize("block", [optimisers.BLOCK, 200])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_muon_equals_the_slow_definition(decay: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lying, standing, square, several of a shape, several in one parameter; all together and few at a time."""
    monkeypatch.setattr(optimisers, "BLOCK", block)
    shapes = ((8, 12), (12, 8), (8, 8), (20, 12), (12, 8), (7, 1))
    parts = [(8,), (12,), (8,), (8, 12), (4, 8), (7,)]
    ours = parameters(*shapes)
    start = [p.detach().clone() for p in ours]
    gradients: list[list[Tensor]] = [[] for _ in ours]
    optimiser = Muon(dict(zip(ours, parts, strict=True)), [], OptimiserConfig("muon", momentum=0.8, weight_decay=decay))
    for step in range(5):
        run(optimiser, ours, range(step, step + 1), 0.1)
        for known, p in zip(gradients, ours, strict=True):
            assert p.grad is not None
            known.append(p.grad.clone())
    for p, first, heights, known in zip(ours, start, parts, gradients, strict=True):
        each = zip(first.split(heights), *(g.split(heights) for g in known), strict=True)
        expected = torch.cat([slow_muon(part, list(g), 0.1, 0.8, decay) for part, *g in each])
        torch.testing.assert_close(p.detach().double(), expected, atol=1e-4, rtol=1e-4)


def test_a_fused_projection_steps_as_its_matrices_would_alone() -> None:
    torch.manual_seed(0)
    product = linear(8, 8, 4, 4)
    alone = [nn.Parameter(x.detach().clone()) for x in product.weight.split([8, 4, 4])]
    together, apart = build(Stack([product]), MUON), Muon({p: (len(p),) for p in alone}, [], MUON)
    for optimiser in (together, apart):
        set_learning_rate(optimiser, 0.1)
    for _ in range(3):
        product.weight.grad = torch.randn(16, 8)
        for p, g in zip(alone, product.weight.grad.split([8, 4, 4]), strict=True):
            p.grad = g
        together.step()
        apart.step()
    torch.testing.assert_close(product.weight.detach(), torch.cat([p.detach() for p in alone]))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has a Muon from 2.9 on")
def test_muon_equals_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)  # in which PyTorch iterates: both in fp32 are comparable
    shapes = (8, 12), (12, 8), (8, 8), (8, 12)
    ours, theirs = parameters(*shapes), parameters(*shapes)
    config = OptimiserConfig("muon", momentum=0.9, weight_decay=0.1)
    run(Muon({p: (len(p),) for p in ours}, [], config), ours, range(6), 0.1)
    reference = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    run(reference, theirs, range(6), None)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_an_update_is_nearly_orthogonal_however_lopsided_the_gradient() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 24, 40) * torch.logspace(0, -1.3, 24)[:, None]
    singular = torch.linalg.svdvals(x)
    assert (singular[:, 0] / singular[:, -1]).min() > 20
    after = torch.linalg.svdvals(orthogonalise(x))
    assert 0.68 < after.min() < after.max() < 1.21
    torch.testing.assert_close(orthogonalise(x * 1000), orthogonalise(x), atol=1e-4, rtol=1e-4)
    assert orthogonalise(torch.zeros(1, 2, 3)).eq(0).all()


def test_muons_step_is_as_large_as_adams() -> None:
    """What the factor 0.2 √(longer side) is for: a root mean square of about 0.2 for every shape."""
    for shape in ((64, 64), (64, 256), (256, 64)):
        (p,) = parameters(shape)
        before = p.detach().clone()
        run(Muon({p: (len(p),)}, [], MUON), [p], range(1), 1.0)
        assert 0.14 < (p.detach() - before).square().mean().sqrt() < 0.24


def test_muon_leaves_the_rest_to_adam_at_its_share_of_the_rate() -> None:
    torch.manual_seed(0)
    model = tiny(tie="none")
    hidden = hidden_matrices(model)
    rest = [p for p in model.parameters() if p not in hidden]
    twins = [nn.Parameter(p.detach().clone()) for p in rest]
    config = OptimiserConfig("muon", weight_decay=0.1, adam_ratio=0.5)
    run(build(model, config), rest, range(4), 0.02)
    groups = [
        {"params": [twins[i]], "weight_decay": 0.1 if p is model.output.weight else 0.0} for i, p in enumerate(rest)
    ]
    run(torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9, fused=True), twins, range(4), None)
    for p, q in zip(rest, twins, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.name != "adam"], ids=lambda c: c.name)
def test_each_learns(config: OptimiserConfig) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Stack([linear(6, 24), nn.ReLU(), linear(24, 6)]), nn.Linear(6, 1))
    x = torch.randn(200, 6)
    y = x[:, :1] * x[:, 1:2]
    optimiser = build(model, config)
    set_learning_rate(optimiser, 0.02)
    for _ in range(200):
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1 * y.square().mean()


# The moving average


def test_an_average_follows_the_formula() -> None:
    (p,) = parameters((3, 2))
    model = nn.ParameterList([p])
    average, expected = Average(model, 0.5), p.detach().clone()
    for t in range(1, 20):
        with torch.no_grad():
            p += torch.randn(3, 2)
        average.update(model)
        keep = min(0.5, (1 + t) / (10 + t))  # the warm-up ends at t = 8
        expected = keep * expected + (1 - keep) * p.detach()
    torch.testing.assert_close(average.parameters["0"], expected)
    with pytest.raises(ValueError, match=r"decay = 1\.0: it lies in \[0, 1\)"):
        Average(model, 1.0)


def test_tied_parameters_are_averaged_once_and_stay_tied() -> None:
    model = tiny(tie="all")
    average = Average(model, 0.9)
    assert sum(x.numel() for x in average.parameters.values()) == sum(p.numel() for p in model.parameters())
    nn.init.zeros_(model.output.weight)
    average.update(model)
    average.copy_to(model)
    assert model.output.weight is model.source_embedding.tokens.weight
    torch.testing.assert_close(model.output.weight.detach(), average.parameters["source_embedding.tokens.weight"])
    assert not model.output.weight.eq(0).any()


def test_a_swap_is_undone_bit_for_bit_even_after_an_error() -> None:
    model = tiny().bfloat16()
    average = Average(model, 0.9)
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p)
    average.update(model)
    own = [p.detach().clone() for p in model.parameters()]

    def use() -> None:
        with average.swapped(model):
            for name, p in model.named_parameters():
                assert torch.equal(p, average.parameters[name].bfloat16())
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), own, strict=True))


def test_an_average_continues_from_its_state_in_fp32() -> None:
    (p,) = parameters((50,), dtype=torch.bfloat16)
    model = nn.ParameterList([p])
    average, other = Average(model, 0.999), Average(nn.ParameterList(parameters((50,), seed=1)), 0.999)
    for _ in range(5):
        with torch.no_grad():
            p += 0.01
        average.update(model)
    other.load_state_dict(average.state_dict())
    average.update(model)
    other.update(model)
    assert torch.equal(average.parameters["0"], other.parameters["0"])
    assert not torch.equal(average.parameters["0"], average.parameters["0"].bfloat16().float())
    for shape, message in (((50,), "has no parameter '1'"), ((51,), r"0 is \(50,\) .* and \(51,\) in this model")):
        model = nn.ParameterList(parameters(shape, shape) if shape == (50,) else parameters(shape))
        with pytest.raises(ValueError, match=message):
            Average(model, 0.9).load_state_dict(average.state_dict())


def test_rates_fall_from_layer_to_layer_and_what_is_frozen_stays() -> None:
    model = Encoder(bert_tiny(30, d_model=16, d_ff=32, heads=2, layers=3), HeadConfig("classes", 2))
    optimiser = build(model, OptimiserConfig("adamw", layer_decay=0.5))
    set_learning_rate(optimiser, 1.0)
    rates = {p: group["lr"] for group in optimiser.param_groups for p in group["params"]}
    names = {name: rates[p] for name, p in model.named_parameters()}
    assert len(rates) == len(list(model.parameters()))
    assert names["output.outer.weight"] == 1.0
    assert [names[f"encoder.layers.{i}.feed_forward.norm.weight"] for i in range(3)] == [0.125, 0.25, 0.5]
    assert names["stem.tokens.weight"] == names["stem.norm.weight"] == names["stem.segments.weight"] == 0.0625
    with pytest.raises(ValueError, match=r"layer_decay = 0.5 is for adamw: set it to 1 for muon"):
        OptimiserConfig(layer_decay=0.5)
    held = set(named_like(model, ["stem.*", "encoder.layers.[01].*"]))
    trained = {".".join(name.split(".")[:3]) for name, p in model.named_parameters() if p not in held}
    assert trained == {"encoder.layers.2", "output.outer.weight", "output.outer.bias"}
    with pytest.raises(ValueError, match=r"train.freeze = 'steam.\*': no parameter is called so"):
        named_like(model, ["steam.*"])
