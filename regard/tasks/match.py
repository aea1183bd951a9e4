"""Matching: a picture or a text in, a vector out, so that a picture is near its caption: one is found by the other,
and what a picture shows is told by words alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checks import at_least
from regard.core.generation import padded
from regard.core.masks import causal
from regard.core.outputs import HeadConfig, VectorHead
from regard.data.arrays import Column
from regard.data.augment import Augment
from regard.data.batching import Batch
from regard.data.captions import CaptionFiles
from regard.data.labelled_pictures import trace_of
from regard.data.pictures import PictureError, Sight
from regard.data.rows import Row
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import Marks
from regard.evaluation.retrieval import hits, means
from regard.tasks.classify import Classified, classified
from regard.tasks.embed import Embedded, Embedder, Judging
from regard.tasks.reader import Given, check_length
from regard.tasks.task import Damaged, Data, Evidence, Measured, Sections, Task
from regard.tasks.uses import ClassifyUse, EmbedUse, Prompting
from regard.tasks.viewer import Viewed, Viewer
from regard.training.objectives import Matched, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

SHOWN = 100  # samples


@dataclass(frozen=True)
class CaptionedConfig(Data):
    """Where pictures and captions come from, and how they are seen."""

    train: CaptionFiles | None = None  # your own files
    valid: CaptionFiles | None = None  # held out of train if left out
    test: CaptionFiles | None = None  # held out of train if left out
    max_length: int = 40  # tokens of a caption; longer ones are cut
    resize: int | None = None  # pixels along a side before the middle is cut out; left out: nothing is cut off
    square: bool = True  # made square whatever their shape; else the shorter side has `resize` pixels
    resample: str = "bicubic"  # nearest, bilinear, lanczos, box, hamming
    mean: tuple[float, ...] = (0.5,)  # of values from 0 to 1: subtracted
    std: tuple[float, ...] = (0.5,)  # and then divided by
    augment: Augment = field(default_factory=Augment)  # what is done to them by chance while a model learns

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})
        if self.augment.blends:
            raise ValueError("data.augment: mixup and cutmix are for labels, and not for captions")

    def sight(self, recipe: Any) -> Sight:
        """How pictures are seen by the model of a recipe, which may begin with one that has learnt it."""
        c = recipe.model.build(2**16)
        if getattr(c, "channels", None) is None:
            raise ValueError(
                f"task.name = {recipe.task.name}: a model like {recipe.model.preset} does not see; take another preset"
            )
        if getattr(c, "height", None) is not None:
            raise ValueError(
                f"a model like {recipe.model.preset} reads sheets of many sizes: it cannot be trained here"
            )
        own = {name: getattr(self, name) for name in ("resize", "square", "resample", "mean", "std")}
        plain = {name for name, value in own.items() if value == getattr(CaptionedConfig, name)}
        begun = {name: value for name, value in recipe.model.task().get("sight", {}).items() if name in plain}
        return Sight(**own | begun | {"size": c.size, "channels": c.channels})


@dataclass(frozen=True)
class MatchConfig:
    """What a model is for."""

    name: str = "match"


class Tower(nn.Module):
    """One of the two of a pair: what it reads in, a vector of length 1 out."""

    def __init__(self, pair: Any, sees: bool) -> None:
        super().__init__()
        self.config, self.head, self.causal = pair.config, pair.head, not sees
        before = "picture_" if sees else ""
        self.stem, self.encoder, inner = (getattr(pair, before + name) for name in ("stem", "encoder", "output"))
        self.output = VectorHead(replace(pair.head, pool="first") if sees else pair.head, inner.in_features)
        self.output.inner = inner

    def forward(self, pixels: Tensor | None = None, tokens: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        x = self.encoder(self.stem(tokens if pixels is None else pixels), mask=causal() if self.causal else None)
        return self.output(x, keep)


class Matcher(Embedder):
    """A model that makes vectors of texts and of pictures, and its tokenizer.

    >>> matcher = load("runs/clip")                                                     # doctest: +SKIP
    >>> matcher.see(["dog.jpg"]) @ matcher.embed(["a dog", "a cat"]).T                  # doctest: +SKIP
    >>> matcher.classify("dog.jpg", ["dog", "cat"], prompt="a photo of a {label}")      # doctest: +SKIP
    """

    second: ClassVar[str] = "lines"

    def __init__(
        self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: EmbedUse, sight: Sight, **how: Any
    ) -> None:
        super().__init__([Tower(each, sees=False) for each in models], tokenizer, use, **how)
        own = {name: x for name, x in how.items() if name != "longest"}
        self.viewer = Viewer([Tower(each, sees=True) for each in models], tokenizer, use, sight, **own)
        self.sharpness = float(np.mean([each.sharpness.exp().item() for each in models]))  # type: ignore[operator]

    def width(self, settings: EmbedUse | None) -> int:
        own = int(self.model.config.d_vector)  # type: ignore[union-attr, arg-type]
        return own if settings is None or settings.dimensions is None else settings.dimensions

    def see(self, pictures: Sequence[Any]) -> NDArray[np.float32]:
        """The vector of each picture, (N, d): paths, contents of files, Pillow's images, or arrays."""
        found = self.viewing.answers(
            [each if isinstance(each, Viewed) else Viewed(each) for each in pictures], self.use
        )
        return np.stack([each.vector for each in found]) if found else np.zeros((0, self.width(None)), np.float32)

    @property
    def viewing(self) -> "Viewing":
        """What answers to pictures as this does to texts."""
        return Viewing(self)

    def told(self, asked: Prompting) -> "Worded":
        """What tells classes that a command names."""
        named = (each.strip().partition("=") for each in str(asked.labels).split(","))
        return Worded(self, {label: word or label for label, _, word in named}, asked.prompt or "{label}")

    def classify(
        self, picture: Any, labels: Sequence[str] | Mapping[str, str], *, prompt: str = "{label}", **settings: Any
    ) -> Classified:
        """Which of some labels, or of what a mapping says for each, a picture shows: no example is needed."""
        return Worded(self, labels, prompt).answers([Viewed(picture)], ClassifyUse(**settings))[0]


class Viewing:
    """Pictures in, vectors out."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher, self.use = matcher, matcher.use

    def answers(self, asks: Sequence[Viewed], settings: EmbedUse) -> list[Embedded]:
        """The vector of each picture, of length 1."""
        vectors = self.matcher.viewer.outputs(asks)
        return [Embedded(F.normalize(x[: settings.dimensions], dim=-1).numpy(), 0) for x in vectors]


class Worded:
    """Classes that are told in words."""

    def __init__(self, matcher: Matcher, labels: Sequence[str] | Mapping[str, str], prompt: str = "{label}") -> None:
        words = dict(labels) if isinstance(labels, Mapping) else {label: label for label in labels}
        if len(words) < 2:
            raise ValueError(f"labels = {', '.join(words)}: there must be two at least, separated by commas")
        if "{label}" not in prompt:
            raise ValueError(f"the prompt {prompt!r} has no {{label}} in it: say where it stands")
        self.matcher, self.labels, self.use = matcher, tuple(words), ClassifyUse()
        self.vectors = torch.from_numpy(matcher.embed([prompt.replace("{label}", word) for word in words.values()]))

    def answers(self, asks: Sequence[Viewed], settings: ClassifyUse) -> list[Classified]:
        """Which of the classes each picture is nearest to."""
        seen = torch.from_numpy(self.matcher.see(asks))
        return [classified(row, self.labels, "one", settings) for row in self.matcher.sharpness * seen @ self.vectors.T]


def drawn(ids: NDArray[Any], end: int, draw: Random) -> list[int]:
    """One of the captions of a picture, each of which ends so."""
    one: list[int] = draw.choice(np.split(ids, np.flatnonzero(ids == end) + 1)[:-1]).tolist()
    return one


@dataclass(frozen=True)
class Match(Task):
    """A picture or a text in, a vector out."""

    longest: int | None = None
    sight: Sight = field(default_factory=Sight)
    augment: Augment = field(default_factory=Augment)

    name, called, verb = "match", "matching", "embed"
    sections = Sections(MatchConfig, CaptionedConfig, EmbedUse, Judging)
    row, rows, stands = "picture", "pictures", "vector"
    reads = "pairs"
    marks: ClassVar[tuple[str, ...]] = ("cls", "sep")

    def __post_init__(self) -> None:
        for name, kind in (("sight", Sight), ("augment", Augment)):
            if isinstance(given := getattr(self, name), dict):  # as JSON has it
                object.__setattr__(self, name, kind(**given))

    @classmethod
    def of(cls, recipe: Any) -> "Match":
        return cls(recipe.data.max_length, recipe.data.sight(recipe), recipe.data.augment)

    def check(self, recipe: Any) -> None:
        check_length(recipe)
        if recipe.train.batch_rows is None:
            raise ValueError("train.batch_rows: say how many pictures are told from each other, as 128")

    def head(self, model: type[nn.Module]) -> HeadConfig:
        return HeadConfig("vector", pool="last", normalise=True)

    def noted(self) -> dict[str, Any]:
        return {"name": self.name, "longest": self.longest, "sight": asdict(self.sight)}

    def prepared_by(self) -> list[Any]:
        return [self.name, self.longest, asdict(self.sight)]

    def texts(self, row: Row) -> Sequence[str]:
        captions: list[str] = row["captions"]
        return captions

    def trace(self, row: Row) -> str:
        return trace_of(row["image"])

    def columns(self, vocabulary: int) -> dict[str, Column]:
        s = self.sight
        return {"image": Column.pixels(s.size, s.size, s.channels), "captions": Column.ids(vocabulary)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        room = (self.longest or 2**30) - len(tokenizer.marks.around([])[0])
        for row in rows:
            captions = tokenizer.encode_batch(row["captions"])
            try:
                pixels = self.sight.pixels(row["image"], row["name"])
            except PictureError as error:
                yield Damaged(error)
            else:
                yield pixels, [i for ids in captions for i in self.framed(ids[:room], tokenizer.marks)]

    def framed(self, ids: Sequence[int], marks: Marks) -> list[int]:
        """A caption with what closes it, and what else stands around it."""
        return marks.around(ids)[0]

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        end = tokenizer.marks.around([])[0][-1]  # closes each caption

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            """Of each picture, one of its captions."""
            pixels = self.sight.tensor(np.stack([self.augment.picture(image, draw) for image, _ in rows]))
            said = [drawn(ids, end, draw) for _, ids in rows]
            tokens = padded(said, tokenizer.marks.pad or 0, 2**31)
            keep = torch.arange(tokens.shape[1]) < torch.tensor([len(ids) for ids in said])[:, None]
            row = torch.tensor([draw.getrandbits(62) for _ in rows])
            return Batch({"pixels": pixels, "tokens": tokens, "keep": keep, "row": row}, len(rows))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Matched(model)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: EmbedUse, **how: Any) -> Matcher:
        return Matcher(models, tokenizer, use, self.sight, longest=self.longest, **how)

    def measure(self, predictor: Matcher, held_out: Sequence[Row], recipe: Any) -> Measured:
        """Of each picture, whether one of its captions is among the nearest texts; of each caption, its picture."""
        use = replace(predictor.use, long="cut")
        texts = [text for row in held_out for text in row["captions"]]
        owner = np.repeat(np.arange(len(held_out)), [len(row["captions"]) for row in held_out])
        said = np.stack([each.vector for each in predictor.answers([Given(text) for text in texts], use)])
        seen = predictor.see([Viewed(row["image"], row["name"]) for row in held_out])
        alike = seen @ said.T  # (pictures, texts)
        found = hits(alike, [np.flatnonzero(owner == i) for i in range(len(held_out))], "text")
        of_text = hits(alike.T, [*owner[:, None]], "picture")
        count = np.bincount(owner, minlength=len(held_out))
        found |= {name: np.bincount(owner, x, len(held_out)) / count for name, x in of_text.items()}

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            each = means(found, rows)
            return {"recall": sum(each.values()) / len(each), **each}

        nearest = alike.argmax(1)
        samples = [Sample(row["name"], texts[i], row["captions"][0]) for row, i in zip(held_out, nearest, strict=True)]
        return Measured.of(Evidence(len(held_out), figures), "recall", samples[:SHOWN])


TASK = Match
