"""Every kind of attention, in an attention and in a model: whole, cached, watched, stored, and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.core.attention import MultiHeadAttention
from regard.core.cache import KeyValues, Recent, Sums
from regard.core.efficient import FORMS, Kind
from regard.core.masks import Mask, causal, padding
from regard.core.mixers import AttentionConfig
from regard.core.positions import ALiBi, Rotary
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig

KINDS = ["window:3", "dilated:2:3", "longformer:2:2", "bigbird:1:1:2", "blocks:4", "linear", "performer:12"]
KINDS += ["performer:12:relu"]
ENCODERS = [*KINDS, "linformer:5"]


def attention(kind: str, **changes: Any) -> MultiHeadAttention:
    torch.manual_seed(1)
    config = AttentionConfig(**{"d_model": 16, "heads": 4, "kind": kind, "max_length": 64} | changes)
    return MultiHeadAttention(config, positions=Rotary(4)).eval()


def dense(module: MultiHeadAttention, x: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """The output while somebody watches, and the weights that are seen."""
    seen: list[Tensor] = []

    def watch(weights: Tensor) -> Tensor:
        seen.append(weights)
        return weights

    module.weights.watchers.append(watch)
    out = module(x, **how)
    module.weights.watchers.clear()
    return out, seen[0]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_what_a_watcher_sees_is_what_values_are_multiplied_with(kind: str, kv_heads: int) -> None:
    module, x = attention(kind, kv_heads=kv_heads), torch.randn(2, 40, 16)
    masks: list[Tensor | Mask | None] = [None, padding(torch.arange(40) < torch.tensor([[40], [33]])).dense(1, 40)]
    for mask in masks if kind == "linformer:5" else [*masks, causal()]:
        out, weights = dense(module, x, mask=mask)
        torch.testing.assert_close(out, module(x, mask=mask), atol=1e-5, rtol=1e-4)
        assert weights.shape == (2, 4, 40, 40)
        if kind != "linformer:5":
            torch.testing.assert_close(weights.sum(-1)[:, :, :33], torch.ones(2, 4, 33))
            assert (weights >= 0).all()
        values = module.query_key_value(x).split(module.widths, -1)[2].unflatten(-1, (kv_heads, 4)).transpose(1, 2)
        heads = weights @ values.repeat_interleave(4 // kv_heads, 1)
        torch.testing.assert_close(module.output(heads.transpose(1, 2).flatten(2)), out)
        if mask is None:
            truth = attention(kind, kv_heads=kv_heads, backend="math")
            truth.load_state_dict(module.state_dict())
            torch.testing.assert_close(truth(x), out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("steps", [[1] * 40, [7, 1, 32], [40]])
def test_decoding_with_a_cache_is_decoding_whole_and_remembers_only_what_it_must(
    kind: str, kv_heads: int, steps: list[int]
) -> None:
    module, x = attention(kind, kv_heads=kv_heads), torch.randn(2, 40, 16)
    whole, cache, parts = module(x, mask=causal()), module.new_cache(), []
    for part in x.split(steps, 1):
        mask = None if part.shape[1] == 1 else causal(cache.length)
        parts.append(module(part, mask=mask, cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-4)
    assert cache.length == 40
    most = {"window:3": 3, "dilated:2:3": 6, "longformer:2:2": 4, "blocks:4": 3}
    if kind in most:
        assert isinstance(cache, Recent)
        assert cache.keys is not None
        assert cache.keys.shape[2] <= most[kind]
        assert cache.keys.shape[1] == kv_heads
        assert cache.keys.untyped_storage().nbytes() <= 2 * kv_heads * most[kind] * 4 * 4  # no view of something longer
    elif kind.startswith("bigbird"):
        assert isinstance(cache, KeyValues)
        assert cache.keys is not None
        assert cache.keys.shape[1] == kv_heads
    else:
        assert isinstance(cache, Sums)
        assert cache.sums is not None
        assert cache.sums.shape == (2, kv_heads, 4 if kind == "linear" else 12, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_watched_decoder_keeps_every_key_and_shows_their_weights(kind: str) -> None:
    module, x = attention(kind), torch.randn(2, 9, 16)
    _, weights = dense(module, x, mask=causal())
    module.weights.watchers.append(lambda weights: weights)
    cache = module.new_cache()
    module.weights.watchers.clear()
    for i in range(9):
        _, row = dense(module, x[:, i : i + 1], cache=cache)
        torch.testing.assert_close(row[:, :, 0], weights[:, :, i, : i + 1], atol=1e-5, rtol=1e-4)


def test_a_watcher_who_comes_late_is_told_so() -> None:
    module, x = attention("linear"), torch.randn(1, 1, 16)
    cache = module.new_cache()
    module(x, cache=cache)
    with pytest.raises(ValueError, match="begin with a new one"):
        dense(module, x, cache=cache)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reordered_cache_goes_on_with_the_chosen_rows(kind: str) -> None:
    module, x, index = attention(kind), torch.randn(3, 12, 16), torch.tensor([2, 0, 0])
    cache = module.new_cache()
    module(x[:, :11], mask=causal(), cache=cache)
    cache.reorder(index)
    last = module(x[index, 11:], cache=cache)
    torch.testing.assert_close(last, module(x[index], mask=causal())[:, 11:], atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="a batch of 3, not of 1"):
        module(x[:1, :1], cache=cache)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "learned", "none"])
def test_a_transformer_decodes_as_it_reads_whatever_stands_beside_and_behind(kind: str, positions: str) -> None:
    torch.manual_seed(0)
    config = TransformerConfig.tiny(
        30,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        d_ff=16,
        positions=positions,
        max_length=64,
        self_attention=kind,
        decoder_self_attention="window:5" if kind.startswith("linformer") else None,
    )
    model = Transformer(config).eval()
    source, target = torch.randint(1, 30, (2, 20)), torch.randint(1, 30, (2, 12))
    source[1, 15:] = 0
    whole = model(source, target)
    alone = model(source[1:, :15], target[1:])
    torch.testing.assert_close(alone, whole[1:], atol=1e-4, rtol=1e-4)  # padding and company change nothing
    memory, cache = model.encode(source), model.new_cache()
    steps = [model.decode(target[:, i : i + 1], memory, cache) for i in range(12)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-4, rtol=1e-4)
    target[:, 8:] = 3
    torch.testing.assert_close(model(source, target)[:, :8], whole[:, :8], atol=1e-4, rtol=1e-4)  # causal


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_stored_model_comes_back_with_its_features(kind: str, tmp_path: Path) -> None:
    config = TransformerConfig.tiny(20, self_attention=kind, decoder_self_attention="performer:8", encoder_layers=1)
    model = Transformer(config).eval()
    storage.save(model, tmp_path)
    source, target = torch.randint(1, 20, (2, 5)), torch.randint(1, 20, (2, 4))
    assert torch.equal(storage.load(tmp_path)(source, target), model(source, target))


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_gets_a_finite_gradient(kind: str, dtype: torch.dtype) -> None:
    config = TransformerConfig.tiny(20, self_attention=kind, decoder_self_attention="linear", encoder_layers=1)
    model = Transformer(config).to(dtype)
    source, target = torch.randint(1, 20, (2, 9)), torch.randint(1, 20, (2, 7))
    source[1, 6:] = 0
    model(source, target).float().logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", ENCODERS)
def test_nothing_gives_nothing(kind: str) -> None:
    assert attention(kind)(torch.randn(2, 0, 16)).shape == (2, 0, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_does_not_halve_what_was_widened(kind: str) -> None:
    efficient = attention(kind).efficient
    assert efficient is not None
    q, k, v = (3 * torch.randn(3, 2, 4, 40, 4)).bfloat16().unbind()
    whole = {"is_causal": True, "keep": None, "scale": 0.5, "dropout": 0.0}

    def step() -> Tensor:
        past = efficient.past() or Recent(last=40)
        parts = [efficient.step(*x, past, scale=0.5) for x in zip(*(x.split(20, 2) for x in (q, k, v)), strict=True)]
        return torch.cat(parts, 2)

    exact, exact_step = efficient(q, k, v, **whole), step()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(efficient(q, k, v, **whole), exact)
        assert torch.equal(step(), exact_step)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window:3", "bigbird:2:1:1", "linear", "performer:12", "performer:12:relu"])
def test_a_decoder_learns_to_repeat_what_it_just_saw(kind: str) -> None:
    torch.manual_seed(0)
    config = TransformerConfig.tiny(
        8, d_model=32, d_ff=32, encoder_layers=1, decoder_layers=2, self_attention=kind, dropout=0.0, norm="pre"
    )
    model, nothing = Transformer(config), torch.ones(32, 1, dtype=torch.long)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        row = torch.randint(1, 8, (32, 2)).repeat(1, 5)  # a b a b a b ...: from the third on, each is two before it
        loss = torch.nn.functional.cross_entropy(model(nothing, row[:, :-1]).mT[:, :, 2:], row[:, 3:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.5  # to guess is log 7 = 1.95


def test_a_kind_is_read_from_its_text() -> None:
    assert {text: Kind.read(text).name for text in FORMS.values()} == {text: name for name, text in FORMS.items()}
    assert Kind.read("bigbird:8:1:2:7").numbers == (8, 1, 2, 7)
    assert Kind.read("performer:64:relu").relu
    one, other = attention("bigbird:1:1:2:5"), attention("bigbird:1:1:2:6")
    x = torch.randn(1, 300, 16)
    assert not torch.allclose(one(x), other(x))  # another seed, other blocks
    assert attention(f"bigbird:1:1:2:{10**30}")(x).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "windows:3"}, "unknown attention 'windows:3': choose one of full, window:64"),
        ({"kind": "window"}, "attention 'window': write it as in window:64"),
        ({"kind": "window:0"}, "attention 'window:0': write it as in window:64, with whole numbers from 1 on"),
        ({"kind": "window:3:4"}, "attention 'window:3:4': write"),
        ({"kind": "dilated:3"}, "as in dilated:32:4"),
        ({"kind": "linear:3"}, "attention 'linear:3': write it as in linear"),
        ({"kind": "performer:relu"}, "as in performer:256"),
        ({"kind": "performer:64:gelu"}, "as in performer:256"),
        ({"kind": "bigbird:3:1:0"}, "as in bigbird:64:2:3"),
        ({"kind": "window:65"}, "reaches 65 positions, more than max_length = 64"),
        ({"kind": "dilated:20:4"}, "reaches 80 positions"),
        ({"kind": "longformer:3:65"}, "reaches 65 positions"),
        ({"kind": "bigbird:3:65:1"}, "reaches 65 positions"),
        ({"kind": "bigbird:3:1:4"}, "reaches 97 positions"),  # three blocks of 32, and a part of the fourth
        ({"kind": "linformer:65"}, "linformer:65 projects max_length = 64 keys or fewer"),
        ({"kind": "linear", "dropout": 0.1}, "no weights for an attention dropout of 0.1"),
        ({"kind": "linear", "scale": 0.1}, "scale = 0.1: the kernel of 'linear' has none"),
        ({"kind": "performer:8", "scale": -1.0}, "not negative"),
        ({"kind": "window:3", "normaliser": "entmax"}, "leave score and normaliser alone"),
        ({"kind": "window:3", "backend": "chunked"}, "backend = 'chunked' is one of full attention"),
    ],
)
def test_a_kind_that_cannot_be_is_refused_when_built(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention(**settings)


def test_an_efficient_attention_refuses_what_is_not_its_own() -> None:
    config, x = AttentionConfig(16, 4, kind="window:3"), torch.randn(2, 9, 16)
    with pytest.raises(ValueError, match="not for attention to a memory"):
        MultiHeadAttention(config, d_memory=16)
    with pytest.raises(ValueError, match="not for positions that add to scores"):
        MultiHeadAttention(config, positions=ALiBi(4))
    with pytest.raises(ValueError, match="takes no bias"):
        attention("window:3")(x, bias=torch.zeros(1, 1, 9, 9))
    with pytest.raises(ValueError, match=r"not a mask of shape \(1, 1, 9, 9\)"):
        attention("window:3")(x, mask=torch.ones(1, 1, 9, 9, dtype=torch.bool))
    for mask in (torch.ones(2, 1, 1, 9), torch.ones(2, 9).bool(), padding(torch.ones(2, 8).bool())):
        for kind in ("window:3", "linear", "linformer:3"):
            with pytest.raises(ValueError, match=r"takes causal\(\) or a bool padding mask \(batch, 1, 1, 9\)"):
                attention(kind)(x, mask=mask)
    for kind in ("window:3", "linear", "linformer:3"):
        with pytest.raises(ValueError, match=r"mask of shape \(3, 1, 1, 9\) does not fit"):
            attention(kind)(x, mask=torch.ones(3, 1, 1, 9, dtype=torch.bool))
    for kind in ("window:3", "linear"):  # what these remember has no place for padding
        module = attention(kind)
        with pytest.raises(ValueError, match=r"under causal\(\) alone, not under a mask of shape \(2, 1, 1, 9\)"):
            module(x, mask=torch.ones(2, 1, 1, 9, dtype=torch.bool), cache=module.new_cache())
    with pytest.raises(ValueError, match="a mask is bool"):
        attention("bigbird:1:1:2")(x, mask=torch.ones(1, 1, 9, 9), cache=KeyValues())
    with pytest.raises(ValueError, match="no causal form"):
        attention("linformer:3")(x, mask=causal())
    with pytest.raises(ValueError, match="no causal form"):
        attention("linformer:3")(x, cache=KeyValues())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"self_attention": "linformer:8"},
            "self_attention = 'linformer:8' has no causal form.*set decoder_self",
        ),
        ({"decoder_self_attention": "linformer:8"}, "decoder_self_attention = 'linformer:8' has no causal form"),
        ({"self_attention": "window:8", "positions": "alibi"}, "positions = 'alibi' add to the scores"),
        ({"decoder_self_attention": "linear", "positions": "t5"}, "positions = 't5' add to the scores"),
        ({"self_attention": "window:2000"}, "reaches 2000 positions, more than max_length = 1024"),
        ({"self_attention": "linear", "attention_dropout": 0.1}, "attention dropout of 0.1"),
        ({"self_attention": "sliding:4"}, "unknown attention 'sliding:4'"),
        (
            {"self_attention": "linformer:9", "decoder_self_attention": "full", "max_length": 8},
            "linformer:9 projects max_length = 8",
        ),
    ],
)
def test_a_model_refuses_a_kind_where_it_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig.tiny(20, **settings)
