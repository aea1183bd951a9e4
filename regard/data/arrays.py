"""Examples on disk, read row by row: a corpus may be larger than memory.

A folder holds, for N rows, two files a column: `source.ids` (the values of all rows end to end) and `source.offsets`
(N + 1 numbers: row i is ids[offsets[i] : offsets[i + 1]]), and `arrays.json`, which says how to read them and how long
they are. All numbers are little-endian.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.files import common_directory

FORMAT = 1
ABOUT = "arrays.json"
KINDS = ("ids", "offsets")
CHUNK, LARGE = 2**12, 2**24  # rows encoded at a time, and values of which a chunk has no more than one row's
Example = tuple[NDArray[Any], ...]  # a row: the values of each column


@dataclass(frozen=True)
class Column:
    """What a row has of one kind: values along a first dimension, as many as there are.

    >>> Column.ids(37_000).dtype
    'uint16'
    """

    dtype: str  # of a value, as numpy names it
    ragged: bool = True  # rows differ in length: it decides which of them go together
    below: int | None = None  # values are whole numbers from 0 on, and below this
    shape: tuple[int, ...] | None = None  # of a row, if it is more than a list: what it is given as, and given back as

    @classmethod
    def pixels(cls, *shape: int) -> "Column":
        """A picture of this size, as `uint8` (H, W, C), or a video (T, H, W, C)."""
        return cls("uint8", ragged=False, shape=shape)

    @classmethod
    def ids(cls, vocabulary: int) -> "Column":
        """The tokens of a text."""
        return cls("uint16" if vocabulary <= 2**16 else "uint32", below=vocabulary)

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of its values on disk."""
        return np.dtype(self.dtype).newbyteorder("<")


@dataclass(frozen=True)
class Table:
    """N rows in a folder, each with the same columns; nothing of them stays in memory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Table.build(f"{folder}/train", [([5, 6], [7]), ([8], [9, 9])], pairs_of(10))
    ...     len(table), table.lengths([0, 1]).tolist(), table.rows([1])
    (2, [[2, 1], [1, 2]], [(array([8], dtype=uint16), array([9, 9], dtype=uint16))])
    """

    directory: Path
    count: int
    columns: Mapping[str, Column]
    marks: ClassVar[int] = 1  # a batch adds one to each text

    @classmethod
    def build(
        cls, directory: str | Path, rows: Iterable[Sequence[Sequence[Any]]], columns: Mapping[str, Column]
    ) -> "Table":
        """Write rows, the values of each column in turn, into a new folder, all of them or nothing.

        A table that is already there is opened, not rebuilt: name it after what it holds. So processes that build the
        same one at once all end with the first one's.
        """
        directory = Path(directory)
        if directory.exists():
            if (directory / ABOUT).exists():
                return cls.open(directory)
            raise ValueError(f"{directory} holds no {ABOUT}: choose another place, or delete it if you do not need it")
        with common_directory(directory) as made:
            _write(made, rows, columns)
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | Path) -> "Table":
        """The table in a folder that `build` wrote."""
        directory = Path(directory)
        remedy = f"delete the folder {directory} and run again to rebuild it"
        try:
            about = json.loads((directory / ABOUT).read_bytes())
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}, not {FORMAT}")
            listed = about.get("columns") or {side: {"dtype": about["dtype"]} for side in ("source", "target")}
            columns = {name: Column(**_shaped(column)) for name, column in listed.items()}
            table = cls(directory, int(about["count"]), columns)
            sizes = {name: about["bytes"][name] for name in files_of(columns)}
            assert all(column.stored for column in columns.values())
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"cannot use {directory / ABOUT} ({error!r}): {remedy}") from None
        for name, size in sizes.items():
            path = directory / name
            there = f"{path.stat().st_size} bytes" if path.exists() else "missing"
            if there != f"{size} bytes":
                raise ValueError(f"{path} is {there}, not {size} bytes: {remedy}")
        return table

    def __len__(self) -> int:
        return self.count

    def lengths(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """How many values each ragged column of the wanted rows has: (n, ragged columns)."""
        ragged = [name for name, column in self.columns.items() if column.ragged]
        if not ragged:  # rows of one size, each of which counts as one
            return np.ones((len(indices), 1), np.int64)
        return np.concatenate([np.diff(self._bounds(name, indices)) for name in ragged], axis=1)

    def rows(self, indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """The wanted rows, each an `Example`, in the order of `indices`."""
        return list(zip(*(self.column(name, indices) for name in self.columns), strict=True))

    def column(self, name: str, indices: Sequence[int] | NDArray[np.int64]) -> list[NDArray[Any]]:
        """One column of the wanted rows."""
        return self.values(name, self._bounds(name, indices))

    def _bounds(self, name: str, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, 2): where each row begins and ends. The map lives in this call only, so its pages do not pile up."""
        rows = np.asarray(indices, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.count:
            raise IndexError(f"rows are numbered 0..{self.count - 1}, got {rows.min()}..{rows.max()}")
        offsets = np.memmap(self.directory / f"{name}.offsets", dtype="<u8", mode="r")
        return np.stack([offsets[rows], offsets[rows + 1]], axis=1).astype(np.int64)

    def values(self, name: str, bounds: NDArray[np.int64]) -> list[NDArray[Any]]:
        """What stands between these bounds of a column, which need not be those of rows."""
        # Reads, not a map: every page touched in a map brings its neighbours, 64 KB for a row of 60 bytes.
        dtype, rows = self.columns[name].stored, []
        with open(self.directory / f"{name}.ids", "rb", buffering=0) as file:
            for start, stop in (bounds * dtype.itemsize).tolist():
                file.seek(start)
                rows.append(np.frombuffer(file.read(stop - start), dtype))
        shape = self.columns[name].shape
        return rows if shape is None else [row.reshape(shape) for row in rows]


def pairs_of(vocabulary: int) -> dict[str, Column]:
    """The columns of a text and its translation."""
    return {"source": Column.ids(vocabulary), "target": Column.ids(vocabulary)}


def files_of(columns: Iterable[str]) -> list[str]:
    """The files of some columns."""
    return [f"{name}.{kind}" for name in columns for kind in KINDS]


def _shaped(listed: dict[str, Any]) -> dict[str, Any]:
    """A column as JSON has it."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in listed.items()}


def _chunks(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Some rows at a time: CHUNK of them, or fewer where they are large."""
    some, size = list[Sequence[Any]](), 0
    for row in rows:
        some.append(row)
        size += sum(part.size if isinstance(part, np.ndarray) else len(part) for part in row)
        if len(some) == CHUNK or size >= LARGE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _flat(parts: Sequence[Any], column: Column) -> NDArray[Any]:
    """The values of some rows, end to end."""
    if column.shape is not None:
        return np.concatenate([np.asarray(part, column.stored).reshape(-1) for part in parts])
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return np.fromiter(chain.from_iterable(parts), np.int64 if column.below else column.stored, sum(map(len, parts)))


def _write(folder: Path, rows: Iterable[Sequence[Sequence[Any]]], columns: Mapping[str, Column]) -> None:
    count, ends = 0, dict.fromkeys(columns, 0)
    names = files_of(columns)
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in names}
        for name in columns:
            files[f"{name}.offsets"].write(bytes(8))
        for chunk in _chunks(rows):
            for (name, column), parts in zip(columns.items(), zip(*chunk, strict=True), strict=True):
                values = _flat(parts, column)
                stops = np.cumsum([len(part) if column.shape is None else math.prod(column.shape) for part in parts])
                if column.below is not None and len(wrong := np.flatnonzero((values < 0) | (values >= column.below))):
                    row = count + int(np.searchsorted(stops, wrong[0], side="right"))
                    raise ValueError(
                        f"row {row}: {name} id {values[wrong[0]]} is outside the vocabulary of {column.below}; "
                        "encode the text with the tokenizer of this vocabulary"
                    )
                files[f"{name}.ids"].write(values.astype(column.stored).tobytes())
                files[f"{name}.offsets"].write((ends[name] + stops).astype("<u8").tobytes())
                ends[name] += int(stops[-1])
            count += len(chunk)
    sizes = {name: (folder / name).stat().st_size for name in names}
    listed = {name: {k: v for k, v in asdict(column).items() if k != "shape" or v} for name, column in columns.items()}
    about = {"format": FORMAT, "count": count, "columns": listed, "bytes": sizes}
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
