"""Matching: a picture or a text in, a vector out, so that a picture is near its caption: one is found by the other,
and what a picture shows is told by words alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, ClassVar, Self

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
from regard.data.pictures import PictureError, Pixels, Sight, side_by_side
from regard.data.rows import Row
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import Marks
from regard.evaluation.retrieval import RANKS, hits, means
from regard.inspection.maps import attention_maps
from regard.inspection.page import AttentionMap
from regard.native.pictures import augmented
from regard.tasks.classify import Classified, classified
from regard.tasks.embed import Embedded, Embedder, Judging
from regard.tasks.reader import BARS, Given, Pictured, Rated, batched, check_length
from regard.tasks.task import Damaged, Evidence, Measured, Sections, Task
from regard.tasks.uses import ClassifyUse, EmbedUse, Prompting
from regard.tasks.viewer import SeenConfig, Viewed, Viewer
from regard.training.objectives import Matched, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

SHOWN = 100  # samples
PLACES = "words_to_patches"  # where a picture shows what a text says


@dataclass(frozen=True)
class CaptionedConfig(SeenConfig):
    """Where pictures and captions come from, and how they are seen."""

    train: CaptionFiles | None = None  # your own files
    valid: CaptionFiles | None = None  # held out of train if left out
    test: CaptionFiles | None = None  # held out of train if left out
    max_length: int = 40  # tokens of a caption; longer ones are cut

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})
        if self.augment.blends:
            raise ValueError("data.augment: mixup and cutmix are for labels, and not for captions")


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

    second = "lines"

    def __init__(
        self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: EmbedUse, sight: Sight, **how: Any
    ) -> None:
        self.pair = models[0]
        super().__init__([Tower(each, sees=False) for each in models], tokenizer, use, **how)
        own = {name: x for name, x in how.items() if name != "longest"}
        self.viewer = Viewer([Tower(each, sees=True) for each in models], tokenizer, use, sight, **own)
        self.sharpness = float(np.mean([each.sharpness.exp().item() for each in models]))  # type: ignore[operator]

    def on(self, model: nn.Module) -> Self:
        """The same on another pair of towers."""
        other = super().on(Tower(model, sees=False))
        other.pair = model
        other.viewer = self.viewer.on(Tower(model, sees=True))
        return other

    def width(self, settings: EmbedUse | None) -> int:
        own = int(self.model.config.d_vector)  # type: ignore[union-attr, arg-type]
        return own if settings is None or settings.dimensions is None else settings.dimensions

    def see(self, pictures: Sequence[Any]) -> NDArray[np.float32]:
        """The vector of each picture, (N, d): paths, contents of files, Pillow's images, or arrays."""
        found = self.answers([each if isinstance(each, Viewed) else Viewed(each) for each in pictures], self.use)
        return np.stack([each.vector for each in found]) if found else np.zeros((0, self.width(None)), np.float32)

    def attention(self, picture: Any, text: str | None = None, **how: Any) -> list[AttentionMap]:  # type: ignore[override]
        """What every head looks at while the model sees a picture, and, if there is one, reads a text; `names`, `heads`
        and `view` are those of `attention_maps`. Where all are wanted, PLACES come first: no head's, but how near the
        words of the text are to which patches."""
        pixels, x = self.viewer.read(picture)
        read = self.framed([Given(text or "")], long="cut")[0][0]
        inputs = {"pixels": x, **batched([read], 0, False).to(self.device).inputs}
        texts = {"tokens": self.tokenizer.pieces(read.ids)}
        maps = attention_maps(self.pair, inputs, texts, pixels=pixels, **how)
        if not text:
            return [each for each in maps if each.picture is not None]
        if (how.get("names", "*"), how.get("heads"), how.get("view", "weights")) != ("*", None, "weights"):
            return maps
        seen = next(each.picture for each in maps if each.picture is not None)
        with torch.inference_mode():
            found = self.pair.places(x, inputs["tokens"]).float().cpu()  # type: ignore[operator]
        return [AttentionMap(PLACES, found, texts["tokens"], seen.grid.texts(), "said", picture=seen), *maps]

    def compared(self, picture: Any, texts: Sequence[str]) -> Pictured:
        """How near texts are to a picture, as a page draws it: the nearest is what it says."""
        (seen,), texts = self.see([picture]), texts[:BARS]
        alike = [float(seen @ each) for each in self.embed(list(texts))] if texts else []
        bars = [Rated(*each, chosen=each[1] == max(alike)) for each in zip(texts, alike, strict=True)]
        said = next((bar.text for bar in bars if bar.chosen), "")
        return Pictured(
            said, [bars] if bars else [], cosines=True, numbers={"dimensions": len(seen)}, vector=seen.tolist()
        )

    def answers(self, asks: Sequence[Given | Viewed], settings: EmbedUse) -> list[Embedded]:
        """The vector of each text, and of each picture, of length 1."""
        said = iter(super().answers([ask for ask in asks if isinstance(ask, Given)], settings))
        seen = iter(self.viewer.outputs([ask for ask in asks if isinstance(ask, Viewed)]))
        return [
            next(said)
            if isinstance(ask, Given)
            else Embedded(F.normalize(next(seen)[: settings.dimensions], dim=-1).numpy(), 0)
            for ask in asks
        ]

    def size(self, asks: Sequence[Given | Viewed], settings: Any = None) -> tuple[int, int]:
        """Tokens of some texts, and patches of pictures; nothing is written."""
        c: Any = self.model.config
        read, _ = super().size([ask for ask in asks if isinstance(ask, Given)], settings)
        return read + sum(isinstance(ask, Viewed) for ask in asks) * (1 + c.side**2), 0

    def told(self, asked: Prompting) -> "Worded":
        """What tells classes that a command names."""
        named = (each.strip().partition("=") for each in str(asked.labels).split(","))
        return Worded(self, {label: word or label for label, _, word in named}, asked.prompt or "{label}")

    def classify(
        self, picture: Any, labels: Sequence[str] | Mapping[str, str], *, prompt: str = "{label}", **settings: Any
    ) -> Classified:
        """Which of some labels, or of what a mapping says for each, a picture shows: no example is needed."""
        return Worded(self, labels, prompt).answers([Viewed(picture)], ClassifyUse(**settings))[0]


class Worded:
    """Classes that are told in words."""

    def __init__(self, matcher: Matcher, labels: Sequence[str] | Mapping[str, str], prompt: str = "{label}") -> None:
        words = dict(labels) if isinstance(labels, Mapping) else {label: label for label in labels}
        self.matcher, self.labels, self.use = matcher, tuple(words), ClassifyUse()
        self.vectors = matcher.embed(prompts(words, prompt))

    def answers(self, asks: Sequence[Viewed], settings: ClassifyUse) -> list[Classified]:
        """Which of the classes each picture is nearest to."""
        return nearest(self.matcher, self.matcher.see(asks), self.vectors, self.labels, settings)


def prompts(words: Mapping[str, str], prompt: str) -> list[str]:
    """What is compared with pictures, of each class the word for it."""
    if len(words) < 2:
        raise ValueError(f"labels = {', '.join(words)}: there must be two at least, separated by commas")
    if "{label}" not in prompt:
        raise ValueError(f"the prompt {prompt!r} has no {{label}} in it: say where it stands")
    return [prompt.replace("{label}", word) for word in words.values()]


def nearest(
    matcher: Matcher,
    seen: NDArray[np.float32],
    said: NDArray[np.float32],
    labels: Sequence[str],
    settings: ClassifyUse,
) -> list[Classified]:
    """Which of the labels, whose words have these vectors, each picture shows."""
    logits = matcher.sharpness * torch.from_numpy(seen) @ torch.from_numpy(said).T
    return [classified(row, tuple(labels), "one", settings) for row in logits]


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
    row, rows, by_rows, stands = "picture", "pictures", True, "vector"
    reads = "pairs"
    marks: ClassVar[tuple[str, ...]] = ("cls", "sep")
    instead: ClassVar[str] = "take clip-tiny"  # of a model that does not see

    def __post_init__(self) -> None:
        for name, kind in (("sight", Sight), ("augment", Augment)):
            if isinstance(given := getattr(self, name), dict):  # as JSON has it
                object.__setattr__(self, name, kind(**given))

    @classmethod
    def of(cls, recipe: Any) -> "Match":
        d = recipe.data
        return cls(d.max_length, d.sight(recipe, cls.instead), d.augment)

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
        return {"image": self.sight.column, "captions": Column.ids(vocabulary)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        room = (self.longest or 2**30) - len(tokenizer.marks.around([])[0])
        for row, pixels in zip(rows, side_by_side(self._seen, rows), strict=True):
            if isinstance(pixels, Damaged):
                yield pixels
            else:
                captions = tokenizer.encode_batch(row["captions"])
                yield pixels, [i for ids in captions for i in self.framed(ids[:room], tokenizer.marks)]

    def _seen(self, row: Row) -> Pixels | Damaged:
        try:
            return self.sight.pixels(row["image"], row["name"])
        except PictureError as error:
            return Damaged(error)

    def framed(self, ids: Sequence[int], marks: Marks) -> list[int]:
        """A caption with what closes it, and what else stands around it."""
        return marks.around(ids)[0]

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        end = tokenizer.marks.around([])[0][-1]  # closes each caption

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            """Of each picture, one of its captions."""
            pixels = self.sight.tensor(augmented(self.augment, [image for image, _ in rows], draw))
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
        made = dict.fromkeys(["recall", *found], RANKS)
        return Measured.of(Evidence(len(held_out), figures, made=made), "recall", samples[:SHOWN])


TASK = Match
