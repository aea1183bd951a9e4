"""A model that no process can hold alone: two, each of which may have so much memory, train it together."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard

MB = 2**20
LIMIT = 700 * MB  # of a process; about 200 are PyTorch and regard
# 38 million parameters: with gradients and moments 600 MB
YAML = """
task: {name: generate, block: 64}
data: {train: {text: plays.txt}, valid: {text: few.txt}, test: {text: few.txt}}
tokens: {kind: char, size: 0}
model: {preset: gpt-tiny, layers: 12, d_model: 512, d_ff: 2048, heads: 8, max_length: 64}
train:
  steps: 4
  batch_tokens: 128
  optimiser: {name: adamw}
  schedule: {name: linear, peak: 0.0003, warmup: 2}
  validate_every: 2
  validate_sentences: 2
  checkpoint_every: 2
  distributed: fsdp
"""
PROGRAM = """
import os, pathlib, sys
group = pathlib.Path(sys.argv.pop(1)) / os.environ.get("LOCAL_RANK", "0")
(group / "cgroup.procs").write_text(str(os.getpid()))
from regard.__main__ import main
main()
"""


@pytest.fixture
def groups() -> Iterator[Path]:
    """A control group for each of two processes, with a limit on its memory."""
    old = Path("/sys/fs/cgroup/memory")
    base, limit = (old, "memory.limit_in_bytes") if old.is_dir() else (old.parent, "memory.max")
    place = base / f"regard-{os.getpid()}"
    made = [place, place / "0", place / "1"]
    try:
        place.mkdir()
        if limit == "memory.max":
            (place / "cgroup.subtree_control").write_text("+memory")
        for each in made[1:]:
            each.mkdir()
            (each / limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"needs to make control groups: {error}")
    yield place
    for each in reversed(made):
        each.rmdir()


def train(groups: Path, place: Path, processes: int, *more: str) -> subprocess.CompletedProcess[str]:
    (place / "program.py").write_text(PROGRAM)
    words = [str(place / "program.py"), str(groups), "train", "larger.yaml", "--out", f"run-{processes}", *more]
    if processes > 1:
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(place / "cache")}
    return subprocess.run(
        [sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.slow
def test_two_processes_train_what_one_cannot_hold(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "larger.yaml").write_text(YAML)
    lines = [f"to be or not to be, that is {n}\n" for n in range(400)]
    for name, count in (("plays", 400), ("few", 20)):
        (tmp_path / f"{name}.txt").write_text("".join(lines[:count]))
    assert train(groups, tmp_path, 1).returncode == -9  # killed: it has taken more than it may
    both = train(groups, tmp_path, 2)
    assert both.returncode == 0, both.stderr[-3000:]
    resumed = train(groups, tmp_path, 2, "--resume", "train.steps=6")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert "resumed" in resumed.stdout
    journal = map(json.loads, (tmp_path / "run-2" / "metrics.jsonl").read_text().splitlines())
    assert max(line.get("step", 0) for line in journal) == 6
    assert not list((tmp_path / "run-2").glob(".weights-*"))
    assert regard.load(tmp_path / "run-2").generate("to be", limit=4)
