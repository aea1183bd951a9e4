"""Batches of sequences of ids.

Letters: B batch, S source length, T target length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.vocabulary import BOS, EOS, PAD


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
