"""Where self-attention, quadratic in the length, becomes slower than a recurrence, which is linear in it.

Letters: B batch, n length, d width.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import nn

from regard.core.attention import MultiHeadAttention
from regard.core.cache import KeyValues
from regard.core.mixers import AttentionConfig
from regard.core.recurrence import LinearRecurrence, RecurrentPast
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, several, table
from regard.experiments.layers import through
from regard.experiments.questions.frame import Found, Question
from regard.experiments.table1 import crossover

LENGTHS = {
    "smoke": (8, 16),
    "small": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "full": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
}
WIDTH = {"smoke": 16, "small": 64, "full": 512}
BATCHES = {"smoke": (1,), "small": (1, 8), "full": (1, 64)}
HEADS, REPEATS = 4, 5
STEPS = 20  # of decoding in a row: one alone is too short to be timed
WORK = {"training": "pass", "decoding": "step"}
LAYERS = {"attention": "self-attention", "lstm": "LSTM", "linear": "linear recurrence"}


def timed(folder: Path, console: Console, *, n: int, batch: int, d: int, repeats: int) -> Result:
    """Seconds of a forward and backward pass, and of one step that decodes with n positions behind it: medians.

    The layers take turns, after a first round that does not count.
    """
    torch.manual_seed(0)
    attention, lstm = MultiHeadAttention(AttentionConfig(d, HEADS)), nn.LSTM(d, d, batch_first=True)
    layers: dict[str, nn.Module] = {"attention": attention, "lstm": lstm, "linear": LinearRecurrence(d)}
    x = torch.randn(batch, n, d, requires_grad=True)
    past = KeyValues()
    past.extend(*torch.randn(2, batch, HEADS, n, d // HEADS))
    past.extend(*torch.randn(2, batch, HEADS, 1, d // HEADS))  # room for one more, made before the clock starts
    state, before = torch.zeros(1, batch, d), RecurrentPast(state=(torch.zeros(batch, d),))
    new = torch.randn(batch, 1, d)

    def attended() -> None:
        past.length = n
        attention(new, cache=past)

    steps: dict[str, Callable[[], object]] = {
        "attention": attended,
        "lstm": lambda: lstm(new, (state, state)),
        "linear": lambda: layers["linear"](new, cache=before),
    }
    times: dict[str, dict[str, list[float]]] = {what: {name: [] for name in LAYERS} for what in WORK}
    for _ in range(repeats + 1):
        for name, layer in layers.items():
            start = time.perf_counter()
            torch.autograd.grad(through(layer, x).sum(), [x, *layer.parameters()])
            times["training"][name].append(time.perf_counter() - start)
        with torch.inference_mode():
            for name, step in steps.items():
                start = time.perf_counter()
                for _ in range(STEPS):
                    step()
                times["decoding"][name].append((time.perf_counter() - start) / STEPS)
    medians = {what: {name: median(each[1:]) for name, each in found.items()} for what, found in times.items()}
    return {**medians, "threads": torch.get_num_threads()}


def _trials(scale: str) -> list[Trial]:
    common = {"d": WIDTH[scale], "repeats": 1 if scale == "smoke" else REPEATS}
    return [
        Trial(f"cost-{batch}-{n}", timed, {**common, "n": n, "batch": batch})
        for batch, n in product(BATCHES[scale], LENGTHS[scale])
    ]


def _found(results: Results, scale: str) -> Found:
    lengths, batches, d = LENGTHS[scale], BATCHES[scale], WIDTH[scale]
    seconds = {
        (batch, what, name): [results[f"cost-{batch}-{n}"][what][name] for n in lengths]
        for batch, what, name in product(batches, WORK, LAYERS)
    }

    def meet(batch: int, what: str, rival: str) -> float:
        return crossover(lengths, seconds[batch, what, "attention"], seconds[batch, what, rival])

    verdicts = [
        f"with a batch of {batch}, a pass through self-attention takes longer than one through an LSTM "
        f"{_from(meet(batch, 'training', 'lstm'), lengths)}, and through a linear recurrence "
        f"{_from(meet(batch, 'training', 'linear'), lengths)}"
        for batch in batches
    ]
    head = ["n", *(f"{what}, {label}" for what in WORK.values() for label in LAYERS.values())]
    tables = []
    for batch in batches:
        columns = [seconds[batch, what, name] for what, name in product(WORK, LAYERS)]
        rows = [[f"{n}", *(1e3 * each for each in row)] for n, *row in zip(lengths, *columns, strict=True)]
        tables.append(f"Batch of {batch}, milliseconds:\n\n{table(head, rows)}")
    values = {
        "d": d,
        "meet": 2 * d,
        "verdicts": "; ".join(verdicts),
        "steps": {rival: _from(meet(1, "decoding", rival), lengths) for rival in ("lstm", "linear")},
        "heads": HEADS,
        "repeats": REPEATS if scale != "smoke" else 1,
        "threads": several(results.values(), "threads"),
        "tables": "\n\n".join(tables),
    }
    batch = batches[0]
    series = [Series(label, lengths, seconds[batch, "training", name]) for name, label in LAYERS.items()]
    places = {f"≥ {LAYERS[rival]}": meet(batch, "training", rival) for rival in ("lstm", "linear")}
    lines = {label: n for label, n in places.items() if 0 < n < math.inf}
    title = f"Forward and backward, d = {d}, batch of {batch}"
    return values, {"questions-cost": Chart(title, "length n", "seconds", series, True, True, lines)}


def _from(n: float, lengths: Sequence[int]) -> str:
    """From which length on attention takes longer, in words."""
    if n == 0:
        return f"at every n from {lengths[0]} on"
    return f"from n ≈ {n:.0f} on" if n < math.inf else f"not even at n = {lengths[-1]}"


COST = Question(
    "cost", "Is attention, O(n²), slower than a recurrence, O(n), and from which length on?", _trials, _found
)
