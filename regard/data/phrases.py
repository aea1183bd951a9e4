"""Phrases that a text must not have, found as it is written token by token, in whatever sub-words."""

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from regard.data.spelling import spellings
from regard.data.tokenizers import Tokenizer

WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"  # in Chinese and Japanese words do not stand apart: they end anywhere


class Forbidden:
    """Which tokens would complete one of some phrases, as whole words in the case that is given.

    A phrase is complete as soon as it is there: that more letters may come, and make a longer word, cannot be known.

    >>> from regard.data.tokenizers import TokensConfig
    >>> tokens = Tokenizer.learn(TokensConfig("char", size=0), ["a cat, a scat"])
    >>> phrases = Forbidden(tokens, ("cat",))
    >>> [tokens.pieces(phrases.refused(tokens.encode(text))) for text in ("a ca", "a sca", "ca,")]
    [['t'], [], []]
    """

    wakes = None  # it is asked at every step

    def __init__(self, tokenizer: Tokenizer, phrases: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        # As the tokenizer writes them. One that it has no tokens for may still be part of a token, as `so` is of `so.`
        given = [phrase.strip() for phrase in phrases]
        ids = tokenizer.encode_batch(given)
        written = zip(given, ids, tokenizer.decode_batch(ids), strict=True)
        unk = tokenizer.marks.unk
        texts = [own if unk in each else text for own, each, text in written if text.strip() or unk in each]
        self._patterns = {_squeezed(text.encode()): _pattern(text) for text in texts}
        self._surfaces = spellings(tokenizer)
        self._longest = max(map(len, self._patterns), default=0)
        # What of a phrase must be written before a token completes it -> such tokens, each with its phrase.
        self._before: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        ends = defaultdict(list)
        for phrase in self._patterns:
            for i in range(len(phrase)):
                ends[phrase[i:]].append(phrase)
        for token, surface in enumerate(self._surfaces):
            for i in range(1, len(surface) + 1):
                if surface[i : i + 1].isalnum():  # the word goes on
                    continue
                head = _squeezed(surface[:i])
                for phrase in ends.get(head, ()):
                    self._before[phrase[: len(phrase) - len(head)]].append((token, phrase))
                for j in range(1, len(head)):
                    if head[j:] in self._patterns:
                        self._before[b""].append((token, head[j:]))
        self._lengths = sorted({len(before) for before in self._before} - {0})
        self._alone: dict[tuple[int | None, bool], list[int]] = {}  # a token, or a letter, -> whole phrases after it

    def found(self, text: str) -> str | None:
        """The first of the phrases that a text has."""
        return next((match.group() for each in self._patterns.values() if (match := each.search(text))), None)

    def refused(self, written: Sequence[int]) -> list[int]:
        """The tokens that would complete a phrase after what is written."""
        end = b""
        for token in reversed(written):
            end = _squeezed(self._surfaces[token]) + end
            if len(end) >= self._longest:
                break
        letter = re.search(rf"{WORD}\Z", self._tokenizer.decode(written)) is not None
        after = (written[-1] if written else None, letter)
        if after not in self._alone:
            self._alone[after] = self._complete(self._before.get(b"", []), written)
        near = [pair for n in self._lengths if n <= len(end) for pair in self._before.get(end[len(end) - n :], ())]
        return [*self._alone[after], *self._complete(near, written)]

    def _complete(self, pairs: list[tuple[int, bytes]], written: Sequence[int]) -> list[int]:
        """Of tokens and phrases, those tokens with which the text has the phrase."""
        texts = self._tokenizer.decode_batch([[*written, token] for token, _ in pairs]) if pairs else []
        both = zip(pairs, texts, strict=True)
        return [token for (token, phrase), text in both if self._patterns[phrase].search(text)]


forbidden = lru_cache(maxsize=256)(Forbidden)  # the same, made once


def _pattern(text: str) -> re.Pattern[str]:
    inner = r"\s+".join(map(re.escape, text.split()))
    begin, end = (re.match(WORD, text.strip()[i]) is not None for i in (0, -1))
    return re.compile(f"(?<!{WORD})" * begin + inner + f"(?!{WORD})" * end)


def _squeezed(text: bytes) -> bytes:
    return b"".join(text.split())
