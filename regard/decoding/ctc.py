"""What a model says that tells a token, or a blank, of each position of what it hears (CTC; Graves et al., 2006).

Letters: T positions, V vocabulary.

A path has a token at each position. It says what is left when tokens that are repeated become one, and blanks go:
a a - a b b says a a b. How likely a text is, is the sum over all paths that say it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np
from torch import Tensor

from regard.checks import at_least

BLANK = 0
NEVER = -math.inf


def collapsed(path: Sequence[int], blank: int = BLANK) -> list[int]:
    """What a path says.

    >>> collapsed([7, 7, 0, 7, 8, 8])
    [7, 7, 8]
    """
    return [token for token, _ in groupby(path) if token != blank]


def greedy(log_p: Tensor, blank: int = BLANK) -> tuple[list[int], float]:
    """What the likeliest path says, log_p (T, V), and log p of that path alone."""
    best = log_p.max(-1)
    return collapsed(best.indices.tolist(), blank), float(best.values.double().sum())


def prefix_beam(log_p: Tensor, beam: int, blank: int = BLANK) -> list[tuple[list[int], float]]:
    """The likeliest texts, log_p (T, V), at most `beam` of them, each with the log of its probability: position by
    position, of all that may have been said so far the likeliest are kept (Graves, 2008; Hannun et al., 2014).

    Of each prefix two sums are known: over paths that end in a blank, and in its last token. Only the second tells a
    token that is drawn out from one that is said again. At a position, the likeliest `beam` tokens are looked at.
    """
    at_least(1, beam=beam)
    kept: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, NEVER)}
    best = log_p.topk(min(beam + 1, log_p.shape[1]))
    for row, tokens, scores in zip(log_p[:, blank].tolist(), best.indices.tolist(), best.values.tolist(), strict=True):
        into: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [NEVER, NEVER])
        for prefix, (in_blank, in_token) in kept.items():
            either = np.logaddexp(in_blank, in_token)
            into[prefix][0] = np.logaddexp(into[prefix][0], either + row)
            for token, score in zip(tokens, scores, strict=True):
                if token == blank:
                    continue
                longer = (*prefix, token)
                if prefix and token == prefix[-1]:
                    into[prefix][1] = np.logaddexp(into[prefix][1], in_token + score)
                    into[longer][1] = np.logaddexp(into[longer][1], in_blank + score)
                else:
                    into[longer][1] = np.logaddexp(into[longer][1], either + score)
        possible = [each for each in into.items() if max(each[1]) > NEVER]
        order = sorted(possible, key=lambda each: (-np.logaddexp(each[1][0], each[1][1]), each[0]))[:beam]
        kept = {prefix: (sums[0], sums[1]) for prefix, sums in order}
    return [([*prefix], float(np.logaddexp(*sums))) for prefix, sums in kept.items()]


def shortest_path(tokens: Sequence[int]) -> int:
    """Positions that a text needs: one for each token, and a blank between two that are the same."""
    return len(tokens) + sum(a == b for a, b in pairwise(tokens))
