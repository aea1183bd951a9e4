"""From a recipe to a model directory: data, sub-words, training, evaluation."""

import json
import math
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from regard.adaptation.change import changed, settled
from regard.core.added import own
from regard.data.batching import token_batches
from regard.data.corpora import CORPORA
from regard.data.recordings import SPELLING
from regard.files import alone_in, discard, read_whole, vacant, write_whole
from regard.models import storage
from regard.models.family import build, family
from regard.models.seer import sight_of
from regard.recipes import reading
from regard.recipes.prepare import Prepared, prepare
from regard.recipes.recipe import Recipe
from regard.recipes.rewards import Worth, worth
from regard.recipes.teachers import check_teacher, taught
from regard.tasks.prefer import fingerprint
from regard.tasks.task import Task
from regard.tasks.task import task as task_named
from regard.training.batch_size import largest_batch
from regard.training.checkpoints import Checkpoints
from regard.training.display import Display, fetching
from regard.training.distributed import World, world
from regard.training.journal import Journal
from regard.training.loop import Learner, load_parameters
from regard.training.memory import OnDisk
from regard.training.objectives import SCAFFOLDS, Objective
from regard.training.optimisers import named_like
from regard.training.run import UNKNOWN, Event, Finished, Trainer, Validation
from regard.training.schedules import schedule
from regard.training.stream import counted

SHOWN = 5  # held-out sentences shown at the end
# What cannot change in a run that has begun. Of batch_tokens and seed follows which rows are still to come.
FIXED = re.compile(r"(task|data|tokens|model|distil)\..+|changes|train\.(optimiser\..+|ema|batch_(tokens|rows)|seed)")
# Where the text and the teacher are: what they say is compared.
MOVABLE = re.compile(r"data\.(corpus|languages|(train|valid|test)\..+)|distil\.teacher")
DERIVED = ("shortlist.safetensors", "heads.json", "heads.html")  # from a model that was here, at a person's wish
PRODUCTS = (
    *("trainer", "tensorboard", "metrics.jsonl", "evaluation.json", "model.safetensors", "config.json"),
    storage.TEMPLATE,
    SPELLING,
    *DERIVED,
)


def train(
    recipe: Recipe,
    directory: Path,
    *,
    name: str,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
    reward: Worth | None = None,
) -> bool:
    """Train, evaluate, and leave a model directory; False if interrupted: call again with `resume`.

    A run that is there already is refused, unless it is to `resume` or to `overwrite`. `reward` is for a recipe to
    reinforce that names no model for it: prompts and answers in, what each answer is worth out.
    """
    console = console or Console()
    with world(minutes=recipe.train.timeout_minutes) as here, ExitStack() as lock:
        resume = here.agree(resume)  # the first process has the run; another host may not see it
        say = Display(console if here.main else Console(quiet=True))
        data, mistake, before, told = None, None, {}, None
        if here.main:
            try:
                lock.enter_context(alone_in(directory))  # for all processes of this run
                if not resume:
                    check_place(directory, overwrite=overwrite)
                before = _check(recipe, directory if resume else None)
                told = worth(recipe, reward)
                data = _ready(recipe, say)
            except (ValueError, OSError) as error:
                mistake = error
        if here.agree(mistake is not None):
            raise mistake or SystemExit(2)  # one process tells of it
        data = data or prepare(recipe)
        torch.manual_seed(recipe.train.seed)
        directory.mkdir(parents=True, exist_ok=True)
        with _room(recipe, directory, here):
            model = _begin(recipe, data)
        _introduce(say, name, recipe, data, model)
        if recipe.train.batch == 0:
            task = data.task
            length, collate = task.length(recipe), task.collate(data.tokenizer, 0.0)
            objective, _ = _objective(recipe, data.task, data, model, here)
            (row,) = task.corpus(data.train).rows(np.zeros(1, np.int64))
            ragged = [column.ragged for column in data.train.columns.values()]
            example = stretched(row, ragged, length - 1)
            found = largest_batch(
                objective, recipe.train, here, length=length, probe=lambda rows: collate([example] * rows, Random(0))
            )
            recipe = replace(recipe, train=replace(recipe.train, batch_tokens=found))
            say.line("batches", f"of {found:,} tokens, the largest that fit in memory (train.batch_tokens={found})")
        with say.console.status("  asking the model before its first step"):
            run = _Run(recipe, directory, data, model, here, told)
        with run.learner:
            if resume and run.trainer.resume():
                say.line("resumed", f"after step {run.trainer.learner.steps:,}")
                for key, was, now in _changes(before, run.trainer.settings):
                    say.line("changed", f"{key}: {json.dumps(now)}, {json.dumps(was)} until now")
            if here.main:
                run.begin(resume)
            with say, interrupting(run.trainer.interrupt):
                last = run.follow(say)
            if last.why == "interrupted":
                kept = run.trainer.saved
                how = "saved" if kept == last.step else f"its weights are no numbers, so step {kept:,} is the one saved"
                say.line("stopped", f"after step {last.step:,}; {how}. Go on with: regard train {directory}")
                return False
            if here.main:
                run.finish(say)
            here.wait()
    return True


def begun(directory: Path, recipe: Recipe) -> bool:
    """Whether a directory holds a run of this very recipe: what that leaves open, the run has filled in."""
    if not (directory / "recipe.yaml").exists():
        return False
    before = reading.load(str(directory / "recipe.yaml"))
    train = replace(before.train, shards=recipe.train.shards)
    decode = replace(before.decode, split=recipe.decode.split, stops=recipe.decode.stops)
    return replace(before, train=train, decode=decode) == recipe


def check_place(directory: Path, *, overwrite: bool) -> None:
    """Refuse to begin a run where something else is, or a run that is not to be overwritten."""
    if not directory.exists() or vacant(directory, besides="distilled-"):
        return  # what a teacher has said lies there before the student's run begins
    if not (directory / "recipe.yaml").exists():
        raise ValueError(f"{directory} is not empty, and not a run of regard: choose another place")
    if not overwrite:
        raise ValueError(
            f"{directory} is not empty: go on with it by `regard train {directory}` (resume=True), replace it by "
            "`regard train --overwrite` (overwrite=True), or choose another place"
        )


def _check(recipe: Recipe, directory: Path | None) -> dict[str, Any]:
    """Find mistakes that would otherwise show after minutes of work; in a run to resume, changes it cannot bear.

    A run's settings until now are those of its checkpoint, which are returned: its recipe.yaml may have been edited.
    """
    schedule(recipe.train.schedule, d_model=1, total=UNKNOWN)(1)
    recipe.purpose().rehearse()
    check_teacher(recipe)
    if recipe.changes and recipe.model.base is not None:
        changed(storage.shape(recipe.model.base), recipe.changes)  # refuses what does not fit
    if directory is None:
        return {}
    _, state = Checkpoints(directory / "trainer", warn=lambda text: None).latest(tensors=False) or (0, {})
    before = state.get("settings") if isinstance(state, dict) else None
    if not before:  # of an older regard
        before = settings_of(reading.load(str(directory / "recipe.yaml")))
    for key, was, now in _changes(before, settings_of(recipe)):
        if FIXED.fullmatch(key) and not MOVABLE.fullmatch(key):
            raise ValueError(
                f"{key} = {json.dumps(now)} cannot change in a run that has begun with {json.dumps(was)}: put it back "
                f"in {directory / 'recipe.yaml'}, or begin another one, with --out"
            )
    return dict(before)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every setting of a recipe by its place: train.seed, train.optimiser.name."""

    def flat(values: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from flat(value, f"{place}{key}.")
            else:
                yield f"{place}{key}", value

    return dict(flat(recipe.settings()))


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings that are others now: place, old and new value. What only one regard knows is none."""
    return [(key, before[key], now[key]) for key in now if key in before and before[key] != now[key]]


def _ready(recipe: Recipe, say: Display) -> Prepared:
    """The data: a mistake in it shows before anything is written or removed."""
    c = recipe.train
    if recipe.data.corpus is not None:
        with fetching(say.console) as progress:
            recipe.data.files(progress)
    worded = task_named(recipe.task.name).worded
    rows = task_named(recipe.task.name).rows
    with say.console.status("  reading text, learning sub-words" if worded else f"  reading {rows}"):
        data = prepare(recipe)
    if c.batch:
        corpus = counted(data.task.corpus(data.train), c)
        token_batches(corpus, tokens=c.batch, seed=c.seed, epoch=0)  # refuses what fits in no batch
    return data


def _begin(recipe: Recipe, data: Prepared) -> nn.Module:
    """The model before its first step: new, or with the weights of another."""
    config = recipe.model.build(len(data.tokenizer) if data.task.worded else 0)
    head = data.task.head(family(recipe.model.family).model)
    if recipe.changes and recipe.model.base is not None:
        model = storage.begin(recipe.model.base, config, head, recipe.changes)
    else:
        model = build(config, head)
        if recipe.model.base is not None:
            storage.adopt(model, recipe.model.base)
    if recipe.model.sees is not None:
        seen = storage.load(recipe.model.sees, dtype=torch.float32)
        unknown = model.load_state_dict(sight_of(seen.config, seen.state_dict()), strict=False).unexpected_keys
        if unknown:
            raise ValueError(f"{recipe.model.sees} was changed after it was built: {unknown[0]} has no place here")
    return model


def _room(recipe: Recipe, directory: Path, here: World) -> AbstractContextManager[Any]:
    """Where a whole model is: in memory, or on the disk where no process need be able to hold it."""
    return OnDisk(directory) if here.size > 1 and recipe.train.distributed == "fsdp" else nullcontext()


def _objective(
    recipe: Recipe, task: Task, data: Prepared, model: nn.Module, here: World
) -> tuple[Objective, nn.Module | None]:
    """What training minimises, and the teacher that has a share in it, if there is one."""
    own = task.objective(model, recipe.train.smoothing, data.tokenizer)
    return (own, None) if recipe.distil.teacher is None else taught(own, recipe, data, here.device)


class _Run:
    """One run of a recipe: what is needed from its first step to its evaluation."""

    def __init__(
        self, recipe: Recipe, directory: Path, data: Prepared, model: nn.Module, here: World, told: Worth | None = None
    ) -> None:
        read = {key: value for key, value in data.habits.items() if getattr(recipe.decode, key) is None}
        recipe = replace(recipe, decode=replace(recipe.decode, **read))
        self.directory, self.data, self.model, self.here = directory, data, model, here
        self.recipe, c = recipe, recipe.train
        self.task = data.task.equipped(model.to(here.device), data.tokenizer, told, here.size)
        held_out, drawn = (data.valid, data.test), self.task.corpus(data.train)
        self.corpus = self.task.recalled(model, drawn, data.tokenizer, held_out)
        objective, teacher = _objective(recipe, self.task, data, model, here)
        self.learner = Learner(objective, self._rate, c, here)
        # Complete: how text is read and how many threads share a batch are part of what the run is.
        self.recipe = replace(recipe, train=replace(c, shards=self.learner.shards))
        collate = self.task.collate(data.tokenizer, recipe.tokens.dropout)
        self.trainer = Trainer(
            self.learner,
            lambda position: self.task.stream(self.corpus, collate, c, here, position),
            directory / "trainer",
            total=self._total(),
            identity=data.identity if teacher is None else f"{data.identity} {fingerprint(teacher)}",
            settings=settings_of(self.recipe),
            validate=self._validate,
            first=self.task.beforehand,
        )

    def begin(self, resume: bool) -> None:
        """Write down what the run is."""
        if not resume:  # forget a run that was here before
            for name in PRODUCTS:
                discard(self.directory / name)
        write_whole(self.directory / "recipe.yaml", reading.dump(self.recipe))
        if self.task.worded:
            self.data.tokenizer.save(self.directory / "tokenizer.json")
        if template := getattr(self.task, "chat", ""):
            write_whole(self.directory / storage.TEMPLATE, template)
        if (base := self.recipe.model.base) and (Path(base) / SPELLING).is_file():
            write_whole(self.directory / SPELLING, read_whole(Path(base) / SPELLING))

    def _rate(self, step: int) -> float:
        """The learning rate; a run that is shorter than its warm-up only warms up."""
        total, plan = self.trainer.total, self.recipe.train.schedule
        plan = replace(plan, warmup=min(plan.warmup, total))
        return schedule(plan, d_model=self.model.config.d_model, total=total)(step)  # type: ignore[union-attr, arg-type]

    def _total(self) -> int | None:
        c = self.recipe.train
        if c.epochs is None:
            return c.steps
        batches = sum(1 for _ in token_batches(counted(self.corpus, c), tokens=c.batch, seed=c.seed, epoch=0))
        return max(1, math.ceil(c.epochs * batches)) * self.task.steps()

    def follow(self, say: Display) -> Finished:
        """Train; show and note what happens."""
        event: Event | None = None
        with Journal(self.directory, self.learner.steps) if self.here.main else nullcontext() as journal:
            for event in self.trainer.run():
                if journal is not None:
                    journal.write(event)
                say.show(event, self.trainer.total)
        assert isinstance(event, Finished)
        return event

    def _opened(self, model: nn.Module) -> Any:
        """Who uses the model; one that need not fit into memory is not copied into the C engine."""
        predictor = self.task.open([model], self.data.tokenizer, self.recipe.decode)
        if self.learner.sharded:
            predictor.engine = "torch"
        return predictor

    def _validate(self, model: nn.Module, step: int) -> Validation:
        predictor = self._opened(model)
        score, measures, samples, _ = self.task.measure(predictor, self.data.valid, self.recipe)
        turn = step // self.trainer.every * 7 % len(samples)
        return Validation(step, score, measures, [*samples, *samples][turn : turn + SHOWN])

    def finish(self, say: Display) -> None:
        """Write the model, and say how good it is on what it has never seen."""
        # A model of its own: the one that was trained may be in pieces, one in each process.
        with _room(self.recipe, self.directory, self.here):
            if self.recipe.changes:
                model = _begin(self.recipe, self.data)
            else:
                model = build(self.model.config, self.task.head(type(self.model)))
            final = {name: x for name, x in self.trainer.final().items() if name.split(".")[0] not in SCAFFOLDS}
            load_parameters(model.to(self.here.device), final)
            del final
        settled(model)
        for text in self.trainer.warnings:
            say.line("note", text)
        for name in DERIVED:  # of the weights that these take the place of
            (self.directory / name).unlink(missing_ok=True)
        storage.save(model, self.directory, storage.Purpose(self.task.noted(), asdict(self.recipe.decode)))
        predictor = self._opened(model)
        figures, samples = self.task.judge(predictor, self.data.test, self.recipe)
        write_whole(self.directory / "evaluation.json", json.dumps(figures, indent=2) + "\n")
        for name, figure in figures.items():
            if isinstance(figure, dict):
                say.line("held out", f"{name} {_shown(figure['score'])}  {figure['signature']}", "bold")
            else:
                say.line("", f"{name} {figure}")
        for row in np.random.default_rng(0).permutation(len(samples))[:SHOWN]:
            say.line("", samples[row].line())
        say.line("saved", str(self.directory))


def _shown(score: float) -> str:
    return f"{score:.1f}" if score >= 10 else f"{score:.3f}"


def _introduce(say: Display, name: str, recipe: Recipe, data: Prepared, model: nn.Module) -> None:
    task, corpus = data.task, CORPORA.get(recipe.data.corpus or "")
    say.unit = task.rows if task.by_rows else say.unit
    size = sum(p.numel() for p in model.parameters())
    title = f"{name} · {task.title(recipe)} · {size / 1e6:.1f} M parameters · {torch.get_num_threads()} cores"
    say.console.print(f"[bold]regard[/] · {title}", highlight=False)
    origin = f"{corpus.title} ({corpus.licence}), " if corpus else ""
    say.line("corpus", origin + task.counted(data.train, data.valid, data.test))
    for remark in data.remarks:
        say.line("", remark)
    whose = f"as in {recipe.origin}" if recipe.origin else f"{recipe.tokens.kind} sub-words{task.shares}"
    if task.worded:
        say.line("tokens", f"{len(data.tokenizer):,} {whose}")
    if recipe.distil.teacher is not None:
        say.line("teacher", f"{recipe.distil.teacher}, {recipe.distil.share:.0%} of the loss")
    if recipe.changes:
        held, names = named_like(model, recipe.train.freeze), ", ".join(n for each in recipe.changes for n in each)
        taught = sum(x.numel() for x in own(model).values()) - sum(p.numel() for p in held if p.requires_grad)
        names = names if recipe.model.sees is None else f"{recipe.model.sees} and {names}"
        say.line("model", f"{recipe.model.base} and {names}: {taught:,} parameters learn, {taught / size:.2%} of all")
    elif recipe.model.base is not None and (new := storage.unlike(model, recipe.model.base)):
        begins = recipe.model.base if recipe.model.sees is None else f"{recipe.model.base} and {recipe.model.sees}"
        new = [name for name in new if recipe.model.sees is None or not name.startswith("sight.")]
        say.line("model", f"begins as {begins}; new: {', '.join(new)}")


def stretched(row: Sequence[Any], ragged: Sequence[bool], length: int) -> tuple[Any, ...]:
    """An example with its ragged columns, and what goes along with one, repeated to a length.

    >>> stretched((np.array([5, 6]), np.array([0, 1]), np.array([9])), (True, False, False), 3)
    (array([5, 6, 5]), array([0, 1, 0]), array([9]))
    """
    sizes = {len(values) for values, of_text in zip(row, ragged, strict=True) if of_text}
    return tuple(np.resize(values, length) if len(values) in sizes else values for values in row)


@contextmanager
def interrupting(interrupt: Callable[[], None]) -> Iterator[None]:
    """Inside the block, Ctrl-C and a polite kill ask for a stop; a second one insists."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def ask(number: int, frame: object) -> None:
        interrupt()
        signal.signal(number, before[number])

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
