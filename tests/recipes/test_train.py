"""From raw text to a translator with one command, and every way in which that can go wrong."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.corpora import letters
from regard.data.dates import date_pairs
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.recipes.train import DERIVED, train
from regard.training.checkpoints import read_state, write_state
from regard.training.loop import Learner
from regard.training.run import Trainer
from regard.training.validation import Foretold

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


def learn(folder: Path, name: str = "run", *overrides: str, resume: bool = False, overwrite: bool = False) -> Path:
    recipe = recipes.load(str(folder / "dates.yaml"), overrides)
    train(recipe, folder / name, name="dates", resume=resume, overwrite=overwrite, console=Console(quiet=True))
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
    assert scores["read"] == "sentence by sentence"

    translator = regard.load(run)
    assert isinstance(translator.translate("5 mars 1987"), str)
    texts = ["5 mars 1987", "", "le 3 août 1623", "5. März 1987"]
    together = translator.translate(texts)
    assert together == [translator.translate(text) for text in texts]
    assert together[1] == ""
    assert translator.tokenizer.decode(translator.tokenizer.encode("5 mars")) == "5 mars"
    assert "5 mars 1987" in translator.attention_page("5 mars 1987")


def test_other_measures_are_named_by_the_recipe_and_an_error_rate_is_better_lower(folder: Path) -> None:
    (folder / "held.tsv").write_text("5 mars\t1 2 3\nx\t4\n5 mars\t1 2\n5 mars\t7\n")
    held = f"data.valid={{tsv: {folder / 'held.tsv'}}}", f"data.test={{tsv: {folder / 'held.tsv'}}}"
    by = "evaluate={by: [per, exact], several: true}"
    run = learn(folder, "run", *held, by)
    figures = json.loads((run / "evaluation.json").read_text())
    assert list(figures) == ["PER", "exact", "read"]
    assert figures["PER"]["signature"] == "nrefs:var|case:mixed"
    recipe = recipes.load(str(folder / "dates.yaml"), [*held, by])
    task, data = recipe.purpose(), prepare(recipe)
    assert data.task.by == ("per", "exact")
    assert prepare(recipes.load(str(folder / "dates.yaml"), held)).task.by == ("bleu", "chrf")  # of the same arrays
    assert task.questions(data.test) == [("5 mars", ["1 2 3", "1 2", "7"]), ("x", ["4"])]
    translator = regard.load(run)
    measured = task.measure(translator, data.test, recipe)
    assert measured.score == -measured.measures["per"]
    assert list(measured.measures) == ["per", "loss", "perplexity", "accuracy"]
    whole = task.measure(translator, data.test, None)
    assert whole.evidence is not None
    assert whole.evidence.rows == 2
    assert whole.evidence.figures(np.arange(2)) == whole.measures
    assert list(whole.measures) == ["per", "exact"]
    for wrong, message in (("[blue]", "evaluate.by = 'blue'"), ("[]", "evaluate.by is empty: name at least one of")):
        with pytest.raises(ValueError, match=message):
            recipes.load(str(folder / "dates.yaml"), [f"evaluate.by={wrong}"])


def test_a_model_reads_as_its_training_lines_were_written(folder: Path) -> None:
    """Where most lines held several sentences, it reads lines; where targets have stops of their own, it keeps its."""
    decode = recipes.load(str(learn(folder, "dates", "train.steps=1") / "recipe.yaml")).decode
    assert (decode.split, decode.stops) == (True, True)
    sources, targets = (folder / "train.src", folder / "train.tgt")
    sources.write_text(
        "".join(f"{line} It was so. Was it?\n" for line in sources.read_text("utf-8").splitlines()), "utf-8"
    )
    lines = learn(folder, "lines", "train.steps=1")
    assert recipes.load(str(lines / "recipe.yaml")).decode.split is False
    assert json.loads((lines / "evaluation.json").read_text())["read"] == "line by line"
    assert regard.load(lines).reads == "line by line"
    given = learn(folder, "given", "train.steps=1", "decode.split=true")
    assert recipes.load(str(given / "recipe.yaml")).decode.split is True
    sources.write_text("".join(f"{line[:-1]}\n" for line in sources.read_text("utf-8").splitlines()), "utf-8")
    targets.write_text("".join(f"{line}.\n" for line in targets.read_text("utf-8").splitlines()), "utf-8")
    assert recipes.load(str(learn(folder, "thai", "train.steps=1") / "recipe.yaml")).decode.stops is False


def test_the_same_recipe_gives_the_same_bytes_and_its_own_dump_too(folder: Path) -> None:
    first, second = learn(folder, "first"), learn(folder, "second")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    again = recipes.load(str(first / "recipe.yaml"))
    train(again, folder / "third", name="again", console=Console(quiet=True))
    assert (first / "model.safetensors").read_bytes() == (folder / "third" / "model.safetensors").read_bytes()


def test_what_is_held_out_is_never_learned_from(folder: Path) -> None:
    data = prepare(recipes.load(str(folder / "dates.yaml")))
    held_out = {source for source, _ in [*data.valid, *data.test]}
    learned = {data.tokenizer.decode(source.tolist()) for source, _ in data.train.rows(range(len(data.train)))}
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
        for a, b in zip(one.train.rows(rows), other.train.rows(rows), strict=True):
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


@pytest.mark.parametrize("kind", ["bpe", "byte", "none"])
def test_sub_words_are_learnt_from_a_sample_and_everything_is_counted(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second pair is in other letters, and not learnt from; `none` has to know all tokens."""
    monkeypatch.setattr("regard.recipes.prepare.SAMPLE", 500)
    for side in ("src", "tgt"):
        (folder / f"train.{side}").write_text("aa bb\nxx yy\n" * 450 + "\n")
    (folder / "held").write_text("aa\n" * 9)
    held = [f"data.{split}={{source: {folder}/held, target: {folder}/held}}" for split in ("valid", "test")]
    data = prepare(recipes.load(str(folder / "dates.yaml"), [*held, f"tokens.kind={kind}", "tokens.size=264"]))
    assert data.remarks[0] == "skipped 1 pair: 1 with an empty side"
    assert len(data.train) == 900
    lengths = [len(data.tokenizer.encode(text)) for text in ("aa bb", "xx yy")]
    assert lengths == {"bpe": [2, 6], "byte": [5, 5], "none": [2, 2]}[kind]
    assert data.tokenizer.decode(data.tokenizer.encode("xx yy")) == "xx yy"


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["train.batch_tokens=8"], "a batch has 8: raise train.batch_tokens"),
        (["model.preset=lstm", "model.d_model=32", "train.recompute=feed_forward"], "has no such part"),
    ],
)
def test_a_mistake_neither_writes_nor_removes_anything(folder: Path, changes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn(folder, "new", *changes)
    assert not (folder / "new").exists()
    run = learn(folder, "old")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=message):
        learn(folder, "old", *changes, overwrite=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_that_is_there_is_left_as_it_is_unless_it_is_to_be_overwritten(folder: Path) -> None:
    run = learn(folder)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"run is not empty: go on with it by .*resume=True.*overwrite=True"):
        learn(folder, "run", "train.seed=2")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    learn(folder, "run", "train.seed=2", overwrite=True)
    assert (run / "model.safetensors").read_bytes() != before[run / "model.safetensors"]
    (run / "recipe.yaml").unlink()  # a model of another make, which has none
    with pytest.raises(ValueError, match="not a run of regard: choose another place"):
        learn(folder, "run", overwrite=True)


def test_what_was_made_from_a_model_goes_with_it(folder: Path) -> None:
    run = learn(folder)
    for resume in (True, False):
        for name in DERIVED:
            (run / name).write_text("of the model before")
        learn(folder, "run", "train.steps=16", resume=resume, overwrite=not resume)
        assert not [name for name in DERIVED if (run / name).exists()]


def test_leaks_and_what_is_skipped_in_given_splits_are_told(folder: Path) -> None:
    sources, targets = ((folder / f"train.{side}").read_text("utf-8").splitlines() for side in ("src", "tgt"))
    for side, lines in (("src", [sources[0].upper() + "!", "never seen", ""]), ("tgt", [targets[0], "a", "b"])):
        (folder / f"held.{side}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    held = [f"data.{split}={{source: {folder}/held.src, target: {folder}/held.tgt}}" for split in ("valid", "test")]
    data = prepare(recipes.load(str(folder / "dates.yaml"), held))
    leaks = sum(letters(source) == letters(sources[0]) for source in sources)
    assert data.remarks == [
        f"the source of {leaks} pair{'s' * (leaks > 1)} is in valid or test, too: take them out for honest scores",
        "valid: skipped 1 pair: 1 with an empty side",
        "test: skipped 1 pair: 1 with an empty side",
    ]
    assert len(data.train) == 900  # they are kept
    one_sided = prepare(recipes.load(str(folder / "dates.yaml"), held[:1]))  # test is held out of train
    assert one_sided.remarks[0] == data.remarks[0]


def test_a_hopeless_model_has_an_infinite_perplexity(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hopeless = Foretold(torch.tensor([-1000.0]), torch.tensor([1.0]), torch.tensor([False]))
    monkeypatch.setattr("regard.tasks.translate.foretell", lambda model, pairs, **_: hopeless)
    lines = [json.loads(line) for line in (learn(folder) / "metrics.jsonl").read_text().splitlines()]
    assert [line["perplexity"] for line in lines if line["kind"] == "validation"] == [None, None]


def test_what_is_not_saved_is_not_said_to_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "sound", lambda learner: learner.steps == 0)
    monkeypatch.setattr(Trainer, "_due", lambda trainer: trainer.interrupt())
    out = StringIO()
    recipe = recipes.load(str(folder / "dates.yaml"))
    assert not train(recipe, folder / "run", name="dates", console=Console(file=out, width=200))
    assert "stopped  after step 2; its weights are no numbers, so step 0 is the one saved. Go on with" in out.getvalue()


def test_what_a_killed_process_has_left_is_swept_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    for name, age in ((".making-old", 8), (".making-new", 6), ("old", 8), (".git", 8)):
        path = folder / "cache" / "prepared" / name
        path.mkdir(parents=True)
        os.utime(path, (then := time.time() - age * 24 * 3600, then))
    made = prepare(recipes.load(str(folder / "dates.yaml")))
    left = {path.name for path in (folder / "cache" / "prepared").iterdir()}
    assert left == {".making-new", "old", ".git", made.identity}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_preparing_twenty_times_the_text_takes_no_more_memory(folder: Path) -> None:
    """Every line has a word of its own, and as many lines of the one text as of the other are learnt from."""
    draw, sizes = Random(1), (15_000, 300_000)
    for pairs in sizes:
        for side in ("src", "tgt"):
            with (folder / f"{pairs}.{side}").open("w") as file:
                file.writelines(f"{'ab' * draw.randrange(9)} bab {draw.getrandbits(40):x}\n" for _ in range(pairs))
        (folder / f"{pairs}.yaml").write_text(YAML.replace("train.", f"{pairs}."))
    code = """if True:
        import re, sys
        from regard.recipes import prepare, reading
        prepare.SAMPLE = 15_000
        for path in sys.argv[1:]:
            prepared = prepare.prepare(reading.load(path))
            print(len(prepared.train), re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    """
    files = [str(folder / f"{pairs}.yaml") for pairs in sizes]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    (few, before), (many, after) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert many > 19 * few
    assert after - before < 40 * 1024  # KiB; all pairs as texts are 60 MiB, all their words in the learner hundreds


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


def test_what_a_run_cannot_bear_to_change_is_refused_and_the_run_stays_as_it_is(folder: Path) -> None:
    run = learn(folder)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    changes = ["model.d_model=64", "tokens.size=300", "train.ema=0.9", "train.optimiser.momentum=0.9"]
    for change in [*changes, "train.batch_tokens=256", "train.seed=2"]:
        recipe = recipes.load(str(run / "recipe.yaml"), [change])
        with pytest.raises(ValueError, match="cannot change in a run that has begun"):
            train(recipe, run, name="again", resume=True, console=Console(quiet=True))
    with (folder / "train.src").open("a") as source, (folder / "train.tgt").open("a") as target:
        source.write("5 mars 1987\n")
        target.write("1987-03-05\n")
    with pytest.raises(ValueError, match="the training data has changed"):
        train(recipes.load(str(run / "recipe.yaml")), run, name="again", resume=True, console=Console(quiet=True))
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def resumed(run: Path) -> str:
    """What a run that is gone on with says, by its own recipe.yaml."""
    out = StringIO()
    recipe = recipes.load(str(run / "recipe.yaml"))
    assert train(recipe, run, name="again", resume=True, console=Console(file=out, width=200))
    return out.getvalue()


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "recipe.yaml").read_text("utf-8")
    assert old in text
    (run / "recipe.yaml").write_text(text.replace(old, new), "utf-8")


def test_a_recipe_that_was_edited_in_its_run_is_compared_with_the_checkpoints(folder: Path) -> None:
    run = learn(folder)
    edits = (("  heads: 4", "  heads: 8"), ("  dropout: 0.1", "  dropout: 0.2"), ("seed: 1", "seed: 2"))
    for old, new in edits:
        edit(run, old, new)
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        (key, value), was = new.strip().split(": "), old.split(": ")[1]
        message = rf"\.{key} = {value} cannot change in a run that has begun with {was}: put it back in .*recipe.yaml"
        with pytest.raises(ValueError, match=message):
            resumed(run)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        edit(run, new, old)
    edit(run, "steps: 12", "steps: 16")
    edit(run, "clip: 1.0", "clip: 0.5")
    said = resumed(run)
    assert "changed  train.steps: 16, 12 until now" in said
    assert "changed  train.clip: 0.5, 1.0 until now" in said
    assert said.count("changed ") == 2
    edit(run, "steps: 16", "steps: 20")
    assert "changed  train.steps: 20, 16 until now" in (said := resumed(run))
    assert said.count("changed ") == 1


def test_a_checkpoint_of_an_older_regard_is_gone_on_with(folder: Path) -> None:
    run = learn(folder)
    for path in (run / "trainer").glob("step-*"):
        state = read_state(path)
        del state["settings"]
        write_state(path, state)
    edit(run, "steps: 12", "steps: 16")
    assert "changed" not in resumed(run)
    with pytest.raises(ValueError, match=r"train\.seed = 3 cannot change in a run that has begun with 1"):
        learn(folder, "run", "train.seed=3", resume=True)


def test_the_text_of_a_run_may_move(folder: Path) -> None:
    run = learn(folder)
    for side in ("src", "tgt"):
        (folder / f"train.{side}").rename(folder / f"moved.{side}")
        edit(run, f"train.{side}", f"moved.{side}")
    edit(run, "steps: 12", "steps: 14")
    assert "changed  data.train.source: " in resumed(run)


def test_a_second_process_in_a_run_is_refused_in_one_line(
    folder: Path, occupy: Callable[[Path], "subprocess.Popen[str]"]
) -> None:
    run = learn(folder)
    other = occupy(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for how in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(
            ValueError, match=r"another process is at work in .*run: wait for its end, or choose another"
        ):
            learn(folder, "run", "train.steps=16", **how)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    other.kill()
    other.wait()
    learn(folder, "run", "train.steps=16", resume=True)


@pytest.mark.slow
def test_two_commands_in_one_run_and_kill_9_of_the_first(folder: Path) -> None:
    """The first shares each batch between two threads; the second leaves it alone, and others go on bit for bit."""
    through = learn(folder, "through", "train.steps=60")
    regard_train, run = [sys.executable, "-m", "regard", "train"], str(folder / "run")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*regard_train, str(folder / "dates.yaml"), "train.steps=60", "--out", run]
    for attempt in range(2):
        first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert first.stdout is not None
        while "learning" not in first.stdout.readline():
            assert first.poll() is None
        if attempt == 0:
            first.send_signal(signal.SIGSTOP)  # so that it is not done before the second begins
            second = subprocess.run([*regard_train, run], capture_output=True, text=True, env=environment)
            assert (second.returncode, second.stderr.count("\n")) == (2, 1)
            assert "another process is at work in" in second.stderr
            first.send_signal(signal.SIGCONT)
            assert "learning" in first.stdout.readline()
        first.kill()
        first.communicate()
        assert not (folder / "run" / "model.safetensors").exists()
        command = [*regard_train, run]
    assert subprocess.run(command, env=environment).returncode == 0
    a, b = (load_file(run / "model.safetensors") for run in (through, folder / "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["pipe", "tmp", "saving"])
def test_what_a_killed_process_has_left_makes_no_directory_full(folder: Path, kind: str) -> None:
    (folder / "run").mkdir()
    if kind == "saving":
        (folder / "run" / ".saving").mkdir()
    elif kind == "tmp":
        (folder / "run" / ".0123456789abcdef.tmp").touch()
    else:
        os.mkfifo(folder / "run" / "pipe")
        with pytest.raises(ValueError, match="is not empty, and not a run of regard"):
            learn(folder)
        return
    learn(folder)
    assert not (folder / "run" / ".saving").exists()


def test_a_finished_run_can_be_made_longer(folder: Path) -> None:
    run = learn(folder)
    recipe = recipes.load(str(run / "recipe.yaml"), ["train.steps=16"])
    assert train(recipe, run, name="longer", resume=True, console=Console(quiet=True))
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 16


def test_which_split_a_file_is_matters(folder: Path) -> None:
    """The same two files, once as train and valid, once as train and test: other sentences are held out."""
    for side in ("src", "tgt"):
        lines = (folder / f"train.{side}").read_text("utf-8").splitlines(keepends=True)
        (folder / f"more.{side}").write_text("".join(lines[:50]), "utf-8")
    given = ["data.{}.source=" + str(folder / "more.src"), "data.{}.target=" + str(folder / "more.tgt")]
    for split in ("valid", "test"):
        data = prepare(recipes.load(str(folder / "dates.yaml"), [line.format(split) for line in given]))
        held_out = {source for source, _ in (data.test if split == "valid" else data.valid)}
        learned = {data.tokenizer.decode(source.tolist()) for source, _ in data.train.rows(range(len(data.train)))}
        assert held_out
        assert not held_out & learned


def test_learned_positions_bound_the_search(folder: Path) -> None:
    learn(folder, "run", "model.positions=learned", "model.max_length=41", "train.steps=6")


def test_a_command_that_may_be_repeated_begins_a_run_or_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int | None]] = []

    def trained(recipe: Any, directory: Path, *, resume: bool, **_: Any) -> bool:
        seen.append((resume, recipe.train.steps))
        directory.mkdir(exist_ok=True)
        (directory / "recipe.yaml").write_text(recipes.dump(recipe))
        return True

    monkeypatch.setattr("regard.recipes.train.train", trained)
    command = ["train", str(folder / "dates.yaml"), "--out", str(folder / "run"), "--resume"]
    for more in (["train.steps=5"], [], ["train.steps=7"]):
        assert CliRunner().invoke(cli.app, [*command, *more], catch_exceptions=False).exit_code == 0
    assert seen == [(False, 5), (True, 5), (True, 7)]
    with pytest.raises(ValueError, match="--resume goes on with a run and --overwrite replaces it"):
        CliRunner().invoke(cli.app, [*command, "--overwrite"], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_from_text_to_model(folder: Path, kind: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    settings = [
        f"train.distributed={kind}",
        "train.optimiser.name=adamw",
        "train.ema=0.9",
        "--out",
        str(folder / "run"),
    ]
    command = [*torchrun, "regard", "train", str(folder / "dates.yaml"), *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("saved ") == 1  # one process speaks
    assert isinstance(regard.load(folder / "run").translate("5 mars 1987"), str)
    again = subprocess.run([*torchrun, "regard", "train", str(folder / "run")], env=environment, timeout=300)
    assert again.returncode == 0
    missing = [*torchrun, "regard", "train", str(folder / "dates.yaml"), "data.train.source=none", "--out", "x"]
    failed = subprocess.run(missing, env=environment, capture_output=True, text=True, timeout=300)
    assert failed.stderr.count("error: ") == 1
    assert "none: No such file or directory" in failed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wmt14-en-de-base", "wmt14-en-de-big", "wmt14-en-fr-big"])
def test_the_papers_recipes_run(folder: Path, name: str) -> None:
    """Two steps on generated text, in small batches and with one layer; all else as in the paper."""
    (folder / "few").write_text("a\nb\n")
    sides = [(split, side) for split in ("train", "valid", "test") for side in ("source", "target")]
    files = {"source": "train.src", "target": "train.tgt"}
    settings = [f"data.{split}.{side}={folder / (files[side] if split == 'train' else 'few')}" for split, side in sides]
    settings += ["tokens.size=300", "train.steps=2", "train.batch_tokens=256", "train.validate_sentences=2"]
    settings += ["model.encoder_layers=1", "model.decoder_layers=1", "decode.beam=1", "data.limit=100"]
    recipe = recipes.load(name, settings)
    assert (recipe.train.optimiser.name, recipe.train.optimiser.betas) == ("adam", (0.9, 0.98))
    assert recipe.train.schedule.name == "paper"
    assert recipe.model.build(300).norm == "post"
    assert train(recipe, folder / "run", name=name, console=Console(quiet=True))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1] == {**lines[-1], "kind": "finished", "step": 2}


def test_a_target_that_is_written_from_its_end(folder: Path) -> None:
    forward, backward = (
        prepare(recipes.load(str(folder / "dates.yaml"), [f"data.target_order={order}"]))
        for order in ("forward", "backward")
    )
    assert forward.identity != backward.identity
    for ours, theirs in zip(forward.train.rows(range(9)), backward.train.rows(range(9)), strict=True):
        assert [*theirs[0]] == [*ours[0]]
        assert [*theirs[1]] == [*ours[1]][::-1]
    run, other = learn(folder, "forward"), learn(folder, "backward", "data.target_order=backward")
    assert regard.load(other).backward
    both = regard.load(run, rescore=other)
    assert both.translate("3 May 2020") in {h.text for h in regard.load(run).hypotheses("3 May 2020", best=2)}
    with pytest.raises(ValueError, match="an ensemble has one order"):
        regard.load([run, other])
    for wrong, message in (("data.target_order=up", "choose forward or backward"), ("tokens.dropout=0.1", "dropout")):
        with pytest.raises(ValueError, match=message):
            recipes.load(str(folder / "dates.yaml"), ["data.target_order=backward", wrong])
