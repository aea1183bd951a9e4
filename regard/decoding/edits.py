"""What an output must not be like, written into the scores of its next token.

Letters: R rows, V vocabulary, T tokens of the longest row, N the length of an n-gram.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from regard.decoding.protocol import FLOOR, Floats, Ints, Request, Rule, SearchConfig, normalised

Phrases = tuple[tuple[int, ...], ...]


def log_soft_max(logits: Floats) -> Floats:
    """Logits (R, V) -> log-probabilities.

    >>> np.exp(log_soft_max(np.zeros((1, 4), dtype=np.float32))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    return normalised(logits, logits, logits.max(1, keepdims=True))


def edit(
    log_p: Floats,
    written: Sequence[Sequence[int]],
    requests: Sequence[Request | None],
    config: SearchConfig,
    eos: int,
) -> None:
    """Change log-probabilities of the next token, (R, V), in place: -inf where a token must not follow.

    `written` holds for each row what it says so far, a prefix included; `requests` whose row it is, None: of nobody
    any more. The end is forbidden before `shortest` tokens, what would complete an n-gram of length `block` a second
    time, what would complete a forbidden phrase or is refused, and what a rule does not allow. A token already written
    has its log-probability, which is not above 0, multiplied by `repetition` (Keskar et al., 2019).

    >>> log_p = np.log(np.full((1, 5), 0.2, dtype=np.float32))
    >>> edit(log_p, [[3, 4, 3]], [Request([2], 1, forbidden=((1,),))], SearchConfig(block=2), eos=2)
    >>> np.isneginf(log_p).tolist()  # 3 4 is there already, 1 is forbidden
    [[False, True, False, False, True]]
    """
    if config.shortest:
        log_p[[r for r, tokens in enumerate(written) if len(tokens) < config.shortest], eos] = -math.inf
    if config.repetition != 1.0 or config.block:
        lengths = np.fromiter(map(len, written), np.int64, len(written))  # (R,)
        tokens = np.fromiter(chain.from_iterable(written), np.int64, lengths.sum())
        if config.repetition != 1.0:
            where = np.repeat(np.arange(len(written)), lengths), tokens
            log_p[where] = log_p[where] * config.repetition  # once, however often a token was written
        if config.block:
            log_p[repeats(tokens, lengths, config.block)] = -math.inf
    for r, request in enumerate(requests):
        if request is not None:
            if request.forbidden:
                log_p[r, completing(request.forbidden, written[r])] = -math.inf
            if request.refusal is not None:
                log_p[r, request.refusal.refused(written[r])] = -math.inf
            if request.rule is not None:
                _obey(request.rule, log_p[r], written[r], request)


def _obey(rule: Rule, log_p: Floats, written: Sequence[int], request: Request) -> None:
    """What a rule allows stays possible, however unlikely the model holds it: so an output can always be finished."""
    said = rule.allowed(request.source, written, request.room - len(written))
    if isinstance(said, np.ndarray):
        np.maximum(log_p, FLOOR, out=log_p)
        log_p[: len(said)][~said] = log_p[len(said) :] = -math.inf  # a model may have more tokens than are used
        return
    allowed = list(said)
    if not allowed or min(allowed) < 0 or max(allowed) >= len(log_p):
        raise ValueError(
            f"a rule allows {allowed} after {[*written]}: it must be one id at least, each in 0..{len(log_p) - 1}"
        )
    kept = np.maximum(log_p[allowed], FLOOR)
    log_p[:] = -math.inf
    log_p[allowed] = kept


def repeats(tokens: Ints, lengths: Ints, N: int) -> tuple[Ints, Ints]:
    """Rows and tokens that would repeat an n-gram of length N, of rows given one after the other."""
    T = int(lengths.max(initial=0))
    if T < N:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = np.full((len(lengths), T), -1)
    rows[np.arange(T) >= T - lengths[:, None]] = tokens  # flush right, so that the newest stand in one column
    same = rows[:, : T - N + 1] >= 0  # (R, T - N + 1): the n-gram that begins here begins like the newest one
    for i in range(N - 1):
        same &= rows[:, i : T - N + 1 + i] == rows[:, T - N + 1 + i, None]
    return same.nonzero()[0], rows[:, N - 1 :][same]


class Endings(NamedTuple):
    """Phrases, sorted by what comes before their last token."""

    last: dict[tuple[int, ...], list[int]]  # beginning -> last tokens
    lengths: list[int]  # of the beginnings, each once


@lru_cache(maxsize=1024)
def endings(phrases: Phrases) -> Endings:
    """Thousands of phrases cost one look-up for each length that they have."""
    last = defaultdict(list)
    for *beginning, token in phrases:
        last[tuple(beginning)].append(token)
    return Endings(dict(last), sorted({len(beginning) for beginning in last}))


def completing(phrases: Phrases, written: Sequence[int]) -> list[int]:
    """The tokens that would complete one of the phrases after what is written.

    >>> completing(((7,), (3, 4, 8), (4, 9), (3, 9)), [5, 3, 4])
    [7, 9, 8]
    """
    last, lengths = endings(phrases)
    n = len(written)
    return [token for m in lengths if m <= n for token in last.get(tuple(written[n - m :]), ())]
