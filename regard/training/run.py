"""A whole training run: steps, validations, checkpoints, and what happens when something goes wrong.

`Trainer.run` yields what happens as it happens; showing and logging it is the caller's business.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data.batching import Batch, Position
from regard.training.checkpoints import CheckpointError, Checkpoints, Snapshots, average
from regard.training.loop import DivergedError, Learner, Report, parameters_of

CALIBRATION = 30.0  # seconds of steps from which `train.minutes` becomes a number of steps
LATE = 30.0  # seconds behind that plan which are worth a word
UNKNOWN = 10**9  # the number of steps until then
RETREATS = 3  # times that a run may diverge


@dataclass(frozen=True)
class Work:
    """What one step learns from, and the data position after it.

    What was drawn from the model as it was cannot be made again from a position: the work that it makes, of several
    steps, comes at once, and is kept until it is done.
    """

    parts: list[Batch]
    tokens: int
    after: Position
    then: Sequence["Work"] = ()  # of the next steps
    seconds: float = 0.0  # that it took to draw it

    def state(self) -> dict[str, Any]:
        """All of it that a checkpoint keeps."""
        parts = [{"tensors": dict(part.tensors), "count": part.count} for part in self.parts]
        return {"parts": parts, "tokens": self.tokens, "after": [self.after.epoch, self.after.batch]}

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Work":
        """What a checkpoint has kept."""
        return cls([Batch(**part) for part in state["parts"]], state["tokens"], Position(*state["after"]))


LONGEST = 400  # characters of a sample that are shown


class Sample(NamedTuple):
    """What a model makes of something that it has not learnt from."""

    asked: str
    said: str
    expected: str

    def line(self) -> str:
        """For a person to read, on one line; of what is long, beginning and end."""
        asked, said = (" ⏎ ".join(text.split("\n")) for text in (self.asked, self.said))
        asked, said = (x if len(x) <= LONGEST else f"{x[: LONGEST // 2]} … {x[-LONGEST // 2 :]}" for x in (asked, said))
        return f"“{asked}” → “{said}”"


@dataclass(frozen=True)
class Validation:
    """How good the model is by now; `score` is what is to be as large as possible."""

    step: int
    score: float
    measures: dict[str, float]
    samples: list[Sample]
    best: bool = False


@dataclass(frozen=True)
class Note:
    """Something that a person should know."""

    text: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    step: int


@dataclass(frozen=True)
class Finished:
    """The end: `why` is done, patience or interrupted."""

    step: int
    why: str


Event = Report | Validation | Note | Saved | Finished


class Trainer:
    """A learner, its data, and its place on disk.

    `directory` keeps the state to resume from, which must be of the same `identity` (of its data), and with it the
    `settings` that have led to it, for whoever compares them. `stream` gives the work that follows a data position;
    `validate` measures a model in eval mode, before the `first` step as well if it is to. Call `interrupt` at any time
    (from a signal handler, say) to save and stop after the step at hand.
    """

    def __init__(
        self,
        learner: Learner,
        stream: Callable[[Position], Iterator[Work]],
        directory: Path,
        *,
        total: int | None,
        identity: str = "",
        settings: Mapping[str, Any] | None = None,
        validate: Callable[[nn.Module, int], Validation] | None = None,
        first: bool = False,
    ) -> None:
        self.learner, self.stream, self.validate, self.first = learner, stream, validate, first
        self.config, self.world = learner.config, learner.world
        self.warnings: list[str] = []
        self.checkpoints = Checkpoints(directory, keep=self.config.keep, warn=self.warnings.append)
        self.snapshots = Snapshots(directory / "snapshots")
        self.total, self.identity, self.settings = total or UNKNOWN, identity, dict(settings or {})
        self.position = Position(0, 0)
        self.ahead: list[Work] = []  # made already, and to be done before the stream is asked for more
        self.best: dict[str, Any] = {"step": 0, "score": None, "waited": 0}
        self.seconds = 0.0  # spent in steps
        self.retreats = 0
        self._interrupted = self._told = False
        self.saved = -1  # the step of the last checkpoint
        self._saved_at, self._saved_best = 0.0, 0

    def interrupt(self) -> None:
        """Save and stop after the step at hand."""
        self._interrupted = True

    def resume(self) -> bool:
        """Go on from the newest good checkpoint, if there is one."""
        found = self._newest()
        if found is None:
            return False
        step, state = found
        if not isinstance(state, dict) or state.get("identity") != self.identity:
            raise ValueError(
                "the training data has changed since this run began, or its teacher: put it back, or begin another run"
            )
        if (before := state.get("threads")) != (threads := torch.get_num_threads()):
            text = f"this run began with {before} threads, and goes on with {threads}: its last bits will differ"
            self.warnings.append(text)
        self._load(step, state)
        return True

    def run(self) -> Iterator[Event]:
        """Train to the end."""
        if self.learner.steps == 0:
            yield from self._save()  # so that there always is a last good one
        yield from self._warn()
        if self.learner.steps == 0 and self.first:
            self._snapshot()
            yield from self._look()
        work = self.stream(self.position)
        why = "done"
        while self.learner.steps < self.total and not self._impatient():
            item = self.ahead.pop(0) if self.ahead else next(work)
            self.ahead.extend(item.then)
            try:
                report = self.learner.step(item.parts, item.tokens)
                report = replace(report, seconds=report.seconds + item.seconds)
            except DivergedError as error:
                yield from self._retreat(error, item.after)
                work = self.stream(self.position)
                continue
            self.position = item.after
            if report.step > 1:  # the first one may compile kernels: it says nothing of the others
                self.seconds += report.seconds
            yield report
            yield from self._calibrate()
            yield from self._slower()
            last = report.step == self.total
            if last or report.step % self.every == 0 or report.step % (self.config.snapshot_every or UNKNOWN) == 0:
                self._snapshot()
            if last or report.step % self.every == 0:
                yield from self._look()
            interrupted, due = self.world.sums(self._interrupted, self.world.main and self._due())
            if interrupted:
                why = "interrupted"
                break
            if due:
                yield from self._save()
        if self.saved != self.learner.steps:
            yield from self._save()
        if self.saved != self.learner.steps:
            yield Note(f"step {self.learner.steps:,} is not saved: its weights are no numbers; step {self.saved:,} is")
        yield Finished(self.learner.steps, "patience" if why == "done" and self._impatient() else why)

    def _impatient(self) -> bool:
        return self.config.patience is not None and self.best["waited"] >= self.config.patience

    def _warn(self) -> Iterator[Event]:
        yield from map(Note, self.warnings)
        self.warnings.clear()

    @property
    def every(self) -> int:
        """Steps from one validation to the next."""
        return self.config.validate_every or max(1, self.total // 10)

    def final(self) -> dict[str, Tensor]:
        """The parameters to keep: an average if one was asked for, the best otherwise, the last without validation.

        A damaged snapshot is passed over with a warning, and the last takes the place of the best.
        """
        whole = self.snapshots.whole(self.warnings.append)
        best = [] if self.config.ema or self.best["score"] is None else [self.best["step"]]
        if self.config.average or not whole.keys() & best:
            return average([*whole.values()][-max(1, self.config.average) :])
        return average([whole[self.best["step"]]])

    def _calibrate(self) -> Iterator[Event]:
        """Turn minutes into a number of steps, once: from then on the run is a function of its seed."""
        minutes = self.config.minutes
        if self.total != UNKNOWN or minutes is None or self.seconds < min(CALIBRATION, 6 * minutes):
            return
        steps = self.learner.steps - 1  # that were timed
        self.total = self.world.agree(max(self.learner.steps, round(steps * minutes * 60 / self.seconds)))
        yield Note(f"{self.total:,} steps will take about {minutes:g} minutes")
        yield from self._save()  # a run that is killed and resumed must not count anew

    def _slower(self) -> Iterator[Event]:
        """Say, once, that minutes will not do: other programs have begun to use the machine."""
        minutes, steps = self.config.minutes, self.learner.steps
        if self._told or minutes is None or self.total == UNKNOWN or steps == self.total:
            return
        planned = minutes * 60 * steps / self.total
        if self.seconds > max(1.5 * planned, planned + LATE):
            self._told, left = True, self.seconds / steps * (self.total - steps) / 60
            yield Note(
                f"this machine is busier than at the start: about {left:.0f} more minutes for {self.total - steps:,} "
                "steps; or Ctrl-C, and the same command goes on another time"
            )

    def _snapshot(self) -> None:
        """Keep the weights: of the last few, to be averaged, and of the best, now and at the last checkpoint."""
        with self.learner.evaluated() as model:
            if self.world.main:
                self.snapshots.save(self.learner.steps, parameters_of(model))
                # A run that goes back to the checkpoint needs again what was the best then.
                self.snapshots.prune(max(1, self.config.average), besides=[self.best["step"], self._saved_best])

    def _look(self) -> Iterator[Event]:
        """Validate, and remember the best."""
        seen: Validation | None = None
        with self.learner.evaluated() as model:
            if self.world.main:
                seen = None if self.validate is None else self.validate(model, self.learner.steps)
        seen = self.world.agree(seen)
        best = seen is not None and (self.best["score"] is None or seen.score >= self.best["score"])
        if seen is not None and best:
            self.best = {"step": seen.step, "score": seen.score, "waited": 0}
        else:
            self.best = {**self.best, "waited": self.best["waited"] + 1}
        if seen is not None:
            yield Validation(seen.step, seen.score, seen.measures, seen.samples, best)

    def _due(self) -> bool:
        if self.config.checkpoint_every is not None:
            return self.learner.steps % self.config.checkpoint_every == 0
        return self.seconds - self._saved_at >= 60 * self.config.checkpoint_minutes

    def _save(self) -> Iterator[Event]:
        if not self.learner.sound():  # the next step will notice, and go back to a checkpoint that is
            return
        state = {
            "identity": self.identity,
            "settings": self.settings,
            "threads": torch.get_num_threads(),
            "minutes": self.config.minutes,
            "learner": self.learner.state(),
            "total": self.total,
            "position": [self.position.epoch, self.position.batch],
            "ahead": [work.state() for work in self.ahead],
            "best": self.best,
            "seconds": self.seconds,
            "retreats": self.retreats,
        }
        self.checkpoints.save(self.learner.steps, state, main=self.world.main)
        self.world.wait()
        self.saved, self._saved_at, self._saved_best = self.learner.steps, self.seconds, self.best["step"]
        yield Saved(self.learner.steps)

    def _newest(self) -> tuple[int, Any] | None:
        """The newest good checkpoint, in every process: each takes its own share of a model from the disk, if it has
        one, and no more than a tensor at a time."""
        if not self.learner.sharded:
            return self.world.agree(self.checkpoints.latest() if self.world.main else None)
        found = self.checkpoints.latest(mapped=True)
        mine, first = found and found[0], self.world.agree(found and found[0])
        if mine != first:
            raise ValueError(
                f"{self.checkpoints.directory} ends with step {mine} for this process, and step {first} for the first "
                "one: train.distributed=fsdp needs a disk that all hosts see"
            )
        return found

    def _load(self, step: int, state: dict[str, Any]) -> None:
        try:
            self.learner.load(state["learner"])
            if self.config.minutes is not None:
                self.total = int(state["total"]) if state["minutes"] == self.config.minutes else UNKNOWN
            self.position = Position(*map(int, state["position"]))
            self.ahead = [Work.of(each) for each in state.get("ahead", ())]
            score, steps = state["best"]["score"], [int(state["best"][key]) for key in ("step", "waited")]
            self.best = {"step": steps[0], "score": None if score is None else float(score), "waited": steps[1]}
            self.seconds, self.retreats = float(state["seconds"]), int(state["retreats"])
            if self.learner.steps != step or min(self.position.epoch, self.position.batch, self.best["step"]) < 0:
                raise ValueError(f"it is after step {self.learner.steps}, at {self.position}")
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            place = self.checkpoints.directory
            text = f"the checkpoint of step {step} in {place} does not fit this run ({error})"
            raise CheckpointError(f"{text}: remove it to go on from the one before, or begin another run") from error
        self.saved, self._saved_at, self._saved_best = self.learner.steps, self.seconds, self.best["step"]

    def _retreat(self, error: DivergedError, after: Position) -> Iterator[Event]:
        """Back to the last good checkpoint; go on behind the batch that broke it, at half the learning rate."""
        retreats = self.retreats + 1
        if retreats > RETREATS:
            raise DivergedError(f"{error}, for the {retreats}th time: lower train.schedule.peak, or train.clip")
        found = self._newest()
        if found is None:
            raise error
        yield from self._warn()
        self._load(*found)
        self.position, self.retreats, self.learner.damping = after, retreats, 0.5**retreats
        self.ahead = []  # drawn with what broke it, or before
        yield Note(f"{error}; back to step {found[0]}, at half the learning rate")
        yield from self._save()
