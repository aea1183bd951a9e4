"""Sequence-level distillation (Kim and Rush, 2016): a student learns what a teacher says in place of what people said.
How likely a teacher holds each class or token, any recipe may be taught: regard/training/distillation.py.

A teacher's translations are more regular than people's: a small model that cannot learn all of the one learns more of
the other. Validation and test stay what people said.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice, tee
from pathlib import Path

from rich.console import Console

from regard.api import Translator, load
from regard.data.corpora import CORPORA
from regard.data.text import PairFiles
from regard.data.tokenizers import Tokenizer
from regard.files import alone_in, digest, sync, write_whole
from regard.recipes import reading as recipes
from regard.recipes.prepare import Splits, find_splits
from regard.recipes.recipe import Recipe
from regard.recipes.train import check_place, train
from regard.training.display import Display

TEACHER = ("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml")  # what its translations depend on
Telling = Callable[[str], AbstractContextManager[Callable[[str, int, int], None]]]
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
    telling: Telling = lambda what: nullcontext(lambda stage, done, total: None),
) -> bool:
    """Train the model of a recipe on a teacher's translations of its training text, into a model directory; one that is
    for something else, by how likely the teacher holds what it is to tell, as the section `distil` says.

    With `mix`, people's translations are learnt from as well. The text lies in the model directory, in a folder by
    content: call again after an interruption, and it goes on where it was, in translating or in training. False if
    training was interrupted. Translating is told of through `telling`.
    """
    teacher_dir, directory, console = Path(teacher_dir), Path(directory).resolve(), console or Console()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a teacher translates in one process: begin without torchrun, and go on by `regard train`")
    begun = (directory / "recipe.yaml").exists()
    if recipe.task.name != "translate" or recipe.distil.teacher is not None:
        if mix:
            raise ValueError("--mix is for translations: how much counts what people said, distil.share says")
        student = replace(recipe, distil=replace(recipe.distil, teacher=str(teacher_dir.absolute())))
        return train(
            _found(student, directory) if begun else student, directory, name=name, resume=begun, console=console
        )
    with alone_in(directory):
        if not begun:
            check_place(directory, overwrite=False)
        teacher, splits = load(teacher_dir, task="translate"), find_splits(recipe)
        if (teacher.tokenizer.kind == "none") != (recipe.tokens.kind == "none"):
            raise ValueError(
                f"the teacher's tokens are of kind {teacher.tokenizer.kind} and the student's of {recipe.tokens.kind}: "
                "none is for text that is in sub-words already, which one of the two could not read"
            )
        folder = directory / f"distilled-{_identity(teacher_dir, recipe, splits, beam, mix)}"
        student = _student(recipe, folder)
        if begun:
            if recipes.load(str(directory / "recipe.yaml")).data != student.data:
                raise ValueError(f"{directory} is a run on other data: choose another place by --out")
            student = _found(student, directory)
        for split in ("valid", "test"):
            write_whole(folder / f"{split}.jsonl", "".join(_line(*pair) for pair in splits.rows(split)))
        if not (folder / "train.jsonl").exists():
            if teacher.tokenizer.kind == "none":
                teacher.tokenizer = _InPieces.load(teacher_dir / "tokenizer.json")
            total = sum(1 for _ in islice(splits.rows("train"), recipe.data.limit))
            done = _whole(folder / "train.partial", 1 + mix)
            left = f", from {done + 1:,} on" if done else ""
            Display(console).line("teacher", f"translates {total:,} sentences by a beam of {beam}{left}")
            pairs = islice(splits.rows("train"), done, recipe.data.limit)
            numbered = enumerate(_translated(teacher, pairs, beam=beam, mix=mix), start=done + 1)
            with (folder / "train.partial").open("a", encoding="utf-8") as file, telling("teaching") as show:
                for number, lines in numbered:
                    file.write(lines)
                    file.flush()  # a sentence takes longer
                    show("sentences", number, total)
            sync(folder / "train.partial")
            os.replace(folder / "train.partial", folder / "train.jsonl")
            sync(folder)
        return train(student, directory, name=name, resume=begun, console=console)


def _found(student: Recipe, directory: Path) -> Recipe:
    """The recipe with what a run of it that has begun found for itself."""
    before = recipes.load(str(directory / "recipe.yaml"))
    found = {key: getattr(before.train, key) for key in FOUND if not getattr(student.train, key)}
    return replace(student, train=replace(student.train, **found))


class _InPieces(Tokenizer):
    """A tokenizer of text in sub-words that leaves what it decodes in sub-words, the form that a student reads."""

    def decode_batch(self, rows: Iterable[Sequence[int]]) -> list[str]:
        return [" ".join(self.pieces(self._ordinary(ids))) for ids in rows]


def _identity(teacher_dir: Path, recipe: Recipe, splits: Splits, beam: int, mix: bool) -> str:
    """The same for the same teacher, text and search."""
    teacher = {file: digest(teacher_dir / file) for file in TEACHER if (teacher_dir / file).exists()}
    text = {split: files.fingerprint() for split, files in splits.files.items()}
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


def _translated(teacher: Translator, pairs: Iterable[tuple[str, str]], *, beam: int, mix: bool) -> Iterator[str]:
    """The teacher's pair for each, and after it, with `mix`, people's."""
    pairs, again = tee(pairs)
    said = teacher.translate_lines((source for source, _ in again), beam=beam)
    for (source, target), text in zip(pairs, said, strict=True):
        yield _line(source, text) + (_line(source, target) if mix else "")


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
