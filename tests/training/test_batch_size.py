"""The largest batch is found by doubling, and what would not fit is not tried where trying hurts."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batching import Batch, collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.recipes.train import stretched
from regard.training import batch_size
from regard.training.batch_size import LARGEST, SHARE, SMALLEST, largest_batch
from regard.training.config import TrainConfig
from regard.training.distributed import CPU, World
from regard.training.loop import Learner, Report
from regard.training.objectives import NextToken

V, LENGTH = 20, 16
BEFORE = 5_000_000  # bytes that the process had taken before it tried anything


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig.tiny(V, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16))


class Machine:
    """Memory that steps take by the token. A step over `limit` fails, as on an accelerator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, each: int = 1000, free: int, limit: int = 10**9) -> None:
        self.tried: list[int] = []
        self.shapes: list[torch.Size] = []

        def step(learner: Learner, parts: Sequence[Batch], tokens: int) -> Report:
            (batch,) = parts
            assert batch["source"].shape == batch["target"].shape
            assert tokens == batch.count == batch["labels"].numel()  # no padding: the most work for so many tokens
            self.tried.append(tokens)
            self.shapes.append(batch["source"].shape)
            if tokens > limit:
                raise torch.OutOfMemoryError("no room")
            return Report(1, 1.0, 0.0, 1.0, tokens, 1.0)

        monkeypatch.setattr(Learner, "step", step)
        monkeypatch.setattr(batch_size, "_peak", lambda device: BEFORE + each * max(self.tried, default=0))
        monkeypatch.setattr(batch_size, "_free", lambda device: free)


def find(model: Transformer, world: World | None = None, length: int = LENGTH) -> int:
    config = TrainConfig(steps=1, batch_tokens=0)
    objective = NextToken(model, config.smoothing)
    example = stretched((np.array([5]), np.array([6, 7])), (True, True), length - 1)
    return largest_batch(
        objective, config, world or World(), length=length, probe=lambda rows: collate([example] * rows)
    )


@pytest.mark.parametrize(("free", "expected"), [(10, 512), (1_500_000, 1024), (4_000_000, 2048), (10**7, 4096)])
def test_it_doubles_while_memory_allows(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, free: int, expected: int
) -> None:
    machine = Machine(monkeypatch, free=free)
    assert find(model) == expected
    assert machine.tried == [512 * 2**n for n in range(len(machine.tried))]
    assert machine.tried[-1] == expected
    assert all(1000 * tokens < SHARE * free for tokens in machine.tried[1:])  # nothing that would not fit was tried
    assert 1000 * 2 * expected >= SHARE * free


def test_it_stops_where_a_step_runs_out_of_memory(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, free=10**12, limit=5000)
    assert find(model) == 4096
    assert machine.tried == [512, 1024, 2048, 4096, 8192]


def test_no_batch_is_larger_than_the_largest(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, free=10**15)
    assert find(model) == LARGEST == max(machine.tried)


@pytest.mark.parametrize(("length", "first"), [(1, (512, 1)), (100, (5, 100)), (512, (1, 512)), (3000, (1, 3000))])
def test_a_batch_is_of_whole_sequences_of_the_length(
    model: Transformer, monkeypatch: pytest.MonkeyPatch, length: int, first: tuple[int, int]
) -> None:
    machine = Machine(monkeypatch, free=10)
    found = find(model, length=length)
    assert machine.shapes == [first]
    assert max(SMALLEST, length) <= found < max(2 * SMALLEST, 2 * length)


def test_another_error_is_not_taken_for_a_lack_of_memory(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, free=10**12)
    step = Learner.step

    def broken(learner: Learner, parts: Sequence[Batch], tokens: int) -> Report:
        if tokens > SMALLEST:
            raise RuntimeError("broken")
        return step(learner, parts, tokens)

    monkeypatch.setattr(Learner, "step", broken)
    with pytest.raises(RuntimeError, match="broken"):
        find(model)


def test_processes_take_what_the_poorest_can_and_the_batch_is_for_all_of_them(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Three(World):
        def least(self, value: float) -> float:
            return min(value, 1024.0, 8192.0)

    Machine(monkeypatch, free=4_000_000)
    assert find(model, Three(size=3)) == 3 * 1024


def test_it_is_tried_on_the_device_of_the_run_by_each_process_alone(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[World] = []

    @contextmanager
    def learner(model: Transformer, schedule: Any, config: TrainConfig, world: World) -> Iterator[Learner]:
        worlds.append(world)
        with Learner(NextToken(model, 0.1), schedule, config) as probe:
            yield probe

    class Two(World):
        def least(self, value: float) -> float:
            return value

    Machine(monkeypatch, free=10)
    monkeypatch.setattr(batch_size, "Learner", learner)
    find(model, Two(1, 2, torch.device("meta")))
    assert worlds == [World(device=torch.device("meta"))]


def test_the_model_stays_as_it_was(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "LARGEST", 2 * SMALLEST)
    before = {name: x.clone() for name, x in model.eval().state_dict().items()}
    assert find(model) in (SMALLEST, 2 * SMALLEST)  # with steps and memory as they are
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not model.training


@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc")
def test_memory_is_counted_in_bytes() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, everything = 1024 * int(status["VmHWM"].split()[0]), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0.9 * peak < batch_size._peak(CPU) < everything  # the two are counted apart, and differ a little
    assert everything / 1000 < batch_size._free(CPU) < everything


V2 = {"memory.max": "{limit}", "memory.current": "5000", "memory.stat": "anon 1000\ninactive_file 4000\n"}
V1 = {
    "memory.limit_in_bytes": "{limit}",
    "memory.usage_in_bytes": "5000",
    "memory.stat": "cache 4000\ntotal_inactive_file 4000\n",
}


@pytest.mark.parametrize(
    ("listed", "group", "files"),
    [
        ("0::/", "sys/fs/cgroup", V2),  # in a container, whose own group is the root
        ("0::/user.slice/job", "sys/fs/cgroup/user.slice", V2),  # the limit is of a group above
        ("2:cpu:/\n4:memory:/docker/1f\n0::/", "sys/fs/cgroup/memory/docker/1f", V1),
        ("4:memory:/docker/1f", "sys/fs/cgroup/memory", V1),  # by its name outside, which is not seen inside
    ],
)
def test_a_container_has_what_its_limit_leaves(tmp_path: Path, listed: str, group: str, files: dict[str, str]) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert batch_size._free(CPU, tmp_path) == 8 * 1024
    (tmp_path / "proc/self/cgroup").write_text(listed)
    (tmp_path / group).mkdir(parents=True)
    for limit, free in (("7000", 6000), ("900", 0), ("20000", 8 * 1024), ("max", 8 * 1024)):
        for name, content in files.items():
            (tmp_path / group / name).write_text(content.format(limit=limit))
        assert batch_size._free(CPU, tmp_path) == free
