"""The classic sequence tasks: copy, reverse, sort, count, parity."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from regard.checks import one_of

TASKS = ("copy", "reverse", "sort", "count", "parity")


class SymbolPair(NamedTuple):
    """What the model reads, and what it must write."""

    source: tuple[str, ...]
    target: tuple[str, ...]


def sequence_pairs(task: str, *, symbols: Sequence[str], lengths: Sequence[int], seed: int) -> Iterator[SymbolPair]:
    """Endless pairs of a task in TASKS, each length and each symbol equally likely.

    A pure function of its arguments. "sort" follows the order of `symbols`; "count" keeps the first of them, as often
    as it occurs, and "parity" is the first of them if that is an even number of times, else the second.

    >>> next(sequence_pairs("sort", symbols="abcde", lengths=range(4, 8), seed=1))
    Pair(source=('c', 'e', 'a', 'a', 'd'), target=('a', 'a', 'c', 'd', 'e'))
    """
    one_of(TASKS, task=task)
    if not symbols or not lengths:
        raise ValueError("a task needs at least one symbol and one length")
    if task == "parity" and len(symbols) < 2:
        raise ValueError("parity needs two symbols, for even and odd")
    rank = {symbol: i for i, symbol in enumerate(symbols)}
    draw = random.Random(seed)

    def pairs() -> Iterator[SymbolPair]:
        while True:
            source = tuple(draw.choices(symbols, k=draw.choice(lengths)))
            if task == "copy":
                target = source
            elif task == "reverse":
                target = source[::-1]
            elif task == "sort":
                target = tuple(sorted(source, key=rank.__getitem__))
            else:
                first = source.count(symbols[0])
                target = (symbols[0],) * first if task == "count" else (symbols[first % 2],)
            yield SymbolPair(source, target)

    return pairs()  # a plain function around the generator: a wrong argument fails here, not at the first `next`
