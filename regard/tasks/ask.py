"""Questions answered from documents: passages are found, a model reads them, and what it says is cited.

The model finds a part of a passage (task answer), or writes (a language model, which is shown the passages). Where no
passage is near enough, or the model finds no answer in them, that is said.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from regard.data.passages import Standing
from regard.data.words import words_of
from regard.tasks.answer import Answerer, Reply
from regard.tasks.asks import Completion, ReachError, Writing
from regard.tasks.generator import Generator
from regard.tasks.index import Hit, Index
from regard.tasks.reader import Given
from regard.tasks.uses import AskUse

GAP = "\n\n"  # between two passages
NONE = "not told"  # what a language model is to say where there is no answer
PROMPT = (
    "Answer the question in a few words from these passages. Say which passage tells it, as in: Paris [2]. "
    f"If none of them tells it, say: {NONE}.\n\n{{passages}}\n\nQuestion: {{question}}"
)
FAR = "no passage is near enough"
LIMIT = 64  # tokens that a language model writes
NUMBER = re.compile(r"\s*\[(\d{1,3})\]")


@dataclass(frozen=True)
class Citation:
    """A passage that an answer comes from."""

    file: str  # or the id of a row
    page: int | None
    line: int | None  # in which the answer begins, or the passage, where the answer is not in it word for word
    text: str  # the passage
    score: float  # as it was found
    start: int | None = None  # the first character of the answer in the text
    end: int | None = None  # and the one after its last

    @classmethod
    def of(cls, hit: Hit, start: int | None = None, end: int | None = None) -> "Citation":
        """Of a part of what was found, or of all of it."""
        file, page, line = Standing.of(hit.id)
        further = hit.text.count("\n", 0, start or 0)
        return cls(file, page, line and line + further, hit.text, hit.score, start, end)

    @property
    def place(self) -> str:
        """As it is written: file, page and line."""
        page = "" if self.page is None else f", page {self.page}"
        return f"{self.file}{page}" + ("" if self.line is None else f", line {self.line}")


@dataclass(frozen=True)
class CitedAnswer:
    """What documents say to a question."""

    text: str  # "" where nothing fits
    citations: tuple[Citation, ...] = ()  # where nothing fits: what was read
    probability: float | None = None  # of a part that was found, among all parts and none
    why: str = ""  # there is no answer
    unread: int = 0  # passages that were found, but did not fit beside the others


class Asker:
    """An index, and a model that reads what is found in it.

    >>> asker = Asker(load("index"), load("runs/squad"))                                # doctest: +SKIP
    >>> asker.ask("Who fled?").citations[0].place                                       # doctest: +SKIP
    'report.pdf, page 3, line 12'
    """

    def __init__(self, index: Index, reader: Any, use: AskUse | None = None) -> None:
        if not isinstance(reader, Answerer | Generator):
            raise ValueError("questions are answered by a model to answer, or by a language model: name another reader")
        self.index, self.reader = index, reader
        self.use = use or AskUse(index.use.dimensions, index.use.long)

    def ask(self, question: str | Sequence[str], **settings: Any) -> Any:
        """What the documents say to a question, or to each in a list."""
        given = [question] if isinstance(question, str) else question
        found = self.answers([Given(each) for each in given], replace(self.use, **settings))
        return found[0] if isinstance(question, str) else found

    def answers(self, asks: Sequence[Given], settings: AskUse) -> list[CitedAnswer]:
        """The same for each of some questions."""
        hits = [near(ask, found, settings) for ask, found in zip(asks, self.index.answers(asks, settings), strict=True)]
        put = [put_to(self.reader, ask.text, some) if some else None for ask, some in zip(asks, hits, strict=True)]
        asked = [each.ask for each in put if each is not None]
        said = iter(self.reader.answers(asked, writing(self.reader)) if asked else ())
        return [CitedAnswer("", why=FAR) if each is None else each.answered(next(said)) for each in put]

    # What the command asks of whoever answers.
    @property
    def longest(self) -> int | None:
        return self.index.longest

    @property
    def without_native(self) -> str | None:
        return self.reader.without_native


def near(ask: Given, hits: Sequence[Hit], settings: AskUse) -> list[Hit]:
    """Of what was found for a question, that which is near enough to be read."""
    if not words_of(ask.text):
        raise ValueError(f"{ask.place or repr(ask.text[:40])}: a question without words: ask with some")
    cosines = settings.by == "meaning"
    return [hit for hit in hits if not cosines or hit.score >= settings.least]


def writing(reader: Any) -> Any:
    """How a reader is asked: to find, as it is used; to write, what is likeliest."""
    if isinstance(reader, Answerer):
        return reader.use
    return Writing.of({"beam": 1, "limit": LIMIT}, reader.decode)


class Put(NamedTuple):
    """What a reader is asked, and the passages that it is shown."""

    ask: Any
    hits: Sequence[Hit]
    unread: int = 0  # passages that were found, and not shown: they did not fit

    def answered(self, said: Any) -> CitedAnswer:
        """What is made of its answer: a part of the passages, or what was written."""
        found = _part(self.hits, said) if isinstance(said, Reply) else _written(self.hits, said[0])
        return replace(found, unread=self.unread)


def put_to(reader: Any, question: str, hits: Sequence[Hit]) -> Put:
    """What a reader is asked about some passages: about all, or of a language model about as many as fit."""
    if isinstance(reader, Answerer):
        return Put(Given(question, GAP.join(hit.text for hit in hits)), hits)
    for count in range(len(hits), 0, -1):
        passages = GAP.join(f"[{n}] {' '.join(hit.text.split())}" for n, hit in enumerate(hits[:count], start=1))
        with suppress(ReachError):
            prompt = reader.conversation(PROMPT.format(passages=passages, question=question))
            if reader.memory is None or len(prompt.ids) + LIMIT <= reader.memory:
                return Put(prompt, hits[:count], len(hits) - count)
    raise ReachError("a question and one passage are more than the model reads: index in shorter ones, by --characters")


def _part(hits: Sequence[Hit], said: Reply) -> CitedAnswer:
    if said.start is None or said.end is None:
        return CitedAnswer("", tuple(map(Citation.of, hits)), said.none, "no passage that was read tells it")
    begins = [0, *accumulate(len(hit.text) + len(GAP) for hit in hits)]
    which = max(n for n in range(len(hits)) if begins[n] <= said.start)
    start, end = said.start - begins[which], min(said.end - begins[which], len(hits[which].text))
    cited = Citation.of(hits[which], start, end)
    return CitedAnswer(cited.text[start:end], (cited,), said.probability)


def _written(hits: Sequence[Hit], said: Completion) -> CitedAnswer:
    """A passage is cited that is named by its number, or else has the answer in it; if none, all that were read."""
    text = NUMBER.sub("", said.text).strip()
    bare = " ".join(words_of(text))
    if not bare or bare == NONE:
        return CitedAnswer("", tuple(map(Citation.of, hits)), None, "the model says that no passage tells it")
    named = {int(n) for n in NUMBER.findall(said.text)}
    pattern = re.compile(r"\W+".join(map(re.escape, bare.split())), re.IGNORECASE)
    found = [(hit, pattern.search(hit.text), n in named) for n, hit in enumerate(hits, start=1)]
    cited = [each for each in found if each[2]] or [each for each in found if each[1]] or found
    return CitedAnswer(text, tuple(Citation.of(hit, *(at.span() if at else ())) for hit, at, _ in cited))
