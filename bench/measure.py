"""What the benchmarks share: the peak of resident memory, each contestant in a process of its own."""

import subprocess
import sys
from pathlib import Path


def _status(key: str) -> float:
    """A line of /proc/self/status in MiB (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(key)


def resident() -> float:
    """Memory that is there, in MiB."""
    return _status("VmRSS")


class PeakMemory:
    """`with PeakMemory() as peak: ...`; then `peak.mib` is what the block added to the resident set at most."""

    mib: float

    def __enter__(self) -> "PeakMemory":
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark to the present
        self._before = resident()
        return self

    def __exit__(self, *_: object) -> None:
        self.mib = _status("VmHWM") - self._before


def in_fresh_process(*arguments: str) -> float:
    """The number that this program prints when started anew with these arguments."""
    return float(
        subprocess.run([sys.executable, sys.argv[0], *arguments], capture_output=True, text=True, check=True).stdout
    )
