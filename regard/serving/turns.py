"""Work in a thread for somebody who may leave: what has not begun never does, what has ends at its next safe point."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import ContextVar
from threading import Event
from typing import TypeVar

T = TypeVar("T")
_dropped: ContextVar[Event | None] = ContextVar("dropped", default=None)  # of the work that a thread is at


class DroppedError(Exception):
    """Nobody waits for this work any more."""


def safe_point() -> None:
    """Where work may end: it goes on, unless it was begun by `in_thread` for somebody who does not wait any more."""
    dropped = _dropped.get()
    if dropped is not None and dropped.is_set():
        raise DroppedError


async def in_thread(lane: Executor, work: Callable[[], T]) -> T:
    """What some work comes to, in a thread; it is dropped if this is cancelled."""
    dropped = Event()

    def begun() -> T:
        before = _dropped.set(dropped)
        try:
            return work()
        finally:
            _dropped.reset(before)

    try:
        return await asyncio.get_running_loop().run_in_executor(lane, begun)
    finally:
        dropped.set()
