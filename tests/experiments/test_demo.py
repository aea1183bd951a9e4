"""`make demo` as a person meets it: with a corpus it trains the quickstart, without one it says why and reads dates."""

import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.experiments import dates, demo
from regard.recipes import reading as recipes
from regard.recipes.recipe import Recipe

REASON = "could not download [bold]tatoeba[/x] (:boom: [Errno 111] refused); check the connection"


class Calls:
    """Stand-ins for everything heavy, and what they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.trained: list[dict[str, Any]] = []
        self.read: list[dict[str, Any]] = []
        self.finished = True
        for name in ("obtain", "train", "load"):
            monkeypatch.setattr(demo, name, getattr(self, name))
        monkeypatch.setattr(dates, "demo", self.dates)
        self.out = StringIO()
        self.console = Console(file=self.out, force_terminal=False, width=80)

    def obtain(self, name: str, **options: Any) -> None:
        self.made.append(f"obtain {name}")

    def train(self, recipe: Recipe, directory: Path, **options: Any) -> bool:
        assert options.pop("console") is self.console
        self.made.append("train")
        self.trained.append({"recipe": recipe, "directory": directory, **options})
        return self.finished

    def load(self, directory: Path) -> "Calls":
        self.made.append(f"load {directory.name}")
        return self

    def attention_page(self, text: str) -> str:
        return f"<p>{text}</p>"

    def dates(self, directory: Path, **options: Any) -> float:
        assert options.pop("console") is self.console
        self.made.append("dates")
        self.read.append({"directory": directory, **options})
        return 1.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    monkeypatch.chdir(tmp_path)
    return Calls(monkeypatch)


def test_with_a_corpus_the_quickstart_is_trained_and_shown(calls: Calls, tmp_path: Path) -> None:
    demo.demo(steps=7, seed=3, console=calls.console)
    assert calls.made == ["obtain tatoeba-en-es", "train", "load quickstart"]
    (call,) = calls.trained
    recipe = call.pop("recipe")
    assert (recipe.train.steps, recipe.train.minutes, recipe.train.seed) == (7, None, 3)
    assert recipe.data.corpus == "tatoeba-en-es"
    assert call == {"directory": Path("runs/quickstart"), "name": "quickstart", "resume": False, "overwrite": False}
    assert (tmp_path / "runs/quickstart/attention.html").read_text("utf-8") == f"<p>{demo.SENTENCE}</p>"
    assert calls.out.getvalue().splitlines() == [
        "  look     runs/quickstart/attention.html",
        "  try it   regard translate runs/quickstart",
        "  explore  regard explore runs/quickstart",
    ]


def test_without_a_number_of_steps_it_takes_the_minutes_of_the_recipe(calls: Calls) -> None:
    demo.demo(console=calls.console)
    recipe = calls.trained[0]["recipe"]
    assert recipe.train.steps is None
    assert 4 <= recipe.train.minutes <= 5


def test_any_directory_is_named_as_it_is_and_on_one_line(calls: Calls, tmp_path: Path) -> None:
    directory = tmp_path / "[red]" / ":boom:" / ("long" * 30)
    demo.demo(directory, steps=7, console=calls.console)
    assert calls.trained[0]["directory"] == directory
    assert calls.out.getvalue().splitlines() == [
        f"  look     {directory / 'attention.html'}",
        f"  try it   regard translate {directory}",
        f"  explore  regard explore {directory}",
    ]


@pytest.mark.parametrize(
    ("there", "resume"),
    [([], False), (["recipe.yaml"], True), (["recipe.yaml", "model.safetensors"], False)],
)
def test_a_run_that_was_stopped_is_gone_on_with(calls: Calls, tmp_path: Path, there: list[str], resume: bool) -> None:
    for name in there:
        (tmp_path / name).write_text(recipes.dump(recipes.load("quickstart")))
    demo.demo(tmp_path, console=calls.console)
    assert calls.trained[0]["resume"] is resume


@pytest.mark.parametrize("change", ["train.seed=2", "train.steps=9", "model.d_model=64"])
@pytest.mark.parametrize("finished", [False, True])
def test_another_run_is_left_as_it_is(calls: Calls, tmp_path: Path, change: str, finished: bool) -> None:
    (tmp_path / "recipe.yaml").write_text(recipes.dump(recipes.load("quickstart", [change])))
    if finished:
        (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty: go on with it by .*, or choose another place"):
        demo.demo(tmp_path, console=calls.console)
    (tmp_path / "recipe.yaml").unlink()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not a run of regard: choose another place"):
        demo.demo(tmp_path, console=calls.console)
    assert not calls.trained


def test_interrupted_it_shows_nothing_more(calls: Calls, tmp_path: Path) -> None:
    calls.finished = False
    with pytest.raises(KeyboardInterrupt):
        demo.demo(tmp_path / "run", steps=7, console=calls.console)
    assert calls.made == ["obtain tatoeba-en-es", "train"]
    assert calls.out.getvalue() == ""
    assert not (tmp_path / "run").exists()


def test_dates_ask_for_no_corpus(calls: Calls, tmp_path: Path) -> None:
    demo.demo(dates=True, console=calls.console)
    demo.demo(tmp_path, dates=True, steps=9, seed=4, console=calls.console)
    assert calls.made == ["dates", "dates"]
    assert calls.read == [
        {"directory": Path("runs/dates"), "steps": 800, "seed": 1},
        {"directory": tmp_path, "steps": 9, "seed": 4},
    ]


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_without_a_corpus_it_says_why_and_reads_dates(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def refuse(name: str, **options: Any) -> None:
        raise kind(REASON)

    monkeypatch.setattr(demo, "obtain", refuse)
    demo.demo(console=calls.console)
    assert calls.made == ["dates"]
    first, second = calls.out.getvalue().splitlines()
    assert first == f"  no corpus  {REASON}"
    assert "so here is a task that needs none: dates in sixty languages" in second


def test_the_way_without_a_corpus_really_ends_in_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, **options: Any) -> None:
        raise OSError(REASON)

    monkeypatch.setattr(demo, "obtain", refuse)
    monkeypatch.setattr(dates, "HELD_OUT", 10)
    out = StringIO()
    demo.demo(tmp_path / "new", steps=2, console=Console(file=out, force_terminal=False, width=200))
    assert REASON in out.getvalue()
    assert "step 2/2" in out.getvalue()
    assert "of 10 unseen dates read right" in out.getvalue()
    assert "<title>" in (tmp_path / "new" / "attention.html").read_text("utf-8")


def test_a_second_demo_at_the_same_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, occupy: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(demo, "obtain", lambda name, **options: None)
    occupy(tmp_path / "run")
    with pytest.raises(ValueError, match=r"another process is at work in .*run: wait for its end"):
        demo.demo(tmp_path / "run", console=Console(quiet=True))


def test_it_says_how_long_it_takes_and_that_the_machine_is_busy(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    for load, busy in ((0.1, False), (64.0, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        calls.out.truncate(0)
        demo.demo(Path(f"load{load}"), console=calls.console)
        assert "4.5 minutes of learning" in calls.out.getvalue()
        assert ("this machine is busy (load 64.0 on 2 cores)" in calls.out.getvalue()) == busy


@pytest.mark.parametrize("active", [True, False])
def test_it_names_commands_that_work_here(calls: Calls, monkeypatch: pytest.MonkeyPatch, active: bool) -> None:
    monkeypatch.setattr(demo, "which", lambda name: f"/bin/{name}" if active else None)
    monkeypatch.setattr(sys, "argv", [str(Path.cwd() / ".venv" / "bin" / "regard"), "demo"])
    demo.demo(console=calls.console)
    program = "regard" if active else ".venv/bin/regard"
    assert f"try it   {program} translate runs/quickstart\n" in calls.out.getvalue()
