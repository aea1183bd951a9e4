"""Heads that follow the grammar: do they look from a word at its head, or at its dependents, as a parse names them?

An arc is a pair of words of a sentence, counted from 0, and the name of their relation: (dependent, head, "nsubj"). It
is looked along both ways. A word's row is the mean of the rows of its tokens, a word as a key is the sum of its tokens,
the end symbol aside; the measure is the share of arcs in which the greatest weight of a word's row is on its partner.
Much of grammar is a matter of place: what a head must beat is the one offset where most partners of a relation stand.

Letters: H heads, T tokens of a sentence.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.inspection.words import merge

Arc = tuple[int, int, str]
TOWARDS = ("head", "dependent")
FEWEST = 100  # arcs of a relation: with fewer, ten points are within two standard errors of a share


class Stretch(NamedTuple):
    """Some characters of a text, and on which line of a file they stand."""

    line: int
    text: str


@dataclass(frozen=True)
class Parse:
    """The dependencies of one sentence."""

    forms: list[Stretch] = field(default_factory=list)  # what makes up the text
    at: list[int] = field(default_factory=list)  # of each word, in which form it is: several share one, as in "du"
    heads: list[tuple[int, int]] = field(default_factory=list)  # its head from 1, or 0 for none; and the line
    relations: list[str] = field(default_factory=list)


def read_conllu(lines: Iterable[str], name: str) -> list[Parse]:
    """The sentences of a CoNLL-U file. Of relations what stands before a colon counts: nsubj:pass is nsubj.

    >>> rows = ["1 A a _ _ _ 2 det _ _", "2 cat cat _ _ _ 0 root _ _", ""]
    >>> (parse,) = read_conllu([row.replace(" ", chr(9)) for row in rows], "cat.conllu")
    >>> arcs(parse, ["A", "cat"], "cat.conllu")
    {(0, 1, 'det')}
    """
    found, parse, shared = list[Parse](), Parse(), 0  # shared: the last word that a range such as 3-4 holds
    for number, line in enumerate(lines, 1):
        place = f"{name}:{number}"
        if not line.strip():
            found += _finished(parse, shared, name)
            parse, shared = Parse(), 0
            continue
        if line.startswith("#"):
            continue
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 10:
            raise ValueError(
                f"{place}: a line of CoNLL-U has 10 columns with tabs between them, this one {len(columns)}"
            )
        (id, form), (head, relation) = columns[:2], columns[6:8]
        if "." in id:  # a word that is understood, and not written
            continue
        if not form.strip():
            raise ValueError(f"{place}: the word has no form")
        first, dash, last = id.partition("-")
        expected = len(parse.at) + 1
        if not all(each.isascii() and each.isdigit() for each in (first, last or first)) or int(first) != expected:
            raise ValueError(f"{place}: the id is {id!r}, where {expected} was to come")
        if dash:
            if expected <= shared or int(last or 0) <= expected:
                raise ValueError(f"{place}: {id!r} is no range of words")
            shared = int(last)
            parse.forms.append(Stretch(number, form))
            continue
        if not (head.isascii() and head.isdigit()):
            raise ValueError(f"{place}: the head of {form!r} is {head!r}, not the number of a word")
        if expected > shared:
            parse.forms.append(Stretch(number, form))
        parse.at.append(len(parse.forms) - 1)
        parse.heads.append((int(head), number))
        parse.relations.append(relation.partition(":")[0])
    return found + _finished(parse, shared, name)


def _finished(parse: Parse, shared: int, name: str) -> list[Parse]:
    """The sentence, if there is one."""
    words = len(parse.at)
    if shared > words:
        raise ValueError(f"{name}:{parse.forms[-1].line}: the range goes on to word {shared}, the sentence to {words}")
    for word, (head, line) in enumerate(parse.heads, 1):
        if head > words or head == word:
            raise ValueError(f"{name}:{line}: the head is {head}, of words 1 to {words}: it must be another one, or 0")
    return [parse] if words else []


def arcs(parse: Parse, words: Sequence[str], name: str) -> set[Arc]:
    """The arcs between the words of a text, which a parse may cut further: by characters, small and capital alike.

    What lies within one word is no arc. A form that goes over several words stands at the first of them.
    """
    text, owners = "".join(words), [i for i, word in enumerate(words) for _ in word]
    owner, at = list[int](), 0
    for line, form in parse.forms:
        bare = "".join(form.split())
        if text[at : at + len(bare)].lower() != bare.lower():
            rest = f"goes on with {text[at : at + 20]!r}" if text[at:] else "is at its end"
            raise ValueError(f"{name}:{line}: {form!r} does not fit the text, which {rest}")
        owner.append(owners[at])
        at += len(bare)
    if text[at:]:
        line = parse.forms[-1].line
        raise ValueError(
            f"{name}:{line}: the sentence ends here, and the text goes on with {text[at : at + 20]!r}: give each line "
            "of the text one sentence"
        )
    pairs = [(owner[at], owner[parse.at[head - 1]], head) for at, (head, _) in zip(parse.at, parse.heads, strict=True)]
    found = zip(pairs, parse.relations, strict=True)
    return {(word, head, relation) for (word, head, number), relation in found if number and word != head}


class Relation(NamedTuple):
    """A relation as it is looked along, from each word towards its head or its dependent."""

    relation: str
    towards: str
    instances: int
    offset: int  # in words, where most partners are
    fixed: float  # in which share of the instances that is: what a head must beat


class Syntactic(NamedTuple):
    """In which share of the instances of a relation the greatest weight of a head is on the partner."""

    relation: Relation
    share: float

    @property
    def over(self) -> float:
        """By how much that beats the best fixed offset."""
        return self.share - self.relation.fixed

    def named(self) -> dict[str, Any]:
        """The figures by name."""
        relation = self.relation._asdict()
        return {**relation, "fixed": round(self.relation.fixed, 4), "share": round(self.share, 4)}


class Grammar:
    """How far the heads of an encoder follow the grammar, added up sentence by sentence."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], Counter[int]] = {}
        self._hits: dict[str, dict[tuple[str, str], Tensor]] = {}  # of each attention and relation (H,)

    def add(self, maps: Mapping[str, Tensor], of: Sequence[int], some: Iterable[Arc]) -> None:
        """The maps (H, T, T) of each attention by name, of which word each token is a part, and the arcs of these.

        Rows and columns after the tokens that `of` names, such as an end's, do not count.
        """
        there = set(of)  # a word of which a tokenizer leaves nothing has no row
        steps = [
            ((relation, towards), here, partner)
            for word, head, relation in some
            if {word, head} <= there
            for towards, here, partner in (("head", word, head), ("dependent", head, word))
        ]
        if not steps:
            return
        for kind, here, partner in steps:
            self._offsets.setdefault(kind, Counter())[partner - here] += 1
        rows, partners = [here for _, here, _ in steps], torch.tensor([partner for *_, partner in steps])
        for name, weights in maps.items():
            words = merge(weights[:, : len(of), : len(of)].float().cpu(), of, of)  # (H, words, words)
            right = words.argmax(-1)[:, rows] == partners  # (H, steps)
            hits = self._hits.setdefault(name, {})
            for (kind, *_), found in zip(steps, right.T.long(), strict=True):
                hits[kind] = hits[kind] + found if kind in hits else found

    def relations(self, fewest: int = FEWEST) -> list[Relation]:
        """The relations of which there are enough, the most frequent first."""
        found = []
        for (relation, towards), offsets in self._offsets.items():
            offset = max(offsets, key=lambda offset: (offsets[offset], -abs(offset), offset))
            total = offsets.total()
            found.append(Relation(relation, towards, total, offset, offsets[offset] / total))
        found.sort(key=lambda each: (-each.instances, each.relation, TOWARDS.index(each.towards)))
        return [each for each in found if each.instances >= fewest]

    def of_head(self, name: str, head: int, fewest: int = FEWEST) -> list[Syntactic]:
        """What one head does along each of these relations, the most above the fixed offset first."""
        found = [
            Syntactic(each, int(self._hits[name][each.relation, each.towards][head]) / each.instances)
            for each in self.relations(fewest)
        ]
        return sorted(found, key=lambda each: -each.over)
