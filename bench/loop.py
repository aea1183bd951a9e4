"""What the whole training loop costs beside its steps: data from disk, batches, checkpoints, the journal.

    python bench/loop.py [--steps N] [--rounds N] [--optimiser adam|muon] [--pictures]

The loop runs as `regard train` runs it, on token arrays of random sentences, or on random pictures of 32 x 32 pixels,
which are cut, mirrored and changed by two operations (RandAugment) as they are read, and seen by cct-2. Beside it, the
same number of bare steps (forward, loss, backward, clipping, update) on batches that lie ready in memory. They take
turns in one process; printed are labels a second, and the median of the ratios.
"""

import argparse
import random
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from regard.core.outputs import HeadConfig
from regard.data.arrays import Table, pairs_of
from regard.data.augment import Augment
from regard.data.batching import Position, collate
from regard.data.pictures import Sight
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vision import Vision, cct_2
from regard.tasks.recognise import Recognise
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.journal import Journal
from regard.training.loop import Learner, Report
from regard.training.objectives import Labelled, NextToken
from regard.training.optimisers import OptimiserConfig
from regard.training.run import Trainer
from regard.training.stream import stream

VOCABULARY = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--optimiser", default="adam")
    parser.add_argument("--pictures", action="store_true")
    args = parser.parse_args()
    draw, ratios, task = random.Random(0), list[float](), pictured()
    collated = task.collate(None, 0.0) if args.pictures else collate
    with tempfile.TemporaryDirectory() as folder:
        lengths = (draw.choice([12, 20, 28, 44]) for _ in range(20_000))
        rows = ([draw.randrange(4, VOCABULARY) for _ in range(length + draw.randint(-2, 2))] for length in lengths)
        if args.pictures:
            seen = np.random.default_rng(0).integers(0, 256, (4_000, 32, 32, 3), np.uint8)
            labelled = ((image, [draw.randrange(len(task.labels))]) for image in seen)
            arrays = Table.build(Path(folder) / "arrays", labelled, task.columns(1))
        else:
            arrays = Table.build(Path(folder) / "arrays", ((row, row) for row in rows), pairs_of(VOCABULARY))
        for turn in range(args.rounds):
            size = {"batch_rows": 128, "precision": "bf16"} if args.pictures else {"batch_tokens": 4096}
            config = TrainConfig(steps=args.steps, seed=turn, optimiser=OptimiserConfig(args.optimiser), **size)
            ready = list(islice(stream(arrays, collated, config, World(), Position()), args.steps))
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
                    lambda p, c=config: stream(arrays, collated, c, World(), p),
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


def pictured() -> Recognise:
    """What a picture shows, ten kinds."""
    augment = Augment(crop=4, flip=True, operations=2)
    return Recognise(labels=tuple("0123456789"), kind="one", sight=Sight(32), augment=augment)


def _learner(config: TrainConfig) -> Learner:
    torch.manual_seed(0)
    if config.batch_rows:
        model = Vision(cct_2(), HeadConfig("classes", 10, pool="attention"))
        return Learner(Labelled(model), lambda step: 1e-4, config)
    return Learner(NextToken(Transformer(TransformerConfig.tiny(VOCABULARY)), 0.1), lambda step: 1e-4, config)


if __name__ == "__main__":
    main()
