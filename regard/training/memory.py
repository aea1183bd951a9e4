"""The heap of a training process."""

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # their numbers in glibc's malloc.h
KEPT, ITS_OWN = 2**28, 2**23  # bytes


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep what a step frees for the next one, up to KEPT; what is larger than ITS_OWN goes back at once.

    Otherwise it gives thousands of pages back to the system in each step, and asks for them again: 3% of the time of a
    step of the preset tiny. False where the C library is another.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*pair) for pair in ((MMAP_THRESHOLD, ITS_OWN), (TRIM_THRESHOLD, KEPT)))
