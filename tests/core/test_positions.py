"""Each encoding equals its paper's formula or an independent implementation, and an offset moves the clock."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard.core.attention import MultiHeadAttention
from regard.core.mixers import AttentionConfig
from regard.core.positions import (
    ABSOLUTE,
    RELATIVE,
    ALiBi,
    Learned,
    Positions,
    Rotary,
    Shaw,
    Sinusoidal,
    T5Bias,
    absolute_positions,
    relative_positions,
    sinusoid,
)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Sinusoids (§3.5)


@pytest.mark.parametrize("position", [0, 1, 7, 100, 4999])
def test_sinusoids_are_the_papers(position: int) -> None:
    pe = sinusoid(torch.tensor([position]), 512)[0]
    for i in (0, 1, 17, 128, 255):
        angle = position / 10000 ** (2 * i / 512)
        assert pe[2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
        assert pe[2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


@pytest.mark.parametrize("k", [1, 5, 300])
def test_a_shifted_sinusoid_is_one_linear_function_of_it_at_every_position(k: int) -> None:
    at = torch.tensor([0, 3, 50, 1000])
    turn = torch.zeros(64, 64, dtype=torch.float64)  # a rotation of each (sin, cos) pair that depends on k alone
    for i in range(0, 64, 2):
        w = k / 10000 ** (i / 64)
        cos, sin = math.cos(w), math.sin(w)
        turn[i : i + 2, i : i + 2] = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    torch.testing.assert_close(sinusoid(at + k, 64), sinusoid(at, 64) @ turn.T, atol=1e-12, rtol=0)


def test_an_odd_width_ends_with_a_sine() -> None:
    pe = sinusoid(torch.arange(9), 7)
    assert pe.shape == (9, 7)
    assert pe[8, 6].item() == pytest.approx(math.sin(8 / 10000 ** (6 / 7)), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sinusoids_far_away_are_exact_up_to_rounding(dtype: torch.dtype) -> None:
    far = Sinusoidal().add(torch.zeros(1, 1, 16, dtype=dtype), offset=50_000)[0, 0]
    angles = [50_000 / 10000 ** (i // 2 * 2 / 16) for i in range(16)]
    exact = [math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)]
    assert far.dtype == dtype
    # Half a unit in the last place; in fp64 the angle itself, about 50,000, is the coarser one.
    atol = max(torch.finfo(dtype).eps / 2, 50_000 * torch.finfo(torch.float64).eps)
    torch.testing.assert_close(far.double(), torch.tensor(exact, dtype=torch.float64), atol=atol, rtol=0)


# Learned


def test_learned_positions_end_with_their_table() -> None:
    positions, x = Learned(10, 4), torch.zeros(2, 10, 4)
    assert torch.equal(positions.add(x)[1], positions.table)
    for length, offset in ((11, 0), (1, 10), (3, 8)):
        with pytest.raises(ValueError, match=f"sequence of {length + offset} tokens .* the 10 learned.*max_length"):
            positions.add(torch.zeros(1, length, 4), offset)


# RoPE


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_rope_equals_hugging_face_llamas(base: float) -> None:
    q, k = draw(2, 4, 60, 16, dtype=torch.float32), draw(2, 2, 60, 16, seed=1, dtype=torch.float32)
    ours = Rotary(16, base)
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(60)[None])
    for mine, theirs in zip((ours.rotate(q), ours.rotate(k)), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=0)  # their angles are rounded to fp32, up to 60

    # Their class computes angles in fp32 whatever the model's dtype, so in fp64 it gets them written out.
    q, k = q.double(), k.double()
    angles = torch.tensor([[t / base ** (2 * (i % 8) / 16) for i in range(16)] for t in range(60)], dtype=q.dtype)
    expected = apply_rotary_pos_emb(q, k, angles.cos()[None], angles.sin()[None])
    for mine, theirs in zip((ours.rotate(q), ours.rotate(k)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("scaling", "theirs"),
    [
        ("linear:2.5", {"rope_type": "linear", "factor": 2.5}),
        (
            "llama3:8,1,4,64",
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
    ],
)
def test_slower_rope_equals_hugging_faces(scaling: str, theirs: dict[str, Any]) -> None:
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters={"rope_theta": 5e3, **theirs})
    found = Rotary(64, 5e3, scaling).speeds()
    torch.testing.assert_close(found.float(), LlamaRotaryEmbedding(config).inv_freq, atol=1e-9, rtol=1e-6)
    assert not torch.allclose(found, Rotary(64, 5e3).speeds())


@pytest.mark.parametrize(
    "text", ["", "linear", "linear:", "linear:0", "linear:-1", "linear:inf", "linear:2,3", "yarn:2", "llama3:8,4,1,64"]
)
def test_what_is_no_scaling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write linear:2, or llama3:8,1,4,8192, with numbers above 0"):
        Rotary(8, scaling=text)


def test_rope_sees_only_the_distance() -> None:
    rope, q, k = Rotary(8), draw(1, 1, 1, 8), draw(1, 1, 1, 8, seed=1)

    def score(i: int, j: int) -> float:
        return (rope.rotate(q, i) * rope.rotate(k, j)).sum().item()

    for distance in (0, 1, 9, -30):
        near = score(40, 40 + distance)
        assert score(1000, 1000 + distance) == pytest.approx(near, abs=1e-11)
        assert score(41, 40 + distance) != pytest.approx(near, abs=1e-4)
    torch.testing.assert_close(rope.rotate(q, 77).norm(), q.norm(), atol=1e-12, rtol=0)


def test_rope_needs_pairs() -> None:
    with pytest.raises(ValueError, match="d_k = 7 must be even"):
        Rotary(7)


# Shaw


@pytest.mark.parametrize("offset", [0, 3])
def test_shaw_equals_q_times_k_plus_a_written_out(offset: int) -> None:
    shaw, q, k = Shaw(heads=2, d_k=5, clip=2).double(), draw(3, 2, 4, 5), draw(3, 2, 7, 5, seed=1)
    scores = q @ k.mT + shaw.bias(q, 7, offset)
    for h in range(2):
        for i in range(4):
            for j in range(7):
                a = shaw.table[h, min(max(j - (offset + i), -2), 2) + 2]
                expected = ((k[:, h, j] + a) * q[:, h, i]).sum(-1)
                torch.testing.assert_close(scores[:, h, i, j], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_shaw_inside_attention_is_scaled_once(scale: float | None) -> None:
    config = AttentionConfig(12, 3, kv_heads=1, scale=scale, output=False)
    attention = MultiHeadAttention(config, positions=Shaw(heads=3, d_k=4, clip=2)).double()
    x, positions = draw(2, 6, 12), attention.positions
    assert isinstance(positions, Shaw)
    q, k, v = (t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in attention.query_key_value(x).split([12, 4, 4], -1))
    clipped = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    a = positions.table[:, clipped]  # (H, T, S, d_k)
    scores = torch.einsum("bhtd,bhtsd->bhts", q, k[:, :, None] + a)
    weights = (scores * (0.5 if scale is None else scale)).softmax(-1)
    torch.testing.assert_close(attention(x), (weights @ v).transpose(1, 2).flatten(2), atol=1e-12, rtol=0)


# T5


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "maximum"), [(32, 128), (64, 256), (32, 1000), (16, 50), (8, 20), (4, 7)])
def test_t5_buckets_are_hugging_faces(buckets: int, maximum: int, both_ways: bool) -> None:
    distance = torch.arange(-1000, 1001)
    theirs = T5Attention._relative_position_bucket(distance, both_ways, buckets, maximum)
    assert torch.equal(T5Bias(1, both_ways, buckets, maximum).bucket(distance), theirs)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("offset", [0, 11])
def test_t5_bias_equals_hugging_faces_with_the_same_weights(both_ways: bool, offset: int) -> None:
    config = T5Config(
        d_model=12,
        d_kv=4,
        num_heads=3,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=40,
        is_decoder=not both_ways,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = T5Bias(3, both_ways, buckets=16, maximum=40)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(ours.table)
    q = torch.zeros(2, 3, 60, 4)
    expected = theirs.compute_bias(60, 60 + offset, past_seen_tokens=offset)
    assert torch.equal(ours.bias(q, 60 + offset, offset), expected)


# ALiBi


def test_alibi_slopes_are_the_published_ones() -> None:
    assert ALiBi(8).slopes == (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256)
    assert ALiBi(16).slopes == pytest.approx([2 ** -(n / 2) for n in range(1, 17)], rel=1e-15)


@pytest.mark.parametrize("heads", range(1, 21))
def test_alibi_weights_equal_hugging_face_blooms(heads: int) -> None:
    bloom = build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), heads, torch.float32)  # (H, 1, S): slope · key
    ours = ALiBi(heads)
    torch.testing.assert_close(torch.tensor(ours.slopes), bloom[:, 0, 1], atol=0, rtol=1e-6)
    # Bloom leaves out the query's part of the distance, to which the soft-max over the past is blind.
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    mine = ours.bias(torch.zeros(1, heads, 9, 4), 9)[0].masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(mine, bloom.expand(-1, 9, 9).masked_fill(hidden, -torch.inf).softmax(-1))


def test_alibi_is_the_same_on_both_sides() -> None:
    bias = ALiBi(3).bias(torch.zeros(1, 3, 5, 4), 5)
    assert torch.equal(bias, bias.mT)
    assert bias.diagonal(dim1=2, dim2=3).eq(0).all()


# What all have in common


@pytest.mark.parametrize("kind", ABSOLUTE + RELATIVE)
def test_an_offset_gives_the_tail_of_the_whole(kind: str) -> None:
    for positions in every_place(kind):
        positions.double()
        x, q = draw(2, 20, 8), draw(2, 4, 20, 6)
        whole = positions.bias(q, 20)
        for offset in (1, 13):
            tail = q[:, :, offset:]
            torch.testing.assert_close(positions.add(x[:, offset:], offset), positions.add(x)[:, offset:])
            torch.testing.assert_close(positions.rotate(tail, offset), positions.rotate(q)[:, :, offset:])
            if whole is None:
                assert positions.bias(tail, 20, offset) is None
            else:
                torch.testing.assert_close(positions.bias(tail, 20, offset), whole[:, :, offset:])


@pytest.mark.parametrize("kind", ABSOLUTE + RELATIVE)
def test_each_kind_acts_in_one_place(kind: str) -> None:
    absolute, relative = every_place(kind)
    x, q = torch.ones(1, 5, 8), torch.ones(1, 4, 5, 6)
    assert torch.equal(absolute.add(x), x) == (kind not in ("sinusoidal", "learned"))
    assert torch.equal(relative.rotate(q), q) == (kind != "rope")
    assert (relative.bias(q, 5) is None) == (kind not in ("shaw", "t5", "alibi"))
    assert torch.equal(relative.add(x), x)
    assert torch.equal(absolute.rotate(q), q)
    assert absolute.bias(q, 5) is None


def every_place(kind: str) -> tuple[Positions, Positions]:
    absolute = absolute_positions(kind, d_model=8, maximum=20)
    return absolute, relative_positions(kind, heads=4, d_k=6, both_ways=True)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    message = "unknown positions 'rotary': choose one of none, sinusoidal, learned, shaw, t5, rope, alibi"
    with pytest.raises(ValueError, match=message):
        absolute_positions("rotary", d_model=8, maximum=20)
    with pytest.raises(ValueError, match=message):
        relative_positions("rotary", heads=4, d_k=6, both_ways=True)
