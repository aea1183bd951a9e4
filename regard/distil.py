"""Sequence-level distillation (Kim and Rush, 2016): a student learns what a teacher says in place of what people said.

A teacher's translations are more regular than people's: a small model that cannot learn all of the one learns more of
the other. Validation and test stay what people said.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, tee
from pathlib import Path

from rich.console import Console

from regard import recipe as recipes
from regard.api import Translator, load
from regard.data.corpora import CORPORA
from regard.data.text import PairFiles, fingerprint
from regard.data.tokenizers import Tokenizer
from regard.files import alone_in, sync, vacant, write_whole
from regard.pipeline import Splits, find_splits, train
from regard.recipe import Recipe
from regard.telling import telling
from regard.training.display import Display

TEACHER = ("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml")  # what its translations depend on
FOUND = ("shards", "batch_tokens")  # settings of train that a run may find for itself, and then keeps


def distil(
    teacher_dir: str | Path,
    recipe: Recipe,
    directory: str | Path,
    *,
    name: str,
    beam: int = 5,
    mix: bool = False,
    console: Console | None = None,
) -> bool:
    """Train the model of a recipe on a teacher's translations of its training text, into a model directory.

    With `mix`, people's translations are learnt from as well. The text lies in the model directory, in a folder by
    content: call again after an interruption, and it goes on where it was, in translating or in training. False if
    training was interrupted.
    """
    teacher_dir, directory, console = Path(teacher_dir), Path(directory).resolve(), console or Console()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a teacher translates in one process: begin without torchrun, and go on by `regard train`")
    with alone_in(directory):
        begun = (directory / "recipe.yaml").exists()
        if not begun and directory.exists() and not vacant(directory, besides="distilled-"):
            raise ValueError(f"{directory} is not empty, and not a run of regard: choose another place by --out")
        teacher, splits = load(teacher_dir), find_splits(recipe)
        if (teacher.tokenizer.kind == "none") != (recipe.tokens.kind == "none"):
            raise ValueError(
                f"the teacher's tokens are of kind {teacher.tokenizer.kind} and the student's of {recipe.tokens.kind}: "
                "none is for text that is in sub-words already, which one of the two could not read"
            )
        folder = directory / f"distilled-{_identity(teacher_dir, recipe, splits, beam, mix)}"
        student = _student(recipe, folder)
        if begun:
            before = recipes.load(str(directory / "recipe.yaml"))
            if before.data != student.data:
                raise ValueError(f"{directory} is a run on other data: choose another place by --out")
            found = {key: getattr(before.train, key) for key in FOUND if not getattr(student.train, key)}
            student = replace(student, train=replace(student.train, **found))
        for split in ("valid", "test"):
            write_whole(folder / f"{split}.jsonl", "".join(_line(*pair) for pair in splits.pairs(split)))
        if not (folder / "train.jsonl").exists():
            if teacher.tokenizer.kind == "none":
                teacher.tokenizer = _InPieces.load(teacher_dir / "tokenizer.json")
            _translate(teacher, splits, recipe.data.limit, folder / "train.jsonl", beam=beam, mix=mix, console=console)
        return train(student, directory, name=name, resume=begun, console=console)


class _InPieces(Tokenizer):
    """A tokenizer of text in sub-words that leaves what it decodes in sub-words, the form that a student reads."""

    def decode_batch(self, rows: Iterable[Sequence[int]]) -> list[str]:
        return [" ".join(self.pieces(self._ordinary(ids))) for ids in rows]


def _identity(teacher_dir: Path, recipe: Recipe, splits: Splits, beam: int, mix: bool) -> str:
    """The same for the same teacher, text and search."""
    teacher = {}
    for file in TEACHER:
        if (teacher_dir / file).exists():
            with (teacher_dir / file).open("rb") as stream:
                teacher[file] = hashlib.file_digest(stream, "sha256").hexdigest()
    text = {split: fingerprint(files) for split, files in splits.files.items()}
    what = json.dumps([teacher, text, splits.modulus, recipe.data.limit, beam, mix])
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def _student(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the folder's text for its own."""
    train, valid, test = (PairFiles(jsonl=str(folder / f"{split}.jsonl")) for split in ("train", "valid", "test"))
    corpus, languages = CORPORA.get(recipe.data.corpus or ""), recipe.data.languages
    if corpus is not None and not any(languages):
        languages = corpus.languages
    data = replace(recipe.data, corpus=None, train=train, valid=valid, test=test, languages=languages, limit=None)
    return replace(recipe, data=data)


def _translate(
    teacher: Translator, splits: Splits, limit: int | None, path: Path, *, beam: int, mix: bool, console: Console
) -> None:
    """Write the teacher's pairs, and after each, with `mix`, people's; from where an earlier call has stopped."""
    partial = path.with_suffix(".partial")
    total = sum(1 for _ in islice(splits.pairs("train"), limit))
    done = _whole(partial, 1 + mix)
    left = f", from {done + 1:,} on" if done else ""
    Display(console).line("teacher", f"translates {total:,} sentences by a beam of {beam}{left}")
    pairs, again = tee(islice(splits.pairs("train"), done, limit))
    said = teacher.translate_lines((source for source, _ in again), beam=beam)
    with partial.open("a", encoding="utf-8") as file, telling("teaching") as show:
        for number, ((source, target), text) in enumerate(zip(pairs, said, strict=True), start=done + 1):
            file.write(_line(source, text) + (_line(source, target) if mix else ""))
            file.flush()  # a sentence takes longer
            show("sentences", number, total)
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def _line(source: str, target: str) -> str:
    return json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"


def _whole(path: Path, lines: int) -> int:
    """How many groups of so many lines are whole in a file that may be there; what follows them is cut off."""
    groups = end = 0
    if path.exists():
        with path.open("r+b") as file:
            while len(group := list(islice(file, lines))) == lines and group[-1].endswith(b"\n"):
                groups, end = groups + 1, end + sum(map(len, group))
            file.truncate(end)
    return groups
