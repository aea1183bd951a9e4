"""What a search and a model say to each other.

Letters: R rows, V vocabulary, n candidates.

A search holds `Rows`: unfinished sequences side by side, each of them reading one source: a sentence, a prompt, or what
else its model reads. It starts them, steps them by a token, and reorders them; of a source it knows the length alone.
Whoever can do these three things, in whatever way, can be searched: PyTorch on any device (`module.py`), a native
engine, an ensemble, another runtime.
"""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.checks import above, at_least, one_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


ENDLESS = 2**62


class Best(NamedTuple):
    """The n best continuations of each row, the best first; of equals the lower id first."""

    scores: Floats  # (R, n): log-probabilities, or bare logits where no soft-max was asked for
    tokens: Ints  # (R, n)


class Rows(Protocol):
    """Unfinished sequences, each of them reading one source: a value that the search holds."""

    def start(self, sources: Sequence[Any]) -> None:
        """Read sources; one new row for each, after the rows that are there."""

    def extend(self, texts: Sequence[Sequence[int]]) -> None:
        """Append some tokens to each row, of which none says what comes after it."""

    def step(self, tokens: Ints) -> Floats:
        """Append a token to each row, (R,) -> logits of the next one (R, V), which the caller may overwrite."""

    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        """The same step, of which only the n (or V) best continuations of each row are wanted."""

    def reorder(self, rows: Ints) -> None:
        """Row i becomes what row rows[i] was; a row may be named often or never. Rows of a source stay together."""


class Searchable(Protocol):
    """A model, ready to be searched."""

    vocabulary: int
    ragged: bool  # a `start` costs no more than its sources; if not, few and large ones are better

    def rows(self) -> Rows:
        """No row yet."""

    def room(self, source: Any) -> int | None:
        """Tokens that an output may have, where there is a limit; a `ValueError` if the source cannot be read."""


class Rule(Protocol):
    """What an output must be, token by token, whatever a model thinks of it."""

    def allowed(self, source: Any, written: Sequence[int], room: int) -> Sequence[int] | NDArray[np.bool_]:
        """The ids that may follow what is written, where `room` more may, eos included: never none of them.

        Every way that it allows ends in eos within the room. A `ValueError` says that nothing can. A rule that knows
        of no room says by a mask (V,) what may follow; where nothing may, the output ends as it is.
        """


class Refusal(Protocol):
    """What an output must not become: as a rule, but it says what may not follow, and all else may."""

    @property
    def wakes(self) -> NDArray[np.bool_] | None:
        """(V,): until one of these is chosen, it refuses nothing but some of these. None: it is always awake."""

    def refused(self, written: Sequence[int]) -> Sequence[int]:
        """The ids that must not follow what is written."""


class Awake:
    """A refusal that is asked at every step, whatever is chosen."""

    wakes = None

    def __init__(self, refusal: Refusal) -> None:
        self.refused = refusal.refused


@dataclass(frozen=True)
class Request:
    """A source that an output is searched for, and what the output must be like."""

    source: Any  # as the model reads it: a sentence with its end, a prompt without its last token
    first: int  # the token that the first step reads: bos, the last of a prompt
    room: int = ENDLESS  # tokens that the output may have, its end included
    prefix: tuple[int, ...] = ()  # the output begins so
    required: tuple[tuple[int, ...], ...] = ()  # phrases that it contains
    forbidden: tuple[tuple[int, ...], ...] = ()  # phrases that it does not contain
    seed: int = 0  # of its random numbers, where there are any
    draw: int = 0  # the number of its first output, where they are drawn by chance
    rule: Rule | None = None  # which tokens may follow which
    refusal: Refusal | None = None  # which may not
    ends: Callable[[Sequence[int]], bool] | None = None  # whether an output that begins so goes no further


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]  # without bos and eos
    score: float  # by which hypotheses are ranked: log P over a norm of the length; NaN if not asked for
    log_probability: float  # log P of the tokens and of eos, the model's own: `repetition` is in the score alone
    token_scores: list[float]  # its parts: log p of each token, and of eos unless it was cut


def best_of(logits: Floats, n: int, *, normalise: bool = True) -> Best:
    """The n (or V) best of each row of logits (R, V): the slow truth of every engine's own selection.

    >>> best_of(np.array([[0.0, 2.0, 2.0, 1.0]], dtype=np.float32), 2, normalise=False).tokens.tolist()
    [[1, 2]]
    """
    R, V = logits.shape
    n = min(n, V)
    if n < V:
        # The n-th largest value, then every token that is larger and the first of those that equal it.
        bound = -np.partition(-logits, n - 1, axis=1)[:, n - 1 : n]  # (R, 1)
        chosen = logits >= bound
        if not (chosen.sum(1) == n).all():  # there are equals, and too many
            larger, equal = logits > bound, logits == bound
            chosen = larger | (equal & (equal.cumsum(1) <= n - larger.sum(1, keepdims=True)))
        if np.isnan(bound).any() or not (chosen.sum(1) == n).all():
            raise ValueError(DAMAGED)
        tokens = chosen.nonzero()[1].reshape(R, n)
    else:
        tokens = np.broadcast_to(np.arange(V), (R, V))
    values = np.take_along_axis(logits, tokens, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    values, tokens = np.take_along_axis(values, order, 1), np.take_along_axis(tokens, order, 1)
    return Best(normalised(values, logits, values[:, :1]) if normalise else values, tokens)


def normalised(values: Floats, logits: Floats, top: Floats) -> Floats:
    """Some values (R, n) of logits (R, V), whose largest are (R, 1), as log-probabilities."""
    with np.errstate(invalid="ignore"):
        total = np.exp((logits - top).astype(np.float64)).sum(1, keepdims=True)
    if np.isnan(total).any():
        raise ValueError(DAMAGED)
    return (values - top - np.log(total)).astype(np.float32)


FLOOR = -100.0  # log p of a token that is asked for although the model, or a shortlist, holds it impossible
DAMAGED = "the model's scores are not numbers (NaN or infinite): its weights are damaged or diverged"


@dataclass(frozen=True)
class SamplingConfig:
    """Drawing tokens by chance instead of searching for the best."""

    temperature: float = 1.0  # logits are divided by it; towards 0 the likeliest token prevails
    top_k: int | None = None  # draw from so many likeliest tokens
    top_p: float | None = None  # draw from the likeliest tokens that together have this probability
    min_p: float | None = None  # draw from tokens at least this share as likely as the likeliest
    typical: float | None = None  # draw from the tokens of most typical surprise that together have this probability

    def __post_init__(self) -> None:
        above(0, temperature=self.temperature)
        at_least(1, top_k=self.top_k)
        for name in ("top_p", "min_p", "typical"):
            if (p := getattr(self, name)) is not None and not 0.0 < p <= 1.0:
                raise ValueError(f"{name} = {p}: it lies above 0 and at most at 1")


@dataclass(frozen=True)
class SearchConfig:
    """How outputs are searched for. The defaults are the paper's (§6.1)."""

    scores = True  # are told: no setting, but what `Bare` is about
    beam: int = 4  # hypotheses kept; 1: greedy
    best: int = 1  # outputs for each sentence, the best first
    alpha: float = 0.6  # exponent of the length penalty; 0: off
    penalty: str = "paper"  # of the length: paper, ((5 + length) / 6)^alpha; or mean, length^alpha
    patience: float | None = None  # stop at patience x beam finished hypotheses; left out: when none can get better
    groups: int = 1  # of a diverse beam, which divide it evenly
    diversity: float = 0.5  # what a token costs for each earlier group that chose it at this step
    extra: int = 50  # an output has at most this many tokens more than its input
    limit: int | None = None  # tokens that an output has at most, however long its input
    shortest: int = 0  # tokens that an output has at least
    block: int = 0  # no n-gram of this length twice; 0: off
    repetition: float = 1.0  # logits of tokens already written are made this many times worse
    ordered: bool = False  # required phrases appear in their order
    sampling: SamplingConfig | None = None  # draw `best` outputs by chance instead of searching

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam, best=self.best, groups=self.groups, limit=self.limit)
        at_least(0, extra=self.extra, shortest=self.shortest, block=self.block)
        at_least(0, alpha=self.alpha, diversity=self.diversity)
        above(0, patience=self.patience, repetition=self.repetition)
        one_of(("paper", "mean"), penalty=self.penalty)
        if self.sampling is None and self.best > self.beam:
            raise ValueError(f"best = {self.best}: a beam of {self.beam} yields at most {self.beam} outputs")
        if self.beam % self.groups:
            raise ValueError(f"groups = {self.groups}: they must divide the beam of {self.beam} evenly")

    def request(self, source: Sized, first: int, **more: Any) -> Request:
        """A request whose output may be `extra` tokens longer than its source.

        >>> SearchConfig(extra=10).request([5, 6, 2], first=1).room
        13
        """
        return Request(source, first, len(source) + self.extra, **more)


@dataclass(frozen=True)
class Bare(SearchConfig):
    """The same where nobody asks for scores: greedy search does without a soft-max."""

    scores = False


def bounded(request: Request, config: SearchConfig, most: int | None) -> Request:
    """The request with the room that it has: its own, the limit of the search, the model's, whichever is least."""
    room = min(request.room, config.limit or ENDLESS, ENDLESS if most is None else most)
    if room == ENDLESS:
        raise ValueError("nothing ends its output: set `limit`")
    if config.shortest > room:
        raise ValueError(
            f"shortest = {config.shortest}: its output has at most {room} tokens: lower it, or raise `extra` or `limit`"
        )
    return replace(request, room=room)
