"""Which target tokens go with which source tokens: IBM Model 1 (Brown et al., 1993), and shortlists made from it.

Letters: V vocabulary, n pairs in a batch, S and T lengths of source and target.

Of thousands of target tokens, a sentence needs a few dozen. A shortlist names the candidates of each source token, so
that the output layer computes a few hundred logits in place of V.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from regard.checks import at_least
from regard.data.arrays import Table
from regard.data.batching import token_batches
from regard.data.vocabulary import Marks
from regard.files import write_whole

FILE = "shortlist.safetensors"
DTYPES = {"offsets": np.int64, "tokens": np.int32, "common": np.int32}
BATCH = 2**13  # tokens: with LONGEST, S · T · n stays below 2^21
LONGEST = 2**8  # tokens of a side; longer pairs say little
MOST_SLOTS = 2**25  # of the table of pairs: half a gigabyte

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Shortlist:
    """Candidates for the output: tokens[offsets[s] : offsets[s + 1]] for source token s, `common` for every sentence.

    >>> few = Shortlist(np.array([0, 0, 1, 3]), np.array([1, 0, 2], np.int32), np.array([0], np.int32))
    >>> few.of([1, 1, 2]).tolist()
    [0, 1, 2]
    """

    offsets: Ints  # (V + 1,)
    tokens: NDArray[np.int32]  # in each row rising, the source token itself among them: names and numbers are copied
    common: NDArray[np.int32]  # rising; the specials among them

    def of(self, source: Iterable[int]) -> NDArray[np.int32]:
        """The candidates for a sentence of these ids, rising."""
        rows = [self.tokens[self.offsets[s] : self.offsets[s + 1]] for s in set(source)]
        return np.unique(np.concatenate([self.common, *rows]))

    def save(self, directory: str | Path) -> None:
        """Write it into a model directory."""
        write_whole(Path(directory) / FILE, save({name: getattr(self, name) for name in DTYPES}))

    @classmethod
    def load(cls, directory: str | Path) -> "Shortlist":
        """The shortlist of a model directory."""
        path = Path(directory) / FILE
        if not path.is_file():
            raise ValueError(f"{directory} has no {FILE}: make one with `regard shortlist {directory}`")
        try:
            arrays = load_file(path)
        except (SafetensorError, KeyError, TypeError) as error:  # the last two of a dtype that numpy has not
            raise ValueError(f"{path} is damaged ({error}): make it again with `regard shortlist`") from None
        if {name: x.dtype for name, x in arrays.items()} != {name: np.dtype(kind) for name, kind in DTYPES.items()}:
            raise ValueError(f"{path} is not a shortlist: it holds {', '.join(arrays) or 'nothing'}")
        if any(x.ndim != 1 for x in arrays.values()):
            raise ValueError(f"{path} is not a shortlist: its parts are no lists")
        found = cls(**arrays)
        V = len(found.offsets) - 1
        whole = V > 0 and found.offsets[0] == 0 and found.offsets[-1] == len(found.tokens)
        if whole:
            ids = np.concatenate([found.tokens, found.common])
            whole = (np.diff(found.offsets) >= 0).all() and 0 <= ids.min(initial=0) <= ids.max(initial=0) < V
        if not whole or not len(found.common):  # a sentence of tokens without a row would have nothing to say
            raise ValueError(f"{path} is damaged (its parts do not fit): make it again with `regard shortlist`")
        return found


def learn_shortlist(
    pairs: Table, *, vocabulary: int, marks: Marks, size: int = 100, common: int = 200, iterations: int = 5
) -> Shortlist:
    """The `size` likeliest target tokens of each source token, and the `common` most frequent ones of all.

    Source and target share one vocabulary. Pairs with a side over 255 tokens do not count. Memory grows with the text
    up to half a gigabyte.
    """
    at_least(1, size=size, iterations=iterations)
    at_least(0, common=common)
    text = _Text(pairs, *marks.need("pad"))
    frequency = np.zeros(vocabulary, np.int64)
    for _, target in text.batches():
        frequency += np.bincount(target[target >= 0], minlength=vocabulary)
    often = np.argsort(-frequency, kind="stable")[:common]
    keys, probability = _model_1(text, vocabulary, iterations)
    likely = _best(keys, probability, vocabulary, size)
    itself = np.arange(vocabulary) * (vocabulary + 1)
    keys = np.union1d(likely, itself)  # source · V + target: sorted, a row after the other
    return Shortlist(
        np.searchsorted(keys, np.arange(vocabulary + 1) * vocabulary).astype(np.int64),
        (keys % vocabulary).astype(np.int32),
        np.union1d(often[frequency[often] > 0], [i for i in marks if i is not None]).astype(np.int32),
    )


@dataclass(frozen=True)
class Coverage:
    """How a shortlist does on some text."""

    size: float  # candidates of a sentence, on average
    covered: float  # share of target tokens that are among them


def coverage(shortlist: Shortlist, pairs: Iterable[tuple[Iterable[int], NDArray[Any]]]) -> Coverage:
    """The size of the shortlists of (source ids, target ids), and how many of the target's tokens they hold."""
    sentences, candidates, tokens, hits = 0, 0, 0, 0
    for source, target in pairs:
        few = shortlist.of(source)
        sentences, candidates, tokens = sentences + 1, candidates + len(few), tokens + len(target)
        hits += int(np.isin(target, few).sum())
    return Coverage(candidates / max(sentences, 1), hits / max(tokens, 1))


class _Text:
    """Pairs in batches of like shape, again and again."""

    marks = 1

    def __init__(self, pairs: Table, nothing: int) -> None:
        """`nothing`: the source word that what has no other comes from, of an id that no text has."""
        self._nothing, lengths = nothing, pairs.lengths(np.arange(len(pairs)))
        self._pairs, self._known = pairs, np.flatnonzero(lengths.max(1, initial=0) < LONGEST)
        if not len(self._known):
            raise ValueError(f"no pair of at most {LONGEST - 1} tokens a side to learn a shortlist from")
        self.cells = int((lengths[self._known, 0] + 1) @ lengths[self._known, 1])  # pairs of words
        self._rows = list(token_batches(self, tokens=BATCH, seed=0, epoch=0, shuffle=False))

    def __len__(self) -> int:
        return len(self._known)

    def lengths(self, indices: Ints) -> Ints:
        return self._pairs.lengths(self._known[indices])

    def batches(self) -> Iterable[tuple[Ints, Ints]]:
        """Sources (n, S) after `nothing` and targets (n, T), padded with -1."""
        for rows in self._rows:
            sources, targets = zip(*self._pairs.rows(self._known[rows]), strict=True)
            yield np.insert(_pad(sources), 0, self._nothing, axis=1), _pad(targets)


def _pad(rows: Iterable[NDArray[Any]]) -> Ints:
    rows = list(rows)
    padded = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


def _model_1(text: _Text, vocabulary: int, iterations: int) -> tuple[Ints, NDArray[np.float32]]:
    """Pairs of words as keys source · V + target, and p(target | source), by expectation-maximisation from uniform."""
    table = _Table(min(MOST_SLOTS, 2 * text.cells))

    def keys(source: Ints, target: Ints) -> Ints:  # (n, S), (n, T) -> (n, S, T), -1 at padding
        both = (source[:, :, None] >= 0) & (target[:, None] >= 0)
        return np.where(both, source[:, :, None] * vocabulary + target[:, None], -1)

    for source, target in text.batches():
        table.add(keys(source, target).ravel())
    used = np.flatnonzero(table.keys >= 0)
    source_of = table.keys[used] // vocabulary
    p = np.ones(len(table.keys), np.float32)
    for _ in range(iterations):
        counts, totals = np.zeros_like(p), np.zeros(vocabulary)
        for source, target in text.batches():
            at = table.find(keys(source, target))
            share = np.where(at >= 0, p[at], np.float32(0))  # (n, S, T): whose doing each target word is
            share /= np.maximum(share.sum(1, keepdims=True), np.finfo(np.float32).tiny)
            np.add.at(counts, at.ravel(), share.ravel())  # at -1 stands nothing, and nothing is added
            np.add.at(totals, source.ravel(), share.sum(2).ravel())
        p[used] = counts[used] / np.maximum(totals[source_of], np.finfo(np.float32).tiny)
    return table.keys[used], p[used]


class _Table:
    """A set of keys from 0 on with a place for each: open addressing, many keys at once.

    When it is half full, new keys are turned away: memory is bounded, and what is frequent was there before.
    """

    def __init__(self, slots: int) -> None:
        self.bits = max(4, math.ceil(math.log2(slots)))
        self.keys = np.full(2**self.bits + 1, -1, np.int64)  # the last, -1, is that of no key
        self.room = 2 ** (self.bits - 1)

    def add(self, keys: Ints) -> None:
        """Keys of any number; those below 0 are none."""
        new = np.unique(keys)
        new = new[(new >= 0) & (self.find(new) < 0)][: self.room]
        self.room -= len(new)
        at = self._hash(new)
        while len(new):
            free = self.keys[at] < 0
            self.keys[at[free]] = new[free]  # of several for one place the last stays
            left = self.keys[at] != new
            new, at = new[left], self._next(at[left])

    def find(self, keys: Ints) -> Ints:
        """The place of each key, -1 for what is not there."""
        wanted, at = keys.ravel(), self._hash(keys.ravel())
        left = np.arange(len(wanted))
        while len(left):
            there = self.keys[at[left]]
            at[left[there < 0]] = -1
            left = left[(there >= 0) & (there != wanted[left])]
            at[left] = self._next(at[left])
        return at.reshape(keys.shape)

    def _hash(self, keys: Ints) -> Ints:
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
        return (mixed >> np.uint64(64 - self.bits)).astype(np.int64)

    def _next(self, at: Ints) -> Ints:
        return (at + 1) % 2**self.bits


def _best(keys: Ints, probability: NDArray[np.float32], vocabulary: int, size: int) -> Ints:
    """Of keys source · V + target, the `size` likeliest targets of each source; of equals the lower id."""
    order = np.lexsort((keys, -probability, keys // vocabulary))
    keys = keys[order]
    source = keys // vocabulary
    return keys[np.arange(len(keys)) - np.searchsorted(source, source) < size]
