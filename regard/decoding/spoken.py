"""A model that writes down speech, made to keep the rules of a transcript (Radford et al., 2022): what it begins with,
where times stand, and that nothing is written which nobody says.

Letters: R rows, V vocabulary.

What the rules forbid has no probability, and the rest has all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.decoding.protocol import Best, Floats, Ints, Rows, Searchable, best_of


@dataclass(frozen=True)
class Rules:
    """Which tokens are what. Times come last in a vocabulary, words first."""

    begin: tuple[int, ...]  # what stands between the first token and what is said: language, task, no times
    end: int  # of a transcript: all words are below it
    zero: int  # the first of the times, 0.02 seconds apart
    silence: int  # says that nothing is said
    unspoken: tuple[int, ...]  # are never written
    blank: tuple[int, ...]  # are never written first
    times: bool  # stand around what is said
    latest: int = 50  # steps that the first may be after zero

    def keep(self, x: Floats, said: Sequence[int]) -> None:
        """Change the logits (V,) of what may come next, in place."""
        x[[*self.unspoken]] = -math.inf
        if not said:
            x[[*self.blank, self.end]] = -math.inf
        if not self.times:
            return
        last = bool(said) and said[-1] >= self.zero
        before = len(said) < 2 or said[-2] >= self.zero
        if last and before:  # two of them: words begin
            x[self.zero :] = -math.inf
        elif last:  # one, after words: another, or the end
            x[: self.end] = -math.inf
        if (newest := next((token for token in reversed(said) if token >= self.zero), None)) is not None:
            x[self.zero : newest if last and not before else newest + 1] = -math.inf  # none goes back, or lasts no time
        if not said:
            x[: self.zero] = x[self.zero + self.latest + 1 :] = -math.inf
        top = x.max()
        if top > -math.inf and np.exp(x[self.zero :] - top).sum() > np.exp(x[: self.zero].max() - top):
            x[: self.zero] = -math.inf  # that it is some time is likelier than any word


class Spoken:
    """A model of transcripts as a `Searchable` that keeps the rules; `silence` is how likely nothing is said, as the
    first step of each source has it."""

    def __init__(self, model: Searchable, rules: Rules) -> None:
        self.model, self.rules, self.silence = model, rules, list[float]()
        self.vocabulary, self.ragged, self.room = model.vocabulary, model.ragged, model.room

    def rows(self) -> "SpokenRows":
        return SpokenRows(self)


class SpokenRows:
    """The rows of the model, and what stands in each."""

    def __init__(self, spoken: Spoken) -> None:
        self._rows: Rows = spoken.model.rows()
        self._rules, self._silence, self._said = spoken.rules, spoken.silence, list[list[int]]()

    def start(self, sources: Sequence[Any]) -> None:
        self._rows.start(sources)
        self._said += [[] for _ in sources]

    def extend(self, texts: Sequence[Sequence[int]]) -> None:
        raise NotImplementedError("what stands before a transcript is part of its source")

    def step(self, tokens: Ints) -> Floats:
        logits, begin = self._rows.step(tokens), self._rules.begin
        for x, said, token in zip(logits, self._said, tokens.tolist(), strict=True):
            said.append(token)
            if len(said) == 1:
                p = np.exp((x - x.max()).astype(np.float64))
                self._silence.append(float(p[self._rules.silence] / p.sum()))
            if len(said) <= len(begin):
                only = x[begin[len(said) - 1]]
                x[:] = -math.inf
                x[begin[len(said) - 1]] = only
            else:
                self._rules.keep(x, said[1 + len(begin) :])
        return logits

    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        return best_of(self.step(tokens), n, normalise=normalise)

    def reorder(self, rows: Ints) -> None:
        self._rows.reorder(rows)
        self._said = [[*self._said[row]] for row in rows.tolist()]
