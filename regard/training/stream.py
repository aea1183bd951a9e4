"""From examples to the work of one step, endlessly, from any position; made ready in a thread of its own."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Protocol

from regard.data.batching import Batch, Counted, Examples, Ints, Position, batches_from, prefetch, split_rows
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.run import Work

Collate = Callable[[Sequence[Any], Random], Batch]  # examples, and what they may draw from, -> a batch


class Readable(Examples, Protocol):
    """Examples that can be read: a `Table`, for one."""

    def rows(self, indices: Ints, /) -> Sequence[Any]:
        """The wanted examples."""


def stream(
    examples: Readable, collate: Collate, config: TrainConfig, world: World, position: Position
) -> Iterator[Work]:
    """The work of this process that follows `position`. What `collate` draws is a function of (seed, position)."""

    examples = counted(examples, config)

    def work() -> Iterator[Work]:
        for after, indices in batches_from(examples, position, tokens=config.batch, seed=config.seed):
            lengths, parts = examples.lengths(indices), world.size * config.accumulate
            draw = Random(f"{config.seed} {after.epoch} {after.batch}")
            # All of it in each process: each must know how many labels there are, and draw what the others have drawn.
            shares = [examples.rows(rows) for rows in split_rows(indices, parts, lengths=lengths)]
            if world.size == 1 and (apart := getattr(collate, "apart", None)):  # examples that are dear to pad
                shares = [some for share in shares for some in apart(share)]
            batches = [collate(share, draw) if len(share) else None for share in shares]
            whole = [batch for batch in batches if batch is not None]
            mine = [batch or _nothing(whole[0]) for batch in batches[world.rank :: world.size]]
            yield Work(mine, sum(batch.count for batch in whole), after)

    return prefetch(work())


def counted(examples: Readable, config: TrainConfig) -> Readable:
    """Examples as batches count them: by tokens, or one by one."""
    return Counted(examples) if config.batch_rows else examples


def _nothing(batch: Batch) -> Batch:
    """A row that does not count, for a process that is left without rows but must keep step with the others."""
    return Batch({name: tensor[:1] for name, tensor in batch.tensors.items()}, 0)
