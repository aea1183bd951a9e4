"""Plain text to model: files, folders or JSON lines, as documents, a passage at a time and in constant memory.

A passage ends before a space, so that words stay whole. Joined, passages are the text; its lines end in a line feed,
whatever their file has.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from regard.checks import one_of
from regard.data import music
from regard.data.text import ABSURD, Skipped, json_values, lines_of, open_bytes
from regard.files import digest, regular_size

PASSAGE = 4_000  # characters
MUSIC = (*music.ABC, *music.MIDI)  # of files in which each melody is a document, a word a note
WORDED = (".txt", ".md", ".text", ".txt.gz", ".md.gz")
SUFFIXES = (*WORDED, *MUSIC)  # of files that are texts, in a folder
DOCUMENTS = ("file", "paragraph", "line")


@dataclass(frozen=True)
class TextFiles:
    """Where a text is: files and folders of plain text, or JSON lines; `.gz` each if you like.

    >>> TextFiles(text=("books", "more.txt.gz")).paths()
    ['books', 'more.txt.gz']
    """

    text: str | tuple[str, ...] | None = None  # a file or a folder, or a list of them
    jsonl: str | None = None  # one file, a JSON object a line: each is a document
    key: str = "text"  # of the jsonl
    documents: str = "file"  # what a document of plain text is: a file, a paragraph (up to an empty line), a line

    def __post_init__(self) -> None:
        if (not self.text) == (not self.jsonl):
            raise ValueError("a text comes from text (files or folders) or from jsonl: name one of them")
        one_of(DOCUMENTS, documents=self.documents)

    def paths(self) -> list[str]:
        """Every file, those of a folder in the order of their names."""
        found: list[str] = []
        for name in [self.text] if isinstance(self.text, str) else self.text or [self.jsonl or ""]:
            if not Path(name).is_dir():
                found.append(name)
                continue
            inner = sorted(str(path) for path in Path(name).rglob("*") if path.name.endswith(SUFFIXES))
            if not inner:
                raise ValueError(f"{name} has no text in it: files that end in {', '.join(SUFFIXES)} are read")
            found += inner
        return found

    def read(self, skipped: Skipped | None = None) -> "Iterator[Passage]":
        """The passages, document after document; a blank document is left out and counted in `skipped`."""
        counts = Skipped() if skipped is None else skipped
        for document in _documents(self):
            held, first = "", True
            for piece in document:
                held += piece
                while len(held) >= 2 * PASSAGE and held.strip():
                    end = _cut(held)
                    yield Passage(held[:end], first, False)
                    held, first = held[end:], False
            if held.strip() or not first:
                yield Passage(held, first, True)
            else:
                counts.empty += 1

    def fingerprint(self) -> str:
        """A sha256 of the files' bytes and how they are read: the same text has the same, wherever it lies."""
        how = [self.documents if self.text else self.key]
        for path in self.paths():
            regular_size(path)
            how.append(digest(path))
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()


class Passage(NamedTuple):
    """A piece of a document, and whether the document begins or ends with it."""

    text: str
    first: bool
    last: bool


def _cut(text: str) -> int:
    """Where a passage ends: before a space that follows something else, if there is one."""
    end = text.rfind(" ", PASSAGE // 2, PASSAGE)
    while end > 0 and text[end - 1] == " ":
        end -= 1
    return end if end > 0 else PASSAGE


def _documents(files: TextFiles) -> Iterator[Iterable[str]]:
    """The text of each document, in pieces that come one after the other."""
    for path in files.paths():
        regular_size(path)  # no pipe: a text is read several times
        if path.endswith(MUSIC):
            yield from ([each.words()] for each in music.tunes(path))
            continue
        with open_bytes(path) as stream:
            lines = lines_of(stream, path, ABSURD)
            if files.jsonl:
                for line in lines:
                    if line.text.strip():
                        yield json_values(line.text, [files.key], f"{path}, line {line.number}")
            elif files.documents == "line":
                yield from ([line.text] for line in lines)
            elif files.documents == "file":
                yield (f"{line.text}\n" for line in lines)
            else:
                for filled, some in groupby(lines, key=lambda line: bool(line.text.strip())):
                    if filled:
                        yield [f"{line.text}\n" for line in some]
