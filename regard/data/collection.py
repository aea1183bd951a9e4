"""Documents to be found: read from files, and kept in a folder with a vector each.

The folder has `vectors.f32` and `keys.b16`: a vector, and the digest of its text, in a row; both only grow. Vectors are
on the disk before their keys: what an interruption leaves without a key is known, and cut off. The documents are in
`documents-*.jsonl`; `documents-*.npy` says where each begins, and the row of its vector. `index.json` says which these
are, and whose the vectors are.
"""

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.checks import at_least, one_of
from regard.data import passages
from regard.data.documents import DOCUMENTS, TextFiles
from regard.data.rows import WAYS, RowFiles
from regard.data.text import Skipped, read_lines
from regard.files import LARGEST, alone_in, discard, read_whole, regular_size, sync, vacant, write_whole

FORMAT = 1
ABOUT, VECTORS, KEYS, NEW = "index.json", "vectors.f32", "keys.b16", "documents.new"
KEY = 16  # bytes of a digest
BLOCK = 2**13  # vectors that are compared at a time
Vectors = NDArray[np.float32]
Embed = Callable[[Iterator[str]], Iterable[Vectors]]  # texts -> the vectors of each, some at a time
Show = Callable[[str, int, int], None]
Kept = Callable[[str, Path, Iterator[Any], Skipped], Iterator[Any]]  # the documents of a file, in place of its own


class Document(NamedTuple):
    """A text, and what it is known by."""

    id: str
    text: str


class DocumentRows(RowFiles):
    """Documents in a table."""

    parts, optional = ("text",), ("id", "_id", "title")


@dataclass(frozen=True)
class Documents:
    """Where documents are: a text file, or a folder of them; a tsv, csv or jsonl; a folder as BEIR has them."""

    path: Path
    unit: str = "line"  # of plain text: what a document is
    columns: tuple[str, ...] = ()  # of a table: PART=PLACE
    characters: int = passages.CHARACTERS  # of a passage, at most

    def __post_init__(self) -> None:
        one_of((*DOCUMENTS, "passage"), unit=self.unit)
        at_least(20, characters=self.characters)

    def read(self, skipped: Skipped | None = None, seen: Kept | None = None) -> Iterator[Document]:
        """Each, in order; a blank one is left out and counted in `skipped`. Passages of files that are as they were
        come from where they were `seen`."""
        counts, found = Skipped() if skipped is None else skipped, False
        if not self.path.exists():
            raise ValueError(f"there is no {self.path}: name a file, or a folder, of documents")
        for id, text in self._all(counts, seen):
            if text.strip():
                found = True
                yield Document(id, text)
            else:
                counts.notes["blank documents were left out"] += 1
        if not found:
            why = f" ({note})" if (note := counts.report()) else ""
            raise ValueError(f"{self.path} has no document with text in it{why}: name another place")

    def _all(self, skipped: Skipped, seen: Kept | None) -> Iterator[tuple[str, str]]:
        corpus = (self.path / name for name in ("corpus.jsonl", "corpus.jsonl.gz"))
        path = next((each for each in corpus if each.is_file()), self.path)
        if path.name.removesuffix(".gz").endswith(tuple(f".{way}" for way in WAYS)) and not path.is_dir():
            regular_size(path)
            for number, row in enumerate(DocumentRows.at(path, self.columns).rows(), start=1):
                id = row.get("id") or row.get("_id") or number
                yield str(id), f"{row.get('title') or ''} {row['text']}".strip()
            return
        if self.columns:
            raise ValueError(f"columns are those of a table: {path} is plain text")
        if self.unit == "passage":
            for name, file in passages.files_in(path, skipped):
                own = passages.passages(name, file, self.characters, skipped)
                yield from own if seen is None else seen(name, file, own, skipped)
            return
        for file in map(Path, TextFiles(str(path)).paths()):
            regular_size(file)
            name = passages.known(file, path if path.is_dir() else path.parent)
            lines = enumerate(read_lines(file, cut=False, may_be_empty=True), start=1)
            if self.unit == "file":
                yield name, "\n".join(line for _, line in lines)
            elif self.unit == "line":
                yield from ((f"{name}:{number}", line) for number, line in lines)
            else:
                for filled, some in groupby(lines, key=lambda each: bool(each[1].strip())):
                    if filled:
                        (number, first), *rest = some
                        yield f"{name}:{number}", "\n".join([first, *(line for _, line in rest)])


class Store:
    """Documents and their vectors in a folder; of these nothing stays in memory but where they are."""

    def __init__(self, path: str | os.PathLike[str], model: str, name: str, width: int) -> None:
        """`model`: the digest of what the vectors are made by; `name`: what a person calls it."""
        self.path, self.about = Path(path), {"format": FORMAT, "model": model, "name": name, "width": width}
        self.width, self.documents = width, ""
        self._mapped: Vectors = np.zeros((0, width), np.float32)
        if (self.path / ABOUT).exists():
            self._check()
        elif self.path.exists() and not vacant(self.path, besides=NEW):
            raise ValueError(f"{self.path} is no index, and not empty: choose another place")
        self._open()

    def _check(self) -> None:
        """Whether what is there can be gone on with."""
        try:
            about = json.loads(read_whole(self.path / ABOUT, LARGEST))
            own = {key: about[key] for key in self.about}
            self.documents = str(about["documents"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path / ABOUT} is damaged ({error!r}): remove {self.path}") from None
        if own["format"] != FORMAT:
            raise ValueError(f"{self.path} has the format {own['format']}, not {FORMAT}: remove it")
        if own["model"] != self.about["model"]:
            raise ValueError(
                f"{self.path} has vectors of another model, or by other settings: {own['name']} "
                f"({own['model']!s:.12}), not {self.about['name']} ({self.about['model']!s:.12}): choose another place"
            )

    def _open(self) -> None:
        self._places = np.zeros((0, 2), np.int64)  # of each document: where it begins, and the row of its vector
        if self.documents:
            try:
                self._places = np.asarray(np.load(self._file("npy"), mmap_mode="r", allow_pickle=False))
                rows = (self.path / VECTORS).stat().st_size // (4 * self.width)
                if len(self._places) and int(self._places[:, 1].max()) >= rows:
                    raise ValueError("it has too few vectors")
                size = self._file("jsonl").stat().st_size
                if len(self._places) and int(self._places[-1, 0]) >= size:
                    raise ValueError("it has too few documents")
            except (OSError, ValueError) as error:
                raise ValueError(f"{self.path} is damaged ({error}): remove it, and build it again") from None

    def _file(self, kind: str) -> Path:
        return self.path / f"documents-{self.documents}.{kind}"

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Document]:
        if self.documents:
            with open(self._file("jsonl"), "rb") as file:
                yield from (_document(line, file) for line in file)

    def some(self, numbers: Iterable[int]) -> list[Document]:
        """Documents by their numbers."""
        with open(self._file("jsonl"), "rb") as file:
            return [_read(file, begin) for begin in self._places[list(numbers), 0].tolist()]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Of each document, the row of its vector."""
        return self._places[:, 1]

    def vectors(self) -> Vectors:
        """All that there are, mapped; some may be of documents that have gone."""
        rows = (self.path / VECTORS).stat().st_size // (4 * self.width)
        if len(self._mapped) != rows:  # once: the pages of a new map would have to be found again, which takes as long
            mapped = np.memmap(self.path / VECTORS, "<f4", mode="r", shape=(rows, self.width))
            self._mapped = np.asarray(mapped)  # of which a slice takes no microseconds
        return self._mapped

    def blocks(self) -> Iterator[Vectors]:
        """The vectors of the documents in their order, some at a time."""
        if len(self):
            vectors = self.vectors()
            for first in range(0, len(self), BLOCK):
                rows = self._places[first : first + BLOCK, 1]
                row = int(rows[0])
                in_order = np.array_equal(rows, np.arange(row, row + len(rows)))
                yield vectors[row : row + len(rows)] if in_order else vectors[rows]

    def renew(
        self,
        documents: Iterable[Document],
        embed: Embed,
        progress: Show = lambda *_: None,
        fits: Callable[[Document], bool] = lambda _: True,
    ) -> int:
        """Have these documents, and no others; -> how many texts are new, and were embedded. One that is new, and does
        not fit, is left out."""
        with alone_in(self.path):
            known, new = self._known(), list[bytes]()
            begins, rows, fresh, seen = array("q"), array("q"), array("q"), sha256()
            try:
                with open(self.path / NEW, "wb") as file:
                    for document in documents:
                        line = f"{json.dumps(document, ensure_ascii=False)}\n".encode()
                        key = blake2b(document.text.encode(), digest_size=KEY).digest()
                        if key not in known and not fits(document):
                            continue
                        if key not in known:
                            known[key] = len(known)
                            new.append(key)
                            fresh.append(file.tell())
                        begins.append(file.tell())
                        rows.append(known[key])
                        seen.update(line)
                        file.write(line)
                if not len(rows):
                    raise ValueError("there are no documents: give some")
                self._note()
                with open(self.path / NEW, "rb") as file:
                    self._grow(embed(_read(file, begin).text for begin in fresh), new, progress)
                if (name := seen.hexdigest()[:16]) != self.documents:
                    self._keep(name, np.stack([np.array(begins), np.array(rows)], axis=1))
            finally:
                discard(self.path / NEW)
            self._open()
        return len(new)

    def _known(self) -> dict[bytes, int]:
        """The row of each text; what is not whole is cut off."""
        sizes = {self.path / VECTORS: 4 * self.width, self.path / KEYS: KEY}
        if not all(path.exists() for path in sizes):
            return {}
        count = min(path.stat().st_size // size for path, size in sizes.items())
        for path, size in sizes.items():
            os.truncate(path, count * size)
        keys = (self.path / KEYS).read_bytes()
        return {keys[KEY * row : KEY * row + KEY]: row for row in range(count)}

    def _grow(self, vectors: Iterable[Vectors], keys: Sequence[bytes], progress: Show) -> None:
        done = 0
        with open(self.path / VECTORS, "ab") as numbers, open(self.path / KEYS, "ab") as digests:
            for some in vectors:
                for file, content in (
                    (numbers, some.astype("<f4").tobytes()),
                    (digests, b"".join(keys[done : done + len(some)])),
                ):
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                done += len(some)
                progress("documents", done, len(keys))

    def _keep(self, name: str, places: NDArray[np.int64]) -> None:
        """The documents that were just written are those of the index, from one moment to the next."""
        before, self.documents = self.documents, name
        try:
            with open(self._file("npy"), "wb") as file:
                np.save(file, places)
            os.replace(self.path / NEW, self._file("jsonl"))
            for kind in ("npy", "jsonl"):
                sync(self._file(kind))
            self._note()
        except BaseException:  # the disk is full: it has the documents that it had
            discard(self._file("npy"))
            discard(self._file("jsonl"))
            self.documents = before
            raise
        for left in self.path.glob(f"documents-{before}.*" if before else "documents-none"):
            discard(left)

    def _note(self) -> None:
        write_whole(self.path / ABOUT, json.dumps({**self.about, "documents": self.documents}) + "\n")


def _read(file: IO[bytes], begin: int) -> Document:
    file.seek(begin)
    return _document(file.readline(), file)


def _document(line: bytes, file: IO[bytes]) -> Document:
    try:
        return Document(*json.loads(line))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file.name} is damaged ({error}): remove the index, and build it again") from None
