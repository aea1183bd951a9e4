"""The layers equal torch.nn's and Hugging Face's weight for weight; each kind of sub-layer equals its formula."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from regard.core.attention import MultiHeadAttention
from regard.core.blocks import DecoderLayer, EncoderLayer, Stack
from regard.core.cache import Cache, Window
from regard.core.layers import (
    ConvolutionFeedForward,
    FeedForward,
    GatedFeedForward,
    Residual,
    linear,
)
from regard.core.masks import causal, padding
from regard.core.mixers import AttentionConfig
from regard.core.positions import (
    ABSOLUTE,
    RELATIVE,
    Positions,
    Sinusoidal,
    absolute_positions,
    relative_positions,
    sinusoid,
)
from regard.core.stems import Embedding

PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-12)]
KEEP = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]]).bool()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def randomise(module: nn.Module) -> None:
    """Every parameter random, also those that begin as zeros or ones."""
    for p in module.parameters():
        nn.init.normal_(p, std=0.4)


def layer(kind: str, place: str, activation: str) -> EncoderLayer | DecoderLayer:
    def residual(sublayer: nn.Module) -> Residual:
        return Residual(sublayer, nn.LayerNorm(12), place)

    config = AttentionConfig(12, 3)
    own, feed_forward = residual(MultiHeadAttention(config)), residual(FeedForward(12, 20, activation))
    if kind == "encoder":
        return EncoderLayer(own, feed_forward)
    return DecoderLayer(own, residual(MultiHeadAttention(config, d_memory=12)), feed_forward)


def torch_layer(ours: EncoderLayer | DecoderLayer, place: str, activation: str) -> nn.Module:
    """torch.nn's layer with the same weights."""
    kind = nn.TransformerEncoderLayer if isinstance(ours, EncoderLayer) else nn.TransformerDecoderLayer
    theirs = kind(12, 3, 20, 0.0, activation, batch_first=True, norm_first=place == "pre")
    pairs = [(theirs.self_attn, ours.self_attention), (None, ours.feed_forward)]
    if isinstance(ours, DecoderLayer):
        pairs.insert(1, (theirs.multihead_attn, ours.cross_attention))
    for i, (attention, residual) in enumerate(pairs, 1):
        getattr(theirs, f"norm{i}").load_state_dict(residual.norm.state_dict())
        if attention is not None:
            mine = residual.sublayer
            parts = [mine.query, mine.key_value] if mine.cross else [mine.query_key_value]
            attention.load_state_dict(
                {
                    "in_proj_weight": torch.cat([p.weight for p in parts]),
                    "in_proj_bias": torch.cat([p.bias for p in parts]),
                    "out_proj.weight": mine.output.weight,
                    "out_proj.bias": mine.output.bias,
                }
            )
    theirs.linear1.load_state_dict(ours.feed_forward.sublayer.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.sublayer.outer.state_dict())
    return theirs


@pytest.mark.parametrize(("dtype", "atol"), PRECISIONS)
@pytest.mark.parametrize("place", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_layers_equal_torchs_weight_for_weight(
    kind: str, activation: str, place: str, dtype: torch.dtype, atol: float
) -> None:
    ours = layer(kind, place, activation)
    randomise(ours)
    theirs = torch_layer(ours, place, activation)
    ours, theirs = ours.to(dtype).eval(), theirs.to(dtype).eval()
    x, memory = torch.randn(3, 6, 12, dtype=dtype), torch.randn(3, 6, 12, dtype=dtype)
    inputs = [x.requires_grad_(), memory.requires_grad_()][: 1 if kind == "encoder" else 2]
    if kind == "encoder":
        out = ours(x, mask=padding(KEEP))
        expected = theirs(x, src_key_padding_mask=~KEEP)
    else:
        out = ours(x, memory, mask=causal() & padding(KEEP), memory_mask=padding(KEEP.flip(0)))
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        expected = theirs(
            x, memory, hidden, tgt_key_padding_mask=~KEEP, memory_key_padding_mask=~KEEP.flip(0), tgt_is_causal=False
        )
    torch.testing.assert_close(out, expected, atol=atol, rtol=0)
    g = torch.randn_like(out)
    for mine, theirs_ in zip(
        torch.autograd.grad(out, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True
    ):
        torch.testing.assert_close(mine, theirs_, atol=atol * max(1.0, theirs_.abs().max().item()), rtol=0)


def test_a_decoder_layer_without_a_memory_is_an_encoder_layer_with_a_causal_mask() -> None:
    like = layer("encoder", "pre", "gelu")
    decoder, x = DecoderLayer(like.self_attention, None, like.feed_forward), torch.randn(2, 5, 12)
    assert torch.equal(decoder(x, mask=causal()), like(x, mask=causal()))


@pytest.mark.parametrize("kind", ABSOLUTE + RELATIVE)
def test_a_decoder_without_a_memory_goes_on_from_its_cache_whatever_its_positions(kind: str) -> None:
    def one() -> DecoderLayer:
        own = MultiHeadAttention(
            AttentionConfig(12, 3), positions=relative_positions(kind, heads=3, d_k=4, both_ways=False)
        )
        return DecoderLayer(
            Residual(own, nn.LayerNorm(12)), None, Residual(FeedForward(12, 20), nn.LayerNorm(12), "pre")
        )

    decoder, embedding = (
        Stack([one(), one()]),
        Embedding(nn.Embedding(9, 12), absolute_positions(kind, d_model=12, maximum=60)),
    )
    for part in (decoder, embedding):
        randomise(part.double())
    words, cache, parts = torch.randint(9, (2, 60)), Cache.empty(2), []
    for new in words.split([1, 7, 1, 1, 40, 10], 1):  # further than Shaw's clip, and T5's buckets of one distance
        offset = cache.length
        mask = None if new.shape[1] == 1 else causal(offset)
        parts.append(decoder(embedding(new, offset), mask=mask, cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), decoder(embedding(words), mask=causal()), atol=1e-12, rtol=0)


# Feed-forward networks


@pytest.mark.parametrize("bias", [True, False])
def test_glu_and_swiglu_are_their_formulas(bias: bool) -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    for name, gate in (("glu", torch.sigmoid), ("swiglu", lambda z: z * torch.sigmoid(z))):
        ours = GatedFeedForward(8, 6, name, bias=bias).double()
        randomise(ours)
        W, V = ours.inner.weight[:6], ours.inner.weight[6:]
        b, c, d = (ours.inner.bias[:6], ours.inner.bias[6:], ours.outer.bias) if bias else (0.0, 0.0, 0.0)
        expected = (gate(x @ W.T + b) * (x @ V.T + c)) @ ours.outer.weight.T + d
        torch.testing.assert_close(ours(x), expected, atol=1e-12, rtol=0)


def test_swiglu_equals_hugging_face_llamas() -> None:
    theirs = LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=20)).double()
    ours = GatedFeedForward(8, 20, "swiglu", bias=False).double()
    ours.load_state_dict(
        {
            "inner.weight": torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight]),
            "outer.weight": theirs.down_proj.weight,
        }
    )
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=0)


def convolution(causal: bool, kernel: int = 3) -> ConvolutionFeedForward:
    ours = ConvolutionFeedForward(4, 6, kernel, causal=causal).double()
    randomise(ours)
    return ours


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolution_is_its_formula(causal: bool, kernel: int) -> None:
    ours, x = convolution(causal, kernel), torch.randn(2, 7, 4, dtype=torch.float64)
    inner = F.linear(x, ours.inner.weight, ours.inner.bias)  # (B, T, d_ff)
    first = 1 - kernel if causal else -(kernel // 2)  # the kernel covers t + first ... t + first + kernel - 1
    mixed = torch.zeros_like(inner)
    for t in range(7):
        for j in range(kernel):
            if 0 <= t + first + j < 7:
                mixed[:, t] += ours.depthwise.weight[:, 0, j] * inner[:, t + first + j]
    expected = F.linear((mixed + ours.depthwise.bias).relu(), ours.outer.weight, ours.outer.bias)
    torch.testing.assert_close(ours(x), expected, atol=1e-12, rtol=0)


def test_a_causal_convolution_does_not_see_the_future() -> None:
    ours, x = convolution(causal=True), torch.randn(2, 7, 4, dtype=torch.float64)
    other = x.clone()
    other[:, 4:] = torch.randn(2, 3, 4)
    torch.testing.assert_close(ours(other)[:, :4], ours(x)[:, :4], atol=1e-12, rtol=0)
    assert not torch.allclose(ours(other)[:, 4], ours(x)[:, 4])


@pytest.mark.parametrize("steps", [[1] * 9, [3, 1, 5], [1, 8], [9]])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_convolution_step_by_step_gives_the_same_as_all_at_once(steps: list[int], kernel: int) -> None:
    ours, x, cache = convolution(True, kernel), torch.randn(2, 9, 4, dtype=torch.float64), Window()
    out = torch.cat([ours(part, cache=cache) for part in x.split(steps, 1)], 1)
    torch.testing.assert_close(out, ours(x), atol=1e-12, rtol=0)


def test_a_convolution_takes_padding_for_zeros() -> None:
    ours, x = convolution(causal=False), torch.randn(2, 7, 4, dtype=torch.float64)
    keep = torch.arange(7).expand(2, 7) < 5
    torch.testing.assert_close(ours(x, keep=keep)[:, :5], ours(x[:, :5]), atol=1e-12, rtol=0)
    assert not torch.allclose(ours(x)[:, 4], ours(x[:, :5])[:, 4])  # without `keep` it would be seen


# Residual


@pytest.mark.parametrize("place", ["post", "pre"])
def test_the_place_of_the_norm_with_rms(place: str) -> None:
    norm, sublayer = nn.RMSNorm(8, eps=1e-5).double(), FeedForward(8, 16).double()
    randomise(norm)
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def rms(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight

    expected = x + sublayer(rms(x)) if place == "pre" else rms(x + sublayer(x))
    torch.testing.assert_close(Residual(sublayer, norm, place)(x), expected, atol=1e-12, rtol=0)


class Ones(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


@pytest.mark.parametrize("skip", [0.2, 0.5])
def test_stochastic_depth_skips_whole_examples_and_keeps_the_expectation(skip: float) -> None:
    residual, x = Residual(Ones(), nn.Identity(), "pre", skip=skip), torch.randn(20_000, 3, 2, dtype=torch.float64)
    part = residual(x) - x
    assert torch.allclose(part, part[:, :1, :1])  # one fate for all of an example
    kept = part[:, 0, 0] > 0.5
    torch.testing.assert_close(part[kept], torch.full_like(part[kept], 1 / (1 - skip)), atol=1e-4, rtol=0)
    assert part[~kept].abs().max() < 1e-12
    deviation = math.sqrt(skip * (1 - skip) / len(x))
    assert abs(kept.double().mean().item() - (1 - skip)) < 4 * deviation
    assert torch.equal(residual.eval()(x), x + 1)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_dropout_acts_on_the_sublayers_output_alone(place: str) -> None:
    norm, x = nn.LayerNorm(4), torch.randn(2, 5, 4)
    residual = Residual(FeedForward(4, 8), norm, place, dropout=1.0)
    assert torch.equal(residual(x), x if place == "pre" else norm(x))
    assert not torch.allclose(residual.eval()(x), x if place == "pre" else norm(x))


# Embedding


def test_embeddings_are_scaled_and_placed() -> None:
    table, tokens = nn.Embedding(10, 16), torch.tensor([[3, 9, 0]])
    vectors = table.weight[tokens]
    torch.testing.assert_close(Embedding(table, Positions())(tokens), 4.0 * vectors)
    torch.testing.assert_close(Embedding(table, Positions(), scale=1.0)(tokens), vectors)
    at = sinusoid(torch.arange(5, 8), 16).float()
    torch.testing.assert_close(Embedding(table, Sinusoidal())(tokens, offset=5), 4.0 * vectors + at)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[3, 10]], r"token ids lie in 0\.\.9, got 3\.\.10.*tokenizer"),
        ([[-1, 2]], r"token ids lie in 0\.\.9, got -1\.\.2"),
        ([3, 4], r"tokens are integers \(batch, length\), got torch.int64 of shape \(2,\)"),
        ([[3.0, 4.0]], r"tokens are integers \(batch, length\), got torch.float32"),
        ([[True, False]], r"tokens are integers \(batch, length\), got torch.bool"),
    ],
)
def test_what_is_no_token_is_refused(tokens: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedding(nn.Embedding(10, 4), Positions())(torch.tensor(tokens))


# The rest


def test_matrices_side_by_side_are_each_initialised_as_if_alone() -> None:
    product = linear(300, 300, 20)
    assert product.bias.eq(0).all()
    for matrix, d_out in zip(product.weight.split([300, 20]), (300, 20), strict=True):
        bound = math.sqrt(6 / (300 + d_out))  # Xavier's: uniform in ±bound
        assert bound * 0.99 < matrix.abs().max() <= bound


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown activation 'tanh': did you mean 'gelu_tanh'"):
        FeedForward(4, 8, "tanh")
    with pytest.raises(ValueError, match="unknown gate 'relu'"):
        GatedFeedForward(4, 8, "relu")
    with pytest.raises(ValueError, match="'middle': choose post or pre"):
        Residual(nn.Identity(), nn.Identity(), "middle")
    with pytest.raises(ValueError, match="odd one to be centred; got 4"):
        ConvolutionFeedForward(4, 8, 4, causal=False)
    assert ConvolutionFeedForward(4, 8, 4, causal=True)(torch.randn(1, 5, 4)).shape == (1, 5, 4)
