"""Classes by likelihood: which label a language model would write after a text, and after examples if there are any.

Letters: N texts, C classes.

Calibrated as in Zhao et al. (2021), "Calibrate Before Use": q = softmax(W p), where W = diag(p_cf)⁻¹ and p_cf is what
the model says of texts without content.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.rows import Row
from regard.data.spelling import unknown
from regard.data.text import count_of
from regard.evaluation.classes import probable
from regard.tasks.asks import ReachError, listed, short
from regard.tasks.classify import Classified, Classifier, LabelledFiles, classified
from regard.tasks.reader import Given
from regard.tasks.uses import ClassifyUse, Prompting

if TYPE_CHECKING:
    from regard.tasks.generator import Generator

CONTENT_FREE = ("N/A", "", "[MASK]")
PLACES = re.compile(r"\{(text|pair|label)\}")
BETWEEN = "\n\n"  # stands after an example where the prompt has nothing after its label


class Read(NamedTuple):
    """A text as it is asked about."""

    first: int  # of the examples before it
    ids: list[int]  # all that stands before the labels
    labels: list[list[int]]


class Prompted(Classifier):
    """A language model that is asked for classes: a classifier like any other.

    `labels` are named as the prompt says them, or by what a mapping has for each. Examples that leave no room for a
    text are left out, the first ones first; `left_out` counts of how many texts.

    >>> films = load("runs/smollm2").prompted("{text}\\nAnswer: {label}", ["Negative", "Positive"])  # doctest: +SKIP
    >>> films.classify("a charming and affecting journey").label                                     # doctest: +SKIP
    'Positive'
    """

    kind = "one"

    def __init__(
        self,
        generator: "Generator",
        prompt: str,
        labels: Sequence[str] | Mapping[str, str],
        examples: Iterable[Row | tuple[str, str]] = (),
        *,
        calibrated: bool = False,
        by_length: bool = False,
    ) -> None:
        how = {name: getattr(generator, name) for name in ("engine", "workers", "rows", "bitwise")}
        super().__init__(generator.models, generator.tokenizer, ClassifyUse(), longest=generator.reach, **how)
        self.generator, self.prompt, self.calibrated, self.by_length = generator, prompt, calibrated, by_length
        self.words = dict(labels) if isinstance(labels, Mapping) else {label: label for label in labels}
        self.labels, self.left_out = tuple(self.words), Counter[str]()
        self._free: dict[int, NDArray[np.float64]] = {}  # what is said of no text, by the first example
        self._check()
        self.examples, after = list[str](), prompt.rpartition("{label}")[2] or BETWEEN
        for row in examples:
            text, label, pair = (
                (row["text"], str(row["label"]), row.get("pair")) if isinstance(row, dict) else (*row, None)
            )
            if label not in self.words:
                raise ValueError(
                    f"the example {short(text)} has the label {label!r}: there are {', '.join(self.labels)}"
                )
            self.examples.append(self._filled(Given(text, pair), label) + after)
        lengths = map(len, self.tokenizer.encode_batch(self.examples[::-1]))
        self._tokens = [*accumulate(lengths, initial=0)][::-1]  # of the examples from each on

    @classmethod
    def of(cls, generator: "Generator", asked: Prompting, columns: Sequence[str] = ()) -> "Prompted":
        """As the command has it: rows in a file, line ends as \\n."""
        assert asked.prompt is not None
        if asked.labels is None:
            raise ValueError("--prompt asks for a label: say which there are by --labels negative,positive")
        named = (each.strip().partition("=") for each in asked.labels.split(","))
        labels = {label: word or label for label, _, word in named}
        rows = list(LabelledFiles.at(asked.examples, columns).read()) if asked.examples else []
        some = drawn(rows, asked.shots, labels if asked.balanced else (), asked.seed)
        prompt = asked.prompt.replace("\\n", "\n").replace("\\t", "\t")
        return cls(generator, prompt, labels, some, calibrated=asked.calibrated, by_length=asked.by_length)

    @property
    def engines(self) -> list[Any]:
        return self.generator.engines

    @property
    def without_native(self) -> str | None:
        return self.generator.without_native

    def report(self) -> str:
        """What was left out, in one line; or nothing."""
        if not self.left_out:
            return ""
        texts = count_of(max(self.left_out.values()), "text")
        return f"examples were left out for want of room, before {texts} at most: {listed(list(self.left_out))}"

    def answers(self, asks: Sequence[Given], settings: ClassifyUse) -> list[Classified]:
        read = [self._read(ask) for ask in asks]
        found = np.zeros((len(read), len(self.labels)))
        for first in sorted({each.first for each in read}):
            some = [i for i, each in enumerate(read) if each.first == first]
            found[some] = log_p = self._log_p([read[i] for i in some])
            if self.calibrated:
                found[some] = probable(log_p, True) / self._content_free(first)
            for text in self.examples[:first]:
                self.left_out[text] += len(some)
        return [classified(torch.from_numpy(row), self.labels, self.kind, settings) for row in found]

    def _check(self) -> None:
        """Refuse what cannot be asked."""
        places = PLACES.findall(self.prompt)
        if "text" not in places or places.count("label") != 1 or places[-1] != "label":
            raise ValueError(f"the prompt {short(self.prompt)} must have {{text}} in it, and once {{label}} after it")
        if len(self.labels) < 2:
            raise ValueError(f"labels = {', '.join(self.labels)}: there must be two at least, separated by commas")
        for label, word in self.words.items():
            if not word.strip() or unknown(self.tokenizer, word, self.tokenizer.encode(word)):
                raise ValueError(f"the tokenizer cannot write the label {word!r}: say another word, {label}=WORD")
        self.examples = []
        ids = list(map(tuple, self._read(Given("N/A", "N/A" if "pair" in places else None)).labels))
        if len(set(ids)) < len(ids):
            raise ValueError(f"two of the labels {', '.join(self.words.values())} are the same tokens: say other words")

    def _filled(self, ask: Given, label: str | None) -> str:
        """The prompt up to its label, with it or without."""
        if (ask.pair is None) == ("{pair}" in self.prompt):
            has, needs = ("no", "has a") if ask.pair is None else ("a", "has no")
            raise ValueError(
                f"{ask.place or short(ask.text)} has {has} pair, and the prompt {needs} place {{pair}} for it"
            )
        parts = {"text": ask.text, "pair": ask.pair or "", "label": "" if label is None else self.words[label]}
        return PLACES.sub(lambda place: parts[place[1]], self.prompt.partition("{label}")[0] + "{label}")

    def _read(self, ask: Given, first: int = 0) -> Read:
        """A text with all examples from the first on that leave room for it."""
        filled = [self._filled(ask, label) for label in (None, *self.labels)]
        if self.longest is not None and self.examples:
            room = self.longest - max(map(len, self.tokenizer.encode_batch(filled)))
            while first < len(self.examples) and self._tokens[first] > room + len(self.examples):
                first += 1  # which are too many by far; where examples meet, tokens may be fewer
        while True:
            before = "".join(self.examples[first:])
            try:
                rows = [self.generator.ids(before + text, ask.place) for text in filled]
                break
            except ReachError:
                if first == len(self.examples):
                    raise
                first += 1
        n, rows = len(beginning(rows)), rows[1:]
        n = min(n, *(len(row) - 1 for row in rows))
        if n < 1:
            raise ValueError(
                f"{ask.place or short(ask.text)}: nothing stands before the label: write more into the prompt"
            )
        return Read(first, rows[0][:n], [row[n:] for row in rows])

    def _log_p(self, read: Sequence[Read]) -> NDArray[np.float64]:
        """How likely each label is after each text, (N, C)."""
        alone = self.bitwise and not self.generator.searchable.ragged  # PyTorch minds where a text is cut
        shared = [] if alone else beginning([each.ids[:-1] for each in read])
        said = self.generator.followed(shared, [(each.ids[len(shared) :], each.labels) for each in read])
        return np.array([[sum(x) / (len(x) if self.by_length else 1) for x in row] for row in said])

    def _content_free(self, first: int) -> NDArray[np.float64]:
        """How probable each label is if there is nothing to tell it by, (C,)."""
        if first not in self._free:
            pair = "{pair}" in self.prompt
            read = [self._read(Given(text, text if pair else None), first) for text in CONTENT_FREE]
            p = probable(self._log_p(read), True).mean(0)
            self._free[first] = np.maximum(p, np.finfo(np.float64).tiny)
        return self._free[first]


def beginning(rows: Sequence[list[int]]) -> list[int]:
    """What all rows begin with.

    >>> beginning([[1, 2, 3], [1, 2, 4, 5]])
    [1, 2]
    """
    least, most = min(rows), max(rows)
    return least[: next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))]


def drawn(rows: Sequence[Row], shots: int | None, labels: Iterable[str], seed: int) -> list[Row]:
    """So many rows by chance, in an order by chance; where labels are named, as many of each as can be.

    >>> rows = [{"text": str(i), "label": "no" if i % 4 else "yes"} for i in range(40)]
    >>> sorted(row["label"] for row in drawn(rows, 4, ("yes", "no"), seed=1))
    ['no', 'no', 'yes', 'yes']
    """
    if shots is None:
        return list(rows)
    if shots > len(rows):
        raise ValueError(f"shots = {shots}: there are {len(rows)} examples")
    draw, some = Random(seed), list[Row]()
    order = draw.sample(rows, len(rows))
    by_label = {label: [row for row in order if str(row["label"]) == label] for label in labels}
    while by_label and len(some) < shots:
        for label in draw.sample(sorted(by_label), len(by_label)):
            if len(some) < shots and not by_label[label]:
                raise ValueError(f"shots = {shots}: there are too few examples of {label}")
            some += [by_label[label].pop()] if len(some) < shots else []
    return draw.sample(some, shots) if by_label else order[:shots]
