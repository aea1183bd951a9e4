"""What attention is without its content, and what it is without positions.

Letters: B batch, H heads, T queries, S keys.
"""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.experiments.charts import Bars
from regard.experiments.lab import Result, Results, Trial, table
from regard.experiments.questions.frame import Found, Question, mean, over_seeds, percent, repeated
from regard.experiments.questions.tasks import BATCH, LENGTHS, SIZES, measured, pairs_of, unseen, untaught
from regard.experiments.runs import taught
from regard.inspection.taps import attentions

ENTRIES = range(8, 9)  # of a lookup: always 8, the question is ninth
LONGEST = 16
WEIGHTS = {"content": "attention", "places": "learnt by place", "mean": "plain mean"}


class Fixed(nn.Module):
    """Scores that hang on the places of query and key alone, whatever is said there: a table, of zeros at first.

    Zeros give every key that may be seen the same weight; a table that learns gives a fixed weighted average that suits
    the task.
    """

    def __init__(self, heads: int, learns: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(heads, LONGEST, LONGEST), requires_grad=learns)

    def forward(self, scores: Tensor) -> Tensor:
        """scores (B, H, T, S), of which only the shape matters -> (B, H, T, S)."""
        return self.table[:, : scores.shape[2], : scores.shape[3]].expand_as(scores)


def fix(model: nn.Module, *, learns: bool) -> None:
    """Replace the scores of every attention of a model, for good; its W_Q and W_K are left without effect."""
    for attention in attentions(model).values():
        attention.mix.scores.fixed = Fixed(attention.heads, learns)
        attention.mix.scores.watchers.append(attention.mix.scores.fixed)


def averaged(
    folder: Path, console: Console, *, task: str, weights: str, steps: int, tested: int, seed: int, **settings: Any
) -> Result:
    """A model with attention, or with weights that do not hang on content, learns a task."""
    model = untaught(task, seed, **settings)
    if weights != "content":
        fix(model, learns=weights == "places")
    lengths = ENTRIES if task == "lookup" else LENGTHS
    taught(model, pairs_of(task, lengths, seed), console, steps=steps, batch=BATCH, seed=seed, name=task)
    return measured(model.eval(), unseen(task, lengths, seed, tested))


def _average_trials(scale: str) -> list[Trial]:
    size = SIZES[scale]
    return repeated("average", averaged, size.seeds, size.settings, task=("copy", "lookup"), weights=[*WEIGHTS])


def _average(results: Results, scale: str) -> Found:
    right = {
        task: {name: mean(results, f"average-{task}-{name}", "right") for name in WEIGHTS}
        for task in ("copy", "lookup")
    }
    runs = {name: over_seeds(results, f"average-lookup-{name}", "right") for name in WEIGHTS}
    verdict = "here content brought attention nothing that every run shows."
    if min(runs["content"]) > max(*runs["places"], *runs["mean"]):
        verdict = (
            "in form a weighted average, but its weights are computed from the content, and there that is what counts."
        )
    shown = {task: {name: percent(share) for name, share in shares.items()} for task, shares in right.items()}
    rows = [[label, *(shares[name] for shares in shown.values())] for name, label in WEIGHTS.items()]
    heights = {label: [shares[name] for shares in right.values()] for name, label in WEIGHTS.items()}
    bars = Bars("Weights from content, or fixed", "right from end to end", list(right), heights)
    values = {**shown, "verdict": verdict, "table": table(["weights", *right], rows)}
    return values, {"questions-average": bars}


def permuted(folder: Path, console: Console, *, positions: str, seed: int, **settings: Any) -> Result:
    """How far an encoder of a permuted sentence is from the permuted encoder of the sentence, over its own size."""
    model = untaught("copy", seed, **settings, positions=positions).eval()
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(3, model.config.vocabulary, (64, 10), generator=generator)
    order = torch.randperm(10, generator=generator)
    with torch.inference_mode():
        turned, plain = model.encode(source[:, order]).states, model.encode(source).states[:, order]
    return {"difference": float((turned - plain).norm() / plain.norm())}


def placed(
    folder: Path, console: Console, *, task: str, positions: str, steps: int, tested: int, seed: int, **settings: Any
) -> Result:
    """A model with and without positions learns a task."""
    model = untaught(task, seed, **settings, positions=positions)
    taught(model, pairs_of(task, LENGTHS, seed), console, steps=steps, batch=BATCH, seed=seed, name=task)
    return measured(model.eval(), unseen(task, LENGTHS, seed, tested))


KINDS = ("none", "sinusoidal")


def _order_trials(scale: str) -> list[Trial]:
    size, trials = SIZES[scale], []
    for kind in KINDS:
        trials += repeated("order-permuted", permuted, size.seeds, size.model, positions=[kind])
        trials += repeated("order", placed, size.seeds, size.settings, task=("sort", "copy"), positions=[kind])
    return trials


def _order(results: Results, scale: str) -> Found:
    difference = {kind: mean(results, f"order-permuted-{kind}", "difference") for kind in KINDS}
    right = {
        kind: {task: mean(results, f"order-{task}-{kind}", "right") for task in ("sort", "copy")} for kind in KINDS
    }
    shown = {kind: {task: percent(share) for task, share in shares.items()} for kind, shares in right.items()}
    rows = [[kind, difference[kind], *shown[kind].values()] for kind in KINDS]
    heights = {kind: [*shares.values()] for kind, shares in right.items()}
    bars = Bars("A bag of letters, and their order", "right from end to end", ["sort", "copy"], heights)
    values = {
        **shown,
        "difference": difference,
        "blind": "" if difference["none"] < 1e-4 else "not ",
        "table": table(["positions", "difference", "sort", "copy"], rows),
    }
    return values, {"questions-order": bars}


AVERAGE = Question("average", "Is attention just a weighted average?", _average_trials, _average)
ORDER = Question("order", "Is attention blind to order without positions?", _order_trials, _order)
