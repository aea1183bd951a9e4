"""Stacks are built for any model from the settings of a layer; what does not go together is refused."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.core import blocks
from regard.core.blocks import LayerConfig
from regard.core.layers import OffsetRMSNorm
from regard.core.masks import causal
from regard.inspection.taps import record

SHAPE: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 4, "dropout": 0.0}
LLAMA: dict[str, Any] = {
    "norm": "pre",
    "norm_kind": "rms",
    "positions": "rope",
    "rope_base": 5e5,
    "rope_scaling": "llama3:8,1,4,64",
    "feed_forward": "swiglu",
    "bias": False,
    "kv_heads": 2,
}


@pytest.mark.parametrize(
    "changes",
    [{}, LLAMA, {"norm": "pre", "feed_forward": "gelu_tanh"}, LLAMA | {"qk_norm": True, "qkv_bias": True}],
    ids=["paper", "llama", "gpt", "qwen"],
)
def test_a_decoder_without_a_memory_says_the_same_step_by_step(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    stack, x = blocks.decoder(LayerConfig(**SHAPE | changes), 2).double(), torch.randn(2, 7, 16).double()
    whole, cache, parts = stack(x, mask=causal()), blocks.new_cache(stack), []
    for part in x.split([3, 1, 1, 2], 1):
        parts.append(stack(part, mask=causal(cache.length), cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)
    assert not any("cross" in name for name, _ in stack.named_parameters())
    assert (stack.norm is None) == ("norm" not in changes)


def test_queries_and_keys_may_have_norms_and_biases_of_their_own() -> None:
    attention: Any = blocks.decoder(LayerConfig(**SHAPE | LLAMA | {"qk_norm": True, "qkv_bias": True}), 1).layers[0]
    attention = attention.self_attention.sublayer
    assert (attention.query_key_value.bias is None, attention.output.bias) == (False, None)
    x, names = torch.randn(1, 5, 16), ("queries", "keys")
    for scale in (1.0, 7.0):  # of the queries, which a norm takes away
        with torch.no_grad():
            attention.query_key_value.weight[:16] *= scale
        with record(attention, what=names) as seen:
            attention(x)
        found = next(iter(seen.queries.values()))
        torch.testing.assert_close(found.square().mean(-1), torch.ones(1, 4, 5), atol=1e-3, rtol=0)


def test_a_norm_may_have_a_gain_of_one_and_more() -> None:
    norm, x = OffsetRMSNorm(16, eps=1e-6), torch.randn(3, 16)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (16,), eps=1e-6))
    norm.weight.data.fill_(0.5)
    torch.testing.assert_close(norm(x), 1.5 * F.rms_norm(x, (16,), eps=1e-6))


def test_a_bias_reaches_the_scores_of_every_encoder_layer() -> None:
    stack, x = blocks.encoder(LayerConfig(**SHAPE), 2).double(), torch.randn(2, 5, 16).double()
    hidden = torch.zeros(1, 1, 5, 5).double()
    hidden[..., 3:] = -torch.inf
    torch.testing.assert_close(stack(x, bias=hidden)[:, :3], stack(x[:, :3]), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("name", "gate"), [("geglu", "none"), ("geglu_tanh", "tanh")])
def test_gelu_may_be_a_gate(name: str, gate: str) -> None:
    network, x = blocks.feed_forward(LayerConfig(**SHAPE, feed_forward=name), causal=False), torch.randn(3, 16)
    a, b = network.inner(x).chunk(2, -1)
    torch.testing.assert_close(network(x), network.outer(F.gelu(a, approximate=gate) * b))


@dataclass(frozen=True, kw_only=True)
class Config(LayerConfig):
    layers: int = 2

    def __post_init__(self) -> None:
        self.check_layers(decoder="self_attention")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_base": 500.0}, "rope_base and rope_scaling are of positions = 'rope', not 'sinusoidal'"),
        ({"rope_scaling": "linear:2"}, "rope_base and rope_scaling are of positions = 'rope'"),
        ({"positions": "rope", "rope_base": 0.0}, "rope_base = 0.0: it must be above 0"),
        ({"positions": "rope", "rope_scaling": "linear"}, "rope_scaling = 'linear': write linear:2"),
        ({"positions": "rope", "d_k": 3}, "d_k = 3 must be even"),
        ({"positions": "where"}, "positions = 'where': choose none, sinusoidal"),
        ({"feed_forward": "tanh"}, "feed_forward = 'tanh': choose relu"),
        ({"normaliser": "monotonic"}, "walks along a memory, which self-attention has not"),
        ({"self_attention": "linformer:4"}, "self_attention = 'linformer:4' has no causal form"),
        ({"self_attention": "window:4", "positions": "t5"}, "positions = 't5' add to the scores of full attention"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**SHAPE | changes)
