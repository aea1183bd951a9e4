"""The rows of a search in the C engine.

Letters: R rows, V vocabulary, d width of the model, n columns.

The past of a row is a list of cells, one for each token: places in one pool of keys and values. To reorder rows is to
copy these lists; no key and no value moves, and what a sentence's rows share is stored once. What the encoder found is
one block for each sentence, which all of its rows read.
"""

import os
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.decoding.protocol import DAMAGED, Best, Floats, Ints
from regard.native import build
from regard.native.adapters import NativeAdapter, addresses

if TYPE_CHECKING:
    from regard.native.model import Native

ENCODE = 512  # source tokens that are read together: the room to work stays small
SELECT = 12  # rows whose logits are held at once: they stay in the second cache

Int32 = NDArray[np.int32]


class Desk:
    """Threads, and room to work, for one at a time."""

    def __init__(self, library: Any, threads: int) -> None:
        self.bytes, self.aligned = np.zeros(64, np.uint8), 0
        self.team: int | None = None
        if threads > 1:
            self.team = library.gather(threads)
            weakref.finalize(self, _dismiss, library, self.team, os.getpid())

    def space(self, size: int) -> int:
        """The address of so many bytes, at a multiple of 64."""
        if len(self.bytes) < size + 64:
            self.bytes = np.empty(size + size // 2 + 64, np.uint8)
            self.aligned = -(-self.bytes.ctypes.data // 64) * 64
        return self.aligned


def _dismiss(library: Any, team: int | None, process: int) -> None:
    if os.getpid() == process:  # a forked process has the team but none of its threads, and would wait for them
        library.dismiss(team)


class Addressed(list[int]):
    """What is read, where several who share the engine read together, and who of them is asked."""

    def __init__(self, ids: Iterable[int], of: Any) -> None:
        super().__init__(ids)
        self.of = of


class Listened(NamedTuple):
    """What the encoder made of a sound: what the decoder reads of it, and its output (S, d)."""

    block: Floats
    states: Floats


class NativeRows:
    """The rows of one search in the C engine (`regard.decoding.protocol.Rows`)."""

    def __init__(self, model: "Native") -> None:
        self.model = model
        self.lengths: Int32 = np.zeros(0, np.int32)  # (R,) tokens of each row
        self.sentence: Int32 = np.zeros(0, np.int32)  # (R,) which one it reads
        self.history: Int32 = np.zeros((0, 32), np.int32)  # (R, room for tokens): its cells
        self.longest = 0  # tokens of a row or a source at most
        # Of each sentence, by its number; numbers are used again.
        self.memory: list[Floats | None] = []
        self.address: Ints = np.zeros(0, np.int64)
        self.sources: Int32 = np.zeros(0, np.int32)  # its length
        self.list: list[Ints | None] = []  # the ids of its shortlist
        self.adapters: list[NativeAdapter | None] = []  # what is added for it
        # The pool.
        self.free: Int32 = np.zeros(0, np.int32)
        self.owner: Int32 = np.zeros(0, np.int32)  # which sentence has a cell, or -1
        self.keys: Floats = np.zeros((model.layers, 0, model.key_width), np.float32)
        self.values: Floats = np.zeros((model.layers, 0, model.value_width), np.float32)
        self.c = build.Rows()
        self.added: Ints | None = None  # where the adapters are
        self.features: Floats = np.zeros((0, model.d), np.float32)
        self.columns: Columns | None = None
        self.desk = Desk(model.library, model.threads)

    def start(self, sources: Sequence[Any]) -> None:
        alone, listed, V = self.model.alone, self.model.shortlists, self.model.vocabulary
        heard = [self._heard(source) for source in sources] if self.model.ears else []
        given, least = [source.written for source in sources] if heard else sources, 0 if alone or heard else 1
        if sees := self.model.patches is not None:
            texts: list[Any] = self.model.seen(sources)
        else:
            texts = [_ids(text, self.model.tokens, "source", least=least) for text in given]
        lists = [None if listed is None else _ids(listed.of(source), V, "shortlist") for source in sources]
        lengths = np.array([*map(len, texts)] if not heard else [len(each.states) for each in heard], np.int32)
        if not heard and not sees:
            self._check(lengths)
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        self.model.reach(self.longest)
        numbers = self._numbers(len(sources))
        blocks = [each.block for each in heard] or [np.empty(self.model.memory_size(S), np.float32) for S in lengths]
        for i, block, S, own in zip(numbers, blocks, lengths, lists, strict=True):
            self.memory[i], self.address[i], self.sources[i] = block, block.ctypes.data, S
            self.list[i] = own
        for i, source in zip(numbers, sources, strict=True):
            self.adapters[i] = getattr(source, "of", self.model).adapter
        self.c.rank, self.added = addresses(self.adapters)
        self.c.adapters = None if self.added is None else self.added.ctypes.data
        if not (alone or heard):
            self._encode(texts, lengths, numbers)
        R, new = len(self.lengths), len(sources)
        self.lengths = np.concatenate([self.lengths, np.zeros(new, np.int32)])
        self.sentence = np.concatenate([self.sentence, np.array(numbers, np.int32)])
        history = np.zeros((R + new, self.history.shape[1]), np.int32)
        history[:R] = self.history
        self.history, self.columns = history, None
        self._tell()
        if (alone or heard) and new:
            self._extend(texts, R)

    def _heard(self, source: Any) -> Listened:
        memory = getattr(source, "memory", None)
        if isinstance(memory, Listened):
            S, d = memory.states.shape
            if d == self.model.d and memory.block.size == self.model.memory_size(S):
                return memory
        raise ValueError(f"a sound is heard by the same model (`hear`) before a search, got {type(source).__name__}")

    def extend(self, texts: Sequence[Sequence[int]]) -> None:
        self._extend([_ids(text, self.model.c.target.tokens, "text", least=0) for text in texts], 0)

    def _extend(self, texts: Sequence[Ints], first: int) -> None:
        """Append a text to each row from the first on: no token minds where it is cut."""
        lengths = np.array([len(text) for text in texts], np.int32)
        after = self.lengths[first:] + lengths
        self._check(after)
        self.longest = max(self.longest, int(after.max(initial=0)))
        ids, to = np.concatenate(texts), np.repeat(np.arange(first, first + len(texts), dtype=np.int32), lengths)
        for i in range(0, len(ids), ENCODE):
            written = self._append(ids[i : i + ENCODE], to[i : i + ENCODE], None)
            assert written

    def step(self, tokens: Ints) -> Floats:
        features = self._advance(tokens)
        out = np.empty((len(tokens), self.model.vocabulary), np.float32)
        if self.model.shortlists is None:
            self._logits(self.model.c.logits, features, out)
        else:
            columns = self._columns()
            some = np.empty((len(tokens), len(columns.ids)), np.float32)
            self._logits(columns.product, features, some)
            out.fill(-np.inf)
            out[:, columns.ids] = some + columns.bias[columns.index[self.sentence]]
        if np.isnan(out).any():
            raise ValueError(DAMAGED)
        return out

    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        if n < 1:
            raise ValueError(f"n = {n}: ask for one continuation at least")
        features = self._advance(tokens)
        R, product, bias, columns = len(tokens), self.model.c.logits, None, None
        if self.model.shortlists is not None:
            columns = self._columns()
            product = columns.product
            at = columns.bias.ctypes.data + columns.index[self.sentence] * columns.bias.strides[0]
            bias = at.astype(np.int64)
        n = min(n, product.N)
        scores, chosen = np.empty((R, n), np.float32), np.empty((R, n), np.int32)
        block = min(R, SELECT)
        space = self.desk.space(4 * block * (product.N + 16) + block * (product.K + product.K // 4 + 8) + 128)
        given = product, R, features, n, normalise, bias
        if not self.model.library.best(*given, scores, chosen, block, self.desk.team, space):
            raise ValueError(DAMAGED)
        return Best(scores, chosen.astype(np.int64) if columns is None else columns.ids[chosen])

    def reorder(self, rows: Ints) -> None:
        if (rows := np.asarray(rows)).ndim != 1:
            raise ValueError(f"rows are one list of numbers, got the shape {rows.shape}")
        before = self.sentence
        self.lengths, self.sentence, self.history = self.lengths[rows], self.sentence[rows], self.history[rows]
        there = np.zeros(len(self.memory), bool)
        there[before] = True
        there[self.sentence] = False
        if there.any():  # who has left
            for i in there.nonzero()[0]:
                self.memory[i] = self.list[i] = self.adapters[i] = None
            there = np.append(there, [False])  # for the owner -1, which is nobody
            cells = there[self.owner].nonzero()[0]
            self.owner[cells] = -1
            self.free = np.concatenate([self.free, cells.astype(np.int32)])
            self.longest = max(self.lengths.max(initial=0), self.sources[self.sentence].max(initial=0))
        self._tell()

    def _encode(self, texts: Sequence[Any], lengths: Int32, numbers: list[int]) -> None:
        first = 0
        while first < len(texts):
            last, tokens = first + 1, int(lengths[first])
            while last < len(texts) and tokens + lengths[last] <= ENCODE:
                tokens += int(lengths[last])
                last += 1
            read, longest = np.concatenate(texts[first:last]), int(lengths[first:last].max())
            ids, seen = (None, read) if read.ndim > 1 else (read.astype(np.int32), None)
            begins = np.append([0], lengths[first:last].cumsum()).astype(np.int32)
            some = numbers[first:last]
            rank, adapters = addresses([self.adapters[i] for i in some])
            given = last - first, ids, seen, begins, longest, self.address[some], rank, adapters
            done = self.model.library.encode(self.model.c, *given, self.desk.team, self._room(tokens, longest))
            assert done
            first = last

    def _advance(self, tokens: Ints) -> Floats:
        """Append a token to each row -> (R, d), what the last product reads."""
        R, tokens = len(self.lengths), np.ascontiguousarray(tokens, np.int64)
        if tokens.shape != (R,):
            raise ValueError(f"tokens of the shape {tokens.shape} for {R} rows: give one to each")
        self._check(self.lengths + 1)
        self.longest += 1
        if len(self.features) < R:
            self.features = np.empty((2 * R, self.model.d), np.float32)
        if not self._append(tokens, None, self.features):
            raise ValueError(outside(tokens, self.model.c.target.tokens))
        return self.features[:R]

    def _append(self, tokens: Ints, to: Int32 | None, features: Floats | None) -> bool:
        """Append each token to the row that `to` has for it, or one to each. False, and nothing done: one is none."""
        m = len(tokens)
        if len(self.free) < m:
            self._grow(m)
        self.model.reach(self.longest)
        if self.longest > self.history.shape[1]:
            self.history = np.concatenate([self.history, np.zeros((len(self.lengths), self.longest), np.int32)], 1)
            self._tell()
        cells, space = self.free[len(self.free) - m :], self._room(m, self.longest)
        given = self.c, m, tokens, to, cells, self.longest, features
        written = self.model.library.decode(self.model.c, *given, self.desk.team, space)
        if written:
            self.free = self.free[: len(self.free) - m]
        return bool(written)

    def _check(self, lengths: Int32) -> None:
        """Refuse a sequence that has more tokens than there are positions."""
        longest = self.model.longest
        if longest is not None and (length := int(lengths.max(initial=0))) > longest:
            raise ValueError(f"a sequence of {length} tokens: the model has positions for {longest}")

    def _tell(self) -> None:
        """Tell the engine where everything is now."""
        c = self.c
        c.lengths, c.sentence = self.lengths.ctypes.data, self.sentence.ctypes.data
        c.history, c.stride = self.history.ctypes.data, self.history.shape[1]

    def _numbers(self, count: int) -> list[int]:
        """Numbers for so many new sentences."""
        vacant = [i for i, block in enumerate(self.memory) if block is None][:count]
        more = count - len(vacant)
        vacant += range(len(self.memory), len(self.memory) + more)
        self.memory += [None] * more
        self.list += [None] * more
        self.adapters += [None] * more
        self.address = np.concatenate([self.address, np.zeros(more, np.int64)])
        self.sources = np.concatenate([self.sources, np.zeros(more, np.int32)])
        self.c.memory, self.c.sources = self.address.ctypes.data, self.sources.ctypes.data
        return vacant

    def _grow(self, cells: int) -> None:
        """Double the pool, or make it larger by so many cells if that is more."""
        old = self.keys.shape[1]
        more = max(cells, old, 256)
        for name in ("keys", "values"):
            pool = getattr(self, name)
            larger = np.empty((pool.shape[0], old + more, pool.shape[2]), np.float32)
            larger[:, :old] = pool
            setattr(self, name, larger)
        self.free = np.concatenate([self.free, np.arange(old, old + more, dtype=np.int32)])
        self.owner = np.concatenate([self.owner, np.full(more, -1, np.int32)])
        self.c.keys, self.c.values = self.keys.ctypes.data, self.values.ctypes.data
        self.c.owner, self.c.cells = self.owner.ctypes.data, old + more

    def _room(self, m: int, longest: int) -> int:
        """Where the engine can work on m tokens of sentences that have at most so many."""
        return self.desk.space(self.model.library.room(self.model.c, m, longest, self.model.threads, self.c.rank))

    def _logits(self, product: build.Product, features: Floats, out: Floats) -> None:
        R = len(features)
        space = self.desk.space(R * (product.K + product.K // 4 + 8) + 64)
        self.model.library.logits(product, R, features, out, self.desk.team, space)

    def _columns(self) -> "Columns":
        """The columns that the sentences at work may use, and maybe some who have left."""
        if self.columns is None:
            here = np.unique(self.sentence)
            lists = [ids for i in here if (ids := self.list[i]) is not None]
            self.columns = Columns(self.model, here, lists, len(self.memory))
        return self.columns


def _ids(given: Any, tokens: int, what: str, *, least: int = 1) -> Ints:
    """A list of token ids, of which there are some, and each of which there is."""
    ids = np.asarray(given)
    if not least and ids.shape == (0,):
        return ids.astype(np.int64)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        some = "one token id or more" if least else "token ids"
        raise ValueError(f"a {what} is a list of {some}, got {str(given)[:60]}")
    if not 0 <= ids.min() <= ids.max() < tokens:
        raise ValueError(outside(ids, tokens))
    return ids.astype(np.int64)


def outside(ids: NDArray[np.integer[Any]], most: int, what: str = "token ids") -> str:
    return f"{what} lie in 0..{most - 1}, got {ids.min()}..{ids.max()}: does the tokenizer belong to this model?"


class Columns:
    """The last product, narrowed to the shortlists of some sentences."""

    def __init__(self, model: "Native", sentences: Int32, lists: list[Ints], count: int) -> None:
        wanted = np.zeros(model.vocabulary, bool)
        for own in lists:
            wanted[own] = True
        self.ids = wanted.nonzero()[0]  # (n,)
        whole, n = model.c.logits, len(self.ids)
        panels, groups = -(-n // build.PANEL), -(-whole.K // 4)
        self.w = np.zeros((panels, whole.K, build.PANEL) if whole.w else 0, np.float32)
        self.h = np.zeros((panels, whole.K, build.PANEL) if whole.h else 0, np.uint16)
        self.q = np.zeros((panels, groups, build.PANEL, 4) if whole.q else 0, np.int8)
        self.scale, self.sum = np.zeros(n, np.float32), np.zeros(n, np.int32)
        self.offset = np.zeros(n if whole.bias else 0, np.float32)
        parts = (self.w, self.h, self.q, self.scale, self.sum, self.offset)
        model.library.columns(whole, n, self.ids.astype(np.int32), *parts)
        self.product = build.Product(whole.K, n, *(part.ctypes.data if part.size else None for part in parts))
        # What is not on a sentence's own list is not for it, though it is computed: its output depends on no other.
        self.bias = np.full((len(sentences), n), -np.inf, np.float32)
        place = wanted.cumsum() - 1  # of each id among those that are wanted
        for row, own in zip(self.bias, lists, strict=True):
            row[place[own]] = 0.0
        self.index = np.zeros(count, np.int64)  # which row of `bias` a sentence has
        self.index[sentences] = np.arange(len(sentences))
