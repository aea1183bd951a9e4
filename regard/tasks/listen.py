"""Speech that is still going on: what is said is told as soon as it is certain.

What has come in since the last cut is heard anew every second or so. Words with which two hearings in a row begin are
told, and stay (local agreement; Liu et al., 2020, Macháček et al., 2023). Where a segment has ended, of which all was
told, the sound before it is let go: it is never longer than `LONGEST` seconds, however long somebody speaks.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard.data.sound import HOP, RATE, Samples, floor, levels, voiced
from regard.tasks.transcripts import Segment, TranscribeUse

if TYPE_CHECKING:
    from regard.tasks.transcribe import Transcriber

LONGEST = 20.0  # seconds that are heard at once: then what is said is told, certain or not
CONTEXT = 400  # characters of what was said before, for who wants them
AFTER = 1.0  # seconds of nothing after which a segment has ended
KEPT = 3.0  # seconds of a sound in which nothing is said yet
AT_ONCE = 5.0  # seconds that came in together are heard together
BEFORE = 6000  # frames by which the background is known: a minute


class Certain(NamedTuple):
    """More of what is said."""

    text: str  # with the space before it; it stays
    heard: float  # seconds of sound that had come in by then
    segments: tuple[Segment, ...]  # what has ended with it, as it was heard last


class Listening:
    """Sound that comes in, and what is told of it."""

    def __init__(self, by: "Transcriber", how: TranscribeUse, every: float) -> None:
        self.by, self.how, self.every = by, how, int(every * RATE)
        self.language, self.likely = how.language, how.language  # the first is certain
        self.before = ""  # what was said before the cut
        self.sound: Samples = np.zeros(0, np.float32)  # since the last cut
        self.cut = 0  # samples before it
        self.told: list[str] = []  # words of what is there, and
        self.guess: list[str] = []  # those that the last hearing had after them
        self.loud: deque[float] = deque(maxlen=BEFORE)

    def to(self, chunks: Iterable[Samples]) -> Iterator[Certain]:
        """What is said in samples at `RATE`, as they come."""
        new, count = list[Samples](), 0
        for chunk in chunks:
            most = max(self.every, int(AT_ONCE * RATE))
            for piece in np.split(chunk, range(most, len(chunk), most)):
                new, count = [*new, piece], count + len(piece)
                if count >= self.every:
                    yield from self._more(np.concatenate(new))
                    new, count = [], 0
        yield from self._more(np.concatenate([*new, self.sound[:0]]), last=True)

    def _more(self, new: Samples, *, last: bool = False) -> Iterator[Certain]:
        self.sound = np.concatenate([self.sound, new])
        long = len(self.sound) >= LONGEST * RATE
        segments = self._hear(new, long=long, last=last) if len(self.sound) >= HOP else []
        if long and not last:
            segments = _until(segments, len(self.sound) / RATE - AFTER)
        words = [_words(each.text, self.likely in self.by.unspaced) for each in segments]
        all_words = [word for each in words for word in each]
        begin = nearest(self.told, all_words)
        rest = all_words[begin:]
        agreed = len(rest) if long or last else _alike(rest, self.guess)
        done = begin + agreed
        ends = [*accumulate(map(len, words))]
        ended = [i for i, end in enumerate(ends) if end <= done]
        quiet = segments and len(self.sound) / RATE - segments[-1].end > AFTER
        if not (long or last or quiet):
            ended = [i for i in ended if i < len(ends) - 1]
        closed = tuple(each.later(self.cut / RATE) for each in segments[: len(ended)])
        if not self.how.words:
            closed = tuple(replace(each, words=None) for each in closed)
        self.before = (self.before + "".join(each.text for each in closed))[-CONTEXT:]
        if agreed or closed:
            self.language = self.likely
            yield Certain("".join(rest[:agreed]), (self.cut + len(self.sound)) / RATE, closed)
        first = ends[len(ended) - 1] if ended else 0
        self.told, self.guess = all_words[first:done] if segments else self.told, rest[agreed:]
        if closed:
            self._forget(int(segments[len(ended) - 1].end * RATE))
        elif long or not (segments or self.told):  # of what is nothing yet, the beginning may come
            self.told = []
            self._forget(len(self.sound) - int(KEPT * RATE))

    def _forget(self, samples: int) -> None:
        samples = min(max(0, samples), len(self.sound))
        self.sound, self.cut = self.sound[samples:], self.cut + samples

    def _hear(self, new: Samples, *, long: bool, last: bool) -> list[Segment]:
        """What is said in the sound as it is; nothing, where that looks wrong."""
        prompt = f"{self.how.prompt} {self.before if self.how.context else ''}"
        how = replace(self.how, language=self.language, voice=None, words=self.how.words or long, prompt=prompt)
        if not (long or last):
            how = replace(how, step=0)  # a second try takes long: only where there will be no other
        if self.how.voice is not None:
            self.loud.extend(levels(new).tolist())
            background = floor(np.array(self.loud))
            if not voiced(self.sound, self.how.voice, background).any():
                return []
        hearing = self.by.hearing(self.sound, how)
        for _ in hearing:  # mostly one window
            pass
        self.likely = hearing.language
        wrong = how.repetitive is not None and any(each.compression > how.repetitive for each in hearing.segments)
        return [] if wrong else hearing.segments


def _until(segments: Sequence[Segment], end: float) -> list[Segment]:
    """What is said before some time, word by word; all of it if nothing is."""
    found = []
    for each in segments:
        words = tuple(word for word in each.words or () if word.end <= end)
        if words:
            found.append(replace(each, text="".join(word.word for word in words), words=words, end=words[-1].end))
    return found or [*segments]


def _words(text: str, unspaced: bool) -> list[str]:
    """Words, each with the space before it; of a text that has none, characters."""
    return [*text] if unspaced else re.findall(r"\s*\S+", text)


def _plain(word: str) -> str:
    return re.sub(r"\W", "", word).lower() or word.strip()


def _alike(a: Sequence[str], b: Sequence[str]) -> int:
    """With how many words both begin, whatever their case and signs.

    >>> _alike([" Ask", " not,", " what"], [" ask", " not", " why"])
    2
    """
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if _plain(x) != _plain(y)), min(len(a), len(b)))


def nearest(told: Sequence[str], words: Sequence[str]) -> int:
    """Where in words that are heard now goes on what was told before: after the beginning that is most like it, by
    edit distance.

    >>> nearest([" a", " cat", " sat"], [" The", " cat", " sat", " down"])
    3
    """
    a, b = [*map(_plain, told)], [*map(_plain, words)]
    row = [*range(len(b) + 1)]
    for i, word in enumerate(a, start=1):
        before, row = row, [i]
        for j, other in enumerate(b):
            row.append(min(before[j] + (word != other), before[j + 1] + 1, row[j] + 1))
    return min(range(len(row)), key=lambda j: (row[j], abs(j - len(a))))
