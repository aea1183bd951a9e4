"""The word that a token is a part of, decided here; and maps of tokens as maps of words.

Words are what stands between white space, counted from 0. Letters: T queries, S keys.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from torch import Tensor

_BYTE = re.compile(r"\\x([0-9a-f]{2})")  # a byte that is no character by itself, as pieces are shown


class Words(NamedTuple):
    """The words of a text: of which one each token is a part, and how they read."""

    of: Sequence[int]
    texts: Sequence[str]


class Counting:
    """Tells the word of each token as a text comes, token by token.

    A token of white space alone is a part of the word before. Given the characters of scripts without spaces, words are
    as a person is shown them: there each token is one, and white space is a part of the word after.
    """

    def __init__(self, unspaced: re.Pattern[str] | None = None) -> None:
        self._unspaced = unspaced
        self._begun = 0  # words
        self._inside = False  # whether the text so far ends within one
        self._alone = False  # and within a script without spaces

    def next(self, text: str) -> int:
        """The word of a token that adds this to the text, white space included."""
        if not (words := text.split()):
            self._inside = self._inside and not text
            return self._begun if text and self._unspaced else max(0, self._begun - 1)
        breaks = self._breaks(words) or text[0].isspace()
        self._begun += len(words) - (self._inside and not breaks)
        self._inside = not text[-1].isspace()
        return self._begun - 1

    def _breaks(self, words: list[str]) -> bool:
        """Whether, where a script has no spaces, a word begins all the same."""
        if self._unspaced is None:
            return False
        if byte := _BYTE.match(words[0]):
            if 0x80 <= int(byte[1], 16) < 0xC0:  # the rest of a character
                return False
            # What begins with the bytes E3 to E9 is, but for some symbols, Chinese, Japanese or Korean.
            first = last = 0xE3 <= int(byte[1], 16) <= 0xE9
        else:
            first, last = (bool(self._unspaced.match(each)) for each in (words[0], words[-1][-1]))
        before, self._alone = self._alone, last
        return before or first


def words(texts: Iterable[str], unspaced: re.Pattern[str] | None = None) -> list[int]:
    """The word of each token, where texts[i] is what it adds to a text.

    >>> words(["the", " lib", "rary", ".", " "])
    [0, 1, 1, 1, 1]
    """
    counting = Counting(unspaced)
    return [counting.next(text) for text in texts]


def added(piece: str, before: str | None, kind: str) -> str:
    """What a token adds to a text after another, by their pieces as `Tokenizer.pieces` of a kind of tokens shows them.

    >>> added("▁lib", "▁the", "bpe"), added("rary", "lib@@", "none"), added("##rary", "lib", "wordpiece")
    (' lib', 'rary', 'rary')
    """
    if kind == "none":
        text = piece.removesuffix("@@") or piece
        return text if before is None or before.endswith("@@") else f" {text}"
    if kind == "wordpiece":
        return piece[2:] if piece.startswith("##") else f" {piece}"
    return piece.replace("▁", " ").replace("Ġ", " " if kind == "other" else "Ġ")


def words_of_spans(text: str, spans: Iterable[tuple[int, int]]) -> list[int]:
    """The word of each token of a text, where spans[i] is where it stands.

    >>> words_of_spans("a cat sat", [(0, 1), (1, 3), (3, 5), (5, 9)])
    [0, 1, 1, 2]
    """
    return words(text[a:b] for a, b in pairwise(accumulate((end for _, end in spans), max, initial=0)))


def words_of_prefixes(texts: Iterable[str]) -> list[int]:
    """The word of each token of an output, where texts[i] is the text of its first i + 1 tokens, all of it anew.

    >>> words_of_prefixes(["un", "un per", "un perro", "un perro "])
    [0, 1, 1, 1]
    """
    return [max(0, len(text.split()) - 1) for text in texts]


def merge(weights: Tensor, queries: Sequence[int], keys: Sequence[int]) -> Tensor:
    """The map of words of a map of tokens: the sum over the tokens of a key, the mean over those of a query.

    weights (..., T, S) -> (..., words of the queries, words of the keys); `queries` and `keys` say of which word each
    token is a part, counted from 0. A row that sums to 1 does so still.

    >>> import torch
    >>> weights = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    >>> merge(weights, [0, 0], [0, 1, 1])
    tensor([[0.2000, 0.8000]])
    """
    to_query = _membership(queries, weights)
    return to_query / to_query.sum(1, keepdim=True) @ weights @ _membership(keys, weights).T


def _membership(words: Sequence[int], like: Tensor) -> Tensor:
    """(words, tokens): 1 where a token is a part of a word."""
    found = like.new_zeros(max(words) + 1, len(words))
    found[list(words), range(len(words))] = 1.0
    return found
