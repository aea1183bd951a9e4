"""Speech that is taught here: tones as words, by CTC and word by word; resumed to the bit, written down, judged."""

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
from regard.core.generation import EncoderDecoder
from regard.data.sound import RATE, as_wav, log_mel, read
from regard.models import storage
from regard.models.family import build, configure
from regard.native import Native, UnsupportedError
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.tasks.speech import Scribe, Transcribe
from tests import speech
from tests.sounds import strings, tone

YAML = """
task: {name: transcribe}
data: {train: {jsonl: train/rows.jsonl}, valid: {jsonl: test/rows.jsonl}, test: {jsonl: test/rows.jsonl}}
tokens: {kind: none, size: 0}
model: MODEL
train:
  steps: STEPS
  batch_rows: 16
  shards: 2
  smoothing: 0.0
  optimiser: {name: adamw}
  schedule: {name: linear, peak: 0.02, warmup: 4}
  validate_every: 100
  validate_sentences: 3
  checkpoint_every: 20
"""
SIZES = "bands: 16, d_model: 24, d_ff: 24"
MODELS = {
    "ctc": f"{{preset: hearing-tiny, frames: 70, layers: 1, dropout: 0.0, {SIZES}}}",
    "seq2seq": f"{{preset: speech-tiny, places: 35, encoder_layers: 1, dropout: 0.0, {SIZES}}}",
    "monotonic": f"{{preset: speech-tiny, places: 35, encoder_layers: 1, cross_normaliser: monotonic, lookahead: 2, "
    f"dropout: 0.0, {SIZES}}}",
}
STEPS = {"ctc": 300, "seq2seq": 40, "monotonic": 40}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speech")
    strings(made / "train", 160)
    strings(made / "test", 12, seed=1)
    for name, model in MODELS.items():
        (made / f"{name}.yaml").write_text(YAML.replace("MODEL", model).replace("STEPS", str(STEPS[name])))
    return made


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))


def learn(place: Path, name: str, **how: Any) -> Path:
    run = how.pop("out", place / name)
    if how or not run.exists():
        train(recipes.load(str(place / f"{name}.yaml")), run, name=name, console=Console(quiet=True), **how)
    return run


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})


def test_ctc_learns_to_write_down_what_it_hears(place: Path) -> None:
    run = learn(place, "ctc")
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["wer"]["score"] < 15
    assert figures["wer"]["signature"] == "recordings:12"
    row = json.loads((place / "test" / "rows.jsonl").read_text().splitlines()[0])
    sound = place / "test" / row["sound"]
    assert invoke("transcribe", run, sound).stdout == f"{row['text']}\n"
    assert invoke("transcribe", run, sound, "--beam", 4).stdout == f"{row['text']}\n"
    told = invoke("evaluate", run, place / "test" / "rows.jsonl")
    assert "wer" in told.stdout.lower()
    assert "beam` alone" in str(invoke("transcribe", run, sound, "--language", "en").exception)


@pytest.mark.parametrize("name", ["ctc", pytest.param("seq2seq", marks=pytest.mark.slow), "monotonic"])
def test_a_run_is_resumed_to_the_bit(place: Path, tmp_path: Path, name: str) -> None:
    run, again = learn(place, name), tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(max((again / "trainer").glob("step-*")))
    (again / "model.safetensors").unlink()
    learn(place, name, out=again, resume=True)
    first = load_file(run / "model.safetensors")
    assert all(torch.equal(x, first[key]) for key, x in load_file(again / "model.safetensors").items())
    assert isinstance(regard.load(run), Scribe)


def test_a_long_sound_is_cut_where_it_is_least_loud(place: Path) -> None:
    scribe, draw = regard.load(learn(place, "ctc")), Random(5)
    words = [draw.choice(["low", "mid", "high"]) for _ in range(9)]
    said = scribe.transcribe(np.concatenate([tone(word, draw) for word in words]))
    assert said.text == " ".join(words)
    assert len(said.segments) > 2
    assert said.segments[-1].end == pytest.approx(9 * 0.2)
    assert scribe.transcribe(np.zeros(3 * RATE, np.float32)).text == ""


def test_a_search_says_what_the_model_says_without_a_cache(place: Path) -> None:
    scribe = regard.load(learn(place, "monotonic"))
    model: Any = scribe.model
    assert isinstance(model, EncoderDecoder)
    frames = log_mel(read(place / "test" / "0.wav"), 16, 70)
    tokens, log_p = scribe.written(frames, 1)
    bos, eos = scribe.tokenizer.marks.need("bos", "eos")
    with torch.no_grad():
        logits = model(frames[None], torch.tensor([[bos, *tokens]]))[0].log_softmax(-1)
    wanted = [*tokens, eos]
    assert logits.argmax(-1).tolist() == wanted
    assert sum(float(logits[i, token]) for i, token in enumerate(wanted)) == pytest.approx(log_p, abs=1e-4)


def test_what_lies_ahead_changes_nothing(place: Path) -> None:
    """Of an encoder that looks 2 positions ahead in its layer, later frames do not reach earlier positions."""
    torch.manual_seed(0)
    for model in (
        build(configure("hearing-tiny", ["lookahead=2", "layers=1", "frames=40", "bands=16"], vocabulary=9)).eval(),
        build(configure("speech-tiny", ["lookahead=2", "encoder_layers=1", "places=20", "bands=16"], vocabulary=9)),
    ):
        x = torch.randn(1, 40, 16)
        y = x.clone()
        y[:, 30:] = 0
        heard: Any = model.eval().encode if hasattr(model, "encode") else model.features
        a, b = (each.states if hasattr(each, "states") else each for each in (heard(x), heard(y)))
        # frame 30 reaches position 14 by the convolutions, and 12 by the layer
        assert torch.equal(a[:, :12], b[:, :12])
        assert not torch.equal(a[:, 12:15], b[:, 12:15])


def test_the_engine_in_c_knows_no_such_bound_and_says_so() -> None:
    model: Any = build(configure("speech-tiny", ["lookahead=1", "places=20", "bands=16"], vocabulary=9)).eval()
    with pytest.raises(UnsupportedError, match="only so far ahead"):
        Native(model)


def test_what_does_not_fit_is_named_and_left_out(place: Path, tmp_path: Path) -> None:
    rows = strings(tmp_path / "own", 30)
    (tmp_path / "own" / "0.wav").write_bytes(as_wav(np.ones(2 * RATE, np.float32) / 9, RATE))
    (tmp_path / "own" / "1.wav").write_bytes(b"no sound")
    held = f"data.train.jsonl={rows}"
    found = prepare(recipes.load(str(place / "ctc.yaml"), [held]), tmp_path / "made")
    (said,) = found.remarks
    assert said.startswith("skipped 2 recordings: ")
    assert "lasts 2.00 s, the model hears 0.7 s at once: cut it, and others" in said
    tight = recipes.load(str(place / "ctc.yaml"), [held, "model.frames=8"])
    with pytest.raises(ValueError, match="no training recording is left"):
        prepare(tight, tmp_path / "tight")
    with pytest.raises(ValueError, match=r"train\.batch_rows: say how many recordings"):
        recipes.load(str(place / "ctc.yaml"), ["train.batch_rows=null", "train.batch_tokens=100"])


def test_a_whisper_learns_on(place: Path, tmp_path: Path) -> None:
    """It is told the language and the task as it was before, and its weights move."""
    base = speech.directory(tmp_path / "whisper")
    recipe = (place / "ctc.yaml").read_text().replace("tokens: {kind: none, size: 0}\n", "")
    recipe = recipe.replace(MODELS["ctc"], f"{{from: {base}}}").replace("steps: 300", "steps: 2")
    (place / "whisper.yaml").write_text(recipe)
    run = learn(place, "whisper")
    before, after = (load_file(each / "model.safetensors") for each in (base, run))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    known = storage.purpose(run)
    assert known is not None
    assert (known.task["multilingual"], known.task["ctc"], known.task["alignment"]) == (True, False, [[1, 0], [1, 2]])
    task, tokenizer = Transcribe(multilingual=True), speech.tokenizer()
    batch = task.collate(tokenizer, 0.0)([(np.zeros((200, 16), np.float16), np.array([1, 2, 3, 65, 66]))], Random(0))
    assert batch["target"].tolist()[0][0] == tokenizer.marks.bos
    assert batch["labels"].tolist()[0] == [-100, -100, -100, 65, 66, tokenizer.marks.eos]
    assert batch.count == 3
