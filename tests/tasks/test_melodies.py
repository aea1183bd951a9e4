"""From ABC and MIDI files to a model that goes on with a melody, and what it writes is MIDI, WAV and ABC."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from regard import cli
from regard.data.corpora import fetched
from regard.data.melodies import tune
from regard.data.music import from_abc, from_midi, tunes
from regard.recipes import reading as recipes
from regard.recipes.train import train

YAML = """
task: {name: generate, block: 32}
data: {train: {text: tunes}, valid: {text: tunes/9.mid}, test: {text: tunes/9.mid}}
tokens: {kind: none, size: 0}
model: {preset: gpt-tiny, layers: 1, d_model: 16, d_ff: 16, heads: 2, max_length: 64}
train: {steps: 3, batch_tokens: 256, smoothing: 0.0, optimiser: {name: adamw}, schedule: {peak: 0.01}}
decode: {limit: 20}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("melodies")
    (place / "tunes").mkdir()
    (place / "tunes" / "all.abc").write_bytes(b"\n".join(tune(str(i)).written(".abc") for i in range(9)))
    (place / "tunes" / "9.mid").write_bytes(tune("9").midi())
    (place / "r.yaml").write_text(YAML)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        train(recipes.load(str(place / "r.yaml")), place / "run", name="r", console=Console(quiet=True))
    return place / "run"


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})


def test_a_melody_is_gone_on_with_and_can_be_played(run: Path, tmp_path: Path) -> None:
    prompt = "M:6/8 K:G G2 A B2 c |"
    for ending in ("mid", "wav", "abc"):
        told = invoke("generate", run, prompt, "-o", tmp_path / f"tune.{ending}", "--seed", 1)
        assert told.exit_code == 0, told.exception or told.output
        assert "6/8, G" in told.stdout
    notes = from_midi((tmp_path / "tune.mid").read_bytes()).notes
    written = from_abc((tmp_path / "tune.abc").read_text()).notes
    assert [note.pitch for note in notes[:4]] == [67, 69, 71, 72]
    sounding = [note.pitch for note in written if note.pitch is not None]
    assert [note.pitch for note in notes if note.pitch is not None] == sounding
    assert len(written) > 4
    assert (tmp_path / "tune.wav").read_bytes()[:4] == b"RIFF"
    echoed = invoke("generate", run, prompt, "--echo", "-o", tmp_path / "again.mid", "--seed", 1)
    assert echoed.exit_code == 0
    assert (tmp_path / "again.mid").read_bytes() == (tmp_path / "tune.mid").read_bytes()
    again = ("generate", run, "K:G", "-o", tmp_path / "again.mid", "--seed", 2)
    assert "again.mid exists: replace it by --overwrite" in str(invoke(*again).exception)
    assert (tmp_path / "again.mid").read_bytes() == (tmp_path / "tune.mid").read_bytes()
    assert invoke(*again, "--overwrite").exit_code == 0
    assert (tmp_path / "again.mid").read_bytes() != (tmp_path / "tune.mid").read_bytes()


def test_what_is_no_melody_is_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tune.mid"
    assert "'hello' is no note" in str(invoke("generate", run, "hello", "-o", out).exception)
    assert "holds one melody" in str(invoke("generate", run, "K:G", "-o", out, "--json").exception)
    mp3 = tmp_path / "tune.mp3"
    assert "is written as .abc, .mid, .midi, .wav" in str(invoke("generate", run, "K:G", "-o", mp3).exception)
    assert not out.exists()
    assert not mp3.exists()


def test_the_corpus_is_made_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    found = fetched("melodies")
    assert list(tunes(found["test"][0]))[3] == tune("test 3")
    recipe = recipes.load("melodies")
    assert json.dumps(recipe.settings()["tokens"]["kind"]) == '"none"'
