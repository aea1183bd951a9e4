"""Beam search whose outputs contain phrases that are required (Post and Vilar, 2018).

Letters: R rows, V vocabulary.

A beginning knows which phrases it still lacks, and how many tokens would write them. Beginnings that lack equally many
form a bank, and the banks share the beam: one that has just begun a phrase, at some cost, need not compete with those
that have not. A token after which the room would not suffice for what is lacking is never chosen, and eos only when
nothing is: so every output contains its phrases.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from regard.decoding.beam import length_penalty
from regard.decoding.edits import Phrases, completing, edit, log_soft_max
from regard.decoding.protocol import FLOOR, Floats, Hypothesis, Request, Rows, SearchConfig, best_of

STATES = 300  # that are looked at to tell whether room suffices: there may be exponentially many


class Lacking(NamedTuple):
    """What a beginning lacks."""

    phrases: Phrases  # one that is required twice stands here twice
    begun: tuple[int, ...] = ()  # the longest end of the beginning with which one of them, or the next in order, begins

    @property
    def tokens(self) -> int:
        """How many tokens would write all of it, one phrase after the other."""
        return sum(map(len, self.phrases)) - len(self.begun)


class Goal:
    """The phrases of a sentence: a phrase required twice occurs twice; occurrences may overlap unless in order."""

    def __init__(self, request: Request, config: SearchConfig) -> None:
        self.start = Lacking(request.required)
        self._ordered = config.ordered
        self._required = {token for phrase in request.required for token in phrase}
        # Others cannot be completed by a token that is required, and a free token is the search's to choose.
        self._forbidden = tuple(phrase for phrase in request.forbidden if phrase[-1] in self._required)
        self._reach = max(map(len, self._forbidden), default=1) - 1
        self.special_cases = self._required.union(*self._forbidden)  # any other token ends whatever was begun
        self._known: dict[tuple[Lacking, tuple[int, ...], int], bool] = {}

    def after(self, lacking: Lacking, tokens: Iterable[int]) -> Lacking:
        """What is lacking after more tokens.

        >>> goal = Goal(Request([2], 1, required=((5, 6, 5, 7),)), SearchConfig())
        >>> goal.after(goal.start, [5, 6, 5, 6]).begun  # the second 5 6 may still become the phrase
        (5, 6)
        """
        for token in tokens:
            if token not in self._required:
                lacking = Lacking(lacking.phrases)
                continue
            phrases, seen = lacking.phrases, (*lacking.begun, token)
            live = set(phrases[:1] if self._ordered else phrases)
            whole = [phrase for phrase in live if seen[-len(phrase) :] == phrase]
            if whole:
                left = list(phrases)
                for phrase in whole:
                    left.remove(phrase)
                phrases = tuple(left)
                if self._ordered:  # the next begins after it
                    seen = ()
                live = set(phrases[:1] if self._ordered else phrases)
            begins = {phrase[:n] for phrase in live for n in range(len(phrase))}
            lacking = Lacking(phrases, next((seen[i:] for i in range(len(seen)) if seen[i:] in begins), ()))
        return lacking

    def helpful(self, lacking: Lacking, written: Sequence[int]) -> list[int]:
        """The tokens after which less is lacking, but for those that would complete what is forbidden."""
        begun = lacking.begun
        live = lacking.phrases[:1] if self._ordered else lacking.phrases
        starts = {phrase[n] for phrase in live for n in range(len(phrase)) if begun[len(begun) - n :] == phrase[:n]}
        starts -= {*completing(self._forbidden, written)}
        return sorted(token for token in starts if self.after(lacking, [token]).tokens < lacking.tokens)

    def feasible(self, lacking: Lacking, written: Sequence[int], room: int) -> bool:
        """Whether so many more tokens suffice; of what is too entangled to tell, that they do not."""
        self._left = STATES
        return self._suffices(lacking, written, room)

    def _suffices(self, lacking: Lacking, written: Sequence[int], room: int) -> bool:
        if not self._forbidden or lacking.tokens > room:
            return lacking.tokens <= room
        # With a free token before each phrase nothing forbidden can arise between them.
        if sum(len(phrase) + 1 for phrase in lacking.phrases) <= room:
            return True
        end = tuple(written[max(len(written) - self._reach, 0) :])
        key = lacking, end, room
        if key in self._known:
            return self._known[key]
        self._left -= 1
        if self._left < 0:
            return False
        enough = any(
            self._suffices(self.after(lacking, [token]), (*end, token), room - 1)
            for token in self.helpful(lacking, end)
        ) or self._suffices(Lacking(lacking.phrases), (), room - 1)
        if enough or self._left >= 0:  # otherwise it may be for want of looking
            self._known[key] = enough
        return enough


def check(request: Request, config: SearchConfig, eos: int, show: Callable[[tuple[int, ...]], str] = str) -> None:
    """Refuse what no output in the request's room can satisfy: a `ValueError` has the phrase as `show` has it."""
    forbidden, prefix = request.forbidden, request.prefix
    for phrase in request.required:
        if not phrase:
            raise ValueError("a required phrase is empty: leave it out")
        if eos in phrase:
            raise ValueError(f"the required phrase {show(phrase)} holds the end, {eos}: leave it out")
        if inner := next((other for other in forbidden if contains(phrase, other)), None):
            raise ValueError(
                f"the required phrase {show(phrase)} contains {show(inner)}, which is forbidden: drop one of them"
            )
    if request.required and config.groups > 1:
        raise ValueError(
            f"groups = {config.groups}: a diverse beam cannot be held to phrases such as {show(request.required[0])}"
        )
    if inner := next((other for other in forbidden if contains(prefix, other)), None):
        raise ValueError(f"the prefix {show(prefix)} contains {show(inner)}, which is forbidden: drop one of them")
    goal = Goal(request, config)
    lacking, room = goal.after(goal.start, prefix), request.room - len(prefix)
    if lacking.tokens > room:
        raise ValueError(
            f"the required phrases {', '.join(map(show, lacking.phrases))} need {lacking.tokens} tokens, but an output "
            f"of at most {request.room} has room for {room} after its prefix: require less, or raise `extra`"
        )
    if not goal.feasible(lacking, prefix, room):
        raise ValueError(
            f"the required phrases {', '.join(map(show, lacking.phrases))} do not fit into {room} tokens without "
            "writing what is forbidden where they meet: raise `extra`"
        )


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    """Whether a phrase occurs in a text.

    >>> contains([3, 4, 5], [4, 5]), contains([3, 4, 5], [3, 5])
    (True, False)
    """
    return any(tuple(tokens[i : i + len(phrase)]) == tuple(phrase) for i in range(len(tokens) - len(phrase) + 1))


class Beginning(NamedTuple):
    """An unfinished hypothesis."""

    tokens: list[int]
    scores: list[float]  # the model's own log p of each
    log_p: float  # of all, as they are ranked
    lacking: Lacking


class Candidate(NamedTuple):
    """A beginning, and a token to continue it."""

    row: int  # of the beginning
    beginning: Beginning
    token: int
    own: float  # the model's log p of the token
    log_p: float  # of all, as they are ranked
    lacking: Lacking  # after it


@dataclass
class HeldSentence:
    """A sentence at work."""

    index: int
    request: Request
    goal: Goal
    beginnings: list[Beginning]
    kept: list[Hypothesis] = field(default_factory=list)
    ended: int = 0  # hypotheses that finished, kept or not


def share(candidates: Sequence[Candidate], width: int) -> list[Candidate]:
    """The candidates, given the best first, that have a place in the beam, in the same order.

    The banks take turns until there is no place: first the one that lacks least, then the others, the one with the
    best candidate first. With fewer places than banks it is thus the hopeless ones that go.
    """
    banks: dict[int, list[int]] = {}  # in the order of their best candidates
    for i, candidate in enumerate(candidates):
        banks.setdefault(candidate.lacking.tokens, []).append(i)
    least = min(banks, default=0)
    turns = [banks[lacking] for lacking in sorted(banks, key=lambda lacking: lacking != least)]
    rounds = max(map(len, turns), default=0)
    order = [bank[n] for n in range(rounds) for bank in turns if n < len(bank)]
    return [candidates[i] for i in sorted(order[:width])]


class Constrained:
    """Sentences under beam search, each with phrases that its outputs contain; without any, it is `Beam`.

    All that Beam honours is honoured, but for diverse groups. Where n-grams are blocked, a token that helps to write a
    phrase is exempt: what is required outranks what is only unwanted.
    """

    def __init__(self, config: SearchConfig, eos: int) -> None:
        self.width = config.beam
        self._config, self._eos = config, eos
        self._sentences: list[HeldSentence] = []

    def __len__(self) -> int:
        return sum(len(sentence.beginnings) for sentence in self._sentences)

    def add(self, indexed: list[tuple[int, Request]]) -> None:
        for index, request in indexed:
            goal = Goal(request, self._config)
            self._sentences.append(HeldSentence(index, request, goal, [Beginning([], [], 0.0, goal.start)]))

    def step(self, rows: Rows) -> list[tuple[int, list[Hypothesis]]]:
        at_work = [(sentence, beginning) for sentence in self._sentences for beginning in sentence.beginnings]
        newest = [one.tokens[-1] if one.tokens else sentence.request.first for sentence, one in at_work]
        own = log_soft_max(rows.step(np.array(newest)))  # (R, V): the model's, before any edit
        log_p = own.copy()
        written, requests = [one.tokens for _, one in at_work], [sentence.request for sentence, _ in at_work]
        edit(log_p, written, requests, self._config, self._eos)
        helpful = [
            self._hold(sentence, beginning, log_p[r], own[r]) if beginning.lacking.phrases else []
            for r, (sentence, beginning) in enumerate(at_work)
        ]
        best = best_of(log_p, 2 * self.width, normalise=False).tokens.tolist()  # of which at most half are eos

        finished, staying, parents, r = [], [], list[int](), 0
        for sentence in self._sentences:
            candidates = []
            for beginning in sentence.beginnings:
                t, prefix = len(beginning.tokens), sentence.request.prefix
                for token in [prefix[t]] if t < len(prefix) else dict.fromkeys(best[r] + helpful[r]):
                    known = max(float(own[r, token]), FLOOR)
                    gain = known if t < len(prefix) else float(log_p[r, token])
                    if gain > -math.inf:
                        lacking = sentence.goal.after(beginning.lacking, [token])
                        known = gain if self._config.repetition == 1.0 else known
                        candidates.append(Candidate(r, beginning, token, known, beginning.log_p + gain, lacking))
                r += 1
            candidates.sort(key=lambda candidate: -candidate.log_p)  # of equals the better beginning, the lower id
            go_on = self._choose(sentence, candidates)
            if go_on:
                staying.append(sentence)
                parents += [candidate.row for candidate in go_on]
                sentence.beginnings = [_continued(candidate) for candidate in go_on]
            else:
                finished.append((sentence.index, self._outputs(sentence)))
        self._sentences = staying
        rows.reorder(np.array(parents, np.int64))
        return finished

    def said(self, index: int) -> list[list[int]]:
        sentence = next(sentence for sentence in self._sentences if sentence.index == index)
        return [beginning.tokens for beginning in sentence.beginnings] + [output.tokens for output in sentence.kept]

    def _hold(self, sentence: HeldSentence, beginning: Beginning, log_p: Floats, own: Floats) -> list[int]:
        """Forbid what would leave too little room, in place, (V,); return the tokens that help."""
        goal, tokens, lacking = sentence.goal, beginning.tokens, beginning.lacking
        log_p[self._eos] = -math.inf
        helpful = goal.helpful(lacking, tokens)
        if sentence.request.refusal is not None:
            refused = {*sentence.request.refusal.refused(tokens)}
            helpful = [token for token in helpful if token not in refused]
        for token in helpful:
            if log_p[token] == -math.inf:
                log_p[token] = max(own[token], FLOOR)
        room = sentence.request.room - len(tokens) - 1
        fits = {
            token: log_p[token]
            for token in goal.special_cases
            if goal.feasible(goal.after(lacking, [token]), (*tokens, token), room)
        }
        free = goal.feasible(Lacking(lacking.phrases), (), room)
        log_p[list(goal.special_cases) if free else slice(None)] = -math.inf
        log_p[list(fits)] = list(fits.values())
        return [token for token in helpful if token in fits]

    def _choose(self, sentence: HeldSentence, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Keep those that finish, and return those that go on: none if none of them can get among the best."""
        config, eos = self._config, self._eos
        full = len(sentence.beginnings[0].tokens) + 1 == sentence.request.room
        for candidate in share(candidates, self.width):
            if candidate.token == eos or full:
                done = _continued(candidate)
                score = done.log_p / length_penalty(len(done.scores), config.alpha, config.penalty)
                tokens = done.tokens[:-1] if candidate.token == eos else done.tokens
                found = Hypothesis(tokens, score, math.fsum(done.scores), done.scores)
                insort(sentence.kept, found, key=lambda h: -h.score)
                del sentence.kept[config.best :]
                sentence.ended += 1
        go_on = share([candidate for candidate in candidates if candidate.token != eos], self.width)
        if full or not go_on or (config.patience is not None and sentence.ended >= config.patience * self.width):
            return []
        if len(sentence.kept) < config.best:
            return go_on
        # As in Beam: log P only falls, lp is largest at the limit, and with one beginning the first to end is it.
        reach = go_on[0].log_p / length_penalty(sentence.request.room, config.alpha, config.penalty)
        return go_on if self.width > 1 and reach > sentence.kept[-1].score else []

    def _outputs(self, sentence: HeldSentence) -> list[Hypothesis]:
        """The best; where no beginning could either end or go on, what is there."""
        if sentence.kept:
            return sentence.kept
        config, outputs = self._config, []
        for tokens, scores, log_p, lacking in sentence.beginnings:
            if not lacking.phrases:
                norm = length_penalty(max(len(scores), 1), config.alpha, config.penalty)
                outputs.append(Hypothesis(tokens, log_p / norm, math.fsum(scores), scores))
        if not outputs:
            phrases = ", ".join(map(str, sentence.request.required))
            raise ValueError(f"no output was found that contains {phrases} and nothing that is forbidden: forbid less")
        return sorted(outputs, key=lambda h: -h.score)[: config.best]


def _continued(candidate: Candidate) -> Beginning:
    before = candidate.beginning
    tokens, scores = [*before.tokens, candidate.token], [*before.scores, candidate.own]
    return Beginning(tokens, scores, candidate.log_p, candidate.lacking)
