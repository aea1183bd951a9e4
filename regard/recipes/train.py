"""From a recipe to a model directory: data, sub-words, training, evaluation."""

import hashlib
import json
import math
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from regard.api import Translator
from regard.data.arrays import Table, pairs_of
from regard.data.batching import Batch, collate, token_batches
from regard.data.corpora import CORPORA, letters, obtain, split_of
from regard.data.sentences import Habits, habits
from regard.data.text import PairFiles, Skipped, fingerprint, read_pairs
from regard.data.tokenizers import Tokenizer
from regard.evaluation.calibration import perplexity
from regard.evaluation.translation import bleu, chrf
from regard.files import alone_in, cache_folder, discard, sweep, vacant, write_whole
from regard.models import storage
from regard.models.family import build
from regard.recipes import recipe as recipes
from regard.recipes.recipe import Recipe
from regard.training.batch_size import largest_batch
from regard.training.checkpoints import Checkpoints
from regard.training.display import Display, fetching
from regard.training.distributed import World, world
from regard.training.journal import Journal
from regard.training.loop import Learner, load_parameters
from regard.training.objectives import NextToken
from regard.training.run import UNKNOWN, Event, Finished, Trainer, Validation
from regard.training.schedules import schedule
from regard.training.stream import stream
from regard.training.validation import foretell

Pair = tuple[str, str]
SHOWN = 5  # held-out sentences shown at the end
FORMAT = 2  # of prepared data
LINES = 20_000  # by which it is told what the lines of a text are like
SAMPLE = 1_000_000  # pairs that sub-words are learnt from, at most: a learner holds every word that it meets
# What cannot change in a run that has begun. Of batch_tokens and seed follows which rows are still to come.
FIXED = re.compile(r"(data|tokens|model)\..+|train\.(optimiser\..+|ema|batch_tokens|seed)")
MOVABLE = re.compile(r"data\.(corpus|languages|(train|valid|test)\..+)")  # where the text is: what it says is compared
DERIVED = ("shortlist.safetensors", "heads.json", "heads.html")  # from a model that was here, at a person's wish
PRODUCTS = (
    *("trainer", "tensorboard", "metrics.jsonl", "evaluation.json", "model.safetensors", "config.json"),
    *DERIVED,
)


@dataclass(frozen=True)
class Prepared:
    """A recipe's data, ready to learn from."""

    tokenizer: Tokenizer
    train: Table
    valid: list[Pair]
    test: list[Pair]
    remarks: list[str]  # what was left out, and what should not be in
    habits: Habits  # what its lines are like
    identity: str  # the same for the same data


def prepare(recipe: Recipe, folder: Path | None = None) -> Prepared:
    """Read the text, learn the sub-words and write token arrays, once: `folder` is a cache by content."""
    splits = find_splits(recipe)
    if folder is None:
        sums = {split: fingerprint(files) for split, files in splits.files.items()}
        tokens = {**asdict(recipe.tokens), "dropout": 0.0}  # which acts in training only
        order = [recipe.data.target_order] if recipe.data.target_order != "forward" else []
        what = json.dumps([FORMAT, sums, tokens, recipe.data.max_length, recipe.data.limit, splits.modulus, *order])
        folder = cache_folder() / "prepared" / hashlib.sha256(what.encode()).hexdigest()[:24]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        sweep(folder.parent, ".preparing-*")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".preparing-") as partial:
            _build(recipe, splits, Path(partial) / "prepared")
            try:
                os.rename(Path(partial) / "prepared", folder)
            except OSError:
                if not folder.exists():  # else another process was first, with the same
                    raise
    tokenizer, arrays = Tokenizer.load(folder / "tokenizer.json"), Table.open(folder / "train")
    remarks = json.loads((folder / "remarks.json").read_text("utf-8"))
    held_out = {}
    for split in ("valid", "test"):
        skipped = Skipped()
        held_out[split] = list(splits.pairs(split, skipped))
        if not held_out[split]:
            raise ValueError(f"there is no pair to keep from training as data.{split}: give files for it")
        if split in splits.files and skipped.report():
            remarks.append(f"{split}: {skipped.report()}")
    known = Habits(*json.loads((folder / "habits.json").read_text("utf-8")))
    return Prepared(tokenizer, arrays, **held_out, remarks=remarks, habits=known, identity=folder.name)


def _build(recipe: Recipe, splits: "Splits", folder: Path) -> None:
    folder.mkdir()
    skipped, limit = Skipped(), recipe.data.limit
    count = sum(1 for _ in islice(splits.pairs("train", skipped), limit))
    every = 1 if recipe.tokens.kind in ("char", "none") else max(1, math.ceil(count / SAMPLE))
    sample = islice(splits.pairs("train"), 0, limit, every)
    tokenizer = Tokenizer.learn(recipe.tokens, (text for pair in sample for text in pair))
    given = [split for split in ("valid", "test") if split in splits.files]
    hidden = {letters(source) for split in given for source, _ in splits.pairs(split)}
    long = leaks = 0

    def tokens() -> Iterator[tuple[list[int], list[int]]]:
        nonlocal long, leaks
        pairs = islice(splits.pairs("train"), limit)
        while some := list(islice(pairs, 10_000)):
            leaks += sum(letters(source) in hidden for source, _ in some) if hidden else 0
            sources, targets = (tokenizer.encode_batch(side) for side in zip(*some, strict=True))
            for source, target in zip(sources, targets, strict=True):
                if max(len(source), len(target)) >= recipe.data.max_length:
                    long += 1
                else:
                    yield source, in_order(recipe, target)

    arrays = Table.build(folder / "train", tokens(), pairs_of(len(tokenizer)))
    if not len(arrays):
        raise ValueError(f"no training pair is left: all {long:,} have a side over data.max_length sub-words")
    remarks = [skipped.report()] if skipped.report() else []
    if long:
        remarks.append(f"skipped {_many(long)} with a side over {recipe.data.max_length} sub-words (data.max_length)")
    if leaks:
        remarks.append(f"the source of {_many(leaks)} is in valid or test, too: take them out for honest scores")
    tokenizer.save(folder / "tokenizer.json")
    write_whole(folder / "remarks.json", json.dumps(remarks))
    some = islice(splits.pairs("train"), 0, limit, max(1, math.ceil(count / LINES)))
    write_whole(folder / "habits.json", json.dumps(habits(some)))


def in_order(recipe: Recipe, target: list[int]) -> list[int]:
    """The tokens of a target as a model of this recipe writes them."""
    return target[::-1] if recipe.data.target_order == "backward" else target


def _many(pairs: int) -> str:
    return f"{pairs:,} pair{'' if pairs == 1 else 's'}"


@dataclass(frozen=True)
class Splits:
    """The files of each split; where `modulus` is set, sentences of train are held out for those that have none."""

    files: dict[str, PairFiles]
    modulus: int | None = None

    def pairs(self, split: str, skipped: Skipped | None = None) -> Iterator[Pair]:
        """The pairs of a split, in the order of their file."""
        if split in self.files and (self.modulus is None or split != "train"):
            return read_pairs(self.files[split], skipped=skipped)
        held_out = [name for name in ("valid", "test") if name not in self.files]
        pairs = read_pairs(self.files["train"], skipped=skipped)
        assert self.modulus is not None
        return (pair for pair in pairs if split_of(pair[0], self.modulus, held_out) == split)


def find_splits(recipe: Recipe) -> Splits:
    """Where a recipe's text is, split by split; a corpus that is known by name is fetched if need be."""
    data = recipe.data
    if data.corpus is not None:
        files = obtain(data.corpus)
    else:
        given = {"train": data.train, "valid": data.valid, "test": data.test}
        files = {name: split for name, split in given.items() if split is not None}
    if "valid" in files and "test" in files:
        return Splits(files)
    count = sum(1 for _ in read_pairs(files["train"]))
    if count < 20:
        raise ValueError(f"{count} training pairs are too few to hold any out: give data.valid and data.test")
    return Splits(files, modulus=max(20, count // data.hold_out))  # at most a twentieth each


def train(
    recipe: Recipe,
    directory: Path,
    *,
    name: str,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> bool:
    """Train, evaluate, and leave a model directory; False if interrupted: call again with `resume`.

    A run that is there already is refused, unless it is to `resume` or to `overwrite`.
    """
    console = console or Console()
    with world() as here, ExitStack() as lock:
        say = Display(console if here.main else Console(quiet=True))
        data, mistake, before = None, None, {}
        if here.main:
            try:
                lock.enter_context(alone_in(directory))  # for all processes of this run
                if not resume:
                    check_place(directory, overwrite=overwrite)
                before = _check(recipe, directory if resume else None)
                data = _ready(recipe, say)
            except (ValueError, OSError) as error:
                mistake = error
        if here.agree(mistake is not None):
            raise mistake or SystemExit(2)  # one process tells of it
        data = data or prepare(recipe)
        torch.manual_seed(recipe.train.seed)
        model = build(recipe.model.build(len(data.tokenizer)))
        _introduce(say, name, recipe, data, model)
        if recipe.train.batch_tokens == 0:
            length = recipe.data.max_length
            probe = partial(_longest, len(data.tokenizer), length)
            objective = NextToken(model, recipe.train.smoothing)
            found = largest_batch(objective, recipe.train, here, length=length, probe=probe)
            recipe = replace(recipe, train=replace(recipe.train, batch_tokens=found))
            say.line("batches", f"of {found:,} tokens, the largest that fit in memory (train.batch_tokens={found})")
        run = _Run(recipe, directory, data, model, here)
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
    before = recipes.load(str(directory / "recipe.yaml"))
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
    bleu(["a"], ["a"], tokenize=recipe.evaluate.tokenize)
    if directory is None:
        return {}
    _, state = Checkpoints(directory / "trainer", warn=lambda text: None).latest(tensors=False) or (0, {})
    before = state.get("settings") if isinstance(state, dict) else None
    if not before:  # of an older regard
        before = settings_of(recipes.load(str(directory / "recipe.yaml")))
    for key, was, now in _changes(before, settings_of(recipe)):
        if FIXED.fullmatch(key) and not MOVABLE.fullmatch(key):
            raise ValueError(
                f"{key} = {json.dumps(now)} cannot change in a run that has begun with {json.dumps(was)}: put it back "
                f"in {directory / 'recipe.yaml'}, or begin another one, with --out"
            )
    return dict(before)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Every setting of a recipe by its place: train.seed, train.optimiser.name."""
    found: dict[str, Any] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{place}.{key}")
        else:
            found[place.removeprefix(".")] = value

    walk({**asdict(recipe), "model": recipe.model.settings()}, "")
    return found


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings that are others now: place, old and new value. What only one regard knows is none."""
    return [(key, before[key], now[key]) for key in now if key in before and before[key] != now[key]]


def _ready(recipe: Recipe, say: Display) -> Prepared:
    """The data: a mistake in it shows before anything is written or removed."""
    c = recipe.train
    if recipe.data.corpus is not None:
        with fetching(say.console) as progress:
            obtain(recipe.data.corpus, progress=progress)
    with say.console.status("  reading text, learning sub-words"):
        data = prepare(recipe)
    if c.batch_tokens:
        token_batches(data.train, tokens=c.batch_tokens, seed=c.seed, epoch=0)  # refuses what fits in no batch
    return data


class _Run:
    """One run of a recipe: what is needed from its first step to its evaluation."""

    def __init__(self, recipe: Recipe, directory: Path, data: Prepared, model: nn.Module, here: World) -> None:
        read = {key: value for key, value in data.habits._asdict().items() if getattr(recipe.decode, key) is None}
        recipe = replace(recipe, decode=replace(recipe.decode, **read))
        self.directory, self.data, self.model, self.here = directory, data, model, here
        self.recipe, c = recipe, recipe.train
        self.learner = Learner(NextToken(model, c.smoothing), self._rate, c, here)
        # Complete: how text is read and how many threads share a batch are part of what the run is.
        self.recipe = replace(recipe, train=replace(c, shards=self.learner.shards))
        resample = None
        if recipe.tokens.dropout:
            resample = partial(_resample, data.tokenizer, recipe.tokens.dropout, recipe.data.max_length)

        def collated(pairs: Sequence[Any], draw: Random) -> Batch:
            return collate(pairs if resample is None else [(resample(s, draw), resample(t, draw)) for s, t in pairs])

        self.trainer = Trainer(
            self.learner,
            lambda position: stream(data.train, collated, c, here, position),
            directory / "trainer",
            total=self._total(),
            identity=data.identity,
            settings=settings_of(self.recipe),
            validate=self._validate,
        )
        encode, longest = data.tokenizer.encode, recipe.data.max_length
        ids = [(encode(source), in_order(recipe, encode(target))) for source, target in data.valid]
        self._valid = [pair for pair in ids if max(map(len, pair)) < longest] or ids

    def begin(self, resume: bool) -> None:
        """Write down what the run is."""
        if not resume:  # forget a run that was here before
            for name in PRODUCTS:
                discard(self.directory / name)
        write_whole(self.directory / "recipe.yaml", recipes.dump(self.recipe))
        self.data.tokenizer.save(self.directory / "tokenizer.json")

    def _rate(self, step: int) -> float:
        """The learning rate; a run that is shorter than its warm-up only warms up."""
        total, plan = self.trainer.total, self.recipe.train.schedule
        plan = replace(plan, warmup=min(plan.warmup, total))
        return schedule(plan, d_model=self.model.config.d_model, total=total)(step)  # type: ignore[union-attr, arg-type]

    def _total(self) -> int | None:
        c = self.recipe.train
        if c.epochs is None:
            return c.steps
        batches = sum(1 for _ in token_batches(self.data.train, tokens=c.batch_tokens, seed=c.seed, epoch=0))
        return max(1, math.ceil(c.epochs * batches))

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

    def _validate(self, model: nn.Module, step: int) -> Validation:
        c = self.recipe.train
        seen = foretell(model, self._valid)
        some = self.data.valid[: c.validate_sentences]
        said = list(self._translator(model).translate_lines((source for source, _ in some), beam=1))
        e = self.recipe.evaluate
        references = [self.data.tokenizer.joined(target) for _, target in some]
        score = bleu(said, references, tokenize=e.tokenize, lowercase=e.lowercase).value
        measures = {"bleu": score, "loss": seen.loss, "perplexity": perplexity(seen.loss, 1), "accuracy": seen.accuracy}
        samples = [(source, text, target) for (source, target), text in zip(some, said, strict=True)]
        turn = step // self.trainer.every * 7 % len(samples)
        return Validation(step, score, measures, [*samples, *samples][turn : turn + SHOWN])

    def _translator(self, model: nn.Module) -> Translator:
        backward = self.recipe.data.target_order == "backward"
        return Translator(model, self.data.tokenizer, self.recipe.decode, backward=backward)

    def finish(self, say: Display) -> None:
        """Write the model, and say how good it is on what it has never seen."""
        # A model of its own: the one that was trained may be in pieces, one in each process.
        model = build(self.model.config).to(self.here.device)
        load_parameters(model, self.trainer.final())
        for text in self.trainer.warnings:
            say.line("note", text)
        for name in DERIVED:  # of the weights that these take the place of
            (self.directory / name).unlink(missing_ok=True)
        storage.save(model, self.directory)
        e, data = self.recipe.evaluate, self.data
        translator = self._translator(model)
        said = list(translator.translate_lines(source for source, _ in data.test))
        references = [data.tokenizer.joined(target) for _, target in data.test]
        scores = [
            bleu(said, references, tokenize=e.tokenize, lowercase=e.lowercase),
            chrf(said, references, lowercase=e.lowercase),
        ]
        result: dict[str, Any] = {s.name: {"score": s.value, "signature": s.signature} for s in scores}
        result["read"] = translator.reads
        write_whole(self.directory / "evaluation.json", json.dumps(result, indent=2) + "\n")
        for s in scores:
            say.line("held out", f"{s.name} {s.value:.1f}  {s.signature}", "bold")
        say.line("", f"read {translator.reads}")
        rows = np.random.default_rng(0).permutation(len(said))[:SHOWN]
        for row in rows:
            say.line("", f"“{data.test[row][0]}” → “{said[row]}”")
        say.line("saved", str(self.directory))


def _introduce(say: Display, name: str, recipe: Recipe, data: Prepared, model: nn.Module) -> None:
    languages, size = recipe.data.languages, sum(p.numel() for p in model.parameters())
    corpus = CORPORA.get(recipe.data.corpus or "")
    if corpus is not None and not any(languages):
        languages = corpus.languages
    pair = " → ".join(languages) if all(languages) else "source → target"
    title = f"{name} · {pair} · {size / 1e6:.1f} M parameters · {torch.get_num_threads()} cores"
    say.console.print(f"[bold]regard[/] · {title}", highlight=False)
    origin = f"{corpus.title} ({corpus.licence}), " if corpus else ""
    counts = f"{len(data.train):,} pairs · held out {len(data.valid):,} + {len(data.test):,}"
    say.line("corpus", origin + counts)
    for remark in data.remarks:
        say.line("", remark)
    say.line("tokens", f"{len(data.tokenizer):,} {recipe.tokens.kind} sub-words, joint")


def _longest(vocabulary: int, length: int, rows: int) -> Batch:
    """So many pairs of the greatest length."""
    ids = torch.randint(4, vocabulary, (length - 1,)).tolist()
    return collate([(ids, ids)] * rows)


def _resample(tokenizer: Tokenizer, dropout: float, longest: int, ids: Any, draw: Random) -> Any:
    """Another segmentation of the text of `ids`, unless it is too long."""
    sampled = tokenizer.sample(tokenizer.decode(ids.tolist()), dropout, draw)
    return sampled if len(sampled) < longest else ids


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
