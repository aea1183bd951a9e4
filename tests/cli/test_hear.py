"""`regard transcribe`: sounds and folders in, four forms out; a folder is gone on with; mistakes are one line."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard import cli
from regard.api import load
from regard.data.sound import stream
from regard.tasks.transcripts import Transcript
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


@pytest.mark.parametrize("form", ["txt", "srt", "vtt", "json"])
def test_a_pipe_is_told_while_it_comes_in(model: Path, form: str) -> None:
    given = wav(noise(3))
    how = {"language": "en", "step": 0.0, "repetitive": 1e9, "improbable": -1e9, "silent": 1.0}
    told = [*load(model).listen(stream(io.BytesIO(given)), **how)]
    arguments = ["transcribe", str(model), "-", "--format", form, *HOW]
    said = CliRunner().invoke(cli.app, arguments, input=given)
    assert said.exception is None, said.exception
    segments = [segment for each in told for segment in each.segments]
    if form == "txt":
        assert said.stdout.split() == "".join(each.text for each in told).split()
    elif form == "json":
        assert [json.loads(line)["text"] for line in said.stdout.splitlines()] == [each.text for each in segments]
    else:
        assert said.stdout == Transcript("en", 3.0, (*segments,)).written(form)
    bare = CliRunner().invoke(cli.app, [*arguments, "--rate", "16000"], input=given[44:])
    assert bare.stdout == said.stdout


def test_mistakes_about_a_pipe_are_one_line(model: Path, tmp_path: Path) -> None:
    for more, given, said in (
        (("other.wav",), b"", "heard alone"),
        (("-o", tmp_path / "out"), b"", "told on stdout"),
        ((), b"", "is empty"),
        (("--rate", "7"), bytes(99), "its rate is 7 Hz"),
    ):
        found = CliRunner().invoke(cli.app, ["transcribe", str(model), "-", *map(str, more)], input=given)
        assert said in str(found.exception)


def test_a_sound_that_ends_early_is_noted(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.wav").write_bytes(wav(noise(4))[:70_000])
    said = run(model, tmp_path / "cut.wav", *HOW)
    assert said.exception is None
    assert "cut.wav ends too early, after 2.2 seconds" in said.stderr
