"""What attention learns to compute: copying, sorting, counting, parity, and how far beyond the lengths it has seen."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, table
from regard.experiments.questions.frame import Question, Verdict, listed, over_seeds, percent, repeated
from regard.experiments.questions.tasks import SIZES, learnt, measured, unseen

TASKS = ("copy", "sort", "count", "parity")
CHANCE = {"copy": 0.0, "sort": 0.0, "count": 0.0, "parity": 0.5}
LONGEST = 10  # in training
LAYERS = {"smoke": (1,), "small": (1, 2), "full": (1, 2, 6)}
EACH = {"smoke": 4, "small": 100, "full": 1000}  # pairs of each length
PATIENCE = 3  # times as many steps as in the other questions: parity is slow to learn
LEARNT, LOST = 0.99, 0.5  # of the answers right: from here on a task is learnt, below here beyond it is lost


def computed(folder: Path, console: Console, *, task: str, steps: int, each: int, seed: int, **settings: Any) -> Result:
    """A model learns a task on up to LONGEST symbols and is asked for every length up to twice as many."""
    model, _ = learnt(console, task, range(1, LONGEST + 1), steps=steps, seed=seed, **settings)
    lengths = range(1, 2 * LONGEST + 1)
    return {"right": [measured(model, unseen(task, [length], seed, each))["right"] for length in lengths]}


def _trials(scale: str) -> list[Trial]:
    size = SIZES[scale]
    return [
        trial
        for task in TASKS
        for layers in LAYERS[scale]
        for trial in repeated(
            f"limits-{task}-{layers}",
            computed,
            size.seeds,
            **{**size.model, "encoder_layers": layers, "decoder_layers": layers},
            task=task,
            steps=PATIENCE * size.steps,
            each=EACH[scale],
        )
    ]


def _answer(results: Results, scale: str) -> Verdict:
    stems = {(task, layers): f"limits-{task}-{layers}" for task in TASKS for layers in LAYERS[scale]}
    right = {
        key: [fmean(column) for column in zip(*over_seeds(results, stem, "right"), strict=True)]
        for key, stem in stems.items()
    }
    inside = {key: fmean(shares[:LONGEST]) for key, shares in right.items()}
    beyond = {key: fmean(shares[LONGEST:]) for key, shares in right.items()}
    best = {task: max(LAYERS[scale], key=lambda layers: inside[task, layers]) for task in TASKS}
    done = [task for task in TASKS if inside[task, best[task]] >= LEARNT]
    undone = [f"{task} ({percent(inside[task, best[task]])})" for task in TASKS if task not in done]
    far = max(TASKS, key=lambda task: max(beyond[task, layers] for layers in LAYERS[scale]) - CHANCE[task])
    lost = [task for task in TASKS if all(beyond[task, n] < max(LOST, CHANCE[task] + 0.1) for n in LAYERS[scale])]
    short = (
        f"Learnt within the lengths of training ({percent(LEARNT)} right or more): {listed(done)}; not learnt: "
        f"{listed(undone)}. Beyond these lengths it fails at {listed(lost)}; {far} goes furthest above chance, with "
        f"{percent(max(beyond[far, layers] for layers in LAYERS[scale]))} right."
    )
    rows = [
        [f"{task}, {layers}+{layers} layers", percent(inside[task, layers]), percent(beyond[task, layers]),
         percent(CHANCE[task])]
        for task, layers in stems
    ]  # fmt: skip
    effort = replace(SIZES[scale], steps=PATIENCE * SIZES[scale].steps).effort
    text = f"""\
Models with sinusoidal positions learn to copy and to sort {LONGEST} letters at most, to count (write a 0 for
every 0 that they read), and the parity of that count, from {LONGEST} bits at most: {effort}. Then they are
asked for every length up to {2 * LONGEST}. A task counts as failed beyond training if fewer than half of the
answers are right, or for parity, of which half are by chance, fewer than 60 %. There are but
{2 ** (LONGEST + 1) - 2:,} strings of up to {LONGEST} bits, and training reads most of them: of counting and parity only
the longer ones are unseen.

What is not learnt here is not thereby shown to be beyond attention: for parity there are weights by hand
(Chiang & Cholak, 2022), though a soft-max attention can only be sure of it to a degree that falls with the
length (Hahn, 2020).

{table(["task", f"right, 1 to {LONGEST}", f"right, {LONGEST + 1} to {2 * LONGEST}", "chance"], rows)}

![Right answers against length](questions-limits.svg)"""
    lengths = list(range(1, 2 * LONGEST + 1))
    series = [Series(task, lengths, right[task, best[task]]) for task in TASKS]
    lines = {"longest in training": float(LONGEST)}
    chart = Chart("What attention learns to compute", "length", "right from end to end", series, lines=lines)
    return Verdict(short, text, {"questions-limits": chart})


LIMITS = Question("limits", "Can attention copy, sort, count, and tell parity?", _trials, _answer)
