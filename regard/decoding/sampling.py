"""Drawing outputs by chance: each token from the model's own distribution, or from its likelier part.

Letters: R rows, D draws, V vocabulary.

The random number behind the token at position t of draw j hangs on (seed of the sentence, j, t) and on nothing else:
neither the company in a batch nor the number of workers changes an output.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard.decoding.beam import length_penalty
from regard.decoding.edits import edit, log_soft_max
from regard.decoding.protocol import FLOOR, Floats, Hypothesis, Request, Rows, SamplingConfig, SearchConfig


def distribution(log_p: Floats, config: SamplingConfig) -> Floats:
    """Log-probabilities (R, V) -> the probabilities to draw with; each filter sees what the one before it has left.

    Tokens that are equals in the sense of a filter stay or go together. A row that is -inf all over stays without any
    probability.

    >>> log_p = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32))
    >>> distribution(log_p, SamplingConfig(top_k=2)).tolist()
    [[0.625, 0.375, 0.0]]
    """
    x = log_p / np.float32(max(config.temperature, 1e-30))  # less changes nothing, and fp32 would overflow
    if config.top_k is not None and config.top_k < x.shape[1]:
        x[x < -np.partition(-x, config.top_k - 1, axis=1)[:, config.top_k - 1, None]] = -math.inf
    top = x.max(1, keepdims=True)
    p = _normalised(np.exp(x - np.where(np.isneginf(top), 0.0, top).astype(np.float32)))
    if config.top_p is not None and config.top_p < 1.0:
        falling = -np.sort(-p, axis=1)
        p = _normalised(p * (p >= _reaching(falling, falling, config.top_p)))
    if config.min_p is not None:
        p = _normalised(p * (p >= np.float32(config.min_p) * p.max(1, keepdims=True)))
    if config.typical is not None and config.typical < 1.0:
        with np.errstate(divide="ignore"):
            surprise = -np.log(p)
        entropy = (p * np.where(p > 0, surprise, 0.0)).sum(1, keepdims=True)
        distance = np.abs(surprise - entropy)
        order = np.argsort(distance, axis=1)
        by_distance = np.take_along_axis(distance, order, 1), np.take_along_axis(p, order, 1)
        p = _normalised(p * (distance <= _reaching(*by_distance, config.typical)))
    return p


def _normalised(p: Floats) -> Floats:
    p /= np.maximum(p.sum(1, keepdims=True, dtype=np.float64), 1e-300)  # nothing stays nothing
    return p


def _reaching(values: Floats, p: Floats, mass: float) -> Floats:
    """(R, 1): the value up to which, in this order, the probabilities come to `mass`."""
    last = (p.cumsum(1, dtype=np.float64) < mass).sum(1, keepdims=True)
    return np.take_along_axis(values, np.minimum(last, p.shape[1] - 1), 1)


def chances(seed: int, draw: int, count: int, first: int = 0) -> NDArray[np.float64]:
    """The random numbers of a draw, in [0, 1), one for each position from `first` on: the same on every machine.

    >>> chances(7, 0, 100)[:3].tolist() == chances(7, 0, 3).tolist() != chances(7, 1, 3).tolist()
    True
    >>> chances(7, 0, 100)[90:].tolist() == chances(7, 0, 10, first=90).tolist()
    True
    """
    # Raw bits of a counter-based generator: numpy promises them, but not how its own `random` uses them. They come
    # four at a time.
    bits = np.random.Philox(key=seed, counter=[first // 4, 0, 0, draw]).random_raw(first % 4 + count)[first % 4 :]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


AHEAD = 64  # random numbers that are made at a time


@dataclass(frozen=True)
class _Sentence:
    index: int
    request: Request
    outputs: dict[int, Hypothesis] = field(default_factory=dict)  # by number of the draw


@dataclass(frozen=True)
class _Draw:
    """A row: one draw, or all draws of a sentence as long as a prefix makes them the same."""

    sentence: _Sentence
    numbers: range
    tokens: list[int]
    scores: list[float]
    chances: list[float] = field(default_factory=list)  # a number for each position, as far as they are known

    def split(self) -> "list[_Draw]":
        """What becomes of it now: itself, or each draw on its own."""
        if len(self.numbers) == 1 or len(self.tokens) < len(self.sentence.request.prefix):
            return [self]
        return [_Draw(self.sentence, range(n, n + 1), [*self.tokens], [*self.scores]) for n in self.numbers]

    def chance(self) -> float:
        """The random number behind the next token."""
        request, known = self.sentence.request, len(self.chances)
        if len(self.tokens) >= known:
            more = len(self.tokens) - known + AHEAD
            self.chances.extend(chances(request.seed, request.draw + self.numbers.start, more, known).tolist())
        return self.chances[len(self.tokens)]


class Sampling:
    """Sentences side by side, `config.best` independent draws of each, given back in the order of the draws.

    Scores are the model's own: neither temperature nor filters nor edits enter them.
    """

    def __init__(self, config: SearchConfig, eos: int) -> None:
        assert config.sampling is not None
        self.width = config.best
        self._config, self._sampling, self._eos = config, config.sampling, eos
        self._draws: list[_Draw] = []  # at work, one for each row

    def __len__(self) -> int:
        return len(self._draws)

    def add(self, indexed: list[tuple[int, Request]]) -> None:
        for index, request in indexed:
            if request.seed < 0:
                raise ValueError(f"seed = {request.seed}: it must be at least 0")
            self._draws.append(_Draw(_Sentence(index, request), range(self.width), [], []))

    def step(self, rows: Rows) -> list[tuple[int, list[Hypothesis]]]:
        newest = [draw.tokens[-1] if draw.tokens else draw.sentence.request.first for draw in self._draws]
        log_p = log_soft_max(rows.step(np.array(newest)))  # (R, V)
        allowed, requests = log_p.copy(), [draw.sentence.request for draw in self._draws]
        edit(allowed, [draw.tokens for draw in self._draws], requests, self._config, self._eos)
        reach = distribution(allowed, self._sampling).cumsum(1, dtype=np.float64)  # (R, V): P(token <= this one)

        draws = [(r, one) for r, draw in enumerate(self._draws) for one in draw.split()]
        parent = np.array([r for r, _ in draws])  # (D,)
        chance = np.array([draw.chance() for _, draw in draws])
        # The first token whose reach is above the chance; the bound is for a product that is rounded up to the total.
        total = reach[parent, -1]
        bound = np.minimum(chance * total, np.nextafter(total, 0.0))
        tokens = (reach[parent] <= bound[:, None]).sum(1)

        finished, survivors = [], []
        for (r, draw), token, possible in zip(draws, tokens.tolist(), (total > 0.0).tolist(), strict=True):
            sentence, t = draw.sentence, len(draw.tokens)
            if t < len(sentence.request.prefix):
                token, possible = sentence.request.prefix[t], True
            if possible:  # otherwise edits forbid every token, and it ends as it is
                gain = float(log_p[r, token])
                forced = t < len(sentence.request.prefix) or sentence.request.rule is not None
                draw.scores.append(max(gain, FLOOR) if forced else gain)
                if token != self._eos:
                    draw.tokens.append(token)
            ends = sentence.request.ends
            going = possible and token != self._eos and len(draw.tokens) < sentence.request.room
            if going and not (ends is not None and ends(draw.tokens)):
                survivors.append((r, draw))
                continue
            log_probability, length = math.fsum(draw.scores), max(len(draw.scores), 1)
            score = log_probability / length_penalty(length, self._config.alpha, self._config.penalty)
            output = Hypothesis(draw.tokens, score, log_probability, draw.scores)
            sentence.outputs.update(dict.fromkeys(draw.numbers, output))
            if len(sentence.outputs) == self.width:
                finished.append((sentence.index, [sentence.outputs[n] for n in range(self.width)]))
        self._draws = [draw for _, draw in survivors]
        rows.reorder(np.array([r for r, _ in survivors], np.int64))
        return finished

    def said(self, index: int) -> list[list[int]]:
        draws = [draw for draw in self._draws if draw.sentence.index == index]
        return [draw.tokens for draw in draws] + [output.tokens for output in draws[0].sentence.outputs.values()]
