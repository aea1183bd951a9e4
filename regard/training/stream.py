"""From token arrays to the work of one step, endlessly, from any position; made ready in a thread of its own."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from regard.data.arrays import PairArrays
from regard.data.batching import Batch, Position, batches_from, collate, prefetch, split_rows
from regard.data.vocabulary import PAD
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.run import Work

Resample = Callable[[Any, Random], Any]  # the ids of a text -> those of another segmentation


def stream(
    arrays: PairArrays,
    config: TrainConfig,
    world: World,
    position: Position,
    *,
    resample: Resample | None = None,
) -> Iterator[Work]:
    """The work of this process that follows `position`. `resample` segments each text anew, by (seed, position)."""
    return prefetch(_work(arrays, config, world, position, resample))


def _work(
    arrays: PairArrays, config: TrainConfig, world: World, position: Position, resample: Resample | None
) -> Iterator[Work]:
    for after, indices in batches_from(arrays, position, tokens=config.batch_tokens, seed=config.seed):
        lengths, parts = arrays.lengths(indices), world.size * config.accumulate
        shares = [arrays.pairs(rows) for rows in split_rows(indices, parts, lengths=lengths)]
        if resample is not None:  # all of it in each process, for each must know how many labels there are
            draw = Random(f"{config.seed} {after.epoch} {after.batch}")
            shares = [[(resample(s, draw), resample(t, draw)) for s, t in share] for share in shares]
        tokens = sum(len(target) + 1 for share in shares for _, target in share)
        mine = shares[world.rank :: world.size]
        yield Work([collate(share) if share else _nothing() for share in mine], tokens, after)


def _nothing() -> Batch:
    """A batch without labels, for a process that is left without rows but must keep step with the others."""
    batch = collate([([], [])])
    return Batch(batch.source, batch.target, batch.labels.fill_(PAD))
