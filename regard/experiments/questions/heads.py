"""Heads: put side by side or added up, many or few, needed or not.

Letters: B batch, T positions, H heads, d_v width of a head.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.layers import linear
from regard.core.mixers import AttentionConfig
from regard.data.vocabulary import BOS, EOS, PAD
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, listed, table
from regard.experiments.questions.frame import Found, Question, apart, falling, mean, over_seeds, percent, repeated
from regard.experiments.questions.tasks import (
    BATCH,
    LENGTHS,
    SIZES,
    learnt,
    measured,
    pairs_of,
    unseen,
    untaught,
    windows,
)
from regard.experiments.runs import Pair, batched, taught
from regard.experiments.table3 import ROWS
from regard.inspection.axes import axes
from regard.inspection.importance import head_importance, pruning_curve, random_curve
from regard.inspection.measures import Tokens, rows_of
from regard.inspection.similarity import Likeness
from regard.inspection.taps import attentions, record
from regard.shipped import DEFAULT, shipped

JOINED = {"smoke": 4, "small": 8, "full": 8}  # heads that are put side by side, or added
WAYS = {"concat": "side by side, W_O", "sum": "added up", "wide": "added up, wider heads"}
COUNTS = {"smoke": (1, 4), "small": (1, 2, 4, 8, 16), "full": (1, 4, 8, 16, 32)}
# Perplexity of Table 3 (A), and of base, which has 8 heads: English-German.
PAPER = {row.value or 8: row.perplexity for row in ROWS if row.group in ("base", "A")}
ALIKE = 0.15  # nats of Jensen-Shannon divergence below which two heads count as redundant, as in the head atlas
SHARE = 0.125  # of the heads that fall silent at a time
TOLERATED = 0.1  # of the share of right answers, or of BLEU, that may be lost


class Summed(nn.Module):
    """(head_1 + ... + head_H) W: Concat(head_1, ..., head_H) W_O where all H blocks of W_O are W."""

    def __init__(self, heads: int, d_v: int, d_model: int) -> None:
        super().__init__()
        self.heads, self.product = heads, linear(d_v, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Heads side by side (B, T, H · d_v) -> (B, T, d_model)."""
        return self.product(x.unflatten(-1, (self.heads, -1)).sum(-2))


def equal(folder: Path, console: Console, *, d_model: int, heads: int) -> Result:
    """The largest difference between a sum of heads and a W_O of equal blocks, over the largest number there is."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(AttentionConfig(d_model, heads))
    summed = Summed(heads, d_model // heads, d_model)
    x = torch.randn(8, 10, d_model)
    with torch.no_grad():
        attention.output.get_parameter("weight").copy_(summed.product.weight.repeat(1, heads))
        tied = attention(x)
        attention.add_module("output", summed)
        return {"difference": float((attention(x) - tied).abs().max() / tied.abs().max())}


def joined(folder: Path, console: Console, *, way: str, steps: int, tested: int, seed: int, **settings: Any) -> Result:
    """A model whose heads are put side by side or added up learns to sort.

    A sum has H times fewer weights in W_O. W_V and W_O have 2 d² side by side; added up, H d d_v + d_v d: as many if
    d_v = 2 d / (H + 1), the wider heads.
    """
    d, heads = settings["d_model"], settings["heads"]
    d_v = round(2 * d / (heads + 1)) if way == "wide" else d // heads
    model = untaught("sort", seed, **settings, d_v=d_v)
    if way != "concat":
        for attention in attentions(model).values():
            attention.add_module("output", Summed(heads, d_v, d))
    pairs = pairs_of("sort", LENGTHS, seed)
    losses = taught(model, pairs, console, steps=steps, batch=BATCH, seed=seed, name=way)
    found = measured(model.eval(), unseen("sort", LENGTHS, seed, tested))
    return {**found, "curve": windows(losses), "parameters": sum(p.numel() for p in model.parameters())}


def _joining_trials(scale: str) -> list[Trial]:
    size, heads = SIZES[scale], JOINED[scale]
    trials = [Trial("joining-equal", equal, {"d_model": size.d_model, "heads": heads})]
    return trials + repeated("joining", joined, size.seeds, {**size.settings, "heads": heads}, way=[*WAYS])


def _joining(results: Results, scale: str) -> Found:
    losses = {way: over_seeds(results, f"joining-{way}", "loss") for way in WAYS}
    best = min(WAYS, key=lambda way: fmean(losses[way]))
    sure = all(apart(losses[best], losses[way]) for way in WAYS if way != best)
    rows: list[list[object]] = []
    for way, label in WAYS.items():
        size, right = (mean(results, f"joining-{way}", key) for key in ("parameters", "right"))
        figures = (function(losses[way]) for function in (fmean, min, max))
        rows.append([label, int(size), *figures, percent(right)])
    curves = {f"joining-{way}": label for way, label in WAYS.items()}
    values = {
        "difference": results["joining-equal"]["difference"],
        "best": WAYS[best],
        "sure": "in every run" if sure else "on the mean; the runs overlap, so this task does not tell them apart",
        "heads": JOINED[scale],
        "table": table(["heads", "parameters", "loss", "lowest", "highest", "sorted right"], rows),
    }
    return values, {"questions-joining": falling("Heads side by side, and added up", results, curves)}


def divided(folder: Path, console: Console, *, steps: int, tested: int, seed: int, **settings: Any) -> Result:
    """A model of so many heads learns to sort; how alike they are, and what is right as they fall silent."""
    model, _ = learnt(console, "sort", LENGTHS, steps=steps, seed=seed, **settings)
    pairs = unseen("sort", LENGTHS, seed, tested)
    chosen = batched(model, unseen("sort", LENGTHS, seed + 1, 64), 64)  # on other sentences than those measured
    importance = head_importance(model, chosen, pad=PAD)
    curves = {
        "importance": pruning_curve(model, importance, lambda: measured(model, pairs), share=SHARE),
        "chance": random_curve(model, lambda: measured(model, pairs), seed=seed, share=SHARE),
    }
    kept = {name: [{"kept": each.kept, **each.found} for each in curve] for name, curve in curves.items()}
    return {**measured(model, pairs), **likeness(model, pairs[:64]), "curves": kept}


def likeness(model: nn.Module, pairs: list[Pair]) -> dict[str, float | None]:
    """Of the pairs of heads in one attention: their mean Jensen-Shannon divergence, and how many are redundant."""
    (batch,), tokens, found, laid = batched(model, pairs, len(pairs)), Tokens(PAD, BOS, EOS), [], axes(model)
    with record(model, what=("weights", "outputs")) as flow, torch.inference_mode():
        model(batch["source"], batch["target"])
    for name, weights in flow.weights.items():
        like = Likeness()
        like.add([weights], [flow.outputs[name]], rows_of(laid[name], batch, tokens))
        found += like.distances()[np.triu_indices(weights.shape[1], 1)].tolist()
    if not found:
        return {"distance": None, "alike": None}
    return {"distance": fmean(found), "alike": fmean(each < ALIKE for each in found)}


def atlas(folder: Path, console: Console, *, model: str) -> Result:
    """The pruning curves of a model that comes with regard, from its head atlas: BLEU on held-out sentences."""
    known = json.loads((shipped(model) / "heads.json").read_text("utf-8"))
    pruning, kept = known["pruning"], ("kept", "bleu")
    return {
        "heads": len(known["heads"]),
        "redundant": len(known["redundant"]),
        "sentences": pruning["measured_on"],
        **{name: [{key: point[key] for key in kept} for point in pruning[name]] for name in ("importance", "random")},
    }


def _heads_trials(scale: str) -> list[Trial]:
    size, atlas_of = SIZES[scale], Trial("heads-atlas", atlas, {"model": DEFAULT})
    return [atlas_of, *repeated("heads", divided, size.seeds, size.settings, heads=COUNTS[scale])]


def spared(curve: list[dict[str, float]], key: str) -> float | None:
    """The share of heads that may fall silent before `key` has lost more than TOLERATED of what it was.

    None if it was nothing: then there is nothing to lose.

    >>> spared([{"kept": 8, "bleu": 40.0}, {"kept": 6, "bleu": 39.8}, {"kept": 4, "bleu": 30.0}], "bleu")
    0.25
    """
    if not curve[0][key]:
        return None
    kept = curve[0]["kept"]
    for point in curve:
        if point[key] < (1 - TOLERATED) * curve[0][key]:
            break
        kept = point["kept"]
    return 1 - kept / curve[0]["kept"]


def _heads(results: Results, scale: str) -> Found:
    counts = COUNTS[scale]
    losses = {count: over_seeds(results, f"heads-{count}", "loss") for count in counts}
    loss, low, high = ([function(losses[count]) for count in counts] for function in (fmean, min, max))
    best = min(counts, key=lambda count: fmean(losses[count]))
    level = [count for count in counts if count != best and not apart(losses[best], losses[count])]
    rows: list[list[object]] = []
    for count, *figures in zip(counts, loss, low, high, strict=True):
        stem = f"heads-{count}"
        distance = mean(results, stem, "distance") if count > 1 else None
        alike = percent(mean(results, stem, "alike")) if count > 1 else None
        right = percent(mean(results, stem, "right"))
        rows.append([f"{count}", SIZES[scale].d_model // count, *figures, right, distance, alike, PAPER.get(count)])
    alone = "unlike in the paper, a single head is not clearly worse"
    if best != 1 and 1 not in level:
        alone = "as in the paper, a single head is worse"
    most, known, tolerated = counts[-1], results["heads-atlas"], percent(TOLERATED)
    curves = over_seeds(results, f"heads-{most}", "curves")
    shares = [share for curve in curves if (share := spared(curve["importance"], "right")) is not None]
    free = f"the {most}-head models have no right answers to lose"
    if shares:
        free = (
            f"of the {most}-head models {percent(fmean(shares))} of the heads can be silenced, the least important "
            f"first, for at most {tolerated} of the right answers"
        )
    head = ["heads", "d_k", "loss", "lowest", "highest", "sorted right", "divergence", "pairs alike", "paper"]
    values = {
        "best": f"{best} {'head has' if best == 1 else 'heads have'}",
        "same": f"; {listed([str(each) for each in level])} cannot be told from it" if level else "",
        "alone": alone,
        "free": free,
        "shipped": percent(spared(known["importance"], "bleu") or 0.0),
        "tolerated": tolerated,
        "alike": ALIKE,
        "table": table(head, rows),
        "share": percent(SHARE),
        "atlas": known,
    }
    pruned = [
        *(_relative(f"{most} heads, by {name}", curves[0][name], "right") for name in ("importance", "chance")),
        _relative("translator, by importance", known["importance"], "bleu"),
        _relative("translator, by chance", known["random"], "bleu"),
    ]
    title, series = "Heads at a constant cost", Series("loss", counts, loss, low, high)
    return values, {
        "questions-heads": Chart(title, "heads", "loss (nats a symbol)", [series], log_x=True),
        "questions-pruning": Chart("Heads that fall silent", "share at work", "share of the quality kept", pruned),
    }


def _relative(label: str, curve: list[dict[str, float]], key: str) -> Series:
    whole = curve[0]
    quality = [point[key] / whole[key] if whole[key] else 0.0 for point in curve]
    return Series(label, [point["kept"] / whole["kept"] for point in curve], quality)


JOINING = Question(
    "joining", "What if the outputs of the heads were added up instead of put side by side?", _joining_trials, _joining
)
HEADS = Question("heads", "How many heads are best, and are they redundant?", _heads_trials, _heads)
