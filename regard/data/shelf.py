"""An index as a person keeps it: a folder that says what it is of, by which model, and which files have been read."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard.checks import one_of
from regard.data.collection import ABOUT, Documents, Store
from regard.data.near import KINDS
from regard.data.passages import CHARACTERS, FAILED
from regard.data.text import Skipped
from regard.files import LARGEST, read_whole, write_whole

SETTINGS, FILES = "settings.json", "files.json"
PICTURE = "picture"  # the unit of an index of pictures


@dataclass(frozen=True)
class Shelf:
    """How an index is made."""

    model: str  # the directory of what embeds
    documents: str  # where they are
    unit: str = "passage"
    columns: tuple[str, ...] = ()
    characters: int = CHARACTERS
    near: str = "exact"
    dimensions: int | None = None  # of a vector
    long: str = "windows"  # how a text is embedded that is longer than the model reads

    def __post_init__(self) -> None:
        one_of(KINDS, near=self.near)

    @classmethod
    def at(cls, folder: Path) -> "Shelf":
        """That of an index."""
        path = folder / SETTINGS
        if not path.is_file():
            raise ValueError(f"{folder} is not finished, or only keeps vectors: build it by `regard index`")
        try:
            known = json.loads(read_whole(path, LARGEST))
            return cls(**{**known, "columns": tuple(known["columns"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged ({error!r}): remove it, and build the index again with --model"
            ) from None

    def save(self, folder: Path) -> None:
        """Have an index say so."""
        write_whole(folder / SETTINGS, json.dumps(asdict(self)) + "\n")

    def source(self) -> Documents:
        """What is read."""
        return Documents(Path(self.documents), self.unit, self.columns, self.characters)


def is_index(path: Path) -> bool:
    """Whether a directory is one, finished or not, and no model."""
    return (path / ABOUT).is_file()


class SeenFiles:
    """Which files the documents of an index come from: of one that is as it was, they need not be read again.

    `files.json` says of each file its size and time, and which documents are its: those of one state of the index.
    """

    def __init__(self, store: Store, how: Any) -> None:
        """`how` files are read: by another way, they are read again."""
        self.store, self.how, self.total, self.kept = store, how, 0, 0
        self._before, self._now = dict[str, list[int]](), dict[str, list[int]]()
        with suppress(OSError, ValueError, KeyError, TypeError):  # without it, all are read
            known = json.loads(read_whole(store.path / FILES))
            if known["of"] == store.documents and known["how"] == how:
                self._before = dict(known["files"])

    def __call__(self, name: str, file: Path, own: Iterator[Any], skipped: Skipped) -> Iterator[Any]:
        """The documents of a file: those that are there if it has not changed, else its `own`."""
        stamp, begin, failed = list[int](), self.total, skipped.notes[FAILED]
        with suppress(OSError):
            about = file.stat()
            stamp = [about.st_size, about.st_mtime_ns]
        *before, first, count = self._before.get(name, [0, 0])
        self.kept += (same := bool(stamp) and stamp == before)  # one that has gone since is asked for, and named
        for document in self.store.some(range(first, first + count)) if same else own:
            self.total += 1
            yield document
        if skipped.notes[FAILED] == failed:
            self._now[name] = [*stamp, begin, self.total - begin]

    def save(self) -> None:
        """Remember them, when the index has these documents."""
        known = {"of": self.store.documents, "how": self.how, "files": self._now}
        write_whole(self.store.path / FILES, json.dumps(known) + "\n")
