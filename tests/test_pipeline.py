"""From raw text to a translator with one command, and every way in which that can go wrong."""

import gzip
import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import regard
from regard import recipe as recipes
from regard.data.dates import date_pairs
from regard.pipeline import prepare, train
from regard.training.checkpoints import read_state

LOCALES = ["en", "fr", "de", "es", "it", "pt", "nl", "sv"]
YAML = """
description: dates
data:
  train: {source: train.src, target: train.tgt}
  hold_out: 30
  max_length: 40
tokens: {kind: bpe, size: 400}
model: {preset: tiny, encoder_layers: 1, decoder_layers: 1, d_model: 32, d_ff: 64, norm: pre}
train:
  steps: 12
  batch_tokens: 512
  shards: 2
  optimiser: {name: muon}
  schedule: {name: linear, peak: 0.01, warmup: 4}
  validate_every: 6
  validate_sentences: 8
  checkpoint_every: 4
decode: {beam: 2}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of this file shares a cache, and leaves the user's alone."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parallel files of dates, and a recipe for them."""
    pairs = list(islice(date_pairs(seed=1, locales=LOCALES), 900))
    (tmp_path / "train.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (tmp_path / "train.tgt").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
    (tmp_path / "dates.yaml").write_text(YAML)
    return tmp_path


def learn(folder: Path, name: str = "run", *overrides: str, resume: bool = False) -> Path:
    recipe = recipes.load(str(folder / "dates.yaml"), overrides)
    train(recipe, folder / name, name="dates", resume=resume, console=Console(quiet=True))
    return folder / name


def test_one_recipe_in_one_model_directory_out(folder: Path) -> None:
    run = learn(folder)
    names = {"config.json", "evaluation.json", "metrics.jsonl", "model.safetensors", "recipe.yaml", "tokenizer.json"}
    assert {path.name for path in run.iterdir()} == names | {"tensorboard", "trainer"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [6, 12]
    assert lines[-1]["kind"] == "finished"
    assert (run / "tensorboard").iterdir()
    scores = json.loads((run / "evaluation.json").read_text())
    assert scores["BLEU"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")

    translator = regard.load(run)
    assert isinstance(translator.translate("5 mars 1987"), str)
    texts = ["5 mars 1987", "", "le 3 août 1623", "5. März 1987"]
    together = translator.translate(texts)
    assert together == [translator.translate(text) for text in texts]
    assert together[1] == ""
    assert translator.tokenizer.decode(translator.tokenizer.encode("5 mars")) == "5 mars"
    assert "5 mars 1987" in translator.attention_page("5 mars 1987")


def test_the_same_recipe_gives_the_same_bytes_and_its_own_dump_too(folder: Path) -> None:
    first, second = learn(folder, "first"), learn(folder, "second")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    again = recipes.load(str(first / "recipe.yaml"))
    train(again, folder / "third", name="again", console=Console(quiet=True))
    assert (first / "model.safetensors").read_bytes() == (folder / "third" / "model.safetensors").read_bytes()


def test_what_is_held_out_is_never_learned_from(folder: Path) -> None:
    data = prepare(recipes.load(str(folder / "dates.yaml")))
    held_out = {source for source, _ in [*data.valid, *data.test]}
    learned = {data.tokenizer.decode(source.tolist()) for source, _ in data.train.pairs(range(len(data.train)))}
    assert 30 <= len(held_out) <= 120
    assert len(learned) > 700
    assert not held_out & learned


def test_given_splits_compressed_files_tsv_and_jsonl_say_the_same(folder: Path) -> None:
    sources = (folder / "train.src").read_text("utf-8").splitlines()
    targets = (folder / "train.tgt").read_text("utf-8").splitlines()
    with gzip.open(folder / "train.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{n}\t{t}\t{s}\n" for n, (s, t) in enumerate(zip(sources, targets, strict=True)))
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"a": s, "b": t}) + "\n" for s, t in zip(sources, targets, strict=True))
    one = prepare(recipes.load(str(folder / "dates.yaml")))
    yaml = YAML.replace("{source: train.src, target: train.tgt}", "{tsv: train.tsv.gz, columns: [2, 1]}")
    (folder / "tsv.yaml").write_text(yaml)
    yaml = YAML.replace("{source: train.src, target: train.tgt}", "{jsonl: train.jsonl, keys: [a, b]}")
    (folder / "jsonl.yaml").write_text(yaml)
    for name in ("tsv.yaml", "jsonl.yaml"):
        other = prepare(recipes.load(str(folder / name)))
        assert (other.valid, other.test) == (one.valid, one.test)
        rows = range(len(one.train))
        for a, b in zip(one.train.pairs(rows), other.train.pairs(rows), strict=True):
            assert [x.tolist() for x in a] == [x.tolist() for x in b]


def test_long_and_empty_pairs_are_left_out_and_counted(folder: Path) -> None:
    with (folder / "train.src").open("a") as source, (folder / "train.tgt").open("a") as target:
        source.write("\n" + "1 2 3 4 5 6 7 8 9 " * 40 + "\n" + "x" * 6000 + "\n")
        target.write("1987-03-05\n1987-03-05\n1987-03-05\n")
    data = prepare(recipes.load(str(folder / "dates.yaml")))
    assert data.remarks == [
        "skipped 2 pairs: 1 with an empty side, 1 too long",
        "skipped 1 pair with a side over 40 sub-words (data.max_length)",
    ]


def test_sub_word_regularisation_cuts_words_anew_each_time_and_repeats_exactly(folder: Path) -> None:
    runs = [learn(folder, name, "tokens.dropout=0.2") for name in ("a", "b")]
    plain = learn(folder, "plain")
    weights = [(run / "model.safetensors").read_bytes() for run in (*runs, plain)]
    assert weights[0] == weights[1] != weights[2]


def test_resumed_is_the_same_model(folder: Path) -> None:
    through = learn(folder, "through")
    learn(folder, "halves", "train.steps=12")
    # As if killed after step 8: the state of step 12 and the finished model are not there.
    half = folder / "halves"
    for path in (half / "trainer").glob("step-00000012*"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    (half / "model.safetensors").unlink()
    assert read_state(half / "trainer" / "step-00000008")["learner"]["step"] == 8
    learn(folder, "halves", resume=True)
    a, b = (load_file(run / "model.safetensors") for run in (through, half))
    assert all(torch.equal(a[name], b[name]) for name in a)
    steps = [json.loads(line).get("step") for line in (half / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_a_batch_size_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.batch_size.LARGEST", 2048)
    run = learn(folder, "run", "train.batch_tokens=0", "train.steps=4")
    assert recipes.load(str(run / "recipe.yaml")).train.batch_tokens == 2048


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(folder: Path) -> None:
    through = learn(folder, "through", "train.steps=40", "train.shards=1")
    command = [sys.executable, "-m", "regard", "train", str(folder / "dates.yaml"), "train.steps=40", "train.shards=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--out", str(folder / "run")], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "step 5/" in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait() == 130
    assert f"Go on with: regard train {folder / 'run'}" in rest
    done = subprocess.run([sys.executable, "-m", "regard", "train", str(folder / "run")], env=environment)
    assert done.returncode == 0
    a, b = (load_file(run / "model.safetensors") for run in (through, folder / "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)
