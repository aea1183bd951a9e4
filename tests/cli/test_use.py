"""`regard translate` and `regard score`: what is written, going on when interrupted, and one line for a mistake."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.api import Translator
from regard.cli.bulk import Bar
from regard.cli.options import command_of
from regard.cli.use import AnswerForm, translate
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.recipes.shortlist import make_shortlist
from regard.tasks.asks import SETTINGS, Answer, Ask, Score, Settings, Translation

TEXT = ["a dog runs. Two men sit.", "", "   ", "two men sit on a bench", "  a woman reads", "the man looks at a dog"]
Fail = Callable[..., str]


def run(*arguments: object, stdin: str | bytes = "") -> Any:
    environment = {"TERM": "dumb", "COLUMNS": "150"}
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli.app, words, input=stdin, env=environment, catch_exceptions=False)


def show(*arguments: object, stdin: str | bytes = "") -> str:
    """The output of a command that must succeed."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


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
        assert error.startswith("error: ")
        return error.strip()

    return call


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory; the model has learned nothing, and its outputs are short."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.learn(TokensConfig("char", size=0), [*TEXT, ",x"])
    tokenizer.save(directory / "tokenizer.json")
    torch.manual_seed(3)
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 32, "heads": 2}
    storage.save(Transformer(TransformerConfig.tiny(len(tokenizer), **shape)), directory)
    (directory / "recipe.yaml").write_text(
        "data: {corpus: tatoeba-en-es, max_length: 30}\ntrain: {steps: 1}\ndecode: {extra: 4}\n"
    )
    return directory


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return regard.load(model)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{line}\n" for line in TEXT), "utf-8")
    return file


def test_every_setting_is_an_option_but_a_prefix() -> None:
    assert {name for name in SETTINGS if name not in command_of(translate).__annotations__} == {"prefix"}


def test_a_line_for_a_line_from_files_and_pipes(
    model: Path, translator: Translator, text: Path, tmp_path: Path
) -> None:
    expected = "".join(f"{said}\n" for said in translator.translate(TEXT))
    assert show("translate", model, text) == expected
    assert show("translate", model, stdin=text.read_bytes()) == expected
    assert show("translate", model, text, text) == expected * 2
    (tmp_path / "in.gz").write_bytes(gzip.compress(text.read_bytes()))
    assert show("translate", model, tmp_path / "in.gz") == expected
    show("translate", model, text, "-o", tmp_path / "out" / "said.txt")
    assert (tmp_path / "out" / "said.txt").read_text("utf-8") == expected
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["said.txt"]
    assert show("translate", model, text, "--stream") == expected
    assert show("translate", model, text, "--engine", "torch", "--bitwise", "--rows", "4") == expected


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--beam", "1"], {"beam": 1}),
        (["--beam", "6", "--groups", "3", "--diversity", "2"], {"beam": 6, "groups": 3, "diversity": 2.0}),
        (["--alpha", "2", "--penalty", "mean"], {"alpha": 2.0, "penalty": "mean"}),
        (["--patience", "0.5", "--extra", "1"], {"patience": 0.5, "extra": 1}),
        (["--sample", "0.8", "--top-k", "9", "--seed", "4"], {"temperature": 0.8, "top_k": 9, "seed": 4}),
        (["--top-p", "0.9"], {"top_p": 0.9}),
        (["--min-p", "0.1", "--typical", "0.9"], {"min_p": 0.1, "typical": 0.9}),
        (["--mbr", "5"], {"mbr": 5}),
        (["--shortest", "9", "--block", "2", "--repetition", "1.3"], {"shortest": 9, "block": 2, "repetition": 1.3}),
        (["--forbid", "dog", "--forbid", "man"], {"forbid": ["dog", "man"]}),
        (["--split"], {"split": True}),
    ],
)
def test_options_are_settings(
    model: Path, translator: Translator, text: Path, options: list[str], settings: dict[str, Any]
) -> None:
    expected = translator.translate(TEXT, **settings)
    assert show("translate", model, text, *options).split("\n")[:-1] == expected


def test_required_phrases(model: Path, translator: Translator) -> None:
    said = show("translate", model, "--require", "dog", "--require", "man", "--ordered", stdin=f"{TEXT[3]}\n")
    assert translator.translate(TEXT[3], require=["dog", "man"], ordered=True) + "\n" == said
    assert said.index("dog") < said.rindex("man")


def test_n_best_and_alignments_as_text(model: Path, translator: Translator, text: Path) -> None:
    lines = [line.split(" ||| ") for line in show("translate", model, text, "--best", "3", "--align").split("\n")[:-1]]
    expected = [
        [str(i), h.text, f"{h.score:.4f}", " ".join(f"{a}-{b}" for a, b in h.alignment or ())]
        for i, found in enumerate(translator.hypotheses(TEXT, best=3, align=True))
        for h in found
    ]
    assert lines == expected
    assert [line[0] for line in lines].count("3") == 3
    first = show("translate", model, text, "--align").split("\n")[0]
    (h,) = translator.hypotheses(TEXT[0], align=True)
    assert first == f"{h.text} ||| {' '.join(f'{i}-{j}' for i, j in h.alignment or ())}"


def test_a_line_stays_a_line_whatever_the_model_writes() -> None:
    form = AnswerForm(False, False, Settings())
    answer = Answer([Translation("one\ntwo", [], 0.0, 0.0, [])])
    assert list(form.lines(0, Ask(""), answer)) == ["one two"]


def test_json(model: Path, translator: Translator, text: Path) -> None:
    rows = [json.loads(line) for line in show("translate", model, text, "--json").split("\n")[:-1]]
    for line, row, (h,) in zip(TEXT, rows, translator.hypotheses(TEXT), strict=True):
        assert row == {
            "text": line,
            "translation": h.text,
            "score": pytest.approx(h.score),
            "log_probability": pytest.approx(h.log_probability),
        }
    options = ["--json", "--best", "2", "--align", "--tokens"]
    row = json.loads(show("translate", model, *options, stdin=f"{TEXT[3]}\n"))
    found = translator.hypotheses(TEXT[3], best=2, align=True)
    assert [each["translation"] for each in row["hypotheses"]] == [h.text for h in found]
    assert row["tokens"] == found[0].tokens
    assert row["token_scores"] == pytest.approx(found[0].token_scores)
    assert row["alignment"] == [list(pair) for pair in found[0].alignment or ()]


def test_json_lines_say_for_themselves_what_they_want(model: Path, translator: Translator) -> None:
    asks = [
        {"text": TEXT[3], "prefix": "a dog", "id": 7},
        {"text": TEXT[3], "require": ["woman"], "forbid": ["dog"]},
        {"text": "two\nlines", "id": {"any": "thing"}},
    ]
    said = show("translate", model, "--jsonl", stdin="".join(json.dumps(ask) + "\n" for ask in asks))
    first, second, third = map(json.loads, said.split("\n")[:-1])
    assert (first["id"], first["translation"]) == (7, translator.translate(TEXT[3], prefix="a dog"))
    assert first["translation"].startswith("a dog")
    assert "id" not in second
    assert "woman" in second["translation"]
    assert (third["id"], third["text"]) == ({"any": "thing"}, "two\nlines")


def test_the_same_sentence_has_a_draw_for_each_seed(model: Path, translator: Translator) -> None:
    expected = [translator.translate(TEXT[3], temperature=1.0, seed=seed) for seed in (5, 0, 2)]
    assert len(set(expected)) == 3
    rows = [{"text": TEXT[3]}, {"text": TEXT[3], "seed": 0}, {"text": TEXT[3], "seed": 2}]
    stdin = "".join(f"{json.dumps(row)}\n" for row in rows)
    said = show("translate", model, "--jsonl", "--sample", "1", "--seed", "5", stdin=stdin)
    assert [json.loads(line)["translation"] for line in said.split("\n")[:-1]] == expected
    asks = [Ask(TEXT[3], seed=seed) for seed in (None, 0, 2)]
    assert ["".join(translator.stream(ask, temperature=1.0, seed=5)) for ask in asks] == expected


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.asks.AHEAD", 2)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("options", [[], ["--best", "2"], ["--json", "--sample", "1", "--seed", "3"]])
@pytest.mark.parametrize("damage", ["nothing", "half a line", "lost note"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], damage: str
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    command = ["translate", model, text, *options]
    show(*command, "-o", whole)
    answers = Translator.answers
    calls: Iterator[int] = iter(range(100))

    def interrupted(self: Translator, *arguments: Any) -> list[Answer]:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return answers(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "answers", interrupted)
        result = run(*command, "-o", out)
    assert result.exit_code == 130
    assert "stopped after 4 lines: the same command with --resume goes on" in result.stderr
    done = out.read_bytes()
    assert whole.read_bytes().startswith(done)
    assert 0 < len(done) < whole.stat().st_size
    if damage == "half a line":  # the lines were being written when the machine stopped
        out.write_bytes(done + whole.read_bytes()[len(done) : len(done) + 3])
    if damage == "lost note":
        Path(f"{out}.progress").unlink()
        assert (
            run_fails(*command, "-o", out, "--resume")
            == f"{out} is whole, or of another program: there is nothing to go on with"
        )
        return
    show(*command, "-o", out, "--resume")
    assert out.read_bytes() == whole.read_bytes()
    assert not Path(f"{out}.progress").exists()


def run_fails(*arguments: object) -> str:
    with pytest.raises(ValueError, match=r"\w") as error:
        run(*arguments)
    return str(error.value)


@pytest.mark.usefixtures("small_windows")
def test_another_run_does_not_go_on_with_it(model: Path, text: Path, tmp_path: Path) -> None:
    out, note = tmp_path / "out", tmp_path / "out.progress"
    show("translate", model, text, "-o", out)
    assert "exists: go on with it by --resume, or replace it by --overwrite" in run_fails(
        "translate", model, text, "-o", out
    )
    (tmp_path / "bad").write_bytes(text.read_bytes() + b"\xff\n")
    assert "not UTF-8" in run_fails("translate", model, tmp_path / "bad", "-o", out, "--overwrite")
    command = ["translate", model, tmp_path / "bad", "-o", out, "--resume"]
    assert "was begun with beam = 4, not 2" in run_fails(*command, "--beam", "2")
    assert out.read_text().count("\n") == 6
    out.write_bytes(b"")
    assert "is shorter than" in run_fails(*command)
    for damage in ("{", '{"about": 3, "done": 0, "bytes": 0}', '{"about": {}, "done": -1, "bytes": 0}'):
        note.write_text(damage)
        assert "is damaged" in run_fails(*command)
    show("translate", model, text, "-o", out, "--overwrite")
    assert not note.exists()


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("pipe", [False, True])
def test_a_run_goes_on_with_the_same_lines_alone(model: Path, tmp_path: Path, pipe: bool) -> None:
    file, out = tmp_path / "in", tmp_path / "out"

    def call(text: bytes, *options: object) -> Any:
        file.write_bytes(text)
        where = [] if pipe else [file]
        return run("translate", model, *where, "-o", out, *options, stdin=text if pipe else b"")

    with pytest.raises(ValueError, match=r"line 3: byte 1 of the line .* is not UTF-8"):
        call(b"a dog\ntwo\n\xff\n")
    for other in (b"a man\ntwo\n\xff\n", b"a dog\n", b"a dogtwo\n\n\n"):
        with pytest.raises(ValueError, match="out was made from an input whose first 2 lines are others"):
            call(other, "--resume")
    assert out.read_text().count("\n") == 2
    assert call(b"a dog\ntwo\n\xff\n", "--resume", "--invalid", "replace").exit_code == 0
    assert out.read_text() == show("translate", model, "--invalid", "replace", stdin=b"a dog\ntwo\n\xff\n")


@pytest.mark.usefixtures("small_windows")
def test_a_run_does_not_go_on_with_another_model(model: Path, text: Path, tmp_path: Path) -> None:
    ours, file = tmp_path / "model", tmp_path / "in"
    shutil.copytree(model, ours)
    make_shortlist(ours, text, text, size=1, common=1)
    file.write_bytes(b"a dog\ntwo\n\xff\n")
    command = ["translate", ours, file, "-o", tmp_path / "out", "--shortlist"]
    assert "not UTF-8" in run_fails(*command)
    for name in ("config.json", "tokenizer.json", "shortlist.safetensors"):
        before = (ours / name).read_bytes()
        if name == "shortlist.safetensors":
            make_shortlist(ours, text, text, size=2, common=2)
        else:
            (ours / name).write_bytes(before + b"\n")
        assert f"was begun with {name} = " in run_fails(*command, "--resume")
        (ours / name).write_bytes(before)
    recipe = (ours / "recipe.yaml").read_text()
    (ours / "recipe.yaml").write_text(recipe.replace("max_length: 30", "max_length: 31"))
    assert "was begun with longest = 30, not 31" in run_fails(*command, "--resume")
    (ours / "recipe.yaml").write_text(recipe)
    assert "line 3" in run_fails(*command, "--resume")


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("jsonl", [False, True])
def test_the_bar_is_as_far_as_the_file_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jsonl: bool
) -> None:
    lines = [json.dumps({"text": line, "id": 7}) if jsonl else line for line in TEXT]
    file = tmp_path / "in"
    file.write_text("".join(f"{line}\n" for line in lines))
    seen: list[tuple[int, int]] = []
    show_bar = Bar.show

    def watched(self: Bar, done: int, read: int) -> None:
        show_bar(self, done, read)
        task = self._bar.tasks[0]
        assert task.total == file.stat().st_size
        assert task.description.startswith(f"{done} lines")
        seen.append((done, int(task.completed)))

    monkeypatch.setattr(Bar, "show", watched)
    command = ["translate", model, file, "-o", tmp_path / "out", *(["--jsonl"] if jsonl else [])]
    far = [len("".join(f"{line}\n" for line in lines[:n])) for n in range(7)]
    show(*command)
    assert seen == [(n, far[n]) for n in (0, 2, 4, 6)]
    seen.clear()
    answers = Translator.answers

    def stopped(self: Translator, asks: list[Ask], settings: Settings) -> list[Answer]:
        if asks[0].text == TEXT[4]:
            raise KeyboardInterrupt
        return answers(self, asks, settings)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "answers", stopped)
        assert run(*command, "--overwrite").exit_code == 130
    seen.clear()
    show(*command, "--resume")
    assert seen == [(4, far[4]), (6, far[6])]


def test_an_output_is_kept_when_an_input_is_not_there(model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    for wrong in (tmp_path / "nothing", tmp_path):
        assert str(wrong) in run_fails("translate", model, text, wrong, "-o", out, "--overwrite")
    assert out.read_text() == "precious"
    assert not (tmp_path / "out.progress").exists()


def test_lines_that_are_too_long_are_named_and_counted(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("a dog\n" + "two men sit on a bench, a dog runs\n" * 7)
    result = run("translate", model, file, "--extra", "0")
    assert result.exit_code == 0
    assert len(result.stdout.split("\n")) == 9
    notes = result.stderr.split("\n")[:-1]
    assert notes[0] == f"note: {file}:2 goes on for more than 30 sub-words: read in parts"
    assert len(notes) == 6
    assert notes[5] == "note: 7 lines in all were read in parts"
    streamed = run("translate", model, file, "--extra", "0", "--stream")
    assert (streamed.stdout, streamed.stderr) == (result.stdout, result.stderr)
    assert f"{file}:2: a sentence of" in run_fails("translate", model, file, "--long", "refuse")


def test_bytes_that_are_no_text(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(b"a dog\nb\xffd\0\n")
    assert "bad.txt, line 2: byte 2 of the line (0xff) is not UTF-8" in run_fails("translate", model, file)
    assert show("translate", model, file, "--invalid", "replace").count("\n") == 2


Type = Callable[..., None]


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Type:
    """Types some lines into a command."""

    def call(lines: list[str], *arguments: object) -> None:
        left = iter(lines)

        def typed(prompt: str) -> str:
            assert prompt == "> "
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr("builtins.input", typed)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        cli.app(["translate", *map(str, arguments)], standalone_mode=False)

    return call


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_typing(
    model: Path,
    translator: Translator,
    at_a_terminal: Type,
    capsys: pytest.CaptureFixture[str],
    stream: list[str],
) -> None:
    lines = ["a dog", "", "two men", TEXT[3] * 2]
    at_a_terminal(lines, model, *stream)
    out, error = capsys.readouterr()
    assert out.split("\n")[:-1] == translator.translate(lines)
    assert error == "note: standard input:4 goes on for more than 30 sub-words: read in parts\n"


def test_typing_into_a_file_and_in_json(
    model: Path, translator: Translator, at_a_terminal: Type, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, note = tmp_path / "out", tmp_path / "out.progress"
    at_a_terminal(["a dog", "", "two men"], model, "-o", out)
    assert capsys.readouterr().out == ""
    assert out.read_text().split("\n")[:-1] == translator.translate(["a dog", "", "two men"])
    at_a_terminal(['{"text": "a dog", "prefix": "x"}'], model, "--jsonl")
    assert json.loads(capsys.readouterr().out)["translation"] == translator.translate("a dog", prefix="x")
    with pytest.raises(ValueError, match="standard input:2 is no JSON"):
        at_a_terminal(['{"text": "a dog"}', "two men"], model, "--jsonl", "-o", out, "--overwrite")
    assert json.loads(out.read_text())["text"] == "a dog"
    assert not note.exists()
    with pytest.raises(ValueError, match="what was typed is gone: name a file"):
        at_a_terminal(["a dog"], model, "-o", out, "--resume")


def test_mistakes(fail: Fail, model: Path, text: Path, tmp_path: Path) -> None:
    def line(*options: object) -> str:
        return fail("translate", model, text, *options)

    assert "beam = 0: it must be at least 1" in line("--beam", "0")
    assert "extra = -1" in line("--extra", "-1")
    assert "block = -2" in line("--block", "-2")
    assert "penalty = 'x': choose paper or mean" in line("--penalty", "x")
    assert "long = 'x': choose split, cut or refuse" in line("--long", "x")
    assert "invalid = 'x': choose refuse or replace" in line("--invalid", "x")
    assert "name it by -o" in line("--resume")
    assert "choose one" in line("--resume", "--overwrite", "-o", tmp_path / "out")
    assert "ask for --json" in line("--tokens")
    assert "--stream writes bare text" in line("--stream", "--align")
    assert "engine = 'x': choose auto, native or torch" in line("--engine", "x")
    assert f"{text}:1: phrases cannot be required" in line("--require", "dog", "--sample", "1", "--no-split")
    assert f"{text}:1: the required phrase 'a dog' contains 'dog'" in line(
        "--require", "a dog", "--forbid", "dog", "--no-split"
    )
    assert f"{text} is what is to be read" in line("-o", text, "--overwrite")
    assert f"{text}:1 is no JSON" in line("--jsonl")
    assert "is not a model directory" in line("--ensemble", tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", 'is no object with a text: write {"text": "..."}'),
        ('{"txt": "a"}', "is no object with a text"),
        ('{"text": 3}', "is no object with a text"),
        ('{"text": "a", "forbidden": []}', "unknown key 'forbidden'; did you mean 'forbid'?"),
        ('{"text": "a", "xyzzy": 1}', "unknown key 'xyzzy'; there are text, prefix, require, forbid, seed, id"),
        ('{"text": "a", "seed": -1}', "'seed' is a whole number from 0, got -1"),
        ('{"text": "a", "seed": true}', "'seed' is a whole number from 0, got true"),
        ('{"text": "a", "seed": 1.0}', "'seed' is a whole number from 0, got 1.0"),
        ('{"text": "a", "require": "dog"}', "'require' is a list of texts, got \"dog\""),
        ('{"text": "a", "prefix": ["dog"]}', "'prefix' is text, got [\"dog\"]"),
        ('{"text": "a\\ud800"}', "'text' holds a NUL or half a surrogate pair"),
        ('{"text": "a", "id": ["\\ud800"]}', "'id' holds a NUL or half a surrogate pair"),
        ('{"text": "a", "id": NaN}', "is no JSON (it has no NaN)"),
        ("[" * 100_000, "is no JSON (RecursionError)"),
    ],
)
def test_mistakes_in_json_lines(model: Path, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "in.jsonl").write_text(f'{{"text": "a dog"}}\n{line}\n')
    assert f"{tmp_path / 'in.jsonl'}:2{'' if message.startswith('is') else ':'} {message}" in run_fails(
        "translate", model, tmp_path / "in.jsonl", "--jsonl"
    )


def test_a_line_of_json_that_is_too_long_is_said_to_be(model: Path, tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 1_000_000})
    (tmp_path / "in.jsonl").write_text(f'{{"text": "a dog"}}\n{line}\n')
    assert "in.jsonl, line 2 has more than 1,000,000 characters: break it up" in run_fails(
        "translate", model, tmp_path / "in.jsonl", "--jsonl"
    )


def test_scores(model: Path, translator: Translator, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{line}\n" for line in TEXT[::-1]), "utf-8")
    command = ["score", model, "--source", text, "--target", other]
    expected = translator.score(TEXT, TEXT[::-1])
    result = run(*command)
    cells = [line.split("\t") for line in result.stdout.split("\n")[:-1]]
    assert [float(a) for a, _ in cells] == pytest.approx([s.log_probability for s in expected], abs=1e-3)
    assert [float(b) for _, b in cells] == pytest.approx([s.perplexity for s in expected], rel=1e-3)
    tokens = sum(len(s.tokens) for s in expected)
    assert result.stderr.startswith(f"6 pairs, {tokens} tokens: log P -")
    rows = [json.loads(line) for line in show(*command, "--json", "--per-token").split("\n")[:-1]]
    assert [row["tokens"] for row in rows] == [s.tokens for s in expected]
    assert rows[0]["token_scores"] == pytest.approx(expected[0].token_scores, abs=1e-4)
    each = show(*command, "--per-token").split("\n")[0].split("\t")[2].split(" ")
    assert each[::2] == expected[0].tokens
    (tmp_path / "short").write_text("one\n")
    assert "short has 1: line by line they are translations" in run_fails(
        "score", model, "--source", text, "--target", tmp_path / "short"
    )


def test_scores_of_long_lines_and_of_bytes_that_are_no_text(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, long, bad = tmp_path / "good", tmp_path / "long", tmp_path / "bad"
    good.write_text("a dog\n" * 5)
    long.write_text("a dog\n" * 4 + "x" * 1_000_001 + "\n")
    bad.write_bytes(b"a dog\n" * 4 + b"\xff\n")
    assert "long, line 5 has more than 1,000,000 characters" in run_fails(
        "score", model, "--source", good, "--target", long
    )
    command = ["score", model, "--source", bad, "--target", good]
    assert "bad, line 5: byte 1" in run_fails(*command)
    assert "invalid = 'x': choose refuse or replace" in run_fails(*command, "--invalid", "x")
    assert show(*command, "--invalid", "replace").count("\n") == 5
    sizes: list[int] = []
    score = Translator.score

    def counted(self: Translator, sources: list[Ask], targets: list[Ask]) -> list[Score]:
        sizes.append(len(sources))
        return score(self, sources, targets)

    monkeypatch.setattr(Translator, "score", counted)
    monkeypatch.setattr("regard.tasks.asks.CHARACTERS", 20)
    show("score", model, "--source", good, "--target", good)
    assert sizes == [2, 2, 1]  # of 5 + 5 characters each


def test_a_pair_beyond_the_models_positions_is_named(model: Path, tmp_path: Path) -> None:
    ours, good, long = tmp_path / "model", tmp_path / "good", tmp_path / "long"
    shutil.copytree(model, ours)
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 32, "heads": 2}
    vocabulary = len(Tokenizer.load(ours / "tokenizer.json"))
    limited = TransformerConfig.tiny(vocabulary, **shape, positions="learned", max_length=12)
    storage.save(Transformer(limited), ours)
    good.write_text("a dog\na dog\n")
    long.write_text("a dog\ntwo men sit on\n")
    for source, target in ((good, long), (long, good)):
        assert run_fails("score", ours, "--source", source, "--target", target) == (
            f"{long}:2 has 14 sub-words, the model has positions for 11: shorten it"
        )


def test_no_sentence_of_a_line_is_lost(model: Path, translator: Translator) -> None:
    lines = "a dog. Two men!\n\n  a cat?  A dog.\n"
    a, b, c, d = (translator.hypotheses(text)[0].text for text in ("a dog.", "Two men!", "a cat?", "A dog."))
    assert show("translate", model, stdin=lines) == "".join(
        f"{each}\n".replace("\n", " ", each.count("\n")) for each in (f"{a} {b}", "", f"  {c}  {d}")
    )
    whole = translator.hypotheses("a dog. Two men!", split=False)[0].text.replace("\n", " ")
    assert show("translate", model, "--no-split", stdin=lines).split("\n")[0] == whole


def test_what_the_model_cannot_know_is_said(model: Path) -> None:
    lines = "a dog\nПривет, a dog 😀\n" + "мир\n" * 6
    found = run("translate", model, stdin=lines)
    assert found.stdout.splitlines()[1].endswith(" 😀")
    notes = found.stderr.splitlines()
    assert notes[0] == "note: standard input:2: the model has no sub-words for 'Привет', and can only guess"
    assert notes[-1] == "note: 7 lines in all hold what the model has no sub-words for"
    assert len(notes) == 6
    rows = [json.loads(row) for row in show("translate", model, "--json", stdin=lines).splitlines()]
    assert [row.get("unknown") for row in rows[:3]] == [None, ["Привет"], ["мир"]]
    assert run("translate", model, "--stream", stdin=lines).stderr.splitlines() == notes


def test_text_itself_may_be_the_argument(model: Path, translator: Translator, fail: Fail, tmp_path: Path) -> None:
    assert show("translate", model, "two men sit") == translator.translate("two men sit") + "\n"
    assert show("translate", model, "a dog\n\ntwo men") == "".join(
        f"{said}\n" for said in translator.translate(["a dog", "", "two men"])
    )
    word = run("translate", model, "dog")
    assert (word.stdout, word.stderr) == (
        translator.translate("dog") + "\n",
        "note: there is no file dog: read as text\n",
    )
    show("translate", model, "two men sit", "-o", tmp_path / "out")
    assert (tmp_path / "out").read_text("utf-8") == translator.translate("two men sit") + "\n"
    assert json.loads(show("translate", model, '{"text": "a dog", "id": 3}', "--jsonl"))["id"] == 3
    for wrong in (["new.en"], ["runs/none"], ["two", "men"]):
        assert f"{wrong[0]} is no file that is there: text itself goes into one pair of quotation marks" in fail(
            "translate", model, *wrong
        )


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (("--beam", "--num-beams"), ["2"]),
        (("--best", "--n-best"), ["2"]),
        (("--block", "--no-repeat-ngram"), ["2"]),
        (("--rows", "--batch-size"), ["2"]),
        (("--sample", "--temperature"), ["0.5"]),
        (("--limit", "--max-length"), ["2"]),
    ],
)
def test_options_by_the_names_that_other_programs_have_for_them(
    model: Path, text: Path, names: tuple[str, str], values: list[str]
) -> None:
    first, second = (show("translate", model, text, name, *values) for name in names)
    assert first == second


@pytest.mark.parametrize("search", [{"beam": 1}, {"beam": 3}, {"temperature": 1.0}])
def test_an_output_is_no_longer_than_its_limit(translator: Translator, search: dict[str, Any]) -> None:
    free = translator.hypotheses("two men sit on a bench", **search)
    (short,) = translator.hypotheses("two men sit on a bench", **search, limit=3)
    assert len(short.tokens) <= 3 < len(free[0].tokens)
    with pytest.raises(ValueError, match="limit = 0: it must be at least 1"):
        translator.translate("a dog", limit=0)
    with pytest.raises(
        ValueError, match=r"shortest = 5: its output has at most 3 tokens: lower it, or raise .extra. or .limit."
    ):
        translator.translate("a dog", limit=3, shortest=5)


PROMPT = """
import sys
from regard.cli.bulk import Input
print(list(ask.text for ask in Input([__import__("pathlib").Path("-")], jsonl=False, errors="strict")))
"""
TALK = """
from regard.cli.use import Talk
talk, said = object.__new__(Talk), []
talk.say = said.append
talk.at_terminal()
print(said)
"""


def at_a_prompt(keys: bytes, state: Path, program: str = PROMPT) -> bytes:
    """What a terminal shows when these keys are pressed."""
    pty = pytest.importorskip("pty")
    pytest.importorskip("readline")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while b"> " not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, keys)
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # Linux' way to say that nobody is at the other end
        pass
    os.close(ours)
    assert process.wait() == 0
    return shown


def test_a_prompt_has_editing_and_history(tmp_path: Path) -> None:
    back, up = b"\x1b[D", b"\x1b[A"
    assert b"['a dog runs']" in at_a_prompt(b"a dg runs" + back * 6 + b"o\n\x04", tmp_path)
    assert b"['a dog runs', 'two']" in at_a_prompt(up + b"\ntwo\n\x04", tmp_path)
    assert (tmp_path / "regard" / "history").stat().st_mode & 0o777 == 0o600


def test_a_conversation_has_a_history_of_its_own(tmp_path: Path) -> None:
    up = b"\x1b[A"
    at_a_prompt(b"a dog runs\n\x04", tmp_path)
    assert b"['Who are you?']" in at_a_prompt(b"Who are you?\n\x04", tmp_path, TALK)
    assert b"['Who are you?', 'Why?']" in at_a_prompt(up + b"\nWhy?\n\x04", tmp_path, TALK)
    assert (tmp_path / "regard" / "chat").stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_told_how_far_it_is_too(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("regard.cli.bulk.EVERY", 0.0)
    assert "translating: 6 lines · " in run("translate", model, text, "-o", tmp_path / "out").stderr
