"""Several models that answer as one.

Letters: R rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.decoding.protocol import Best, Floats, Ints, Rows, Searchable, best_of


class Ensemble:
    """A model that says each token with the weighted mean of its members' probabilities.

    The members share a vocabulary; nothing else about them need be alike. `weights` are relative, and equal if left
    out.
    """

    def __init__(self, models: Sequence[Searchable], *, weights: Sequence[float] | None = None) -> None:
        if not models:
            raise ValueError("an ensemble has at least 1 model, got none")
        sizes = [model.vocabulary for model in models]
        if len(set(sizes)) > 1:
            raise ValueError(f"the models of an ensemble share one vocabulary, but these have {sizes} tokens")
        weights = [1.0] * len(models) if weights is None else weights
        if len(weights) != len(models):
            raise ValueError(f"{len(models)} models but {len(weights)} weights: give one for each")
        if not all(0.0 < weight < math.inf for weight in weights):
            raise ValueError(f"weights = {list(weights)}: each must be above 0")
        self._models, self._weights = models, [weight / sum(weights) for weight in weights]
        self.vocabulary = sizes[0]
        self.ragged = all(model.ragged for model in models)

    def rows(self) -> "EnsembleRows":
        return EnsembleRows([model.rows() for model in self._models], self._weights)

    def room(self, source: Any) -> int | None:
        rooms = [model.room(source) for model in self._models]
        return min((room for room in rooms if room is not None), default=None)


class EnsembleRows:
    """The rows of each member, in step."""

    def __init__(self, members: Sequence[Rows], weights: Sequence[float]) -> None:
        self._members, self._weights = members, weights

    def start(self, sources: Sequence[Any]) -> None:
        for member in self._members:
            member.start(sources)

    def extend(self, texts: Sequence[Sequence[int]]) -> None:
        for member in self._members:
            member.extend(texts)

    def step(self, tokens: Ints) -> Floats:
        mean = np.zeros(())  # (R, V), fp64
        with np.errstate(invalid="ignore", divide="ignore"):  # the log of 0 is meant, and a search refuses NaN
            for member, weight in zip(self._members, self._weights, strict=True):
                logits = member.step(tokens)
                p = np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64))
                mean = mean + p * (weight / p.sum(1, keepdims=True))
            return np.log(mean).astype(np.float32)

    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        return best_of(self.step(tokens), n, normalise=normalise)

    def reorder(self, rows: Ints) -> None:
        for member in self._members:
            member.reorder(rows)
