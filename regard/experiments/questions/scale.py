"""Two factors: 1/√d_k of the scores (§3.2.1), and √d_model of the embeddings (§3.4).

Letters: N draws, S keys, d_k width of a head, T positions.
"""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from regard.core.attention import attention_weights
from regard.data.batching import collate
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Result, Results, Trial, table
from regard.experiments.questions.frame import Found, Question, apart, falling, mean, over_seeds, percent, repeated
from regard.experiments.questions.tasks import LENGTHS, SIZES, learnt, measured, unseen, untaught, windows
from regard.inspection.taps import record
from regard.models.transformer import Transformer

EXPONENTS = {"none": 0.0, "root": -0.5, "whole": -1.0}  # the scale is d_k to this power
SCALES = {"none": "1", "root": "1/√d_k", "whole": "1/d_k"}
FIGURES = ("entropy", "largest", "gradient")
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
        found[name] = dict(zip(FIGURES, saturation(weights), strict=True))
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
    return trials + repeated("scale", scaled, size.seeds, size.settings, d_k=WIDTHS[scale], exponent=EXPONENTS)


def _scale(results: Results, scale: str) -> Found:
    widths, drawn_at = WIDTHS[scale], DRAWN[scale]
    random = [results[f"scale-drawn-{d_k}"] for d_k in drawn_at]
    first, last, d = random[0], random[-1], widths[-1]
    rows = [
        [f"{d_k}", each["variance"], *(each[name][key] for key in FIGURES for name in SCALES)]
        for d_k, each in zip(drawn_at, random, strict=True)
    ]
    stems = {(d_k, name): f"scale-{d_k}-{name}" for d_k in widths for name in SCALES}
    learned: list[list[object]] = []
    for (d_k, name), stem in stems.items():
        *figures, right = (mean(results, stem, key) for key in ("deviation", "loss", "right"))
        learned.append([f"{d_k}, {SCALES[name]}", *figures, percent(right)])
    verdicts = []
    for d_k in widths:
        losses = {name: over_seeds(results, stems[d_k, name], "loss") for name in SCALES}
        best = min(SCALES, key=lambda name: fmean(losses[name]))
        overlap = "do not overlap" if apart(losses["none"], losses["root"]) else "overlap"
        verdicts.append(
            f"at d_k = {d_k} the scale {SCALES[best]} ends with the lowest loss, and runs with 1 and with 1/√d_k "
            + overlap
        )
    gradients = [Series(label, drawn_at, [each[name]["gradient"] for each in random]) for name, label in SCALES.items()]
    curves = {stems[d, name]: label for name, label in SCALES.items()}
    heads = [f"{what}, {label}" for what in FIGURES for label in SCALES.values()]
    values = {
        "power": math.log(last["variance"] / first["variance"]) / math.log(drawn_at[-1] / drawn_at[0]),
        "widest": drawn_at[-1],
        "largest": percent(last["none"]["largest"]),
        "kept": last["root"]["gradient"] / max(last["none"]["gradient"], 1e-12),
        "verdicts": "; ".join(verdicts),
        "keys": KEYS,
        "draws": DRAWS,
        "drawn": table(["d_k", "variance of q·k", *heads], rows),
        "learned": table(["d_k, scale", "deviation of scores at first", "loss", "sorted right"], learned),
        "d": d,
    }
    passed = Chart("What the soft-max lets through", "d_k", "norm of the Jacobian", gradients, log_x=True, log_y=True)
    return values, {
        "questions-scale": passed,
        "questions-scale-training": falling(f"Learning to sort, d_k = {d}", results, curves),
    }


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
        settings = {**size.settings, "d_model": d, "d_ff": 2 * d}
        trials += repeated(f"embedding-{d}", embedded, size.seeds, settings, scale_embedding=WITH)
    return trials


def _embedding(results: Results, scale: str) -> Found:
    stems = {(d, name): f"embedding-{d}-{name}" for d in MODELS[scale] for name in WITH}
    rows: list[list[object]] = []
    for (d, name), stem in stems.items():
        *figures, right = (mean(results, stem, key) for key in ("before", "after", "loss", "right"))
        rows.append([f"{d}, {name}", *figures, percent(right)])
    verdicts = []
    for d in MODELS[scale]:
        losses = {name: over_seeds(results, stems[d, name], "loss") for name in WITH}
        better = min(WITH, key=lambda name: sum(losses[name]))
        sure = "in every run" if apart(*losses.values()) else "on the mean, but the runs overlap"
        verdicts.append(f"at d_model = {d} the models {better} it end with the lower loss {sure}")
    curves = {stem: f"{name} √d_model, d_model = {d}" for (d, name), stem in stems.items()}
    d = MODELS[scale][-1]
    values = {
        "d": d,
        "before": [mean(results, stems[d, name], "before") for name in WITH],
        "after": [mean(results, stems[d, name], "after") for name in WITH],
        "verdicts": "; ".join(verdicts),
        "table": table(["d_model, factor", "ratio at first", "ratio at the end", "loss", "copied right"], rows),
    }
    return values, {"questions-embedding": falling("Learning to copy", results, curves)}


SCALE = Question("scale", "Why are the scores divided by √d_k, and not by d_k or by nothing?", _scale_trials, _scale)
EMBEDDING = Question(
    "embedding", "Does it matter that embeddings are multiplied by √d_model?", _embedding_trials, _embedding
)
