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
from regard.experiments.questions.frame import Question, Verdict, mean, over_seeds, percent, repeated
from regard.experiments.questions.tasks import BATCH, SIZES, measured, pairs_of, unseen, untaught
from regard.experiments.runs import taught
from regard.inspection.taps import attentions

LENGTHS = {"copy": range(4, 11), "sort": range(4, 11), "lookup": range(8, 9)}  # always 8 entries: the question is ninth
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
    lengths = LENGTHS[task]
    taught(model, pairs_of(task, lengths, seed), console, steps=steps, batch=BATCH, seed=seed, name=task)
    return measured(model.eval(), unseen(task, lengths, seed, tested))


def _average_trials(scale: str) -> list[Trial]:
    size = SIZES[scale]
    common = {**size.model, "steps": size.steps, "tested": size.tested}
    return [
        trial
        for task in ("copy", "lookup")
        for weights in WEIGHTS
        for trial in repeated(f"average-{task}-{weights}", averaged, size.seeds, **common, task=task, weights=weights)
    ]


def _average_answer(results: Results, scale: str) -> Verdict:
    right = {
        task: {label: mean(results, f"average-{task}-{name}", "right") for name, label in WEIGHTS.items()}
        for task in ("copy", "lookup")
    }
    copied, found = right["copy"], right["lookup"]
    runs = {name: over_seeds(results, f"average-lookup-{name}", "right") for name in WEIGHTS}
    clear = all(min(runs["content"]) > max(runs[name]) for name in ("places", "mean"))
    rows = [[label, *(percent(shares[label]) for shares in right.values())] for label in WEIGHTS.values()]
    short = (
        f"Where only the place matters (copying), weights learnt by place are right in "
        f"{percent(copied['learnt by place'])} of cases and attention in {percent(copied['attention'])}. "
        f"Where the content says where to look (lookup), they are right in {percent(found['learnt by place'])}, a "
        f"plain mean in {percent(found['plain mean'])}, and attention in {percent(found['attention'])}: "
        + (
            "in form a weighted average, but its weights are computed from the content, and there that is what counts."
            if clear
            else "here content brought attention nothing that every run shows."
        )
    )
    text = f"""\
Three models of one shape: attention; the same with the scores of every head replaced by a learnt table of
places (H, T, S), a fixed weighted average that is learnt; and a plain mean of what may be seen. Copying
{LENGTHS["copy"][0]} to {LENGTHS["copy"][-1]} letters asks for a place. In the lookup, `a3 c5 … b1 c?` is
answered by `5`: eight entries in any order, and the key that is asked for always ninth; who answers by chance
is right in 12.5 %, and a mean does hold which entries there are, for a feed-forward network to take apart.
{SIZES[scale].effort}; the share of targets that are right from end to end.

{table(["weights", *right], rows)}

![Attention and fixed averages](questions-average.svg)"""
    bars = Bars(
        "Weights from content, or fixed",
        "right from end to end",
        list(right),
        {label: [right[task][label] for task in right] for label in WEIGHTS.values()},
    )
    return Verdict(short, text, {"questions-average": bars})


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
    taught(model, pairs_of(task, LENGTHS[task], seed), console, steps=steps, batch=BATCH, seed=seed, name=task)
    return measured(model.eval(), unseen(task, LENGTHS[task], seed, tested))


KINDS = ("none", "sinusoidal")


def _order_trials(scale: str) -> list[Trial]:
    size, trials = SIZES[scale], []
    for kind in KINDS:
        trials += repeated(f"order-permuted-{kind}", permuted, size.seeds, **size.model, positions=kind)
        for task in ("sort", "copy"):
            settings = {**size.model, "steps": size.steps, "tested": size.tested, "task": task, "positions": kind}
            trials += repeated(f"order-{task}-{kind}", placed, size.seeds, **settings)
    return trials


def _order_answer(results: Results, scale: str) -> Verdict:
    differences = {kind: mean(results, f"order-permuted-{kind}", "difference") for kind in KINDS}
    right = {
        kind: {task: mean(results, f"order-{task}-{kind}", "right") for task in ("sort", "copy")} for kind in KINDS
    }
    blind = differences["none"] < 1e-4
    short = (
        f"Without positions the encoder of a shuffled sentence is {'' if blind else 'not '}the shuffled encoder of the "
        f"sentence (relative difference {differences['none']:.1e}; with positions {differences['sinusoidal']:.2g}). "
        f"It sorts, for which order does not matter, in {percent(right['none']['sort'])} of cases (with positions "
        f"{percent(right['sinusoidal']['sort'])}), and copies in {percent(right['none']['copy'])} (with positions "
        f"{percent(right['sinusoidal']['copy'])})."
    )
    text = f"""\
First, encoders as they are initialised read 64 sentences of 10 letters and the same in another order; the
difference is the norm of (shuffled, then encoded) − (encoded, then shuffled), over the norm of either. Then
models without any positions learn a task on the bag of letters (sort) and one on their order (copy),
{LENGTHS["sort"][0]} to {LENGTHS["sort"][-1]} letters, {SIZES[scale].effort}. Without positions the decoder
still knows the order of what it wrote, from its causal mask; what it reads is a bag.

{
        table(
            ["positions", "difference", "sort", "copy"],
            [[kind, differences[kind], *(percent(right[kind][task]) for task in ("sort", "copy"))] for kind in KINDS],
        )
    }

![With and without positions](questions-order.svg)"""
    bars = Bars(
        "A bag of letters, and their order",
        "right from end to end",
        ["sort", "copy"],
        {kind: [right[kind]["sort"], right[kind]["copy"]] for kind in KINDS},
    )
    return Verdict(short, text, {"questions-order": bars})


AVERAGE = Question("average", "Is attention just a weighted average?", _average_trials, _average_answer)
ORDER = Question("order", "Is attention blind to order without positions?", _order_trials, _order_answer)
