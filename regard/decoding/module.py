"""Any PyTorch model that generates, ready to be searched.

Letters: B sources, R rows, K rows for each source, V vocabulary, n candidates.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.protocol import DAMAGED, Best, Floats, Ints


class State(Protocol):
    """Rows at work: R = M · K of them, of which each K in a row share one of the M rows of what they have read."""

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        """Keep these of the R rows, and these of the M, in that order; None leaves them as they are."""


class Generative(Protocol):
    """What decoding asks of a PyTorch model; `core/generation.py` has it for the usual shapes."""

    config: Any  # `vocabulary`, and what else the model is made of
    alike: bool  # sources that start together must be equally long

    def start(self, sources: Sequence[Any], device: torch.device) -> Any:
        """B sources -> a `State` of B rows."""

    def extend(self, tokens: Tensor, state: Any) -> None:
        """More tokens of each row, (R, T), of which none says what comes after it."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """The newest token of each row, (R,) -> logits of the next one (R, V)."""

    def room(self, source: Any) -> int | None:
        """Tokens that an output may have, where there is a limit; a `ValueError` if the source cannot be read."""


class Module:
    """A PyTorch model as a `Searchable`, on the device where it is, in eval mode.

    Sources that start together are one batch, so their scores hang, in the last digits, on the company they are in.
    `bitwise` gives each a batch of its own and PyTorch one thread: then every bit depends on nothing but the source;
    it takes longer.
    """

    ragged = False

    def __init__(self, model: Generative, *, device: torch.device | str | None = None, bitwise: bool = False) -> None:
        if getattr(model, "training", False):
            raise ValueError("the model is in training mode, where dropout changes its scores: call model.eval() first")
        if device is None:
            device = next((p.device for p in model.parameters()), None) if isinstance(model, torch.nn.Module) else None
        self.model, self.device, self.bitwise = model, torch.device(device or "cpu"), bitwise
        self.vocabulary: int = model.config.vocabulary
        self.room = model.room

    def rows(self) -> "ModuleRows":
        return ModuleRows(self)


class ModuleRows:
    """Rows in groups that began together: a group is of one age, and has a state of its own."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._groups: list[_Group] = []

    @torch.inference_mode()
    def start(self, sources: Sequence[Any]) -> None:
        module = self._module
        batches = [sources]
        if module.bitwise:
            batches = [[source] for source in sources]
        elif module.model.alike:  # a search starts them in the order of their lengths
            batches = [[*some] for _, some in groupby(sources, key=len)]
        with _one_thread(module.bitwise):
            self._groups += [_Group(module.model, batch, module.device) for batch in batches]

    @torch.inference_mode()
    def extend(self, texts: Sequence[Sequence[int]]) -> None:
        given, groups = iter(texts), list[_Group]()
        with _one_thread(self._module.bitwise):
            for group in self._groups:
                own = [next(given) for _ in group.sentence]
                lengths = list(map(len, own))
                # Rows that go on by as many tokens stay of one age; the others part.
                parts = [[*some] for _, some in groupby(range(len(own)), key=lengths.__getitem__)]
                groups += [group.extended(part, [own[i] for i in part], len(parts) > 1) for part in parts]
        self._groups = groups

    @torch.inference_mode()
    def step(self, tokens: Ints) -> Floats:
        with _one_thread(self._module.bitwise):
            return _joined([logits.cpu().numpy() for logits in self._logits(tokens)])

    @torch.inference_mode()
    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        with _one_thread(self._module.bitwise):
            parts = [_best(logits, n, normalise) for logits in self._logits(tokens)]
        return Best(_joined([part.scores for part in parts]), _joined([part.tokens for part in parts]))

    @torch.inference_mode()
    def reorder(self, rows: Ints) -> None:
        bounds = np.cumsum([0] + [len(group.sentence) for group in self._groups])
        group = np.searchsorted(bounds, rows, side="right") - 1
        edges = [*np.flatnonzero(np.diff(group, prepend=-1)).tolist(), len(rows)]
        order = [int(group[edge]) for edge in edges[:-1]]
        assert len(set(order)) == len(order), "rows that began together stay together"
        groups = [self._groups[g] for g in order]
        for g, begin, end, part in zip(order, edges, edges[1:], groups, strict=False):
            part.reorder(rows[begin:end] - bounds[g])
        self._groups = groups

    def _logits(self, tokens: Ints) -> list[Tensor]:
        newest = torch.from_numpy(tokens).to(self._module.device)
        parts = newest.split([len(group.sentence) for group in self._groups])
        return [group.step(part) for group, part in zip(self._groups, parts, strict=True)]


class _Group:
    """Rows of one age: K of them share what they have read, where every source has K; otherwise each has its own."""

    def __init__(self, model: Generative, sources: Sequence[Any], device: torch.device) -> None:
        self.model, self.state, self.device = model, model.start(sources, device), device
        self.sentence = np.arange(len(sources))  # of each row
        self.memories = len(sources)  # rows of what was read

    def step(self, newest: Tensor) -> Tensor:
        """The newest token of each row, (R,) -> logits (R, V) in fp32."""
        return self.model.step(newest, self.state).float()

    def extended(self, rows: Sequence[int], texts: Sequence[Sequence[int]], part: bool) -> "_Group":
        """Some of the rows, with as many more tokens each; a `part` leaves the others as they are."""
        group = copy.copy(self)
        group.state = copy.deepcopy(self.state) if part else self.state
        group.reorder(np.array(rows))
        if len(texts[0]):
            group.model.extend(torch.tensor(texts, device=self.device), group.state)
        return group

    def reorder(self, rows: Ints) -> None:
        R, K = len(rows), len(self.sentence) // self.memories
        if _in_order(rows, len(self.sentence)):
            return
        self.sentence = self.sentence[rows]
        first = np.flatnonzero(np.diff(self.sentence, prepend=-1))  # rows where another sentence begins
        even = R % len(first) == 0 and np.array_equal(first, np.arange(0, R, R // len(first)))
        memory = (rows[first] if even else rows) // K
        chosen = None
        if not _in_order(memory, self.memories):
            self.memories, chosen = len(memory), torch.from_numpy(memory).to(self.device)
        self.state.reorder(torch.from_numpy(rows).to(self.device), chosen)


@contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    """Where it is wanted, PyTorch has one thread, for the calling one, as long as this lasts."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(before)


def _in_order(index: Ints, size: int) -> bool:
    """Whether an index of so many rows leaves them as they are."""
    return len(index) == size and bool((index == np.arange(size)).all())


def _best(logits: Tensor, n: int, normalise: bool) -> Best:
    """`protocol.best_of` where the logits (R, V) are."""
    value, token = logits.topk(min(n + 1, logits.shape[1]))
    if value.shape[1] > n:  # `topk` takes any of equals: where that matters, sort, which keeps them in order
        tied = (value[:, n] == value[:, n - 1]).nonzero()[:, 0]
        if len(tied):
            exact, ids = logits[tied].sort(dim=1, descending=True, stable=True)
            value[tied], token[tied] = exact[:, : n + 1], ids[:, : n + 1]
        value, token = value[:, :n], token[:, :n]
    if n > 1:
        token, by_id = token.sort(dim=1)
        value, by_value = value.gather(1, by_id).sort(dim=1, descending=True, stable=True)
        token = token.gather(1, by_value)
    if normalise:
        value = (value - logits.logsumexp(1, keepdim=True)).clamp(max=0.0)  # rounding may leave a little above 0
    scores = value.cpu().numpy()
    if not (scores[:, 0] < math.inf).all():  # where there is one that is no number, the first of the row is none
        raise ValueError(DAMAGED)
    return Best(scores, token.cpu().numpy())


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
