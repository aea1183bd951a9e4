"""Where self-attention, quadratic in the length, becomes slower than a recurrence, which is linear in it.

Letters: B batch, n length, d width.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.core.attention import AttentionConfig, MultiHeadAttention
from regard.core.cache import KeyValues
from regard.core.recurrence import LinearRecurrence, RecurrentPast
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, table
from regard.experiments.questions.frame import Question, Verdict
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
LAYERS = {"attention": "self-attention", "lstm": "LSTM", "linear": "linear recurrence"}


def timed(folder: Path, console: Console, *, n: int, batch: int, d: int, repeats: int) -> Result:
    """Seconds of a forward and backward pass, and of one step that decodes with n positions behind it: medians.

    The layers take turns, after a first round that does not count.
    """
    torch.manual_seed(0)
    attention, lstm = MultiHeadAttention(AttentionConfig(d, HEADS)), nn.LSTM(d, d, batch_first=True)
    recurrence = LinearRecurrence(d)
    x = torch.randn(batch, n, d, requires_grad=True)
    runs: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
        "attention": (attention, lambda: attention(x)),
        "lstm": (lstm, lambda: lstm(x)[0]),
        "linear": (recurrence, lambda: recurrence(x)),
    }
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
        "linear": lambda: recurrence(new, cache=before),
    }
    taught: dict[str, list[float]] = {name: [] for name in LAYERS}
    decoded: dict[str, list[float]] = {name: [] for name in LAYERS}
    for _ in range(repeats + 1):
        for name, (layer, forward) in runs.items():
            start = time.perf_counter()
            torch.autograd.grad(forward().sum(), [x, *layer.parameters()])
            taught[name].append(time.perf_counter() - start)
        with torch.inference_mode():
            for name, step in steps.items():
                start = time.perf_counter()
                for _ in range(STEPS):
                    step()
                decoded[name].append((time.perf_counter() - start) / STEPS)
    return {
        "training": {name: median(times[1:]) for name, times in taught.items()},
        "decoding": {name: median(times[1:]) for name, times in decoded.items()},
        "threads": torch.get_num_threads(),
    }


def _trials(scale: str) -> list[Trial]:
    common = {"d": WIDTH[scale], "repeats": 1 if scale == "smoke" else REPEATS}
    return [
        Trial(f"cost-{batch}-{n}", timed, {**common, "n": n, "batch": batch})
        for batch in BATCHES[scale]
        for n in LENGTHS[scale]
    ]


def _answer(results: Results, scale: str) -> Verdict:
    lengths, batches, d = LENGTHS[scale], BATCHES[scale], WIDTH[scale]
    seconds = {
        (batch, what, name): [results[f"cost-{batch}-{n}"][what][name] for n in lengths]
        for batch in batches
        for what in ("training", "decoding")
        for name in LAYERS
    }
    verdicts = [
        f"with a batch of {batch}, a pass through self-attention takes longer than one through an LSTM "
        f"{_from(lengths, *(seconds[batch, 'training', name] for name in ('attention', 'lstm')))}, and through a "
        f"linear recurrence {_from(lengths, *(seconds[batch, 'training', name] for name in ('attention', 'linear')))}"
        for batch in batches
    ]
    steps = {
        name: _from(lengths, seconds[1, "decoding", "attention"], seconds[1, "decoding", name])
        for name in ("lstm", "linear")
    }
    short = (
        f"At d = {d} on this machine, {'; '.join(verdicts)}. A step of decoding, with a batch of 1, takes "
        f"attention longer than an LSTM {steps['lstm']}, and than a linear recurrence {steps['linear']}. "
        f"Counting multiplications, attention and LSTM would meet at n = 2 d = {2 * d}."
    )
    head = ["n", *(f"{what}, {label}" for what in ("pass", "step") for label in LAYERS.values())]
    tables = "\n\n".join(
        f"Batch of {batch}, milliseconds:\n\n"
        + table(head, [
            [f"{n}", *(1e3 * seconds[batch, what, name][i] for what in ("training", "decoding") for name in LAYERS)]
            for i, n in enumerate(lengths)
        ])
        for batch in batches
    )  # fmt: skip
    threads = sorted({result["threads"] for result in results.values()})
    text = f"""\
One layer of each kind at d = {d}: self-attention with {HEADS} heads (PyTorch's fused kernel), PyTorch's LSTM,
and a linear recurrence as a parallel scan. A pass is forward and backward over a whole sequence, as in
training; a step is one new position with n behind it, as in decoding. Medians of
{REPEATS if scale != "smoke" else 1}, the layers take turns; threads: {", ".join(map(str, threads))}. Per
position attention multiplies 4 d² + 2 n d times, an LSTM 8 d², so by counting they meet at n = 2 d; but an LSTM
must take its n steps one after the other.

{tables}

![Time against length](questions-cost.svg)"""
    batch = batches[0]
    series = [Series(label, lengths, seconds[batch, "training", name]) for name, label in LAYERS.items()]
    places = {
        f"≥ {LAYERS[name]}": at
        for name in ("lstm", "linear")
        if 0 < (at := crossover(lengths, *(seconds[batch, "training", of] for of in ("attention", name)))) < math.inf
    }
    chart = Chart(
        f"Forward and backward, d = {d}, batch of {batch}", "length n", "seconds", series, log_x=True, log_y=True,
        lines=places,
    )  # fmt: skip
    return Verdict(short, text, {"questions-cost": chart})


def _from(lengths: tuple[int, ...], a: list[float], b: list[float]) -> str:
    """From which length on a takes longer than b does, in words."""
    at = crossover(lengths, a, b)
    if at == 0:
        return f"at every n from {lengths[0]} on"
    return f"from n ≈ {at:.0f} on" if at < math.inf else f"not even at n = {lengths[-1]}"


COST = Question(
    "cost",
    "Is attention, O(n²), slower than a recurrence, O(n), and from which length on?",
    _trials,
    _answer,
)
