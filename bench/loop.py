"""What the whole training loop costs beside its steps: data from disk, batches, checkpoints, the journal.

    python bench/loop.py [--steps N] [--rounds N] [--optimiser adam|muon]

The loop runs as `regard train` runs it, on token arrays of random sentences. Beside it, the same number of bare steps
(forward, loss, backward, clipping, update) on batches that lie ready in memory. They take turns in one process; printed
are labels a second, and the median of the ratios.
"""

import argparse
import random
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch

from regard.data.arrays import Table, pairs_of
from regard.data.batching import Position, collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.journal import Journal
from regard.training.loop import Learner, Report
from regard.training.objectives import NextToken
from regard.training.optimisers import OptimiserConfig
from regard.training.run import Trainer
from regard.training.stream import stream

VOCABULARY = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--optimiser", default="adam")
    args = parser.parse_args()
    draw, ratios = random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        lengths = (draw.choice([12, 20, 28, 44]) for _ in range(20_000))
        rows = ([draw.randrange(4, VOCABULARY) for _ in range(length + draw.randint(-2, 2))] for length in lengths)
        arrays = Table.build(Path(folder) / "arrays", ((row, row) for row in rows), pairs_of(VOCABULARY))
        for turn in range(args.rounds):
            config = TrainConfig(
                steps=args.steps, seed=turn, batch_tokens=4096, optimiser=OptimiserConfig(args.optimiser)
            )
            ready = list(islice(stream(arrays, collate, config, World(), Position()), args.steps))
            with _learner(config) as learner:
                learner.step(ready[0].parts, ready[0].tokens)
                start = time.perf_counter()
                for item in ready:
                    learner.step(item.parts, item.tokens)
                bare = sum(item.tokens for item in ready) / (time.perf_counter() - start)
            with _learner(config) as learner:
                learner.step(ready[0].parts, ready[0].tokens)
                learner.steps = 0
                trainer = Trainer(
                    learner,
                    lambda p, c=config: stream(arrays, collate, c, World(), p),
                    Path(folder) / f"run{turn}",
                    total=args.steps,
                )
                reports: list[tuple[float, int]] = []  # the moment, the labels: from one step to the next
                with Journal(Path(folder) / f"run{turn}") as journal:
                    for event in trainer.run():
                        journal.write(event)
                        if isinstance(event, Report):
                            reports.append((time.perf_counter(), event.tokens))
                loop = sum(tokens for _, tokens in reports[1:]) / (reports[-1][0] - reports[0][0])
            ratios.append(loop / bare)
            print(f"bare steps {bare:,.0f} labels/s   loop {loop:,.0f} labels/s   ratio {loop / bare:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


def _learner(config: TrainConfig) -> Learner:
    torch.manual_seed(0)
    return Learner(NextToken(Transformer(TransformerConfig.tiny(VOCABULARY)), 0.1), lambda step: 1e-4, config)


if __name__ == "__main__":
    main()
