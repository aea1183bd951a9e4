"""The largest batch that fits in memory, found by trying."""

import copy
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from regard.data.batching import Batch
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.loop import Learner
from regard.training.objectives import Objective

SMALLEST, LARGEST = 512, 2**16  # tokens in a process
SHARE = 0.8  # of the memory that may be used
GROUPS = {  # Linux's control groups, version 2 and 1: where they are, the limit, what is used, and by files
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def largest_batch(
    objective: Objective, config: TrainConfig, world: World, *, length: int, probe: Callable[[int], Batch]
) -> int:
    """The tokens of the largest batch with which a step fits in memory: 512 · 2ⁿ a process.

    `probe` makes one of so many rows of `length`.

    On an accelerator a step that does not fit fails, and the one before it counts. On a CPU it would drive the machine
    into its swap, so the next size is not tried if twice what this one took is more than there is.
    """
    tokens = max(SMALLEST, 2 ** (length - 1).bit_length())
    alone = World(device=world.device)  # each process tries for itself, at its own pace
    _forget_peak()
    tried = replace(config, batch_tokens=tokens, ema=0.0)
    with Learner(copy.deepcopy(objective), lambda step: 0.0, tried, alone) as learner:

        def attempt(tokens: int) -> None:
            batch = probe(max(1, tokens // length))
            learner.step([batch], batch.count)

        before = _peak(world.device)
        attempt(tokens)
        while 2 * tokens <= LARGEST and 2 * (_peak(world.device) - before) < SHARE * _free(world.device):
            try:
                attempt(2 * tokens)
            except torch.OutOfMemoryError:
                break
            tokens *= 2
    gc.collect()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return int(world.least(tokens)) * world.size


def _forget_peak() -> None:
    """Let Linux count anew: what was used before, to learn sub-words say, must not hide what a step takes."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _peak(device: torch.device) -> int:
    """Bytes at the highest."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _free(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that a process could have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    try:
        with open(root / "proc/meminfo", encoding="ascii") as file:
            sizes = {line.split(":")[0]: int(line.split()[1]) for line in file}
        return min([1024 * sizes["MemAvailable"], *_left(root)])
    except OSError:  # no Linux: half of all memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _left(root: Path) -> Iterator[int]:
    """Bytes up to the limit of each control group that this process is in, a container's for one."""
    listed = root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in GROUPS:
            continue
        place, limit, used, cache = GROUPS[controllers]
        group = root / place / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # there is no such file, or its limit is "max"
                kinds = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                taken = int((folder / used).read_text()) - int(kinds.get(cache, 0))  # what was read of files can go
                yield max(0, int((folder / limit).read_text()) - taken)
