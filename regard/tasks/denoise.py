"""Denoising: spoilt text in, whole text out. How T5 and BART learn, before they learn to answer, translate or shorten.

T5 (Raffel et al., 2020) takes out spans, puts a sentinel in place of each, and writes what stood there after the same
sentinels. BART (Lewis et al., 2020) spoils a text in one or several ways, and writes it all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.checks import above, at_least, hint, share
from regard.core.generation import EncoderDecoder
from regard.data.batching import Batch, collate
from regard.data.documents import Passage
from regard.data.tokenizers import Tokenizer
from regard.evaluation.calibration import perplexity
from regard.tasks.asks import DecodeConfig
from regard.tasks.task import Measured, Sections
from regard.tasks.texts import OverText, TextConfig
from regard.tasks.translator import Translator
from regard.training.objectives import NextToken, Objective
from regard.training.run import Sample
from regard.training.stream import Collate
from regard.training.validation import foretold

SENTINELS = 100
SHOWN = 5
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class DenoiseConfig:
    """What a model is for."""

    name: str = "denoise"
    block: int = 128  # tokens of a text
    noise: tuple[str, ...] = ("spans",)  # spans (T5); or of BART: infill, mask, delete, permute, rotate, in this order
    share: float = 0.15  # of the tokens is spoilt: T5 0.15, BART 0.3
    span: float = 3.0  # tokens of a span, on average

    def __post_init__(self) -> None:
        at_least(8, **{"task.block": self.block})
        share(whole=False, **{"task.share": self.share})
        above(0, **{"task.span": self.span})
        for name in self.noise:
            if name not in ("spans", *WAYS):
                raise ValueError(f"task.noise = {name!r}: {hint(name, ('spans', *WAYS))}")
        if "spans" in self.noise and len(self.noise) > 1:
            raise ValueError("task.noise: spans says what stood in the gaps, the other ways all of the text: choose")


@dataclass(frozen=True)
class Restoring:
    """It is judged by what it foretells of held-out text, which is spoilt in the same way for every model."""


@dataclass(frozen=True)
class Denoise(OverText):
    """Spoilt text in, whole text out."""

    block: int = DenoiseConfig.block
    noise: tuple[str, ...] = DenoiseConfig.noise
    share: float = DenoiseConfig.share
    span: float = DenoiseConfig.span

    name, called, verb = "denoise", "denoising", "translate"
    sections = Sections(DenoiseConfig, TextConfig, DecodeConfig, Restoring)
    needs = EncoderDecoder
    marks = ("mask", *(f"extra_id_{i}" for i in range(SENTINELS)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", tuple(self.noise))

    @property
    def room(self) -> int:
        return self.block - 1  # an end is added

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 here")
        spoil = self.spoiling(tokenizer)

        def batch(rows: Sequence[tuple[NDArray[Any]]], draw: Random) -> Batch:
            random = np.random.default_rng(draw.getrandbits(63))
            return collate([spoil(text, random) for text in self.drawn(rows, draw)], marks=tokenizer.marks)

        return batch

    def spoiling(self, tokenizer: Tokenizer) -> Callable[[Ids, np.random.Generator], tuple[Ids, Ids]]:
        """What makes of a text what is read, and what is to be written."""
        if self.noise == ("spans",):
            sentinels = sentinels_of(tokenizer)
            return lambda text, random: corrupted(text, sentinels, self.share, self.span, random)
        (mask,) = tokenizer.marks.need("mask")
        stops = np.array([i for i in range(len(tokenizer)) if tokenizer.spelled(i).strip() in (b".", b"!", b"?")])

        def spoil(text: Ids, random: np.random.Generator) -> tuple[Ids, Ids]:
            spoilt = text
            for name in self.noise:
                spoilt = WAYS[name](spoilt, random, Spoiling(mask, stops, self.share, self.span))
            return spoilt, text

        return spoil

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        (pad,) = tokenizer.marks.need("pad")
        return NextToken(model, smoothing, ignore=pad)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: DecodeConfig, **how: Any) -> Translator:
        return Translator(models, tokenizer, use, longest=self.block, **how)

    def measure(self, predictor: Translator, held_out: Sequence[Passage], recipe: Any) -> Measured:
        tokenizer = predictor.tokenizer
        spoil, random = self.spoiling(tokenizer), np.random.default_rng(0)
        pairs = [spoil(ids, random) for ids in self.stretches(held_out, tokenizer, recipe.train.validate_sentences)]
        (pad,) = tokenizer.marks.need("pad")
        batches = (collate(pairs[i : i + 32], marks=tokenizer.marks) for i in range(0, len(pairs), 32))
        seen = foretold(predictor.model, batches, pad)
        measures = {"loss": seen.loss, "perplexity": perplexity(seen.loss, 1), "accuracy": seen.accuracy}
        samples = [
            Sample(*(" ".join(tokenizer.pieces(each.tolist()[:40])) for each in (a, b, b))) for a, b in pairs[:SHOWN]
        ]
        return Measured(-seen.loss, measures, samples)


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1>, ..."""
    found = [tokenizer.rust.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
    known = [i for i in found if i is not None]
    if not known:
        raise ValueError("the tokenizer has no sentinels <extra_id_0>, ...: choose another task.noise, such as infill")
    return known


def spans(length: int, share: float, mean: float, random: np.random.Generator) -> list[tuple[int, int]]:
    """Spans that lie apart, as many tokens of `length` as this share, each so long on average: (begin, end) of each."""
    if length < 2:
        return []
    hidden = min(max(1, round(length * share)), length - 1)
    count = min(max(1, round(hidden / mean)), hidden, length - hidden)

    def cut(total: int, parts: int) -> NDArray[np.int64]:
        """A random sum of so many positive numbers."""
        at = np.sort(random.choice(total - 1, parts - 1, replace=False)) + 1
        return np.diff(np.concatenate([[0], at, [total]]))

    gaps, sizes = cut(length - hidden, count), cut(hidden, count)
    ends = np.cumsum(gaps + sizes)
    return [(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


def corrupted(
    text: Ids, sentinels: Sequence[int], share: float, mean: float, random: np.random.Generator
) -> tuple[Ids, Ids]:
    """T5: spans give way to sentinels; what is written is each sentinel and what it stands for, and one more.

    >>> text, random = np.arange(10, 20), np.random.default_rng(1)
    >>> [each.tolist() for each in corrupted(text, [101, 102, 103], 0.3, 2.0, random)]
    [[10, 11, 12, 101, 15, 16, 17, 18, 102], [101, 13, 14, 102, 19, 103]]
    """
    read, said, before = [], [], 0
    for sentinel, (begin, end) in zip(sentinels[:-1], spans(len(text), share, mean, random), strict=False):
        read += [text[before:begin], [sentinel]]
        said += [[sentinel], text[begin:end]]
        before = end
    last = sentinels[min(len(said) // 2, len(sentinels) - 1)]
    return np.concatenate([*read, text[before:]]).astype(np.int64), np.concatenate([*said, [last]]).astype(np.int64)


@dataclass(frozen=True)
class Spoiling:
    """How a text is spoilt."""

    mask: int
    stops: Ids  # ids that end a sentence
    share: float
    span: float


def _infill(text: Ids, random: np.random.Generator, c: Spoiling) -> Ids:
    """Spans whose lengths are of Poisson's give way to one mask each; a span of none is a mask put in."""
    wanted, parts, at = round(len(text) * c.share), [], 0
    hidden = 0
    chance = c.share / max(1.0, c.span)
    while at < len(text):
        if hidden < wanted and random.random() < chance:
            size = min(int(random.poisson(c.span)), wanted - hidden, len(text) - at)
            parts.append(np.array([c.mask]))
            at, hidden = at + size, hidden + size
            if size:
                continue
        parts.append(text[at : at + 1])
        at += 1
    return np.concatenate(parts).astype(np.int64) if parts else text


def _mask(text: Ids, random: np.random.Generator, c: Spoiling) -> Ids:
    return np.where(random.random(len(text)) < c.share, c.mask, text)


def _delete(text: Ids, random: np.random.Generator, c: Spoiling) -> Ids:
    kept = text[random.random(len(text)) >= c.share]
    return kept if len(kept) else text[:1]


def _permute(text: Ids, random: np.random.Generator, c: Spoiling) -> Ids:
    """Sentences in another order."""
    ends = np.flatnonzero(np.isin(text, c.stops)) + 1
    parts = [part for part in np.split(text, ends) if len(part)]
    return np.concatenate([parts[i] for i in random.permutation(len(parts))]) if parts else text


def _rotate(text: Ids, random: np.random.Generator, c: Spoiling) -> Ids:
    """The text begins somewhere in its midst, and ends where it began."""
    return np.roll(text, -int(random.integers(max(1, len(text)))))


WAYS: dict[str, Callable[[Ids, np.random.Generator, Spoiling], Ids]] = {
    "infill": _infill,
    "mask": _mask,
    "delete": _delete,
    "permute": _permute,
    "rotate": _rotate,
}
TASK = Denoise
