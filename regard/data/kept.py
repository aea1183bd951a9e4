"""What no translator should touch: addresses, @names, code and emoji. They are taken out of a sentence before it is
read, and put back where the word alignment says.

A sentence is read without them, so that nothing is torn. One that stands before or after all words stays there; any
other goes behind the word that it stood behind, wherever that has come to in the translation.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.data.sentences import CLAUSES, CLOSING, STOPS, UNSPACED, WIDE

Links = list[tuple[int, int]]  # (word of the source, word of the target), from 0

_INSIDE = r"\([^\s()<>]*\)|[^\s()<>\"“”«»`]"  # of an address; brackets come in pairs
_LAST = r"\([^\s()<>]*\)|[^\s()<>\"“”«»`'’.,;:!?…\]}。，；：！？、]"  # what follows it is the sentence's
_PICTURE = (
    "(?:[\U0001f1e6-\U0001f1ff]{2}|[0-9#*]\ufe0f?\u20e3"
    "|[\u203c\u2049\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55\U0001f000-\U0001faff]"
    "[\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+)"
)
_ONE = rf"""
    (?P<tick>(?<!`)`+)(?![`\s])[^\n]*?(?<![`\s])(?P=tick)(?!`)     # `code`
    |(?i:(?:https?|ftp)://|(?<![\w.])www\.)(?:{_INSIDE})*(?:{_LAST})
    |(?<![\w.@])(?:[\w-]+\.)+(?i:com|org|net|edu|gov|int|info|io|dev)(?![\w@.-]*\w)(?:/(?:(?:{_INSIDE})*(?:{_LAST}))?)?
    |(?<![\w.+-])\w[\w.+-]*@[\w-]+(?:\.[\w-]+)+
    |(?<![\w@])@\w(?:[\w.-]*\w)?(?:@[\w-]+(?:\.[\w-]+)+)?          # @name, @name@host.org
    |{_PICTURE}(?:\u200d?{_PICTURE})*+
"""
KEPT = re.compile(_ONE, re.VERBOSE)
MAYBE = re.compile("[@`\u203c-\u2bff\u20e3\U0001f000-\U0001faff]|://|[wW]{3}\\.|\\.[a-zA-Z]{2,4}\\b")  # a quick look
BRACKETS = {"(": ")", "[": "]", "<": ">"}
MARKS = STOPS + WIDE + CLAUSES + CLOSING  # what no blank stands before
WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Thing:
    """Something to keep."""

    text: str
    begin: int  # where it stands in the sentence
    at: int  # where it stood in what is read of it
    tied: bool  # to what is before it


@dataclass(frozen=True)
class Without:
    """A sentence without what is kept of it.

    >>> sentence = Without.of("Write to bob@example.org, please. 😀")
    >>> sentence.read, [thing.text for thing in sentence.things], sentence.after
    ('Write to, please.', ['bob@example.org'], ' 😀')
    >>> sentence.filled("Escribe a, por favor.", [(0, 0), (1, 1), (2, 2), (2, 3)]).text
    'Escribe a bob@example.org, por favor.'
    """

    text: str  # what is between `before` and `after`
    read: str
    things: list[Thing]
    origins: list[tuple[int, int]]  # where stretches begin, in `read` and in `text`
    before: str = ""
    after: str = ""

    @classmethod
    def of(cls, text: str) -> "Without":
        """Take out what is kept; `before` and `after` have what is not among words, with the white space between."""
        spans = _spans(text) if MAYBE.search(text) else []
        if not spans:
            return cls(text, text, [], [(0, 0)])
        words = [text[i:j] for i, j in pairwise([0, *(k for span in spans for k in span), len(text)])][::2]
        spoken = [n for n, stretch in enumerate(words) if any(map(str.isalnum, stretch))]
        if not spoken:
            return cls("", "", [], [], before=text)
        begin = spans[spoken[0] - 1][1] if spoken[0] else 0
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        end = spans[spoken[-1]][0] if spoken[-1] < len(spans) else len(text)
        end = len(text[:end].rstrip())
        inner = [(i - begin, j - begin) for i, j in spans if begin <= i and j <= end]
        return cls._among(text[begin:end], inner, before=text[:begin], after=text[end:])

    @classmethod
    def _among(cls, text: str, spans: Sequence[tuple[int, int]], *, before: str, after: str) -> "Without":
        read, last = "", 0
        things, origins = [], []
        for begin, end in [*spans, (len(text), len(text))]:
            if read[-1:].isspace():  # one blank is enough
                last += len(text[last:begin]) - len(text[last:begin].lstrip())
            origins.append((len(read), last))
            read, last = read + text[last:begin], end
            if begin < end:
                tied = not read[-1:].isspace()
                if text[end] in MARKS:  # it comes behind the word, which is now followed by its mark
                    read = read.rstrip()
                things.append(Thing(text[begin:end], begin, len(read), tied))
        return cls(text, read, things, origins, before, after)

    def stretches(self) -> list[tuple[str, bool]]:
        """The text in pieces, and of each whether it is kept."""
        cuts = [0, *(k for each in self.things for k in (each.begin, each.begin + len(each.text))), len(self.text)]
        return [(self.text[i:j], bool(n % 2)) for n, (i, j) in enumerate(pairwise(cuts)) if i < j]

    def filled(self, said: str, links: Links) -> "Filled | None":
        """A translation of what was read with the things in it; None where nobody knows where they belong."""
        source, target = ([word.start() for word in WORD.finditer(each)] for each in (self.read, said))
        ends = [word.end() for word in WORD.finditer(said)]
        if not target or UNSPACED.search(self.read) or UNSPACED.search(said):
            return None

        def near(word: int) -> int | None:
            """The word of the target that comes from a word: of several, the one where it is looked for."""
            own = [j for i, j in links if i == word]
            return min(own, key=lambda j: abs(j / len(target) - word / len(source))) if own else None

        placed: list[tuple[int, Thing]] = []
        for thing in self.things:
            word = bisect_left(source, thing.at)  # the one after it
            if word and (j := near(word - 1)) is not None:
                marked = not self.read[: thing.at].rstrip()[-1:].isalnum()
                placed.append((ends[j] if marked else len(said[: ends[j]].rstrip(MARKS)), thing))
            elif word < len(source) and (j := near(word)) is not None:
                placed.append((target[j], thing))
            else:
                return None
        return self._put(said, sorted(placed, key=lambda pair: pair[0]), links)

    def _put(self, said: str, placed: Sequence[tuple[int, Thing]], links: Links) -> "Filled":
        out, last, origins, own = "", 0, [], []
        for place, thing in placed:
            origins.append((last, len(out)))
            out = (out + said[last:place]).rstrip()
            out += " " if out and not thing.tied else ""
            own.append((thing.begin, len(out)))
            out += thing.text
            last = place + len(said[place:]) - len(said[place:].lstrip())
            out += " " if said[last : last + 1] and said[last] not in MARKS else ""
        origins.append((last, len(out)))
        out += said[last:]
        pairs = zip((self.read, said), (self.text, out), (self.origins, origins), strict=True)
        source, target = (_numbers(*each) for each in pairs)
        of_text, of_out = ([word.start() for word in WORD.finditer(each)] for each in (self.text, out))
        kept = [(bisect_right(of_text, i) - 1, bisect_right(of_out, j) - 1) for i, j in own]
        return Filled(out, sorted({(source[i], target[j]) for i, j in links} | set(kept), key=lambda link: link[::-1]))


@dataclass(frozen=True)
class Filled:
    """A translation with what was kept, and its word alignment."""

    text: str
    links: Links


def _spans(text: str) -> list[tuple[int, int]]:
    """Where things stand that are kept: those with only white space between as one, each with brackets around it."""
    spans: list[tuple[int, int]] = []
    for found in KEPT.finditer(text):
        begin, end = found.span()
        if begin and BRACKETS.get(text[begin - 1]) == text[end : end + 1]:
            begin, end = begin - 1, end + 1
        if spans and not text[spans[-1][1] : begin].strip():
            begin = spans.pop()[0]
        spans.append((begin, end))
    return spans


def _numbers(inner: str, outer: str, origins: Sequence[tuple[int, int]]) -> list[int]:
    """The number in a text of each word of what it was made from, or made of."""
    starts = [word.start() for word in WORD.finditer(outer)]
    numbers = []
    for word in WORD.finditer(inner):
        begin, there = origins[bisect_right(origins, word.start(), key=lambda pair: pair[0]) - 1]
        numbers.append(bisect_right(starts, word.start() - begin + there) - 1)
    return numbers
