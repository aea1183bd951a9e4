"""A recipe with recurrence over segments and a layer that remembers: trained, resumed, looked at, evaluated."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.decoder import Decoder, gpt_tiny
from regard.recipes import reading
from regard.recipes.train import train
from regard.studies.evaluate import foretell
from regard.tasks.generate import Generate, WriteConfig

RECIPE = """
task: {name: generate, block: 48}
data: {train: {text: text.txt}, valid: {text: held.txt}, test: {text: held.txt}}
tokens: {kind: char, size: 0}
model: {preset: llama-tiny, layers: 3, d_model: 32, d_ff: 64, heads: 2, max_length: 48,
        self_attention: "segments:8:8 memorizing:8:8:4"}
train:
  steps: 12
  batch_tokens: 384
  smoothing: 0.0
  optimiser: {name: adamw}
  checkpoint_every: 4
  validate_every: 12
  validate_sentences: 1
  shards: 2
decode: {limit: 8, sampling: null, beam: 1}
"""
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segments")
    (folder / "text.txt").write_text("".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(900)))
    (folder / "held.txt").write_text("".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(20)))
    (folder / "recipe.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        assert train(reading.load(str(folder / "recipe.yaml")), folder / "run", name="run", console=QUIET)
    return folder / "run"


def test_a_run_that_is_resumed_is_the_same_model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))
    half = tmp_path / "half"
    shutil.copytree(run, half)
    for later in ("step-00000008*", "step-00000012*"):
        shutil.rmtree(next((half / "trainer").glob(later)))  # as if killed after step 4
    (half / "model.safetensors").unlink()
    train(reading.load(str(half / "recipe.yaml")), half, name="run", resume=True, console=QUIET)
    a, b = (load_file(each / "model.safetensors") for each in (run, half))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert a["decoder.layers.1.self_attention.sublayer.efficient.gate"].abs().min() > 0  # it has learnt
    losses = [json.loads(line).get("loss") for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = [loss for loss in losses if loss is not None]
    assert known[-1] < known[0]


def test_it_looks_as_far_back_as_it_is_let(run: Path) -> None:
    losses = {block: foretell(run, run.parent / "held.txt", block, block)["loss"] for block in (8, 48, 400)}
    assert losses[8] != losses[48] != losses[400]
    assert foretell(run, run.parent / "held.txt", 48, 48) == foretell(run, run.parent / "held.txt", 48)


def test_a_model_with_so_many_places_looks_no_further_back(tmp_path: Path) -> None:
    tokens = Tokenizer.learn(TokensConfig(kind="char", size=0), ["a b c"])
    small = Decoder(gpt_tiny(len(tokens), layers=1, d_model=8, d_ff=8, heads=1, max_length=64))
    storage.save(small, tmp_path, storage.Purpose(Generate(block=64).noted(), asdict(WriteConfig())))
    tokens.save(tmp_path / "tokenizer.json")
    (tmp_path / "held.txt").write_text("a b c")
    with pytest.raises(ValueError, match="has 64 places, and looks no further back"):
        foretell(tmp_path, tmp_path / "held.txt", None, 65)


def test_it_writes_what_the_whole_text_says_comes_next(run: Path) -> None:
    generator = regard.load(run)
    ids = generator.ids("1 and 2 make 3.\n2 and 3 make 5.\n3 and")
    start = len(ids)
    while len(ids) < start + 8 and ids[-1] != generator.eos:
        ids.append(int(generator.model(torch.tensor([ids]))[0, -1].argmax()))
    written = generator.generate("1 and 2 make 3.\n2 and 3 make 5.\n3 and", limit=8, sampling=None, beam=1)
    assert generator.after(ids[:start], [i for i in ids[start:] if i != generator.eos]) == written
