"""Whatever is in a file, its loader works, or says ValueError or OSError, in bounded time and memory.

A few seconds for each kind of file, the same examples each time; REGARD_FUZZ=minutes makes it that long, and random:
`make fuzz`. What is found is shown with the files that did it.
"""

import faulthandler
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Files

MINUTES = float(os.environ.get("REGARD_FUZZ", "0"))  # in all
EXAMPLES = 100
SECONDS = 20  # for one file; a busy machine takes ten times as long as an idle one
ROOM = 2**31  # bytes of memory beyond what the process has


@contextmanager
def bounded() -> Iterator[None]:
    """Inside the block, an allocation of gigabytes fails, and who takes too long is shown and ends the process."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, before)


@st.composite
def changed(draw: Any, name: str) -> Files:
    """The files of a target, one of them changed."""
    target = TARGETS[name]
    files = draw(st.sampled_from(target.files()))
    ways = {file: way for file in sorted(files) for end, way in target.changed.items() if file.endswith(end)}
    file = draw(st.sampled_from(sorted(ways)))
    content = ways[file](files[file], draw)
    note(f"{file}: {content!r:.2000}")
    return target.together(files, file, content)


def attempt(name: str) -> Any:
    """A test of one target."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=not MINUTES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changed(name))
    def attempt(files: Files) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for file, content in files.items():
                path = Path(directory, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            with bounded():
                try:
                    TARGETS[name].load(Path(directory))
                except (ValueError, OSError) as error:
                    if not str(error):
                        raise

    return attempt


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_in_a_file_its_loader_works_or_says_what_is_wrong(name: str) -> None:
    end = time.monotonic() + 60 * MINUTES / len(TARGETS)
    attempt(name)()
    while time.monotonic() < end:
        attempt(name)()
