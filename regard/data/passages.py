"""Files to passages: text, Markdown, HTML and PDF in pieces of a few sentences, each of which knows where it stands.

A passage has the line ends of its file in it, so that the line of any part of it can be counted. It is known by its
place: `notes/a.md:12`, the file and the line that it begins in; of a PDF also the page, `report.pdf#page=3:12`.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from regard.data.documents import WORDED
from regard.data.sentences import shorten, split
from regard.data.text import Skipped, decoded, read_lines
from regard.files import read_whole, regular_size

PAGES, PDF = (".html", ".htm"), ".pdf"
READ = (*WORDED, *PAGES, PDF)
CHARACTERS = 600  # of a passage: some 130 sub-words of English, as many as small models are taught to read
LINES = 1_000  # of a paragraph that are held at a time
APART = 3  # lines between two blocks of which a passage ends after the first
FULL = 0.85  # of the widest line of a paragraph: where the next word would not have fitted, a sentence goes on
FAILED = "of the files could not be read, or not to their end"
NAMED = 5  # files that cannot be read, and are named; the others are counted
MARK = re.compile(
    r"\s*(?:#|```|[-*+•>|]\s|\d{1,3}[.)]\s)"
)  # a heading, an item: what is no sentence with its neighbour
CHARSET = re.compile(rb"""<meta[^>]{,200}charset=["']?([\w-]+)""", re.IGNORECASE)
TAGS = "a abbr b bdi bdo big cite code data dfn em font i img ins kbd label mark q s samp small span strong sub sup"
INLINE = frozenset([*TAGS.split(), "time", "tt", "u", "var", "wbr"])  # that end no sentence
UNREAD = frozenset(("script", "style", "template", "noscript", "svg", "math"))  # whose text is not for people
PLACE = re.compile(r"(?P<file>.*?)(?:#page=(?P<page>\d+))?:(?P<line>\d+)", re.DOTALL)


class TextBlock(NamedTuple):
    """A paragraph, an item, a heading."""

    text: str
    line: int  # it begins in
    page: int | None = None
    flows: bool = False  # a line end in it is a space


class Standing(NamedTuple):
    """Where something stands."""

    file: str
    page: int | None
    line: int | None

    @classmethod
    def of(cls, id: str) -> "Standing":
        """What a passage is known by; a row of a table has neither page nor line.

        >>> Standing.of("a/b.pdf#page=3:12"), Standing.of("notes.md:7"), Standing.of("doc-1")[1:]
        (Standing(file='a/b.pdf', page=3, line=12), Standing(file='notes.md', page=None, line=7), (None, None))
        """
        found = PLACE.fullmatch(id)
        if found is None:
            return cls(id, None, None)
        return cls(found["file"], int(found["page"]) if found["page"] else None, int(found["line"]))


def files_in(path: Path, skipped: Skipped) -> list[tuple[str, Path]]:
    """The files of a folder that can be read, by name and in order; what is of another kind is counted."""
    if not path.is_dir():
        return [(known(path, path.parent), path)]
    files = list[Path]()
    for folder, inner, names in os.walk(
        path, onerror=lambda error: failed(known(Path(error.filename), path), error, skipped)
    ):
        files += (Path(folder, name) for name in names if not name.startswith("."))
        if links := sum(Path(folder, name).is_symlink() for name in inner):
            skipped.notes["links to folders were not followed"] += links
    files.sort()
    found = [each for each in files if each.name.lower().endswith(READ)]
    if others := len(files) - len(found):
        skipped.notes[f"of the files left out, for {', '.join(READ)} are read"] += others
    return [(known(each, path), each) for each in found]


def known(file: Path, folder: Path) -> str:
    """The name of a file in a folder, as text: bytes that are no UTF-8 by their numbers."""
    return file.relative_to(folder).as_posix().encode("utf-8", "backslashreplace").decode()


def passages(name: str, file: Path, characters: int, skipped: Skipped) -> Iterator[tuple[str, str]]:
    """The passages of a file, by their places; one that cannot be read is named and counted."""
    try:
        for block in packed(blocks(file), characters):
            page = "" if block.page is None else f"#page={block.page}"
            yield f"{name}{page}:{block.line}", block.text
    except (OSError, ValueError) as error:
        failed(name, error, skipped, f"{file}, ")


def failed(name: str, error: Exception, skipped: Skipped, lead: str = "") -> None:
    """Count what cannot be read, and name it while there are few; `lead` is what its error need not say again."""
    skipped.notes[FAILED] += 1
    if sum(note.startswith("file: ") for note in skipped.notes) < NAMED:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        skipped.notes[f"file: {name} ({' '.join(why.removeprefix(lead).split())[:200]})"] += 1


def packed(found: Iterable[TextBlock], most: int) -> Iterator[TextBlock]:
    """Sentences of consecutive blocks put together, whole, up to so many characters; a longer one is cut.

    >>> [block.text for block in packed([TextBlock("One. Two is longer.", 1), TextBlock("Three.", 2)], 20)]
    ['One. Two is longer.', 'Three.']
    """
    held: TextBlock | None = None
    for block in found:
        for number, one in enumerate(sentences(block, most)):
            if held is not None:
                gap = one.line - held.line - held.text.count("\n")
                room = most // 2 if number == 0 else most  # a new paragraph joins what is short
                if held.page == one.page and gap <= APART and len(held.text) < room:
                    joined = f"{held.text}{chr(10) * gap or ' '}{one.text}"
                    if len(joined) <= most:
                        held = held._replace(text=joined)
                        continue
                yield held
            held = one
    if held is not None:
        yield held


def sentences(block: TextBlock, most: int) -> Iterator[TextBlock]:
    """The sentences of a block, each with its line; of one that is too long, its parts."""
    flat, at = block.text.replace("\n", " ") if block.flows else unwrapped(block.text), 0
    for piece in split(flat):
        for part in shorten(piece.text, lambda text: len(text) <= most):
            if part.text.strip():
                line = block.line + block.text.count("\n", 0, at)
                yield block._replace(text=block.text[at : at + len(part.text)], line=line)
            at += len(part.text) + len(part.gap)
        at += len(piece.gap)


def unwrapped(text: str) -> str:
    """A paragraph with a space for each line end at which its sentence goes on, for the line was full.

    >>> unwrapped("A heading\\nHere a sentence begins that goes on in\\nanother line. An end.\\n- an item")
    'A heading\\nHere a sentence begins that goes on in another line. An end.\\n- an item'
    """
    lines = text.split("\n")
    width, found = max(map(len, lines)), lines[0]
    for line, after in pairwise(lines):
        word = (after.split(maxsplit=1) or [""])[0]
        full = len(line) + 1 + len(word) > FULL * width
        found += (" " if full and not MARK.match(line) and not MARK.match(after) else "\n") + after
    return found


def blocks(file: Path) -> Iterator[TextBlock]:
    """The blocks of a file, as its name says how it is read."""
    regular_size(file)
    name = file.name.lower()
    if name.endswith(PDF):
        yield from _of_pdf(file)
    elif name.endswith(PAGES):
        page = _Page()
        page.feed(_html(file))
        page.close()
        page.end()
        yield from page.blocks
    else:
        yield from paragraphs(read_lines(file, cut=False, may_be_empty=True))


def paragraphs(lines: Iterable[str], page: int | None = None) -> Iterator[TextBlock]:
    """What stands between empty lines."""
    for filled, some in groupby(enumerate(lines, start=1), key=lambda each: bool(each[1].strip())):
        while filled and (held := list(islice(some, LINES))):
            yield TextBlock("\n".join(line for _, line in held), held[0][0], page)


def _of_pdf(file: Path) -> Iterator[TextBlock]:
    try:
        from pypdf import PdfReader
    except ImportError:
        raise ValueError("a PDF is read by pypdf: pip install 'regard[retrieve]'") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what is wrong with a file is told in one line
    found = False
    try:
        with open(file, "rb") as stream:
            for number, page in enumerate(PdfReader(stream).pages, start=1):
                for block in paragraphs(page.extract_text().splitlines(), number):
                    found = True
                    yield block
    except GeneratorExit:
        raise
    except Exception as error:  # a damaged file may have it raise anything
        raise ValueError(f"no PDF that can be read: {error or type(error).__name__}") from None
    if not found:
        raise ValueError("a PDF without text: its pages may be pictures")


def _html(file: Path) -> str:
    data = read_whole(file)
    said = CHARSET.search(data[:2048])
    if said is not None:
        with suppress(LookupError, UnicodeDecodeError):
            return data.decode(said[1].decode())
    return decoded(data, f"{file.name}:")


class _Page(HTMLParser):
    """What people read of a page, with the lines of its source."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[TextBlock] = []
        self._text, self._line, self._unread = "", 1, ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if not self._unread and tag in UNREAD:
            self._unread = tag
        if tag not in INLINE:
            self.end()

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unread:
            self._unread = ""
        if tag not in INLINE:
            self.end()

    def handle_data(self, data: str) -> None:
        if self._unread:
            return
        line, _ = self.getpos()
        if not self._text.strip():
            self._text, self._line = "", line
        self._text += "\n" * (line - self._line - self._text.count("\n")) + data

    def end(self) -> None:
        """A block is over."""
        if inner := self._text.strip():
            lead = self._text[: self._text.index(inner[0])]
            self.blocks.append(TextBlock(inner, self._line + lead.count("\n"), flows=True))
        self._text = ""
