"""`regard experiment`: what it lists, what it passes on, and what it says of mistakes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from regard import cli
from regard.experiments import lab
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial


def drawn(folder: Path, console: Console, x: int) -> Result:
    with (folder / "runs").open("a") as file:
        file.write("one\n")
    return {"x": x}


def report(results: Results, scale: str) -> Findings:
    return Findings(f"{len(results)} results at the scale {scale}")


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = Experiment("toy", "A toy", lambda scale: [Trial("one", drawn, {"x": 1})], report)
    monkeypatch.setitem(sys.modules, "regard.experiments.toy", type("toy", (), {"EXPERIMENT": this}))  # type: ignore[arg-type]
    monkeypatch.setitem(lab.NAMES, "toy", "nothing to speak of")
    monkeypatch.chdir(tmp_path)


def show(*arguments: str) -> str:
    """The output of a command that must succeed."""
    plain = {"TERM": "dumb", "COLUMNS": "120"}
    result = CliRunner().invoke(cli.app, ["experiment", *arguments], env=plain, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that must fail with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["regard", "experiment", *arguments])
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, error = capsys.readouterr()
    assert (end.value.code, out, error.count("\n")) == (2, "", 1)
    return error


def test_without_a_name_all_are_listed() -> None:
    shown = show()
    for name, about in lab.NAMES.items():
        assert name in shown
        assert about in shown


def test_it_runs_where_it_is_told_and_only_what_is_missing() -> None:
    shown = show("toy")
    assert "1 results at the scale small" in shown
    assert "runs/experiments/toy-small/toy.md" in shown
    assert "2 results" not in show("toy", "--scale", "smoke", "--out", "mine")
    known = json.loads(Path("mine/toy.json").read_text("utf-8"))
    assert (known["scale"], known["command"]) == ("smoke", "regard experiment toy --scale smoke")
    Path("mine/trials/one/mark").touch()
    assert "1 of them known already" in show("toy", "--scale", "smoke", "--out", "mine")
    assert Path("mine/trials/one/mark").exists()
    assert "0 of them known already" in show("toy", "--scale", "smoke", "--out", "mine", "--again")
    assert not Path("mine/trials/one/mark").exists()


def test_an_address_of_a_cluster_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def on_ray(address: str, trials: list[Trial], folder: Path) -> Iterator[Any]:
        asked.append((address, [trial.name for trial in trials]))
        return lab._here(trials, folder, Console(quiet=True))

    monkeypatch.setattr(lab, "_on_ray", on_ray)
    show("toy", "--ray", "10.0.0.1:6379")
    assert asked == [("10.0.0.1:6379", ["one"])]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tabel3"], "unknown experiment 'tabel3': did you mean 'table3'?"),
        (["toy", "--scale", "tiny"], "unknown scale 'tiny': there are smoke, small, full"),
        (["table3", "--scale", "full"], "wmt14/train.en (nor train.de, newstest2013.en, newstest2013.de), which the"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in fail(monkeypatch, capsys, *arguments)


def test_a_cluster_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(lab, "_say", lambda *_: None)  # the title
    said = fail(monkeypatch, capsys, "toy", "--ray", "127.0.0.1:1")
    assert "no Ray cluster answers at '127.0.0.1:1'" in said


def test_an_address_must_be_named() -> None:
    assert CliRunner().invoke(cli.app, ["experiment", "toy", "--ray"]).exit_code == 2
