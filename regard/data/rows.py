"""Rows with named parts: a text and its label, two texts and how alike they are, a question and its answers.

They stand in a tsv, a csv or a jsonl, which `columns` explains; a tsv has no quotes, a csv those of its kind.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from regard.checks import hint
from regard.data.text import ABSURD, Skipped, check_text, from_json, lines_of, open_bytes
from regard.files import digest, regular_size

WAYS = ("tsv", "csv", "jsonl")
ENDINGS = {"json": ("squad",), "txt": ("conll",), "bio": ("conll",)}  # of files that are read in another way
Row = dict[str, Any]


@dataclass(frozen=True)
class RowFiles:
    """Where rows are: one tsv, csv or jsonl; `.gz` if you like.

    `columns` says where each part stands: its number from 0, or its name in the first line or in a JSON object, inside
    of which a dot leads. Left out, a jsonl has the parts by their own names, and so has a first line that names them
    all; otherwise they come in their order.
    """

    ways: ClassVar[tuple[str, ...]] = WAYS
    parts: ClassVar[tuple[str, ...]] = ("text", "label")
    optional: ClassVar[tuple[str, ...]] = ()

    tsv: str | None = None  # one file, tab-separated
    csv: str | None = None  # one file, comma-separated
    jsonl: str | None = None  # one file, a JSON object a line
    columns: dict[str, int | str] = field(default_factory=dict)  # part -> number from 0, or name

    def __post_init__(self) -> None:
        given = [way for way in self.ways if getattr(self, way)]
        if len(given) != 1:
            known = f"{', '.join(self.ways[:-1])} or {self.ways[-1]}"
            raise ValueError(f"rows come from {known}: name one, got {' and '.join(given) or 'none'}")
        for name, place in self.columns.items():
            if name not in (*self.parts, *self.optional):
                raise ValueError(f"columns has {name!r}: {hint(name, (*self.parts, *self.optional))}")
            if isinstance(place, int) and (place < 0 or self.jsonl):
                raise ValueError(f"columns.{name} = {place}: a number counts from 0, and is not for a jsonl")

    @classmethod
    def at(cls, path: str | PathLike[str], columns: Iterable[str] = ()) -> Self:
        """What a file holds that ends so, .tsv or .jsonl.gz, or a folder; columns as PART=PLACE."""
        ending = "folder" if Path(path).is_dir() else str(path).removesuffix(".gz").rpartition(".")[2]
        ways = [way for way in (ending, *ENDINGS.get(ending, ())) if way in cls.ways]
        if not ways:
            raise ValueError(f"{path} ends in none of .{', .'.join(cls.ways)}: give it the ending of what it holds")
        places = dict(each.partition("=")[::2] for each in columns)
        where = {part: int(place) if place.isdecimal() else place for part, place in places.items()}
        return cls(**{ways[0]: str(path)}, columns=where)

    @property
    def path(self) -> str:
        """The file."""
        return str(next(filter(None, (getattr(self, way) for way in self.ways))))

    def fingerprint(self) -> str:
        """The same for the same rows, wherever they lie."""
        regular_size(self.path)
        how = asdict(self) | {way: bool(getattr(self, way)) for way in self.ways}
        return hashlib.sha256(json.dumps([digest(self.path), how]).encode()).hexdigest()

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The rows, in order; one whose first part is blank is left out and counted in `skipped`."""
        regular_size(self.path)  # no pipe: rows are read several times
        for row in self.rows():
            if str(row[self.parts[0]]).strip():
                yield row
            elif skipped is not None:
                skipped.empty += 1

    def rows(self) -> Iterator[Row]:
        """The rows as they stand in the file, blank ones too."""
        return self._objects() if self.jsonl else self._cells()

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[str, str]]:
        """Where each line stands, for errors, and its text."""
        for line in lines_of(stream, self.path, ABSURD):
            where = f"{self.path}, line {line.number}"
            if not line.whole:
                raise ValueError(f"{where} has more than {ABSURD:,} bytes: break it up, or shorten it")
            yield where, line.text

    def _objects(self) -> Iterator[Row]:
        places = {name: str(self.columns.get(name, name)) for name in (*self.parts, *self.optional)}
        with open_bytes(self.path) as stream:
            for where, text in self._lines(stream):
                if text.strip():
                    held = from_json(text, where, "; each line holds one object")
                    row = {name: inside(held, place) for name, place in places.items()}
                    yield self._complete({name: x for name, x in row.items() if x is not None}, where, held)

    def _cells(self) -> Iterator[Row]:
        with open_bytes(self.path) as stream:
            lines = (text for _, text in self._lines(stream))
            ended = (f"{line}\n" for line in lines)  # inside of quotes, an end of a line is a part of the text
            cells = csv.reader(ended, strict=True) if self.csv else (line.split("\t") for line in lines)
            places: dict[str, int] | None = None
            try:
                for number, each in enumerate(cells, start=1):
                    where = f"{self.path}, row {number}"
                    if places is None:
                        places, header = self._places([cell.strip() for cell in each], where)
                        if header:
                            continue
                    row = {name: each[place] for name, place in places.items() if place < len(each)}
                    yield self._complete(row, where, each) if any(map(str.strip, each)) else dict.fromkeys(places, "")
            except csv.Error as error:
                raise ValueError(f"{self.path} is no csv ({error}): mend it, or name it as tsv") from None

    def _places(self, first: list[str], where: str) -> tuple[dict[str, int], bool]:
        """Where each part stands, and whether the first line says so."""
        if not self.columns and set(self.parts) <= set(first):
            return {name: first.index(name) for name in (*self.parts, *self.optional) if name in first}, True
        if not self.columns:
            if {*self.parts} & {cell.lower() for cell in first}:  # learnt as a row, headings would be one more label
                name = next(name for name in self.parts if name not in first)
                raise ValueError(
                    f"{where} has {', '.join(first)[:80]}: if these are the names of columns, say which one has "
                    f"the {name} by `columns`; if not, give numbers, from 0"
                )
            return {name: i for i, name in enumerate(self.parts)}, False
        names = [place for place in self.columns.values() if isinstance(place, str)]
        for name in names:
            if name not in first:
                raise ValueError(f"{where} has no column {name!r}: {hint(name, first)}")
        return {p: first.index(at) if isinstance(at, str) else at for p, at in self.columns.items()}, bool(names)

    def _complete(self, row: Row, where: str, held: Any) -> Row:
        for name in self.parts:
            if name not in row:
                columns = f"{len(held)} columns" if isinstance(held, list) else repr(held)[:40]
                found = list(held) if isinstance(held, Mapping) else columns
                raise ValueError(f"{where} has no {name!r}, only {found}: say where it stands by `columns`")
        for name, value in row.items():
            check_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), name, where)
        return row


def inside(held: Any, place: str) -> Any:
    """What lies at a place such as answers.text."""
    if isinstance(held, Mapping) and place in held:
        return held[place]
    return reduce(lambda inner, key: inner.get(key) if isinstance(inner, Mapping) else None, place.split("."), held)
