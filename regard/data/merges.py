"""The merges of byte pair encoding, some of them left out by chance: BPE-dropout (Provilkov et al., 2020)."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from random import Random

NEVER = 2**62  # the rank of a pair that is no merge


class Merges:
    """The merges of BPE in Python, where chance can be seeded; in Rust it cannot."""

    def __init__(self, ids: dict[str, int], merges: Iterable[tuple[str, str]]) -> None:
        self._ids = ids
        self._ranks: dict[tuple[int, int], int] = {}
        self._made: list[int] = []  # rank -> the id that the merge makes
        for rank, (left, right) in enumerate(merges):
            self._ranks[ids[left], ids[right]] = rank
            self._made.append(ids[left + right])
        self._start = lru_cache(2**16)(self._start_of)

    def _start_of(self, word: str) -> tuple[list[int], list[int], list[int]]:
        """A word's characters, the rank of the pair that each begins, and the word when no merge is left out."""
        symbols = [self._ids[character] for character in word]
        ranks = [self._ranks.get(pair, NEVER) for pair in pairwise(symbols)] + [NEVER]
        merged = symbols.copy()
        self._merge(merged, ranks.copy(), math.inf, lambda: math.inf)
        return symbols, ranks, merged

    def sample(self, words: Iterable[str], dropout: float, random: Random) -> list[int]:
        """The ids of words, each possible merge left out with probability `dropout` at each step.

        Instead of one random number for each merge, one says how many are done before the next that is left out: the
        number is geometric. Most words lie within such a gap, and are known.
        """

        def gap() -> float:
            if dropout in (0.0, 1.0):
                return math.inf if dropout == 0.0 else 0
            return int(math.log(1.0 - random.random()) / math.log1p(-dropout))

        ids: list[int] = []
        left = gap()  # merges to do before one is left out
        for word in words:
            symbols, ranks, merged = self._start(word)
            steps = len(symbols) - len(merged)
            if steps <= left:
                left -= steps
                ids += merged
            else:
                symbols = symbols.copy()
                left = self._merge(symbols, ranks.copy(), left, gap)
                ids += symbols
        return ids

    def _merge(self, symbols: list[int], ranks: list[int], left: float, gap: Callable[[], float]) -> float:
        """Merge `symbols` in place, the best pair first; what remains of the gap."""
        out: list[tuple[int, int]] = []  # left out at this step
        while (rank := min(ranks)) < NEVER:
            i = ranks.index(rank)
            if left == 0:
                ranks[i] = NEVER
                out.append((i, rank))
                left = gap()
                continue
            left -= 1
            while out:
                j, other = out.pop()
                ranks[j] = other
            symbols[i : i + 2] = [self._made[rank]]
            del ranks[i]
            for j in (i - 1, i):
                if 0 <= j < len(symbols) - 1:
                    ranks[j] = self._ranks.get((symbols[j], symbols[j + 1]), NEVER)
        return left
