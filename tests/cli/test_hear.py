"""`regard transcribe`: sounds and folders in, four forms out; a folder is gone on with; mistakes are one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard import cli
from regard.api import load
from tests.data.test_sound import wav
from tests.speech import directory, noise

HOW = ("--language", "en", "--step", "0", "--repetitive", "1e9", "--improbable", "-1e9", "--silent", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return directory(tmp_path_factory.mktemp("whisper") / "toy")


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    for name, seed in (("one.wav", 1), ("two.wav", 2), ("deep/two.wav", 3)):
        path = tmp_path / "sounds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav(noise(2.5, seed)))
    return tmp_path / "sounds"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.app, ["transcribe", *map(str, arguments)])


def test_one_sound_in_every_form(model: Path, sounds: Path) -> None:
    sound = sounds / "one.wav"
    how = {"language": "en", "step": 0.0, "repetitive": 1e9, "improbable": -1e9, "silent": 1.0}
    said = load(model).transcribe(sound, **how)
    assert said.segments
    for form in ("txt", "srt", "vtt"):
        assert run(model, sound, "--format", form, *HOW).stdout == said.written(form)
    whole = json.loads(run(model, sound, "--format", "json", *HOW).stdout)
    assert whole == {"file": str(sound), **json.loads(said.written("json"))}


def test_a_folder_is_gone_on_with(model: Path, sounds: Path, tmp_path: Path) -> None:
    (sounds / "bad.wav").write_bytes(b"no sound")
    out = tmp_path / "out"
    first = run(model, sounds, "-o", out, "--format", "txt,json", *HOW)
    assert "1 of 4 sounds could not be heard" in str(first.exception)
    assert "bad.wav is no sound that can be read" in first.stderr
    names = {"one.txt", "one.json", "two.txt", "two.json", "deep/two.txt", "deep/two.json"}
    assert {str(path.relative_to(out)) for path in out.rglob("*.*") if path.is_file()} - {
        ".transcripts.progress"
    } == names
    again = run(model, sounds, "-o", out, "--format", "txt,json", *HOW)
    assert "exists: go on with" in str(again.exception)
    other = run(model, sounds, "-o", out, "--format", "txt,json", "--resume", *HOW, "--beam", "2")
    assert "was begun with beam = 1, not 2" in str(other.exception)
    (sounds / "bad.wav").write_bytes(wav(noise(2.5, 4)))
    (out / "two.json").unlink()
    stamp = (out / "one.txt").stat().st_mtime_ns
    last = run(model, sounds, "-o", out, "--format", "txt,json", "--resume", *HOW)
    assert last.exception is None
    assert (out / "one.txt").stat().st_mtime_ns == stamp
    assert (out / "two.json").exists()
    assert (out / "bad.txt").exists()
    assert not (out / ".transcripts.progress").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing.wav",), "nothing.wav is not there"),
        (("one.wav", "--format", "doc"), "format 'doc'"),
        (("one.wav", "--resume"), "name a folder for them by -o"),
        (("one.wav", "--language", "xx"), "language = 'xx'"),
        (("empty",), "has no sound in it"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str, model: Path, sounds: Path) -> None:
    (sounds / "empty").mkdir()
    found = run(model, sounds / arguments[0], *arguments[1:])
    assert said in str(found.exception)
    assert "\n" not in str(found.exception)
