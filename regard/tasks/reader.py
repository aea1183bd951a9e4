"""A model that reads a text as a whole, and its tokenizer: texts in, what its head says of them out.

Letters: B batch, T length.

A text that is longer than the model reads is read in windows that overlap, so that nothing of it is lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from regard.core.generation import of_like_length, padded
from regard.data.batching import Batch
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import Marks
from regard.decoding.protocol import DAMAGED
from regard.inspection.maps import attention_maps, without
from regard.inspection.page import AttentionMap, attention_page
from regard.inspection.taps import attentions, record
from regard.inspection.words import Words, words_of_spans
from regard.native import NativeReader
from regard.tasks.company import together
from regard.tasks.engines import Engines
from regard.tasks.searching import in_words

TOKENS = 4_096  # that are read together
STRIDE = 0.5  # of a window is new, where a text is read in several
BARS = 50  # that are told to a page, at most: it draws fewer, but finds the others again when something changes


@dataclass(frozen=True)
class Given:
    """A text to read, or a pair of them."""

    text: str
    pair: str | None = None
    place: str = ""  # where it stands, for errors
    id: object = None  # whatever its owner knows it by
    ids: tuple[int, ...] | None = None  # what is read in place of its sub-words, with or without its marks


@dataclass(frozen=True)
class Span:
    """A part of a text."""

    text: str
    start: int  # its first character in the text
    end: int  # and the one after its last
    probability: float
    label: str = ""  # what it is


@dataclass(frozen=True)
class Rated:
    """Something that may be so, and how much."""

    text: str  # "" is none of what might be
    value: float
    label: str = ""  # what it is
    chosen: bool = False  # whether it is what the model says


@dataclass(frozen=True)
class Pictured:
    """An answer as a page draws it: of these parts, those that it has."""

    said: str = ""  # in a few words
    bars: Sequence[Sequence[Rated]] = ()  # one chart, or several of a kind
    cosines: bool = False  # the values are, from -1 to 1; else they are probabilities
    text: str = ""  # in which parts are marked
    spans: Sequence[Span] = ()  # these
    numbers: Mapping[str, float] = field(default_factory=dict)
    vector: Sequence[float] = ()
    note: str = ""  # why there is no answer


class Framed(NamedTuple):
    """What a model reads at once."""

    ids: list[int]
    segments: list[int]
    first: int = 0  # the number of its first token in the text, or in the second one of a pair
    begins: int = 1  # where that stands in ids
    tokens: int = 0  # how many of that text there are


Outputs = Callable[[Sequence[Framed]], list[Tensor]]


class _Native:
    """The C engine, asked with others who share its weights if they ask at once."""

    def __init__(self, engine: NativeReader, told_apart: bool) -> None:
        self.engine, self.told_apart = engine, told_apart

    def adapted(self, model: nn.Module, base: nn.Module) -> "_Native":
        return _Native(self.engine.adapted(model, base), self.told_apart)

    def __call__(self, read: Sequence[Framed]) -> list[Tensor]:
        asks = [(each, self.engine) for each in read]
        return [torch.from_numpy(said) for said in together((id(self.engine.c), self.engine.pooled), asks, self._said)]

    def _said(self, asks: Sequence[tuple[Framed, NativeReader]]) -> list[Any]:
        read = [each for each, _ in asks]
        told = self.told_apart and any(1 in each.segments for each in read)
        segments = [each.segments for each in read] if told else None
        alone = all(engine is self.engine for _, engine in asks)
        return self.engine.outputs(
            [each.ids for each in read], segments, None if alone else [engine for _, engine in asks]
        )


class Reader(Engines):
    """One model, or several whose answers are averaged."""

    second = ""  # what may stand beside a text: a pair, the context of a question; or lines, each alone

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        use: Any,
        *,
        longest: int | None = None,
        shortlists: object = None,
        **how: Any,
    ) -> None:
        """`longest`: tokens that are read together, marks among them; how they are read, `Engines` says."""
        super().__init__(model, tokenizer, **how)
        if shortlists is not None:
            raise ValueError("a shortlist is for what is written: this model reads")
        self.use = use
        self.longest = min((n for n in (longest, self.places) if n is not None), default=None)

    def on(self, model: nn.Module) -> Self:
        """The same on another model, by PyTorch: so that somebody can watch that one."""
        other = copy(self)
        other.models, other.model, other.engine, other._made = [model], model, "torch", None
        return other

    def pictured(self, ask: Given) -> Pictured:
        """The answer to a text, as a page draws it."""
        raise NotImplementedError

    @property
    def pairs(self) -> bool:
        """Whether a second text is read together with the first."""
        return self.second in ("pair", "context")

    def _check_pair(self, place: str) -> None:
        if not self.pairs:
            raise ValueError(f"{place} has a second text: this model reads one, so leave the other out")

    @property
    def told_apart(self) -> bool:
        """Whether the model knows which of two texts a token is in."""
        return (getattr(self.model.config, "segments", None) or 1) > 1

    def size(self, asks: Sequence[Given], settings: Any = None) -> tuple[int, int]:
        """Tokens of some texts; nothing is written."""
        texts = [text for ask in asks for text in (ask.text, ask.pair) if text is not None and ask.ids is None]
        return sum(map(len, self.tokenizer.encode_batch(texts))) + sum(len(ask.ids or ()) for ask in asks), 0

    def written(self, answer: Any) -> int:
        """Tokens of an answer: none."""
        return 0

    def framed(self, asks: Sequence[Given], room: int = 0, long: str = "windows") -> list[list[Framed]]:
        """What the model reads of each text: one window, or several that overlap by half; of a pair, the second text
        is read in windows beside the whole first one. `room` is kept free. A text that needs several may be cut to the
        first, or refused: `long`."""
        texts = iter(self.tokenizer.encode_batch([ask.text for ask in asks if ask.ids is None]))
        pairs: Iterator[list[int]] = iter(self.tokenizer.encode_batch([a.pair for a in asks if a.pair is not None]))
        found = []
        for ask in asks:
            ids = next(texts) if ask.ids is None else self.tokenizer.marks.inside(ask.ids)
            pair = next(pairs) if ask.pair is not None else None
            longest = None if self.longest is None else self.longest - room
            place = ask.place or repr(ask.text[:40])
            if pair is not None:
                self._check_pair(place)
            read = list(windows(self.tokenizer.marks, ids, pair, longest, place))
            if len(read) > 1 and long == "refuse":
                raise ValueError(
                    f"{place} has {len(ids) + len(pair or ())} tokens, the model reads {longest} at once: shorten it, "
                    "or have it read in windows or cut (long)"
                )
            found.append(read[:1] if long == "cut" else read)
        return found

    def outputs(self, read: Sequence[Framed]) -> list[Tensor]:
        """What the head says of each: (C,), (d,), or (T, C) of its own length; the mean of all models."""
        each = [engine(read) for engine in self.engines]
        found = each[0] if len(each) == 1 else [torch.stack(said).mean(0) for said in zip(*each, strict=True)]
        if not all(end.isfinite() for said in found for end in said.aminmax()):
            raise ValueError(DAMAGED)
        return found

    def native(self, model: nn.Module) -> Outputs:
        if (shared := self._adapted(model, _Native)) is not None:
            return shared
        return _Native(NativeReader(model, threads=self.workers or torch.get_num_threads()), self.told_apart)

    def module(self, model: nn.Module, reason: str) -> Outputs:
        @torch.inference_mode()
        def outputs(read: Sequence[Framed]) -> list[Tensor]:
            found: list[Any] = [None] * len(read)
            rows = 1 if self.bitwise else self.rows
            for some in of_like_length([len(each.ids) for each in read], TOKENS, rows):
                batch = batched([read[i] for i in some], self.tokenizer.marks.pad or 0, self.told_apart)
                said = model(**batch.to(self.device).inputs).float().cpu()
                for i, row in zip(some, said, strict=True):
                    found[i] = row if said.dim() == 2 else row[: len(read[i].ids)]
            return found

        return outputs

    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        names: str | Sequence[str] = "*",
        heads: Sequence[int] | None = None,
        view: str = "weights",
        words: bool = False,
        special: bool = True,
    ) -> list[AttentionMap]:
        """What every head looks at while the model reads a text, or a pair; of a long one, its first window.

        `words` puts sub-words together; without `special`, marks are left out.
        """
        if pair is not None:
            self._check_pair(repr(text[:40]))
        read = self.framed([Given(text, pair)])[0][0]
        inputs = batched([read], 0, self.told_apart).to(self.device).inputs
        grouped = {"tokens": self._words(read.ids)} if words else None
        how: Any = {"names": names, "heads": heads, "view": view, "words": grouped}
        maps = attention_maps(self.model, inputs, {"tokens": self.tokenizer.pieces(read.ids)}, **how)
        if special:
            return maps
        marks = self.tokenizer.silent - {self.tokenizer.marks.unk, self.tokenizer.marks.mask}
        return [without(each, set(self.tokenizer.pieces(sorted(marks)))) for each in maps]

    def _words(self, ids: Sequence[int]) -> Words:
        """The words of what is read; each mark is one of its own."""
        of, texts = list[int](), list[str]()
        for marks, run in groupby(ids, (self.tokenizer.silent - {self.tokenizer.marks.unk}).__contains__):
            for some in [[i] for i in run] if marks else [list(run)]:
                known = Words([0], self.tokenizer.pieces(some)) if marks else in_words(self.tokenizer, some)
                of += [len(texts) + word for word in known.of[: len(some)]]
                texts += known.texts[: len({*known.of[: len(some)]})]
        return Words(of, texts)

    def attended(self, text: str, pair: str | None = None, *, long: str = "windows") -> list[Span]:
        """The words of a text, and then of its pair (label: pair), and which share of the last layer's attention to
        words each has: the mean over heads, over the places that are looked from, and, of a long text, over the windows
        in which a word stands. What is not read is not told."""
        *_, last = attentions(self.model) or [None]
        if last is None:
            raise ValueError("this model has no layers, so nothing is attended to: leave --attended out")
        given = [(text, "")] if pair is None else [(text, ""), (pair, "pair")]
        places = [self.spans(each) for each, _ in given]
        sums = [torch.zeros(2, len(each)) for each in places]  # of each token, its shares and in how many windows
        begins = len(self.tokenizer.marks.around([])[0]) - self.tokenizer.marks.ends
        for read in self.framed([Given(text, pair)], long=long)[0]:
            with record(self.model, last, what="weights") as seen:
                self.model(**batched([read], 0, self.told_apart).to(self.device).inputs)
            share = self.looking(read, seen.weights[last][0].float().mean(0)).mean(0).cpu()  # (T, T) -> (T,)
            first = [] if pair is None else [(begins, 0, len(places[0]))]
            for own, (at, skipped, count) in zip(sums, (*first, (read.begins, read.first, read.tokens)), strict=True):
                own[:, skipped : skipped + count] += torch.stack([share[at : at + count], torch.ones(count)])
        found = list[Span]()
        for (whole, label), spans, (shares, counts) in zip(given, places, sums, strict=True):
            means = (shares / counts).tolist()
            for _, some in groupby(enumerate(words_of_spans(whole, spans)), lambda each: each[1]):
                if tokens := [i for i, _ in some if counts[i]]:
                    start, end = spans[tokens[0]][0], spans[tokens[-1]][1]
                    start += len(whole[start:end]) - len(whole[start:end].lstrip())
                    found.append(Span(whole[start:end], start, end, sum(means[i] for i in tokens), label))
        total = sum(each.probability for each in found) or 1.0
        return [replace(each, probability=each.probability / total) for each in found]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where in a text each token stands that `framed` reads of it."""
        return self.tokenizer.spans(text)

    def looking(self, read: Framed, weights: Tensor) -> Tensor:
        """Of a map (T, T), the rows of the places that the head looks from: one, or all."""
        from_one = {"first": weights[:1], "last": weights[-1:]}
        return from_one.get(getattr(self.model.head, "pool", None) or "", weights)

    def attention_page(self, text: str, pair: str | None = None) -> str:
        """A self-contained HTML page of every head while the model reads a text."""
        return attention_page(self.attention(text, pair), title=text[:60])


def windows(
    marks: Marks, ids: list[int], pair: list[int] | None = None, longest: int | None = None, place: str = "a text"
) -> Iterator[Framed]:
    """A text with its marks as a model reads it that reads so many tokens: in one window, or in several; of a pair, the
    second text is, beside the whole first one.

    >>> [(w.ids, w.first, w.begins) for w in windows(Marks(cls=7, sep=8), [1, 2, 3], longest=4)]
    [([7, 1, 2, 8], 0, 1), ([7, 2, 3, 8], 1, 1)]
    """
    own = len(marks.around([], None if pair is None else [])[0])
    whole, fixed = (ids, []) if pair is None else (pair, ids)
    most = None if longest is None else longest - own - len(fixed)
    if most is not None and most < 1:
        raise ValueError(f"{place} has {len(ids)} tokens, the model reads {longest} at most: shorten it")
    step = max(1, len(whole) if most is None else int(most * STRIDE))
    for start in range(0, max(1, len(whole)), step):
        part = whole[start:] if most is None else whole[start : start + most]
        framed, segments = marks.around(part) if pair is None else marks.around(ids, part)
        begins = len(framed) - len(part) - marks.ends
        yield Framed(framed, segments, start, begins, len(part))
        if start + len(part) >= len(whole):
            break


def check_length(recipe: Any) -> None:
    """Refuse a recipe whose model cannot read what its batches hold."""
    longest, needed = recipe.model.build(2**16).longest, recipe.data.max_length
    if longest is not None and longest < needed:
        raise ValueError(f"model.max_length = {longest}: it must hold the {needed} tokens of data.max_length")


def batched(read: Sequence[Framed], pad: int, segments: bool) -> Batch:
    """Framed texts as a batch: tokens, keep, and segments where a model tells two texts apart, and there are two."""
    longest = max(len(each.ids) for each in read)
    tokens = padded([each.ids for each in read], pad, 2**31)
    keep = torch.arange(longest) < torch.tensor([len(each.ids) for each in read])[:, None]
    tensors = {"tokens": tokens, "keep": keep}
    if segments and any(1 in each.segments for each in read):
        tensors["segments"] = padded([each.segments for each in read], 0, 2)
    return Batch(tensors, len(read))


def asked(texts: Iterable[str | tuple[str, str] | Given]) -> list[Given]:
    """Texts, or pairs of them."""
    return [t if isinstance(t, Given) else Given(t) if isinstance(t, str) else Given(*t) for t in texts]
