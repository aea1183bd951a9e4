"""The model that comes with regard, by default and by name, and how an argument is told from a file of text."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.shipped import located, shipped

TEXT = ["a dog runs", "two men sit on a bench"]
NOTE = "note: by en-es, the model that comes with regard\n"
Fail = Callable[..., str]


def make(directory: Path, seed: int) -> Path:
    """A model directory; the model has learned nothing, and its outputs are short."""
    directory.mkdir(parents=True)
    tokenizer = Tokenizer.learn(TokensConfig("char", size=0), TEXT)
    tokenizer.save(directory / "tokenizer.json")
    torch.manual_seed(seed)
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 32, "heads": 2}
    storage.save(Transformer(TransformerConfig.tiny(len(tokenizer), **shape)), directory)
    (directory / "recipe.yaml").write_text("data: {corpus: tatoeba-en-es}\ntrain: {steps: 1}\ndecode: {extra: 4}\n")
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`shipped/en-es`, and `other`, which says other things."""
    place = tmp_path_factory.mktemp("models")
    make(place / "shipped" / "en-es", seed=1)
    make(place / "other", seed=2)
    return place


@pytest.fixture(autouse=True)
def here(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose model is small, and a directory to work in, with a text."""
    monkeypatch.setattr("regard.shipped.SHIPPED", models / "shipped")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in TEXT))
    return tmp_path


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """Calls a command that must fail, and gives its one line."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capsys.readouterr()
        assert (end.value.code, out, error.count("\n")) == (2, "", 1)
        return error.removeprefix("error: ").strip()

    return call


def run(*arguments: object, stdin: str = "") -> tuple[str, str]:
    """Output and notes of a command that must succeed."""
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def said(directory: Path) -> str:
    return "".join(f"{line}\n" for line in regard.load(directory).translate(TEXT))


def test_the_two_models_say_different_things(models: Path) -> None:
    assert said(models / "shipped" / "en-es") != said(models / "other")


def test_load_without_a_name_and_by_name(models: Path, here: Path) -> None:
    expected = regard.load(models / "shipped" / "en-es").translate(TEXT)
    assert regard.load().translate(TEXT) == regard.load("en-es").translate(TEXT) == expected
    shutil.copytree(models / "other", here / "en-es")  # a directory of one's own
    assert regard.load("en-es").translate(TEXT) == regard.load(models / "other").translate(TEXT) != expected
    assert regard.load().translate(TEXT) == expected


def test_only_a_bare_name_is_looked_up(models: Path) -> None:
    assert located("en-es") == located(None) == shipped() == models / "shipped" / "en-es"
    for name in ("../other", "shipped/en-es", "en-fr", "x" * 5_000, "\0"):
        assert located(name) == Path(name)
    with pytest.raises(ValueError, match="en-fr is not a directory"):
        regard.load("en-fr")


def test_an_installation_without_the_model_says_so(here: Path, monkeypatch: pytest.MonkeyPatch, fail: Fail) -> None:
    monkeypatch.setattr("regard.shipped.SHIPPED", here / "nowhere")
    with pytest.raises(ValueError, match="comes without the model en-es: name a model directory"):
        regard.load()
    assert "comes without the model en-es" in fail("translate", "text")


def test_translate_by_the_shipped_model(models: Path) -> None:
    expected = said(models / "shipped" / "en-es")
    stdin = "".join(f"{line}\n" for line in TEXT)
    assert run("translate", stdin=stdin) == (expected, NOTE)
    assert run("translate", "-", stdin=stdin) == (expected, NOTE)
    assert run("translate", "text") == (expected, NOTE)
    assert run("translate", "text", "text") == (expected * 2, NOTE)
    assert run("translate", "en-es", "text") == (expected, "")  # which was asked for
    assert run("translate", "en-es", stdin=stdin) == (expected, "")


def test_a_directory_is_the_model_and_a_file_is_text(models: Path, here: Path) -> None:
    other = said(models / "other")
    assert run("translate", models / "other", "text") == (other, "")
    shutil.copytree(models / "other", here / "en-es")
    assert run("translate", "en-es", "text") == (other, "")
    shutil.rmtree(here / "en-es")
    (here / "en-es").write_text(f"{TEXT[0]}\n")  # a file, though it has a model's name
    first = said(models / "shipped" / "en-es").split("\n")[0]
    assert run("translate", "en-es") == (f"{first}\n", NOTE)


def test_what_is_neither_is_one_line_with_both_readings(here: Path, fail: Fail) -> None:
    for wrong in ("missing.txt", "runs/none", "x" * 5_000 + ".txt"):
        told = fail("translate", wrong)
        assert told.startswith(wrong[:500])  # a long one is cut in the middle
        assert f"{wrong[-9:]} is neither a model directory nor a text file" in told
    (here / "empty").mkdir()
    assert "empty is not a model directory: it has no config.json" in fail("translate", "empty", "text")
    assert "text is not a directory" in fail("translate", "en-es", "--ensemble", "text")


def test_score_by_the_shipped_model(models: Path) -> None:
    files = ("--source", "text", "--target", "text")
    assert run("score", *files) == run("score", "en-es", *files) == run("score", models / "shipped" / "en-es", *files)
    assert run("score", *files) != run("score", models / "other", *files)


def test_what_is_shipped_is_small_and_whole() -> None:
    place = Path(regard.__file__).parent / "shipped" / "en-es"
    files = {file.name: file.stat().st_size for file in place.rglob("*") if file.is_file()}
    if not place.is_dir():
        return
    assert sum(files.values()) <= 6_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "README.md"} <= files.keys()
