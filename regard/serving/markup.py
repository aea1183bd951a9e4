"""HTML whose text is translated and whose tags stay: all of them, as they were written, and in their order.

The text of a block (a paragraph, a cell, a heading) is read as a whole, for a sentence does not end where a word is
bold. The inline tags inside it are put back by the word alignment of the translation: an element goes around the words
that come from its own. Where words have changed places so that tags would have to as well, or the alignment does not
say where an element belongs, the stretches between the tags are translated each by itself instead; so they are where
words are not written apart, as in Chinese.

Scripts, styles, code, comments and what is marked translate="no" (or class="notranslate") stay as they are; so do
attributes. White space inside a block may become a single blank, as it does when HTML is shown.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from html.parser import HTMLParser
from itertools import accumulate, pairwise

from regard.data.sentences import UNSPACED
from regard.tasks.asks import Translation

VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr")
KEPT = re.compile("code|kbd|math|noscript|pre|samp|script|style|svg|template|textarea|var")
INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|math|q|rp|rt|ruby|s|samp|"
    "small|span|strike|strong|sub|sup|svg|time|tt|u|var|wbr|!--"
)
WORD = re.compile(r"\S+")
MOST = 500  # items of a block whose tags are put back by alignment
WORDS = 60  # of an element that may be put back so


@dataclass
class Item:
    """A stretch of text of a block, or something between: a tag, or what is kept as it is."""

    raw: str  # as it was written
    text: str = ""  # what it says, if it is text
    partner: int | None = None  # the item that this tag opens or closes an element with
    closing: bool = False
    alone: bool = False  # no tag of an element: an image, a comment, code

    @property
    def says(self) -> bool:
        """Whether there is something to translate."""
        return any(map(str.isalpha, self.text))


Block = list[Item]


class Page:
    """A piece of HTML: `texts` are to be translated, and `filled` puts their translations in their places.

    >>> page = Page("<p>A <b>red</b> dog.</p>")
    >>> page.texts
    ['A red dog.', 'A', 'red', 'dog.']
    >>> said = [Translation("Un perro rojo.", [], 0.0, 0.0, [], [(0, 0), (1, 2), (2, 1)])]
    >>> page.filled([said] * 4)
    ['<p>Un perro <b>rojo</b>.</p>']
    """

    def __init__(self, html: str) -> None:
        self._parts = list(_parts(html))

    @property
    def texts(self) -> list[str]:
        """Of each block its whole text, if tags stand in it, and each stretch of it that has letters."""
        return [text for part in self._parts if not isinstance(part, str) for text in _asked(part)]

    def filled(self, translations: Sequence[Sequence[Translation]], best: int = 1) -> list[str]:
        """The page with the first, the second ... translation of each of its texts, or the last that there is."""
        pages = []
        for k in range(best):
            found = iter([each[min(k, len(each) - 1)] for each in translations])
            pages.append("".join(part if isinstance(part, str) else _block(part, found) for part in self._parts))
        return pages


def _asked(block: Block) -> list[str]:
    stretches = [" ".join(item.text.split()) for item in block if item.says]
    return [" ".join(_text(block).split()), *stretches] if len(stretches) > 1 else stretches


def _text(block: Block) -> str:
    return "".join(item.text for item in block)


def _block(block: Block, found: Iterator[Translation]) -> str:
    """A block in translation: as a whole if its tags find their places, else stretch by stretch."""
    whole = next(found) if sum(item.says for item in block) > 1 else None
    stretches = "".join(_around(item.text, next(found).text) if item.says else item.raw for item in block)
    placed = None if whole is None else _places(block, whole)
    if whole is None or placed is None:
        return stretches
    tags = [item for item in block if not item.text]
    cuts = [0, *placed, len(whole.text)]
    pieces = [escape(whole.text[i:j], quote=False) for i, j in pairwise(cuts)]
    lead, trail = _space(_text(block))
    return lead + pieces[0] + "".join(tag.raw + piece for tag, piece in zip(tags, pieces[1:], strict=True)) + trail


def _around(source: str, said: str) -> str:
    """A translation between the white space that was around its source."""
    lead, trail = _space(source)
    return lead + escape(said, quote=False) + trail


def _space(text: str) -> tuple[str, str]:
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


def _places(block: Block, said: Translation) -> list[int] | None:
    """Where in a translation each tag of its block belongs, in characters; None if that is not to be known.

    A tag stands between two words of the source, or inside one: `ended` words lie before it, and `begun` have begun.
    """
    source, target = ([found.span() for found in WORD.finditer(text)] for text in (_text(block), said.text))
    if not target or len(block) > MOST or UNSPACED.search(_text(block)) or UNSPACED.search(said.text):
        return None
    places = [0, *accumulate(len(item.text) for item in block)]
    ended = [bisect_right(source, place, key=lambda word: word[1]) for place in places]
    begun = [bisect_left(source, place, key=lambda word: word[0]) for place in places]
    links = sorted(said.alignment or [])

    def span(first: int, last: int) -> tuple[int, int] | None:
        """The words of the target that come from source[first:last]: most of them, with as few others as may be.

        Attention misplaces a word now and then. So of all stretches that begin and end with such a word the best is
        taken: each word of its own counts for it, each other against it, and half a one each that it is too long or
        too short.
        """
        if (first, last) == (0, len(source)):
            return 0, len(target)
        begin, end = bisect_left(links, (first,)), bisect_left(links, (last,))
        own = sorted({j for _, j in links[begin:end]})
        others = sorted({j for _, j in links[:begin] + links[end:]})
        if not own or len(own) > WORDS:
            return None

        def worth(a: int, b: int) -> float:
            among = bisect_right(others, own[b]) - bisect_left(others, own[a])
            return b - a + 1 - among - abs(own[b] + 1 - own[a] - (last - first)) / 2

        stretches = ((a, b) for a in range(len(own)) for b in range(a, len(own)) if 2 * (b - a + 1) >= len(own))
        a, b = max(stretches, key=lambda each: worth(*each))
        return (own[a], own[b] + 1) if worth(a, b) > 0 else None

    def place(k: int, item: Item) -> int | None:
        opening, closing = sorted((k, k if item.partner is None else item.partner))
        first, last, at_end = ended[opening], begun[closing], item.closing
        if first >= last or item.partner is None:  # it holds no word
            if begun[k] == 0 or ended[k] == len(source):
                return target[-1][1] if begun[k] else target[0][0]
            at_end = item.closing and item.partner is None  # else it goes with the word after it
            first = begun[k] - 1 if at_end else ended[k]
            last = first + 1
        words = span(first, last)
        if words is None:
            return None
        begin, end = target[words[1] - 1 if at_end else words[0]]
        inside = _text(block[opening:closing]).strip()
        if at_end:
            return end - _marks(said.text[begin:end][::-1], inside[-1:])
        return begin + _marks(said.text[begin:end], inside[:1])

    found = [place(k, item) for k, item in enumerate(block) if not item.text]
    known = [each for each in found if each is not None]
    return known if known == sorted(known) and len(known) == len(found) else None


def _marks(word: str, edge: str) -> int:
    """How many marks at the beginning of a word stay outside an element: all, if it had none at its edge."""
    return next((n for n, c in enumerate(word) if c.isalnum()), 0) if edge.isalnum() else 0


@dataclass
class _Event:
    """Something that a parser has met, and where."""

    kind: str  # text, open, close, or other
    begin: int
    name: str = ""
    kept: bool = False  # a tag whose element is not translated


class _Reader(HTMLParser):
    """Where the parts of some HTML begin; whatever they are, the text from one to the next is what was written."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[_Event] = []
        self._lines = [0, *(found.end() for found in re.finditer("\n", html))]
        self.feed(html)
        self.close()

    def _met(self, kind: str, name: str = "", kept: bool = False) -> None:
        if kind == "text" and self.events and self.events[-1].kind == "text":
            return  # an entity is no end of a stretch
        line, column = self.getpos()
        self.events.append(_Event(kind, self._lines[line - 1] + column, name, kept))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        kept = (given.get("translate") or "").lower() == "no" or "notranslate" in (given.get("class") or "").split()
        self._met("other" if VOID.fullmatch(tag) else "open", tag, kept or KEPT.fullmatch(tag) is not None)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._met("other", tag)

    def handle_endtag(self, tag: str) -> None:
        self._met("close", tag)

    def handle_data(self, data: str) -> None:
        self._met("text")

    def handle_entityref(self, name: str) -> None:
        self._met("text")

    handle_charref = handle_entityref

    def handle_comment(self, data: str) -> None:
        self._met("other", "!--")

    def handle_decl(self, decl: str) -> None:
        self._met("other")

    def handle_pi(self, data: str) -> None:
        self._met("other")

    unknown_decl = handle_pi


def _parts(html: str) -> Iterator[str | Block]:
    """What stays as it is, and the blocks of text between."""
    events = _Reader(html).events
    ends = [event.begin for event in events[1:]] + [len(html)] * bool(events)
    block = _Growing()
    depth, skipped, start = 0, "", 0  # of an element that is kept: how often its name is open, which, since when
    for event, end in zip(events, ends, strict=True):
        raw = html[event.begin : end]
        if not depth and event.kind == "open" and event.kept:
            depth, skipped, start = 1, event.name, event.begin
            continue
        if depth:
            depth += (event.name == skipped) * ((event.kind == "open") - (event.kind == "close"))
            if depth:
                continue
            raw, event = html[start:end], _Event("other", start, skipped)
        if event.kind == "text":
            block.text(raw)
        elif INLINE.fullmatch(event.name):
            block.tag(event, raw)
        else:
            yield from (block.items, raw)
            block = _Growing()
    yield block.items
    if depth:
        yield html[start:]


class _Growing:
    """A block as it is read: its items, whether there are words in it, and which inline elements are open."""

    def __init__(self) -> None:
        self.items: Block = []
        self._spoken = False
        self._open: list[tuple[str, int]] = []  # name and item of each, the innermost last
        self._count: Counter[str] = Counter()  # how many there are of each name

    def text(self, raw: str) -> None:
        """White space stays with what is before it: with a tag, if there are no words yet, and with something that
        stands alone between blanks.
        """
        items = self.items
        if items and (not self._spoken or (items[-1].alone and _text(items[-2:])[-1:].isspace())):
            rest = raw.lstrip(" \t\n\r\f")
            items[-1].raw += raw[: len(raw) - len(rest)]
            raw = rest
        if raw:
            items.append(Item(raw, unescape(raw)))
            self._spoken |= bool(items[-1].text.strip())

    def tag(self, event: _Event, raw: str) -> None:
        """One that closes an element knows the innermost that has opened it; all that are inside are closed as well."""
        here, item = len(self.items), Item(raw, closing=event.kind == "close", alone=event.kind == "other")
        self.items.append(item)
        if event.kind == "open":
            self._open.append((event.name, here))
            self._count[event.name] += 1
        while item.closing and item.partner is None and self._count[event.name]:
            name, opening = self._open.pop()
            self._count[name] -= 1
            if name == event.name:
                item.partner, self.items[opening].partner = opening, here
