"""Several processes, on one machine or many, as `torchrun` starts them; one process is the simplest case.

Every process plans the same global batch and works on its own rows of it. Gradients are sums over tokens divided by
the tokens of the whole batch, so that the number of processes changes nothing but the speed.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.core.blocks import layers_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def main(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def sums(self, *values: float) -> list[float]:
        """The sum of each number over all processes."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def least(self, value: float) -> float:
        """The least of a number over all processes."""
        return self._reduced([value], dist.ReduceOp.MIN)[0]

    def _reduced(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(numbers, how)
        return numbers.tolist()

    def agree(self, value: Any) -> Any:
        """The main process's value, in all of them."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, device=self.device if self.device.type == "cuda" else None)
        return box[0]

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


def gathered(x: Tensor) -> tuple[Tensor, int]:
    """The rows of all processes, through which gradients flow, and how many come before those of this one."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return x, 0
    from torch.distributed.nn.functional import all_gather

    counts = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(x)], device=x.device))
    rows = [int(count) for count in counts]
    filled = torch.cat([x, x.new_zeros(max(rows) - len(x), *x.shape[1:])])
    all_of_them = all_gather(filled)
    return torch.cat([each[:n] for each, n in zip(all_of_them, rows, strict=True)]), sum(rows[: dist.get_rank()])


GONE = "Timed out waiting", "Connection closed by peer", "Connection reset by peer"  # as Gloo says it


class LostError(ValueError):
    """A process has ended, or its cable is cut."""


@contextmanager
def world(device: str | None = None, *, minutes: float = 1440.0) -> Iterator[World]:
    """Join the processes that `torchrun` started, if it did. One that has waited for another for so many minutes fails.

    >>> with world("cpu") as alone:
    ...     alone.size, alone.main
    (1, True)
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=torch.device(name))
        return
    place = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if name == "cuda" else torch.device(name)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    # The others wait while one downloads a corpus, learns sub-words, or translates a test set.
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=timedelta(minutes=minutes))
    try:
        yield World(dist.get_rank(), size, place)
    except RuntimeError as error:
        if not any(words in str(error) for words in GONE):
            raise
        raise LostError("another process of this run no longer answers: --resume goes on when all are there") from error
    finally:
        # Gloo's thread still drops what the last exchange held, for which it needs Python's lock: who takes the group
        # down with the lock in hand at that moment waits for it for ever. Asleep we let it have the lock.
        time.sleep(0.1)
        dist.destroy_process_group()


def share(objective: nn.Module, kind: str, world: World) -> nn.Module:
    """The objective, its gradients summed over processes in its backward pass (both kinds average: scale by size).

    `ddp` holds the whole model in each process; `fsdp` holds a share of each parameter and of its optimiser state, and
    of the layer at hand, and what is in none, the whole.
    """
    if world.size == 1:
        return objective
    if kind == "ddp":
        return DistributedDataParallel(objective, device_ids=[world.device] if world.device.type == "cuda" else None)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for layer in layers_of(objective):
        fully_shard(layer, mesh=mesh)
    fully_shard(objective, mesh=mesh)  # in place
    return objective


@contextmanager
def not_yet(shared: nn.Module, more: bool) -> Iterator[None]:
    """Inside the block, if there is more to come, leave gradients where they are: the last part sums them all."""
    if isinstance(shared, DistributedDataParallel) and more:
        with shared.no_sync():
            yield
        return
    if callable(wait := getattr(shared, "set_requires_gradient_sync", None)):  # FSDP's
        wait(not more)
    yield


def parted(x: Tensor) -> Any:
    """A tensor of which each process has a share, a DTensor; None if it is none.

    Only a run of several processes has such, and it alone loads that module, which brings 45 MB of others.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return x if module is not None and isinstance(x, module.DTensor) else None


def whole(x: Tensor) -> Tensor:
    """A tensor of which each process has a share, in all of them; they must ask together."""
    return x if (shares := parted(x)) is None else shares.full_tensor()


def like(value: Tensor, other: Tensor) -> Tensor:
    """A tensor that every process has, shared out as `other` is: a copy of this one's share."""
    if (shares := parted(other)) is None or parted(value) is not None:
        return value
    from torch.distributed.tensor import distribute_tensor

    given = value.to(other.device), shares.device_mesh, shares.placements
    return distribute_tensor(*given, src_data_rank=None).clone()
