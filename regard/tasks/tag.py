"""Tagging: a text in; what some of its words are, as names of persons or places, out; the F1 of spans.

Letters: W words, C tags.

Tags are BIO: B-X begins a span of the kind X, I-X goes on with it, and O is none. A word has the tag of its first
sub-word.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from regard.checks import at_least, share
from regard.core.outputs import HeadConfig
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.rows import WAYS, Row, RowFiles
from regard.data.sentences import UNSPACED
from regard.data.text import Skipped, open_bytes
from regard.data.tokenizers import Tokenizer
from regard.evaluation.spans import TAG, TAGGING, bio, of_counts, span_counts, spans
from regard.tasks.classify import SHOWN, Evaluation, check_known
from regard.tasks.reader import Framed, Given, Pictured, Rated, Reader, Span, batched, check_length, windows
from regard.tasks.task import Data, Evidence, Measured, Sections, Task
from regard.tasks.uses import TagUse
from regard.training.objectives import IGNORE, Labelled, Objective
from regard.training.run import Sample
from regard.training.stream import Collate

INF = float("inf")
SIGN = (  # what is no part of a word: ASCII; Latin, Arabic and Indian signs; punctuation, arrows, symbols, emoji
    r"!-/:-@\[-^`{-~\u00a1-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7\u060c\u061b\u061f\u06d4\u0964"
    r"\u0965\u2010-\u205e\u20a0-\u20cf\u2190-\u2bff\U0001f000-\U0001faff"
)
LETTER = rf"[^\s{SIGN}{UNSPACED.pattern[1:-1]}]"
WORD = re.compile(
    rf"""{UNSPACED.pattern}               # of a script without spaces, each character
    | (?:[^\W\d_]\.){{2,}}                # U.S.
    | {LETTER}+(?:[-'’&]{LETTER}+ | (?<=\d)[.,:/](?=\d){LETTER}+)*  # O'Brien, AT&T, 1996-08-22, 3,000.50
    | (\S)\1*                             # a sign, as often as it is repeated""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class TaggedFiles(RowFiles):
    """Where sentences and their tags are: a jsonl of lists, a tsv or csv with spaces between words, or a CoNLL file.

    That has a word a line, its columns between white space, and a blank line after each sentence.
    """

    ways = (*WAYS, "conll")
    parts = ("word", "tag")

    conll: str | None = None  # one file, a word a line; its tag is in the last column, unless `columns` says

    def __post_init__(self) -> None:
        if self.jsonl:
            object.__setattr__(self, "columns", {"word": "words", "tag": "tags", **self.columns})
        super().__post_init__()
        for name, place in self.columns.items() if self.conll else ():
            if isinstance(place, str):
                raise ValueError(f"columns.{name} = {place!r}: of a CoNLL file it is a number, from 0")

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The sentences, in order, with BIO tags: how many were others is said in `skipped`."""
        counts = Skipped() if skipped is None else skipped
        for number, row in enumerate(super().read(skipped), start=1):
            words, tags = (x.split() if isinstance(x, str) else x for x in (row["word"], row["tag"]))
            if not (isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags) > 0):
                raise ValueError(f"{self.path}, sentence {number}: as many words as tags are needed, got {row}"[:200])
            if wrong := [x for x in (*words, *tags) if not isinstance(x, str)]:
                where = f"{self.path}, sentence {number}"
                raise ValueError(f"{where}: {wrong[0]!r} is no word and no tag: put it in quotes")
            found = bio(tags)
            if changed := sum(a != b for a, b in zip(tags, found, strict=True)):
                counts.notes["tags that are not BIO (B-X begins a span, I-X goes on with it) read as such"] += changed
            yield {"words": words, "tags": found}

    def rows(self) -> Iterator[Row]:
        if not self.conll:
            yield from super().rows()
            return
        words: list[str] = []
        tags: list[str] = []
        with open_bytes(self.path) as stream:
            for where, text in self._lines(stream):
                cells = list(filter(None, re.split("\t" if "\t" in text else " ", text)))
                if not cells or cells[0] == "-DOCSTART-":
                    if words:
                        yield {"word": words, "tag": tags}
                    words, tags = [], []
                    continue
                at, to = (int(self.columns.get(name, last)) for name, last in (("word", 0), ("tag", len(cells) - 1)))
                if max(at, to) >= len(cells) or at == to:
                    raise ValueError(
                        f"{where} has {len(cells)} columns, no word and tag in {at} and {to}: say `columns`"
                    )
                words.append(cells[at])
                tags.append(cells[to])
        if words:
            yield {"word": words, "tag": tags}


@dataclass(frozen=True)
class TaggedConfig(Data):
    """Where sentences and tags come from."""

    train: TaggedFiles | None = None  # your own files
    valid: TaggedFiles | None = None  # held out of train if left out
    test: TaggedFiles | None = None  # held out of train if left out
    max_length: int = 128  # tokens that are read together; of a longer sentence, in windows

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(8, **{"data.max_length": self.max_length})


@dataclass(frozen=True)
class TagConfig:
    """What a model is for."""

    name: str = "tag"
    dropout: float = 0.1  # before the tags

    def __post_init__(self) -> None:
        share(whole=True, **{"task.dropout": self.dropout})


@dataclass(frozen=True)
class GivenWords(Given):
    """A text whose words are known; they stand in it one after the other."""

    words: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Iterable[str]) -> "GivenWords":
        """With a space between each two of them."""
        return cls(" ".join(words := tuple(words)), words=words)


@dataclass(frozen=True)
class Tagged:
    """What was found in a text."""

    spans: list[Span]  # in their order
    words: list[str]
    tags: list[str]  # of each word
    windows: int = 1  # in which the text was read


class Tagger(Reader):
    """A model that tags, and its tokenizer.

    >>> tagger = load("runs/conll2003")                                    # doctest: +SKIP
    >>> tagger.tag("EU rejects German call to boycott British lamb.")      # doctest: +SKIP
    Tagged(spans=[Span(text='EU', start=0, end=2, probability=0.99, label='ORG'), ...
    """

    labels: tuple[str, ...]

    @overload
    def tag(self, text: str, **settings: Any) -> Tagged: ...
    @overload
    def tag(self, text: Sequence[str | Sequence[str] | Given], **settings: Any) -> list[Tagged]: ...
    def tag(self, text: str | Sequence[str | Sequence[str] | Given], **settings: Any) -> Tagged | list[Tagged]:
        """What stands in a text, or in each of a list; one of these may be a list of words."""
        several = [text] if isinstance(text, str) else text
        asks = [Given(x) if isinstance(x, str) else x if isinstance(x, Given) else GivenWords.of(x) for x in several]
        found = self.answers(asks, replace(self.use, **settings))
        return found[0] if isinstance(text, str) else found

    def framed(self, asks: Sequence[Given], room: int = 0, long: str = "windows") -> list[list[Framed]]:
        """What the model reads of each text, word by word."""
        words = [[ask.text[a:b] for a, b in _places(ask)] for ask in asks]
        return [_read(some, self.tokenizer, self.longest)[0] for some in words]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Of each token the place of its word."""
        places = list(_places(Given(text)))
        read, firsts = _read([text[a:b] for a, b in places], self.tokenizer, self.longest)
        sizes = np.diff([*firsts, read[-1].first + read[-1].tokens])
        return [place for place, size in zip(places, sizes, strict=True) for _ in range(size)]

    def pictured(self, ask: Given) -> Pictured:
        (found,) = self.answers([ask], self.use)
        bars = [Rated(each.text, each.probability, each.label) for each in found.spans]
        said = " · ".join(f"{bar.text} {bar.label}" for bar in bars)
        return Pictured(said, [bars] if bars else [], text=ask.text, spans=found.spans)

    def answers(self, asks: Sequence[Given], settings: TagUse) -> list[Tagged]:
        """What stands in each of some texts: what the other methods are made of."""
        places = [list(_places(ask)) for ask in asks]
        texts = [[ask.text[a:b] for a, b in own] for ask, own in zip(asks, places, strict=True)]
        read = [_read(own, self.tokenizer, self.longest) for own in texts]
        said = iter(self.outputs([each for row, _ in read for each in row]))
        found = []
        for ask, own, words, (row, firsts) in zip(asks, places, texts, read, strict=True):
            logits = [next(said) for _ in row]
            rows = [logits[n][at] for n, at in nearest(row, firsts)]
            found.append(self._told(ask.text, own, words, rows, settings, len(row)))
        return found

    def _told(self, text: str, places: Any, words: list[str], rows: Any, use: TagUse, windows: int) -> Tagged:
        if not words:
            return Tagged([], [], [], windows)
        log_p = torch.stack(rows).double().log_softmax(-1).numpy()
        chosen = likeliest(log_p, self.labels) if use.constrained else log_p.argmax(1)
        tags, told = [self.labels[i] for i in chosen], []
        for label, first, after in spans(tags):
            p = float(np.exp(log_p[range(first, after), chosen[first:after]].sum()))
            start, end = places[first][0], places[after - 1][1]
            if p >= use.threshold:
                told.append(Span(text[start:end], start, end, p, label))
        return Tagged(told, words, tags, windows)


@dataclass(frozen=True)
class Tag(Task):
    """A sentence in, a tag for each word out."""

    labels: tuple[str, ...] = ()  # found in the data
    longest: int | None = TaggedConfig.max_length
    dropout: float = 0.1

    name, called = "tag", "tagging"
    sections = Sections(TagConfig, TaggedConfig, TagUse, Evaluation)
    row, rows = "sentence", "sentences"
    stands = "tags"

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))

    @classmethod
    def of(cls, recipe: Any) -> "Tag":
        return cls((), recipe.data.max_length, recipe.task.dropout)

    def check(self, recipe: Any) -> None:
        check_length(recipe)

    def fitted(self, rows: Iterable[Row]) -> "Tag":
        """With the tags that there are: O, then those of each kind together."""
        found = {tag for row in rows for tag in row["tags"]}
        if len(found) < 2:
            raise ValueError(
                f"the training sentences have no tag but {', '.join(found)}: say by `columns` where they are"
            )
        return replace(self, labels=tuple(sorted(found, key=lambda tag: (tag != "O", tag[2:], tag))))

    def head(self, model: type[nn.Module]) -> HeadConfig:
        return HeadConfig("tags", len(self.labels), dropout=self.dropout)

    def texts(self, row: Row) -> Sequence[str]:
        return [" ".join(row["words"])]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return {"tokens": Column.ids(vocabulary), "tags": Column("int32", ragged=False)}

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        """Each word has its tag in the window in which it is read; elsewhere it does not count."""
        known = {label: i for i, label in enumerate(self.labels)}
        for row in rows:
            read, firsts = _read(row["words"], tokenizer, self.longest)
            targets = [[IGNORE] * len(each.ids) for each in read]
            for (n, at), tag in zip(nearest(read, firsts), row["tags"], strict=True):
                targets[n][at] = known[tag]
            yield from ((each.ids, own) for each, own in zip(read, targets, strict=True) if max(own) >= 0)

    def held(self, rows: Iterable[Row], place: Path, skipped: Skipped) -> list[Row]:
        """As they are; a tag that no training sentence has is found before the first step."""
        found = list(rows)
        check_known((row["tags"] for row in found), self.labels, self.rows, "tags")
        return found

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        pad = tokenizer.marks.pad or 0

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            inputs = batched([Framed(ids.tolist(), []) for ids, _ in rows], pad, False).tensors
            tags = [torch.from_numpy(each.astype(np.int64)) for _, each in rows]
            labels = pad_sequence(tags, batch_first=True, padding_value=IGNORE)
            return Batch({**inputs, "labels": labels}, int((labels != IGNORE).sum()))

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return Labelled(model, "one", smoothing)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: TagUse, **how: Any) -> Tagger:
        tagger = Tagger(models, tokenizer, use, longest=self.longest, **how)
        tagger.labels = self.labels
        return tagger

    def measure(self, predictor: Tagger, held_out: Sequence[Row], recipe: Any) -> Measured:
        check_known((row["tags"] for row in held_out), self.labels, self.rows, "tags")
        said = predictor.tag([row["words"] for row in held_out])
        counts = span_counts([row["tags"] for row in held_out], [each.tags for each in said])
        samples = []
        for row, one in zip(held_out[:SHOWN], said, strict=False):
            expected = [f"{' '.join(row['words'][a:b])} {kind}" for kind, a, b in spans(row["tags"])]
            told = [f"{each.text} {each.label}" for each in one.spans]
            samples.append(Sample(" ".join(row["words"]), " · ".join(told), " · ".join(expected)))
        evidence = Evidence(len(counts), lambda rows: of_counts(counts[rows]), made=TAGGING)
        return Measured.of(evidence, "f1", samples)


def _places(ask: Given) -> Iterator[tuple[int, int]]:
    """Where each word of a text stands."""
    if not isinstance(ask, GivenWords):
        yield from (found.span() for found in WORD.finditer(ask.text))
        return
    end = 0
    for word in ask.words:
        start = ask.text.find(word, end)
        if start < 0:
            raise ValueError(f"{ask.place or 'a text'} has no word {word!r} after its first {end} characters: mend it")
        end = start + len(word)
        yield start, end


def _read(words: Sequence[str], tokenizer: Tokenizer, longest: int | None) -> tuple[list[Framed], list[int]]:
    """What a model reads of some words, as if a space stood before each, and the number of each one's first token."""
    ids = tokenizer.encode_batch([*words] if tokenizer.spaced else [f" {word}" for word in words])
    ids = [each or [tokenizer.marks.unk or 0] for each in ids]  # a word may be nothing to a tokenizer
    firsts = [*accumulate(map(len, ids), initial=0)]
    return list(windows(tokenizer.marks, [i for each in ids for i in each], None, longest)), firsts[:-1]


def nearest(read: Sequence[Framed], tokens: Sequence[int]) -> list[tuple[int, int]]:
    """For each of these tokens of a text, by number, the window in which it has the most on both sides, where the text
    is cut, and its place there.

    >>> nearest([Framed([], [], 0, 1, 6), Framed([], [], 3, 1, 6)], [0, 4, 5, 8])
    [(0, 1), (0, 5), (1, 3), (1, 6)]
    """
    length, best = read[-1].first + read[-1].tokens, [(-1.0, 0, 0)] * len(tokens)
    for n, each in enumerate(read):
        end = each.first + each.tokens
        for i in range(bisect_left(tokens, each.first), bisect_left(tokens, end)):
            before = tokens[i] - each.first if each.first else INF
            after = end - 1 - tokens[i] if end < length else INF
            if min(before, after) > best[i][0]:
                best[i] = min(before, after), n, each.begins + tokens[i] - each.first
    return [(n, at) for _, n, at in best]


def likeliest(log_p: NDArray[np.float64], labels: Sequence[str]) -> NDArray[np.int64]:
    """The tags of W words that are likeliest together (Viterbi, 1967), of those where I-X follows B-X or I-X only:
    (W, C) -> (W,).

    >>> likeliest(np.log([[0.5, 0.1, 0.4], [0.1, 0.3, 0.6]]), ["O", "B-X", "I-X"]).tolist()
    [0, 1]
    """
    kinds = [(known[1], known[2]) if (known := TAG.fullmatch(label)) else ("O", label) for label in labels]
    inner = np.array([mark in "IEL" for mark, _ in kinds])
    joined = np.array([[a[0] in "BI" and a[1] == b[1] for b in kinds] for a in kinds])
    steps = np.where(joined | ~inner, 0.0, -INF)  # from each tag (row) to each (column)
    total, back = np.where(inner, -INF, log_p[0]), np.zeros(log_p.shape, np.int64)
    for i, row in enumerate(log_p[1:], start=1):
        each = total[:, None] + steps
        back[i] = each.argmax(0)
        total = each.max(0) + row
    path = np.full(len(log_p), total.argmax())
    for i in range(len(log_p) - 1, 0, -1):
        path[i - 1] = back[i, path[i]]
    return path


TASK = Tag
