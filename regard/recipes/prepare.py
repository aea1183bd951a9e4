"""From the text that a recipe names to token arrays: read, split, learnt from and encoded once, kept by content."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.arrays import Table
from regard.data.corpora import split_of
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer
from regard.files import cache_folder, common_directory, digest, write_whole
from regard.recipes.recipe import Recipe
from regard.tasks.task import Cut, Damaged, Task

FORMAT = 2  # of prepared data
LINES = 20_000  # by which it is told what the rows of a text are like
SAMPLE = 1_000_000  # rows that sub-words are learnt from, at most: a learner holds every word that it meets


@dataclass(frozen=True)
class Prepared:
    """A recipe's data, ready to learn from."""

    task: Task  # with what only the data says of it
    tokenizer: Tokenizer
    train: Table
    valid: Sequence[Any]  # rows
    test: Sequence[Any]
    remarks: list[str]  # what was left out, and what should not be in
    habits: dict[str, Any]  # settings that follow from what the text is like
    identity: str  # the same for the same data


@dataclass(frozen=True)
class Splits:
    """The files of each split; where `modulus` is set, rows of train are held out for those that have none.

    Of `count` rows in an order, those are the last ones.
    """

    task: Task
    files: dict[str, Any]
    modulus: int | None = None
    count: int = 0

    def rows(self, split: str, skipped: Skipped | None = None) -> Iterator[Any]:
        """The rows of a split, in the order of their file."""
        if split in self.files and (self.modulus is None or split != "train"):
            return iter(self.files[split].read(skipped))
        held_out = [name for name in ("valid", "test") if name not in self.files]
        rows = self.files["train"].read(skipped)
        assert self.modulus is not None
        if self.task.ordered:
            each = self.count // self.modulus
            cuts = [0, *(self.count - each * n for n in range(len(held_out), -1, -1))]
            part = ["train", *held_out].index(split)
            return islice(rows, cuts[part], cuts[part + 1])
        return (row for row in rows if split_of(self.task.drawn_by(row), self.modulus, held_out) == split)


def find_splits(recipe: Recipe) -> Splits:
    """Where a recipe's text is, split by split; a corpus that is known by name is fetched if need be."""
    task, data = recipe.purpose(), recipe.data
    files = data.files()
    if "valid" in files and "test" in files:
        return Splits(task, files)
    count = sum(1 for _ in files["train"].read())
    if count < 20:
        raise ValueError(f"{count} training {task.rows} are too few to hold any out: give data.valid and data.test")
    return Splits(task, files, max(20, count // data.hold_out), count)  # at most a twentieth each


def prepare(recipe: Recipe, folder: Path | None = None) -> Prepared:
    """Read the text, learn the sub-words and write token arrays, once: `folder` is a cache by content."""
    splits = find_splits(recipe)
    if folder is None:
        sums = {split: files.fingerprint() for split, files in splits.files.items()}
        tokens: Any = {**asdict(recipe.tokens), "dropout": 0.0}  # which acts in training only
        if not splits.task.worded:
            tokens = None
        elif recipe.origin is not None:
            tokens = digest(Path(recipe.origin) / "tokenizer.json")
            tokens += "" if (own := recipe.tokenizer()) is _begun(own, splits.task) else " bare"
        how = [recipe.data.limit, splits.modulus, *splits.task.prepared_by()]
        what = json.dumps([FORMAT, sums, tokens, *how])
        folder = cache_folder() / "prepared" / hashlib.sha256(what.encode()).hexdigest()[:24]
    if not folder.exists():
        with common_directory(folder) as made:
            _build(recipe, splits, made)
    tokenizer, table = Tokenizer.load(folder / "tokenizer.json"), Table.open(folder / "train")
    task = splits.task
    if type(task).fitted is not Task.fitted and (facts := folder / "task.json").exists():
        task = replace(task, **json.loads(facts.read_text("utf-8")))
    remarks = json.loads((folder / "remarks.json").read_text("utf-8"))
    held_out = {}
    for split in ("valid", "test"):
        skipped = Skipped()
        held_out[split] = task.held(splits.rows(split, skipped), folder / split, skipped)
        if not held_out[split]:
            raise ValueError(f"there is nothing to keep from training as data.{split}: give files for it")
        if split in splits.files and skipped.report():
            remarks.append(f"{split}: {skipped.report()}")
    known = json.loads((folder / "habits.json").read_text("utf-8"))
    if isinstance(known, list):  # of an older regard
        known = dict(zip(("split", "stops"), known, strict=True))
    return Prepared(task, tokenizer, table, **held_out, remarks=remarks, habits=known, identity=folder.name)


def _build(recipe: Recipe, splits: Splits, folder: Path) -> None:
    task, skipped, limit = splits.task, Skipped(), recipe.data.limit
    count = sum(1 for _ in islice(splits.rows("train", skipped), limit))
    every = 1 if recipe.tokens.kind in ("char", "none") else max(1, math.ceil(count / SAMPLE))
    sample = islice(splits.rows("train"), 0, limit, every)
    tokenizer = _begun(recipe.tokenizer(), task) if task.worded else Tokenizer.none()
    if tokenizer is None:
        tokenizer = Tokenizer.learn(recipe.tokens, (text for row in sample for text in task.texts(row)), task.marks)
    tokenizer = task.tokens(tokenizer)
    bare, task = asdict(task), task.fitted(islice(splits.rows("train"), limit))
    given = [split for split in ("valid", "test") if split in splits.files and not task.ordered]
    hidden = {task.trace(row) for split in given for row in splits.rows(split)}
    long = cut = leaks = 0
    damaged = list[Damaged]()

    def examples() -> Iterator[Any]:
        nonlocal long, cut, leaks
        rows = islice(splits.rows("train"), limit)
        while some := list(islice(rows, 10_000)):
            leaks += sum(task.trace(row) in hidden for row in some) if hidden else 0
            for example in task.examples(some, tokenizer):
                if example is None:
                    long += 1
                elif isinstance(example, Damaged):
                    damaged.append(example)
                else:
                    cut += isinstance(example, Cut)
                    yield example

    table = Table.build(folder / "train", examples(), task.columns(len(tokenizer)))
    if not len(table) and damaged:
        raise ValueError(f"no training {task.row} is left of {len(damaged):,}: {damaged[0]}")
    if not len(table):
        raise ValueError(f"no training {task.row} is left: all {long:,} have a side over data.max_length sub-words")
    remarks = [skipped.report()] if skipped.report() else []
    if long:
        remarks.append(
            f"skipped {_many(long, task)} with a side over {recipe.data.max_length} sub-words (data.max_length)"
        )
    if damaged:
        remarks.append(f"skipped {_many(len(damaged), task)}: {damaged[0]}{', and others' if damaged[1:] else ''}")
    if cut:
        remarks.append(f"cut {_many(cut, task)} to {recipe.data.max_length} sub-words (data.max_length)")
    if leaks:
        same, are = ("the source of ", "is") if task.worded else ("", "is" if leaks == 1 else "are")
        remarks.append(f"{same}{_many(leaks, task)} {are} in valid or test, too: take them out for honest scores")
    tokenizer.save(folder / "tokenizer.json")
    facts = {key: value for key, value in asdict(task).items() if value != bare[key]}  # what only the rows say
    write_whole(folder / "task.json", json.dumps(facts))
    write_whole(folder / "remarks.json", json.dumps(remarks))
    some = islice(splits.rows("train"), 0, limit, max(1, math.ceil(count / LINES)))
    write_whole(folder / "habits.json", json.dumps(task.habits(some)))


def _begun(tokenizer: Tokenizer | None, task: Task) -> Tokenizer | None:
    """A tokenizer to begin with: what some put before a text, a task that reads it as a whole puts there itself."""
    if tokenizer is None or task.stands == "tokens" or not tokenizer.encode(""):
        return tokenizer
    content = json.loads(tokenizer.rust.to_str())
    content["post_processor"]["single"] = [{"Sequence": {"id": "A", "type_id": 0}}]
    return Tokenizer(json.dumps(content))


def _many(rows: int, task: Task) -> str:
    return f"{rows:,} {task.row if rows == 1 else task.rows}"
