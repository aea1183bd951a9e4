"""How well texts are written, by the name of a measure: each a figure from 0 to 100, with its provenance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.evaluation.rouge import overlaps
from regard.evaluation.translation import CorpusScore, bleu, checked, chrf

Texts = Sequence[str] | Sequence[Sequence[str]]  # of each output its reference, or several
RATES = {"wer": "WER", "per": "PER", "cer": "CER"}  # of errors: the lower the better
ROUGE, JIWER = "equals:rouge-score-0.1.2", "equals:jiwer-4.0.0"  # which tests compare them with
BY = ("bleu", "chrf", "rouge", "exact", *RATES)


def compare(
    by: Sequence[str],
    said: Sequence[str],
    references: Texts,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    stem: bool = True,
) -> dict[str, CorpusScore]:
    """Every figure of these names. Of several references the nearest counts, for each output and figure.

    bleu, chrf   of sacreBLEU
    rouge        ROUGE-1, -2 and -L: the mean F1 of rouge-score, of stems if asked for
    exact        the share of outputs that are right from end to end, white space aside
    wer, per     words (phonemes) to put in, take out or change to be right, of a hundred
    cer          the same of characters, with one space between words

    >>> found = compare(["exact", "per"], ["K AE T", "D AO"], [["K AE T"], ["D AO G", "D AA G Z"]])
    >>> {name: round(score.value, 1) for name, score in found.items()}
    {'exact': 50.0, 'per': 16.7}
    """
    found = {}
    for name in by:
        if name == "bleu":
            found[name] = bleu(said, references, tokenize=tokenize, lowercase=lowercase)
        elif name == "chrf":
            found[name] = chrf(said, references, lowercase=lowercase)
        else:
            found |= _own(name, said, checked(said, references), lowercase, stem)
    return found


def _own(
    name: str, said: Sequence[str], references: list[list[str]], lowercase: bool, stem: bool
) -> dict[str, CorpusScore]:
    counted = {len(own) for own in references}
    how = f"nrefs:{min(counted) if len(counted) == 1 else 'var'}"
    if name == "rouge":
        rows = [
            np.max([overlaps(text, each, stem) for each in own], 0) for text, own in zip(said, references, strict=True)
        ]
        how += f"|stem:{'porter' if stem else 'no'}|{ROUGE}"
        return {
            f"rouge{n}": _mean(f"ROUGE-{n}", how, np.array(rows)[:, i : i + 1]) for i, n in enumerate(("1", "2", "L"))
        }
    how += f"|case:{'lc' if lowercase else 'mixed'}"
    sides = [text.lower().split() if lowercase else text.split() for text in said]
    meant = [[each.lower().split() if lowercase else each.split() for each in own] for own in references]
    if name == "cer":
        sides, meant = [[*" ".join(text)] for text in sides], [[[*" ".join(each)] for each in own] for own in meant]
    both = list(zip(sides, meant, strict=True))
    if name == "exact":
        return {name: _mean("exact", how, np.array([[float(text in own)] for text, own in both]))}
    each = [[(edits(text, one), max(1, len(one))) for one in own] for text, own in both]
    counts = np.array([min(own, key=lambda pair: pair[0] / pair[1]) for own in each])
    return {name: _score(RATES[name], f"{how}|{JIWER}" if name != "per" and counted == {1} else how, counts)}


def _mean(name: str, how: str, values: NDArray[Any]) -> CorpusScore:
    return _score(name, how, np.hstack([values, np.ones_like(values)]))


def _score(name: str, how: str, counts: NDArray[Any]) -> CorpusScore:
    """A hundred times the sum of a first column over that of a second."""

    def figure(sums: list[float]) -> float:
        return 100 * sums[0] / sums[1]

    return CorpusScore(figure(counts.sum(0).tolist()), how, name, counts, figure)


def edits(a: Sequence[str], b: Sequence[str]) -> int:
    """How many words must be put in, taken out or changed to make one of the other (Levenshtein, 1966).

    >>> edits("kitten", "sitting")
    3
    """
    if a == b:
        return 0
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row[0] = row[0], i + 1
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
