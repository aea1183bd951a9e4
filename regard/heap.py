"""What glibc does with freed memory: it keeps it for whoever asks next, or gives it back to the system. Where the C
library is another, nothing happens."""

import ctypes
import sys
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # their numbers in glibc's malloc.h


def keep_freed_memory(most: int) -> bool:
    """Let glibc keep what a step frees for the next one, up to so much; what is larger than 1/32 goes back at once.

    Otherwise it gives thousands of pages back to the system in each step, and asks for them again: 3% of the time of a
    step of the preset tiny. False where the C library is another.
    """
    mallopt = _glibc("mallopt")
    return mallopt is not None and all(
        mallopt(*pair) for pair in ((MMAP_THRESHOLD, most // 32), (TRIM_THRESHOLD, most))
    )


def give_freed_memory_back() -> bool:
    """Let it go now. False where there was none to give, or the C library is another."""
    trim = _glibc("malloc_trim")
    return trim is not None and bool(trim(ctypes.c_size_t(0)))


def _glibc(name: str) -> Any:
    """One of its functions; None if there is none."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
