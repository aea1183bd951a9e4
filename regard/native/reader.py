"""An encoder and its head in the C engine: texts in, what the head says of them out. Pictures come as the vectors that
PyTorch makes of them, and leave as what the head reads.

Letters: T tokens of a text, d width of the model, C numbers that the head says.

Texts lie one after the other without padding, and no number of one meets another's: its bits are the same alone, in any
company, and with any number of threads.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.core.outputs import POOLS, ClassHead, TagHead, TokenHead, VectorHead
from regard.native import build
from regard.native.adapters import addresses
from regard.native.build import UnsupportedError
from regard.native.layout import Layout, number
from regard.native.model import Laid
from regard.native.rows import outside

TOGETHER = 256  # tokens that go through each product at once, so many at most: what lies between stays near
SAID, ALL, FIRST = 0, 1, 2  # what is wanted: the head's word, or what it reads, of all places or of the first
ALONE = 96  # tokens of a part, so many at least: with fewer, weights would be fetched for too little

Floats = NDArray[np.float32]


class NativeReader(Laid):
    """An encoder and its head in the C engine. `threads` share the texts, or the products of a few."""

    def __init__(self, model: nn.Module, *, threads: int = 1) -> None:
        if hasattr(model.config, "space_time"):
            raise UnsupportedError("it sees videos")
        super().__init__(model, "stem", None, threads)
        if self.patches is not None:
            self.first = getattr(model.output, "pool", None) == "first"
            return
        stem: Any = model.stem
        self.segments = 0 if stem.segments is None else int(stem.segments.num_embeddings)
        self.c.head, self.c.logits = _head(self, model.output)
        self.pooled, self.width = bool(self.c.head.pool), _width(self.c.head, self.c.logits, self.d)

    def adapted(self, model: nn.Module, base: nn.Module) -> Self:
        other = super().adapted(model, base)
        if other.adapter is not None and other.adapter.head is not None:
            head, logits = _head(own := Layout(self.d), other.adapter.head)
            if max(self.c.d_ff, self.c.head.inner.N) < head.inner.N:
                raise UnsupportedError("its head is wider than all else")
            other.adapter.speak(head, logits, own)
            other.pooled, other.width = bool(head.pool), _width(head, logits, self.d)
        return other

    def features(self, texts: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> list[Floats]:
        """What the head reads of each text: (T, d)."""
        return self._read(texts, segments, [self.d] * len(texts), [self] * len(texts), bare=ALL)

    def looked(self, pictures: Iterable[Any]) -> list[Floats]:
        """What the head reads of each picture (C, H, W): (T, d); (1, d), if it reads the first place alone."""
        seen, bare = self.seen(pictures), FIRST if self.first and self.adapter is None else ALL
        how = [self.d] * len(seen), [self] * len(seen)
        return self._through([*map(len, seen)], (None, None, np.concatenate(seen)), *how, bare=bare) if seen else []

    def outputs(
        self,
        texts: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int]] | None = None,
        of: "Sequence[NativeReader] | None" = None,
    ) -> list[Floats]:
        """What the head says of each text: (C,), or (T, C). `segments`: the text of a pair that each token is in.

        `of`: who is asked of each, where `adapted` ones read together; all of them, or none, are `pooled`.
        """
        if of is None:
            return self._read(texts, segments, [self.width] * len(texts), [self] * len(texts), bare=SAID)
        order = sorted(range(len(texts)), key=lambda i: id(of[i]))  # those of one stand together
        texts, segments = [texts[i] for i in order], None if segments is None else [segments[i] for i in order]
        who = [of[i] for i in order]
        found = dict(zip(order, self._read(texts, segments, [each.width for each in who], who, bare=SAID), strict=True))
        return [found[i] for i in range(len(texts))]

    def _read(
        self,
        texts: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int]] | None,
        widths: Sequence[int],
        of: "Sequence[NativeReader]",
        *,
        bare: int,
    ) -> list[Floats]:
        if not texts:
            return []
        lengths = [*map(len, texts)]
        if self.longest is not None and max(lengths) > self.longest:
            raise ValueError(f"a text of {max(lengths)} tokens: the model has positions for {self.longest}")
        tokens = _flat(texts, lengths, int(self.c.source.tokens), "token ids")
        told = None
        if segments is not None and self.segments:
            told = _flat(segments, lengths, self.segments, "segments")
        return self._through(lengths, (tokens, told, None), widths, of, bare=bare)

    def _through(
        self, lengths: list[int], read: Any, widths: Sequence[int], of: "Sequence[NativeReader]", *, bare: int
    ) -> list[Floats]:
        """What was read as tokens and segments, or as vectors, through all layers."""
        longest, pooled, width = max(lengths), bare == FIRST or (bare == SAID and of[0].pooled), max(widths)
        rank, adapters = addresses([each.adapter for each in of])
        self.reach(longest)
        begins = np.array([0, *accumulate(lengths)], np.int32)
        parts = self._parts(begins)
        most = max(int(begins[b] - begins[a]) for a, b in pairwise(parts))
        shared, each = (self.library.room(self.c, most, longest, threads, rank) for threads in (self.threads, 1))
        out = np.empty((len(lengths) if pooled else begins[-1], width), np.float32)
        given = np.array(parts, np.int32), begins, *read, longest, rank, adapters, out, width
        with self.desk() as desk:
            space = desk.space(max(self.threads * each, shared))
            self.library.read_texts(self.c, bare, len(parts) - 1, *given, desk.team, space, each)
        rows = (
            [*(out[:, None] if bare == FIRST else out)] if pooled else [out[a:b] for a, b in pairwise(begins.tolist())]
        )
        return [row[..., :w] for row, w in zip(rows, widths, strict=True)]

    def _parts(self, begins: NDArray[np.int32]) -> list[int]:
        """Where the parts begin that are read together, and the last one ends: one, or enough for all threads."""
        m, n = int(begins[-1]), len(begins) - 1
        if m < ALONE * self.threads:
            return [0, n]
        most, parts = min(TOGETHER, max(ALONE, -(-m // (4 * self.threads)))), [0]
        while parts[-1] < n:
            first = begins[parts[-1]]
            enough = min(n, int(begins.searchsorted(first + ALONE)))
            parts.append(max(enough, int(begins.searchsorted(first + most, "right")) - 1))
        return parts


def _head(layout: Layout, head: Any) -> tuple[build.Head, build.Product]:
    made, inner, outer, width = build.Head(), getattr(head, "inner", None), getattr(head, "outer", None), layout.d
    if type(head) in (VectorHead, ClassHead):
        if head.pool not in POOLS:
            raise UnsupportedError(f"pooling by {head.pool}")
        made.pool, made.unit = 1 + POOLS.index(head.pool), head.normalise
    elif type(head) is TokenHead:
        outer = head.tokens
    elif type(head) is not TagHead:
        raise UnsupportedError(f"a {type(head).__name__} as its head")
    if inner is not None:
        width, made.activation = inner.out_features, -1 if head.activation is None else number(head.activation, head)
        made.inner = layout.product(inner, width, layout.d)
        made.norm = layout.norm(getattr(head, "norm", None), width)
    return made, build.Product() if outer is None else layout.product(outer, outer.out_features, width)


def _width(head: build.Head, logits: build.Product, d: int) -> int:
    """Numbers that it says."""
    return int(logits.N or head.inner.N or d)


def _flat(rows: Sequence[Sequence[int]], lengths: list[int], most: int, what: str) -> NDArray[np.int32]:
    """Whole numbers below `most`, a row after the other, each of which has its length."""
    try:
        ids = np.array([*chain.from_iterable(rows)])
    except ValueError:  # of rows in rows
        ids = np.array(rows, object)
    if not all(lengths) or ids.ndim != 1 or ids.dtype.kind not in "iu" or [*map(len, rows)] != lengths:
        raise ValueError(f"a text is a list of one token id or more, and has as many segments, got {str(rows)[:60]}")
    if not 0 <= ids.min() <= ids.max() < most:
        raise ValueError(outside(ids, most, what))
    return ids.astype(np.int32)
