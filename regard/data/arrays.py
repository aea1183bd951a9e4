"""Token ids on disk, read row by row: a corpus may be larger than memory.

A folder holds, for N pairs, `source.ids` and `target.ids` (all ids end to end), `source.offsets` and
`target.offsets` (N + 1 numbers: row i is ids[offsets[i] : offsets[i + 1]]), and `arrays.json`, which says how to
read them and how long they are. All numbers are little-endian.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.files import sync

FORMAT = 1
ABOUT = "arrays.json"
SIDES = ("source", "target")
FILES = [f"{side}.{kind}" for side in SIDES for kind in ("ids", "offsets")]
DTYPES = {"uint16": "<u2", "uint32": "<u4"}
CHUNK = 2**12  # pairs encoded at a time


@dataclass(frozen=True)
class PairArrays:
    """N pairs of id sequences in a folder; nothing of them stays in memory.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     arrays = PairArrays.build(f"{folder}/train", [([5, 6], [7]), ([8], [9, 9])], vocabulary=10)
    ...     len(arrays), arrays.lengths([0, 1]).tolist(), arrays.pairs([1])
    (2, [[2, 1], [1, 2]], [(array([8], dtype=uint16), array([9, 9], dtype=uint16))])
    """

    directory: Path
    count: int
    dtype: str  # of the ids, one of DTYPES

    @classmethod
    def build(
        cls, directory: str | Path, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], *, vocabulary: int
    ) -> "PairArrays":
        """Write `pairs` of ids below `vocabulary` into a new folder, all of them or nothing.

        A folder of arrays that is already there is opened, not rebuilt: name it after what it holds. So processes
        that build the same one at once all end with the first one's.
        """
        directory = Path(directory)
        if directory.exists():
            if (directory / ABOUT).exists():
                return cls.open(directory)
            raise ValueError(f"{directory} holds no {ABOUT}: choose another place, or delete it if you do not need it")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as hidden:
            made = Path(hidden) / directory.name  # one level down: `hidden` itself is closed to other users
            made.mkdir()
            _write(made, pairs, vocabulary)
            try:
                made.rename(directory)
            except OSError:  # another process was first
                if not (directory / ABOUT).exists():
                    raise
            sync(directory.parent)
        return cls.open(directory)

    @classmethod
    def open(cls, directory: str | Path) -> "PairArrays":
        """The arrays in a folder that `build` wrote."""
        directory = Path(directory)
        remedy = f"delete the folder {directory} and run again to rebuild it"
        try:
            about = json.loads((directory / ABOUT).read_bytes())
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}, not {FORMAT}")
            arrays = cls(directory, int(about["count"]), DTYPES[about["dtype"]])
            sizes = {name: about["bytes"][name] for name in FILES}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"cannot use {directory / ABOUT} ({error!r}): {remedy}") from None
        for name, size in sizes.items():
            path = directory / name
            there = f"{path.stat().st_size} bytes" if path.exists() else "missing"
            if there != f"{size} bytes":
                raise ValueError(f"{path} is {there}, not {size} bytes: {remedy}")
        return arrays

    def __len__(self) -> int:
        return self.count

    def lengths(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """How many ids the source and the target of each wanted pair have: (n, 2)."""
        return np.concatenate([np.diff(self._bounds(side, indices)) for side in SIDES], axis=1)

    def pairs(self, indices: Sequence[int] | NDArray[np.int64]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """The wanted pairs of ids, in the order of `indices`."""
        source, target = (self._rows(side, indices) for side in SIDES)
        return list(zip(source, target, strict=True))

    def _bounds(self, side: str, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, 2): where each row begins and ends. The map lives in this call only, so its pages do not pile up."""
        rows = np.asarray(indices, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.count:
            raise IndexError(f"pairs are numbered 0..{self.count - 1}, got {rows.min()}..{rows.max()}")
        offsets = np.memmap(self.directory / f"{side}.offsets", dtype="<u8", mode="r")
        return np.stack([offsets[rows], offsets[rows + 1]], axis=1).astype(np.int64)

    def _rows(self, side: str, indices: Sequence[int] | NDArray[np.int64]) -> list[NDArray[Any]]:
        # Reads, not a map: every page touched in a map brings its neighbours, 64 KB for a row of 60 bytes.
        dtype, rows = np.dtype(self.dtype), []
        with open(self.directory / f"{side}.ids", "rb", buffering=0) as file:
            for start, stop in (self._bounds(side, indices) * dtype.itemsize).tolist():
                file.seek(start)
                rows.append(np.frombuffer(file.read(stop - start), dtype))
        return rows


def _write(folder: Path, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], vocabulary: int) -> None:
    dtype = "uint16" if vocabulary <= 2**16 else "uint32"
    count, ends, stream = 0, dict.fromkeys(SIDES, 0), iter(pairs)
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in FILES}
        for side in SIDES:
            files[f"{side}.offsets"].write(bytes(8))
        while chunk := list(islice(stream, CHUNK)):
            for side, rows in zip(SIDES, zip(*chunk, strict=True), strict=True):
                stops = np.cumsum([len(row) for row in rows])
                ids = np.fromiter(chain.from_iterable(rows), np.int64, stops[-1])
                wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
                if len(wrong):
                    row = count + int(np.searchsorted(stops, wrong[0], side="right"))
                    raise ValueError(
                        f"pair {row}: {side} id {ids[wrong[0]]} is outside the vocabulary of {vocabulary}; "
                        "encode the text with the tokenizer of this vocabulary"
                    )
                files[f"{side}.ids"].write(ids.astype(DTYPES[dtype]).tobytes())
                files[f"{side}.offsets"].write((ends[side] + stops).astype("<u8").tobytes())
                ends[side] += int(stops[-1])
            count += len(chunk)
    sizes = {name: (folder / name).stat().st_size for name in FILES}
    about = {"format": FORMAT, "count": count, "dtype": dtype, "bytes": sizes}
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    for path in (*(folder / name for name in (*FILES, ABOUT)), folder):
        sync(path)
