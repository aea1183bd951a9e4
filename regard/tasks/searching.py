"""Models, and the engine that searches for their outputs: the quickest that there is for them on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, cast

import torch
from torch import nn

from regard.checks import at_least, one_of
from regard.core.mixers import Tap
from regard.data.sentences import UNSPACED
from regard.data.spelling import whole
from regard.data.tokenizers import Tokenizer
from regard.decoding import pool
from regard.decoding.ensemble import Ensemble
from regard.decoding.module import Generative, Module
from regard.decoding.protocol import Hypothesis, Request, Searchable, SearchConfig
from regard.decoding.rescoring import turned
from regard.inspection.axes import END
from regard.inspection.words import Words, added
from regard.inspection.words import words as words_of
from regard.native import Native, Shortlists, UnavailableError, UnsupportedError

ENGINES = ("auto", "native", "torch")


def in_words(tokenizer: Tokenizer, ids: Sequence[int]) -> Words:
    """The words that some ids make, and the end symbol."""
    pieces, groups = tokenizer.pieces(ids), dict[int, list[int]]()
    of = words_of(map(added, pieces, [None, *pieces], repeat(tokenizer.kind)), UNSPACED)
    for word, id in zip(of, ids, strict=True):
        groups.setdefault(word, []).append(id)
    texts = zip(tokenizer.decode_batch(groups.values()), groups.values(), strict=True)
    read = [text.strip() or "".join(tokenizer.pieces(group)) for text, group in texts]
    return Words([*of, len(read)], [*read, END])


class Searcher:
    """One model, or several as an ensemble, and their tokenizer: requests in, tokens out."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        *,
        engine: str = "auto",
        workers: int | None = None,
        rows: int = 256,
        bitwise: bool = False,
        shortlists: Shortlists | None = None,
        backward: bool = False,
    ) -> None:
        """`rows` are searched side by side; `backward`: outputs are written from the last sub-word to the first."""
        one_of(ENGINES, engine=engine)
        at_least(1, workers=workers, rows=rows)
        self.models = [each.eval() for each in ([model] if isinstance(model, nn.Module) else model)]
        self.model, self.tokenizer = self.models[0], tokenizer
        self.bos, self.eos = tokenizer.marks.need("bos", "eos")
        self.engine, self.rows, self.bitwise, self.backward = engine, rows, bitwise, backward
        self._workers, self._shortlists = workers, shortlists
        self._made: tuple[object, Searchable] | None = None  # an engine, and what it was made from
        self._without: str | None = None

    @property
    def places(self) -> int | None:
        """The most positions that every model has; None: any number."""
        configs: list[Any] = [each.config for each in self.models]
        return min((c.longest for c in configs if c.longest is not None), default=None)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def searchable(self) -> Searchable:
        """The engine that searches drive: PyTorch while somebody watches a tap, and made anew for changed weights."""
        watched = any(tap.watchers for model in self.models for tap in model.modules() if isinstance(tap, Tap))
        made_from = watched, [(p.data_ptr(), p._version) for model in self.models for p in model.parameters()]
        if self._made is None or self._made[0] != made_from:
            engines = [self._engine(model, watched) for model in self.models]
            self._made = made_from, engines[0] if len(engines) == 1 else Ensemble(engines)
        return self._made[1]

    @property
    def without_native(self) -> str | None:
        """Why this machine cannot have the native engine, the quickest on a CPU; None: it can, or has no use for it."""
        assert self.searchable
        return self._without

    def _engine(self, model: nn.Module, watched: bool) -> Searchable:
        if self.engine != "torch" and self.device.type == "cpu" and not watched:
            try:
                return Native(model, shortlists=self._shortlists)
            except UnavailableError as error:
                reason = str(error)
                self._without = None if isinstance(error, UnsupportedError) else reason
        else:
            reason = "a tap is watched" if watched else f"the engine is {self.engine}, the device {self.device}"
        if self.engine == "native":
            raise ValueError(f"there is no native engine for this model ({reason}): use torch")
        if self._shortlists is not None:
            raise ValueError(f"shortlists are for the native engine, and it cannot be used ({reason})")
        return Module(cast(Generative, model), bitwise=self.bitwise)

    def _search(self, requests: Sequence[Request], search: SearchConfig) -> list[list[Hypothesis]]:
        engine = self._alone() if len(requests) == 1 else self.searchable
        # PyTorch's products have threads of their own.
        torch_only = isinstance(engine, Module) or (isinstance(engine, Ensemble) and not engine.ragged)
        workers = self._workers or (1 if torch_only else torch.get_num_threads())
        found = pool.search(engine, requests, search, self.eos, rows=self.rows, workers=workers)
        return [[self._whole(turned(h) if self.backward else h) for h in row] for row in found]

    def _whole(self, h: Hypothesis) -> Hypothesis:
        """An output without the beginning of a character at its end: it was cut there."""
        n = whole(self.tokenizer, h.tokens)
        return h if n == len(h.tokens) else replace(h, tokens=h.tokens[:n], token_scores=h.token_scores[:n])

    def _streamed(self, request: Request, search: SearchConfig) -> Iterator[list[int]]:
        """The tokens of an output, more and more of them: all that are certain, and make whole characters."""
        ids: list[int] = []
        for more in pool.stream(self._alone(), request, search, self.eos):
            ids += more
            yield ids[: whole(self.tokenizer, ids)]

    def _alone(self) -> Searchable:
        """The engine for one sentence at a time: the cores share each product."""
        engine = self.searchable
        return engine.with_threads(self._workers or torch.get_num_threads()) if isinstance(engine, Native) else engine
