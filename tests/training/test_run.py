"""A run survives everything: kill -9, Ctrl-C, a loss that is no number, a broken checkpoint."""

import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from regard.data.arrays import Table, pairs_of
from regard.data.batching import Position, collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.checkpoints import CheckpointError
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.loop import Learner, Report
from regard.training.objectives import NextToken
from regard.training.optimisers import OptimiserConfig
from regard.training.run import Event, Finished, Note, Saved, Trainer, Validation, Work
from regard.training.stream import stream


def make(directory: Path, **changes: object) -> Trainer:
    """A trainer of a small model on 40 pairs to be reversed, its state in `directory`."""
    settings = {
        "steps": 12,
        "batch_tokens": 60,
        "shards": 2,
        "optimiser": OptimiserConfig("muon"),
        "checkpoint_every": 3,
    }
    config = TrainConfig(**(settings | {"validate_every": 4} | changes))  # type: ignore[arg-type]
    draw = random.Random(0)
    rows = [[draw.randrange(3, 12) for _ in range(draw.randrange(2, 7))] for _ in range(40)]
    arrays = Table.build(directory / "arrays", ((row, row[::-1]) for row in rows), pairs_of(12))
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32))
    learner = Learner(NextToken(model, 0.1), lambda step: 1e-2, config)

    def validate(model: nn.Module, step: int) -> Validation:
        batch = collate(arrays.rows(range(5)))
        with torch.no_grad():
            loss = model(batch["source"], batch["target"]).logsumexp(-1).mean().item()
        return Validation(step, -loss, {"loss": loss}, [])

    return Trainer(
        learner,
        lambda position: stream(arrays, collate, config, World(), position),
        directory / "trainer",
        total=config.steps,
        validate=validate,
    )


def run(trainer: Trainer) -> list[Event]:
    with trainer.learner:
        return list(trainer.run())


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.learner.model.named_parameters()}


def same(a: Trainer, b: Trainer) -> bool:
    return all(torch.equal(p, weights(b)[name]) for name, p in weights(a).items())


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that nothing interrupts."""
    torch.set_num_threads(1)
    trainer = make(tmp_path_factory.mktemp("through"))
    run(trainer)
    return trainer


def test_what_happens_is_told(tmp_path: Path) -> None:
    events = run(make(tmp_path))
    assert [event.step for event in events if isinstance(event, Report)] == list(range(1, 13))
    assert [event.step for event in events if isinstance(event, Validation)] == [4, 8, 12]
    assert [event.step for event in events if isinstance(event, Saved)] == [0, 3, 6, 9, 12]
    assert events[-1] == Finished(12, "done")


def test_interrupted_and_resumed_is_the_same_run(tmp_path: Path, through: Trainer) -> None:
    first = make(tmp_path)
    seen = 0
    with first.learner:
        for event in first.run():
            seen += isinstance(event, Report)
            if seen == 5:
                first.interrupt()
    assert event == Finished(5, "interrupted")
    second = make(tmp_path)
    assert second.resume()
    run(second)
    assert same(second, through)
    assert second.best == through.best
    assert second.final().keys() == weights(through).keys()
    assert all(torch.equal(x, through.final()[name]) for name, x in second.final().items())


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_what_is_frozen_thaws_after_its_steps_also_in_a_resumed_run(tmp_path: Path, optimiser: str) -> None:
    """What is new comes first: until `thaw` the rest holds still, in a run that goes on from a checkpoint as well."""
    settings = {"freeze": ("encoder.*",), "thaw": 6, "optimiser": OptimiserConfig(optimiser)}

    def inside(trainer: Trainer) -> list[torch.Tensor]:
        return [p for name, p in weights(trainer).items() if name.startswith("encoder.")]

    whole = make(tmp_path / "whole", **settings)
    before, steps = inside(whole), list[bool]()
    with whole.learner:
        for event in whole.run():
            if isinstance(event, Report):
                steps.append(all(map(torch.equal, before, inside(whole))))
    assert steps == [True] * 6 + [False] * 6
    first = make(tmp_path / "parts", **settings, steps=3)
    run(first)
    second = make(tmp_path / "parts", **settings)
    assert second.resume()
    run(second)
    assert same(second, whole)
    with pytest.raises(ValueError, match=r"train.thaw = 6: train.freeze names nothing that could thaw"):
        TrainConfig(steps=1, thaw=6)


def test_a_broken_checkpoint_is_passed_over_and_said_so(tmp_path: Path, through: Trainer) -> None:
    first = make(tmp_path, steps=9)
    run(first)
    (tmp_path / "trainer" / "step-00000009" / "tensors.safetensors").write_bytes(b"torn")
    second = make(tmp_path)
    assert second.resume()
    assert second.learner.steps == 6
    events = run(second)
    assert isinstance(events[0], Note)
    assert "step-00000009" in events[0].text
    assert same(second, through)


def test_a_damaged_snapshot_is_passed_over_and_said_so(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    trainer.validate = lambda model, step: Validation(step, -float(step), {}, [])  # the first is the best
    run(trainer)
    best, last = trainer.snapshots.paths()
    best.write_bytes(b"torn")
    assert all(torch.equal(x, weights(trainer)[name]) for name, x in trainer.final().items())
    assert trainer.warnings == [f"{best} is damaged and passed over: remove it"]
    last.write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="snapshots has no whole snapshot: train a few steps more"):
        trainer.final()


def forge(trainer: Trainer, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest checkpoint, such that its checksums are right."""
    found = trainer.checkpoints.latest()
    assert found is not None
    change(found[1])
    trainer.checkpoints.save(*found)


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no learner": lambda state: state.pop("learner"),
    "a text for a model": lambda state: state["learner"].update(model="text"),
    "a smaller matrix": lambda state: state["learner"]["model"].update({"output.weight": torch.ones(1)}),
    "another matrix": lambda state: state["learner"]["model"].update(more=torch.ones(1)),
    "a matrix less": lambda state: state["learner"]["model"].popitem(),
    "smaller moments": lambda state: state["learner"]["optimiser"]["state"][0].update(momentum=torch.ones(2)),
    "no groups": lambda state: state["learner"]["optimiser"].update(param_groups=[]),
    "another step": lambda state: state["learner"].update(step=10**9),
    "a position before all": lambda state: state.update(position=[-1, 0]),
    "a position of words": lambda state: state.update(position=["a", "b"]),
    "no best": lambda state: state.update(best=None),
    "endless steps": lambda state: state.update(best={"step": float("inf"), "score": 1, "waited": 0}),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_checkpoint_is_refused_in_one_line(tmp_path: Path, how: str) -> None:
    trainer = make(tmp_path, steps=3)
    run(trainer)
    forge(trainer, FORGED[how])
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 3 in .*trainer does not fit this run") as caught:
        make(tmp_path).resume()
    assert "\n" not in str(caught.value)


def poison(trainer: Trainer, bad: set[int]) -> None:
    step, made = trainer.learner.step, 0

    def broken(parts: list, tokens: int) -> Report:  # type: ignore[type-arg]
        nonlocal made
        made += 1
        if made not in bad:
            return step(parts, tokens)
        embedding = trainer.learner.model.output.weight  # type: ignore[union-attr]
        with torch.no_grad():
            embedding[5] = float("nan")
        return step(parts, tokens)

    trainer.learner.step = broken  # type: ignore[method-assign, assignment]


def test_a_loss_that_is_no_number_sends_the_run_back_to_the_last_good_checkpoint(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    poison(trainer, {8})
    events = run(trainer)
    (note,) = [event for event in events if isinstance(event, Note)]
    assert "step 8: the loss is nan" in note.text
    assert "back to step 6, at half the learning rate" in note.text
    reports = [event for event in events if isinstance(event, Report)]
    assert [report.step for report in reports] == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12]
    assert [report.learning_rate for report in reports[6:8]] == [1e-2, 5e-3]
    assert all(torch.isfinite(p).all() for p in trainer.learner.parameters)


def in_draws(trainer: Trainer, size: int) -> list[Position]:
    """Have the work of so many steps come at once, as if it had been drawn; where the stream was asked to go on."""
    stream, asked = trainer.stream, list[Position]()

    def drawn(position: Position) -> Iterator[Work]:
        asked.append(position)
        coming = stream(position)
        while True:
            first, *then = [next(coming) for _ in range(size)]
            after = then[-1].after
            yield replace(first, after=after, then=[replace(work, after=after) for work in then], seconds=100.0)

    trainer.stream = drawn
    return asked


def test_work_that_was_drawn_at_once_is_kept_until_it_is_done(tmp_path: Path, through: Trainer) -> None:
    first = make(tmp_path)
    in_draws(first, 4)
    with first.learner:
        for event in first.run():
            if isinstance(event, Report):
                assert (event.seconds > 100) == (event.step % 4 == 1)
                if event.step == 6:
                    first.interrupt()
    second = make(tmp_path)
    asked = in_draws(second, 4)
    assert second.resume()
    assert len(second.ahead) == 2
    assert second.ahead[0].after == second.position
    run(second)
    assert same(second, through)
    assert asked == [first.position]


def test_a_draw_that_broke_the_run_is_left_out(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    *_, eighth = [work.after for work in islice(trainer.stream(Position()), 8)]
    asked = in_draws(trainer, 4)
    poison(trainer, {8})  # the last of the second draw; the checkpoint is of step 6, within it
    events = run(trainer)
    assert [event.step for event in events if isinstance(event, Report)] == [*range(1, 8), *range(7, 13)]
    assert asked == [Position(), eighth]


def test_a_run_that_keeps_breaking_gives_up_with_advice(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    poison(trainer, set(range(2, 50)))
    with trainer.learner, pytest.raises(ValueError, match=r"4th time: lower train\.schedule\.peak"):
        list(trainer.run())


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    step = trainer.learner.step

    def broken(parts: list, tokens: int) -> Report:  # type: ignore[type-arg]
        report = step(parts, tokens)
        if report.step == 6 and not trainer.retreats:
            with torch.no_grad():
                trainer.learner.model.output.weight[5] = float("nan")  # type: ignore[union-attr]
        return report

    trainer.learner.step = broken  # type: ignore[method-assign, assignment]
    events = run(trainer)
    (note,) = [event for event in events if isinstance(event, Note)]
    assert "step 7: the loss is nan" in note.text
    assert "back to step 3" in note.text
    assert events[-1] == Finished(12, "done")


def test_a_last_step_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    trainer.learner.sound = lambda: trainer.learner.steps < 12  # type: ignore[method-assign]
    assert run(trainer)[-2:] == [
        Note("step 12 is not saved: its weights are no numbers; step 9 is"),
        Finished(12, "done"),
    ]
    assert trainer.saved == 9


def test_other_data_is_not_taken_for_the_same_run(tmp_path: Path) -> None:
    run(make(tmp_path, steps=3))
    other = make(tmp_path)
    other.identity = "other"
    with pytest.raises(ValueError, match="the training data has changed since this run began"):
        other.resume()


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    for attempt in range(2):
        trainer = make(tmp_path, steps=100, patience=2)
        trainer.validate = lambda model, step: Validation(step, -float(step), {}, [])
        assert trainer.resume() == bool(attempt)
        assert run(trainer)[-1] == Finished(12, "patience")


def test_patience(tmp_path: Path) -> None:
    trainer = make(tmp_path, steps=100, patience=2)
    assert trainer.validate is not None
    trainer.validate = lambda model, step: Validation(step, -float(step), {}, [])
    events = run(trainer)
    assert events[-1] == Finished(12, "patience")
    assert trainer.best["step"] == 4


def test_an_average_of_the_last_snapshots(tmp_path: Path) -> None:
    trainer = make(tmp_path, average=3, snapshot_every=1)
    kept = {}
    with trainer.learner:
        for event in trainer.run():
            if isinstance(event, Report):
                kept[event.step] = weights(trainer)
    for name, mean in trainer.final().items():
        expected = sum(kept[step][name].double() for step in (10, 11, 12)) / 3
        torch.testing.assert_close(mean.double(), expected, rtol=1e-6, atol=1e-7)


def test_minutes_become_steps_once_and_survive_a_resume(tmp_path: Path) -> None:
    minutes = 0.002
    trainer = make(tmp_path, steps=None, minutes=minutes)
    events = run(trainer)
    (note,) = [event for event in events if isinstance(event, Note)]
    assert note.text == f"{trainer.total:,} steps will take about 0.002 minutes"
    assert events[-1] == Finished(trainer.total, "done")
    again = make(tmp_path, steps=None, minutes=minutes)
    assert again.resume()
    assert again.total == trainer.total


def timed(trainer: Trainer, seconds: Callable[[int], float]) -> Trainer:
    """The same, as if each step took so long."""
    step = trainer.learner.step

    def stepped(*arguments: Any) -> Report:
        report = step(*arguments)
        return replace(report, seconds=seconds(report.step))

    trainer.learner.step = stepped  # type: ignore[method-assign]
    return trainer


def test_the_first_step_says_nothing_of_the_others(tmp_path: Path) -> None:
    trainer = timed(make(tmp_path, steps=None, minutes=1), lambda step: 100.0 if step == 1 else 1.5)
    notes = [event.text for event in run(trainer) if isinstance(event, Note)]
    assert (trainer.total, notes) == (40, ["40 steps will take about 1 minutes"])


def test_a_machine_that_becomes_busy_is_spoken_of_once(tmp_path: Path) -> None:
    trainer = timed(make(tmp_path, steps=None, minutes=1), lambda step: 1.5 if step < 10 else 10.0)
    _, late = [event.text for event in run(trainer) if isinstance(event, Note)]
    assert trainer.total == 40  # all the same
    assert re.match(r"this machine is busier than at the start: about \d+ more minutes for \d+ steps; or Ctrl-C", late)


@pytest.mark.slow
def test_kill_9_at_random_moments_changes_nothing(tmp_path: Path) -> None:
    """Ten times, each in a process of its own; the moments are random, the weights at the end are not."""
    program = f"""
import importlib.util, pathlib, safetensors.torch, sys, torch
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("t", {__file__!r})
t = importlib.util.module_from_spec(spec)
spec.loader.exec_module(t)
trainer = t.make(pathlib.Path(sys.argv[1]), steps=60, average=3, snapshot_every=5)
trainer.resume()
print("ready", flush=True)
with trainer.learner:
    for event in trainer.run():
        print(type(event).__name__, flush=True)
for name, tensors in (("final", trainer.final()), ("last", t.weights(trainer))):
    safetensors.torch.save_file(tensors, sys.argv[1] + "/" + name)
"""
    draw, killed, end = random.Random(), 0, tmp_path / "run" / "last"
    while not end.exists():
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if killed < 10:
            for _ in range(draw.randrange(3, 14)):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
        else:
            process.communicate()
            assert process.returncode == 0
    assert killed == 10, f"done after {killed} kills: make the run longer"
    trainer = make(tmp_path / "through", steps=60, average=3, snapshot_every=5)
    run(trainer)
    for name, tensors in (("last", weights(trainer)), ("final", trainer.final())):
        found = load_file(tmp_path / "run" / name)
        assert all(torch.equal(x, found[key]) for key, x in tensors.items())
