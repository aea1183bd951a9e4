"""How well parts of a text are found: spans that tags tell, as seqeval counts them; answers, as SQuAD compares them."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

TAG = re.compile(r"([BIESLU])(?:-(.*))?")  # begins a span, goes on with one, ends it; is one by itself; BILOU's E and S
ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_SIGNS = str.maketrans("", "", string.punctuation)
# How figures are made, for their signatures: `equals` names what tests compare them with, `as` what they follow.
SEQEVAL = "equals:seqeval-1.2.2"
TAGGING = {
    **dict.fromkeys(("f1", "precision", "recall"), f"average:micro|{SEQEVAL}"),
    "accuracy": f"of:words|{SEQEVAL}",
}
ANSWERING = dict.fromkeys(("exact", "f1", "f1 answerable", "f1 unanswerable"), "as:squad-2.0|equals:torchmetrics-1.9.0")


def bio(tags: Iterable[str]) -> list[str]:
    """The tags of a sentence, of any of the usual kinds (IOB1, BIO, IOBES, BILOU), as BIO: B-X begins a span of the
    kind X, and I-X goes on with it. A tag of no such kind is a span of one word.

    >>> bio(["I-PER", "I-PER", "B-PER", "I-LOC", "O", "B-ORG", "E-ORG", "NNP"])
    ['B-PER', 'I-PER', 'B-PER', 'B-LOC', 'O', 'B-ORG', 'I-ORG', 'B-NNP']
    """
    found, inside = [], None
    for tag in tags:
        mark, kind = (known[1], known[2] or "_") if (known := TAG.fullmatch(tag)) else ("S", tag)
        goes_on = mark in "IEL" and kind == inside
        found.append("O" if tag == "O" else f"{'I' if goes_on else 'B'}-{kind}")
        inside = kind if mark in "BI" else None
    return found


def spans(tags: Iterable[str]) -> list[tuple[str, int, int]]:
    """The spans that the tags of a sentence tell: their kind, their first word, and the one after the last.

    >>> spans(["B-PER", "I-PER", "O", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    """
    found: list[tuple[str, int, int]] = []
    for i, tag in enumerate(bio(tags)):
        if tag.startswith("B-"):
            found.append((tag[2:], i, i + 1))
        elif tag != "O":
            found[-1] = (*found[-1][:2], i + 1)
    return found


def tagging(given: Sequence[Sequence[str]], said: Sequence[Sequence[str]]) -> dict[str, float]:
    """Of N sentences the tags they have and those that were told: every figure, 0 where there is nothing to count.

    A span is right if its words and its kind are. `precision` is the share of right ones among those told, `recall`
    among those there are, `f1` their harmonic mean; `accuracy` is the share of words with the right tag.

    >>> tagging([["B-PER", "I-PER", "O"], ["B-LOC"]], [["B-PER", "I-PER", "O"], ["B-ORG"]])
    {'f1': 0.5, 'precision': 0.5, 'recall': 0.5, 'accuracy': 0.75}
    """
    return of_counts(span_counts(given, said))


def span_counts(given: Sequence[Sequence[str]], said: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """What there is to count in each sentence: spans that are right, told, there; words with the right tag, and all."""
    rows = []
    for own, each in zip(given, said, strict=True):
        truth, told = {*spans(own)}, {*spans(each)}
        same = sum(a == b for a, b in zip(own, each, strict=True))
        rows.append((len(truth & told), len(told), len(truth), same, len(own)))
    return np.array(rows, np.int64).reshape(-1, 5)


def of_counts(counts: NDArray[np.int64]) -> dict[str, float]:
    """The figures of `tagging` of some rows of counts."""
    right, told, there, same, words = counts.sum(0).tolist()
    figures = {
        "f1": 2 * right / max(1, there + told),
        "precision": right / max(1, told),
        "recall": right / max(1, there),
    }
    return figures | {"accuracy": same / max(1, words)}


def answering(given: Sequence[Sequence[str]], said: Sequence[str]) -> dict[str, float]:
    """Of N questions the answers that are right, none if there is no answer, and what was said, "" for none: the share
    that is `exact`, and the mean F1 of words, each by the right answer that is nearest; both as SQuAD 2.0 has them.

    >>> answering([["the Norman fleet", "Normans"], []], ["a Norman", ""])
    {'exact': 0.5, 'f1': 0.833..., 'f1 answerable': 0.666..., 'f1 unanswerable': 1.0}
    """
    marks = marked(given, said)
    return of_marks(marks, np.arange(len(said)))


def marked(given: Sequence[Sequence[str]], said: Sequence[str]) -> NDArray[np.float64]:
    """Of each question whether what was said is exact, its F1, and whether there is an answer: (N, 3)."""
    right = [[each for each in map(plain, own) if each] or [""] for own in given]
    both = list(zip(right, map(plain, said), strict=True))
    rows = [(one in own, max(_shared(each, one) for each in own), own != [""]) for own, one in both]
    return np.array(rows, np.float64).reshape(-1, 3)


def of_marks(marks: NDArray[np.float64], rows: NDArray[np.int64]) -> dict[str, float]:
    """The figures of `answering` of some of the questions; which figures there are hangs on all of them."""
    exact, f1, there = marks[rows].T
    figures = {"exact": _mean(exact), "f1": _mean(f1)}
    if len({*marks[:, 2].tolist()}) == 2:
        figures |= {"f1 answerable": _mean(f1[there == 1]), "f1 unanswerable": _mean(f1[there == 0])}
    return figures


def plain(answer: str) -> str:
    """What of an answer counts: in lower case, without punctuation, articles, and more than one space.

    >>> plain("The  U.S. (in a sense)")
    'us in sense'
    """
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(NO_SIGNS)).split())


def _shared(a: str, b: str) -> float:
    """F1 of the words of two answers; of no words, whether both have none."""
    x, y = a.split(), b.split()
    return 2 * (Counter(x) & Counter(y)).total() / (len(x) + len(y)) if x and y else float(x == y)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.sum()) / max(1, len(values))
