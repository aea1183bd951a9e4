"""What is added to a model: at first nothing, then something, off again nothing; and on the disk only that."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.adaptation.change import amounts, apply, changed, listed, read
from regard.adaptation.lora import Lora
from regard.convert.merge import merge_directory
from regard.core.added import added, merged, own, without
from regard.core.outputs import HeadConfig
from regard.core.quantised import Int8Linear, is_quantised, quantise
from regard.models import storage
from tests.adaptation.models import CASES, CHANGES, FAMILIES, MERGED, directory_of, model_of, taught, texts


@pytest.fixture(autouse=True)
def used() -> Iterator[None]:
    """Models are used here, not taught."""
    with torch.no_grad():
        yield


@pytest.mark.parametrize(("name", "change"), CASES)
def test_it_begins_as_the_base_learns_and_is_switched_off(name: str, change: str) -> None:
    model = model_of(name)
    before = model(*texts(name))
    changed(model, [{change: CHANGES[change]}])
    if change not in ("prompt", "prefix"):  # which are read from the first step on
        assert torch.equal(model(*texts(name)), before)
    taught(model)
    after = model(*texts(name))
    assert after.shape == before.shape
    assert not torch.allclose(after, before, atol=1e-3)
    with without(model):
        assert torch.equal(model(*texts(name)), before)
    assert torch.equal(model(*texts(name)), after)
    learning = {n for n, p in model.named_parameters() if p.requires_grad}
    inside = {id(p) for part in added(model) for p in part.parameters()}
    assert learning == {n for n, p in model.named_parameters() if id(p) in inside}


@pytest.mark.parametrize(("name", "change"), CASES)
def test_it_is_stored_alone_loaded_strictly_and_merged(name: str, change: str, tmp_path: Path) -> None:
    base = directory_of(name, tmp_path / "base")
    plain = storage.load(base)(*texts(name))
    model = taught(storage.begin(base, storage.config(base), None, [{change: CHANGES[change]}])).eval()
    storage.save(model, tmp_path / "more")
    written = load_file(tmp_path / "more" / storage.WEIGHTS)
    assert written.keys() == own(model).keys()
    assert sum(x.numel() for x in written.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    again = storage.load(tmp_path / "more")
    said = model(*texts(name))
    assert torch.equal(again(*texts(name)), said)
    assert listed(again) == listed(model)
    with without(again):
        assert torch.equal(again(*texts(name)), plain)
    if change not in MERGED:
        with pytest.raises(ValueError, match="cannot be merged: a"):
            merge_directory(tmp_path / "more", tmp_path / "one")
        return
    merge_directory(tmp_path / "more", tmp_path / "one")
    one = storage.load(tmp_path / "one")
    torch.testing.assert_close(one(*texts(name)), said, atol=1e-5, rtol=0)
    assert one.state_dict().keys() == storage.load(base).state_dict().keys()
    assert not listed(one)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_several_at_once_and_one_upon_another(name: str, tmp_path: Path) -> None:
    base = directory_of(name, tmp_path / "base")
    several = [{"lora": {"rank": 2}}, {"prompt": {"length": 2}}, {"prefix": {"length": 3}}]
    several += [{"ia3": {}}, {"adapter": {"width": 4}}]
    model = taught(storage.begin(base, storage.config(base), None, several)).eval()
    storage.save(model, tmp_path / "several")
    assert torch.equal(storage.load(tmp_path / "several")(*texts(name)), model(*texts(name)))
    second = taught(storage.begin(tmp_path / "several", model.config, None, [{"lora": {"name": "more"}}])).eval()
    storage.save(second, tmp_path / "second")
    found = storage.load(tmp_path / "second")
    assert torch.equal(found(*texts(name)), second(*texts(name)))
    assert all(".more." in key for key in load_file(tmp_path / "second" / storage.WEIGHTS))


@pytest.mark.parametrize("name", ["encoder", "llama"])
def test_over_whole_numbers_which_stay_as_they_are(name: str, tmp_path: Path) -> None:
    storage.save(quantise(model_of(name)), tmp_path / "int8")
    plain = storage.load(tmp_path / "int8")
    head = HeadConfig("classes", 3)  # a new one, which is not in whole numbers
    model = taught(storage.begin(tmp_path / "int8", plain.config, head, [{"lora": {"where": ["all"]}}])).eval()
    assert is_quantised(model)
    assert not isinstance(model.output.outer, Int8Linear)
    for key, x in plain.state_dict().items():
        assert key.startswith("output.") or torch.equal(model.state_dict()[key], x)
    storage.save(model, tmp_path / "more")
    again = storage.load(tmp_path / "more")
    assert torch.equal(again(*texts(name)), model(*texts(name)))
    assert {key for key in load_file(tmp_path / "more" / storage.WEIGHTS) if ".lora." not in key} == {
        key for key, _ in model.named_parameters() if key.startswith("output.")
    }
    with pytest.raises(ValueError, match="whole numbers, which hold no sum"):
        merged(again)
    whole = storage.load(tmp_path / "more", dtype=torch.float32)
    assert not is_quantised(whole)


def test_what_is_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    base = directory_of("gpt2", tmp_path / "base")
    config = storage.config(base)
    model = taught(storage.begin(base, config, None, [{"lora": {}}]))
    storage.save(model, tmp_path / "more")
    weights = tmp_path / "more" / storage.WEIGHTS
    tensors = load_file(weights)
    first = min(tensors)
    save_file({key: x for key, x in tensors.items() if key != first}, weights)
    with pytest.raises(ValueError, match=f"has no tensor '{first}'"):
        storage.load(tmp_path / "more")
    save_file({**tensors, "stem.tokens.weight": torch.ones(50, 32)}, weights)
    with pytest.raises(ValueError, match=r"has a tensor 'stem.tokens.weight' too many"):
        storage.load(tmp_path / "more")
    save_file(tensors, weights)
    shutil.move(base, tmp_path / "moved")
    with pytest.raises(ValueError, match=r"adds to the model .*base, which is not there: put it back, or say where"):
        storage.load(tmp_path / "more")
    args = texts("gpt2")
    assert torch.equal(storage.load(tmp_path / "more", base=tmp_path / "moved")(*args), model.eval()(*args))
    other = model_of("gpt2")
    other.stem.tokens.weight.data += 1e-3
    storage.save(other, base)
    with pytest.raises(ValueError, match=r"adds to another model than that in .*base: its digest is"):
        storage.load(tmp_path / "more")
    with pytest.raises(ValueError, match="adds to no other model: leave out base"):
        storage.load(base, base=tmp_path / "moved")


def test_how_a_model_is_used_is_no_part_of_its_digest(tmp_path: Path) -> None:
    base = model_of("gpt2")
    storage.save(base, tmp_path / "base", storage.Purpose({"name": "generate"}, {}))
    storage.save(storage.begin(tmp_path / "base", base.config, None, [{"ia3": {}}]), tmp_path / "more")
    storage.use_so(tmp_path / "base", limit=3)
    storage.load(tmp_path / "more")
    about = json.loads((tmp_path / "more" / storage.CONFIG).read_text())
    assert about["base"]["path"] == "../base"
    assert about["changes"] == [{"ia3": {"where": ["key", "value", "outer"], "name": "ia3"}}]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (
            [{"lora": {"rank": 33, "where": ["output"]}}],
            "rank = 33: the output of decoder.layers.0.* is 32 x 32, choose",
        ),
        ([{"lora": {"where": ["gate"]}}], "lora finds nothing to change: a Decoder model has no product gate"),
        ([{"lora": {}}, {"lora": {}}], "something called 'lora' already: give each change a name of its own"),
        ([{"lora": {"rnak": 3}}], "the change lora has no setting 'rnak': did you mean 'rank'"),
        ([{"lora": {"rank": "many"}}], "lora.rank = 'many': expected a whole number"),
        ([{"prefix": {"hidden": "wide"}}], "prefix.hidden = 'wide': expected a whole number"),
        ([{"loro": {}}], "unknown change 'loro': did you mean 'lora'"),
        ([{"lora": {"where": ["querry"]}}], "where = 'querry': no product is called so; did you mean 'query'"),
        ([{"lora": {"where": "query"}}], "where = 'query': it is a list of products"),
        ([{"lora": {"rank": 0}}], "rank = 0: it must be at least 1"),
        ([{"prompt": {"length": 40}}], "length = 40: the model has 40 positions, and a text needs some"),
        ([{"prefix": {"where": ["cross"]}}], "prefix finds nothing to change: a Decoder has no attention cross"),
        ([{"prompt": {}}, {"prompt": {}}], "something called 'prompt' already"),
        ([{"adapter": {"kind": "parallel"}}], "kind = 'parallel': choose houlsby or pfeiffer"),
        ([{"lora": {}}, {"int8": {}}], "no whole numbers under what was added to a model: merge it first"),
        (["lora"], "changes = .*: they are a list of objects with one name each"),
    ],
)
def test_changes_that_do_not_fit(listed: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(model_of("gpt2"), listed)


def test_a_model_without_biases_has_none_to_move() -> None:
    with pytest.raises(ValueError, match="biases finds nothing to change: this Decoder model has none"):
        changed(model_of("llama"), [{"biases": {}}])
    with pytest.raises(ValueError, match="there is something called 'bias' already"):
        changed(model_of("llama"), [{"lora": {"name": "bias"}}])


def test_a_merged_model_has_what_was_not_changed_in_common_with_the_other() -> None:
    model = taught(changed(model_of("gpt2"), [{"lora": {"where": ["query"]}}]))
    before = {name: x.clone() for name, x in model.state_dict().items()}
    one = merged(model)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    ours, theirs = dict(model.named_parameters()), dict(one.named_parameters())
    apart = {name for name, p in theirs.items() if p is not ours[name]}
    assert apart == {name for name in theirs if ".query_key_value." in name}


def test_of_biases_that_are_zero_no_share_is_told() -> None:
    model = model_of("encoder")
    for name, p in model.named_parameters():
        p.data *= not name.endswith("bias")
    found = amounts(taught(changed(model, [{"biases": {}}])), "shift")
    assert {share for _, _, share in found} == {None}


@pytest.mark.parametrize("name", FAMILIES)
def test_lora_is_what_the_paper_says(name: str) -> None:
    model = model_of(name)
    (change,) = read([{"lora": {"rank": 4, "alpha": 6, "where": ["query", "value"]}}])
    assert change == Lora(4, 6, where=["query", "value"])
    apply(change, model)
    assert asdict(change)["stabilised"] is False
    for part in added(model):
        assert set(part.b) <= {"query", "value"}
        assert all(b.eq(0).all() for b in part.b.values())
        assert part.scale == 1.5
    taught(model)
    product = next(m for m in model.modules() if hasattr(m, "lora"))
    x, part = torch.randn(3, product.in_features), product.lora
    expected = torch.nn.functional.linear(x, product.weight, product.bias)
    for role, at in part.rows.items():
        expected[:, at] += 1.5 * x @ part.a[role].T @ part.b[role].T
    torch.testing.assert_close(product(x), expected)
    assert Lora(16, 8, stabilised=True).scale == 2.0
