"""`regard translate` and `regard score`: what is written, going on when interrupted, and one line for a mistake."""

import gzip
import json
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
from regard.asks import SETTINGS, Answer, Ask, Settings, Translation
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.translating import Form, translate

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
    assert {name for name in SETTINGS if name not in translate.__annotations__} == {"prefix"}


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
    form = Form(False, False, Settings())
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


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.asks.AHEAD", 2)


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
    assert "was begun with input = " in run_fails("translate", model, text, "-o", out, "--resume")
    assert "was begun with invalid = 'refuse', not 'replace'" in run_fails(*command, "--invalid", "replace")
    assert out.read_text().count("\n") == 6
    out.write_bytes(b"")
    assert "is shorter than" in run_fails(*command)
    for damage in ("{", '{"about": 3, "done": 0, "bytes": 0}', '{"about": {}, "done": -1, "bytes": 0}'):
        note.write_text(damage)
        assert "is damaged" in run_fails(*command)
    show("translate", model, text, "-o", out, "--overwrite")
    assert not note.exists()


def test_a_run_does_not_go_on_with_other_text_of_the_same_size(model: Path, tmp_path: Path) -> None:
    command = ["translate", model, tmp_path / "in", "-o", tmp_path / "out"]
    (tmp_path / "in").write_bytes(b"a dog\n\xff\n")
    assert "not UTF-8" in run_fails(*command)
    (tmp_path / "in").write_bytes(b"a man\nx\n")
    assert "was begun with input = " in run_fails(*command, "--resume")


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
    assert f"{file}:2: a sentence of" in run_fails("translate", model, file, "--long", "refuse")


def test_bytes_that_are_no_text(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(b"a dog\nb\xffd\0\n")
    assert "bad.txt, line 2: byte 2 of the line (0xff) is not UTF-8" in run_fails("translate", model, file)
    assert show("translate", model, file, "--invalid", "replace").count("\n") == 2


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_typing(
    model: Path,
    translator: Translator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stream: list[str],
) -> None:
    lines = iter(["a dog", "", "two men"])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    cli.app(["translate", str(model), *stream], standalone_mode=False)
    assert capsys.readouterr().out.split("\n")[:-1] == translator.translate(["a dog", "", "two men"])


def test_mistakes(fail: Fail, model: Path, text: Path, tmp_path: Path) -> None:
    def line(*options: object) -> str:
        return fail("translate", model, text, *options)

    assert "beam = 0: it must be at least 1" in line("--beam", "0")
    assert "extra = -1" in line("--extra", "-1")
    assert "block = -2" in line("--block", "-2")
    assert "penalty = 'x': choose paper or mean" in line("--penalty", "x")
    assert "long = 'x': choose split or refuse" in line("--long", "x")
    assert "invalid = 'x': choose refuse or replace" in line("--invalid", "x")
    assert "name it by -o" in line("--resume")
    assert "choose one" in line("--resume", "--overwrite", "-o", tmp_path / "out")
    assert "ask for --json" in line("--tokens")
    assert "--stream writes bare text" in line("--stream", "--align")
    assert "engine = 'x': choose one of auto, native, torch" in line("--engine", "x")
    assert f"{text}:1: phrases cannot be required" in line("--require", "dog", "--sample", "1")
    assert f"{text}:1: the required phrase 'a dog' contains 'dog'" in line("--require", "a dog", "--forbid", "dog")
    assert f"{text} is what is to be translated" in line("-o", text, "--overwrite")
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
        ('{"text": "a", "xyzzy": 1}', "unknown key 'xyzzy'; there are text, prefix, require, forbid, id"),
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
    assert "short has only 1 lines" in run_fails("score", model, "--source", text, "--target", tmp_path / "short")
