"""How well a melody is foretold: a model of notes beside n-grams, in bits a note.

    python bench/melodies.py runs/melodies [--orders N ...]

The text of the test that the model's recipe names, and of training for the n-grams, which are those of Witten and Bell
(1991): what follows n - 1 words, mixed with what follows n - 2, by how many different words have followed. All that a
model must foretell counts: notes, rests, bar lines, metre, key and end; the sum is divided by the notes and rests. The
model reads each melody from its beginning, as the n-grams do.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from regard.api import load
from regard.recipes import reading as recipes
from regard.recipes.prepare import find_splits

BOS, EOS = "<s>", "</s>"


class WittenBell:
    """An n-gram model of words."""

    def __init__(self, texts: Iterable[Sequence[str]], order: int) -> None:
        self.order, self.followed = order, defaultdict[tuple[str, ...], Counter[str]](Counter)
        for text in texts:
            for i, word in enumerate([*text, EOS]):
                for n in range(min(order - 1, i + 1) + 1):
                    self.followed[self._before(text, i, n)][word] += 1
        self.words = len(self.followed[()]) + 1  # and one for all that are unknown

    @staticmethod
    def _before(text: Sequence[str], i: int, n: int) -> tuple[str, ...]:
        return (BOS, *text)[i + 1 - n : i + 1]

    def p(self, text: Sequence[str], i: int, word: str) -> float:
        p = 1 / self.words
        for n in range(min(self.order - 1, i + 1) + 1):
            seen = self.followed.get(self._before(text, i, n))
            if seen is None:
                break
            total, kinds = seen.total(), len(seen)
            p = (seen[word] + kinds * p) / (total + kinds)
        return p

    def bits(self, text: Sequence[str]) -> float:
        return -sum(math.log2(self.p(text, i, word)) for i, word in enumerate([*text, EOS]))


def bits(generator: object, text: str) -> float:
    """Of a model."""
    tokenizer, model = generator.tokenizer, generator.model  # type: ignore[attr-defined]
    ids = [tokenizer.marks.bos, *tokenizer.encode(text), tokenizer.marks.eos]
    with torch.inference_mode():
        log_p = model(torch.tensor([ids[:-1]]))[0].double().log_softmax(-1)
    return -float(log_p[range(len(ids) - 1), ids[1:]].sum()) / math.log(2)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model", type=Path)
    ask.add_argument("--orders", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    given = ask.parse_args()
    splits = find_splits(recipes.load(str(given.model / "recipe.yaml")))
    train, test = ([row.text for row in splits.rows(split)] for split in ("train", "test"))
    notes = sum(word[0] not in "MK|" for text in test for word in text.split())
    table = Table("model", "bits a note", title=f"{len(test)} melodies of {notes:,} notes")
    for order in given.orders:
        model = WittenBell((text.split() for text in train), order)
        table.add_row(f"{order}-gram", f"{sum(model.bits(text.split()) for text in test) / notes:.3f}")
    generator = load(given.model)
    table.add_row(str(given.model), f"{sum(bits(generator, text) for text in test) / notes:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
