"""The classic sequence tasks (copy, reverse, sort), and batches of id sequences.

B batch, S source length, T target length.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.vocabulary import BOS, EOS, PAD

TASKS = ("copy", "reverse", "sort")


class Pair(NamedTuple):
    """What the model reads, and what it must write."""

    source: tuple[str, ...]
    target: tuple[str, ...]


def sequence_pairs(task: str, *, symbols: Sequence[str], lengths: Sequence[int], seed: int) -> Iterator[Pair]:
    """Endless pairs of a task in TASKS, each length and each symbol equally likely.

    A pure function of its arguments. "sort" follows the order of `symbols`.

    >>> next(sequence_pairs("sort", symbols="abcde", lengths=range(4, 8), seed=1))
    Pair(source=('c', 'e', 'a', 'a', 'd'), target=('a', 'a', 'c', 'd', 'e'))
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose one of {', '.join(TASKS)}")
    if not symbols or not lengths:
        raise ValueError("a task needs at least one symbol and one length")
    rank = {symbol: i for i, symbol in enumerate(symbols)}
    draw = random.Random(seed)

    def pairs() -> Iterator[Pair]:
        while True:
            source = tuple(draw.choices(symbols, k=draw.choice(lengths)))
            if task == "copy":
                target = source
            elif task == "reverse":
                target = source[::-1]
            else:
                target = tuple(sorted(source, key=rank.__getitem__))
            yield Pair(source, target)

    return pairs()  # a plain function around the generator: a wrong argument fails here, not at the first `next`


@dataclass(frozen=True)
class Batch:
    """Sequences of ids, right-padded with PAD, as an encoder-decoder is taught."""

    source: Tensor  # (B, S) int64, each row ends in EOS
    target: Tensor  # (B, T) int64, what the decoder reads: BOS, then the sequence
    labels: Tensor  # (B, T) int64, what it must say next: the sequence, then EOS

    @property
    def tokens(self) -> int:
        """How many labels are not padding."""
        return int((self.labels != PAD).sum())


def collate(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """One batch of (source ids, target ids) without specials.

    >>> batch = collate([([5, 6], [6, 5]), ([7], [7])])
    >>> batch.source.tolist()
    [[5, 6, 2], [7, 2, 0]]
    >>> batch.target.tolist()
    [[1, 6, 5], [1, 7, 0]]
    >>> batch.labels.tolist()
    [[6, 5, 2], [7, 2, 0]]
    >>> batch.tokens
    5
    """
    pairs = list(pairs)
    return Batch(
        source=_pad([*source, EOS] for source, _ in pairs),
        target=_pad([BOS, *target] for _, target in pairs),
        labels=_pad([*target, EOS] for _, target in pairs),
    )


def _pad(rows: Iterable[list[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
