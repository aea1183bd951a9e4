"""Words out of the tokens of a transcript, with the times at which they are said."""

import string
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizers import Tokenizer
from regard.tasks.transcripts import Segment, Word

OPENING = "\"'“¿([{-"  # belong to the word after them
CLOSING = "\"'.。,，!！?？:：”)]}、"  # and to the word before them
ENDS = ".。!！?？"  # of sentences
LONGEST = 0.7  # seconds that a usual word has at most


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The least parts of a text that are whole characters, and of how many tokens each is made."""
    spelled, count = b"", 0
    for i, token in enumerate(tokens, start=1):
        spelled, count = spelled + tokenizer.spelled(token), count + 1
        try:
            text = spelled.decode()
        except UnicodeDecodeError:
            if i < len(tokens):
                continue
            text = spelled.decode(errors="replace")
        yield text, count
        spelled, count = b"", 0


def in_time(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    at: NDArray[np.float64],
    likely: Sequence[float],
    *,
    cuts: Container[int] = (),
    alike: bool = False,
) -> list[tuple[int, Word]]:
    """The words of a text, each with the number of its first token, where token i is said from second at[i] on, and its
    end from at[-1] on. At `cuts` a word begins; `alike`: it is written without spaces, and each piece is a word."""
    words: list[tuple[int, str, int]] = []  # first token, text, tokens
    first = 0
    for text, count in pieces(tokenizer, tokens):
        if alike or not words or first in cuts or text.startswith(" ") or text.strip() in string.punctuation:
            words.append((first, text, count))
        else:
            begin, before, some = words[-1]
            words[-1] = begin, before + text, some + count
        first += count
    timed = [
        (begin, Word(text, float(at[begin]), float(at[begin + n]), float(np.mean(likely[begin : begin + n]))))
        for begin, text, n in words
    ]
    lengths = [word.end - word.start for _, word in timed if word.end > word.start]
    most = 2 * min(LONGEST, float(np.median(lengths))) if lengths else 0.0
    for i in range(1, len(timed)):  # a pause between sentences belongs to no word
        begin, word = timed[i]
        if lengths and word.end - word.start > most:
            if word.word.strip() in ENDS:
                timed[i] = begin, replace(word, end=word.start + most)
            elif timed[i - 1][1].word.strip() in ENDS:
                timed[i] = begin, replace(word, start=word.end - most)
    return _joined(timed, cuts)


def _joined(words: Sequence[tuple[int, Word]], cuts: Container[int]) -> list[tuple[int, Word]]:
    """Signs as parts of the words that they stand at."""
    result: list[tuple[int, Word]] = []
    opening: tuple[int, str] | None = None
    for n, (begin, word) in enumerate(words, start=1):
        if opening is not None:
            begin, word = opening[0], replace(word, word=opening[1] + word.word)
            opening = None
        alone = n == len(words) or words[n][0] in cuts
        if word.word.startswith(" ") and word.word.strip() in OPENING and not alone:
            opening = begin, word.word
        elif result and word.word in CLOSING and begin not in cuts:
            before, last = result[-1]
            result[-1] = before, replace(last, word=last.word + word.word)
        else:
            result.append((begin, word))
    return result


def fitted(segment: Segment) -> Segment:
    """A segment that begins and ends with its words, unless the first or last of these goes far beyond it."""
    words = [*(segment.words or ())]
    if not words:
        return segment
    if words[0].start + 0.5 < segment.start < words[0].end:
        words[0] = replace(words[0], start=segment.start)
    if words[-1].start < segment.end < words[-1].end - 0.5:
        words[-1] = replace(words[-1], end=segment.end)
    return replace(segment, start=words[0].start, end=words[-1].end, words=(*words,))
