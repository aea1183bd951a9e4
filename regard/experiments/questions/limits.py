"""What attention learns to compute: copying, sorting, counting, parity, and how far beyond the lengths it has seen."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, listed, table
from regard.experiments.questions.frame import Found, Question, over_seeds, percent, repeated
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
    size, trials = SIZES[scale], []
    for task, layers in product(TASKS, LAYERS[scale]):
        model = {**size.model, "encoder_layers": layers, "decoder_layers": layers}
        settings = {**model, "task": task, "steps": PATIENCE * size.steps, "each": EACH[scale]}
        trials += repeated(f"limits-{task}-{layers}", computed, size.seeds, settings)
    return trials


def _found(results: Results, scale: str) -> Found:
    right = {
        (task, n): [fmean(each) for each in zip(*over_seeds(results, f"limits-{task}-{n}", "right"), strict=True)]
        for task, n in product(TASKS, LAYERS[scale])
    }
    inside = {key: fmean(shares[:LONGEST]) for key, shares in right.items()}
    beyond = {key: fmean(shares[LONGEST:]) for key, shares in right.items()}
    best = {task: max(LAYERS[scale], key=lambda n: inside[task, n]) for task in TASKS}
    done = [task for task in TASKS if inside[task, best[task]] >= LEARNT]
    undone = [f"{task} ({percent(inside[task, best[task]])})" for task in TASKS if task not in done]
    reach = {task: max(beyond[task, n] for n in LAYERS[scale]) for task in TASKS}
    far = max(TASKS, key=lambda task: reach[task] - CHANCE[task])
    rows = [
        [f"{task}, {n}+{n} layers", *map(percent, (inside[task, n], beyond[task, n], CHANCE[task]))]
        for task, n in right
    ]
    values = {
        "least": percent(LEARNT),
        "done": listed(done),
        "undone": listed(undone),
        "lost": listed([task for task in TASKS if reach[task] < max(LOST, CHANCE[task] + 0.1)]),
        "far": far,
        "farthest": percent(reach[far]),
        "longest": LONGEST,
        "twice": 2 * LONGEST,
        "strings": 2 ** (LONGEST + 1) - 2,
        "effort": replace(SIZES[scale], steps=PATIENCE * SIZES[scale].steps).effort,
        "table": table(["task", f"right, 1 to {LONGEST}", f"right, {LONGEST + 1} to {2 * LONGEST}", "chance"], rows),
    }
    series = [Series(task, list(range(1, 2 * LONGEST + 1)), right[task, best[task]]) for task in TASKS]
    lines = {"longest in training": float(LONGEST)}
    chart = Chart("What attention learns to compute", "length", "right from end to end", series, lines=lines)
    return values, {"questions-limits": chart}


LIMITS = Question("limits", "Can attention copy, sort, count, and tell parity?", _trials, _found)
