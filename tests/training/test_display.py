"""What a person sees of a run: a live line in a terminal, lines now and then elsewhere, text as it was written."""

import re
from io import StringIO

import pytest
from rich.console import Console

from regard.training.display import LINES, WINDOW, Display, fetching
from regard.training.loop import Report
from regard.training.run import UNKNOWN, Event, Finished, Note, Sample, Saved, Validation

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setenv("TERM", "xterm-256color")
    return Console(force_terminal=True, file=StringIO(), width=120)


@pytest.fixture
def plain() -> Console:
    return Console(force_terminal=False, file=StringIO(), width=80)


@pytest.fixture(params=["terminal", "plain"])
def console(request: pytest.FixtureRequest) -> Console:
    return request.getfixturevalue(request.param)


def raw(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def shown(console: Console) -> str:
    """What was written, without colours and cursor movements."""
    return CONTROL.sub("", raw(console))


def report(step: int, *, loss: float = 2.0, tokens: int = 100, seconds: float = 1.0) -> Report:
    return Report(step, loss, 3e-4, 1.0, tokens, seconds)


def show(console: Console, *events: Event, total: int = 100) -> str:
    with Display(console) as display:
        for event in events:
            display.show(event, total)
    return shown(console)


def test_a_step_shows_speed_and_loss_by_label_and_the_time_left(console: Console) -> None:
    out = show(console, report(1, loss=4.0, tokens=100), report(2, loss=1.0, tokens=300, seconds=3.0), total=2000)
    line = "step 2/2,000 · loss 1.750 · lr 3.0e-04 · 100 tok/s · 1:06:36 left"  # 1998 steps of 2 seconds
    assert (line in out) == console.is_terminal
    assert "step 1/2,000 · loss 4.000" in out or console.is_terminal  # a terminal may be refreshed just once


def test_speed_and_loss_are_those_of_the_last_steps(plain: Console) -> None:
    past = [report(step, loss=9.0, seconds=5.0) for step in range(1, 101)]
    out = show(plain, *past, *(report(step) for step in range(101, 101 + WINDOW)), total=100 + WINDOW)
    assert "step 150/150 · loss 2.000 · lr 3.0e-04 · 100 tok/s · 00:00 left" in out


def test_a_terminal_has_one_live_line_that_goes_when_the_run_ends(terminal: Console) -> None:
    out = show(terminal, *map(report, range(1, 31)))
    assert "learning" in out
    assert "step 30/100" in out
    tail = raw(terminal).rpartition("step 30/100")[2]
    assert "\x1b[2K" in tail  # the line is cleared
    assert tail.rstrip().endswith("\x1b[2K")


def test_elsewhere_there_are_some_forty_plain_lines(plain: Console) -> None:
    out = show(plain, *map(report, range(1, 401)), total=400)
    assert "\x1b" not in raw(plain)
    steps = [int(step) for step in re.findall(r"^  learning step (\d+)/400 · ", out, re.M)]
    assert steps == [1, *range(400 // LINES, 401, 400 // LINES)]
    assert len(out.splitlines()) == len(steps)


def test_a_short_run_shows_every_step(plain: Console) -> None:
    assert len(show(plain, *map(report, range(1, 6)), total=5).splitlines()) == 5


def test_a_run_of_unknown_length_promises_nothing(console: Console) -> None:
    out = show(console, *map(report, range(1, 101)), total=UNKNOWN)
    assert "step 100 · loss 2.000 · lr 3.0e-04 · 100 tok/s" in out
    assert "left" not in out
    assert f"{UNKNOWN:,}" not in out
    if not console.is_terminal:
        assert re.findall(r"step (\d+)", out) == ["1", "50", "100"]


def test_a_length_that_becomes_known_is_shown_from_then_on(terminal: Console) -> None:
    with Display(terminal) as display:
        display.show(report(1), UNKNOWN)
        display.show(report(2), 62)
    assert "step 2/62" in shown(terminal)
    assert "01:00 left" in shown(terminal)


def test_a_validation_shows_its_measures_and_one_sample(plain: Console) -> None:
    samples = [Sample("un gato", "a cat", "a cat"), Sample("un perro", "a dog", "a dog")]
    better = Validation(10, 31.418, {"bleu": 31.418, "loss": 1.5}, samples, best=True)
    worse = Validation(20, 30.0, {"bleu": 30.0}, [])
    assert show(plain, better, worse).splitlines() == [
        "  valid    bleu 31.42  loss 1.50 ▲",
        "           “un gato” → “a cat”",
        "  valid    bleu 30.00 ▽",
    ]


def test_lines_stand_above_the_live_line_and_stay(terminal: Console) -> None:
    out = show(
        terminal, report(1), Validation(1, 1.0, {"bleu": 1.0}, [Sample("eins", "one", "one")]), Note("look here")
    )
    assert "“eins” → “one”" in out
    assert "\r  note     look here\n" in out


@pytest.mark.parametrize("text", ["[bold]", "[/x]", "[red]a[/red]", ":smile:", "a\\[b]", "3 [d"])
def test_text_is_shown_as_it_was_written(console: Console, text: str) -> None:
    out = show(console, Validation(1, 1.0, {"bleu": 1.0}, [Sample(f"s {text}", f"t {text}", "")]), Note(f"n {text}"))
    assert f"“s {text}” → “t {text}”" in out
    assert f"n {text}\n" in out


def test_of_a_long_sample_beginning_and_end_are_shown() -> None:
    line = Sample(f"{'a' * 5_000}b", f"c{'d' * 5_000}", "").line()
    assert line == f"“{'a' * 200} … {'a' * 199}b” → “c{'d' * 199} … {'d' * 200}”"


def test_what_is_counted_has_its_name(plain: Console) -> None:
    with Display(plain) as display:
        display.unit = "pictures"
        display.show(report(1), 10)
    assert "100 pictures/s" in shown(plain)


def test_a_long_line_is_not_broken(plain: Console) -> None:
    long = " ".join(["word"] * 60)
    sample = f"“{long}” → “{long}”"
    out = show(plain, Note(long), Validation(1, 1.0, {"bleu": 1.0}, [Sample(long, long, "")]))
    assert out.splitlines() == [f"  note     {long}", "  valid    bleu 1.00 ▽", f"           {sample}"]


def test_checkpoints_and_the_end_are_not_spoken_of(plain: Console) -> None:
    assert show(plain, Saved(3), Finished(3, "done")) == ""


def test_a_download_is_a_bar_in_a_terminal_and_a_line_elsewhere(console: Console) -> None:
    with fetching(console) as progress:
        progress("first.zip", 0, None)
        progress("first.zip", 1_500_000, 3_000_000)
        progress("second.zip", 10, None)
        progress("second.zip", 20, 40)
    if console.is_terminal:
        assert re.search(r"fetching +first\.zip .*1\.5/3\.0 MB", shown(console))
        assert re.search(r"fetching +second\.zip .*20/40 bytes", shown(console))
        assert raw(console).rstrip().endswith("\x1b[2K")
    else:
        assert raw(console) == "  fetching  first.zip\n  fetching  second.zip\n"
