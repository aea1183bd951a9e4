"""A second opinion on the outputs of a search."""

import math
from collections.abc import Sequence
from dataclasses import replace

from regard.decoding.protocol import Hypothesis


def turned(hypothesis: Hypothesis) -> Hypothesis:
    """What was written from its last token to its first, as it is read.

    >>> turned(Hypothesis([5, 6, 7], -3.0, -3.0, [-0.5, -1.0, -1.25, -0.25]))
    Hypothesis(tokens=[7, 6, 5], score=-3.0, log_probability=-3.0, token_scores=[-1.25, -1.0, -0.5, -0.25])
    """
    tokens, scores = hypothesis.tokens, hypothesis.token_scores
    return replace(hypothesis, tokens=tokens[::-1], token_scores=scores[: len(tokens)][::-1] + scores[len(tokens) :])


def rescore(hypotheses: Sequence[Hypothesis], scores: Sequence[float], weight: float) -> list[Hypothesis]:
    """The hypotheses with the score: their own + weight · the other, the best first; of equals the earlier first.

    The other scores may come from anywhere. From a model that was trained on reversed targets, which knows how outputs
    end where a left-to-right one knows how they begin, on the scale of `Hypothesis.score` if alpha = 1 and penalty =
    mean:

        pairs = [(source, h.tokens[::-1]) for h in hypotheses]
        parts = log_probabilities(right_to_left, pairs, first=bos, eos=eos)  # decoding/scoring.py
        first = rescore(hypotheses, [sum(p) / len(p) for p in parts], weight=1.0)[0]

    >>> two = [Hypothesis([5], -1.0, -1.0, [-0.5, -0.5]), Hypothesis([6], -1.5, -1.5, [-1.0, -0.5])]
    >>> [(h.tokens, h.score) for h in rescore(two, [-4.0, -1.0], 0.5)]
    [([6], -2.0), ([5], -3.0)]
    """
    if len(scores) != len(hypotheses):
        raise ValueError(f"{len(hypotheses)} hypotheses but {len(scores)} scores: give one for each")
    rescored = [replace(h, score=h.score + weight * other) for h, other in zip(hypotheses, scores, strict=True)]
    for i, h in enumerate(rescored):
        if math.isnan(h.score):
            raise ValueError(f"hypothesis {i + 1} has no score to add to: search by a SearchConfig, not a Bare one")
    return sorted(rescored, key=lambda h: -h.score)
