"""Symbols and their ids, and those ids that are no part of a text: marks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

SPECIALS = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = range(3)


class Marks(NamedTuple):
    """The ids of a tokenizer that are no part of a text, by what they are for; None where there is none."""

    pad: int | None = None  # fills rows up
    bos: int | None = None  # what an output begins with; it may be another mark, too
    eos: int | None = None  # ends a text
    unk: int | None = None  # stands for what the tokenizer does not know
    mask: int | None = None  # stands for what a model is to guess
    cls: int | None = None  # before a text that is read as a whole
    sep: int | None = None  # between two texts

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """What stands before and after a document: where `bos` is `eos`, one of them stands between two.

        >>> Marks(0, 1, 2).frame, Marks(bos=5, eos=5).frame
        (([1], [2]), ([], [5]))
        """
        begin = [] if self.bos is None or self.bos == self.eos else [self.bos]
        return begin, [] if self.eos is None else [self.eos]

    def around(self, text: Sequence[int], pair: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """A text, or two of them, as an encoder reads it: its ids with marks, and for each which of the two it is in.

        >>> Marks(cls=7, sep=8).around([1, 2], [3])
        ([7, 1, 2, 8, 3, 8], [0, 0, 0, 0, 1, 1])
        >>> Marks(bos=7, eos=8).around([1, 2]), Marks(bos=7).around([1, 2])
        (([7, 1, 2, 8], [0, 0, 0, 0]), ([7, 1, 2], [0, 0, 0]))

        Where what stands before a text is what an output begins with, as in RoBERTa, two marks stand between two.
        """
        before = [i for i in (self.bos if self.cls is None else self.cls,) if i is not None]
        after = [i for i in (self.eos if self.sep is None else self.sep,) if i is not None]
        ids = [*before, *text, *after]
        if pair is None:
            return ids, [0] * len(ids)
        rest = [*(after if self.cls is not None and self.cls == self.bos else []), *pair, *after]
        return [*ids, *rest], [0] * len(ids) + [1] * len(rest)

    @property
    def ends(self) -> bool:
        """Whether a mark stands after a text that an encoder reads."""
        return self.sep is not None or self.eos is not None

    def inside(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text without the marks that `around` puts around it, if they have them.

        >>> Marks(cls=7, sep=8).inside([7, 1, 2, 8]), Marks(cls=7, sep=8).inside([1, 2])
        ([1, 2], [1, 2])
        """
        inner = list(ids[1:-1])
        return inner if len(ids) > 1 and self.around(inner)[0] == list(ids) else list(ids)

    def need(self, *names: str) -> tuple[int, ...]:
        """The ids of these.

        >>> Marks(pad=0, eos=2).need("eos", "pad")
        (2, 0)
        >>> Marks(pad=0, eos=2).need("mask")
        Traceback (most recent call last):
        ValueError: the tokenizer has no mark `mask`, which is needed here: choose a model or a tokenizer that has one
        """
        ids = tuple(getattr(self, name) for name in names)
        if None in ids:
            raise ValueError(
                f"the tokenizer has no mark `{names[ids.index(None)]}`, which is needed here: choose a model or a "
                "tokenizer that has one"
            )
        return ids


MARKS = Marks(PAD, BOS, EOS)


@dataclass(frozen=True)
class Vocabulary:
    """An ordered set of symbols, numbered after the three specials.

    >>> letters = Vocabulary(tuple("abc"))
    >>> letters.encode("cab")
    [5, 3, 4]
    >>> letters.decode([BOS, 5, 3, 4, EOS, PAD])
    ['c', 'a', 'b']
    >>> len(letters)
    6
    """

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        seen = set(SPECIALS)
        for symbol in self.symbols:
            if symbol in seen:
                raise ValueError(f"symbol {symbol!r} is in the vocabulary twice, or is one of {SPECIALS}")
            seen.add(symbol)

    def __len__(self) -> int:
        return len(SPECIALS) + len(self.symbols)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols, start=len(SPECIALS))}

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """The ids of `symbols` (a string is its characters); no special is added."""
        try:
            return [self._ids[symbol] for symbol in symbols]
        except KeyError as error:
            raise ValueError(f"symbol {error.args[0]!r} is not in the vocabulary") from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The symbols of `ids` up to the first EOS, without the specials."""
        symbols = []
        for i in ids:
            if not 0 <= i < len(self):
                raise ValueError(f"id {i} is outside this vocabulary of {len(self)}")
            if i == EOS:
                break
            if i >= len(SPECIALS):
                symbols.append(self.symbols[i - len(SPECIALS)])
        return symbols
