"""The verbs that use a model or make one: what they print, and one line for each mistake."""

import errno
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from typer.testing import CliRunner

from regard import cli
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.training.validation import Foretold

ENGLISH = ["a dog runs", "two men sit on a bench", "a woman reads", "", "the man in the hat looks at a dog"]
GERMAN = [
    "ein hund läuft",
    "zwei männer sitzen auf einer bank",
    "eine frau liest",
    "",
    "der mann mit hut sieht einen hund",
]


def show(*arguments: str, stdin: str = "") -> str:
    """The output of a command that must succeed."""
    environment = {"TERM": "dumb", "COLUMNS": "150"}
    result = CliRunner().invoke(cli.app, [*arguments], input=stdin, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Calls a command that must fail, and gives its one line; it may have `begun` to speak."""

    def run(*arguments: str, begun: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capsys.readouterr()
        assert end.value.code == 2
        assert begun or not out
        assert error.count("\n") == 1
        assert error.startswith("error: ")
        return error.strip()

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory; the model has learned nothing."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.learn(TokensConfig(size=280), ENGLISH + GERMAN)
    tokenizer.save(directory / "tokenizer.json")
    torch.manual_seed(3)
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 64}
    storage.save(Transformer(TransformerConfig.tiny(len(tokenizer), **shape)), directory)
    return directory


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "test.en").write_text("".join(f"{line}\n" for line in ENGLISH), "utf-8")
    (tmp_path / "test.de").write_text("".join(f"{line}\n" for line in GERMAN), "utf-8")
    return str(tmp_path / "test.en"), str(tmp_path / "test.de")


def test_translate_gives_a_line_for_a_line_from_files_and_from_stdin(model: Path, texts: tuple[str, str]) -> None:
    from_file = show("translate", str(model), texts[0])
    from_stdin = show("translate", str(model), stdin="".join(f"{line}\n" for line in ENGLISH))
    lines = from_file.split("\n")
    assert from_file == from_stdin
    assert len(lines) == len(ENGLISH) + 1
    assert lines[3] == ""
    assert show("translate", str(model), texts[0], texts[0]) == from_file * 2
    greedy = show("translate", str(model), texts[0], "--beam", "1").split("\n")
    assert greedy != lines


def test_evaluate_gives_what_sacrebleu_gives_of_the_same_translations(
    model: Path, texts: tuple[str, str], tmp_path: Path
) -> None:
    files = ["--source", texts[0], "--reference", texts[1]]
    output, picture = tmp_path / "said", tmp_path / "trust.svg"
    said = show("evaluate", str(model), *files, "--json", "--output", str(output), "--picture", str(picture))
    result = json.loads(said)
    lines = output.read_text("utf-8").split("\n")[:-1]
    assert len(lines) == result["sentences"] == 5
    assert result["bleu"]["score"] == pytest.approx(sacrebleu.corpus_bleu(lines, [GERMAN]).score)
    assert result["chrf"]["score"] == pytest.approx(sacrebleu.corpus_chrf(lines, [GERMAN]).score)
    assert result["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert result["perplexity"] == pytest.approx(torch.tensor(result["loss"]).exp().item(), rel=1e-5)
    assert 0 <= result["accuracy"] <= 1
    assert 0 <= result["ece"] <= 1
    assert "<svg" in picture.read_text("utf-8")
    table = show("evaluate", str(model), *files, "--tokenize", "char", "--lowercase")
    assert "tok:char" in table
    assert "case:lc" in table
    assert f"{result['perplexity']:.3f}" in table
    narrow = CliRunner().invoke(cli.app, ["evaluate", str(model), *files], env={"TERM": "dumb", "COLUMNS": "60"}).stdout
    assert "…" not in narrow
    assert f"{result['perplexity']:.3f}" in narrow


def test_a_translator_is_evaluated_with_intervals_and_beside_another(
    model: Path, texts: tuple[str, str], tmp_path: Path
) -> None:
    files = ["--source", texts[0], "--reference", texts[1]]
    other = tmp_path / "other"
    shutil.copytree(model, other)
    torch.manual_seed(4)
    storage.save(Transformer(storage.config(model)), other)  # type: ignore[arg-type]
    found = json.loads(show("evaluate", str(model), *files, "--json", "--against", str(other)))
    theirs = json.loads(show("evaluate", str(other), *files, "--json"))
    assert list(found["figures"]) == ["bleu", "chrf", "loss", "perplexity", "accuracy", "ece"] == list(found["against"])
    for name, figure in found["figures"].items():
        score, own = (x[name]["score"] if name in ("bleu", "chrf") else x[name] for x in (found, theirs))
        assert figure["score"] == pytest.approx(score)
        assert figure["low"] <= score + 1e-9
        assert figure["high"] >= score - 1e-9 or name == "ece"  # of a draw it is larger, of all lines it may be less
        assert found["against"][name]["theirs"] == pytest.approx(own)
        assert found["against"][name]["score"] == pytest.approx(score - own)
    assert found["figures"]["chrf"]["low"] < found["figures"]["chrf"]["high"]
    same = json.loads(show("evaluate", str(model), *files, "--json", "--against", str(model)))["against"]
    assert {(each["score"], each["p"]) for each in same.values()} == {(0.0, 1.0)}
    table = show("evaluate", str(model), *files, "--against", str(other))
    assert "ours less its" in table
    assert f"{found['figures']['chrf']['low']:.2f} to" in table
    Tokenizer.learn(TokensConfig("char", 0), [*ENGLISH, *GERMAN]).save(other / "tokenizer.json")
    size = len(Tokenizer.load(other / "tokenizer.json"))
    storage.save(Transformer(replace(storage.config(model), vocabulary=size)), other)  # type: ignore[type-var]
    strange = json.loads(show("evaluate", str(model), *files, "--json", "--against", str(other)))["against"]
    assert list(strange) == ["bleu", "chrf"]  # a token of one is none of the other


def test_one_pair_of_sentences_has_no_interval(model: Path, tmp_path: Path) -> None:
    (tmp_path / "one.en").write_text("a dog\n")
    files = ["--source", str(tmp_path / "one.en"), "--reference", str(tmp_path / "one.en")]
    assert "figures" not in json.loads(show("evaluate", str(model), *files, "--json"))
    assert "perplexity" in show("evaluate", str(model), *files)


def test_evaluate_gives_json_of_a_hopeless_model_too(
    model: Path, texts: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hopeless(model: Any, pairs: Any) -> Foretold:
        labels = torch.ones(sum(len(target) + 1 for _, target in pairs))
        return Foretold(-1000 * labels, labels, labels == 0)

    monkeypatch.setattr("regard.studies.evaluate.foretell_pairs", hopeless)
    command = ["evaluate", str(model), "--source", texts[0], "--reference", texts[1]]
    result = json.loads(show(*command, "--json"), parse_constant=pytest.fail)
    assert (result["loss"], result["perplexity"]) == (1000.0, None)
    assert "inf" in show(*command)


def test_evaluate_leaves_out_what_the_model_cannot_read(  # type: ignore[no-untyped-def]
    fail, model: Path, texts: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    encode = Tokenizer.load(tmp_path / "tokenizer.json").encode
    lengths = [max(len(encode(english)), len(encode(german))) for english, german in zip(ENGLISH, GERMAN, strict=True)]
    longest = max(lengths)
    files = ["--source", texts[0], "--reference", texts[1]]

    def reads(tokens: int) -> None:
        shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 64, "max_length": tokens}
        storage.save(Transformer(TransformerConfig.tiny(280, positions="learned", **shape)), tmp_path)  # type: ignore[arg-type]

    reads(longest + 1)
    assert json.loads(show("evaluate", str(tmp_path), *files, "--json"))["left_out"] == 0
    reads(longest)
    result = json.loads(show("evaluate", str(tmp_path), *files, "--json"))
    assert (result["sentences"], result["left_out"]) == (5, lengths.count(longest))
    assert "that are longer than the model reads" in " ".join(show("evaluate", str(tmp_path), *files).split())
    reads(2)
    assert "is longer than the 2 tokens the model reads" in fail("evaluate", str(tmp_path), *files)


def test_info_of_a_model_directory(model: Path) -> None:
    account = json.loads(show("info", str(model), "--json"))
    parameters = sum(p.numel() for p in storage.load(model).parameters())
    assert account["parameters"] == parameters
    assert account["config"]["d_model"] == 32


def test_recipes_and_corpora_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    names = ["quickstart", "multi30k-en-de", "multi30k-en-de-raw", "tatoeba-en-zh"]
    names += ["wmt14-en-de-base", "wmt14-en-de-big", "wmt14-en-fr-big"]
    listed = show("recipes")
    assert all(name in listed for name in names)
    assert "regard train NAME [section.key=value ...]" in listed
    assert "tatoeba-en-es" in show("data")


def test_a_recipe_is_dumped_whole_with_its_overrides() -> None:
    dumped = show("train", "quickstart", "train.steps=7", "model.positions=rope", "--dump")
    assert "steps: 7" in dumped
    assert "minutes: null" in dumped
    assert "positions: rope" in dumped


def test_mistakes_in_the_directory_of_a_model(fail, model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert "not a model directory: it has no config.json" in fail("translate", str(tmp_path), "a dog")
    assert str(tmp_path / "none") in fail("translate", str(tmp_path / "none"), "a dog")
    newer = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**newer, "format": 3}))
    assert "upgrade regard" in fail("info", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(newer))
    assert "model.safetensors" in fail("translate", str(tmp_path), "a dog")
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    assert "tokenizer.json" in fail("translate", str(tmp_path), "a dog")
    assert "cannot be changed in it" in fail("info", str(model), "heads=2")
    assert "no recipe.yaml" in fail("train", str(tmp_path))
    assert "there is no device 'warp' here" in fail("translate", str(model), "a dog", "--device", "warp")
    files = ["--source", "a", "--reference", "b"]
    assert "trust.pdf: a picture ends in .svg or .png" in fail("evaluate", str(model), *files, "--picture", "trust.pdf")
    assert "foo" in fail("evaluate", str(model), *files, "--tokenize", "foo")


YAML = """
data: {{train: {{source: {0}, target: {1}}}, hold_out: 1}}
tokens: {{size: {2}}}
model: {{preset: tiny}}
train: {{steps: 2}}
"""


def test_mistakes_in_the_data(  # type: ignore[no-untyped-def]
    fail, texts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each a line that names the file, and the place in it; and nothing half-written."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    english, german = texts
    many = tmp_path / "many.en"
    many.write_text("a line\n" * 50)
    recipe = tmp_path / "my.yaml"

    def mistake(source: str, target: str, size: int = 300) -> str:
        recipe.write_text(YAML.format(source, target, size))
        line: str = fail("train", str(recipe), "--out", str(tmp_path / "run"))
        prepared = tmp_path / "cache" / "prepared"
        assert not prepared.exists() or not list(prepared.iterdir())
        return line

    def file(content: bytes) -> str:
        (tmp_path / "bad").write_bytes(content)
        return str(tmp_path / "bad")

    assert "none.en: No such file or directory" in mistake(str(tmp_path / "none.en"), german)
    assert "bad is empty" in mistake(file(b""), german)
    assert "has 5 lines and " in mistake(english, str(many))
    assert "has 50" in mistake(english, str(many))
    assert "bad, line 2: byte 3 of the line (0xff) is not UTF-8" in mistake(
        file(b"a\nbc\xff\n" + b"x\n" * 48), str(many)
    )
    assert "bad, line 3 holds a NUL byte" in mistake(file(b"a\nb\n\0\n" + b"x\n" * 47), str(many))
    assert "too few to hold any out" in mistake(english, german)
    assert "tokens.size" in mistake(str(many), str(many), size=5000)
    assert "there is no recipe 'quickstrat': did you mean 'quickstart'?" in fail("train", "quickstrat")
    recipe.write_text("data: {corpus: multi30k-en-de}\ntrain:\n  stpes: 3\n")
    assert "my.yaml:3: unknown key 'stpes'" in fail("train", str(recipe))
    assert "expected a whole number, got 'many'" in fail("train", "quickstart", "train.steps=many")
    assert "did you mean 'tatoeba-en-es'?" in fail("data", "tatoba-en-es")
    assert "did you mean 'steps'?" in fail("train", "quickstart", "train.stpes=3")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recipe of two steps for a corpus that holds no mistake."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "many").write_text("".join(f"line {n} of many\n" for n in range(400)))
    yaml = YAML.format(tmp_path / "many", tmp_path / "many", 270).replace("hold_out: 1", "hold_out: 20")
    (tmp_path / "my.yaml").write_text(yaml)
    return str(tmp_path / "my.yaml")


def test_a_place_that_cannot_be_written_to(fail, recipe: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("mine")
    assert f"{tmp_path / 'file'}: Not a directory" in fail("train", recipe, "--out", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    if os.geteuid() == 0:
        return  # for root may write anywhere
    (tmp_path / "closed").mkdir(mode=0o500)
    closed = tmp_path / "closed" / "run"
    assert fail("train", recipe, "--out", str(closed), begun=True) == f"error: {closed}: Permission denied"


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(  # type: ignore[no-untyped-def]
    fail, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "run"
    for _ in ("as data are prepared", "as the run begins"):
        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            assert "No space left on device" in fail("train", recipe, "--out", str(run), begun=True)
        assert not run.exists() or not list(run.iterdir())
        prepare(recipes.load(recipe))  # has room again
    assert not list((tmp_path / "cache").rglob(".making-*"))
    show("train", recipe, "--out", str(run))


def test_a_run_that_is_there_is_not_overwritten_by_mistake(fail, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "notes.txt").write_text("mine")
    for more in ([], ["--overwrite"]):
        assert "not a run of regard" in fail("train", "quickstart", "--out", str(tmp_path), *more)
    (tmp_path / "recipe.yaml").write_text("a run")
    assert "is not empty: go on with it by" in fail("train", "quickstart", "--out", str(tmp_path))
    assert "leave out --out" in fail("train", str(tmp_path), "--out", "elsewhere")
    assert (tmp_path / "notes.txt").read_text() == "mine"
