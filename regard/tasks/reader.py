"""A model that reads a text as a whole, and its tokenizer: texts in, what its head says of them out.

Letters: B batch, T length.

A text that is longer than the model reads is read in windows that overlap, so that nothing of it is lost.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.core.generation import of_like_length, padded
from regard.data.batching import Batch
from regard.data.tokenizers import Tokenizer
from regard.native import NativeReader
from regard.tasks.engines import Engines

TOKENS = 4_096  # that are read together
STRIDE = 0.5  # of a window is new, where a text is read in several


@dataclass(frozen=True)
class Given:
    """A text to read, or a pair of them."""

    text: str
    pair: str | None = None
    place: str = ""  # where it stands, for errors
    id: object = None  # whatever its owner knows it by


class Framed(NamedTuple):
    """What a model reads at once."""

    ids: list[int]
    segments: list[int]
    first: int = 0  # the number of its first token in the text, or in the second one of a pair
    begins: int = 1  # where that stands in ids
    tokens: int = 0  # how many of that text there are


Outputs = Callable[[Sequence[Framed]], list[Tensor]]


class Reader(Engines):
    """One model, or several whose answers are averaged."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        use: Any,
        *,
        longest: int | None = None,
        shortlists: object = None,
        **how: Any,
    ) -> None:
        """`longest`: tokens that are read together, marks among them; how they are read, `Engines` says."""
        super().__init__(model, tokenizer, **how)
        if shortlists is not None:
            raise ValueError("a shortlist is for what is written: this model reads")
        self.use = use
        self.longest = min((n for n in (longest, self.places) if n is not None), default=None)

    @property
    def _told_apart(self) -> bool:
        return (getattr(self.model.config, "segments", None) or 1) > 1

    def size(self, asks: Sequence[Given], settings: Any = None) -> tuple[int, int]:
        """Tokens of some texts; nothing is written."""
        texts = [text for ask in asks for text in (ask.text, ask.pair) if text is not None]
        return sum(map(len, self.tokenizer.encode_batch(texts))), 0

    def framed(self, asks: Sequence[Given], room: int = 0) -> list[list[Framed]]:
        """What the model reads of each text: one window, or several that overlap by half; of a pair, the second text
        is read in windows beside the whole first one. `room` is kept free."""
        texts = self.tokenizer.encode_batch([ask.text for ask in asks])
        pairs: Iterator[list[int]] = iter(self.tokenizer.encode_batch([a.pair for a in asks if a.pair is not None]))
        found = []
        for ask, ids in zip(asks, texts, strict=True):
            pair = next(pairs) if ask.pair is not None else None
            found.append(list(self._windows(ask, ids, pair, room)))
        return found

    def _windows(self, ask: Given, ids: list[int], pair: list[int] | None, room: int) -> Iterator[Framed]:
        around = self.tokenizer.marks.around
        own = len(around([], None if pair is None else [])[0]) + room  # marks
        whole, fixed = (ids, []) if pair is None else (pair, ids)
        most = None if self.longest is None else self.longest - own - len(fixed)
        if most is not None and most < 1:
            where = ask.place or repr(ask.text[:40])
            raise ValueError(f"{where} has {len(ids)} tokens, the model reads {self.longest} at most: shorten it")
        step = max(1, len(whole) if most is None else int(most * STRIDE))
        for start in range(0, max(1, len(whole)), step):
            part = whole[start:] if most is None else whole[start : start + most]
            framed, segments = around(part) if pair is None else around(ids, part)
            begins = 1 if pair is None else len(framed) - 1 - len(part)
            yield Framed(framed, segments, start, begins, len(part))
            if start + len(part) >= len(whole):
                break

    def outputs(self, read: Sequence[Framed]) -> list[Tensor]:
        """What the head says of each: (C,), (d,), or (T, C) of its own length; the mean of all models."""
        each = [engine(read) for engine in self.engines]
        return each[0] if len(each) == 1 else [torch.stack(said).mean(0) for said in zip(*each, strict=True)]

    def native(self, model: nn.Module) -> Outputs:
        engine = NativeReader(model, threads=self.workers or torch.get_num_threads())

        def outputs(read: Sequence[Framed]) -> list[Tensor]:
            segments = [each.segments for each in read] if self._told_apart else None
            return [torch.from_numpy(said) for said in engine.outputs([each.ids for each in read], segments)]

        return outputs

    def module(self, model: nn.Module, reason: str) -> Outputs:
        @torch.inference_mode()
        def outputs(read: Sequence[Framed]) -> list[Tensor]:
            found: list[Any] = [None] * len(read)
            rows = 1 if self.bitwise else self.rows
            for some in of_like_length([len(each.ids) for each in read], TOKENS, rows):
                batch = batched([read[i] for i in some], self.tokenizer.marks.pad or 0, self._told_apart)
                said = model(**batch.to(self.device).inputs).float().cpu()
                for i, row in zip(some, said, strict=True):
                    found[i] = row if said.dim() == 2 else row[: len(read[i].ids)]
            return found

        return outputs


def batched(read: Sequence[Framed], pad: int, segments: bool) -> Batch:
    """Framed texts as a batch: tokens, keep, and segments where a model tells two texts apart, and there are two."""
    longest = max(len(each.ids) for each in read)
    tokens = padded([each.ids for each in read], pad, 2**31)
    keep = torch.arange(longest) < torch.tensor([len(each.ids) for each in read])[:, None]
    tensors = {"tokens": tokens, "keep": keep}
    if segments and any(1 in each.segments for each in read):
        tensors["segments"] = padded([each.segments for each in read], 0, 2)
    return Batch(tensors, len(read))


def asked(texts: Iterable[str | tuple[str, str] | Given]) -> list[Given]:
    """Texts, or pairs of them."""
    return [t if isinstance(t, Given) else Given(t) if isinstance(t, str) else Given(*t) for t in texts]
