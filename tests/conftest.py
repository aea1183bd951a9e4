import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

HOLD = """
import sys, time
from pathlib import Path
from regard.files import alone_in
with alone_in(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from a second thread, and wait for it when the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture
def occupy() -> Iterator[Callable[[Path], "subprocess.Popen[str]"]]:
    """Call it with a directory, and another process has it for itself until it is killed."""
    others: list[subprocess.Popen[str]] = []

    def start(directory: Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HOLD, str(directory)]
        others.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert others[-1].stdout is not None
        assert others[-1].stdout.readline() == "in\n"
        return others[-1]

    yield start
    for other in others:
        other.kill()
        other.wait()
