"""Two factors: 1/√d_k of the scores (§3.2.1), and √d_model of the embeddings (§3.4).

Letters: N draws, S keys, d_k width of a head, T positions.
"""

import math
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from regard.core.attention import attention_weights
from regard.data.batching import collate
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, table
from regard.experiments.questions.frame import (
    Question,
    Verdict,
    apart,
    learning_curve,
    mean,
    over_seeds,
    percent,
    repeated,
    windows,
)
from regard.experiments.questions.tasks import SIZES, learnt, measured, unseen, untaught
from regard.inspection.taps import record
from regard.models.transformer import Transformer

LENGTHS = range(4, 11)
EXPONENTS = {"none": 0.0, "root": -0.5, "whole": -1.0}  # the scale is d_k to this power
SCALES = {"none": "1", "root": "1/√d_k", "whole": "1/d_k"}
KEYS, DRAWS = 64, 200
WIDTHS = {"smoke": (4, 16), "small": (8, 256), "full": (8, 64, 1024)}  # d_k of models that learn
DRAWN = {"smoke": (4, 64), "small": (4, 16, 64, 256, 1024), "full": (4, 16, 64, 256, 1024)}  # d_k of random vectors
MODELS = {"smoke": (16, 32), "small": (32, 128), "full": (128, 512, 1024)}  # d_model, for the embeddings


def saturation(weights: Tensor) -> tuple[float, float, float]:
    """Entropy (over its largest, ln S), largest weight, norm of the soft-max's Jacobian, of weights (N, S): medians.

    J = diag(a) - a aᵀ is what a gradient passes through; ‖J‖² = Σ aᵢ² (1 - 2 aᵢ) + (Σ aᵢ²)². A mean over draws would
    be that of the few in which two keys happen to be level.
    """
    square = weights.square()
    norms = ((square * (1 - 2 * weights)).sum(-1) + square.sum(-1).square()).clamp(min=0.0).sqrt()  # (N,)
    entropy = torch.special.entr(weights).sum(-1) / math.log(weights.shape[-1])
    return float(entropy.median()), float(weights.amax(-1).median()), float(norms.median())


def drawn(folder: Path, console: Console, *, d_k: int, keys: int, draws: int) -> Result:
    """What each scale makes of queries and keys whose numbers are independent, of mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(d_k)
    # In double: where one weight is all but 1, the norm of the Jacobian is a difference of numbers all but equal.
    q = torch.randn(draws, 1, 1, d_k, generator=generator).double()
    k = torch.randn(draws, 1, keys, d_k, generator=generator).double()
    found: Result = {"variance": float((q @ k.mT).var())}
    for name, exponent in EXPONENTS.items():
        weights = attention_weights(q, k, scale=d_k**exponent)[:, 0, 0]  # (N, S)
        found[name] = dict(zip(("entropy", "largest", "gradient"), saturation(weights), strict=True))
    return found


def scaled(
    folder: Path, console: Console, *, d_k: int, exponent: float, steps: int, tested: int, seed: int, **model: Any
) -> Result:
    """A model that sorts, with one scale; and the standard deviation of its scores before it has learnt anything."""
    settings = {**model, "heads": 1, "d_k": d_k, "scale": d_k**exponent}
    batch = collate(unseen("sort", [LENGTHS[-1]], seed, 64))  # of one length: nothing is padded
    with torch.no_grad(), record(fresh := untaught("sort", seed, **settings), "encoder.layers.0.*", what="scores") as s:
        fresh(batch["source"], batch["target"])
    (scores,) = s.scores.values()
    taught, losses = learnt(console, "sort", LENGTHS, steps=steps, seed=seed, **settings)
    found = measured(taught, unseen("sort", LENGTHS, seed, tested))
    return {**found, "curve": windows(losses), "deviation": float(scores.std())}


def _scale_trials(scale: str) -> list[Trial]:
    size = SIZES[scale]
    trials = [Trial(f"scale-drawn-{d_k}", drawn, {"d_k": d_k, "keys": KEYS, "draws": DRAWS}) for d_k in DRAWN[scale]]
    common = {**size.model, "steps": size.steps, "tested": size.tested}
    for d_k in WIDTHS[scale]:
        for name, exponent in EXPONENTS.items():
            stem = f"scale-{d_k}-{name}"
            trials += repeated(stem, scaled, size.seeds, **{**common, "d_k": d_k, "exponent": exponent})
    return trials


def _scale_answer(results: Results, scale: str) -> Verdict:
    widths, drawn_at = WIDTHS[scale], DRAWN[scale]
    random = [results[f"scale-drawn-{d_k}"] for d_k in drawn_at]
    power = math.log(random[-1]["variance"] / random[0]["variance"]) / math.log(drawn_at[-1] / drawn_at[0])
    rows = [
        [
            f"{d_k}",
            each["variance"],
            *(each[name][key] for key in ("entropy", "largest", "gradient") for name in SCALES),
        ]
        for d_k, each in zip(drawn_at, random, strict=True)
    ]
    heads = [f"{what}, {label}" for what in ("entropy", "largest", "gradient") for label in SCALES.values()]
    stems = {(d_k, name): f"scale-{d_k}-{name}" for d_k in widths for name in SCALES}
    learned = [
        [f"{d_k}, {SCALES[name]}", *(mean(results, stem, key) for key in ("deviation", "loss")),
         percent(mean(results, stem, "right"))]
        for (d_k, name), stem in stems.items()
    ]  # fmt: skip
    best = {d_k: min(SCALES, key=lambda name: mean(results, stems[d_k, name], "loss")) for d_k in widths}
    clear = {
        d_k: apart(*(over_seeds(results, stems[d_k, name], "loss") for name in ("none", "root"))) for d_k in widths
    }
    last, d = random[-1], widths[-1]
    kept = last["root"]["gradient"] / max(last["none"]["gradient"], 1e-12)
    verdicts = "; ".join(
        f"at d_k = {each} the scale {SCALES[best[each]]} ends with the lowest loss, and runs with 1 and with 1/√d_k "
        + ("do not overlap" if clear[each] else "overlap")
        for each in widths
    )
    short = (
        f"The variance of q·k grows as d_k to the power {power:.2f}. At d_k = {drawn_at[-1]}, undivided, one key has "
        f"{percent(last['none']['largest'])} of the weight; with 1/√d_k the soft-max lets {kept:.3g} times as much "
        f"gradient through. "
        f"In training, {verdicts}."
    )
    text = f"""\
Queries and keys of independent numbers (mean 0, variance 1), {KEYS} keys, {DRAWS} draws: the variance of q·k,
and for each scale the entropy of the weights (over ln {KEYS}), the largest of them, and the norm of the
soft-max's Jacobian, which every gradient to the scores passes (medians over the draws).

{table(["d_k", "variance of q·k", *heads], rows)}

![Gradient through the soft-max](questions-scale.svg)

Then models with one head of that width learn to sort {LENGTHS[0]} to {LENGTHS[-1]} letters,
{SIZES[scale].effort}. The deviation is that of the scores before training; it is below what independent numbers
of variance 1 would give where Xavier's initialisation makes wide projections smaller, and Adam can unlearn a
wrong scale by making W_Q and W_K larger or smaller.

{table(["d_k, scale", "deviation of scores at first", "loss", "sorted right"], learned)}

![Learning to sort at d_k = {d}](questions-scale-training.svg)"""
    gradients = [Series(label, drawn_at, [each[name]["gradient"] for each in random]) for name, label in SCALES.items()]
    curves = [learning_curve(label, over_seeds(results, stems[d, name], "curve")) for name, label in SCALES.items()]
    return Verdict(
        short,
        text,
        {
            "questions-scale": Chart(
                "What the soft-max lets through", "d_k", "norm of the Jacobian", gradients, log_x=True, log_y=True
            ),
            "questions-scale-training": Chart(
                f"Learning to sort, d_k = {d}", "step", "loss (nats a symbol)", curves, log_y=True
            ),
        },
    )


def ratio(model: Transformer, positions: int) -> float:
    """How long a word's vector is beside a position's, as they are added: a ratio of mean norms."""
    embedding = model.source_embedding
    with torch.no_grad():
        words = embedding.tokens.weight * embedding.scale  # (V, d_model)
        places = embedding.positions.add(torch.zeros(1, positions, words.shape[1]), 0)[0]  # (T, d_model)
        return float(words.norm(dim=-1).mean() / places.norm(dim=-1).mean())


def embedded(
    folder: Path, console: Console, *, scale_embedding: bool, steps: int, tested: int, seed: int, **model: Any
) -> Result:
    """A model that copies, with and without √d_model, and the ratio of norms before and after."""
    settings = {**model, "scale_embedding": scale_embedding}
    before = ratio(untaught("copy", seed, **settings), LENGTHS[-1])
    taught, losses = learnt(console, "copy", LENGTHS, steps=steps, seed=seed, **settings)
    found = measured(taught, unseen("copy", LENGTHS, seed, tested))
    return {**found, "curve": windows(losses), "before": before, "after": ratio(taught, LENGTHS[-1])}


WITH = {"with": True, "without": False}


def _embedding_trials(scale: str) -> list[Trial]:
    size, trials = SIZES[scale], []
    for d in MODELS[scale]:
        for name, value in WITH.items():
            settings = {**size.model, "d_model": d, "d_ff": 2 * d, "steps": size.steps, "tested": size.tested}
            stem = f"embedding-{d}-{name}"
            trials += repeated(stem, embedded, size.seeds, **settings, scale_embedding=value)
    return trials


def _embedding_answer(results: Results, scale: str) -> Verdict:
    stems = {(d, name): f"embedding-{d}-{name}" for d in MODELS[scale] for name in WITH}
    rows = [
        [f"{d}, {name}", *(mean(results, stem, key) for key in ("before", "after", "loss")),
         percent(mean(results, stem, "right"))]
        for (d, name), stem in stems.items()
    ]  # fmt: skip
    verdicts = []
    for d in MODELS[scale]:
        losses = {name: over_seeds(results, stems[d, name], "loss") for name in WITH}
        better = min(WITH, key=lambda name: sum(losses[name]))
        sure = "in every run" if apart(*losses.values()) else "on the mean, but the runs overlap"
        verdicts.append(f"at d_model = {d} the models {better} it end with the lower loss {sure}")
    d = MODELS[scale][-1]
    short = (
        f"At d_model = {d} a word begins {mean(results, stems[d, 'with'], 'before'):.2f} times as long as its position "
        f"with the factor, and {mean(results, stems[d, 'without'], 'before'):.2f} times without, and ends at "
        f"{mean(results, stems[d, 'with'], 'after'):.2f} and {mean(results, stems[d, 'without'], 'after'):.2f}; "
        f"{'; '.join(verdicts)}."
    )
    text = f"""\
Embeddings are drawn with variance 1/d_model, so that the tied output layer begins with logits near 1; times
√d_model they have variance 1. Sinusoidal positions have a norm of √(d_model / 2) whatever the factor is. Models
learn to copy {LENGTHS[0]} to {LENGTHS[-1]} letters, {SIZES[scale].effort}; the ratio is that of the mean norms,
word over position.

{table(["d_model, factor", "ratio at first", "ratio at the end", "loss", "copied right"], rows)}

![With and without the factor](questions-embedding.svg)"""
    curves = [
        learning_curve(f"{name} √d_model, d_model = {d}", over_seeds(results, stem, "curve"))
        for (d, name), stem in stems.items()
    ]
    chart = Chart("Learning to copy", "step", "loss (nats a symbol)", curves, log_y=True)
    return Verdict(short, text, {"questions-embedding": chart})


SCALE = Question(
    "scale", "Why are the scores divided by √d_k, and not by d_k or by nothing?", _scale_trials, _scale_answer
)
EMBEDDING = Question(
    "embedding", "Does it matter that embeddings are multiplied by √d_model?", _embedding_trials, _embedding_answer
)
