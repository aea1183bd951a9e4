"""From a recipe with `changes` to a model directory that only adds to another: taught, resumed, used, merged."""

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.convert.merge import merge_directory
from regard.core.added import added, without
from regard.data.dates import date_pairs
from regard.models import storage
from regard.recipes import reading as recipes
from regard.recipes.train import train
from regard.training.checkpoints import read_state

YAML = """
data:
  train: {source: train.src, target: train.tgt}
  hold_out: 20
tokens: {kind: bpe, size: 300}
model: {preset: tiny, encoder_layers: 1, decoder_layers: 1, d_model: 32, d_ff: 64}
train:
  steps: 4
  batch_tokens: 256
  shards: 1
  optimiser: {name: adamw}
  schedule: {name: linear, peak: 0.01, warmup: 2}
  validate_every: 4
  validate_sentences: 4
  checkpoint_every: 2
decode: {beam: 1}
"""
LORA = ["changes=[{lora: {rank: 4, dropout: 0.1, where: [all]}}]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Parallel files of dates, a recipe for them, and a model that has learnt a little."""
    folder = tmp_path_factory.mktemp("changes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        pairs = list(islice(date_pairs(seed=1, locales=["en", "fr"]), 300))
        (folder / "train.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
        (folder / "train.tgt").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
        (folder / "dates.yaml").write_text(YAML)
        learn(folder, "base")
        yield folder


def learn(folder: Path, name: str, *overrides: str, resume: bool = False) -> Path:
    recipe = recipes.load(str(folder / "dates.yaml"), overrides)
    train(recipe, folder / name, name="dates", resume=resume, console=Console(quiet=True))
    return folder / name


def test_only_what_is_added_learns_and_is_kept(folder: Path) -> None:
    base = folder / "base"
    before = (base / "model.safetensors").read_bytes()
    run = learn(folder, "lora", f"model.from={base}", *LORA)
    assert (base / "model.safetensors").read_bytes() == before
    tensors = load_file(run / "model.safetensors")
    assert all(".lora." in name for name in tensors)
    assert any(x.any() for name, x in tensors.items() if ".lora.b." in name)  # it has learnt
    _, state = next(iter([(4, read_state(run / "trainer" / "step-00000004"))]))
    assert state["learner"]["model"].keys() == tensors.keys()
    assert len(state["learner"]["optimiser"]["state"]) == len(tensors)
    (kept,) = (run / "trainer" / "snapshots").glob("*.safetensors")
    assert load_file(kept).keys() == tensors.keys()
    about = json.loads((run / "config.json").read_text())
    assert about["base"]["path"] == "../base"
    assert recipes.load(str(run / "recipe.yaml")).changes == ({"lora": {"rank": 4, "dropout": 0.1, "where": ["all"]}},)
    translator = regard.load(run)
    said = translator.translate(["le 3 mai 2021", "June 5, 1999"])
    assert regard.load(run, engine="torch").translate(["le 3 mai 2021", "June 5, 1999"]) == said
    plain = regard.load(base, engine="torch").translate(["le 3 mai 2021", "June 5, 1999"])
    other = regard.load(run)
    with without(other.model):  # also in the native engine, which is made anew
        assert other.translate(["le 3 mai 2021", "June 5, 1999"]) == plain
    merge_directory(run, folder / "merged")
    assert regard.load(folder / "merged").translate(["le 3 mai 2021", "June 5, 1999"]) == said
    assert not added(storage.load(folder / "merged"))


@pytest.mark.parametrize(
    "change", ["lora: {rank: 4, dropout: 0.1}", "prefix: {length: 3, hidden: 5}", "adapter: {width: 4}"]
)
def test_resumed_is_the_same(folder: Path, change: str) -> None:
    how = [f"model.from={folder / 'base'}", f"changes=[{{{change}}}]", "train.ema=0.9"]
    kind = change.partition(":")[0]
    whole, half = (learn(folder, f"{kind}-{name}", *how) for name in ("whole", "half"))
    shutil.rmtree(half / "trainer" / "step-00000004")  # as if killed after step 2
    (half / "model.safetensors").unlink()
    learn(folder, half.name, *how, resume=True)
    assert (half / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    if kind == "prefix":  # what it was made of is left behind
        assert {name.rpartition(".")[2] for name in load_file(whole / "model.safetensors")} == {"keys", "values"}
        assert regard.load(whole).translate("June 5, 1999") is not None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["changes=[{lora: {}}]"],
            r"changes = lora: they add to a model that stays as it is, so it is named by model.from",
        ),
        (
            ["model.from={base}", "changes=[{lora: {rnak: 2}}]"],
            "the change lora has no setting 'rnak': did you mean 'rank'",
        ),
        (["model.from={base}", "changes=[{int8: {}}]"], "changes = int8: in a recipe they add parameters"),
        (["model.from={base}", "changes={lora: {}}"], "changes: expected"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(folder: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        recipes.load(str(folder / "dates.yaml"), [text.replace("{base}", str(folder / "base")) for text in overrides])
    assert "\n" not in str(caught.value)


def test_another_model_is_not_begun_with_what_only_adds(folder: Path) -> None:
    base = storage.begin(folder / "base", storage.config(folder / "base"), None, [{"ia3": {}}])
    storage.save(base, folder / "only", storage.purpose(folder / "base"))
    (folder / "only" / "tokenizer.json").write_bytes((folder / "base" / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="adds to another model: add to it by `changes`, or make one of both"):
        learn(folder, "no", f"model.from={folder / 'only'}")
    assert torch.is_grad_enabled()
