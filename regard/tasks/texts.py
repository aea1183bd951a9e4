"""Tasks over plain text: all of it stands in one row, and is cut into blocks; nothing is padded, nothing left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Column, Table
from regard.data.batching import Ints
from regard.data.corpora import fetched
from regard.data.documents import Passage, TextFiles
from regard.data.tokenizers import Tokenizer
from regard.tasks.task import Data, Task


@dataclass(frozen=True)
class TextConfig(Data):
    """Where the text comes from: a corpus by its name, or files."""

    train: TextFiles | None = None  # your own files
    valid: TextFiles | None = None  # the end of train if left out
    test: TextFiles | None = None  # the end of train if left out
    hold_out: int = 100  # passages of about 4,000 characters kept from training where valid or test is not given
    limit: int | None = None  # use only the first so many passages

    def of_corpus(self, name: str, progress: Any) -> dict[str, TextFiles]:
        found = fetched(name, progress=progress)
        if any(len(paths) > 1 for paths in found.values()):
            raise ValueError(f"{name} is a corpus of pairs, not one text: choose one such as wikitext2")
        way = {".jsonl": "jsonl"}  # of rows, each text is a document
        return {split: TextFiles(**{way.get(path.suffix, "text"): str(path)}) for split, (path,) in found.items()}


class OverText(Task):
    """A task that learns from blocks of plain text; `block` is its own."""

    block: int
    row, rows, ordered = "passage", "passages", True

    @property
    def room(self) -> int:
        """Tokens of text in a block, beside marks."""
        return self.block

    def prepared_by(self) -> list[Any]:
        return [self.name]

    def texts(self, row: Passage) -> Sequence[str]:
        return [row.text]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        return {"tokens": Column.ids(vocabulary)}

    def examples(self, rows: Sequence[Passage], tokenizer: Tokenizer) -> Iterator[tuple[list[int]]]:
        """The bare ids of each passage; joined, those of the text."""
        return ((ids,) for ids in tokenizer.encode_batch(self.cut(rows, tokenizer)))

    def cut(self, rows: Sequence[Passage], tokenizer: Tokenizer) -> list[str]:
        """The text of each passage, as it is made sub-words of."""
        return [row.text if row.first or not tokenizer.spaced else row.text.removeprefix(" ") for row in rows]

    def length(self, recipe: Any) -> int:
        return self.block

    def corpus(self, table: Table) -> "Blocks":
        return Blocks(table, self.room)

    def check(self, recipe: Any) -> None:
        longest = recipe.model.build(2**16).longest
        if longest is not None and longest < self.block:
            raise ValueError(f"model.max_length = {longest}: it must hold the {self.block} tokens of task.block")

    def counted(self, train: Table, valid: Sequence[Passage], test: Sequence[Passage]) -> str:
        characters = [sum(len(passage.text) for passage in split) for split in (valid, test)]
        return f"{self.corpus(train).tokens:,} tokens · held out {characters[0]:,} + {characters[1]:,} characters"

    def drawn(self, rows: Sequence[tuple[NDArray[Any]]], draw: Random) -> list[NDArray[np.int64]]:
        """A stretch of each window, from wherever chance has it."""
        begins = [draw.randrange(max(1, len(ids) - self.room)) for (ids,) in rows]
        return [ids[b : b + self.room].astype(np.int64) for (ids,), b in zip(rows, begins, strict=True)]

    def stretches(self, held_out: Sequence[Passage], tokenizer: Tokenizer, most: int | None) -> list[NDArray[np.int64]]:
        """The first blocks of held-out text, so many at most, or all."""
        ids = np.array([i for (row,) in self.examples(held_out, tokenizer) for i in row], np.int64)
        starts = range(0, max(1, len(ids) - self.room), self.room)
        return [ids[i : i + self.room] for i in starts[:most]]


class Blocks:
    """The tokens of a table as one text, a window of up to two blocks and one token beginning at each block."""

    marks = 0

    def __init__(self, table: Table, block: int) -> None:
        self.table, self.block = table, block
        self.tokens = int(np.memmap(table.directory / "tokens.offsets", dtype="<u8", mode="r")[-1])
        if self.tokens < 2:
            raise ValueError("the text has no two tokens to learn from")

    def __len__(self) -> int:
        return max(1, (self.tokens - 1) // self.block)

    def lengths(self, indices: Ints) -> Ints:
        return np.full((len(indices), 1), min(self.block, self.tokens - 1), dtype=np.int64)

    def rows(self, indices: Ints) -> list[tuple[NDArray[Any]]]:
        starts = np.asarray(indices, np.int64) * self.block
        stops = np.minimum(starts + 2 * self.block, self.tokens)
        return [(ids,) for ids in self.table.values("tokens", np.stack([starts, stops], axis=1))]
