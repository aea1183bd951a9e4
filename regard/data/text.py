"""Raw text in, a line at a time and in constant memory: two parallel files, TSV or JSON lines, plain or gzipped.

A line ends at a line feed and nowhere else. Text mode also ends one at a lone carriage return, and splitlines at
U+2028 and six more, which stand inside sentences of the web: two parallel files would drift apart there.
"""

import codecs
import difflib
import gzip
import hashlib
import itertools
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import IO, Any, NamedTuple, TypeVar, cast

from regard.files import digest, regular_size

LONGEST = 1_000_000  # characters of a line that are read
ABSURD = 2**20  # bytes: a longer line of a TSV or JSONL file is skipped without holding it
Item = TypeVar("Item")
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # what JSON can say in plain ASCII, and UTF-8 or we cannot


@dataclass(frozen=True)
class PairFiles:
    """Where the pairs of a split are: source and target files, or one tsv, or one jsonl; `.gz` each if you like.

    >>> PairFiles(tsv="train.tsv.gz", columns=(2, 3)).tsv
    'train.tsv.gz'
    """

    source: str | None = None  # two files, line by line
    target: str | None = None
    tsv: str | None = None  # one file, tab-separated
    jsonl: str | None = None  # one file, a JSON object a line
    columns: tuple[int, int] = (0, 1)  # of the tsv, from 0: source, target
    keys: tuple[str, str] = ("source", "target")  # of the jsonl

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ValueError(f"source and target come together, got source={self.source!r}, target={self.target!r}")
        given = [way for way in ("source", "tsv", "jsonl") if getattr(self, way)]
        if len(given) != 1 or self.target == "":
            raise ValueError(f"pairs come from source and target, or tsv, or jsonl: name one, got {given or 'none'}")
        if min(self.columns) < 0 or self.columns[0] == self.columns[1]:
            raise ValueError(f"columns are two different columns of the tsv, counted from 0, got {self.columns}")
        if self.keys[0] == self.keys[1]:
            raise ValueError(f"keys are two different keys of the jsonl's objects, got {self.keys}")

    def read(self, skipped: "Skipped | None" = None, *, max_characters: int = 5_000) -> Iterator[tuple[str, str]]:
        """The pairs as (source, target), in order.

        A pair with a blank side, or one over `max_characters`, is left out and counted in `skipped`. Text is as it
        stands in the file, without the line's end. Anything malformed is a ValueError that names file and line.
        """
        return (pair for _, pair in self.numbered(skipped, max_characters=max_characters))

    def numbered(
        self, skipped: "Skipped | None" = None, *, max_characters: int = 5_000
    ) -> Iterator[tuple[int, tuple[str, str]]]:
        """The same, each with the number of its line."""
        counts = Skipped() if skipped is None else skipped
        limit = max(ABSURD, 32 * max_characters)  # two sides, and JSON spends up to 12 bytes on a character
        for line, pair in enumerate(_all_pairs(self, limit), start=1):
            if pair is None or max(map(len, pair)) > max_characters:
                counts.long += 1
            elif not all(map(str.strip, pair)):
                counts.empty += 1
            else:
                yield line, pair

    def fingerprint(self) -> str:
        """A sha256 of the files' bytes and how they are read: the same pairs have the same, wherever they lie."""
        how: list[Any] = [self.columns] if self.tsv else [self.keys] if self.jsonl else []
        for way in ("source", "target", "tsv", "jsonl"):
            if path := getattr(self, way):
                regular_size(path)
                how += [way, digest(path)]
        return hashlib.sha256(json.dumps(how).encode()).hexdigest()


@dataclass
class Skipped:
    """What reading left out, counted."""

    empty: int = 0  # pairs with a blank side
    long: int = 0  # pairs with a side over max_characters
    cut: int = 0  # lines over max_characters, of which only the beginning was read
    notes: Counter[str] = field(default_factory=Counter)  # what else there is to say, and of how many

    def report(self) -> str:
        """One line for a person, or nothing if nothing was left out.

        >>> Skipped(empty=2, long=1).report()
        'skipped 3 pairs: 2 with an empty side, 1 too long'
        """
        parts = []
        if self.empty or self.long:
            reasons = {"with an empty side": self.empty, "too long": self.long}
            each = ", ".join(f"{n:,} {reason}" for reason, n in reasons.items() if n)
            parts.append(f"skipped {count_of(self.empty + self.long, 'pair')}: {each}")
        if self.cut:
            parts.append(f"cut {count_of(self.cut, 'line')} that went on too long")
        parts += [f"{n:,} {what}" for what, n in self.notes.items()]
        return "; ".join(parts)


def read_lines(
    path: str | PathLike[str],
    *,
    max_characters: int = LONGEST,
    cut: bool = True,
    skipped: Skipped | None = None,
    errors: str = "strict",
    may_be_empty: bool = False,
) -> Iterator[str]:
    """The lines of a text file, a `.gz`, or standard input ("-"), empty ones too: one comes out for each line.

    A line over `max_characters` is cut there and counted in `skipped`, or an error unless it may be `cut`. Bytes that
    are no text are an error, or each becomes � if `errors` is "replace"; so is a file without any line, unless it
    `may_be_empty`.
    """
    name = named(path)
    limit = 4 * max_characters + 8  # a character takes up to 4 bytes; the rest: a byte order mark, the line's end
    with nullcontext(sys.stdin.buffer) if fspath(path) == "-" else open_bytes(fspath(path)) as stream:
        for line in lines_of(stream, name, limit, errors, may_be_empty):
            if len(line.text) > max_characters:
                if not cut:
                    where = f"{name}, line {line.number}"
                    raise ValueError(f"{where} has more than {max_characters:,} characters: break it up, or shorten it")
                if skipped is not None:
                    skipped.cut += 1
            yield line.text[:max_characters]


def read_parallel(source: str | PathLike[str], target: str | PathLike[str], **how: Any) -> Iterator[tuple[str, str]]:
    """The lines of two files side by side, blank ones too; `how` is as for `read_lines`."""
    return _abreast(read_lines(source, **how), read_lines(target, **how), source, target)


def named(path: str | PathLike[str]) -> str:
    """What a person calls a file; "-" is standard input."""
    return "standard input" if fspath(path) == "-" else fspath(path)


def open_bytes(path: str) -> IO[bytes]:
    """A file's bytes, unpacked if its name ends in `.gz`."""
    return cast(IO[bytes], gzip.open(path)) if path.endswith(".gz") else open(path, "rb")


def decoded(data: bytes, place: str) -> str:
    """The text of a small file; `place`, in an error, stands before the number of a line."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ValueError(f"{place}{line}: this is not UTF-8 text: save it as UTF-8") from None


class Line(NamedTuple):
    number: int
    text: str
    whole: bool  # or only the beginning of one over the limit


def lines_of(
    stream: IO[bytes], name: str, limit: int, errors: str = "strict", may_be_empty: bool = False
) -> Iterator[Line]:
    """The lines of a stream of UTF-8; of a line over `limit` bytes only the beginning is held."""
    try:
        for number in itertools.count(1):
            raw = rest = stream.readline(limit)
            if not raw:
                break
            while len(rest) == limit and not rest.endswith(b"\n"):
                rest = stream.readline(limit)
            whole = rest is raw
            try:
                text, _ = codecs.utf_8_decode(raw, errors, whole)  # the limit may have split the last character
            except UnicodeDecodeError as error:
                where = f"{name}, line {number}: byte {error.start + 1} of the line (0x{raw[error.start]:02x})"
                raise ValueError(f"{where} is not UTF-8; save the file as UTF-8 text") from None
            if "\0" in text and errors == "replace":
                text = text.replace("\0", "\ufffd")
            elif "\0" in text:
                raise ValueError(f"{name}, line {number} holds a NUL byte; save the file as UTF-8 text without it")
            if number == 1:
                text = text.removeprefix("\ufeff")  # the byte order mark of some editors
            yield Line(number, text.removesuffix("\n").removesuffix("\r"), whole)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"{name} is no whole gzip file ({reason}); compress it again, or drop .gz") from None
    if number == 1 and not may_be_empty:
        raise ValueError(f"{name} is empty; it needs at least one line")


def _all_pairs(files: PairFiles, limit: int) -> Iterator[tuple[str, str] | None]:
    """Every pair, blank ones too; None stands for one that is absurdly long."""
    for each in filter(None, (files.source, files.target, files.tsv, files.jsonl)):
        regular_size(each)  # no pipe: pairs are read several times
    if files.source and files.target:
        yield from _parallel(files.source, files.target, limit)
        return
    path = files.tsv or files.jsonl
    assert path is not None
    with open_bytes(path) as stream:
        for line in lines_of(stream, path, limit):
            where = f"{path}, line {line.number}"
            if not line.whole:
                yield None
            elif not line.text.strip():
                yield "", ""
            elif files.tsv:
                yield _from_columns(line.text, files.columns, where)
            else:
                source, target = json_values(line.text, files.keys, where)
                yield source, target


def _parallel(source: str, target: str, limit: int) -> Iterator[tuple[str, str] | None]:
    with open_bytes(source) as a, open_bytes(target) as b:
        for x, y in _abreast(lines_of(a, source, limit), lines_of(b, target, limit), source, target):
            yield (x.text, y.text) if x.whole and y.whole else None


def _abreast(left: Iterator[Item], right: Iterator[Item], *names: str | PathLike[str]) -> Iterator[tuple[Item, Item]]:
    """The lines of two files of these names, in pairs."""
    for number, (x, y) in enumerate(itertools.zip_longest(left, right)):
        if x is None or y is None:  # one file has ended: how long is the other?
            longer = number + 1 + sum(1 for _ in itertools.chain(left, right))
            n, m = (longer, number) if y is None else (number, longer)
            raise ValueError(
                f"{names[0]} has {count_of(n, 'line')} and {names[1]} has {m:,}: line by line they are translations, "
                "so both need as many"
            )
        yield x, y


def _from_columns(text: str, columns: tuple[int, int], where: str) -> tuple[str, str]:
    fields = text.split("\t")
    if len(fields) <= max(columns):
        raise ValueError(
            f"{where}: found {count_of(len(fields), 'column')} between tabs, and columns {columns[0]} and {columns[1]} "
            f"(from 0) need {max(columns) + 1}; correct the line or `columns`"
        )
    return fields[columns[0]], fields[columns[1]]


def json_values(text: str, keys: Sequence[str], where: str) -> tuple[str, ...]:
    """The texts under some keys of a JSON object; `where` it stands is for errors."""
    row = from_json(text, where, "; each line holds one object")
    if not isinstance(row, dict):
        wanted = ", ".join(f'"{key}": ...' for key in keys)
        raise ValueError(f"{where} is no JSON object but {text[:40]}; write {{{wanted}}}")
    for key in keys:
        if key not in row:
            nearest = difflib.get_close_matches(key, row, n=1, cutoff=0.0)
            hint = f"; the nearest is {nearest[0]!r}. Set `keys` to the object's keys" if nearest else ": it is empty"
            raise ValueError(f"{where} lacks the key {key!r}{hint}")
        if not isinstance(row[key], str):
            raise ValueError(f"{where}: {key!r} is not text but {json.dumps(row[key])[:40]}; put it in quotes")
        check_text(row[key], key, where)
    return tuple(row[key] for key in keys)


def from_json(text: str, where: str, remedy: str) -> Any:
    """What a line of JSON says."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise ValueError(f"{where} is no JSON ({reason}){remedy}") from None


def _no_constant(name: str) -> None:
    raise json.JSONDecodeError(f"it has no {name}", name, 0)


def check_text(text: str, key: str, where: str) -> None:
    """Refuse what JSON can say, and no file in UTF-8."""
    if NO_TEXT.search(text):
        raise ValueError(f"{where}: {key!r} holds a NUL or half a surrogate pair, which is no text; remove it")


def count_of(n: int, noun: str) -> str:
    """How many there are.

    >>> count_of(1, "line"), count_of(1200, "pair")
    ('1 line', '1,200 pairs')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
