"""The classic sequence tasks: copy, reverse, sort."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
