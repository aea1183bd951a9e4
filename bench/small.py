"""Small and fast: a teacher and its student in fp32, in int8, and in int8 with a shortlist.

    REGARD_DATA=... python bench/small.py runs/multi30k-en-de runs/student [--limit N] [--rounds N]

They translate the test set of the teacher's recipe with two workers, all of it at once, greedy and by a beam of 5, in
sentences a second; and a hundred sentences one at a time, greedy, with two threads, in milliseconds (median). All are
in one process and take turns. Printed are medians over the rounds, and BLEU as the teacher's recipe has it. What is
made of a model lies in a temporary folder; its shortlist is learnt from the text that it was trained on.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

from decode import CORES, SINGLE, timed
from rich import box
from rich.console import Console
from rich.table import Table

from regard.api import Translator, load
from regard.convert.precision import quantize_directory
from regard.evaluation.translation import bleu
from regard.recipes import reading as recipes
from regard.recipes.prepare import find_splits
from regard.recipes.shortlist import make_shortlist
from regard.tasks.translate import EvaluateConfig

BEAMS = (1, 5)


class Contestant:
    """A model in one of its forms, the bytes of its weights, and what its rounds have shown."""

    def __init__(self, model: Path, size: int, **how: Any) -> None:
        self.translator: Translator = load(model, engine="native", workers=CORES, **how)
        self.size = size
        self.said: dict[int, list[str]] = {}  # by width of the beam
        self.rates: defaultdict[int, list[float]] = defaultdict(list)
        self.waits: list[float] = []

    def translate(self, texts: list[str], beam: int) -> list[str]:
        return self.translator.translate(texts, beam=beam)

    def all_at_once(self, texts: list[str], beam: int) -> None:
        self.said[beam], seconds = timed(self.translate, texts, beam)
        self.rates[beam].append(len(texts) / seconds)

    def one_by_one(self, texts: list[str]) -> None:
        self.waits.append(1000 * statistics.median(timed(self.translate, [text], 1)[1] for text in texts))


def forms(name: str, model: Path, folder: Path) -> dict[str, Contestant]:
    """The three forms of a model, each by its name in the table."""
    int8 = folder / name
    sizes = quantize_directory(model, int8)
    make_shortlist(int8)
    return {
        name: Contestant(model, sizes.before, precision="fp32"),
        f"{name}, int8": Contestant(int8, sizes.after),
        f"{name}, int8, shortlist": Contestant(int8, sizes.after, shortlist=True),
    }


def compete(contestants: list[Contestant], texts: list[str], rounds: int) -> None:
    for each in contestants:
        each.translate(texts[:8], max(BEAMS))  # engines are made when they are first asked
    for _ in range(rounds):
        for beam in BEAMS:
            for each in contestants:
                each.all_at_once(texts, beam)
        for each in contestants:
            each.one_by_one(texts[:SINGLE])


def table(contestants: dict[str, Contestant], references: list[str], how: EvaluateConfig) -> Table:
    result = Table(box=box.MARKDOWN)
    speeds = [("greedy BLEU", "sentences/s"), ("beam 5 BLEU", "sentences/s")]
    for column in ("", "weights", *(name for pair in speeds for name in pair), "one sentence"):
        result.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, each in contestants.items():
        cells = [f"{each.size / 1e6:.1f} MB"]
        for beam in BEAMS:
            found = bleu(each.said[beam], references, tokenize=how.tokenize, lowercase=how.lowercase)
            cells += [f"{found.value:.2f}", f"{statistics.median(each.rates[beam]):,.0f}"]
        result.add_row(name, *cells, f"{statistics.median(each.waits):.1f} ms")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="a trained model directory")
    parser.add_argument("student", type=Path, help="another, of the same languages")
    parser.add_argument("--limit", type=int, help="sentences")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name in ("limit", "rounds"):
        if (value := getattr(args, name)) is not None and value < 1:
            parser.error(f"{name} = {value}: it must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        try:
            recipe = recipes.load(str(args.teacher / "recipe.yaml"))
            pairs = list(islice(find_splits(recipe).rows("test"), args.limit))
            contestants = {
                **forms("teacher", args.teacher, Path(folder)),
                **forms("student", args.student, Path(folder)),
            }
        except (ValueError, OSError) as error:
            parser.error(str(error))
        texts, targets = map(list, zip(*pairs, strict=True))
        compete([*contestants.values()], texts, args.rounds)
        references = [contestants["teacher"].translator.tokenizer.joined(text) for text in targets]
        Console(width=120).print(table(contestants, references, recipe.evaluate))


if __name__ == "__main__":
    main()
