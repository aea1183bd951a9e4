"""What trials have in common: a recipe trained to its end and measured, or a small task learnt and tested."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn
from torch import nn

from regard.core.losses import label_log_probabilities
from regard.data.batching import Batch, collate, token_batches
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding.module import Module
from regard.decoding.pool import search
from regard.decoding.protocol import Bare
from regard.evaluation.calibration import perplexity
from regard.models import storage
from regard.models.costs import training_flops
from regard.recipes import reading as recipes
from regard.recipes.prepare import Prepared, prepare
from regard.recipes.recipe import Recipe
from regard.recipes.train import begun, train
from regard.training.loop import fit
from regard.training.schedules import ScheduleConfig, schedule
from regard.training.validation import foretell

# Changes of a recipe of Multi30k, with which it is trained in seconds.
SMOKE = (
    "data.limit=1000 tokens.size=300 train.batch_tokens=256 train.validate_sentences=20 decode.beam=1 decode.extra=1"
)
Pair = tuple[Sequence[int], Sequence[int]]  # ids of source and target, without their ends


def trained(recipe: Recipe, folder: Path, console: Console, *, name: str) -> dict[str, Any]:
    """Train a recipe into a folder, going on with what is there, and measure the model that comes out.

    bleu and chrf2 are of the test sentences; loss (nats a token), perplexity and accuracy of the validation sentences;
    parameters counts weights; steps, epochs, flops (model FLOPs, forward and backward) and seconds (the steps alone)
    are of the training, on so many threads; validations are what was measured on its way: [step, loss, greedy BLEU].
    """
    known = begun(folder, recipe)
    if not (known and (folder / "evaluation.json").exists()):
        resume = known and (folder / "trainer").exists()
        if not train(recipe, folder, name=name, resume=resume, overwrite=True, console=console):
            raise KeyboardInterrupt
    data, model = prepare(recipe), storage.load(folder)
    encode = data.tokenizer.encode
    seen = foretell(model, [(encode(source), encode(target)) for source, target in data.valid])
    scores = json.loads((folder / "evaluation.json").read_text("utf-8"))
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").split("\n") if line]
    return {
        "loss": seen.loss,
        "perplexity": perplexity(seen.loss, 1),
        "accuracy": seen.accuracy,
        **{key.lower(): value["score"] for key, value in scores.items() if key != "read"},
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(data.tokenizer),
        **_cost(model, data, recipe, steps=events[-1]["step"]),
        "seconds": _seconds(events),
        "threads": torch.get_num_threads(),
        "validations": [[e["step"], e["loss"], e["bleu"]] for e in events if e["kind"] == "validation"],
    }


def recipe_trained(folder: Path, console: Console, *, recipe: str, changes: Sequence[str]) -> dict[str, Any]:
    """A trial: a shipped recipe with changes such as model.heads=16, trained and measured."""
    return trained(recipes.load(recipe, changes), folder, console, name=folder.name)


def changed(recipe: str, *changes: str | Mapping[str, object]) -> dict[str, Any]:
    """The settings of such a trial, from changes by key or as on the command line; the last one of a key counts.

    >>> changed("base", "model.heads=8 train.steps=5", {"model.heads": 16})
    {'recipe': 'base', 'changes': ['model.heads=16', 'train.steps=5']}
    """
    last: dict[str, object] = {}
    for each in changes:
        last |= dict(change.split("=", 1) for change in each.split()) if isinstance(each, str) else each
    return {"recipe": recipe, "changes": [f"{key}={value}" for key, value in last.items()]}


def _seconds(events: Sequence[dict[str, Any]]) -> float | None:
    """How long the steps take at their median pace: neither validations nor an interruption count."""
    reports = [event for event in events if event["kind"] == "train"]
    paces = [(b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in pairwise(reports) if b["step"] > a["step"]]
    return float(events[-1]["step"] * median(paces)) if paces else None


def _cost(model: nn.Module, data: Prepared, recipe: Recipe, steps: int) -> dict[str, Any]:
    """What so many steps were, from the mean batch of an epoch: B sentences of S source and T target tokens."""
    c = recipe.train
    batches = sum(1 for _ in token_batches(data.train, tokens=c.batch_tokens, seed=c.seed, epoch=0))
    S, T = (data.train.lengths(np.arange(len(data.train))).mean(0) + 1).tolist()  # and an end
    sentences = len(data.train) / batches
    flops = training_flops(model.config, 1, round(S), round(T)) * sentences
    return {"steps": steps, "epochs": steps / batches, "flops": flops * steps}


def taught(
    model: nn.Module,
    pairs: Iterator[Pair],
    console: Console,
    *,
    steps: int,
    batch: int = 64,
    peak: float = 3e-3,
    rise: int = 10,
    seed: int = 0,
    name: str = "learning",
    every: int | None = None,
    device: str | None = None,
) -> list[float]:
    """Teach a model endless pairs with Adam and a rate that falls to zero; returns the loss of each step.

    The rate rises to its peak over one step in `rise`. A GPU does it, if there is one and no `device` is named, and has
    the model from then on. What is not a terminal is told a line `every` so many steps.
    """
    losses, device = [], device or ("cuda" if torch.cuda.is_available() else "cpu")
    bar = "  ", "{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[told]}", TimeRemainingColumn()
    with Progress(*bar, console=console, transient=every is None, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=steps, told="")
        batches = (collate(islice(pairs, batch)) for _ in range(steps))
        rate = schedule(ScheduleConfig("linear", peak=peak, warmup=max(1, steps // rise)), total=steps)
        for report in fit(model, batches, rate, seed=seed, smoothing=0.0, device=device):
            losses.append(report.loss)
            told = (
                f"step {report.step:,}/{steps:,} · loss {report.loss:.3f} · lr {report.learning_rate:.1e} · "
                f"{report.tokens / report.seconds:,.0f} tok/s"
            )
            progress.update(task, advance=1, told=told)
            if every and not console.is_terminal and (report.step % every == 0 or report.step == steps):
                console.print(f"  {told}", highlight=False)
    return losses


def batched(model: nn.Module, pairs: Sequence[Pair], rows: int) -> list[Batch]:
    """Pairs as batches of so many, in their order, where the model is."""
    device = next(model.parameters()).device
    return [collate(pairs[i : i + rows]).to(device) for i in range(0, len(pairs), rows)]


class Answered(NamedTuple):
    """How far a model foretells the labels of some pairs, with the right ones before each."""

    whole: float  # the share of pairs with all labels right: what a greedy search would write from end to end
    right: float  # the share of labels
    loss: float  # of a label, in nats


@torch.inference_mode()
def foretold(model: nn.Module, batches: Iterable[Batch]) -> Answered:
    """What a model makes of batches of pairs, from its logits: an ensemble has no features of its own."""
    whole, right, likely = [], [], []
    for batch in batches:
        logits, labels, none = model(**batch.inputs), batch["labels"], batch["labels"] == PAD
        good = logits.argmax(-1) == labels
        whole.append((good | none).all(1))
        right.append(good[~none])
        likely.append(label_log_probabilities(logits, labels)[~none])
    means = [float(torch.cat(parts).double().mean()) for parts in (whole, right, likely)]
    return Answered(means[0], means[1], -means[2])


def written(model: nn.Module, pairs: Sequence[Pair], extra: int = 50) -> list[list[int]]:
    """What a greedy search writes for each source."""
    greedy = Bare(beam=1, extra=extra)
    requests = [greedy.request([*source, EOS], BOS) for source, _ in pairs]
    found = search(Module(model.eval()), requests, greedy, EOS)  # type: ignore[arg-type]
    return [best.tokens for (best,) in found]
