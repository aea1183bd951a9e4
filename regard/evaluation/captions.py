"""How well pictures are described: BLEU-1 to -4 and CIDEr-D, of several references each.

Words are runs of letters and digits, in lower case, with an apostrophe inside: punctuation does not count. (Papers cut
captions by Stanford's tokenizer, which does nearly the same to plain English.)
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 4  # n-grams
SIGMA = 6.0  # words by which a caption may be longer or shorter than a reference, about
MADE = dict.fromkeys((*(f"bleu{n + 1}" for n in range(LONGEST)), "cider"), "words:lower, letters")  # how, by name
Grams = list[Counter[tuple[str, ...]]]


def words(text: str) -> list[str]:
    """The words of a caption.

    >>> words("A dog's ball, on the wet grass .")
    ['a', "dog's", 'ball', 'on', 'the', 'wet', 'grass']
    """
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def grams(text: Sequence[str]) -> Grams:
    """How often each n-gram is in a text, of 1 to LONGEST words."""
    return [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for n in range(1, LONGEST + 1)]


def cider(said: Sequence[Grams], references: Sequence[Sequence[Grams]]) -> NDArray[np.float64]:
    """CIDEr-D of each caption (Vedantam et al., 2015), from 0 to 10: the mean cosine of its n-grams with those of each
    reference. Each n-gram counts by how few pictures have it in a reference; more often than there, it counts no
    more; and a caption of another length is worth less."""
    known = [Counter(gram for own in references for gram in set().union(*(r[n] for r in own))) for n in range(LONGEST)]
    every = math.log(max(1, len(references)))

    def weighed(counts: Grams) -> list[dict[tuple[str, ...], float]]:
        return [
            {gram: k * (every - math.log(max(1, rare[gram]))) for gram, k in each.items()}
            for each, rare in zip(counts, known, strict=True)
        ]

    def alike(a: dict[tuple[str, ...], float], b: dict[tuple[str, ...], float]) -> float:
        norm = math.sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))
        return sum(min(x, b[gram]) * b[gram] for gram, x in a.items() if gram in b) / norm if norm else 0.0

    found = []
    for own, others in zip(said, references, strict=True):
        mine, total = weighed(own), 0.0
        for other in others:
            apart = own[0].total() - other[0].total()
            near = sum(alike(a, b) for a, b in zip(mine, weighed(other), strict=True)) / LONGEST
            total += near * math.exp(-(apart**2) / (2 * SIGMA**2))
        found.append(10 * total / len(others))
    return np.array(found)


def judged(said: Sequence[str], references: Sequence[Sequence[str]]) -> Callable[[NDArray[np.int64]], dict[str, float]]:
    """What tells the figures of some of these captions, by number: BLEU from 0 to 100, and CIDEr-D times 100, as papers
    print it. How rare a word is, all references say.

    >>> of = judged(["a dog runs", "a cat"], [["a dog runs", "a brown dog"], ["two cats", "the cat sleeps"]])
    >>> {name: round(x, 1) for name, x in of(np.arange(2)).items()}
    {'bleu1': 80.0, 'bleu2': 73.0, 'bleu3': 81.1, 'bleu4': 0.0, 'cider': 254.3}
    """
    own, others = [grams(words(text)) for text in said], [[grams(words(text)) for text in row] for row in references]
    rows = []
    for mine, theirs in zip(own, others, strict=True):
        most = [Counter[tuple[str, ...]]() for _ in range(LONGEST)]
        for each in theirs:
            most = [a | b for a, b in zip(most, each, strict=True)]
        length, lengths = mine[0].total(), [each[0].total() for each in theirs]
        nearest = min(lengths, key=lambda n: (abs(n - length), n))
        right = [(a & b).total() for a, b in zip(mine, most, strict=True)]
        rows.append([*right, *(each.total() for each in mine), length, nearest])
    counts, near = np.array(rows, np.float64), cider(own, others)

    def figures(some: NDArray[np.int64]) -> dict[str, float]:
        total = counts[some].sum(0)
        right, all_of_them, (length, wanted) = total[:LONGEST], total[LONGEST : 2 * LONGEST], total[-2:]
        brief = min(1.0, math.exp(1 - wanted / length)) if length else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(all_of_them > 0, right / all_of_them, 0.0))
        bleu = {f"bleu{n}": float(100 * brief * np.exp(logs[:n].mean())) for n in range(1, LONGEST + 1)}
        return {**bleu, "cider": float(100 * near[some].mean())}

    return figures
