"""How far some work is, on standard error: a live line on a terminal, and elsewhere a plain one every ten seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from threading import Event, Thread

from rich.console import Console

EVERY = 10.0  # seconds
Show = Callable[[str, int, int], None]


@contextmanager
def telling(what: str) -> Iterator[Show]:
    """Inside the block, call it with what is being done, how much of it is, and of how much.

    Work that never calls it is told by its name and its time.
    """
    console = Console(stderr=True)
    with _bars(what, console) if console.is_terminal else _lines(what) as show:
        yield show


@contextmanager
def going_on(place: Path) -> Iterator[None]:
    """Inside the block, a full disk is no end: the same command goes on with what is in a place."""
    try:
        yield
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        raise ValueError(f"{place}: the disk is full; make room and say the same again: it goes on from here") from None


@contextmanager
def _bars(what: str, console: Console) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = TextColumn("  {task.description}"), BarColumn(30), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {what: bar.add_task(what, total=None)}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total)

        yield show


@contextmanager
def _lines(what: str) -> Iterator[Show]:
    stage, ended, began = what, Event(), time.monotonic()

    def show(name: str, done: int, total: int) -> None:
        nonlocal stage
        stage = f"{what}: {name} {done:,} of {total:,}"

    def tell() -> None:
        while not ended.wait(EVERY):
            print(f"{stage} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield show
    finally:
        ended.set()
        teller.join()
