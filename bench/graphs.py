"""Graphs told apart: Graphormer beside a GIN of ours, the same folds, the same batches, the same epochs.

    python bench/graphs.py mutag data.train.gin=.../MUTAG.txt [train.epochs=50] [--folds 3] [--without gin]
    python bench/graphs.py esol data.train.csv=.../delaney-processed.csv

GIN's protocol (Xu et al., 2019): ten folds, each held out once; all are judged after each epoch, and the epoch that is
best on the mean of all folds counts. That chooses by what it is judged by, so the last epoch stands beside it. Where
skeletons are kept apart, the epoch that is best on valid counts, and test is judged; more than one seed gives a spread.
Overrides are those of a recipe; GIN is taught by the same batches, with Adam at 0.01, halved every 50 epochs.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from regard.data.batching import Position
from regard.recipes import reading
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.training.distributed import World
from regard.training.stream import stream

PUBLISHED = {"nci1": "GIN 82.7 ± 1.7", "proteins": "GIN 76.2 ± 2.8", "mutag": "GIN 89.4 ± 5.6"}
SCORES = {"one": "accuracy", "several": "roc_auc", "number": "rmse"}


class Gin(nn.Module):
    """h ← MLP((1 + ε) h + Σ of its neighbours'), five times; all layers are summed up over the nodes, and told from."""

    def __init__(self, vocabulary: int, edges: int, outputs: int, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.words, self.bonds = nn.Embedding(vocabulary, width, 0), nn.Embedding(edges, width, 0)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(width, outputs) for _ in range(layers + 1))

    def forward(
        self, nodes: Tensor, distances: Tensor, keep: Tensor, paths: Tensor | None = None, numbers: Tensor | None = None
    ) -> Tensor:
        """As a `GraphTransformer` is called: (B, C)."""
        near = (distances == 1).float()  # (B, N, N)
        h, bonds = self.words(nodes).sum(2) * keep[..., None], 0.0
        if paths is not None:
            b, i, j = near.nonzero(as_tuple=True)
            bonds = torch.zeros_like(h).index_put((b, i), self.bonds(paths[b, i, j, 0]), accumulate=True)
        said = self.heads[0](h.sum(1))
        for layer, head in zip(self.layers, list(self.heads)[1:], strict=True):
            h = layer(h, near @ h + bonds, keep)
            said = said + nn.functional.dropout(head(h.sum(1)), 0.5, self.training)
        return said


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))

    def forward(self, h: Tensor, around: Tensor, keep: Tensor) -> Tensor:
        x = (1 + self.eps) * h + around
        y = self.norms[0](self.first(x[keep])).relu()  # of nodes alone: padding has no part in the mean of a batch
        y = self.norms[1](self.second(y)).relu()
        return torch.zeros_like(h).masked_scatter(keep[..., None], y)


def gin(recipe: Any) -> tuple[list[float], list[float]]:
    """What a GIN scores on valid and on test, after each epoch."""
    data = prepare(recipe)
    task, c = data.task, recipe.train
    torch.manual_seed(c.seed)
    size = 1 if task.kind == "number" else len(task.labels)
    model = Gin(len(data.tokenizer), len(data.tokenizer), size)
    objective, adam = task.objective(model, 0.0, data.tokenizer), torch.optim.Adam(model.parameters(), 0.01)
    slower, found = torch.optim.lr_scheduler.StepLR(adam, 50, 0.5), ([], [])
    predictor = task.open([model], data.tokenizer, recipe.decode)
    collate = task.collate(data.tokenizer, 0.0)
    whole = lambda rows, draw: collate(rows, draw)  # noqa: E731  in one part: it normalises over a batch
    work = stream(task.corpus(data.train), whole, c, World(), Position())
    for epoch in range(int(c.epochs)):
        model.train()
        done = False
        while not done:
            each = next(work)
            (batch,) = each.parts
            loss = objective(**batch.tensors) / batch.count
            adam.zero_grad()
            loss.backward()
            adam.step()
            done = each.after.epoch > epoch
        slower.step()
        model.eval()
        for rows, scores in zip((data.valid, data.test), found, strict=True):
            scores.append(task.measure(predictor, rows, recipe).measures[SCORES[task.kind]])
    work.close()
    return found


def graphormer(recipe: Any, name: str) -> tuple[list[float], list[float]]:
    """The same of the recipe's model; test is judged at the end, by the epoch that is best on valid."""
    score = SCORES[recipe.task.kind]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(recipe, run, name=name, console=Console(quiet=True))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        valid = [line[score] for line in lines if line["kind"] == "validation"]
        last = json.loads((run / "evaluation.json").read_text())[score]["score"]
    return valid, [last]


def steps_of(recipe: Any) -> int:
    return -(-len(prepare(recipe).train) // recipe.train.batch_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--folds", type=int, default=10, help="so many of the ten")
    parser.add_argument("--seeds", type=int, default=1, help="where skeletons are kept apart")
    parser.add_argument("--without", choices=("gin", "graphormer"))
    args = parser.parse_args()
    first = reading.load(args.recipe, args.overrides)
    folds = first.data.fold is not None
    score, best = SCORES[first.task.kind], (min if first.task.kind == "number" else max)
    contestants = {
        "GIN of ours": lambda recipe: gin(recipe),
        "Graphormer": lambda recipe: graphormer(recipe, args.recipe),
    }
    kept = {name: [] for name in contestants if args.without is None or args.without not in name.lower()}
    rounds = (
        [f"data.fold={i + 1}" for i in range(args.folds)]
        if folds
        else [f"train.seed={i + 1}" for i in range(args.seeds)]
    )
    for each in rounds:
        every = steps_of(reading.load(args.recipe, [*args.overrides, each]))
        recipe = reading.load(args.recipe, [*args.overrides, each, f"train.validate_every={every}"])
        for name, curves in kept.items():
            curves.append(contestants[name](recipe))
            valid, test = curves[-1]
            print(f"{each:14} {name:12} best {best(valid):.4f} last {valid[-1]:.4f} · test {test[-1]:.4f}", flush=True)
    print(f"\n{args.recipe}, {score}, {len(rounds)} {'folds' if folds else 'seeds'}, {first.train.epochs:g} epochs")
    for name, curves in kept.items():
        if folds:
            table = np.array([valid[: min(len(v) for v, _ in curves)] for valid, _ in curves])
            at = int(table.mean(0).argmax())
            told = [("best epoch", table[:, at]), ("last epoch", table[:, -1])]
            print(f"  {name:12}", *(f"{how} {x.mean() * 100:.1f} ± {x.std() * 100:.1f}" for how, x in told))
        else:
            chosen = [test[valid.index(best(valid))] if len(test) > 1 else test[0] for valid, test in curves]
            spread = statistics.stdev(chosen) if len(chosen) > 1 else 0.0
            print(f"  {name:12} test {statistics.mean(chosen):.3f} ± {spread:.3f}")
    if args.recipe in PUBLISHED:
        print(f"  published    {PUBLISHED[args.recipe]} (Xu et al., 2019)")


if __name__ == "__main__":
    main()
