"""Vectors that may be the nearest of a query, without comparing all: faiss's inverted lists and navigable graphs.

What is proposed is compared exactly, by whoever asks: a score is the same as if all had been. Vectors are kept in eight
bits, mapped from a file, which grows with the rows that it is of.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.checks import one_of
from regard.files import discard, sync

KINDS = ("exact", "ivf", "hnsw")
LINKS = 16  # of a node of the graph
SAMPLE = 64  # vectors a list that its centre is learnt from
PART, LISTS = 16, 32  # one in so many of the lists is looked through, and at least so many of them
REACH = 96  # nodes of the graph that are looked at, at least
BLOCK = 2**13  # rows that are added at a time
FEW = 4  # queries
KEPT = 2**17  # rows after which the file is written: a build that is interrupted goes on there
Show = Callable[[str, int, int], None]


def products(queries: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each query (Q, d) with each vector (N, d): (Q, N). Few queries wait for memory alone, which faiss, if it is
    there, reads two and a half times as fast as a product of matrices does.

    >>> products(np.eye(2, dtype=np.float32)[:1], np.array([[3, 4], [5, 6]], np.float32)).tolist()
    [[3.0, 5.0]]
    """
    if len(queries) <= FEW and vectors.dtype == np.float32:
        with suppress(ImportError):
            faiss: Any = import_module("faiss")
            x, y = np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(vectors)
            found = np.empty((len(x), len(y)), np.float32)
            for query, row in zip(x, found, strict=True):
                faiss.fvec_inner_products_ny(*map(faiss.swig_ptr, (row, query, y)), *y.shape[::-1])
            return found
    return queries @ vectors.T


class Near:
    """A file in a folder with vectors, of inverted lists (ivf) or a graph (hnsw), by product or `straight` distance."""

    def __init__(self, folder: Path, kind: str, *, straight: bool = False) -> None:
        one_of(KINDS, near=kind)
        try:
            import faiss
        except ImportError:
            raise ValueError(f"near = {kind!r} needs faiss: pip install 'regard[retrieve]', or choose exact") from None
        self.faiss: Any = faiss
        self.kind, self.path = kind, folder / f"near-{kind}.faiss"
        self.metric = faiss.METRIC_L2 if straight else faiss.METRIC_INNER_PRODUCT
        self.index = self._read(faiss.IO_FLAG_MMAP_IFC)

    def _read(self, how: int) -> Any:
        if not self.path.exists():
            return None
        try:
            return self.faiss.read_index(str(self.path), how)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1][:200]
            raise ValueError(f"{self.path} is damaged ({reason}): remove it, and `regard index` again") from None

    def __len__(self) -> int:
        return 0 if self.index is None else int(self.index.ntotal)

    def grow(self, vectors: NDArray[np.float32], progress: Show = lambda *_: None) -> None:
        """Have all rows (N, d); those that are in it stay, unless they are so few that its lists are too."""
        rows = len(vectors)
        if len(self) == rows:
            return
        self.index = None  # nothing can be added to what is mapped
        index = self._read(0)
        lists = max(1, int(2 * np.sqrt(rows)))
        if index is None or index.ntotal > rows or (self.kind == "ivf" and 2 * index.nlist <= lists):
            index = self._new(vectors, lists)
        # Threads would link the graph in the order in which they come.
        threads = self.faiss.omp_get_max_threads()
        self.faiss.omp_set_num_threads(1 if self.kind == "hnsw" else threads)
        try:
            while index.ntotal < rows:
                index.add(np.ascontiguousarray(vectors[index.ntotal : index.ntotal + BLOCK]))
                progress(self.kind, index.ntotal, rows)
                if index.ntotal % KEPT < BLOCK or index.ntotal == rows:
                    self._write(index)
        finally:
            self.faiss.omp_set_num_threads(threads)
        del index
        self.index = self._read(self.faiss.IO_FLAG_MMAP_IFC)

    def _new(self, vectors: NDArray[np.float32], lists: int) -> Any:
        name = f"IVF{lists},SQ8" if self.kind == "ivf" else f"HNSW{LINKS},SQ8"
        index = self.faiss.index_factory(vectors.shape[1], name, self.metric)
        some = np.linspace(0, len(vectors) - 1, min(len(vectors), SAMPLE * lists)).astype(np.int64)
        if self.kind == "ivf":
            index.cp.min_points_per_centroid = 1  # a few documents are no mistake
        index.train(np.ascontiguousarray(vectors[np.unique(some)]))
        return index

    def _write(self, index: Any) -> None:
        partial = self.path.with_suffix(".new")
        try:
            self.faiss.write_index(index, str(partial))
            sync(partial)
            os.replace(partial, self.path)
        except RuntimeError as error:  # faiss has no other: a full disk, mostly
            raise OSError(f"{self.path} cannot be written ({str(error).splitlines()[-1][:200]})") from None
        finally:
            discard(partial)

    def rows(self, queries: NDArray[np.float32], most: int, live: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
        """For each query (Q, d) rows that may be the nearest, `most` of them or so, of those that are `live`."""
        how: dict[str, Any] = {}
        if not live.all():
            bits = np.packbits(live, bitorder="little")
            how["sel"] = self.faiss.IDSelectorBitmap(bits)
        if self.kind == "ivf":
            params = self.faiss.SearchParametersIVF(nprobe=max(LISTS, self.index.nlist // PART), **how)
        else:
            params = self.faiss.SearchParametersHNSW(efSearch=max(REACH, 2 * most), **how)
        found = (self.index.search(query[None], min(2 * most, len(self)), params=params)[1][0] for query in queries)
        return [row[row >= 0] for row in found]  # each by itself: what is found hangs on no other
