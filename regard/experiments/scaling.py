"""Loss against parameters and data: a grid of Transformers, one tokenizer, one number of steps, and the laws that fit.

Letters: N parameters without embeddings, D pairs of sentences, L validation loss in nats a token.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from regard.data.batching import collate, token_batches
from regard.evaluation.scaling import LEVEL, Fit, Law, fit
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, table
from regard.models.costs import breakdown
from regard.models.family import build
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.recipes.train import interrupting
from regard.training.distributed import world
from regard.training.loop import Learner
from regard.training.objectives import NextToken
from regard.training.run import Finished, Trainer, Validation
from regard.training.schedules import schedule
from regard.training.stream import stream
from regard.training.validation import foretell

WIDTHS = {"smoke": (8, 12, 16, 24), "small": (32, 64, 128, 192, 256), "full": (128, 192, 256, 384, 512, 768, 1024)}
PAIRS = {
    "smoke": (5, 10, 20, 30),  # each of them seen within 4 steps
    "small": (1000, 4000, 16_000, 64_000),
    "full": (10_000, 40_000, 160_000, 640_000, 2_560_000),
}
RECIPE = {"smoke": "tatoeba-en-es", "small": "tatoeba-en-es", "full": "wmt14-en-de-base"}
Changes = Mapping[str, int | float | str]
CHANGES: Mapping[str, Changes] = {
    "smoke": {
        "data.limit": 1000,
        "tokens.size": 400,
        "train.steps": 4,
        "train.batch_tokens": 128,
        "train.schedule.warmup": 1,
    },
    "small": {"data.limit": 64_000, "tokens.size": 2000, "train.steps": 300, "train.schedule.warmup": 30},
    "full": {},
}
SHALLOW: Changes = {"model.encoder_layers": 2, "model.decoder_layers": 2, "train.patience": 4, "train.average": 0}
VALIDATIONS = 15  # of a run: the best of them counts, for with few pairs the last is worse
SENTENCES = 500  # that the loss is measured on
# The paper's Table 3: millions of parameters, embeddings among them, and validation perplexity of base, (C) and big.
PAPER = {65: 4.92, 36: 6.11, 50: 5.19, 80: 4.88, 28: 5.75, 168: 4.66, 53: 5.12, 90: 4.75, 213: 4.33}
LITERATURE: tuple[tuple[str, object, object, object], ...] = (  # a, b, E
    ("Kaplan et al. (2020), language models", 0.076, 0.095, None),
    ("Hoffmann et al. (2022), language models", 0.34, 0.28, 1.69),
)


def trials(scale: str) -> list[Trial]:
    """A training for each width and amount of data."""
    return [
        Trial(
            f"width-{d}-pairs-{pairs}",
            trained_on,
            {"recipe": RECIPE[scale], "changes": _changes(scale, d), "pairs": pairs},
        )
        for d in WIDTHS[scale]
        for pairs in PAIRS[scale]
    ]


def _changes(scale: str, d: int) -> list[str]:
    """The recipe at this width: twice as wide inside, heads of 32; at the paper's scale four times, heads of 64."""
    inner, head = (4, 64) if scale == "full" else (2, 32)
    model: Changes = {"model.d_model": d, "model.d_ff": inner * d, "model.heads": max(1, d // head)}
    settings = {**model, **({} if scale == "full" else SHALLOW), "train.smoothing": 0.0, **CHANGES[scale]}
    return [f"{key}={value}" for key, value in settings.items()]


def trained_on(folder: Path, console: Console, *, recipe: str, changes: Sequence[str], pairs: int) -> Result:
    """A trial: a recipe trained on its first so many pairs, with the tokenizer of all of them; its best loss.

    It goes on from where an earlier attempt was saved.
    """
    plan = recipes.load(recipe, changes)
    data = prepare(plan)
    arrays = replace(data.train, count=min(pairs, len(data.train)))
    c = replace(plan.train, validate_every=max(1, (plan.train.steps or 0) // VALIDATIONS))
    torch.manual_seed(c.seed)
    config = plan.model.build(len(data.tokenizer))
    encode = data.tokenizer.encode
    valid = [(encode(source), encode(target)) for source, target in data.valid[:SENTENCES]]

    def validate(model: nn.Module, step: int) -> Validation:
        loss = foretell(model, valid).loss
        console.print(f"  {folder.name}  step {step:,}  loss {loss:.3f}", highlight=False)
        return Validation(step, -loss, {"loss": loss}, [])

    rate = schedule(c.schedule, d_model=config.d_model, total=c.steps)
    with world() as here, Learner(NextToken(build(config), c.smoothing), rate, c, here) as learner:
        trainer = Trainer(
            learner,
            lambda position: stream(arrays, collate, c, here, position),
            folder / "trainer",
            total=c.steps,
            identity=f"{data.identity} {pairs}",
            validate=validate,
        )
        trainer.resume()
        with interrupting(trainer.interrupt):
            for event in trainer.run():
                if isinstance(event, Finished) and event.why == "interrupted":  # and saved
                    raise KeyboardInterrupt
    batches = sum(1 for _ in token_batches(arrays, tokens=c.batch_tokens, seed=c.seed, epoch=0))
    epochs = trainer.position.epoch + trainer.position.batch / batches
    inner = [part for part in breakdown(config) if part.name not in ("embeddings", "positions", "output")]
    return {
        "loss": -trainer.best["score"],
        "best": trainer.best["step"],
        "steps": learner.steps,
        "epochs": epochs,
        "pairs": len(arrays),
        "seen": round(len(arrays) * min(1.0, epochs)),
        "width": config.d_model,
        "parameters": sum(part.parameters for part in inner),
        "vocabulary": len(data.tokenizer),
        "batch": c.batch_tokens,
        "seconds": trainer.seconds,
        "threads": torch.get_num_threads(),
    }


def report(results: Results, scale: str) -> Findings:
    """The grid, the laws that fit it, and what they say; beside them the paper's rows and the literature."""
    runs = list(results.values())
    most, widest = max(run["pairs"] for run in runs), max(run["parameters"] for run in runs)
    of_size = _fitted([run for run in runs if run["pairs"] == most], "N")
    of_data = _fitted([run for run in runs if run["parameters"] == widest], "D")
    joint = _fitted(runs, "N", "D")
    paper = fit([math.log(each) for each in PAPER.values()], {"N": [1e6 * each for each in PAPER]})
    rows: list[list[object]] = [
        _row(f"L(N), {most:,} pairs", of_size),
        _row(f"L(D), N = {widest:,}", of_data),
        _row("L(N, D)", joint),
        _row("the paper's Table 3: base, (C), big", paper),
        *([name, floor, a, b, None] for name, a, b, floor in LITERATURE),
    ]
    parts = [
        _asked(runs),
        "## Losses",
        _grid(runs),
        "![loss over parameters, a line for each amount of data](scaling-parameters.svg)",
        "![loss over data, a line for each size](scaling-data.svg)",
        "## Laws",
        f"L = E + A / N^a + B / D^b, by least squares in log L with Huber's loss; in brackets where {LEVEL:.0%} of the "
        "bootstrapped fits lie. N counts parameters without embeddings, but with them in the paper's rows, whose loss "
        "is the logarithm of the perplexity it states, after the same number of steps for all but the big model. D "
        "counts pairs of sentences that were seen; in the literature's rows it counts tokens.",
        table(["law", "E", "a, of parameters", "b, of data", "off by (median)"], rows),
        "![the paper's Table 3: loss over parameters, and the law that fits](scaling-paper.svg)",
        "## What it says",
        _says(runs, joint, paper),
    ]
    return Findings("\n\n".join(parts), _charts(runs, joint, paper))


def _fitted(runs: Sequence[Result], *sizes: str) -> Fit:
    keys = {"N": "parameters", "D": "seen"}
    return fit([run["loss"] for run in runs], {name: [run[keys[name]] for run in runs] for name in sizes})


def _row(name: str, found: Fit) -> list[object]:
    def cell(value: Callable[[Law], float | None]) -> str | None:
        middle, low, high = (value(law) for law in (found.law, found.low, found.high))
        return None if middle is None else f"{middle:.3g} [{low:.3g}, {high:.3g}]"

    numbers = [cell(lambda law: law.floor), *(cell(lambda law, s=size: law.exponents.get(s)) for size in "ND")]  # type: ignore[misc]
    return [name, *numbers, f"{found.error:.2%}"]


def _asked(runs: Sequence[Result]) -> str:
    first, steps = runs[0], max(run["steps"] for run in runs)
    threads = ", ".join(map(str, sorted({run["threads"] for run in runs})))
    widths, pairs = sorted({run["width"] for run in runs}), sorted({run["pairs"] for run in runs})
    epochs = [run["epochs"] for run in runs]
    return (
        f"How does the loss of a translator fall with its size and with its data? Transformers of width "
        f"{', '.join(map(str, widths))} learn from the first {', '.join(f'{each:,}' for each in pairs)} pairs of one "
        f"corpus, each for up to {steps:,} steps of {first['batch']:,} tokens ({min(epochs):.1f} to {max(epochs):.1f} "
        f"passes over its data), on {threads} threads. All share one tokenizer of {first['vocabulary']:,} entries, so "
        "that a token is the same for all, and one learning rate, without label smoothing. The loss is that of unseen "
        "sentences at the best validation of each run, which ends early when it no longer falls. The number of steps "
        "is the same for all and small: what more steps would give is in no law here."
    )


def _grid(runs: Sequence[Result]) -> str:
    pairs = sorted({run["pairs"] for run in runs})
    rows = []
    for width in sorted({run["width"] for run in runs}):
        of_width = {run["pairs"]: run for run in runs if run["width"] == width}
        losses = [f"{of_width[each]['loss']:.3f}" if each in of_width else None for each in pairs]
        rows.append([str(width), f"{next(iter(of_width.values()))['parameters']:,}", *losses])
    return table(["width", "N", *(f"{each:,} pairs" for each in pairs)], rows)


def _says(runs: Sequence[Result], joint: Fit, paper: Fit) -> str:
    """What follows from the numbers, whatever they are."""
    lines = []
    for pairs in sorted({run["pairs"] for run in runs}):
        some = sorted((run for run in runs if run["pairs"] == pairs), key=lambda run: run["parameters"])
        losses = [run["loss"] for run in some]
        falls = sum(after < before for before, after in pairwise(losses))
        best = min(some, key=lambda run: run["loss"])
        lines.append(
            f"- {pairs:,} pairs: the larger of two neighbouring sizes was better in {falls} of {len(losses) - 1} "
            f"cases; the best width was {best['width']} (loss {best['loss']:.3f})."
        )
    a, b = joint.law.exponents["N"], joint.law.exponents["D"]
    lines.append(
        f"- Twice the parameters change their term of the joint law by {2**-a - 1:+.1%}, twice the data theirs by "
        f"{2**-b - 1:+.1%}."
    )
    if a > 0 and b > 0:
        lines.append(
            f"- If training costs N · D, the joint law puts a budget C to best use with N ∝ C^{b / (a + b):.2f} and "
            f"D ∝ C^{a / (a + b):.2f} (Hoffmann et al. found about 0.5 for both)."
        )
    (low, high), theirs = (each.exponents["N"] for each in (joint.low, joint.high)), paper.law.exponents["N"]
    inside = "within" if low <= theirs <= high else "outside"
    lines.append(f"- The exponent of the paper's own rows, {theirs:.2g}, lies {inside} the confidence of ours.")
    return "\n".join(lines)


def _charts(runs: Sequence[Result], joint: Fit, paper: Fit) -> dict[str, Chart]:
    def lines(x: str, of: str, label: str) -> list[Series]:
        series = []
        for i, value in enumerate(sorted({run[of] for run in runs})):
            some = sorted((run for run in runs if run[of] == value), key=lambda run: run[x])
            places, fitted = [run[x] for run in some], [joint.law(N=run["parameters"], D=run["seen"]) for run in some]
            series.append(Series(label.format(value), places, [run["loss"] for run in some], style="points", colour=i))
            series.append(Series("", places, fitted, style="dashes", colour=i))
        return series

    millions = sorted(PAPER)
    theirs = [
        Series("the paper", millions, [math.log(PAPER[each]) for each in millions], style="points"),
        Series("law", millions, [paper.law(N=1e6 * each) for each in millions], style="dashes"),
    ]
    y = "validation loss, nats a token"
    by_size = lines("parameters", "pairs", "{:,} pairs")
    by_data = lines("seen", "parameters", "N = {:,}")
    return {
        "scaling-parameters": Chart(
            "Loss over parameters, and the joint law", "N, without embeddings", y, by_size, True, True
        ),
        "scaling-data": Chart("Loss over data, and the joint law", "D, pairs seen", y, by_data, True, True),
        "scaling-paper": Chart("The paper's Table 3", "million parameters", "log perplexity", theirs, True, True),
    }


EXPERIMENT = Experiment("scaling", "Loss against parameters and data", trials, report)
