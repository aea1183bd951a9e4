"""What the routes of all APIs share: the models, their queues, who is let in, and how long anybody waits."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar

from fastapi import Request

from regard.serving.config import ServeConfig
from regard.serving.detect import Detector
from regard.serving.errors import ClientGoneError, RefusalError
from regard.serving.limits import Doorkeeper
from regard.serving.metrics import Metrics
from regard.serving.queue import Queue
from regard.serving.registry import Registry, Served
from regard.serving.turns import in_thread
from regard.tasks.asks import Answer

T = TypeVar("T")


class Service:
    """One server's models and manners."""

    def __init__(self, registry: Registry, config: ServeConfig) -> None:
        self.registry, self.config, self.metrics = registry, config, Metrics()
        self.queues = {served.id: Queue(served, config, self.metrics) for served in registry}
        self.door = Doorkeeper(config)
        self.detector = Detector(served.languages[0] for served in registry if served.task.name == "translate")

    async def translate(
        self, served: Served, texts: Sequence[str], *, best: int = 1, align: bool = False
    ) -> list[Answer]:
        """For each text its `best` outputs."""
        queue = self.queues[served.id]
        prepare = partial(queue.prepare, texts, best=best, align=align)
        with queue.place():
            job = await asyncio.get_running_loop().run_in_executor(queue.desk, prepare)
            return await asyncio.wrap_future(queue.submit(job))

    async def looked(self, served: Served, work: Callable[[], T], *, long: bool = False) -> T:
        """What some work of the explorer's on a model comes to, in its place and its turn."""
        queue = self.queues[served.id]
        with queue.place():
            return await in_thread(queue.long if long else queue.short, work)

    async def attended(self, request: Request, work: Coroutine[None, None, T]) -> T:
        """What some work comes to, unless the client leaves or time is up before."""
        task, leaving = asyncio.create_task(work), asyncio.create_task(_leaving(request))
        try:
            await asyncio.wait({task, leaving}, timeout=self.config.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if leaving.done():
                raise ClientGoneError
            raise self.late()
        finally:
            task.cancel()
            leaving.cancel()

    def late(self) -> RefusalError:
        """What is said when time is up."""
        message = f"this takes longer than {self.config.seconds:g} seconds: send less at a time"
        return RefusalError(504, message, reason="time")

    async def close(self) -> None:
        """Finish what was taken."""
        await asyncio.gather(*(asyncio.to_thread(queue.close) for queue in self.queues.values()))


async def _leaving(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
