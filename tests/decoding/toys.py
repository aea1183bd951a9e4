"""Models small enough to know by heart, behind the protocol of decoding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.generation import DecoderOnly, room_beside
from regard.decoding import pool
from regard.decoding.protocol import Best, Floats, Hypothesis, Ints, Request, Searchable, SearchConfig, best_of, bounded

PAD, BOS, EOS = range(3)


def asking(source: Sequence[int], **wishes: Any) -> Request:
    """A request that begins with BOS; `search`, `stream` and `drive` give it its room."""
    return Request(source, BOS, **wishes)


def roomy(requests: Sequence[Request], config: SearchConfig) -> list[Request]:
    """With the room of a translation."""
    return [replace(each, room=len(each.source) + config.extra) for each in requests]


def search(
    model: Searchable, requests: Sequence[Request], config: SearchConfig, eos: int = EOS, **limits: int
) -> list[list[Hypothesis]]:
    return pool.search(model, roomy(requests, config), config, eos, **limits)


def stream(model: Searchable, request: Request, config: SearchConfig, eos: int = EOS) -> Iterator[list[int]]:
    return pool.stream(model, *roomy([request], config), config, eos)


class Markov:
    """A model that looks up its logits by the first token of the sentence and the newest token of the output.

    tables: (sentences, V, V). It counts what it is asked for in `steps`: the rows of each step.
    """

    def __init__(self, tables: Floats, *, ragged: bool = True, longest: int | None = None) -> None:
        self.tables = np.asarray(tables, np.float32)
        self.vocabulary, self.longest, self.ragged = self.tables.shape[-1], longest, ragged
        self.steps: list[int] = []

    def rows(self) -> "MarkovRows":
        return MarkovRows(self)

    def room(self, source: Sequence[int]) -> int | None:
        return room_beside(source, self.longest)

    def log_probabilities(self, sentence: int, tokens: Sequence[int]) -> list[float]:
        """Log p of each token of an output, in fp64: the oracle."""
        table = self.tables[sentence].astype(np.float64)
        table = table - np.logaddexp.reduce(table, axis=-1, keepdims=True)
        return [float(table[a, b]) for a, b in zip([BOS, *tokens], tokens, strict=False)]


class MarkovRows:
    """The sentence that each row reads; the newest token is all else that counts."""

    def __init__(self, model: Markov) -> None:
        self.model, self.sentence = model, np.empty(0, np.int64)

    def start(self, sources: Sequence[Sequence[int]]) -> None:
        self.sentence = np.append(self.sentence, [source[0] for source in sources]).astype(np.int64)

    def step(self, tokens: Ints) -> Floats:
        assert tokens.shape == self.sentence.shape
        self.model.steps.append(len(tokens))
        return self.model.tables[self.sentence, tokens]

    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        return best_of(self.step(tokens), n, normalise=normalise)

    def reorder(self, rows: Ints) -> None:
        self.sentence = self.sentence[rows]


def random_markov(
    seed: int, vocabulary: int = 8, sentences: int = 3, *, sharpness: float = 2.0, ragged: bool = True
) -> Markov:
    """A random table whose outputs never hold bos or pad."""
    tables = np.random.default_rng(seed).normal(scale=sharpness, size=(sentences, vocabulary, vocabulary))
    tables[:, :, [BOS, PAD]] = -np.inf
    return Markov(tables.astype(np.float32), ragged=ragged)


def drive(
    kind: Callable[[SearchConfig, int], Any],
    config: SearchConfig,
    model: Markov,
    requests: Sequence[Request],
    *,
    eos: int = EOS,
    ahead: int = 99,
    longest: int | None = None,
) -> list[list[Hypothesis]]:
    """Search with at most `ahead` sentences at work, which a new one joins whenever there is room."""
    fleet = kind(config, eos)
    requests = [bounded(each, config, longest) for each in roomy(requests, config)]
    rows, waiting, busy = model.rows(), list(enumerate(requests)), 0
    results: dict[int, list[Hypothesis]] = {}
    while waiting or busy:
        new, waiting = waiting[: ahead - busy], waiting[ahead - busy :]
        if new:
            rows.start([request.source for _, request in new])
            fleet.add(new)
        steps = len(model.steps)
        finished = fleet.step(rows)
        assert len(model.steps) == steps + 1
        busy += len(new) - len(finished)
        assert len(fleet) == len(rows.sentence) <= fleet.width * busy
        results.update(finished)
    return [results[i] for i in range(len(requests))]


class Language(DecoderOnly, nn.Module):
    """A language model of one attention, whose next token hangs on all that it has read, and on where it stands."""

    def __init__(self, seed: int, vocabulary: int = 13, longest: int = 24, d: int = 16) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(vocabulary=vocabulary, longest=longest)
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(longest, d)
        self.query_key_value, self.output = nn.Linear(d, 3 * d), nn.Linear(d, vocabulary)
        self.read: list[tuple[int, int]] = []  # rows and tokens of each pass
        self.double().eval()
        with torch.no_grad():
            self.output.weight *= 4.0

    def features(self, tokens: Tensor, cache: "Past | None" = None) -> Tensor:
        past = Past() if cache is None else cache
        T, t = tokens.shape[1], past.length
        self.read.append((len(tokens), T))
        x = self.tokens(tokens) + self.positions(torch.arange(t, t + T))
        q, k, v = self.query_key_value(x).chunk(3, -1)
        k, v = past.extend(k, v)
        seen = torch.ones(T, t + T, dtype=torch.bool).tril(t)
        return x + nn.functional.scaled_dot_product_attention(q, k, v, seen)

    def new_cache(self) -> "Past":
        return Past()


class Past(list[Tensor]):
    """Keys and values, (R, t, d) each, of all that was read."""

    @property
    def length(self) -> int:
        return self[0].shape[1] if self else 0

    def extend(self, *new: Tensor) -> "Past":
        self[:] = [torch.cat(pair, 1) for pair in zip(self, new, strict=True)] if self else new
        return self

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        if rows is not None:
            self[:] = [each[rows] for each in self]
