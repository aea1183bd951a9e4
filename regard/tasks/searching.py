"""Models that are searched for their outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, cast

import torch
from tokenizers.models import WordPiece
from torch import nn

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
from regard.native import Addressed, Native, Shortlists
from regard.tasks.company import together
from regard.tasks.engines import Engines


def in_words(tokenizer: Tokenizer, ids: Sequence[int]) -> Words:
    """The words that some ids make, and the end symbol."""
    pieces, groups = tokenizer.pieces(ids), dict[int, list[int]]()
    kind = "wordpiece" if isinstance(tokenizer.rust.model, WordPiece) else tokenizer.kind
    of = words_of(map(added, pieces, [None, *pieces], repeat(kind)), UNSPACED)
    for word, id in zip(of, ids, strict=True):
        groups.setdefault(word, []).append(id)
    texts = zip(tokenizer.decode_batch(groups.values()), groups.values(), strict=True)
    read = [text.strip() or "".join(tokenizer.pieces(group)) for text, group in texts]
    return Words([*of, len(read)], [*read, END])


class Searcher(Engines):
    """One model, or several as an ensemble, and their tokenizer: requests in, tokens out."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        *,
        shortlists: Shortlists | None = None,
        backward: bool = False,
        **how: Any,
    ) -> None:
        """`backward`: outputs are written from the last sub-word to the first; how they are found, `Engines` says."""
        super().__init__(model, tokenizer, **how)
        self.bos, self.eos = tokenizer.marks.need("bos", "eos")
        self.shortlists, self.backward = shortlists, backward

    @property
    def searchable(self) -> Searchable:
        """The engine that searches drive."""
        engines = self.engines
        return engines[0] if len(engines) == 1 else Ensemble(engines)

    def native(self, model: nn.Module) -> Native:
        shared = self._adapted(model, Native) if self.shortlists is None else None
        return Native(model, shortlists=self.shortlists) if shared is None else shared

    def module(self, model: nn.Module, reason: str) -> Module:
        if self.shortlists is not None:
            raise ValueError(f"shortlists are for the native engine, and it cannot be used ({reason})")
        return Module(cast(Generative, model), bitwise=self.bitwise)

    def _search(self, requests: Sequence[Request], search: SearchConfig) -> list[list[Hypothesis]]:
        found = self.found(requests, search)
        return [[self._whole(turned(h) if self.backward else h) for h in row] for row in found]

    def found(self, requests: Sequence[Request], search: SearchConfig) -> Sequence[list[Hypothesis]]:
        """The outputs for each request, token by token as they were found."""
        own = self.searchable

        def of_all(asks: Sequence[tuple[Request, Searchable]]) -> list[list[Hypothesis]]:
            """Of those of others who share the engine, too."""
            engine = self._alone() if len(asks) == 1 else own
            # PyTorch's products have threads of their own.
            torch_only = isinstance(engine, Module) or (isinstance(engine, Ensemble) and not engine.ragged)
            workers = self.workers or (1 if torch_only else torch.get_num_threads())
            asked = [r if of is own else replace(r, source=Addressed(r.source, of)) for r, of in asks]
            return pool.search(engine, asked, search, self.eos, rows=self.rows, workers=workers)

        key = (id(own.c) if isinstance(own, Native) else id(own), search, self.eos)
        return together(key, [(request, own) for request in requests], of_all)

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
        return engine.with_threads(self.workers or torch.get_num_threads()) if isinstance(engine, Native) else engine
