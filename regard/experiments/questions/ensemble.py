"""Whether the heads of a model are like the members of an ensemble.

Letters: B batch, T positions, V vocabulary.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, table
from regard.experiments.questions.frame import Found, Question, over_seeds, percent, repeated
from regard.experiments.questions.tasks import LENGTHS, SIZES, learnt, measured, unseen
from regard.experiments.runs import Pair
from regard.inspection.taps import attentions, edit

LEARNT = 0.5  # of the answers right: with fewer there is too little to lose
MEMBERS = 4  # heads of the one model; models of the ensemble, each half as wide and so of a quarter of the weights


class Mixture(nn.Module):
    """An ensemble: the mean of what its members hold likely."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S), target (B, T) -> logarithms of probabilities (B, T, V)."""
        likely = [member(source, target).log_softmax(-1) for member in self.members]
        return torch.stack(likely).logsumexp(0)  # times the number of members, which no loss or choice sees


def subsets(measure: Callable[[tuple[int, ...]], dict[str, float]]) -> list[dict[str, float]]:
    """What is measured with all but k parts, as a mean over every choice of k, for k = 0, 1, ..., MEMBERS - 1."""
    found = []
    for k in range(MEMBERS):
        each = [measure(kept) for kept in combinations(range(MEMBERS), MEMBERS - k)]
        found.append({key: fmean(one[key] for one in each) for key in each[0]})
    return found


def heads(folder: Path, console: Console, *, steps: int, tested: int, seed: int, **settings: Any) -> Result:
    """One model with MEMBERS heads in each attention, some of them silent everywhere; or the others louder for it."""
    model, _ = learnt(console, "sort", LENGTHS, steps=steps, seed=seed, **settings, heads=MEMBERS)
    pairs = unseen("sort", LENGTHS, seed, tested)

    def some(kept: tuple[int, ...], factor: float) -> dict[str, float]:
        changes = {head: factor if head in kept else 0.0 for head in range(MEMBERS)}
        with edit(model, dict.fromkeys(attentions(model), changes)):
            return measured(model, pairs)

    return {
        "silent": subsets(lambda kept: some(kept, 1.0)),
        "louder": subsets(lambda kept: some(kept, MEMBERS / len(kept))),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def models(folder: Path, console: Console, *, steps: int, tested: int, seed: int, **settings: Any) -> Result:
    """MEMBERS models of one head each, taught apart, and the mean of some of them."""
    members = [
        learnt(console, "sort", LENGTHS, steps=steps, seed=MEMBERS * seed + i, **settings, heads=1)[0]
        for i in range(MEMBERS)
    ]
    pairs: list[Pair] = unseen("sort", LENGTHS, seed, tested)
    return {
        "members": subsets(lambda kept: measured(Mixture([members[i] for i in kept]), pairs)),
        "parameters": sum(p.numel() for member in members for p in member.parameters()),
    }


def _trials(scale: str) -> list[Trial]:
    size = SIZES[scale]
    common = {key: value for key, value in size.settings.items() if key != "heads"}
    half = {**common, "d_model": size.d_model // 2, "d_ff": size.d_model}
    return [
        *repeated("ensemble-heads", heads, size.seeds, common),
        *repeated("ensemble-models", models, size.seeds, half),
    ]


def _found(results: Results, scale: str) -> Found:
    curves = {
        "heads": over_seeds(results, "ensemble-heads", "silent"),
        "heads, the others louder": over_seeds(results, "ensemble-heads", "louder"),
        "models of an ensemble": over_seeds(results, "ensemble-models", "members"),
    }
    loss, right = (
        {label: [fmean(run[k][key] for run in runs) for k in range(MEMBERS)] for label, runs in curves.items()}
        for key in ("loss", "right")
    )
    rise = {label: losses[1] - losses[0] for label, losses in loss.items()}
    *parts, whole = curves
    gentle = min(parts, key=lambda label: rise[label])
    if min(right["heads"][0], right[whole][0]) < LEARNT:
        verdict = "too few are right with all of them to tell"
    elif rise[gentle] <= 2 * rise[whole]:
        verdict = "by this measure heads may be called an ensemble"
    else:
        verdict = "heads are parts that work together, not members of an ensemble"
    rows = [
        [f"{k}", *(cell for label in curves for cell in (loss[label][k], percent(right[label][k])))]
        for k in range(MEMBERS)
    ]
    values = {
        "members": MEMBERS,
        "models": loss[whole],
        "heads": loss[gentle],
        "model": percent(right[whole][-1]),
        "head": percent(right[gentle][-1]),
        "verdict": verdict,
        "parameters": [over_seeds(results, f"ensemble-{what}", "parameters")[0] for what in ("heads", "models")],
        "table": table(["taken away", *(f"{what}, {label}" for label in curves for what in ("loss", "right"))], rows),
    }
    series = [Series(label, list(range(MEMBERS)), losses) for label, losses in loss.items()]
    chart = Chart("Without some heads, without some models", f"taken away of {MEMBERS}", "loss", series, log_y=True)
    return values, {"questions-ensemble": chart}


ENSEMBLE = Question("ensemble", "Is multi-head attention an ensemble?", _trials, _found)
