"""A model without some heads says what the whole one says while these are silent, and everything else still works."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.adaptation.change import Int8, apply, changed, listed
from regard.adaptation.prune import Headless, Prune, kept_keys, of_text, prune, read_heads
from regard.core.attention import MultiHeadAttention
from regard.core.mixers import AttentionConfig
from regard.core.quantised import quantise
from regard.inspection.taps import attentions, edit, record
from regard.models import family, storage
from regard.models.costs import activations, footprint, parameters
from regard.models.transformer import Transformer, TransformerConfig

SOURCE = torch.tensor([[5, 9, 3, 7, 2, 4], [8, 6, 1, 0, 0, 0]])
TARGET = torch.tensor([[1, 4, 4, 9], [1, 7, 2, 0]])
ENCODER = "encoder.layers.0.self_attention"
DECODER = "decoder.layers.1.self_attention"
CROSS = "decoder.layers.0.cross_attention"
SOME = {ENCODER: (1,), "encoder.layers.1.self_attention": (0, 3), DECODER: (0, 2, 3), CROSS: (3,)}
ALL = (0, 1, 2, 3)
NONE_LEFT = {"encoder.layers.1.self_attention": ALL, "decoder.layers.0.self_attention": ALL, CROSS: ALL, DECODER: (2,)}
KINDS = {
    "plain": {},
    "pre": {"norm": "pre", "norm_kind": "rms"},
    "grouped": {"kv_heads": 2},
    "one-key": {"kv_heads": 1},
    "shaw": {"positions": "shaw"},
    "t5": {"positions": "t5", "kv_heads": 2},
    "rope": {"positions": "rope"},
    "alibi": {"positions": "alibi"},
    "odd": {"d_k": 6, "d_v": 3, "bias": False, "scale": 0.3},
}


def build(seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    config = TransformerConfig(10, d_model=16, d_ff=24, heads=4, encoder_layers=2, decoder_layers=2).but(**changes)
    model = Transformer(config).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
    return model


def silenced(model: Transformer, heads: dict[str, tuple[int, ...]]) -> Tensor:
    with edit(model, {name: dict.fromkeys(numbers, 0.0) for name, numbers in heads.items()}):
        return model(SOURCE, TARGET)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def step_by_step(model: Transformer) -> Tensor:
    memory, cache = model.encode(SOURCE), model.new_cache()
    logits = []
    for t in range(TARGET.shape[1]):
        logits.append(model.decode(TARGET[:, t : t + 1], memory, cache))
        assert cache.length == t + 1
    return torch.cat(logits, 1)


@pytest.mark.parametrize("heads", [SOME, NONE_LEFT], ids=["some", "all-of-some"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_model_with_silent_heads(kind: str, heads: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    model = build(**KINDS[kind])
    whole = model(SOURCE, TARGET)
    expected = silenced(model, heads)
    smaller = prune(model, heads)
    close(smaller(SOURCE, TARGET), expected)
    close(step_by_step(smaller), expected)
    assert not torch.allclose(expected, whole, atol=1e-3)
    close(model(SOURCE, TARGET), whole)  # the old one is as it was

    storage.save(smaller, tmp_path / "model")
    again = storage.load(tmp_path / "model")
    assert again.config == smaller.config == model.config
    assert again.changes == smaller.changes
    assert parameters(storage.shape(tmp_path / "model")) == sum(p.numel() for p in smaller.parameters())
    assert torch.equal(again(SOURCE, TARGET), smaller(SOURCE, TARGET))


def test_is_smaller_by_what_the_heads_had() -> None:
    model = build()
    smaller = prune(model, SOME)
    per_head = 4 * 16 * 4 + 3 * 4  # W_Q, W_K, W_V, W_O, and the biases of the first three
    assert parameters(model.config) - parameters(smaller) == 7 * per_head
    assert [attention.heads for attention in attentions(smaller).values()] == [3, 2, 4, 3, 1, 4]
    smaller = smaller.float().to("meta")
    before, after = footprint(model.config), footprint(smaller)
    assert before.cache_per_target_token - after.cache_per_target_token == 3 * 2 * 4 * 4
    assert before.cache_per_source_token - after.cache_per_source_token == 1 * 2 * 4 * 4
    assert activations(smaller) < activations(model.config)


@pytest.mark.parametrize("kind", ["grouped", "alibi", "t5", "shaw"])
def test_pruning_twice_is_pruning_once(kind: str) -> None:
    model = build(**KINDS[kind])
    once = prune(model, {ENCODER: [0, 2], DECODER: [1, 2]})
    twice = prune(prune(model, {ENCODER: [2], DECODER: [1]}), {ENCODER: [0], DECODER: [1]})  # numbers of the second
    assert twice.changes == once.changes == [Prune({ENCODER: [1, 3], DECODER: [0, 3]})]
    close(twice(SOURCE, TARGET), once(SOURCE, TARGET))


@pytest.mark.parametrize("name", [ENCODER, CROSS])
def test_keys_that_were_copied_become_one_again(name: str, tmp_path: Path) -> None:
    """Of 8 heads that share 2 keys, 6 need a copy, and the 4 of one key need it once."""
    model = build(heads=8, kv_heads=2)
    once = prune(model, {name: [4, 5]})
    assert attentions(once)[name].kv_heads == 3
    twice = prune(once, {name: [4, 5]})
    close(twice(SOURCE, TARGET), silenced(model, {name: (4, 5, 6, 7)}))
    storage.save(twice, tmp_path / "model")
    assert torch.equal(storage.load(tmp_path / "model")(SOURCE, TARGET), twice(SOURCE, TARGET))
    with torch.no_grad():
        product = attentions(once)[name].key_value if name == CROSS else attentions(once)[name].query_key_value
        product.weight[-6] += 1.0  # the last of the values of the first two keys, of three of width 2
        product.weight[-3] += 1.0
    with pytest.raises(ValueError, match="key/value heads 0 and 1 were one, and have been trained apart since"):
        prune(once, {name: [4, 5]})
    close(prune(once, {name: [0, 2, 4]})(SOURCE, TARGET), silenced(once, {name: (0, 2, 4)}))


def test_a_shared_table_stays_shared() -> None:
    smaller = prune(build(positions="t5"), SOME)
    first, second = (layer.self_attention.sublayer.positions for layer in smaller.encoder.layers)
    assert first.table is second.table
    assert (first.heads, second.heads) == ([0, 2, 3], [1, 2])


@pytest.mark.parametrize("heads", [SOME, NONE_LEFT], ids=["some", "all-of-some"])
def test_whole_numbers_stay_the_same_whole_numbers(heads: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    model = quantise(build(kv_heads=2).float())
    assert isinstance(model, Transformer)
    expected = silenced(model, heads)
    smaller = prune(model, heads)
    torch.testing.assert_close(smaller(SOURCE, TARGET), expected, atol=1e-5, rtol=0)
    storage.save(smaller, tmp_path / "int8")
    assert torch.equal(storage.load(tmp_path / "int8")(SOURCE, TARGET), smaller(SOURCE, TARGET))


def test_a_smaller_model_learns_and_is_looked_into() -> None:
    smaller = prune(build(positions="shaw", kv_heads=2), NONE_LEFT).train()
    smaller(SOURCE, TARGET).sum().backward()
    assert all(p.grad is not None for p in smaller.parameters())
    with record(smaller.eval()) as seen:
        smaller(SOURCE, TARGET)
    assert {name: weights.shape[1] for name, weights in seen.weights.items()} == {
        ENCODER: 4,
        DECODER: 3,
        "decoder.layers.1.cross_attention": 4,
    }


def test_keys_serve_the_same_number_of_queries() -> None:
    assert kept_keys(4, 4, [0, 3]) == [0, 3]
    assert kept_keys(8, 1, [2, 5, 6]) == [0]
    assert kept_keys(8, 4, [0, 1, 2, 3, 6]) == [0, 0, 1, 1, 3]  # two readers, two readers, one
    assert kept_keys(8, 2, []) == []


def test_headless_counts_positions() -> None:
    nothing = Headless(MultiHeadAttention(AttentionConfig(16, 4, bias=False)))
    assert nothing(torch.ones(2, 3, 16)).eq(0).all()
    assert not list(nothing.parameters())


def test_heads_as_text() -> None:
    heads = {ENCODER: (1, 3), CROSS: ()}
    assert read_heads(f"{ENCODER}:3,1,1 {CROSS}:") == heads
    assert of_text(f"{ENCODER}:1,3 {CROSS}:") == Prune({ENCODER: [1, 3], CROSS: []})
    assert of_text("") is None
    assert read_heads("  ") == {}
    for text in (ENCODER, f"{ENCODER}:a", f"{ENCODER}:-1", ":1", f"{ENCODER}:1;2"):
        with pytest.raises(ValueError, match="names no heads"):
            read_heads(text)
    with pytest.raises(ValueError, match="named twice"):
        read_heads(f"{ENCODER}:1 {ENCODER}:2")


def test_mistakes_are_named() -> None:
    model = build()
    with pytest.raises(ValueError, match=r"no attention is named 'encoder.0': (did you mean|there are)"):
        prune(model, {"encoder.0": [1]})
    with pytest.raises(ValueError, match=r"has heads 0\.\.3, not 4"):
        prune(model, {ENCODER: [4]})
    with pytest.raises(ValueError, match="a Linear model has no heads to prune"):
        prune(torch.nn.Linear(2, 2), {})
    for listed_, message in (
        ([{"prune": {"kept": {ENCODER: [0, 9]}}}], r"encoder\.layers\.0\.self_attention has heads 0\.\.3, not 9"),
        ([{"prune": {"kept": {"encoder": [0]}}}], "no attention is named 'encoder'"),
        ([{"prune": {"kept": [0]}}], r"kept = \[0\]: it is the heads of each attention by name"),
        ([{"prune": {"kept": {ENCODER: 3}}}], "kept = .*: it is the heads of each attention by name"),
        ([{"prune": {"kept": {ENCODER: ["a"]}}}], "kept = .*: it is the heads of each attention by name"),
        ([{"prune": {}}], "the change prune has no value for 'kept': give it one"),
        ([{"int8": {"bits": 4}}], "the change int8 has no setting 'bits', nor any other"),
        ([{"prunes": {}}], "unknown change 'prunes': did you mean 'prune'"),
        ([{}], r"changes = \[{}\]: they are a list of objects with one name each"),
        ("int8", "changes = 'int8': they are a list of objects"),
    ):
        with pytest.raises(ValueError, match=message):
            changed(build(), listed_)  # type: ignore[arg-type]


def test_changes_are_noted_in_their_order_and_made_again() -> None:
    model = build(positions="t5", kv_heads=2).float()
    smaller = apply(Int8(), prune(model, SOME))
    assert listed(smaller) == [
        {"prune": {"kept": {name: [*left(heads)] for name, heads in SOME.items()}}},
        {"int8": {}},
    ]
    again = changed(build(positions="t5", kv_heads=2).float(), listed(smaller))
    assert torch.equal(again(SOURCE, TARGET), smaller(SOURCE, TARGET))
    with torch.device("meta"):
        blank = Transformer(model.config)
    shapes = {name: x.shape for name, x in changed(blank, listed(smaller)).state_dict().items()}
    assert shapes == {name: x.shape for name, x in smaller.state_dict().items()}
    assert changed(build(), [{"prune": {"kept": {ENCODER: [*ALL]}}}]).state_dict().keys() == build().state_dict().keys()
    assert listed(build()) == []


def left(gone: tuple[int, ...]) -> list[int]:
    return [head for head in ALL if head not in gone]


@pytest.mark.parametrize("preset", ["convs2s", "linear-rnn"])
def test_any_family_may_lose_heads(preset: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = family.build(family.configure(preset, ["heads=4"], vocabulary=10)).double().eval()
    name = next(iter(attentions(model)))
    smaller = prune(model, {name: (1, 2)})
    with edit(model, {name: {1: 0.0, 2: 0.0}}):
        close(smaller(SOURCE, TARGET), model(SOURCE, TARGET))
    storage.save(smaller, tmp_path)
    assert torch.equal(storage.load(tmp_path)(SOURCE, TARGET), smaller(SOURCE, TARGET))


def test_a_directory_of_format_1_is_read(tmp_path: Path) -> None:
    smaller = prune(build(positions="alibi"), {ENCODER: [0, 2], DECODER: ALL})
    storage.save(smaller, tmp_path)
    path = tmp_path / "config.json"
    about = json.loads(path.read_text())
    del about["changes"]
    about["format"], about["config"]["kept_heads"] = 1, f"{ENCODER}:1,3 {DECODER}:"
    path.write_text(json.dumps(about))
    again = storage.load(tmp_path)
    assert torch.equal(again(SOURCE, TARGET), smaller(SOURCE, TARGET))
    assert again.changes == smaller.changes
