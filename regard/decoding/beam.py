"""Beam search (§6.1): the likeliest few beginnings of each sentence, side by side.

Letters: A sentences at work, K beam, G groups of W beginnings each (K = G · W), R rows, V vocabulary, n candidates of a
row, C candidates of a group.

All sentences take their step together, whatever their age, in a few calls of numpy. What the rows have written is kept
as it came about: for each step which row continues which, and with what token. An output is read from its end.
"""

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.decoding.edits import edit, log_soft_max
from regard.decoding.protocol import FLOOR, Best, Floats, Hypothesis, Ints, Request, Rows, SearchConfig, best_of

PAST = 1024  # steps that are kept, needed or not


def length_penalty(length: int, alpha: float, penalty: str = "paper") -> float:
    """lp(Y) of Wu et al. (2016, eq. 14), or a power of the length |Y|, which counts eos; 1 if alpha = 0.

    >>> length_penalty(1, 0.6), length_penalty(25, 0.0), length_penalty(25, 1.0), length_penalty(25, 1.0, "mean")
    (1.0, 1.0, 5.0, 25.0)
    """
    return float(((5 + length) / 6 if penalty == "paper" else length) ** alpha)


def common_beginning(outputs: Iterable[Sequence[int]]) -> list[int]:
    """The tokens with which all of them begin.

    >>> common_beginning([[5, 6, 7], [5, 6], [5, 6, 8]])
    [5, 6]
    """
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*outputs, strict=False))]


def whole(config: SearchConfig, request: Request) -> bool:
    """Whether a search for this sentence must see the score of every token, not only of the best few.

    >>> whole(SearchConfig(shortest=1), Request([5, 2], 1)), whole(SearchConfig(block=3), Request([5, 2], 1))
    (False, True)
    """
    edits = request.prefix or request.forbidden or config.block or config.repetition != 1.0
    awake = request.refusal is not None and request.refusal.wakes is None
    return bool(edits) or request.rule is not None or awake


class Candidates(NamedTuple):
    """The n best continuations of each row, (R, n) each."""

    gain: Floats  # log p by which they are ranked
    token: Ints
    log_p: Floats  # the model's own, which `repetition` has not made worse


class Step(NamedTuple):
    """How the rows after a step came about, (R,) each."""

    tokens: Ints
    parents: Ints  # the row before the step that a row continues
    log_p: Floats  # of the token, the model's own


class Ended(NamedTuple):
    """A finished hypothesis: a row, and the token in which it ended."""

    score: float
    steps: int  # that the search had done
    row: int  # at that time
    length: int  # of the row
    token: int | None  # the last one, if there is one
    log_p: float  # of this token


@dataclass(frozen=True)
class Sentence:
    """A sentence at work."""

    index: int
    request: Request
    kept: list[list[Ended]]  # for each group its best finished hypotheses


class Beam:
    """Sentences under beam search: the `Fleet` of greedy search, of n-best lists and of diverse groups as well.

    Each step continues the W best beginnings of a group by every token and looks at the 2 · W best of these: those
    among the first W that end in eos are finished, and the first W others go on. At the maximum length the first W are
    finished as they are. A finished hypothesis has the score log P / lp; of equal ones the earlier, the one of the
    better beginning, the likelier token and the lower id come first. A sentence leaves when none of its beginnings can
    finish among the best any more or, with patience, when so many have finished. W = 1 is greedy: the first to end is
    the answer.

    Diverse groups (Vijayakumar et al., 2018) choose one after the other: a token costs `diversity` for each beginning
    of an earlier group that goes on with it at this step. The price decides the choice only, scores stay the model's.
    Each group keeps its W best, and the outputs are the best of all these, each once.

    An output that a request `ends` is settled when all that it can still become begins so: greedy search knows at once.
    Where several outputs are wanted, they are compared as wholes.

    A refusal that sleeps is not asked. A sentence that chooses a token at which it wakes leaves without an output: it
    is to be searched for again with the refusal awake, which would have chosen the same up to there.
    """

    def __init__(self, config: SearchConfig, eos: int) -> None:
        self.width = K = config.beam
        self._config, self._eos = config, eos
        self._group = W = K // config.groups
        self._keep = config.best if config.groups == 1 else W
        # Of 2 · W candidates at most W end. Earlier groups make at most K - W tokens dearer, and all others stand as
        # they did: a row's best 2 · W by then are among its best 2 · W + K - W before.
        self._n = 1 if K == 1 else 2 * W + K - W
        self._bare = K == 1 and not config.scores
        self._whole = False
        self._wakes: NDArray[np.bool_] | None = None
        self._settles = False  # whether an output may be done before it ends
        self._sentences: list[Sentence] = []
        # Their numbers, (A,) each; `bound` is the score that a group must beat, that of the last hypothesis it keeps,
        # and `log_p` that of each beginning, -inf where there is none.
        numbers: list[Any] = [(name, np.int64) for name in ("length", "limit", "prefix", "ended")]
        numbers += [("norm", float), ("bound", float, config.groups), ("log_p", float, K)]
        self._state = np.zeros(0, numbers)
        self._row = np.empty((0, K), np.int64)  # of each beginning, (A, K): at first one for all
        self._newest = np.empty(0, np.int64)  # (R,): the last token of each row
        self._written: list[list[int]] = []  # by each row, where `_whole` or `_settles`
        self._past: list[Step] = []
        self._steps = 0  # of the past, those no longer kept included

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, indexed: list[tuple[int, Request]]) -> None:
        config, A = self._config, len(indexed)
        new = np.zeros(A, self._state.dtype)
        new["limit"] = [request.room for _, request in indexed]
        new["prefix"] = [len(request.prefix) for _, request in indexed]
        new["norm"] = [length_penalty(n, config.alpha, config.penalty) for n in new["limit"].tolist()]
        new["bound"] = new["log_p"] = -math.inf
        new["log_p"][:, :: self._group] = 0.0  # one beginning for each group
        noted = self._whole or self._settles
        self._whole |= any(whole(config, request) for _, request in indexed)
        self._settles |= config.best == 1 and any(request.ends is not None for _, request in indexed)
        if not noted and (self._whole or self._settles):
            owner, lengths = self._owner().tolist(), self._state["length"].tolist()
            self._written = [self._read(self._steps, r, lengths[a])[0] for r, a in enumerate(owner)]
        if self._whole or self._settles:
            self._written += [[] for _ in indexed]
        for _, request in indexed:
            if request.refusal is not None and request.refusal.wakes is not None:
                self._wakes = request.refusal.wakes
        self._state = np.append(self._state, new)
        self._row = np.append(self._row, np.tile(len(self) + np.arange(A)[:, None], self.width), axis=0)
        self._newest = np.append(self._newest, [request.first for _, request in indexed])
        self._sentences += [Sentence(i, request, [[] for _ in range(config.groups)]) for i, request in indexed]

    def step(self, rows: Rows) -> list[tuple[int, list[Hypothesis]]]:
        state, A, K, G, W = self._state, len(self._state), self.width, self._config.groups, self._group
        gain, token, own = self._candidates(rows)  # (R, n)
        if len(self) < A * K:
            gain, token, own = gain[self._row], token[self._row], own[self._row]
        total: NDArray[np.float64] = state["log_p"].reshape(-1, 1) + gain.reshape(A * K, -1)  # (A·K, n)
        best, go_on = self._choose(total, token)  # (A, G, C), (A, K): where in `total`
        state["length"] += 1
        full = state["length"] == state["limit"]
        ends = (token.take(best[:, :, :W]) == self._eos) | full[:, None, None]
        if ends.any():
            self._finish(ends, best, total, own, token)

        parent = self._row.take(go_on // total.shape[1])
        own, token, log_p = own.take(go_on), token.take(go_on), total.take(go_on)  # (A, K)
        log_p[token == self._eos] = -math.inf  # there were not enough others
        # log P only falls, and lp is largest at the limit: a beginning can come to no more than log P / lp(limit).
        stay = (log_p.reshape(A, G, W).max(2) / state["norm"][:, None] > state["bound"]).any(1) & ~full
        if self._config.patience is not None:
            stay &= state["ended"] < self._config.patience * K
        woken = stay & False
        if self._wakes is not None and not self._whole:
            woken = (self._wakes.take(token, mode="clip") & (log_p > -math.inf)).any(axis=1)
            stay &= ~woken
        settled = self._settled(stay, parent, own, token, log_p) if self._settles else {}
        stay[list(settled)] = False
        outputs = []
        if stay.all():
            state["log_p"] = log_p
        else:
            outputs = [
                (self._sentences[a].index, [] if woken[a] else settled.get(a) or self._outputs(a))
                for a in np.flatnonzero(~stay).tolist()
            ]
            self._sentences = [self._sentences[a] for a in np.flatnonzero(stay).tolist()]
            parent, own, token, self._state = parent[stay], own[stay], token[stay], state[stay]
            self._state["log_p"] = log_p[stay]
        self._write(rows, parent, own, token)
        return outputs

    def said(self, index: int) -> list[list[int]]:
        a = next(a for a, sentence in enumerate(self._sentences) if sentence.index == index)
        alive = set(self._row[a, self._state["log_p"][a] > -math.inf].tolist())
        said = [self._read(self._steps, row, int(self._state["length"][a]))[0] for row in alive]
        return said + [self._hypothesis(ended).tokens for ended in chain(*self._sentences[a].kept)]

    def _owner(self) -> Ints:
        """The sentence of each row, (R,)."""
        return np.repeat(np.arange(len(self._sentences)), np.diff(self._row[:, 0], append=len(self)))

    def _candidates(self, rows: Rows) -> Candidates:
        """The n best continuations of each row, (R, n); of a row inside a prefix nothing but the prefix."""
        if not self._whole:
            best = self._best(rows)
            return Candidates(*best, best.scores)
        log_p = log_soft_max(rows.step(self._newest))  # (R, V)
        own = log_p.copy() if self._config.repetition != 1.0 else None
        inside = np.flatnonzero(self._state["length"] < self._state["prefix"])
        row = self._row[inside, 0]
        token = [self._sentences[a].request.prefix[self._state["length"][a]] for a in inside.tolist()]
        forced = np.maximum(log_p[row, token], FLOOR)
        alive = {*self._row[self._state["log_p"] > -math.inf].tolist()}  # what the others have written is nothing
        requests = [self._sentences[a].request if r in alive else None for r, a in enumerate(self._owner().tolist())]
        edit(log_p, self._written, requests, self._config, self._eos)
        log_p[row] = -math.inf
        log_p[row, token] = forced
        best = best_of(log_p, self._n, normalise=False)
        if own is None:
            return Candidates(*best, best.scores)
        return Candidates(*best, np.maximum(np.take_along_axis(own, best.tokens, 1), FLOOR))

    def _best(self, rows: Rows) -> Best:
        """The n best continuations as the model has them, but no end of a row that is shorter than `shortest`."""
        short = self._state["length"] < self._config.shortest  # (A,)
        if not short.any():
            return rows.best(self._newest, self._n, normalise=not self._bare)
        scores, tokens = rows.best(self._newest, self._n + 1, normalise=not self._bare)  # n without the end
        early = (tokens == self._eos) & short[self._owner(), None]
        order = early.argsort(axis=1, kind="stable")[:, : self._n]
        scores = np.where(early, np.float32(-math.inf), scores)
        return Best(np.take_along_axis(scores, order, 1), np.take_along_axis(tokens, order, 1))

    def _choose(self, total: NDArray[np.float64], token: Ints) -> tuple[Ints, Ints]:
        """The C best candidates of each group, the best first, (A, G, C), and those that go on, (A, K)."""
        A, G, W, eos = len(self._sentences), self._config.groups, self._group, self._eos
        size = W * total.shape[1]
        value, token, first = -total.reshape(A, G, size), token.reshape(A, G, size), np.arange(A)[:, None]
        best, go_on = [], list[Ints]()
        for g in range(G):
            if g:
                chosen = np.concatenate(go_on, axis=1)
                earlier = np.where(np.isfinite(total.take(chosen)), token.take(chosen), eos)  # (A, gW)
                same = (token[:, g, :, None] == earlier[:, None]) & (earlier != eos)[:, None]  # (A, size, gW)
                value[:, g] += self._config.diversity * same.sum(2)
            order = value[:, g].argsort(axis=1, kind="stable")[:, : 2 * W] + (first * G + g) * size
            others, ends = order[:, :W], token.take(order) == eos
            if ends.any():
                others = order.take(ends.argsort(axis=1, kind="stable")[:, :W] + first * order.shape[1])
            best.append(order)
            go_on.append(others)
        return (best[0][:, None], go_on[0]) if G == 1 else (np.stack(best, axis=1), np.concatenate(go_on, axis=1))

    def _finish(
        self, ends: NDArray[np.bool_], best: Ints, total: NDArray[np.float64], own: Floats, token: Ints
    ) -> None:
        """Keep the candidates that end, if they are good enough."""
        config, n = self._config, total.shape[1]
        for a, g, i in np.argwhere(ends).tolist():
            at = int(best[a, g, i])
            p = float(total.take(at))
            if p == -math.inf:
                continue
            self._state["ended"][a] += 1
            length = int(self._state["length"][a])
            score = p / length_penalty(length, config.alpha, config.penalty)
            if score > self._state["bound"][a, g]:
                kept, row = self._sentences[a].kept[g], int(self._row.take(at // n))
                end = Ended(score, self._steps, row, length - 1, int(token.take(at)), float(own.take(at)))
                insort(kept, end, key=lambda ended: -ended.score)  # after its equals
                del kept[self._keep :]
                if len(kept) == self._keep:
                    self._state["bound"][a, g] = math.inf if self._group == 1 else kept[-1].score

    def _settled(
        self, stay: NDArray[np.bool_], parent: Ints, own: Floats, token: Ints, log_p: NDArray[np.float64]
    ) -> dict[int, list[Hypothesis]]:
        """By sentence the output of those that need not go on; all but `stay` (A,) are (A, K)."""
        found = {}
        for a in np.flatnonzero(stay).tolist():
            ends, live = self._sentences[a].request.ends, np.flatnonzero(log_p[a] > -math.inf).tolist()
            if ends is None:
                continue
            said = [[*self._written[parent[a, k]], int(token[a, k])] for k in live]
            said += [self._hypothesis(each).tokens for each in chain(*self._sentences[a].kept)]
            tokens = common_beginning(said) if said[1:] else said[0]
            if tokens and ends(tokens):
                best, length, config = live[0], int(self._state["length"][a]) - 1, self._config
                scores = [*self._read(self._steps, int(parent[a, best]), length)[1], float(own[a, best])]
                scores = [] if self._bare else scores[: len(tokens)]
                p = math.nan if self._bare else math.fsum(scores)
                norm = length_penalty(len(tokens), config.alpha, config.penalty)
                found[a] = [Hypothesis(tokens, p / norm, p, scores)]
        return found

    def _outputs(self, a: int) -> list[Hypothesis]:
        """The best that a sentence has come to: where it could neither end nor go on, what it had before this step."""
        length = int(self._state["length"][a]) - 1
        norm = length_penalty(max(length, 1), self._config.alpha, self._config.penalty)
        ended = list(chain(*self._sentences[a].kept)) or [
            Ended(p / norm, self._steps, row, length, None, 0.0)
            for p, row in zip(self._state["log_p"][a].tolist(), self._row[a].tolist(), strict=True)
            if p > -math.inf
        ]
        outputs: dict[tuple[int, ...], Hypothesis] = {}
        for hypothesis in map(self._hypothesis, sorted(ended, key=lambda ended: -ended.score)):
            outputs.setdefault(tuple(hypothesis.tokens), hypothesis)
            if len(outputs) == self._config.best:
                break
        return list(outputs.values())

    def _hypothesis(self, ended: Ended) -> Hypothesis:
        tokens, scores = self._read(ended.steps, ended.row, ended.length)
        if ended.token is not None:
            scores.append(ended.log_p)
            if ended.token != self._eos:
                tokens.append(ended.token)
        if self._bare:
            return Hypothesis(tokens, math.nan, math.nan, [])
        return Hypothesis(tokens, ended.score, math.fsum(scores), scores)

    def _write(self, rows: Rows, parent: Ints, own: Floats, token: Ints) -> None:
        """Continue the rows of the parents, all (A, K): with all beginnings, or with one as far as a prefix goes."""
        A, K = token.shape
        if self._whole and (inside := self._state["length"] <= self._state["prefix"]).any():
            count = np.where(inside, 1, K)[:, None]
            self._row = count.cumsum()[:, None] - count + np.minimum(np.arange(K), count - 1)
            first = np.arange(K) < count
            parent, own, token = parent[first], own[first], token[first]
        else:
            self._row = np.arange(A * K).reshape(A, K)
        self._newest, parent = token.ravel(), parent.ravel()
        rows.reorder(parent)
        if self._whole or self._settles:
            pairs = zip(parent.tolist(), self._newest.tolist(), strict=True)
            self._written = [[*self._written[r], token] for r, token in pairs]
        self._past.append(Step(self._newest, parent, own.ravel()))
        self._steps += 1
        if len(self._past) > PAST:
            del self._past[: len(self._past) - int(self._state["length"].max(initial=0))]

    def _read(self, steps: int, row: int, length: int) -> tuple[list[int], list[float]]:
        """The last tokens that a row had written after so many steps, and their log p."""
        last = len(self._past) - self._steps + steps
        tokens, scores = [], []
        for step in reversed(self._past[last - length : last]):
            tokens.append(int(step.tokens[row]))
            scores.append(float(step.log_p[row]))
            row = int(step.parents[row])
        return tokens[::-1], scores[::-1]
