"""Eight-bit products are the integers that numpy computes, bit for bit; ties stay tied; little is lost."""

import copy
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from regard.core.quantised import (
    EXACT,
    GROUP,
    TINY,
    Int4Linear,
    Int8Embedding,
    Int8Linear,
    bits_of,
    dequantise,
    is_quantised,
    multiply,
    quantise,
    quantise_rows,
    unpacked,
)
from regard.data.batching import collate
from regard.data.generated import sequence_pairs
from regard.data.vocabulary import Vocabulary
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.loop import fit
from regard.training.schedules import ScheduleConfig, schedule
from regard.training.validation import foretell

Floats = NDArray[np.float32]


def by_numpy(x: Floats, w: Floats, bias: Floats) -> Floats:
    """The definition, a row at a time, with sums in 64-bit integers."""
    whole = []
    for rows in (x, w):
        assert rows.dtype == np.float32
        tops = [np.abs(row).max() for row in rows]
        q = [np.rint(row * (np.float32(127) / top)).astype(np.int64) for row, top in zip(rows, tops, strict=True)]
        whole.append((np.stack(q), np.array(tops) / np.float32(127)))
    (q_x, scale_x), (q_w, scale_w) = whole
    out = np.empty((len(x), len(w)), np.float32)
    for n in range(len(x)):
        for j in range(len(w)):
            out[n, j] = np.float32(int(q_x[n] @ q_w[j])) * (scale_x[n] * scale_w[j]) + bias[j]
    return out


@pytest.mark.parametrize("d_in", [1, 7, 128, EXACT, EXACT + 1, 4096])
def test_a_product_is_bit_for_bit_the_definition(d_in: int) -> None:
    torch.manual_seed(d_in)
    product = nn.Linear(d_in, 5)
    x = torch.randn(6, d_in) * torch.logspace(-6, 6, 6)[:, None]
    expected = by_numpy(x.numpy(), product.weight.detach().numpy(), product.bias.detach().numpy())
    found = quantise(nn.Sequential(product))(x).detach().numpy()
    assert found.dtype == np.float32
    assert found.tobytes() == expected.tobytes()


def four_bits_by_numpy(x: Floats, layer: Int4Linear) -> Floats:
    """The definition of four bits, a group at a time, in its order."""
    blocks, one = layer.weight.numpy(), np.float32(1)
    halves = [np.concatenate([np.zeros_like(blocks[..., :2]), blocks[..., i : i + 2]], -1) for i in (0, 2)]
    scale, least = (np.ascontiguousarray(each).view(np.float32)[..., 0] for each in halves)  # bf16 is half a float
    out = np.zeros((len(x), len(blocks)), np.float32)
    for n, j in np.ndindex(*out.shape):
        for g in range(blocks.shape[1]):
            low, high = blocks[j, g, 4:] % 16, blocks[j, g, 4:] // 16
            some = x[n, g * GROUP : (g + 1) * GROUP]
            top = np.abs(some).max()
            q, unit = np.rint(some * (np.float32(127) / top)).astype(np.int64), top / np.float32(127)
            dot = np.float32(int(q @ np.concatenate([low, high]).astype(np.int64)))
            out[n, j] = (out[n, j] + dot * (unit * scale[j, g]) * one) + (unit * np.float32(int(q.sum()))) * least[j, g]
    return out + layer.bias.detach().numpy()  # type: ignore[union-attr]


@pytest.mark.parametrize("d_in", [32, 96, 1024])
def test_a_product_of_four_bits_is_bit_for_bit_the_definition(d_in: int) -> None:
    torch.manual_seed(d_in)
    layer = quantise(nn.Sequential(nn.Linear(d_in, 5)), 4)[0]  # type: ignore[index]
    assert isinstance(layer, Int4Linear)
    x = torch.randn(6, d_in) * torch.logspace(-6, 6, 6)[:, None]
    expected = four_bits_by_numpy(x.numpy(), layer)
    assert layer(x).detach().numpy().tobytes() == expected.tobytes()
    assert torch.equal(layer(x[3]), layer(x)[3])  # whatever the batch


def test_groups_of_four_bits_are_near_and_those_that_fit_are_exact() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 40)
    made = quantise(nn.Sequential(nn.Linear(64, 40)), 4)[0]  # type: ignore[index]
    whole = quantise(nn.Sequential(copy.deepcopy(plain)), 4)[0]  # type: ignore[index]
    groups = plain.weight.detach().unflatten(-1, (-1, GROUP))
    step = (groups.amax(-1) - groups.amin(-1)) / 15
    missed = (whole.matrix() - plain.weight).unflatten(-1, (-1, GROUP)).detach()  # type: ignore[operator]
    assert (missed.square().mean(-1).sqrt() < 0.4 * step).all()  # half a step at most, if nothing is cut off
    again = nn.Linear(64, 40)
    again.weight.data = made.matrix()  # type: ignore[operator]
    back = quantise(nn.Sequential(again), 4)[0]  # type: ignore[index]
    torch.testing.assert_close(back.matrix(), made.matrix(), rtol=0, atol=float(step.max()) * 0.1)  # type: ignore[operator]
    constant = nn.Linear(32, 2)
    nn.init.constant_(constant.weight, 0.3)
    torch.testing.assert_close(
        quantise(nn.Sequential(constant), 4)[0].matrix(), torch.full((2, 32), 0.3), rtol=2**-8, atol=0
    )  # type: ignore[index,operator]


def test_four_bits_lie_between_the_ends_and_learn_as_if_they_were_not_there() -> None:
    plain, model = build(d_ff=120), build(d_ff=120)
    assert bits_of(model) is None
    assert bits_of(quantise(model, 4)) == 4
    few = {name for name, module in model.named_modules() if isinstance(module, Int4Linear)}
    assert any(name.endswith("inner") for name in few)
    assert not any(name.endswith("outer") or name == "output" for name in few)  # d_ff = 120 is no whole groups
    restored = dequantise(dict(model.state_dict()))
    assert {name: x.shape for name, x in restored.items()} == {name: x.shape for name, x in plain.state_dict().items()}
    layer = model.get_submodule(min(few))
    assert isinstance(layer, Int4Linear)
    x = torch.randn(3, layer.in_features, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, layer.matrix().sum(0).expand(3, -1))
    assert layer(torch.full((1, layer.in_features), torch.nan)).isnan().all()
    assert unpacked(layer.weight)[0].amax() == 15


def test_the_largest_sums_are_exact_and_so_are_those_that_cancel() -> None:
    for d_in in (EXACT, 3 * EXACT + 5):
        rows = torch.full((2, d_in), 127.0)
        rows[1, ::2] = -127.0
        w = torch.full((1, d_in), 127, dtype=torch.int8)
        w[0, 0] = 126  # an odd sum: it would be rounded away where fp32 ends
        sums = rows.long() @ w.long().T
        assert multiply(rows, w).dtype == torch.int32
        assert torch.equal(multiply(rows, w).long(), sums)


def test_a_row_does_not_know_its_batch() -> None:
    torch.manual_seed(0)
    layer = quantise(nn.Sequential(nn.Linear(96, 40)))
    x = torch.randn(3, 17, 96)
    together = layer(x)
    assert together.shape == (3, 17, 40)
    assert all(torch.equal(layer(x[i, j]), together[i, j]) for i in range(3) for j in range(17))


def test_halves_go_to_the_even_number_and_the_largest_is_127() -> None:
    q, scale = quantise_rows(torch.tensor([[0.5, 1.5, -2.5, 127.0], [-3.0, 1e-9, 3.0, 0.0]]))
    assert q.tolist() == [[0, 2, -2, 127], [-127, 0, 127, 0]]
    assert scale.tolist() == [[1.0], [3 / torch.tensor(127.0)]]
    many = torch.randn(4096, 3, generator=torch.Generator().manual_seed(0)).exp()
    assert quantise_rows(many)[0].amax(1).eq(127).all()


def test_rows_of_zeros_are_safe_and_damage_shows() -> None:
    layer = quantise(nn.Sequential(nn.Linear(3, 2)))[0]  # type: ignore[index]
    for nothing in (0.0, TINY / 2, 1e-45):
        found = layer(torch.full((1, 3), nothing))
        assert found.tolist() == layer.bias[None].tolist()
    assert layer(torch.tensor([[1.0, float("nan"), 1.0]])).isnan().all()
    assert not layer(torch.tensor([[1.0, float("inf"), 1.0]])).isfinite().any()
    zeros = nn.Linear(3, 2)
    nn.init.zeros_(zeros.weight)
    assert torch.equal(quantise(nn.Sequential(zeros))(torch.ones(1, 3))[0], zeros.bias)


def test_an_embedding_gives_its_rows_back_and_refuses_what_it_does_not_have() -> None:
    torch.manual_seed(0)
    plain = nn.Embedding(50, 16)
    whole = quantise(nn.Sequential(plain))[0]  # type: ignore[index]
    assert isinstance(whole, Int8Embedding)
    tokens = torch.tensor([[3, 49], [0, 3]])
    step = plain.weight.detach().abs().amax(1) / 127  # an error of half a step at most
    assert ((whole(tokens) - plain(tokens)).abs() <= step[tokens][..., None] * 0.501).all()
    assert torch.equal(whole(tokens), whole.weight[tokens] * whole.scale[tokens][..., None])
    with pytest.raises(IndexError):
        whole(torch.tensor([50]))


SHAPE: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "d_ff": 128, "dropout": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "target": {"tie": "target", "source_vocabulary": 60},
    "none": {"tie": "none"},
    "modern": {"positions": "rope", "feed_forward": "swiglu", "norm_kind": "rms", "bias": False, "norm": "pre"},
    "convolution": {"feed_forward": "convolution", "positions": "learned", "max_length": 20},
}


def build(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig.tiny(80, **SHAPE | changes)).eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_ties_stay_and_logits_stay_close(variant: str) -> None:
    plain, model = build(**VARIANTS[variant]), build(**VARIANTS[variant])
    assert not is_quantised(model)
    assert quantise(model) is model
    assert is_quantised(model)
    assert not any(isinstance(module, nn.Linear | nn.Embedding) for module in model.modules())
    source, target = model.source_embedding.tokens, model.target_embedding.tokens
    tie = model.config.tie
    output: Any = model.output
    assert isinstance(output, Int8Linear)
    assert (source is target) == (tie == "all")
    assert (output.weight is target.weight) == (output.scale is target.scale) == (tie != "none")
    names = {name: x.dtype for name, x in model.named_parameters()}  # a shared one once
    plain_names = {name for name, _ in plain.named_parameters()}
    assert {name for name in names if not name.endswith("scale")} == plain_names
    matrices = {name for name, dtype in names.items() if dtype == torch.int8}
    assert matrices == {name for name, x in plain.named_parameters() if x.dim() == 2 and "table" not in name}

    read, written = torch.randint(3, 60, (4, 9)), torch.randint(3, 60, (4, 7))
    with torch.no_grad():
        a, b = plain(read, written), model(read, written)
    assert F.cosine_similarity(a, b, dim=-1).min() > 0.999
    restored = dequantise(dict(model.state_dict()))
    assert restored.keys() == plain.state_dict().keys()
    for name, x in plain.state_dict().items():
        torch.testing.assert_close(restored[name], x, atol=float(x.abs().max()) / 250, rtol=0)


def test_moving_a_model_keeps_its_ties() -> None:
    model = quantise(build()).to("cpu", torch.float64).float()
    output: Any = model.output
    assert output.weight is model.source_embedding.tokens.weight  # type: ignore[union-attr]
    assert output.weight.dtype == torch.int8


@pytest.mark.slow
def test_a_trained_model_keeps_what_it_knows() -> None:
    digits, steps = Vocabulary(tuple("0123456789")), 150

    def pairs(n: int, seed: int) -> list[tuple[list[int], list[int]]]:
        some = islice(sequence_pairs("reverse", symbols=digits.symbols, lengths=range(3, 7), seed=seed), n)
        return [(digits.encode(source), digits.encode(target)) for source, target in some]

    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(13, encoder_layers=1, decoder_layers=1, d_model=64, dropout=0.0))
    rate = schedule(ScheduleConfig("linear", peak=4e-3, warmup=20), total=steps)
    for _ in fit(model, (collate(pairs(64, seed)) for seed in range(steps)), rate, smoothing=0.0, shards=1):
        pass
    unseen = pairs(300, seed=steps)
    before = foretell(model.eval(), unseen)
    after = foretell(quantise(model), unseen)
    assert before.accuracy > 0.95
    assert after.accuracy > before.accuracy - 0.01
    assert after.loss == pytest.approx(before.loss, rel=0.1)
