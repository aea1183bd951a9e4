"""The account of the shared parts and of the convolutional family equals the models: parameters, FLOPs, bytes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.core.attention import MultiHeadAttention
from regard.core.cache import KeyValues
from regard.core.masks import causal
from regard.core.mixers import AttentionConfig
from regard.inspection.taps import attentions
from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.costs import activations, breakdown, flops_of, footprint, forward_flops, parameters, training_flops
from regard.models.family import blank, configure
from regard.models.transformer import Transformer, TransformerConfig

SCORES = ["dot", "general", "additive", "concat", "location"]


@pytest.mark.parametrize("normaliser", ["softmax", "topk:2", "monotonic", "chunkwise:3"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    "changes",
    [{}, {"kv_heads": 2}, {"d_k": 5, "d_v": 3, "bias": False}, {"output": False}, {"project": False}],
    ids=str,
)
def test_an_attention_costs_what_it_has_and_does(changes: dict[str, Any], score: str, normaliser: str) -> None:
    config = AttentionConfig(
        d_model=16, heads=4, score=score, normaliser=normaliser, backend="math", max_length=9, **changes
    )
    d_memory = 16 if score == "dot" and not config.project else 24
    module = MultiHeadAttention(config, d_memory=d_memory).eval()
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(3, 5, 16), torch.randn(3, 7, d_memory))
    flops = flops_of(
        module.to("meta"), torch.empty(3, 5, 16, device="meta"), torch.empty(3, 7, d_memory, device="meta")
    )
    assert flops.total() == counter.get_total_flops() + unseen(config, sentences=3, queries=5, keys=7)


def unseen(c: AttentionConfig, sentences: int, queries: int, keys: int) -> int:
    """FLOPs that PyTorch does not count: v · tanh(...) of every pair is a sum of products, but not called one."""
    each = 2 * c.heads * (c.d_k or c.d_model // c.heads)
    return each * sentences * queries * keys if c.score in ("additive", "concat") else 0


@pytest.mark.parametrize("score", SCORES)
def test_a_transformer_is_charged_for_its_scores(score: str) -> None:
    config = TransformerConfig.tiny(50, score=score, cross_normaliser="chunkwise:3")
    assert parameters(config) == sum(p.numel() for p in Transformer(config).parameters())


KINDS = [
    *("window:3", "dilated:2:3", "longformer:4:2", "bigbird:4:2:1", "blocks:5"),
    *("linformer:4", "performer:7", "performer:6:relu", "linear"),
]


@pytest.mark.parametrize("n", [1, 9, 300])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2, "d_k": 5, "d_v": 3, "bias": False}], ids=str)
def test_an_efficient_attention_costs_what_it_has_and_does(
    changes: dict[str, Any], kind: str, is_causal: bool, n: int
) -> None:
    if is_causal and kind.startswith("linformer"):
        pytest.skip("has no causal form")
    config = AttentionConfig(d_model=16, heads=4, kind=kind, max_length=300, **changes)
    module = MultiHeadAttention(config)
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(3, n, 16), mask=causal() if is_causal else None)
    x = torch.empty(3, n, 16, device="meta")
    flops = flops_of(module.to("meta"), x, mask=causal() if is_causal else None)
    assert flops.total() == counter.get_total_flops()


@pytest.mark.parametrize("kind", KINDS)
def test_a_transformer_is_charged_for_the_kinds_of_its_attention(kind: str) -> None:
    config = TransformerConfig.tiny(50, self_attention=kind, decoder_self_attention="performer:9")
    model, backend = Transformer(config), config.but(backend="math")
    assert parameters(config) == sum(p.numel() for p in model.parameters())
    for name, each in attentions(model).items():
        if "cross" in name:  # written out: PyTorch counts no fused kernel on a CPU
            each.weights.watchers.append(lambda weights: weights)
    with FlopCounterMode(display=False) as counter:
        model(tokens(2, 150), tokens(2, 140))
    state = torch.get_rng_state()
    assert forward_flops(config, 2, 150, 140) == counter.get_total_flops()
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn to count it
    assert forward_flops(backend, 2, 150, 140) == forward_flops(config, 2, 150, 140)


@pytest.mark.parametrize("kind", ["full", *KINDS])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_the_past_of_an_attention_is_what_decoding_keeps(kind: str, kv_heads: int | None) -> None:
    if kind.startswith("linformer"):
        pytest.skip("has no causal form")
    config = TransformerConfig.tiny(50, self_attention=kind, kv_heads=kv_heads)
    model, size, length = Transformer(config).eval(), footprint(config), 20
    cache = model.new_cache()
    with torch.no_grad():
        memory = model.encode(tokens(1, 9) + 1)
        for _ in range(length):
            model.decode(tokens(1, 1) + 1, memory, cache)
    held = 0
    for past in (layer.self_attention for layer in cache):
        held += sum(
            x[:, :, : past.length].numel() if isinstance(past, KeyValues) else x.numel()
            for name in ("keys", "values", "sums", "level")
            if (x := getattr(past, name, None)) is not None
        )
    assert 4 * held == length * size.cache_per_target_token + size.cache_per_sentence


@st.composite
def configs(draw: st.DrawFn) -> ConvolutionalConfig:
    """Small configs of every kind."""
    style, tie = draw(st.sampled_from(["convs2s", "bytenet"])), draw(st.sampled_from(["all", "target", "none"]))
    heads = draw(st.sampled_from([1, 2, 4]))
    layers, dilations = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return ConvolutionalConfig(
        vocabulary=draw(st.integers(1, 40)),
        source_vocabulary=None if tie == "all" else draw(st.none() | st.integers(1, 40)),
        style=style,
        encoder_layers=draw(st.integers(1, 4)),
        decoder_layers=layers,
        d_model=heads * 2 * draw(st.integers(1, 4)),
        kernel=draw(st.sampled_from([1, 3, 5])),
        dilations=dilations,
        attention=style == "convs2s" or (layers >= dilations and draw(st.booleans())),
        heads=heads,
        score=draw(st.sampled_from(["dot", "general", "additive"])),
        unfold=draw(st.sampled_from([1.0, 1.2, 2.0])),
        positions=draw(st.sampled_from(["none", "sinusoidal", "learned"])),
        max_length=draw(st.integers(7, 20)),
        tie=tie,
    )


def tokens(sentences: int, length: int) -> Tensor:
    return torch.zeros(sentences, length, dtype=torch.int64)


def counted_flops(config: ConvolutionalConfig, sentences: int, source: int, target: int, backward: bool = False) -> int:
    """What PyTorch counts while a real model runs, its attention written out."""
    model = Convolutional(config)
    for each in attentions(model).values():
        each.weights.watchers.append(lambda weights: weights)
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens(sentences, source), tokens(sentences, target))
        if backward:
            logits.sum().backward()
    more = len(config.attending) * unseen(config.cross_attention, sentences, target, source)
    return counter.get_total_flops() + more * (3 if backward else 1)


@given(configs())
@settings(max_examples=40, deadline=None)
def test_each_part_has_the_parameters_of_its_modules(config: ConvolutionalConfig) -> None:
    own = {part.name: 0 for part in breakdown(config, 1, 5, 5)}
    for name, p in Convolutional(config).named_parameters():  # a shared parameter comes once, by its first name
        stack, *path = name.split(".")
        if "positions" in path:
            own["positions"] += p.numel()
        elif any("norm" in step for step in path) and "score" not in path:
            own[f"{stack} norms"] += p.numel()
        elif "cross_attention" in path:
            own["decoder cross-attention"] += p.numel()
        elif "column" in path:
            own["decoder columns"] += p.numel()
        elif stack in ("encoder", "decoder"):
            own[f"{stack} convolutions"] += p.numel()
        else:
            own["output" if stack == "output" else "embeddings"] += p.numel()
    assert {part.name: part.parameters for part in breakdown(config, 1, 5, 5)} == own


@given(configs(), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_flops_are_those_that_torch_counts(
    config: ConvolutionalConfig, sentences: int, source: int, target: int
) -> None:
    assert forward_flops(config, sentences, source, target) == counted_flops(config, sentences, source, target)


@pytest.mark.parametrize("preset", ["convs2s", "bytenet"])
def test_training_is_three_forward_passes(preset: str) -> None:
    config = getattr(ConvolutionalConfig, preset)(100)
    assert training_flops(config, 3, 11, 7) == counted_flops(config, 3, 11, 7, backward=True)


@pytest.mark.parametrize(
    "config",
    [
        ConvolutionalConfig.convs2s(100, score="additive"),
        ConvolutionalConfig.bytenet(100),
        ConvolutionalConfig.bytenet(100, attention=True, kernel=5),
    ],
    ids=["convs2s", "bytenet", "attention"],
)
def test_cache_is_what_decoding_keeps(config: ConvolutionalConfig) -> None:
    model = Convolutional(config).eval()
    cache, size = model.new_cache(), footprint(config)
    with torch.no_grad():
        memory = model.encode(tokens(1, 9) + 1)
        for _ in range(5):
            model.decode(tokens(1, 1) + 1, memory, cache)
    windows = [layer.convolution.past for layer in cache]
    read = [x for layer in cache for x in (layer.cross_attention.keys, layer.cross_attention.values)]
    assert size.cache_per_target_token == 0
    assert size.cache_per_sentence == 4 * sum(x.numel() for x in windows if x is not None)
    assert 9 * size.cache_per_source_token == 4 * sum(x.numel() for x in read if x is not None)
    assert activations(config, 2, 9, 7) > activations(config, 1, 9, 7) > 0


@pytest.mark.parametrize("preset", ["whisper-tiny", "clip-base", "caption-tiny", "vit-tiny"])
def test_what_hears_or_sees_has_an_account_too(preset: str) -> None:
    found = blank(configure(preset, ["d_model=48", "heads=3"], vocabulary=60))
    assert sum(part.parameters for part in breakdown(found, 1, 8, 8)) == sum(p.numel() for p in found.parameters())
    assert footprint(found, 1, 8, 8).weights["fp32"] == 4 * sum(p.numel() for p in found.parameters())
