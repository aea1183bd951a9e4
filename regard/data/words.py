"""BM25: documents by the words that they have in common with a question (Robertson et al., 1994; as Lucene has it).

A folder holds for each word, known by a digest, the documents that it stands in and how often: arrays that are mapped,
not loaded. It is built in memory for the words that there are, and some postings at a time.

Letters: W words, N documents, P postings: a word, a document, how often.
"""

import json
import math
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.sentences import UNSPACED
from regard.files import common_directory, discard

K1, B = 1.5, 0.75  # how soon more of a word says no more; how much of it a long document may have
BLOCK = 2**20  # postings that are sorted at a time
WORD = re.compile(rf"{UNSPACED.pattern}|[^\W{UNSPACED.pattern[1:-1]}]+")
ARRAYS = ("words", "begins", "documents", "counts", "lengths")


def words_of(text: str) -> list[str]:
    """The words of a text without case; in scripts without spaces, its characters.

    >>> words_of("The cat's 2nd life: 猫です")
    ['the', 'cat', 's', '2nd', 'life', '猫', 'で', 'す']
    """
    return WORD.findall(text.casefold())


class Bm25:
    """Documents that are found by their words."""

    def __init__(self, folder: Path) -> None:
        try:
            arrays = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS]
            self._words, self._begins, self._documents, self._counts, self._lengths = arrays
            self._mean = float(json.loads((folder / "mean.json").read_bytes()))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} is damaged ({error}): remove it, and it is built again") from None

    @classmethod
    def build(cls, texts: Iterable[str], folder: Path) -> "Bm25":
        """A folder for some documents, whole or not at all."""
        with common_directory(folder) as made:
            _write(texts, made)
        return cls(folder)

    @classmethod
    def kept(cls, folder: Path, of: str, texts: Iterable[str]) -> "Bm25":
        """The words of some documents, by whose name they are kept in a folder, in place of those of others."""
        own = folder / f"words-{of}"
        for left in folder.glob("words-*"):
            if left != own:
                discard(left)
        return cls(own) if own.exists() else cls.build(texts, own)

    def __len__(self) -> int:
        return len(self._lengths)

    def search(self, question: str, top: int) -> list[tuple[int, float]]:
        """The documents of largest score, of those that have a word of the question: of equals, the first first."""
        scores = np.zeros(len(self))  # (N,)
        for word, times in Counter(words_of(question)).items():
            key = _key(word)
            at = int(np.searchsorted(self._words, key))
            if at == len(self._words) or self._words[at] != key:
                continue
            some = slice(int(self._begins[at]), int(self._begins[at + 1]))
            which, count = self._documents[some], self._counts[some].astype(np.float64)
            share = self._lengths[which] / self._mean
            rare = math.log(1 + (len(self) - len(which) + 0.5) / (len(which) + 0.5))
            scores[which] += times * rare * count / (count + K1 * (1 - B + B * share))
        found = np.flatnonzero(scores)
        if len(found) > top:
            found = found[scores[found] >= np.partition(scores[found], -top)[-top]]
        order = np.lexsort((found, -scores[found]))[:top]
        return list(zip(found[order].tolist(), scores[found[order]].tolist(), strict=True))


def _key(word: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little"))


def _write(texts: Iterable[str], folder: Path) -> None:
    numbers, held, lengths = dict[str, int](), array("I"), array("I")
    raw = folder / "postings"
    with open(raw, "wb") as file:
        for document, text in enumerate(texts):
            counts = Counter(words_of(text))
            lengths.append(counts.total())
            for word, count in counts.items():
                held.extend((numbers.setdefault(word, len(numbers)), document, count))
            if len(held) >= 3 * BLOCK:
                file.write(held.tobytes())
                held = array("I")
        file.write(held.tobytes())
    keys = np.array([_key(word) for word in numbers], np.uint64)  # (W,), in the order in which they were met
    order = np.argsort(keys)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    total = os.path.getsize(raw) // 12
    postings: Any = np.memmap(raw, np.uint32, "r").reshape(-1, 3) if total else np.zeros((0, 3), np.uint32)
    parts = [slice(first, first + BLOCK) for first in range(0, total, BLOCK)]
    often = np.zeros(len(keys), np.int64)
    for part in parts:
        often += np.bincount(place[postings[part, 0]], minlength=len(keys))
    begins = np.concatenate([[0], np.cumsum(often)])
    sides = [np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint32, (total,)) for name in ARRAYS[2:4]]
    free = begins[:-1].copy()  # where the next posting of each word goes
    for part in parts:
        word = place[postings[part, 0]]
        by_word = np.argsort(word, kind="stable")
        sorted_words = word[by_word]
        first = np.searchsorted(sorted_words, sorted_words)  # of its word, in this part
        at = free[sorted_words] + np.arange(len(word)) - first
        for side, column in zip(sides, (1, 2), strict=True):
            side[at] = postings[part, column][by_word]
        free += np.bincount(word, minlength=len(keys))
    for side in sides:
        side.flush()
    saved: dict[str, NDArray[Any]] = {"words": keys[order], "begins": begins, "lengths": np.array(lengths, np.uint32)}
    for name, values in saved.items():
        np.save(folder / f"{name}.npy", values)
    mean = sum(lengths) / max(1, len(lengths))
    (folder / "mean.json").write_text(json.dumps(mean or 1.0))
    raw.unlink()
