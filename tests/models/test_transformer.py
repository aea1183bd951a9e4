"""The whole model equals Hugging Face's Marian, and every variant of it keeps the promises of a Transformer."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from regard.core.attention import MultiHeadAttention
from regard.core.losses import linear_cross_entropy
from regard.core.positions import ABSOLUTE, RELATIVE, Positions, sinusoid
from regard.models.family import blank, configure
from regard.models.transformer import FAMILY, Memory, Transformer, TransformerConfig

SHAPE: dict[str, Any] = {
    "vocabulary": 23,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 4,
    "max_length": 40,
}
VARIANTS: dict[str, dict[str, Any]] = {
    f"{positions}-{norm}": {"positions": positions, "norm": norm}
    for positions, norm in itertools.product(ABSOLUTE + RELATIVE, ("post", "pre"))
} | {
    "gelu": {"feed_forward": "gelu"},
    "glu": {"feed_forward": "glu"},
    "swiglu": {"feed_forward": "swiglu", "norm": "pre"},
    "convolution-post": {"feed_forward": "convolution"},
    "convolution-pre": {"feed_forward": "convolution", "norm": "pre"},
    "rms-post": {"norm_kind": "rms"},
    "rms-pre": {"norm_kind": "rms", "norm": "pre"},
    "two-kv-heads": {"kv_heads": 2, "positions": "shaw"},
    "one-kv-head": {"kv_heads": 1, "positions": "t5"},
    "own-widths": {"d_k": 6, "d_v": 3, "positions": "rope"},
    "untied": {"tie": "none", "scale_embedding": False},
    "chunked": {"backend": "chunked", "positions": "alibi"},
    "math": {"backend": "math", "positions": "shaw"},
    "llama": {
        "norm": "pre",
        "norm_kind": "rms",
        "positions": "rope",
        "feed_forward": "swiglu",
        "kv_heads": 2,
        "bias": False,
    },
    "qwen": {"qk_norm": True, "qkv_bias": False, "norm_kind": "rms_offset", "positions": "rope"},
    "t5": {"positions": "t5", "norm": "pre", "scale": 1.0, "scale_output": True, "bias": False, "norm_kind": "rms"},
}
LENGTHS = [7, 4, 1]  # of the sources in a batch; targets have 18 tokens, more than a cache first holds
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
    """A small model in which no parameter is at its first value, ready for use."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**SHAPE | changes)).to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model


def tokens(lengths: list[int], seed: int) -> Tensor:
    """Random tokens, right-padded with 0."""
    g = torch.Generator().manual_seed(seed)
    return nn.utils.rnn.pad_sequence([torch.randint(1, 23, (n,), generator=g) for n in lengths], True)


SOURCE, TARGET = tokens(LENGTHS, 0), tokens([18] * 3, 1)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-11, rtol=0)


# The same numbers as Marian


def marian(ours: Transformer) -> MarianMTModel:
    """Hugging Face's model with the weights of ours."""
    c = ours.config
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=c.vocabulary,
            d_model=c.d_model,
            encoder_layers=c.encoder_layers,
            decoder_layers=c.decoder_layers,
            encoder_ffn_dim=c.d_ff,
            decoder_ffn_dim=c.d_ff,
            encoder_attention_heads=c.heads,
            decoder_attention_heads=c.heads,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=64,
            pad_token_id=c.pad,
            decoder_start_token_id=c.pad,
            use_cache=False,
        )
    ).to(ours.output.weight.dtype)
    # Marian writes all sines before all cosines; the paper interleaves them. That is another order of the dimensions,
    # and ours is put into their table. In fp64 theirs would be rounded to fp32 besides.
    positions = sinusoid(torch.arange(64), c.d_model)
    state = {"model.shared.weight": ours.output.weight, "lm_head.weight": ours.output.weight}
    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_tokens.weight"] = ours.output.weight
        state[f"model.{side}.embed_positions.weight"] = positions
        for i, layer in enumerate(getattr(ours, side).layers):
            name = f"model.{side}.layers.{i}"
            put_attention(state, f"{name}.self_attn", layer.self_attention)
            if side == "decoder":
                put_attention(state, f"{name}.encoder_attn", layer.cross_attention)
            put(state, f"{name}.fc1", layer.feed_forward.sublayer.inner)
            put(state, f"{name}.fc2", layer.feed_forward.sublayer.outer)
            put(state, f"{name}.final_layer_norm", layer.feed_forward.norm)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["final_logits_bias"], [])  # a buffer, zero
    return theirs.eval()


def put(state: dict[str, Tensor], name: str, module: nn.Module) -> None:
    state[f"{name}.weight"], state[f"{name}.bias"] = module.weight, module.bias


def put_attention(state: dict[str, Tensor], name: str, residual: nn.Module) -> None:
    put(state, f"{name}_layer_norm", residual.norm)
    put(state, f"{name}.out_proj", residual.sublayer.output)
    mine = residual.sublayer
    parts = [mine.query, mine.key_value] if mine.cross else [mine.query_key_value]
    for kind in ("weight", "bias"):
        for letter, part in zip("qkv", torch.cat([getattr(p, kind) for p in parts]).chunk(3), strict=True):
            state[f"{name}.{letter}_proj.{kind}"] = part


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_equals_marian_weight_for_weight(dtype: torch.dtype, atol: float) -> None:
    ours = build(dtype, encoder_layers=3)
    theirs = marian(ours)
    source, target = tokens([9, 5, 1], 2), tokens([6, 11, 3], 3)
    logits = ours(source, target)
    expected = theirs(input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=target).logits
    assert expected.std() > 0.5  # there is something to compare
    torch.testing.assert_close(logits, expected, atol=atol, rtol=0)

    # Padded positions stay out of the loss, as always: Marian gives the vector of `pad` no gradient.
    g = torch.randn_like(logits) * (target != 0)[:, :, None]
    (mine,) = torch.autograd.grad(logits, ours.output.weight, g)
    (their,) = torch.autograd.grad(expected, theirs.model.shared.weight, g)
    torch.testing.assert_close(mine, their, atol=atol * max(1.0, their.abs().max().item()), rtol=0)


# Promises of every variant


@every_variant
@pytest.mark.parametrize("steps", [[1] * 18, [5, 1, 1, 9, 2], [17, 1]], ids=["tokens", "chunks", "prefix"])
def test_cached_equals_uncached_at_every_step(variant: str, steps: list[int]) -> None:
    model = build(**VARIANTS[variant])
    memory, cache, end = model.encode(SOURCE), model.new_cache(), 0
    for new in TARGET.split(steps, 1):
        end += new.shape[1]
        close(model.decode(new, memory, cache), model.decode(TARGET[:, :end], memory)[:, -new.shape[1] :])
        assert cache.length == end


@every_variant
def test_a_reordered_cache_continues_the_chosen_rows(variant: str) -> None:
    model, index = build(**VARIANTS[variant]), torch.tensor([2, 0, 0, 1])
    cache = model.new_cache()
    model.decode(TARGET[:, :5], model.encode(SOURCE), cache)
    cache.reorder(index, index)
    memory = model.encode(SOURCE[index])
    for end in (6, 7):
        close(
            model.decode(TARGET[index, end - 1 : end], memory, cache), model.decode(TARGET[index, :end], memory)[:, -1:]
        )


@every_variant
def test_the_future_changes_nothing(variant: str) -> None:
    model, other = build(**VARIANTS[variant]), TARGET.clone()
    other[:, 8:] = TARGET[:, 8:] % 22 + 1  # another token everywhere
    before, after = model(SOURCE, TARGET), model(SOURCE, other)
    close(before[:, :8], after[:, :8])
    assert (before[:, 8:] - after[:, 8:]).abs().amax(-1).min() > 1e-3  # the present does


@every_variant
def test_padding_and_company_change_nothing(variant: str) -> None:
    model = build(**VARIANTS[variant])
    target = tokens([6, 2, 9], 3)
    logits = model(SOURCE, target)
    close(model(F.pad(SOURCE, (0, 4)), F.pad(target, (0, 3)))[:, : target.shape[1]], logits)
    for i, (s, t) in enumerate(zip(LENGTHS, [6, 2, 9], strict=True)):
        close(model(SOURCE[i : i + 1, :s], target[i : i + 1, :t])[0], logits[i, :t])
    assert not torch.allclose(model(SOURCE.masked_fill(SOURCE == 0, 5), target)[1:], logits[1:])  # words do


@every_variant
def test_an_empty_source_is_survived(variant: str) -> None:
    model = build(**VARIANTS[variant])
    memory = model.encode(torch.zeros_like(SOURCE))
    logits = model.decode(TARGET, memory)
    assert logits.isfinite().all()
    close(model.decode(TARGET, Memory(torch.randn_like(memory.states), memory.mask)), logits)  # nothing of it is read


@every_variant
def test_half_precision_is_as_near_as_its_numbers(variant: str) -> None:
    half = build(**VARIANTS[variant]).bfloat16()
    exact = build(**VARIANTS[variant])
    exact.load_state_dict(half.state_dict())  # the same rounded weights
    logits, single = exact(SOURCE, TARGET), copy.deepcopy(half).float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = single(SOURCE, TARGET)
    for theirs in (half(SOURCE, TARGET), mixed):
        assert theirs.dtype == torch.bfloat16
        assert (theirs.double() - logits).abs().max() < 0.1 * logits.std()  # 2^-8 at each of some 30 operations


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ABSOLUTE + RELATIVE)
def test_the_encoder_without_positions_knows_no_order(positions: str, norm: str) -> None:
    model = build(positions=positions, norm=norm)
    source, order = tokens([9, 9], 4), torch.tensor([4, 1, 8, 0, 3, 7, 5, 2, 6])
    shuffled, straight = model.encode(source[:, order]).states, model.encode(source).states[:, order]
    if positions == "none":
        close(shuffled, straight)
    else:
        assert (shuffled - straight).abs().max() > 1e-2


@every_variant
def test_watched_attention_computes_the_same(variant: str) -> None:
    model = build(**VARIANTS[variant])
    logits = model(SOURCE, TARGET)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.weights.watchers.append(lambda w: w)
    close(model(SOURCE, TARGET), logits)


# Embeddings (§3.4)


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("target", 2), ("inputs", 2), ("none", 3)])
def test_tying_shares_parameters(tie: str, matrices: int) -> None:
    model = Transformer(TransformerConfig(**SHAPE | {"tie": tie}))
    source, target = model.source_embedding.tokens.weight, model.target_embedding.tokens.weight
    assert (source is target) == (tie in ("all", "inputs"))
    assert (target is model.output.weight) == (tie in ("all", "target"))
    body = sum(p.numel() for part in (model.encoder, model.decoder) for p in part.parameters())
    assert sum(p.numel() for p in model.parameters()) == body + matrices * 23 * 16


@pytest.mark.parametrize("tie", ["target", "none"])
def test_two_vocabularies_may_differ_in_size(tie: str) -> None:
    model = Transformer(TransformerConfig(**SHAPE | {"tie": tie, "source_vocabulary": 31}))
    assert model(torch.full((1, 3), 30), torch.full((1, 2), 22)).shape == (1, 2, 23)
    with pytest.raises(ValueError, match=r"token ids lie in 0\.\.22, got 30\.\.30"):
        model(torch.full((1, 3), 30), torch.full((1, 2), 30))


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_scaled_embeddings_begin_with_unit_variance(tie: str) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocabulary=2000, encoder_layers=1, decoder_layers=1, d_model=64, tie=tie))
    n = 2000 * 64
    for weight in {model.source_embedding.tokens.weight, model.target_embedding.tokens.weight, model.output.weight}:
        variance = 64 * weight.square().mean().item()
        assert abs(variance - 1) < 4 * math.sqrt(2 / n)  # of a mean of n squared normals


# What a model is made of


@pytest.mark.parametrize(
    ("name", "layers", "d_model", "d_ff", "heads", "dropout"),
    [
        ("tiny", 4, 128, 256, 4, 0.1),
        ("small", 6, 256, 1024, 4, 0.1),
        ("base", 6, 512, 2048, 8, 0.1),  # Table 3, first row
        ("big", 6, 1024, 4096, 16, 0.3),  # Table 3, last row
    ],
)
def test_presets(name: str, layers: int, d_model: int, d_ff: int, heads: int, dropout: float) -> None:
    c = FAMILY.presets[name](37_000)
    assert (c.vocabulary, c.encoder_layers, c.decoder_layers) == (37_000, layers, layers)
    assert (c.d_model, c.d_ff, c.heads, c.dropout) == (d_model, d_ff, heads, dropout)
    assert FAMILY.presets[name](37_000, norm_kind="rms") == c.but(norm_kind="rms") != c


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("t5-small", 60_506_624),  # as transformers counts them, here and below
        ("flan-t5-small", 76_961_152),
        ("whisper-tiny", 37_760_640 + 12 * 384),  # whose keys have no bias
        ("bart-base", 139_420_416 - 2 * 2 * 768 + 50_265),  # which has two positions more, and no bias of the output
    ],
)
def test_presets_of_others_have_their_parameters(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in blank(configure(name)).parameters()) == parameters


def test_the_shallow_preset_has_its_depth_in_the_encoder() -> None:
    tiny, shallow = (FAMILY.presets[name](10_000) for name in ("tiny", "shallow"))
    assert (shallow.encoder_layers, shallow.decoder_layers, shallow.norm) == (6, 1, "pre")
    same = ("d_model", "d_ff", "heads", "dropout", "tie", "positions")
    assert all(getattr(shallow, key) == getattr(tiny, key) for key in same)
    sizes = [sum(p.numel() for p in Transformer(c).decoder.layers.parameters()) for c in (tiny, shallow)]
    assert sizes[0] == 4 * sizes[1]


BASE_ROW = 65
TABLE_3: dict[str, tuple[dict[str, Any], int]] = {  # changes to the base model, millions of parameters
    "base": ({}, BASE_ROW),
    "A h=1": ({"heads": 1, "d_k": 512, "d_v": 512}, BASE_ROW),
    "A h=4": ({"heads": 4, "d_k": 128, "d_v": 128}, BASE_ROW),
    "A h=16": ({"heads": 16, "d_k": 32, "d_v": 32}, BASE_ROW),
    "A h=32": ({"heads": 32, "d_k": 16, "d_v": 16}, BASE_ROW),
    "B d_k=16": ({"d_k": 16}, 58),
    "B d_k=32": ({"d_k": 32}, 60),
    "C N=2": ({"encoder_layers": 2, "decoder_layers": 2}, 36),
    "C N=4": ({"encoder_layers": 4, "decoder_layers": 4}, 50),
    "C N=8": ({"encoder_layers": 8, "decoder_layers": 8}, 80),
    "C d_model=256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    "C d_model=1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    "C d_ff=1024": ({"d_ff": 1024}, 53),
    "C d_ff=4096": ({"d_ff": 4096}, 90),
    "D dropout=0": ({"dropout": 0.0}, BASE_ROW),
    "D dropout=0.2": ({"dropout": 0.2}, BASE_ROW),
    "E learned": ({"positions": "learned"}, BASE_ROW),
    "big": ({"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3}, 213),
}


@pytest.mark.parametrize("row", TABLE_3)
def test_every_row_of_table_3_can_be_built_with_its_number_of_parameters(row: str) -> None:
    changes, millions = TABLE_3[row]
    # §5.1 speaks of about 37,000 tokens. The counts of all small rows fit one vocabulary of about 41,000 (base would
    # have 63 million with 37,000); that of the big model fits 36,000.
    vocabulary = 36_000 if row == "big" else 41_000
    with torch.device("meta"):
        model = Transformer(TransformerConfig.base(vocabulary, **changes))
        logits = model(torch.ones(2, 7, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    assert logits.shape == (2, 5, vocabulary)
    # The paper leaves the column empty in rows A, D and E; row E adds its two tables to the base model.
    learned = sum(p.numel() for name, p in model.named_parameters() if name.endswith("positions.table"))
    assert learned == (2 * 1024 * 512 if row == "E learned" else 0)
    assert round((sum(p.numel() for p in model.parameters()) - learned) / 1e6) == millions


def test_stochastic_depth_grows_from_the_first_layer_to_the_last() -> None:
    model = Transformer(
        TransformerConfig(**SHAPE | {"encoder_layers": 3, "decoder_layers": 1, "stochastic_depth": 0.4})
    )
    for layer, skip in zip(model.encoder.layers, (0.0, 0.2, 0.4), strict=True):
        assert layer.self_attention.skip == layer.feed_forward.skip == pytest.approx(skip)
    assert model.decoder.layers[0].cross_attention.skip == 0.0


@pytest.mark.parametrize(("positions", "tables"), [("t5", 1), ("shaw", 2)])
def test_relative_positions_belong_to_the_stack_or_to_the_layer(positions: str, tables: int) -> None:
    model = build(positions=positions)
    for stack in (model.encoder, model.decoder):
        own = [layer.self_attention.sublayer.positions for layer in stack.layers]
        assert len(set(own)) == tables
        if positions == "t5":  # only an encoder needs buckets for what comes later
            assert own[0].both_ways == (stack is model.encoder)
    modules = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert [type(m.positions) is Positions for m in modules] == [m.cross for m in modules]  # a memory has no distances


def test_every_parameter_learns_from_the_chunked_loss_as_from_the_logits() -> None:
    model = build(tie="target", positions="shaw", norm="pre")
    labels = TARGET.roll(-1, 1)
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = linear_cross_entropy(model.features(SOURCE, TARGET), model.output.weight, labels, smoothing=0.1)
    logits = model(SOURCE, TARGET).flatten(0, 1)
    expected = F.cross_entropy(logits, labels.flatten(), label_smoothing=0.1, reduction="sum")
    close(loss, expected)
    pairs = zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True)
    for name, (mine, their) in zip(names, pairs, strict=True):
        assert mine.ne(0).any(), name
        torch.testing.assert_close(mine, their, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary"}, "positions = 'rotary': choose none, .*rope"),
        ({"norm": "sandwich"}, "norm = 'sandwich': choose post or pre"),
        ({"norm_kind": "batch"}, "norm_kind = 'batch': choose layer, rms or rms_offset"),
        ({"feed_forward": "tanh"}, "feed_forward = 'tanh': choose relu, gelu, silu, .*convolution"),
        ({"tie": "source"}, "tie = 'source': choose all, target, none or inputs"),
        ({"backend": "flash"}, "backend = 'flash': choose auto"),
        ({"source_vocabulary": 30}, "they have 30 and 23 entries: use one joint vocabulary, or tie='target'"),
        ({"heads": 3}, "d_model = 16 does not divide into 3 heads"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"vocabulary": 0}, "vocabulary = 0: it must be at least 1"),
        ({"source_vocabulary": -1, "tie": "none"}, "source_vocabulary = -1"),
        ({"decoder_layers": 0}, "decoder_layers = 0"),
        (
            {"positions": "rope", "d_k": 5},
            r"\(rope\) turn pairs of dimensions: d_k = 5 must be even; set d_k, or other heads",
        ),
        ({"positions": "rope", "d_model": 12}, "d_k = 3 must be even"),
        ({"stochastic_depth": 1.5}, r"stochastic_depth = 1.5: a probability lies in \[0, 1\]"),
    ],
)
def test_an_impossible_config_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**SHAPE | changes)


def test_an_unknown_setting_suggests_a_known_one() -> None:
    with pytest.raises(ValueError, match="no setting 'head': did you mean 'heads'"):
        TransformerConfig.base(100).but(head=16)
    with pytest.raises(ValueError, match="no setting 'dropouts': did you mean 'dropout'"):
        TransformerConfig.tiny(100, dropouts=0.2)


def test_what_does_not_fit_the_model_is_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match=r"token ids lie in 0\.\.22, got 1\.\.23"):
        model(torch.tensor([[1, 23]]), TARGET)
    with pytest.raises(ValueError, match="do not fit together"):
        model(SOURCE[:2], TARGET)
    learned = build(positions="learned", max_length=9)
    with pytest.raises(ValueError, match="18 tokens is longer than the 9 learned positions"):
        learned(SOURCE, TARGET)
    cache, memory = learned.new_cache(), learned.encode(SOURCE)
    learned.decode(TARGET[:, :9], memory, cache)
    with pytest.raises(ValueError, match="10 tokens is longer"):
        learned.decode(TARGET[:, 9:10], memory, cache)
