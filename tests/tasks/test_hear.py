"""Sounds from files to classes: prepared once, learnt, resumed to the bit, told; or refused in one line."""

import json
import shutil
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
from regard.data.recordings import SoundFiles
from regard.data.sound import RATE, Ear, SpecAugment, as_wav, read
from regard.data.text import Skipped
from regard.files import cache_folder
from regard.recipes import reading as recipes
from regard.recipes.train import train
from regard.studies.judging import judge
from tests.sounds import TONES, folder, tone

HEARD = {"bands": 16, "frames": 24, "even": True}
YAML = """
task: {name: hear}
data: {train: {folder: train}, test: {folder: test}, augment: {bands: 2, frames: 2, pitch: 1, later: 4}}
model: {preset: ast-tiny, bands: 16, frames: 24, patch: 8, layers: 1, d_model: 24, d_ff: 24}
train:
  steps: 40
  batch_rows: 16
  shards: 2
  smoothing: 0.0
  optimiser: {name: adamw}
  schedule: {name: linear, peak: 0.01, warmup: 4}
  validate_every: 20
  checkpoint_every: 20
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sounds")
    folder(made / "train", 40)
    folder(made / "test", 6, seed=1)
    (made / "r.yaml").write_text(YAML)
    return made


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))


def learn(place: Path, out: Path, *overrides: str, **how: Any) -> Path:
    train(recipes.load(str(place / "r.yaml"), overrides), out, name="r", console=Console(quiet=True), **how)
    return out


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        return learn(place, place / "run")


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})


def test_it_learns_what_sounds_are(place: Path, run: Path) -> None:
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["accuracy"] == {"score": pytest.approx(1.0, abs=0.06), "signature": "sounds:18"}
    task = json.loads((run / "config.json").read_text())["task"]
    assert (task["name"], task["labels"], task["sight"]) == ("hear", sorted(TONES), HEARD)
    assert not (run / "tokenizer.json").exists()
    assert judge(run, place / "test")["figures"]["accuracy"]["score"] == pytest.approx(figures["accuracy"]["score"])


def test_a_run_is_resumed_to_the_bit_and_sounds_are_prepared_once(place: Path, run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(next((again / "trainer").glob("step-*40*")))
    (again / "model.safetensors").unlink()
    prepared = {path: path.stat().st_mtime_ns for path in (cache_folder() / "prepared").glob("*/train/*.ids")}
    learn(place, again, resume=True)
    first = load_file(run / "model.safetensors")
    assert all(torch.equal(x, first[name]) for name, x in load_file(again / "model.safetensors").items())
    assert {path: path.stat().st_mtime_ns for path in (cache_folder() / "prepared").glob("*/train/*.ids")} == prepared


def test_paths_contents_and_samples_are_told_alike(place: Path, run: Path) -> None:
    hearer, path = regard.load(run), place / "test" / "high" / "0.wav"
    found = hearer.classify([path, str(path), path.read_bytes(), read(path)])
    assert len({each.logits for each in found}) == 1
    assert found[0].label == "high"
    shown = invoke("classify", run, path, place / "test" / "low")
    assert [line.split("\t")[1] for line in shown.stdout.splitlines()] == ["high", *["low"] * 6]
    row = json.loads(invoke("classify", run, path, "--json").stdout)
    assert (row["sound"], row["label"]) == (str(path), "high")


def test_what_cannot_be_heard_is_named(place: Path, run: Path, tmp_path: Path) -> None:
    long, broken = tmp_path / "long.wav", tmp_path / "broken.wav"
    long.write_bytes(as_wav(tone("low", Random(0), 0.5), RATE))
    broken.write_bytes(b"RIFF no sound")
    said = invoke("classify", run, long)
    assert "long.wav lasts 0.50 s, the model hears 0.24 s at once: cut it" in str(said.exception)
    some = invoke("classify", run, place / "test" / "low" / "0.wav", long, broken)
    assert some.exit_code == 0
    assert "2 of 3 sounds were left out" in some.stderr
    (tmp_path / "empty").mkdir()
    assert "has no sound in it" in str(invoke("classify", run, tmp_path / "empty").exception)


def test_labels_may_stand_in_a_table(tmp_path: Path) -> None:
    folder(tmp_path / "of", 1)
    (tmp_path / "rows.tsv").write_text("of/low/0.wav\t0\nof/high/0.wav\t2\nof/none.wav\t1\n")
    skipped = Skipped()
    rows = list(SoundFiles(tsv=str(tmp_path / "rows.tsv")).read(skipped))
    assert [(row["name"], row["label"]) for row in rows] == [("of/low/0.wav", "0"), ("of/high/0.wav", "2")]
    assert "sounds are named, but not there" in skipped.report()
    named = SoundFiles(tsv=str(tmp_path / "rows.tsv")).fingerprint()
    (tmp_path / "of" / "low" / "0.wav").write_bytes(as_wav(np.zeros(800, np.float32), RATE))
    assert SoundFiles(tsv=str(tmp_path / "rows.tsv")).fingerprint() != named
    with pytest.raises(ValueError, match="has 1 sounds, but not in folders"):
        list(SoundFiles(folder=str(tmp_path / "of" / "low")).read())


def test_masking_moves_and_hides_and_is_drawn_anew() -> None:
    frames = Ear(16, 24).pixels(tone("mid", Random(0)))
    kept = frames.copy()
    assert (SpecAugment().picture(frames, Random(0)) == frames).all()
    later = SpecAugment(later=4).picture(frames, Random(3))
    by = int((later.min(1) == later.max(1)).argmin())
    assert 0 < by <= 4
    assert (later[by:] == frames[: 24 - by]).all()
    heights = [float((x * np.arange(16)).sum() / x.sum()) for x in (frames - frames.min(), later - later.min())]
    assert heights[0] == pytest.approx(heights[1], abs=0.01)
    moved = SpecAugment(pitch=3).picture(frames, Random(1))
    assert not (moved == frames).all()
    assert abs(int(moved.mean(0).argmax()) - int(frames.mean(0).argmax())) in (1, 2, 3)
    lengths = {int((SpecAugment(speed=0.5).picture(frames, Random(i)).max(1) > frames.min()).sum()) for i in range(40)}
    assert min(lengths) < 17  # of 20
    assert 20 < max(lengths) <= 24  # no end is lost
    tilted = SpecAugment(tilt=1).picture(frames, Random(2)).astype(float) - frames
    assert 0 < np.abs(tilted).max() <= 0.51
    assert np.abs(tilted[:, 0] + tilted[:, -1]).max() <= 0.01
    noisy = SpecAugment(noise=1).picture(frames, Random(2))
    assert (noisy >= frames - 0.01).all()
    assert noisy[-1].std() > 0 == frames[-1].std()
    hidden = SpecAugment(bands=4, frames=4).picture(frames, Random(2))
    changed = hidden != frames
    assert changed.any()
    assert (hidden[changed] == frames.min()).all()
    assert (frames == kept).all()
    with pytest.raises(ValueError, match=r"data\.augment\.bands"):
        SpecAugment(bands=-1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["model.preset=cct-2"], "a model like cct-2 does not hear; take ast-tiny|has no setting|there is no"),
        (["train.batch_rows=null", "train.batch_tokens=100"], r"train\.batch_rows: say how many sounds"),
        (["data.train.folder=nowhere"], "is no folder"),
        (["data.augment.pitch=-1"], r"data\.augment\.pitch = -1"),
        (["task.name=transcribe"], "."),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(
    place: Path, tmp_path: Path, override: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        learn(place, tmp_path / "run", *override)


@pytest.mark.parametrize(("task", "preset"), [("hear", "cct-2"), ("transcribe", "tiny"), ("hear", "speech-tiny")])
def test_a_model_that_does_not_hear_is_refused(tmp_path: Path, task: str, preset: str) -> None:
    (tmp_path / "r.yaml").write_text(
        f"task: {{name: {task}}}\ndata: {{train: {{tsv: a.tsv}}}}\nmodel: {{preset: {preset}}}\n"
        "train: {steps: 1, batch_rows: 2}\n"
    )
    with pytest.raises(ValueError, match=f"task.name = {task}: a model like {preset} (does not hear|cannot do it)"):
        recipes.load(str(tmp_path / "r.yaml"))
