"""What a model was thinking when it read some texts, and which token came next: states in a folder, to be found again.

Letters: N states, d their width, Q queries, k neighbours.

`states.f32` has a state a row, and `where.i64` which of all tokens followed it; the tokens of all texts, one after the
other, are `ids.i32`, and `rows.i64` says where each row of a text begins among them, of which part it is, and in which
line. `memory.json` lists the parts, a file each, and whose states they are. All files only grow; a part that was
interrupted is gone on with, and does not count until it is whole.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.checks import at_least
from regard.data.near import Near, Show
from regard.files import LARGEST, alone_in, read_whole, write_whole

FORMAT = 1
ABOUT = "memory.json"
FILES = {"states.f32": ("<f4", 0), "where.i64": ("<i8", 1), "ids.i32": ("<i4", 1), "rows.i64": ("<i8", 3)}  # 0: d
BLOCK, ASKED = 2**13, 2**10  # states and queries that are compared at a time
Ints = NDArray[np.int64]


class Neighbour(NamedTuple):
    """A state that was remembered: which token followed it, after which and before which others, and where."""

    file: str
    line: int  # in which its row begins
    token: int
    before: list[int]  # of the same row
    after: list[int]


class States:
    """States and the tokens that followed, in a folder, mapped: of these nothing stays in memory but their lengths."""

    def __init__(self, folder: Path, width: int, model: str, near: str = "exact") -> None:
        """`model`: the digest of what the states are of. All are compared (exact), or those that faiss proposes."""
        self.folder, self.width = folder, width
        self.about: dict[str, Any] = {"format": FORMAT, "model": model, "width": width, "parts": []}
        if (folder / ABOUT).exists():
            self._check()
        self.near = None if near == "exact" else Near(folder, near, straight=True)
        self._open()

    @classmethod
    def at(cls, folder: Path, width: int, model: str, near: str = "exact") -> "States":
        """What is there, and has something in it."""
        if not (folder / ABOUT).is_file():
            raise ValueError(f"{folder} is not there: build it, with `regard remember`")
        found = cls(folder, width, model, near)
        if not len(found):
            raise ValueError(f"{folder} has nothing in it yet: `regard remember` was not done with it; say it again")
        if found.near is not None and len(found.near) != len(found):
            raise ValueError(f"{folder} has {len(found.near)} of {len(found)} states in its lists: remember it again")
        return found

    def _check(self) -> None:
        """Whether what is there can be gone on with."""
        path = self.folder / ABOUT
        try:
            about = json.loads(read_whole(path, LARGEST))
            own = {key: about[key] for key in self.about}
            self.about["parts"] = [{key: part[key] for key in PART} for part in own["parts"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}): remove {self.folder}") from None
        if own["format"] != FORMAT:
            raise ValueError(f"{self.folder} has the format {own['format']}, not {FORMAT}: remove it")
        if own["width"] != self.width:
            raise ValueError(
                f"{self.folder} has states of {own['width']} numbers, the model has {self.width}: it is another's"
            )
        if own["model"] != self.about["model"]:
            raise ValueError(
                f"{self.folder} has the states of another model ({own['model']!s:.12}, not "
                f"{self.about['model']!s:.12}): choose another place, or remove it"
            )

    def _open(self) -> None:
        for name in FILES:
            self.__dict__[name.partition(".")[0]] = self._mapped(name, sum(_held(name, part) for part in self.parts))
        self._squares: NDArray[np.float32] | None = None

    states: NDArray[np.float32]  # (N, d)
    where: Ints  # (N,)
    ids: NDArray[np.int32]
    rows: Ints  # (rows, 3): where it begins in `ids`, its part, its line

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Those that are whole."""
        return [part for part in self.about["parts"] if part["states"] is not None]

    def __len__(self) -> int:
        return len(self.where)

    def __deepcopy__(self, memo: Any) -> "States":
        return self  # a replica of a model has the same memories

    def _size(self, name: str) -> int:
        kind, numbers = FILES[name]
        return np.dtype(kind).itemsize * (numbers or self.width)

    def _mapped(self, name: str, rows: int) -> NDArray[Any]:
        (kind, numbers), path = FILES[name], self.folder / name
        shape = (rows,) if numbers == 1 else (rows, numbers or self.width)
        if not rows:
            return np.zeros(shape, kind)
        if not path.is_file() or path.stat().st_size < rows * self._size(name):
            raise ValueError(f"{path} is damaged, it is too short: remove {self.folder}, and remember again")
        return np.memmap(path, kind, mode="r", shape=shape)

    def _cut(self, name: str, rows: int) -> int:
        """Leave so many rows of a file, if it has them; -> how many it has."""
        path = self.folder / name
        have = path.stat().st_size // self._size(name) if path.exists() else 0
        if path.exists():
            os.truncate(path, min(have, rows) * self._size(name))
        return min(have, rows)

    def remember(
        self,
        file: str,
        digest: str,
        rows: Sequence[tuple[int, Sequence[int]]],
        lessons: Iterable[tuple[int, Any]],
        progress: Show = lambda *_: None,
    ) -> bool:
        """Have a file: the line and the ids of each of its rows; and lessons, each so many states, and what makes them
        and says which of these ids followed each. -> whether it is new. One that was interrupted goes on."""
        if any(part["digest"] == digest for part in self.parts):
            return False
        with alone_in(self.folder):
            held = {name: sum(_held(name, part) for part in self.parts) for name in FILES}
            unfinished = [part for part in self.about["parts"] if part["states"] is None]
            if [part["digest"] for part in unfinished] != [digest]:
                lengths = [len(ids) for _, ids in rows]
                part = {"file": file, "digest": digest, "rows": len(rows), "ids": sum(lengths), "states": None}
                for name in FILES:  # what another one has left
                    self._cut(name, held[name])
                begins = held["ids.i32"] + np.cumsum([0, *lengths[:-1]])
                table = np.stack([begins, np.full(len(rows), len(self.parts)), [line for line, _ in rows]], 1)
                self._add("rows.i64", table)
                self._add("ids.i32", np.concatenate([np.asarray(ids, np.int32) for _, ids in rows]))
                self.about["parts"] = [*self.parts, part]
                self._note()
            there = {name: self._cut(name, 2**62) - held[name] for name in ("states.f32", "where.i64")}
            done, have = 0, min(there.values())
            for name in there:
                self._cut(name, held[name] + have)
            for count, make in lessons:
                if done + count > have:
                    states, where = make()
                    new = slice(max(0, have - done), None)
                    self._add("states.f32", states[new])
                    self._add("where.i64", held["ids.i32"] + where[new])
                done += count
                progress(file, done, sum(len(ids) for _, ids in rows))
            self.about["parts"][-1]["states"] = done
            self._note()
            self._open()
        return True

    def grow(self, progress: Show = lambda *_: None) -> None:
        """Have all states in the lists that propose them, if there are any."""
        if self.near is not None:
            self.near.grow(self.states, progress)

    def _add(self, name: str, values: NDArray[Any]) -> None:
        with open(self.folder / name, "ab") as file:
            file.write(np.ascontiguousarray(values, FILES[name][0]).tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _note(self) -> None:
        write_whole(self.folder / ABOUT, json.dumps(self.about, indent=1) + "\n")

    def nearest(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float64], Ints]:
        """The k states (or all) at the least squared distance from each query (Q, d): the distances (Q, k), the
        nearest first, and the numbers of the states; of equals, the lower number first.

        A product of matrices finds twice as many, whose distances are then computed each by itself: what is said of a
        query hangs on no other.
        """
        at_least(1, k=k)
        if queries.shape[1] != self.width:
            raise ValueError(f"{self.folder} has states of {self.width} numbers, and is asked with {queries.shape[1]}")
        parts = [self._some(queries[i : i + ASKED], min(k, len(self))) for i in range(0, len(queries), ASKED)]
        return np.concatenate([d for d, _ in parts]), np.concatenate([n for _, n in parts])

    def _some(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float64], Ints]:
        near = self._all(queries, min(2 * k, len(self))) if self.near is None else self._proposed(queries, k)
        distances = np.empty(near.shape)
        for row, (query, numbers) in enumerate(zip(queries.astype(np.float64), near, strict=True)):
            distances[row] = ((self.states[np.maximum(numbers, 0)] - query) ** 2).sum(1)
        distances[near < 0] = np.inf
        order = np.lexsort((near, distances), axis=1)[:, :k]
        return np.take_along_axis(distances, order, 1), np.take_along_axis(near, order, 1)

    def _all(self, queries: NDArray[np.float32], k: int) -> Ints:
        """Of all states the k nearest, but for the last digits: |s - q|² = |s|² - 2 s·q + |q|², of which the last is
        the same for all of them."""
        if self._squares is None:
            blocks = (self.states[i : i + BLOCK] for i in range(0, len(self), BLOCK))
            self._squares = np.concatenate([np.einsum("nd,nd->n", x, x) for x in blocks])
        q = torch.from_numpy(np.ascontiguousarray(queries))
        best, numbers = torch.empty(len(q), 0), torch.empty(len(q), 0, dtype=torch.int64)
        for first in range(0, len(self), BLOCK):
            states = torch.from_numpy(np.array(self.states[first : first + BLOCK]))
            far = torch.from_numpy(self._squares[first : first + BLOCK]) - 2 * (q @ states.T)  # (Q, block)
            least, which = far.topk(min(k, len(states)), largest=False)
            best, numbers = torch.cat([best, least], 1), torch.cat([numbers, which + first], 1)
            best, which = best.topk(min(k, best.shape[1]), largest=False)
            numbers = numbers.gather(1, which)
        return numbers.numpy()

    def _proposed(self, queries: NDArray[np.float32], k: int) -> Ints:
        """Those that faiss proposes; -1 where it has too few."""
        assert self.near is not None
        near = np.full((len(queries), 2 * k), -1, np.int64)
        for row, found in zip(near, self.near.rows(queries, k, np.ones(len(self), bool)), strict=True):
            row[: len(found)] = found[: 2 * k]
        return near

    def tokens(self, numbers: Ints) -> Ints:
        """Which token followed each state."""
        return self.ids[self.where[numbers]].astype(np.int64)

    def neighbour(self, number: int) -> Neighbour:
        """What a state was of."""
        at = int(self.where[number])
        row = int(np.searchsorted(self.rows[:, 0], at, side="right")) - 1
        begin, part, line = map(int, self.rows[row])
        end = int(self.rows[row + 1, 0]) if row + 1 < len(self.rows) else len(self.ids)
        ids = self.ids[begin:end].tolist()
        return Neighbour(self.parts[part]["file"], line, ids[at - begin], ids[: at - begin], ids[at - begin + 1 :])


PART = ("file", "digest", "rows", "ids", "states")


def _held(name: str, part: dict[str, Any]) -> int:
    """How many rows of a file are a part's."""
    return int(part[{"states.f32": "states", "where.i64": "states", "ids.i32": "ids", "rows.i64": "rows"}[name]])
