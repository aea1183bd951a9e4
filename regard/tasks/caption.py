"""Captions: a picture in, a text that describes it out; BLEU-1 to -4 and CIDEr."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, overload

import numpy as np
import torch
from torch import nn

from regard.core.generation import EncoderDecoder, padded
from regard.core.outputs import HeadConfig
from regard.core.quantised import dtype_of
from regard.data.batching import Batch
from regard.data.pictures import Sight, in_groups
from regard.data.rows import Row
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import Marks
from regard.decoding.protocol import Request, SearchConfig
from regard.evaluation.captions import MADE, judged
from regard.inspection.axes import END, grids
from regard.inspection.maps import attention_maps, without_special
from regard.inspection.page import AttentionMap
from regard.inspection.words import Words
from regard.native.pictures import augmented
from regard.tasks.embed import Judging
from regard.tasks.match import SHOWN, CaptionedConfig, Match, drawn
from regard.tasks.searching import Searcher, in_words
from regard.tasks.task import Evidence, Measured, Sections
from regard.tasks.viewer import TOGETHER, Viewed, Viewer
from regard.training.objectives import NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate


@dataclass(frozen=True)
class Describing(SearchConfig):
    """How a caption is searched for."""

    limit: int | None = 40
    shortest: int = 1


@dataclass(frozen=True)
class CaptionConfig:
    """What a model is for."""

    name: str = "caption"


@dataclass(frozen=True)
class Captioned:
    """What a picture is said to show."""

    text: str
    score: float  # by which captions of one picture are ranked
    others: tuple[str, ...] = ()  # the next best, if more than one is asked for
    tokens: int = 0  # that were written


class Describer(Searcher):
    """A model that describes pictures, and its tokenizer.

    >>> describer = load("runs/captions")             # doctest: +SKIP
    >>> describer.caption("photo.jpg")                # doctest: +SKIP
    'a dog runs through the snow .'
    """

    def __init__(
        self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: SearchConfig, sight: Sight, **how: Any
    ) -> None:
        super().__init__(models, tokenizer, **how)
        self.use, self.viewer = use, Viewer(models, tokenizer, use, sight)

    @overload
    def caption(self, picture: list[Any], **settings: Any) -> list[str]: ...
    @overload
    def caption(self, picture: Any, **settings: Any) -> str: ...
    def caption(self, picture: Any, **settings: Any) -> Any:
        """What a picture shows, or each of a list: paths, contents of files, Pillow's images, or arrays."""
        asks = [Viewed(each) for each in (picture if isinstance(picture, list) else [picture])]
        found = [each.text for each in self.answers(asks, replace(self.use, **settings))]
        return found if isinstance(picture, list) else found[0]

    def attention(
        self, picture: Any, target: str | None = None, *, words: bool = False, special: bool = True, **how: Any
    ) -> list[AttentionMap]:
        """What every head looks at while the model writes its caption of a picture, or a given one.

        `words` puts sub-words together; without `special`, start and end symbols are left out; `names`, `heads` and
        `view` are those of `attention_maps`.
        """
        pixels, x = self.viewer.read(picture)
        found = None if target is None else self.tokenizer.encode(target)
        written = self._search([Request(x[0], self.bos)], self.use)[0][0].tokens if found is None else found
        if self.places is not None and len(written) >= self.places:
            raise ValueError(f"the caption has {len(written)} tokens, the model writes {self.places - 1}: shorten it")
        (name, grid), grouped = next(iter(grids(self.model).items())), None
        if words:
            patches = Words([*range(grid.places)], grid.texts())
            grouped = {name: patches, "target": in_words(self.tokenizer, written)}
        inputs = {name: x, "target": torch.tensor([[self.bos, *written]], device=self.device)}
        texts = {"target": [*self.tokenizer.pieces(written), END]}
        maps = attention_maps(self.model, inputs, texts, words=grouped, pixels=pixels, **how)
        return maps if special else list(map(without_special, maps))

    def size(self, asks: Sequence[Viewed], settings: SearchConfig) -> tuple[int, int]:
        """Positions that some pictures have, and tokens that are written of them at most."""
        return self.viewer.size(asks)[0], len(asks) * (settings.limit or self.places or 0) * settings.beam

    def written(self, answer: Captioned) -> int:
        """The sub-words of an answer."""
        return answer.tokens

    def answers(self, asks: Sequence[Viewed], settings: SearchConfig) -> list[Captioned]:
        """A caption of each picture: what the other methods are made of."""
        found, kind = dict[int, Captioned](), dtype_of(self.model)
        for some in in_groups(enumerate(asks), min(TOGETHER, self.rows)):
            seen = self.viewer.seen([ask for _, ask in some])
            for shape in dict.fromkeys(each.shape for each in seen):  # those of one size are searched for together
                alike = [(i, each) for (i, _), each in zip(some, seen, strict=True) if each.shape == shape]
                pixels = self.viewer.sight.tensor(np.stack([each for _, each in alike])).to(kind)
                searched = self._search([Request(each, self.bos) for each in pixels], settings)
                for (i, _), best in zip(alike, searched, strict=True):
                    text, *others = self.tokenizer.decode_batch([each.tokens for each in best])
                    tokens = sum(len(each.tokens) for each in best)
                    found[i] = Captioned(text, best[0].score, tuple(others), tokens)
        return [found[i] for i in range(len(asks))]


@dataclass(frozen=True)
class Caption(Match):
    """A picture in, a text out."""

    name, called, verb = "caption", "captioning", ""
    sections = Sections(CaptionConfig, CaptionedConfig, Describing, Judging)
    needs: ClassVar[type] = EncoderDecoder
    stands, by_rows = "tokens", False  # of a caption, each token is learnt
    reads = "pixels"
    marks = ()
    instead = "take caption-tiny"

    def check(self, recipe: Any) -> None:
        if recipe.train.batch_rows is None:
            raise ValueError("train.batch_rows: say how many pictures make a batch, as 64")
        longest = recipe.model.build(2**16).longest
        if longest is not None and longest < recipe.data.max_length:
            raise ValueError(
                f"model.max_length = {longest}: it must hold the {recipe.data.max_length} tokens of data.max_length"
            )

    def head(self, model: type[nn.Module]) -> HeadConfig:
        return HeadConfig()

    def framed(self, ids: Sequence[int], marks: Marks) -> list[int]:
        return [*ids, *marks.need("eos")]

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad, bos, eos = tokenizer.marks.need("pad", "bos", "eos")

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            """Of each picture, one of its captions."""
            pixels = self.sight.tensor(augmented(self.augment, [image for image, _ in rows], draw))
            said = [drawn(ids, eos, draw) for _, ids in rows]
            labels = padded(said, pad, 2**31)
            target = padded([[bos, *ids[:-1]] for ids in said], pad, 2**31)
            return Batch({"source": pixels, "target": target, "labels": labels}, sum(map(len, said)))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        (pad,) = tokenizer.marks.need("pad")
        return NextToken(model, smoothing, ignore=pad)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: SearchConfig, **how: Any) -> Describer:  # type: ignore[override]
        return Describer(models, tokenizer, use, self.sight, **how)

    def measure(self, predictor: Describer, held_out: Sequence[Row], recipe: Any) -> Measured:  # type: ignore[override]
        """At a validation greedily, of some pictures; without a recipe as the model is used."""
        rows = held_out if recipe is None else held_out[: recipe.train.validate_sentences]
        use = predictor.use if recipe is None else replace(predictor.use, beam=1, best=1, groups=1, sampling=None)
        return self._measured(predictor, rows, use)

    def said(self, predictor: Any, rows: Sequence[Row], use: Any) -> list[str]:
        """What a model says of some pictures."""
        return [each.text for each in predictor.answers([Viewed(row["image"], row["name"]) for row in rows], use)]

    def _measured(self, predictor: Describer, rows: Sequence[Row], use: SearchConfig) -> Measured:
        said = self.said(predictor, rows, use)
        figures = judged(said, [row["captions"] for row in rows])
        samples = [Sample(row["name"], text, row["captions"][0]) for row, text in zip(rows, said, strict=True)]
        return Measured.of(Evidence(len(rows), figures, made=MADE), "cider", samples[:SHOWN])

    def judge(self, predictor: Describer, held_out: Sequence[Row], recipe: Any) -> tuple[dict[str, Any], list[Sample]]:
        found, how = self._measured(predictor, held_out, predictor.use), f"pictures:{len(held_out)}|{MADE['cider']}"
        return {name: {"score": x, "signature": how} for name, x in found.measures.items()}, found.samples


TASK = Caption
