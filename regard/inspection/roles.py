"""What a head does, in a word: labels for its measures, and all the thresholds behind them.

A label says where a head looks, over a text; it does not say what for.
"""

from typing import NamedTuple

from regard.inspection.measures import HeadMeasures
from regard.inspection.syntax import Syntactic

POSITIONAL = 0.9  # share of rows with the greatest weight at one offset (Voita et al., 2019)
OFFSET = 0.5  # mean weight at one offset (Clark et al., 2019)
SPECIAL = 0.6  # mean weight of marks, or of punctuation (Clark et al., 2019)
RARE = 0.5  # share of rows with the greatest weight on the rarest token; Voita et al. name a head with 0.66
PATTERN = 0.5  # mean weight of duplicates, or of what followed them, where there are any
# "Broad" heads have over 3.8 nats in Clark et al. (2019), of the ln 128 = 4.85 that their segments of 128 tokens allow;
# sentences are shorter, and the same share of what they allow is the threshold.
BROAD = 3.8 / 4.85
LOCAL = 0.5  # of the distance of an even look at all patches
ALIGNED = 0.5  # share of lexical links at the greatest weight
BETTER = 0.1  # and how much more than at the best fixed offset: ten points, for syntactic heads, too

ABOUT = {
    "aligner": "looks at the source words that what it predicts comes from",
    "aligner of the read": "looks at the source words that what it has just read comes from",
    "positional": "looks at one place, counted from its own: -1 is the token before, +1 the one after, 0 itself",
    "syntactic": "looks along a relation of grammar, from a word to its head or its dependent, wherever that is",
    "special": "rests on the start or end symbol, or the token before a picture: often a way to do nothing",
    "punctuation": "looks at punctuation",
    "rare": "looks at the rarest token of the sentence",
    "duplicate": "looks at the same token elsewhere",
    "induction": "looks at what followed the same token before",
    "local": "looks at patches near its own",
    "broad": "spreads over the whole sentence",
    "mixed": "nothing of these stands out",
}


class Aligned(NamedTuple):
    """In which share of the lexical links of a text a cross-attention's greatest weight is on the source token."""

    predicts: float  # in the row that predicts the target token
    reads: float  # in the row that reads it
    offset: float  # at the one offset where most of these links are: what an aligner must beat


def roles(measures: HeadMeasures, aligned: Aligned | None = None, syntactic: Syntactic | None = None) -> list[str]:
    """Every label that a head has earned, the most telling first; "mixed" if there is none.

    `syntactic` is the relation that the head follows best, compared with a fixed offset.

    >>> even = HeadMeasures(0.2, 2.2, 0.95, None, 0.1, 0.1, 0.1)
    >>> roles(even)
    ['broad']
    """
    found = []
    if aligned is not None:
        needed = max(ALIGNED, aligned.offset + BETTER)
        found += ["aligner"] * (aligned.predicts >= needed) + ["aligner of the read"] * (aligned.reads >= needed)
    at = {-1: measures.previous, 0: measures.itself, 1: measures.next}
    places = {offset for offset, weight in at.items() if _over(weight, OFFSET)}
    if measures.positional is not None and measures.positional.share >= POSITIONAL:
        places.add(measures.positional.offset)
    found += [f"positional {offset:+d}" if offset else "positional 0" for offset in sorted(places, key=abs)]
    if syntactic is not None and syntactic.over >= BETTER:
        found.append(f"syntactic {syntactic.relation.relation} to {syntactic.relation.towards}")
    for name, value, threshold in (
        ("special", measures.special, SPECIAL),
        ("punctuation", measures.punctuation, SPECIAL),
        ("rare", measures.rare, RARE),
        ("duplicate", measures.duplicate, PATTERN),
        ("induction", measures.induction, PATTERN),
        ("broad", measures.evenness, BROAD),
    ):
        found += [name] * _over(value, threshold)
    if measures.reach is not None and measures.reach < LOCAL:
        found.insert(0, "local")
    return found or ["mixed"]


def _over(value: float | None, threshold: float) -> bool:
    return value is not None and value > threshold
