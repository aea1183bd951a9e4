"""Recognition: a picture or a video in, its class out. It is classification, of what is seen and not read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from regard.checks import one_of, share
from regard.core.outputs import POOLS, WEIGHED, HeadConfig
from regard.data.arrays import Column, Table
from regard.data.augment import Augment
from regard.data.batching import Batch
from regard.data.corpora import fetched
from regard.data.labelled_pictures import PictureFiles, Zipped, content_of, trace_of
from regard.data.pictures import ASIDE, PictureError, Pixels, Sight, Source, in_groups, side_by_side
from regard.data.rows import Row
from regard.data.sound import SoundError
from regard.data.text import Skipped
from regard.data.tokenizers import Tokenizer
from regard.native.pictures import augmented
from regard.tasks.classify import KINDS, Classified, Classify, Evaluation, classified
from regard.tasks.reader import BARS, Pictured, Rated
from regard.tasks.task import Damaged, Sections
from regard.tasks.uses import ClassifyUse
from regard.tasks.viewer import SeenConfig, Viewed, Viewer
from regard.training.stream import Collate


@dataclass(frozen=True)
class PictureConfig(SeenConfig):
    """Where pictures and labels come from, and how they are seen."""

    train: PictureFiles | None = None  # your own files
    valid: PictureFiles | None = None  # held out of train if left out
    test: PictureFiles | None = None  # held out of train if left out

    def of_corpus(self, name: str, progress: Any) -> dict[str, PictureFiles]:
        found = fetched(name, progress=progress)
        if any(paths[0].suffix != ".npz" for paths in found.values()):
            raise ValueError(f"{name} has no pictures: choose a corpus that has, such as cifar10")
        return {split: PictureFiles(npz=str(path)) for split, (path,) in found.items()}


@dataclass(frozen=True)
class RecogniseConfig:
    """What a model is for."""

    name: str = "recognise"
    kind: str = "one"  # of the labels: one of them, several (a list, or joined by |), number
    pool: str | None = None  # what stands for a picture: first, mean, max, attention, both; left out: as the model is
    hidden: str | None = None  # a layer before the classes, with this activation
    dropout: float = 0.0  # before the classes

    def __post_init__(self) -> None:
        one_of(KINDS, **{"task.kind": self.kind})
        one_of((*POOLS, *WEIGHED), **{"task.pool": self.pool})
        share(whole=True, **{"task.dropout": self.dropout})


@dataclass(frozen=True)
class Stored:
    """A picture of the right size, on disk."""

    table: Table
    row: int

    def content(self) -> Pixels:
        """Its pixels."""
        return self.table.column("image", [self.row])[0]


class Recogniser(Viewer):
    """A model that tells what pictures show.

    >>> recogniser = load("runs/cifar10")             # doctest: +SKIP
    >>> recogniser.classify("photo.jpg")              # doctest: +SKIP
    Classified(label='cat', probability=0.93, ...)
    """

    labels: tuple[str, ...]
    kind: str

    @overload
    def classify(self, picture: Source | Viewed, **settings: Any) -> Classified: ...
    @overload
    def classify(self, picture: Sequence[Any], **settings: Any) -> list[Classified]: ...
    def classify(self, picture: Any, **settings: Any) -> Any:
        """What a picture shows, or each of a list of them: paths, contents of files, Pillow's images, or arrays; or a
        video: its path, the content of its file, or an array (T, H, W[, C])."""
        use, alone = replace(self.use, **settings), not isinstance(picture, list | tuple)
        asks = [each if isinstance(each, Viewed) else Viewed(each) for each in ([picture] if alone else picture)]
        found = self.answers(asks, use)
        return found[0] if alone else found

    def answers(self, asks: Sequence[Viewed], settings: ClassifyUse) -> list[Classified]:
        """What each of some pictures shows: what the other methods are made of."""
        return [classified(said, self.labels, self.kind, settings) for said in self.outputs(asks)]

    def pictured(self, ask: Viewed) -> Pictured:
        """The answer to a picture, as a page draws it."""
        (told,) = self.answers([ask], replace(self.use, top=BARS))
        bars = [Rated(label, p, chosen=label == told.label) for label, p in told.probabilities.items()]
        return Pictured(told.label, [bars] if bars else [])


@dataclass(frozen=True)
class Recognise(Classify):
    """A picture in, its class out."""

    longest: int | None = None  # a picture has no length
    hidden: str | None = None
    dropout: float = 0.0
    sight: Sight = field(default_factory=Sight)  # how pictures are seen
    augment: Augment = field(default_factory=Augment)

    name, called, verb = "recognise", "recognition", "classify"
    sections = Sections(RecogniseConfig, PictureConfig, ClassifyUse, Evaluation)
    row, rows = "picture", "pictures"
    reads = "pixels"
    worded = False
    first = True
    opened: ClassVar[type[Recogniser]] = Recogniser

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in fields(self):
            if isinstance(given := getattr(self, each.name), dict):  # as JSON has it
                object.__setattr__(self, each.name, each.default_factory(**given))  # type: ignore[operator]
        if isinstance(self.sight, Sight) and self.sight.frames:
            object.__setattr__(self, "row", "video")
            object.__setattr__(self, "rows", "videos")

    @classmethod
    def of(cls, recipe: Any) -> "Recognise":
        t, d = recipe.task, recipe.data
        sight = d.sight(recipe, "take cct-2, or vivit-tiny for videos")
        pool = t.pool or ("first" if recipe.model.build(1).tokens else "attention")
        return cls((), t.kind, None, pool, t.hidden, t.dropout, sight, d.augment)

    def check(self, recipe: Any) -> None:
        if recipe.train.batch_rows is None:
            raise ValueError(f"train.batch_rows: say how many {self.rows} make a batch, as 128")
        if recipe.data.augment.blends and self.kind != "one":
            raise ValueError("data.augment: mixup and cutmix are for labels of which one applies (task.kind = one)")

    def head(self, model: type[nn.Module]) -> HeadConfig:
        size = 1 if self.kind == "number" else len(self.labels)
        return HeadConfig("classes", size, pool=self.pool or "first", hidden=self.hidden, dropout=self.dropout)

    def noted(self) -> dict[str, Any]:
        left = ("longest", "augment")  # which are of training
        return {"name": self.name, **{key: value for key, value in asdict(self).items() if key not in left}}

    def prepared_by(self) -> list[Any]:
        return [self.name, self.kind, asdict(self.sight)]

    @property
    def aside(self) -> int:
        """Pictures, or videos, that are opened side by side."""
        return max(1, ASIDE // max(1, self.sight.frames))

    def texts(self, row: Row) -> Sequence[str]:
        return [row["name"]]

    def trace(self, row: Row) -> str:
        return trace_of(row["image"])

    def length(self, recipe: Any) -> int:
        return 1

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return {"image": self.sight.column, "label": super().columns(1)["label"]}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        known = {label: i for i, label in enumerate(self.labels)}
        targets = [self._target(row, known) for row in rows]  # before anything is opened
        for seen, target in zip(side_by_side(self._seen, rows, self.aside), targets, strict=True):
            yield seen if isinstance(seen, Damaged) else (seen, target)

    def _seen(self, row: Row) -> Pixels | Damaged:
        image = row["image"]
        name = image.member if isinstance(image, Zipped) else row["name"] if isinstance(image, np.ndarray) else image
        try:
            return self.sight.pixels(content_of(image), str(name))
        except (PictureError, SoundError) as error:
            return Damaged(error)

    def held(self, rows: Iterable[Row], place: Path, skipped: Skipped) -> list[Row]:
        """Made ready once; those that cannot be opened are counted."""
        damaged = list[str]()

        def examples() -> Iterator[Any]:
            for some in in_groups(rows, self.aside):
                for row, example in zip(some, self.examples(some, Tokenizer.none()), strict=True):
                    if isinstance(example, Damaged):
                        damaged.append(example)
                    else:
                        yield (*example, list(row["name"].encode()))

        table = Table.build(place, examples(), {**self.columns(1), "name": Column("uint8", ragged=False)})
        if damaged:
            skipped.notes[f"{self.rows} cannot be opened ({damaged[0]})"] += len(damaged)
        found = list[Row]()
        for some in in_groups(range(len(table)), 2**12):
            labels, names = (table.column(name, some) for name in ("label", "name"))
            for i, label, name in zip(some, labels, names, strict=True):
                found.append({"image": Stored(table, i), "label": self._told(label), "name": name.tobytes().decode()})
        return found

    def _told(self, label: NDArray[Any]) -> Any:
        """A label as its file has it."""
        if self.kind == "several":
            return [self.labels[i] for i in np.flatnonzero(label)]
        return float(label[0]) if self.kind == "number" else self.labels[int(label[0])]

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            pixels = self.sight.tensor(augmented(self.augment, [image for image, _ in rows], draw))
            labels = torch.from_numpy(np.stack([label for _, label in rows]))
            labels = labels.float() if self.kind == "number" else labels.long()
            labels = labels if self.kind == "several" else labels[:, 0]
            if self.augment.blends:
                pixels, labels = self.augment.blended(pixels, F.one_hot(labels, len(self.labels)).float(), draw)
            return Batch({self.reads: pixels, "labels": labels}, len(rows))

        return batch

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: ClassifyUse, **how: Any) -> Recogniser:  # type: ignore[override]
        if not self.labels and self.kind != "number":
            raise ValueError("this model knows no classes yet: teach it some, by a recipe with model.from")
        recogniser = self.opened(models, tokenizer, use, self.sight, **how)
        recogniser.labels, recogniser.kind = self.labels, self.kind
        return recogniser

    def logits(self, predictor: Any, rows: Sequence[Row]) -> NDArray[np.float64]:
        asks = [Viewed(row["image"], row["name"], ready=isinstance(row["image"], Stored)) for row in rows]
        return np.array([each.logits for each in predictor.answers(asks, predictor.use)])


TASK = Recognise
