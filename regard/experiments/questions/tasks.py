"""The tasks of the questions, and the small models that learn them.

A task is drawn without end, so no pair is read twice but by chance, and tests are drawn with a seed that training never
has.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import nn

from regard.data.generated import sequence_pairs
from regard.data.vocabulary import Vocabulary
from regard.experiments.runs import Pair, batched, foretold, taught
from regard.models.transformer import Transformer, TransformerConfig

LENGTHS = range(4, 11)  # of what is copied and sorted
BATCH = 64  # pairs a step
TEST = 10**6  # added to the seed of a test
SYMBOLS = "abcdefghij"
BITS = "01"
KEYS, VALUES = "abcdefgh", "01234567"  # of the task lookup
SENTENCES = {"copy": SYMBOLS, "reverse": SYMBOLS, "sort": SYMBOLS, "count": BITS, "parity": BITS}


@dataclass(frozen=True)
class ScaleSize:
    """How large the models of a scale are, how long they learn, and how often it is all repeated."""

    d_model: int
    layers: int  # of encoder and decoder each
    heads: int
    steps: int
    tested: int  # pairs
    seeds: int

    @property
    def effort(self) -> str:
        """In words: 300 steps, 2 seeds."""
        return f"{self.steps:,} steps, {self.seeds} seed{'s' if self.seeds > 1 else ''}"

    @property
    def model(self) -> dict[str, int]:
        """The same as settings of a `TransformerConfig`; d_ff is twice d_model."""
        layers = {"encoder_layers": self.layers, "decoder_layers": self.layers}
        return {**layers, "d_model": self.d_model, "d_ff": 2 * self.d_model, "heads": self.heads}

    @property
    def settings(self) -> dict[str, int]:
        """The same, and how long a model learns, and how much it is asked."""
        return {**self.model, "steps": self.steps, "tested": self.tested}


SIZES = {
    "smoke": ScaleSize(16, 1, 4, steps=2, tested=16, seeds=1),
    "small": ScaleSize(64, 2, 4, steps=300, tested=500, seeds=2),
    "full": ScaleSize(512, 6, 8, steps=20_000, tested=5000, seeds=5),  # the widths of the paper's base model
}


def vocabulary(task: str) -> Vocabulary:
    """The symbols of a task."""
    if task == "lookup":
        return Vocabulary((*VALUES, *(key + value for key in KEYS for value in (*VALUES, "?"))))
    return Vocabulary(tuple(SENTENCES[task]))


def pairs_of(task: str, lengths: Sequence[int], seed: int) -> Iterator[Pair]:
    """Endless pairs of ids. The task lookup: "a3 c5 b1 c?" is answered by "5"; lengths count what stands before it.

    >>> source, target = next(pairs_of("lookup", [3], seed=0))
    >>> vocabulary("lookup").decode(source), vocabulary("lookup").decode(target)
    (['g7', 'a6', 'c4', 'a?'], ['6'])
    """
    encode = vocabulary(task).encode
    if task == "lookup":
        drawn = _lookups(lengths, random.Random(seed))
    else:
        drawn = sequence_pairs(task, symbols=SENTENCES[task], lengths=lengths, seed=seed)
    return ((encode(source), encode(target)) for source, target in drawn)


def _lookups(lengths: Sequence[int], draw: random.Random) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    while True:
        keys = draw.sample(KEYS, draw.choice(lengths))
        entries = [key + draw.choice(VALUES) for key in keys]
        asked = draw.choice(entries)
        yield [*entries, f"{asked[0]}?"], [asked[1]]


def unseen(task: str, lengths: Sequence[int], seed: int, count: int) -> list[Pair]:
    """Pairs to be tested with."""
    return list(islice(pairs_of(task, lengths, seed + TEST), count))


def untaught(task: str, seed: int, **settings: Any) -> Transformer:
    """A model for a task as the seed makes it: pre-norm, without dropout, the rest as `settings` say."""
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(len(vocabulary(task)), norm="pre", dropout=0.0).but(**settings))


def learnt(
    console: Console, task: str, lengths: Sequence[int], *, steps: int, seed: int, **settings: Any
) -> tuple[Transformer, list[float]]:
    """A model that has learnt a task, and its loss at each step."""
    model = untaught(task, seed, **settings)
    losses = taught(model, pairs_of(task, lengths, seed), console, steps=steps, batch=BATCH, seed=seed, name=task)
    return model.eval(), losses


def measured(model: nn.Module, pairs: Sequence[Pair]) -> dict[str, float]:
    """The loss of a label in nats, and the share of pairs whose target a greedy search would write."""
    told = foretold(model, batched(model, pairs, 256))
    return {"loss": told.loss, "right": told.whole}


def windows(losses: Sequence[float], points: int = 30) -> list[list[float]]:
    """A learning curve as [step, mean loss] of windows of equal length: `points` of them at most.

    >>> windows([4.0, 2.0, 1.0, 1.0], points=2)
    [[1.5, 3.0], [3.5, 1.0]]
    """
    width = math.ceil(len(losses) / points)
    parts = [(i, losses[i : i + width]) for i in range(0, len(losses), width)]
    return [[i + (len(part) + 1) / 2, fmean(part)] for i, part in parts]
