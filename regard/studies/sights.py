"""A model that sees, and pictures to study it on: with what is true of them, or else with what it says itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from regard.api import load, told
from regard.data.batching import Batch
from regard.data.captions import CaptionFiles
from regard.data.labelled_pictures import PictureFiles, is_picture
from regard.data.pictures import PictureError
from regard.data.rows import Row
from regard.inspection.axes import Grid, grids, inputs
from regard.inspection.measures import NONE, Tokens
from regard.studies.study import Readings, kept_text, taught
from regard.tasks.look import Looker
from regard.tasks.task import Damaged

TABLES = (".jsonl", ".tsv", ".csv")


@dataclass(frozen=True, eq=False)
class Sights(Readings):
    """Pictures, and what is true of each; of several captions the first."""

    left: tuple[str, ...] = ()  # why some were left out
    example, called = range(1, 2**31), "pictures"

    @classmethod
    def seen(cls, model: Path, pictures: Sequence[Path], limit: int) -> "Sights":
        """The first `limit` pictures of what the model's recipe has kept from training as its test; or files, folders
        and tables of them. What has no label, or no caption, has that which the model tells."""
        predictor, task = load(model, precision="fp32"), cast(Any, told(model).task)
        if isinstance(predictor, Looker):  # how it talks stands in a file of its own
            task = replace(task, chat=predictor.template, patches=tuple(predictor.patches or ()))
        own = getattr(predictor, "pair", predictor.model)
        left = list[str]()
        rows = kept_text(model, "pictures") if not pictures else _rows(predictor, task, pictures, left)
        learnt, collate = taught(task, (_alone(row) for row in rows), predictor.tokenizer, limit)
        left += [each for each in learnt if isinstance(each, Damaged)]
        learnt = [each for each in learnt if not isinstance(each, Damaged)]
        if not learnt:
            raise ValueError(
                left[0] if left else f"{pictures[0] if pictures else 'the test of its recipe'} has no picture"
            )
        places = [0] * next(iter(grids(own).values())).places
        examples = [dict.fromkeys(grids(own), places) for _ in learnt]
        objective: Any = task.objective(own, 0.0, predictor.tokenizer)
        return cls(own, predictor.tokenizer, examples, collate, learnt, objective, tuple(left))

    @cached_property
    def sees(self) -> tuple[str, Grid]:
        """The input that is a picture, and how its patches lie."""
        return next(iter(grids(self.model).items()))

    def tokens(self) -> Tokens:
        known = Tokens.of(self.tokenizer.marks, self.tokenizer.pieces(range(len(self.tokenizer))))
        pad = NONE if self.place is not None else known.pad  # where nothing is predicted
        return replace(known, pad=pad, grids=grids(self.model))

    @property
    def place(self) -> int | None:
        """What stands for a patch among tokens, where patches do."""
        return getattr(self.model.config, "place", None)

    def batch(self, which: Sequence[int]) -> Batch:
        whole = self.collate([self.learnt[i] for i in which])
        read = (*inputs(self.model), "keep", "labels")
        return Batch({name: x for name, x in whole.tensors.items() if name in read}, whole.count)

    def pieces(self, sentence: int) -> dict[str, list[str]]:
        batch, (name, grid) = self.batch([sentence]), self.sees
        found = {name: grid.texts()}
        if self.place is not None:  # patches are no tokens, and a question is read alone
            ids = [*batch["tokens"][0, 1:].tolist(), int(batch["labels"][0, -1])]
            patches = iter(grid.texts()[grid.tokens :])
            found["tokens"] = [next(patches) if id == self.place else self.tokenizer.pieces([id])[0] for id in ids]
            return found
        for other in inputs(self.model)[1:]:
            said = batch["labels"] if "labels" in batch.tensors else batch[other]
            found[other] = self.tokenizer.pieces(said[0].tolist())
        return found


def _alone(row: Row) -> Row:
    """A picture with one caption, that none be drawn."""
    return {**row, "captions": row["captions"][:1]} if "captions" in row else row


@torch.inference_mode()
def _rows(predictor: Any, task: Any, pictures: Sequence[Path], left: list[str]) -> Iterator[Row]:
    """Pictures with what is true of them; why some cannot be opened is noted in `left`."""
    for path in pictures:
        if path.suffix in TABLES:
            named: dict[str, Any] = {path.suffix[1:]: str(path)}
            kind = PictureFiles if task.name == "recognise" else CaptionFiles
            yield from kind(**named).read()
            continue
        if not path.exists():
            raise ValueError(f"{path}: there is no such file: name pictures, a folder of them, or a table")
        found = sorted(each for each in path.rglob("*") if is_picture(each.name)) if path.is_dir() else [path]
        for each in found:
            try:
                yield {"image": str(each), "name": str(each), **_said(predictor, task, str(each))}
            except PictureError as error:
                left.append(str(error))


def _said(predictor: Any, task: Any, picture: str) -> dict[str, Any]:
    """What a model tells of a picture, as if that were true."""
    if task.name in ("caption", "look"):
        return {"captions": [predictor.caption(picture)]}
    if task.name != "recognise":
        raise ValueError(f"{picture} has no caption, and this model writes none: name a table, as captions.jsonl")
    told = predictor.classify(picture)
    return {
        "label": told.label.split("|") if task.kind == "several" else told.label if told.value is None else told.value
    }
