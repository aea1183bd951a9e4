"""The account equals the model: parameters, FLOPs, bytes; and the paper's figures come out of it."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.adaptation.change import changed
from regard.inspection.taps import attentions
from regard.models.costs import (
    PAPER_RUNS,
    activations,
    breakdown,
    footprint,
    forward_flops,
    parameters,
    training_flops,
)
from regard.models.family import blank
from regard.models.transformer import Transformer, TransformerConfig

PRUNED = {
    "encoder.layers.0.self_attention": [1],
    "decoder.layers.0.self_attention": [],
    "decoder.layers.1.cross_attention": [0, 1, 3],
}
Kept = dict[str, list[int]]


def pruned(config: TransformerConfig, kept: Kept) -> tuple[Any, Transformer]:
    """What is counted, and the model itself."""
    changes = [{"prune": {"kept": kept}}] if kept else []
    return changed(blank(config), changes) if kept else config, changed(Transformer(config), changes)  # type: ignore[return-value]


@st.composite
def configs(draw: st.DrawFn) -> tuple[Any, Transformer]:
    """Small models of every kind, some without some heads."""
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    tie = draw(st.sampled_from(["all", "target", "none"]))
    config = TransformerConfig(
        vocabulary=draw(st.integers(1, 40)),
        source_vocabulary=None if tie == "all" else draw(st.none() | st.integers(1, 40)),
        encoder_layers=draw(st.integers(1, 3)),
        decoder_layers=draw(st.integers(1, 3)),
        d_model=heads * 2 * draw(st.integers(1, 4)),
        d_ff=draw(st.integers(1, 30)),
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *(g for g in range(1, heads + 1) if heads % g == 0)])),
        d_k=draw(st.none() | st.sampled_from([2, 4, 10])),
        d_v=draw(st.none() | st.integers(1, 9)),
        positions=draw(st.sampled_from(["sinusoidal", "none", "learned", "shaw", "t5", "rope", "alibi"])),
        max_length=draw(st.integers(7, 20)),
        norm=draw(st.sampled_from(["post", "pre"])),
        norm_kind=draw(st.sampled_from(["layer", "rms"])),
        feed_forward=draw(st.sampled_from(["relu", "gelu", "glu", "swiglu", "convolution"])),
        bias=draw(st.booleans()),
        tie=tie,
        backend="math",
    )
    names = list(attentions(blank(config)))
    left = st.lists(st.integers(0, heads - 1), unique=True)
    return pruned(config, draw(st.dictionaries(st.sampled_from(names), left, max_size=4)))


def tokens(sentences: int, length: int) -> Tensor:
    return torch.zeros(sentences, length, dtype=torch.int64)


def counted_flops(model: Transformer, sentences: int, source: int, target: int, backward: bool = False) -> int:
    """What PyTorch counts while a real model runs."""
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens(sentences, source), tokens(sentences, target))
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@given(configs())
@settings(max_examples=60, deadline=None)
def test_parameters_are_those_of_the_model(made: tuple[Any, Transformer]) -> None:
    config, model = made
    assert parameters(config) == sum(p.numel() for p in model.parameters())


@given(configs())
@settings(max_examples=20, deadline=None)
def test_each_part_has_the_parameters_of_its_modules(made: tuple[Any, Transformer]) -> None:
    config, model = made
    own = {part.name: 0 for part in breakdown(config, 1, 5, 5)}
    for name, p in model.named_parameters():  # a shared parameter comes once, by its first name
        stack, *path = name.split(".")
        if "positions" in path:
            own["positions"] += p.numel()
        elif "norm" in path:
            own[f"{stack} norms"] += p.numel()
        elif stack in ("encoder", "decoder"):
            own[f"{stack} {path[2].replace('_', '-')}"] += p.numel()
        else:
            own["output" if stack == "output" else "embeddings"] += p.numel()
    assert {part.name: part.parameters for part in breakdown(config, 1, 5, 5)} == own


@given(configs(), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_flops_are_those_that_torch_counts(made: Any, sentences: int, source: int, target: int) -> None:
    config, model = made
    assert forward_flops(config, sentences, source, target) == counted_flops(model, sentences, source, target)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"kv_heads": 1, "d_k": 16, "d_v": 24},
        {"feed_forward": "convolution"},
        {"feed_forward": "swiglu", "norm": "pre", "norm_kind": "rms", "bias": False, "positions": "rope"},
        {"positions": "shaw"},
        {"positions": "learned", "tie": "none", "source_vocabulary": 70},
    ],
    ids=str,
)
def test_flops_of_tiny(changes: dict[str, Any]) -> None:
    config = TransformerConfig.tiny(100, backend="math", **changes)
    assert forward_flops(config, 3, 11, 7) == counted_flops(Transformer(config), 3, 11, 7)


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2, "feed_forward": "glu"}, {"positions": "shaw"}], ids=str)
def test_training_is_three_forward_passes(changes: dict[str, Any]) -> None:
    config = TransformerConfig.tiny(100, backend="math", **changes)
    assert training_flops(config, 3, 11, 7) == counted_flops(Transformer(config), 3, 11, 7, backward=True)


def kept_bytes(model: Transformer, sentences: int, source: int, target: int) -> int:
    """What autograd keeps when the model itself, whole and with real weights, is trained."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model.features(tokens(sentences, source) + 1, tokens(sentences, target) + 1)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(storage.nbytes() for address, storage in kept.items() if address not in weights)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoder_layers": 5, "decoder_layers": 1},
        {"dropout": 0.0, "norm": "pre"},
        {"backend": "math", "attention_dropout": 0.1, "stochastic_depth": 0.2},
        {"positions": "shaw", "feed_forward": "convolution", "kv_heads": 2},
        {"backend": "chunked", "positions": "t5", "feed_forward": "swiglu", "norm_kind": "rms"},
        {"positions": "learned", "tie": "none", "source_vocabulary": 70},
        {"kept": PRUNED},
    ],
    ids=str,
)
def test_activations_of_shallow_models_tell_those_of_a_deep_one(changes: dict[str, Any]) -> None:
    settings = {name: value for name, value in changes.items() if name != "kept"}
    config, model = pruned(TransformerConfig.tiny(100, **settings), changes.get("kept", {}))
    state = torch.get_rng_state()
    found = activations(config, 2, 9, 7)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers change
    assert found == kept_bytes(model, 2, 9, 7)


def test_no_token_of_the_measurement_is_padding() -> None:
    assert activations(TransformerConfig.tiny(100, pad=1)) == activations(TransformerConfig.tiny(100, pad=0))


@pytest.mark.parametrize(
    "changes",
    [{}, {"kv_heads": 1, "d_k": 16, "d_v": 24}, {"feed_forward": "convolution"}, {"kept": PRUNED, "kv_heads": 2}],
    ids=str,
)
def test_cache_is_what_decoding_keeps(changes: dict[str, Any]) -> None:
    settings = {name: value for name, value in changes.items() if name != "kept"}
    config, model = pruned(TransformerConfig.tiny(100, **settings), changes.get("kept", {}))
    cache = model.eval().new_cache()
    with torch.no_grad():
        memory = model.encode(tokens(1, 9) + 1)
        for _ in range(5):
            model.decode(tokens(1, 1) + 1, memory, cache)
    size = footprint(config)
    held = {"self_attention": 0, "cross_attention": 0}
    for layer in cache:
        for kind in held:
            past = getattr(layer, kind)
            both = [x for x in (past.keys, past.values) if x is not None]  # an attention without heads has neither
            held[kind] += 4 * sum(x[:, :, : past.length].numel() for x in both)
    assert held == {
        "self_attention": 5 * size.cache_per_target_token,
        "cross_attention": 9 * size.cache_per_source_token,
    }
    windows = [layer.feed_forward.past for layer in cache]
    assert size.cache_per_sentence == sum(4 * x.numel() for x in windows if x is not None)


def test_bytes_of_weights_and_training_state() -> None:
    config = TransformerConfig.tiny(100)
    n, size = parameters(config), footprint(config)
    assert size.weights == {"fp32": 4 * n, "bf16": 2 * n, "int8": n}
    assert size.training_state == 16 * n


# Table 3: what a row changes of base, and its parameters in millions. Row A, D and E state none.
TABLE_3: list[tuple[dict[str, int], int]] = [
    ({}, 65),
    ({"d_k": 16, "d_v": 64}, 58),
    ({"d_k": 32, "d_v": 64}, 60),
    ({"encoder_layers": 2, "decoder_layers": 2}, 36),
    ({"encoder_layers": 4, "decoder_layers": 4}, 50),
    ({"encoder_layers": 8, "decoder_layers": 8}, 80),
    ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    ({"d_ff": 1024}, 53),
    ({"d_ff": 4096}, 90),
]


def vocabularies(config: TransformerConfig, millions: int) -> range:
    """Those with which the config's parameters round to so many millions: the count is linear in the vocabulary."""
    rest = parameters(config.but(vocabulary=1)) - config.d_model
    first, end = (
        (millions * 10**6 + half - rest + config.d_model - 1) // config.d_model for half in (-500_000, 500_000)
    )
    return range(first, end)


def common_vocabularies(bias: bool = True) -> range:
    ranges = [vocabularies(TransformerConfig.base(1, bias=bias, **changes), millions) for changes, millions in TABLE_3]
    return range(max(r.start for r in ranges), min(r.stop for r in ranges))


def test_one_vocabulary_explains_every_row_of_table_3_that_derives_from_base() -> None:
    assert common_vocabularies() == range(40_932, 41_161)
    assert common_vocabularies(bias=False) == range(41_040, 41_249)
    for vocabulary in (40_932, 41_000, 41_160):
        for changes, millions in TABLE_3:
            assert round(parameters(TransformerConfig.base(vocabulary, **changes)) / 1e6) == millions, changes
    for vocabulary in (40_931, 41_161):
        counts = [round(parameters(TransformerConfig.base(vocabulary, **changes)) / 1e6) for changes, _ in TABLE_3]
        assert counts != [millions for _, millions in TABLE_3]


@pytest.mark.parametrize(("heads", "width"), [(1, 512), (4, 128), (16, 32), (32, 16)])
def test_row_a_of_table_3_costs_what_base_costs(heads: int, width: int) -> None:
    base, row = (TransformerConfig.base(37_000, heads=h, d_k=d, d_v=d) for h, d in ((8, 64), (heads, width)))
    assert parameters(row) == parameters(base)
    assert forward_flops(row) == forward_flops(base)


def test_base_and_big_with_the_vocabulary_of_the_text() -> None:
    assert parameters(PAPER_RUNS["base"].config) == pytest.approx(65e6, rel=0.03)
    assert parameters(PAPER_RUNS["big"].config) == pytest.approx(213e6, rel=0.01)
    assert vocabularies(PAPER_RUNS["big"].config, 213) == range(35_296, 36_273)


@pytest.mark.parametrize(("name", "utilisation"), [("base", 0.29), ("big", 0.42)])
def test_the_paper_states_what_its_gpus_could_do(name: str, utilisation: float) -> None:
    run = PAPER_RUNS[name]
    assert run.gpu_flops == pytest.approx(run.stated, rel=0.01)
    assert run.utilisation() == pytest.approx(utilisation, abs=0.005)
    assert run.model_flops(50) / run.model_flops(25) < 1.01  # the length of sentences hardly matters


PAGE = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text("utf-8")
BOXES = "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
LINES = re.findall(r"^(.{18})(.+) = ([\d,.e]+)(%?)$", BOXES, re.MULTILINE)  # label, sum, figure


@pytest.mark.parametrize(("label", "sum_", "figure", "percent"), LINES, ids=[line[0].strip() for line in LINES])
def test_each_line_of_the_page_is_true_to_its_last_digit(label: str, sum_: str, figure: str, percent: str) -> None:
    shown = Decimal(figure.replace(",", ""))
    half_digit = Decimal(1).scaleb(int(shown.as_tuple().exponent)) / 2
    value = eval(sum_.replace("·", "*").replace(",", "")) * (100 if percent else 1)
    assert abs(Decimal(value) - shown) <= half_digit, f"{label.strip()}: {value}"


@pytest.mark.parametrize("name", ["base", "big"])
def test_the_page_says_what_the_code_says(name: str) -> None:
    run, said = PAPER_RUNS[name], {figure + percent for _, _, figure, percent in LINES}
    memory = footprint(run.config)
    assert f"{memory.cache_per_target_token:,}" in said
    assert f"{memory.weights['fp32'] / 1e6:.1f}" in said
    assert f"{memory.training_state / 1e9:.2f}" in said
    assert f"{run.utilisation():.0%}" in said
    for flops in (run.model_flops(), run.gpu_flops):
        assert f"{flops:.2e}".replace("e+", "e") in said
    assert f"{parameters(run.config):,}" in PAGE
    one = re.findall(r"about ([\d.]+) MB in base and about ([\d.]+) MB in big", PAGE)
    step = re.findall(r"about ([\d.]+) GB and ([\d.]+) GB", PAGE)
    for ((of_base, of_big),), unit in ((one, 1e6), (step, 1e9 / 125)):
        claim = float({"base": of_base, "big": of_big}[name]) * unit
        assert memory.activations == pytest.approx(claim, rel=0.1)  # machines differ in their kernels


def test_the_page_is_checked_whole_and_knows_the_vocabularies() -> None:
    assert len(LINES) == len(BOXES.splitlines()) > 0
    assert f"{parameters(TransformerConfig.base(41_000)):,}" in PAGE
    for found in (common_vocabularies(), vocabularies(PAPER_RUNS["big"].config, 213)):
        assert f"{found[0]:,} to {found[-1]:,} entries" in PAGE
