"""Metrics that a program can read, whole after any interruption, and curves that TensorBoard can."""

import json
import math
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from regard.training.journal import EVERY, Journal
from regard.training.loop import Report
from regard.training.run import Event, Finished, Note, Sample, Saved, Validation


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the time is a second later: TensorBoard tells its files' order by the second."""
    ticks = count(1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(ticks)))


def report(step: int, **changes: Any) -> Report:
    values = {"loss": 10 / step, "learning_rate": step / 1e3, "gradient_norm": float(step), "tokens": 100 + step % 7}
    return Report(step, **(values | {"seconds": 0.25 + step / 100} | changes))


def write(folder: Path, events: Iterable[Event], step: int = 0) -> None:
    with Journal(folder, step) as journal:
        for event in events:
            journal.write(event)


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines, by the letter of the standard: there is neither NaN nor Infinity in JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (folder / "metrics.jsonl").read_text("utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1]]


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


VALID = Validation(12, 31.4, {"bleu": 31.4, "loss": 1.5}, [Sample("¿Dónde?", "Where?", "Where is it?")], best=True)


def test_reports_are_averaged_over_the_labels_between_lines(tmp_path: Path) -> None:
    reports = [report(step) for step in range(1, 2 * EVERY + 3)]
    write(tmp_path, reports)
    lines = read(tmp_path)
    assert [(line["kind"], line["step"]) for line in lines] == [("train", EVERY), ("train", 2 * EVERY)]
    for line, some in zip(lines, (reports[:EVERY], reports[EVERY : 2 * EVERY]), strict=True):
        tokens = [r.tokens for r in some]
        assert line["loss"] == pytest.approx(np.average([r.loss for r in some], weights=tokens))
        assert line["tokens_per_second"] == pytest.approx(sum(tokens) / sum(r.seconds for r in some))
        assert (line["learning_rate"], line["gradient_norm"]) == (some[-1].learning_rate, some[-1].gradient_norm)


def test_everything_else_is_a_line_of_its_own_with_its_time(tmp_path: Path) -> None:
    write(tmp_path, [Saved(0), VALID, Note("lower the rate"), Finished(12, "done")])
    valid, note, end = read(tmp_path)
    times = [line.pop("time") for line in (valid, note, end)]
    assert times == sorted(times)
    assert valid == {
        "kind": "validation",
        "step": 12,
        "bleu": 31.4,
        "loss": 1.5,
        "best": True,
        "samples": [["¿Dónde?", "Where?", "Where is it?"]],
    }
    assert note == {"kind": "note", "step": 0, "text": "lower the rate"}
    assert end == {"kind": "finished", "step": 12, "why": "done"}
    assert "¿Dónde?" in (tmp_path / "metrics.jsonl").read_text("utf-8")  # as a person reads it


def test_a_line_is_on_disk_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.write(VALID)
        assert [line["kind"] for line in read(tmp_path)] == ["validation"]


def test_opened_again_it_forgets_what_lies_behind_the_step_and_keeps_the_rest(tmp_path: Path) -> None:
    late = Validation(24, 0.0, {"bleu": 0.0}, [])
    first = map(report, range(1, 31))
    write(tmp_path, [Note("hello"), *first, VALID, late, Finished(30, "interrupted")])
    before = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()

    again = [report(step, loss=0.5) for step in range(16, 31)]
    write(tmp_path, again, step=15)
    lines = read(tmp_path)
    assert [(line["kind"], line.get("step")) for line in lines] == [
        ("note", 0),
        ("train", 10),
        ("validation", 12),
        ("train", 20),
        ("train", 30),
    ]
    after = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
    assert after[:3] == [line for line in before if json.loads(line).get("step", 0) <= 15]
    assert [line["loss"] for line in lines[3:]] == pytest.approx([0.5, 0.5])  # of the new reports alone
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "tensorboard"}

    shown = curves(tmp_path)
    assert [step for step, _ in shown["train/loss"]] == [10, 20, 30]
    assert [value for _, value in shown["train/loss"][1:]] == pytest.approx([0.5, 0.5])
    assert [step for step, _ in shown["valid/bleu"]] == [12]


def test_a_line_at_the_very_step_is_kept(tmp_path: Path) -> None:
    write(tmp_path, map(report, range(1, 31)))
    write(tmp_path, [], step=20)
    assert [line["step"] for line in read(tmp_path)] == [10, 20]


def test_a_run_from_the_beginning_forgets_all(tmp_path: Path) -> None:
    write(tmp_path, [*map(report, range(1, 31)), Note("old")])
    write(tmp_path, map(report, range(1, 11)))
    assert [line["step"] for line in read(tmp_path)] == [10]
    assert [step for step, _ in curves(tmp_path)["train/loss"]] == [10]


@pytest.mark.parametrize(
    "torn",
    [
        b'{"kind": "train", "step": 4, "lo',
        '{"kind": "note", "text": "Dó'.encode()[:-1],  # within a character
        b'{"kind": "validation", "step": 4, "samples": [["a {b}',
        b"\0\0\0\0",
    ],
)
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    write(tmp_path, map(report, range(1, 11)))
    before = read(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    write(tmp_path, [VALID], step=11)
    after = read(tmp_path)
    assert after[:-1] == before
    assert after[-1]["kind"] == "validation"


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\r", "\n", "}\n{"])
def test_no_mark_in_a_sample_breaks_its_line(tmp_path: Path, mark: str) -> None:
    sample = (f"one{mark}two", "one", "two")
    write(tmp_path, [Validation(12, 1.0, {"bleu": 1.0}, [sample])])
    before = read(tmp_path)
    assert before[0]["samples"] == [list(sample)]
    write(tmp_path, [], step=12)
    assert read(tmp_path) == before


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    write(tmp_path, [report(step, gradient_norm=math.inf) for step in range(1, 11)])  # fp16 overflows now and then
    write(tmp_path, [Validation(12, 1.0, {"bleu": 1.0, "loss": math.nan}, [])], step=10)
    train, valid = read(tmp_path)
    assert train["gradient_norm"] is None
    assert train["loss"] > 0
    assert valid["loss"] is None
    assert valid["bleu"] == 1.0


def test_tensorboard_shows_every_figure(tmp_path: Path) -> None:
    write(tmp_path, [*map(report, range(1, 31)), VALID])
    shown, lines = curves(tmp_path), read(tmp_path)
    names = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
    assert set(shown) == {*(f"train/{name}" for name in names), "valid/bleu", "valid/loss"}
    for name in names:
        assert [step for step, _ in shown[f"train/{name}"]] == [10, 20, 30]
        values = [value for _, value in shown[f"train/{name}"]]
        assert values == pytest.approx([line[name] for line in lines if line["kind"] == "train"])
    assert shown["valid/bleu"] == [(12, pytest.approx(31.4))]
    assert shown["valid/loss"] == [(12, pytest.approx(1.5))]


def test_without_tensorboard_there_are_metrics_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.journal.find_spec", lambda name: None)
    write(tmp_path, [report(step) for step in range(1, EVERY + 1)])
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert len(read(tmp_path)) == 1
