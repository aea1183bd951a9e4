"""`regard chat`: a message, lines of them, and a conversation at a terminal."""

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import regard
from regard import cli
from regard.cli.use import Talk
from tests.chats import CHATML, talker

GREEDY = ("--beam", "1", "--limit", "12")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talker(tmp_path_factory.mktemp("chat"), "bytes", CHATML)[1]


@pytest.fixture(scope="module")
def generator(model: Path) -> Any:
    return regard.load(model)


def run(*arguments: object, stdin: str = "") -> Any:
    found = CliRunner().invoke(cli.app, ["chat", *map(str, arguments)], input=stdin, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found


def answers(generator: Any, *texts: str, system: str | None = None, **how: Any) -> list[str]:
    said = [] if system is None else [{"role": "system", "content": system}]
    found = []
    for text in texts:
        said.append({"role": "user", "content": text})
        found.append(generator.chat(said, **({"beam": 1, "limit": 12} | how)))
        said.append({"role": "assistant", "content": found[-1]})
    return found


def test_a_message_is_answered(model: Path, generator: Any) -> None:
    (expected,) = answers(generator, "Why is it?")
    assert run(model, "Why", "is it?", *GREEDY).stdout == f"{expected}\n"
    (drawn,) = answers(generator, "Why?", system="You help.", beam=None, seed=3)
    told = run(model, "Why?", "--system", "You help.", "--seed", 3, "--limit", 12)
    assert (told.stdout, told.stderr) == (f"{drawn}\n", "note: cut after 12 tokens: --limit N lets it write more\n")
    stop = expected[3:5]
    stopped = run(model, "Why is it?", *GREEDY, "--stop", stop)
    assert (stopped.stdout, stopped.stderr) == (f"{expected[: expected.index(stop)]}\n", "")


def test_a_pipe_is_a_conversation_a_message_a_line(model: Path, generator: Any) -> None:
    first, second = answers(generator, "Why?", "So it is")
    expected = "".join(f"{each}\n".replace("\n", " ", each.count("\n")) for each in (first, second))
    assert run(model, *GREEDY, stdin="Why?\nSo it is\n").stdout == expected
    assert run(model, *GREEDY, stdin="\nWhy?").stdout.startswith("\n")
    assert second != answers(generator, "So it is")[0]  # it remembers


def typed(monkeypatch: pytest.MonkeyPatch, lines: Iterator[Any]) -> None:
    def said(prompt: str) -> str:
        line = next(lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", said)


def test_at_a_terminal_it_goes_on_until_the_end(
    generator: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {"beam": 1, "limit": 12}
    first, second = answers(generator, "Why?", "So")
    typed(monkeypatch, iter(["Why?", "So", " ", "/reset", "Why?", "a" * 500, "So"]))
    Talk(generator, how, None).at_terminal()
    out, errors = capsys.readouterr()
    assert out == f"{first}\n{second}\n{first}\n{second}\n\n"  # what was too long is as if never said
    assert errors.splitlines()[0] == "/reset begins anew, Ctrl-D ends"
    assert "error: the conversation has 523 sub-words, the model 256 places: leave out its oldest" in errors


def test_who_interrupts_an_answer_goes_on_from_there(
    generator: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Iterator[str]:
        yield "It"
        raise KeyboardInterrupt

    typed(monkeypatch, iter(["Why?"]))
    talk = Talk(generator, {}, None)
    monkeypatch.setattr(generator, "streamed", interrupted)
    talk.at_terminal()
    assert capsys.readouterr().out == "It\n\n"
    assert talk.said[-1] == {"role": "assistant", "content": "It"}


def test_what_no_longer_fits_is_left_out_and_told(generator: Any, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Talk(generator, {"beam": 1, "limit": 12}, "You help.")
    for i in range(12):
        talk.say(f"{i} is the cat on the mat")
        prompt = generator.conversation([*talk.before, *talk.said[:-1]])
        assert len(prompt.ids) <= 256 - 12
        assert prompt.text.startswith("<|im_start|>system\nYou help.")
    assert 2 < len(talk.said) < 20
    note = "note: the model has 256 places: the oldest turn is left out\n"
    errors = capsys.readouterr().err
    assert errors.count(note) == 12 - len(talk.said) // 2


def test_mistakes_are_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, silent = talker(tmp_path, "bytes", None)
    capsys.readouterr()
    for place, message in ((silent, "the model has no chat template"), (tmp_path, "not a model directory")):
        monkeypatch.setattr(sys, "argv", ["regard", "chat", str(place), "Why?"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, errors = capsys.readouterr()
        assert (end.value.code, out, errors.count("\n")) == (2, "", 1)
        assert message in errors
