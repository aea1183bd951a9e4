"""Models small enough to know by heart, behind the protocol of decoding."""

from collections.abc import Sequence

import numpy as np

from regard.decoding.pool import Fleet
from regard.decoding.protocol import Best, Floats, Hypothesis, Ints, Request, Special, best_of

SPECIAL = Special(bos=1, eos=2, pad=0)


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

    def log_probabilities(self, sentence: int, tokens: Sequence[int]) -> list[float]:
        """Log p of each token of an output, in fp64: the oracle."""
        table = self.tables[sentence].astype(np.float64)
        table = table - np.logaddexp.reduce(table, axis=-1, keepdims=True)
        return [float(table[a, b]) for a, b in zip([SPECIAL.bos, *tokens], tokens, strict=False)]


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
    tables[:, :, [SPECIAL.bos, SPECIAL.pad]] = -np.inf
    return Markov(tables.astype(np.float32), ragged=ragged)


def drive(fleet: Fleet, model: Markov, requests: Sequence[Request], *, ahead: int = 99) -> list[list[Hypothesis]]:
    """Search with at most `ahead` sentences at work, which a new one joins whenever there is room."""
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
