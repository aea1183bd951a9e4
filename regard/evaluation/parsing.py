"""How good trees are: labelled brackets, counted as evalb counts them (Sekine and Collins, 1997).

The conventions are those of its COLLINS.prm, with which parsers are compared: a bracket around the whole (TOP) does not
count, words whose part of speech is punctuation are taken out of both trees, and with them brackets that hold nothing
else; ADVP and PRT are one label. Equal brackets count as often as they occur in both trees. Parts of speech are given,
not guessed: those of the gold tree hold for both.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

Span = tuple[str, int, int]  # label, first word, the word after the last

PUNCTUATION = frozenset([",", ":", "``", "''", "."])  # as parts of speech
WHOLE = frozenset(["", "TOP", "ROOT"])
SAME = {"PRT": "ADVP"}


@dataclass(frozen=True)
class Brackets:
    """Counts of some sentences, and the figures that come of them, in per cent.

    >>> some = Brackets(sentences=1, complete=0, gold=4, guessed=5, matched=3)
    >>> some.recall, some.precision, round(some.f1, 2)
    (75.0, 60.0, 66.67)
    """

    sentences: int = 0
    complete: int = 0  # sentences whose brackets are all right, and all there
    gold: int = 0  # brackets of the treebank
    guessed: int = 0  # brackets of the parser
    matched: int = 0  # that are both

    def __add__(self, other: "Brackets") -> "Brackets":
        return Brackets(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def recall(self) -> float:
        """How much of the treebank the parser found."""
        return 100 * self.matched / max(self.gold, 1)

    @property
    def precision(self) -> float:
        """How much of what the parser found is in the treebank."""
        return 100 * self.matched / max(self.guessed, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return 200 * self.matched / max(self.gold + self.guessed, 1)

    @property
    def exact(self) -> float:
        """Sentences that are all right."""
        return 100 * self.complete / max(self.sentences, 1)


def counted(spans: Iterable[Span], tags: Sequence[str]) -> Counter[Span]:
    """The brackets that count, over the words that count.

    >>> counted([("TOP", 0, 3), ("S", 0, 3), ("PRT", 1, 2), ("NP", 2, 3)], ["VB", "RP", "."])
    Counter({('S', 0, 2): 1, ('ADVP', 1, 2): 1})
    """
    place = list(accumulate((tag not in PUNCTUATION for tag in tags), initial=0))  # of each word, among those that stay
    kept = ((SAME.get(label, label), place[a], place[b]) for label, a, b in spans if label not in WHOLE)
    return Counter((label, a, b) for label, a, b in kept if a < b)


def compare(gold: Iterable[Span], guessed: Iterable[Span], tags: Sequence[str]) -> Brackets:
    """The counts of one sentence, whose words have these parts of speech; those of a text are their sum."""
    right, said = counted(gold, tags), counted(guessed, tags)
    return Brackets(1, int(right == said), right.total(), said.total(), (right & said).total())
