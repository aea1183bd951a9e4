"""Loss against parameters and data: a grid of Transformers, one tokenizer, one number of steps, and the laws that fit.

Letters: N parameters without embeddings, D pairs of sentences, L validation loss in nats a token.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from regard.data.batching import collate, token_batches
from regard.evaluation.scaling import LEVEL, Fit, Law, fit
from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, page, several, table
from regard.experiments.runs import changed
from regard.experiments.table3 import ROWS
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
CHANGES = {
    "smoke": "data.limit=1000 tokens.size=400 train.steps=4 train.batch_tokens=128 train.schedule.warmup=1",
    "small": "data.limit=64000 tokens.size=2000 train.steps=300 train.schedule.warmup=30",
    "full": "",
}
SHALLOW = "model.encoder_layers=2 model.decoder_layers=2 train.patience=4 train.average=0"
VALIDATIONS = 15  # of a run: the best of them counts, for with few pairs the last is worse
SENTENCES = 500  # that the loss is measured on
# The paper's Table 3: millions of parameters, embeddings among them, and validation perplexity of base, (C) and big.
PAPER = {row.millions: row.perplexity for row in ROWS if row.millions and row.group != "B"}
LITERATURE: tuple[tuple[str, object, object, object], ...] = (  # a, b, E
    ("Kaplan et al. (2020), language models", 0.076, 0.095, None),
    ("Hoffmann et al. (2022), language models", 0.34, 0.28, 1.69),
)


def trials(scale: str) -> list[Trial]:
    """A training for each width and amount of data."""
    return [
        Trial(f"width-{d}-pairs-{pairs}", trained_on, {**_settings(scale, d), "pairs": pairs})
        for d, pairs in product(WIDTHS[scale], PAIRS[scale])
    ]


def _settings(scale: str, d: int) -> dict[str, str | list[str]]:
    """The recipe at this width: twice as wide inside, heads of 32; at the paper's scale four times, heads of 64."""
    inner, head = (4, 64) if scale == "full" else (2, 32)
    model = f"model.d_model={d} model.d_ff={inner * d} model.heads={max(1, d // head)}"
    depth = "" if scale == "full" else SHALLOW
    return changed(RECIPE[scale], model, depth, "train.smoothing=0.0", CHANGES[scale])


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
    pairs, widest = sorted({run["pairs"] for run in runs}), max(run["parameters"] for run in runs)
    of_size = _fitted([run for run in runs if run["pairs"] == pairs[-1]], "N")
    of_data = _fitted([run for run in runs if run["parameters"] == widest], "D")
    joint = _fitted(runs, "N", "D")
    paper = fit([math.log(each) for each in PAPER.values()], {"N": [1e6 * each for each in PAPER]})
    laws: list[list[object]] = [
        _row(f"L(N), {pairs[-1]:,} pairs", of_size),
        _row(f"L(D), N = {widest:,}", of_data),
        _row("L(N, D)", joint),
        _row("the paper's Table 3: base, (C), big", paper),
        *([name, floor, a, b, None] for name, a, b, floor in LITERATURE),
    ]
    text = page(
        "scaling",
        one=runs[0],
        widths=several(runs, "width"),
        pairs=", ".join(f"{each:,}" for each in pairs),
        steps=max(run["steps"] for run in runs),
        fewest=min(run["epochs"] for run in runs),
        most=max(run["epochs"] for run in runs),
        threads=several(runs, "threads"),
        grid=_grid(runs, pairs),
        level=LEVEL,
        laws=table(["law", "E", "a, of parameters", "b, of data", "off by (median)"], laws),
        says="\n".join(f"- {line}" for line in _says(runs, pairs, joint, paper)),
    )
    return Findings(text, _charts(runs, joint, paper))


def _fitted(runs: Sequence[Result], *sizes: str) -> Fit:
    keys = {"N": "parameters", "D": "seen"}
    return fit([run["loss"] for run in runs], {name: [run[keys[name]] for run in runs] for name in sizes})


def _row(name: str, found: Fit) -> list[object]:
    def cell(value: Callable[[Law], float | None]) -> str | None:
        middle, low, high = (value(law) for law in (found.law, found.low, found.high))
        return None if middle is None else f"{middle:.3g} [{low:.3g}, {high:.3g}]"

    numbers = [cell(lambda law: law.floor), *(cell(lambda law, s=size: law.exponents.get(s)) for size in "ND")]  # type: ignore[misc]
    return [name, *numbers, f"{found.error:.2%}"]


def _grid(runs: Sequence[Result], pairs: Sequence[int]) -> str:
    rows = []
    for width in sorted({run["width"] for run in runs}):
        of_width = {run["pairs"]: run for run in runs if run["width"] == width}
        losses = [f"{of_width[each]['loss']:.3f}" if each in of_width else None for each in pairs]
        rows.append([str(width), f"{next(iter(of_width.values()))['parameters']:,}", *losses])
    return table(["width", "N", *(f"{each:,} pairs" for each in pairs)], rows)


def _says(runs: Sequence[Result], pairs: Sequence[int], joint: Fit, paper: Fit) -> Iterator[str]:
    """What follows from the numbers, whatever they are."""
    for each in pairs:
        some = sorted((run for run in runs if run["pairs"] == each), key=lambda run: run["parameters"])
        falls = sum(after["loss"] < before["loss"] for before, after in pairwise(some))
        best = min(some, key=lambda run: run["loss"])
        yield (
            f"{each:,} pairs: the larger of two neighbouring sizes was better in {falls} of {len(some) - 1} cases; "
            f"the best width was {best['width']} (loss {best['loss']:.3f})."
        )
    a, b = joint.law.exponents["N"], joint.law.exponents["D"]
    yield (
        f"Twice the parameters change their term of the joint law by {2**-a - 1:+.1%}, twice the data theirs by "
        f"{2**-b - 1:+.1%}."
    )
    if a > 0 and b > 0:
        yield (
            f"If training costs N · D, the joint law puts a budget C to best use with N ∝ C^{b / (a + b):.2f} and "
            f"D ∝ C^{a / (a + b):.2f} (Hoffmann et al. found about 0.5 for both)."
        )
    low, theirs, high = (law.exponents["N"] for law in (joint.low, paper.law, joint.high))
    inside = "within" if low <= theirs <= high else "outside"
    yield f"The exponent of the paper's own rows, {theirs:.2g}, lies {inside} the confidence of ours."


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
    by_size, by_data = lines("parameters", "pairs", "{:,} pairs"), lines("seen", "parameters", "N = {:,}")
    x, y, law = "N, without embeddings", "validation loss, nats a token", "and the joint law"
    return {
        "scaling-parameters": Chart(f"Loss over parameters, {law}", x, y, by_size, True, True),
        "scaling-data": Chart(f"Loss over data, {law}", "D, pairs seen", y, by_data, True, True),
        "scaling-paper": Chart("The paper's Table 3", "million parameters", "log perplexity", theirs, True, True),
    }


EXPERIMENT = Experiment("scaling", "Loss against parameters and data", trials, report)
