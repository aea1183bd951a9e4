"""What the routes of all APIs share: the models, their queues, who is let in, and how long anybody waits."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from regard.serving import forms
from regard.serving.config import ServeConfig
from regard.serving.detect import Detector
from regard.serving.errors import ClientGoneError, RefusalError
from regard.serving.limits import Doorkeeper, told
from regard.serving.metrics import Metrics
from regard.serving.queue import Asked, Queue
from regard.serving.reading import QuestionAsked
from regard.serving.registry import Registry, Served
from regard.serving.turns import in_thread

LOG = logging.getLogger("regard.serving")
T = TypeVar("T")


class Placed(StreamingResponse):
    """An answer piece by piece, whose request keeps its place in the queue until the last of them is sent."""

    def __init__(self, pieces: AsyncIterator[bytes], media_type: str, place: ExitStack) -> None:
        super().__init__(pieces, media_type=media_type, headers={"Cache-Control": "no-store"})
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._place:
            await super().__call__(scope, receive, send)


class Service:
    """One server's models and manners."""

    def __init__(self, registry: Registry, config: ServeConfig) -> None:
        self.registry, self.config, self.metrics = registry, config, Metrics()
        self._queues = dict[Served, Queue]()
        for served in registry:
            self.queue(served)
        self.door = Doorkeeper(config)
        self.detector = Detector(served.languages[0] for served in registry if served.task.name == "translate")
        self.routes = {route for served in registry for route in served.routes}  # by which some model is asked

    def queue(self, served: Served) -> Queue:
        """The queue of a model, which may be new; from one thread, the event loop's. Those of models that have gone end
        when they are empty."""
        for gone in [*self.registry.gone]:
            if (queue := self._queues.get(gone)) is None or not queue.inside:
                self.registry.gone.discard(gone)
                if queue is not None:
                    self._queues.pop(gone).close()
        if served not in self._queues:
            lead = self.queue(served.base) if served.joins and served.base is not None else None
            self._queues[served] = Queue(served, self.config, self.metrics, lead)
        return self._queues[served]

    async def answers(self, served: Served, asked: Callable[[Any], Asked]) -> list[Any]:
        """What a model answers to what is asked of it."""
        queue = self.queue(served)
        with queue.place():
            job = await asyncio.get_running_loop().run_in_executor(queue.desk, partial(queue.prepare, asked))
            return await asyncio.wrap_future(queue.submit(job))

    async def told(self, request: Request, served: Served, question: QuestionAsked, param: str) -> JSONResponse:
        """What a model that reads answers to a question, as it is sent."""
        request.state.characters = forms.admitted(question.texts, self.config.characters, param)

        async def work() -> JSONResponse:
            answers = await self.answers(served, question)
            return await asyncio.to_thread(lambda: JSONResponse(question.told(answers)))

        try:
            return await self.attended(request, work())
        except ValueError as error:
            raise RefusalError(400, str(error), param=param) from None

    async def streamed(
        self,
        request: Request,
        served: Served,
        begin: Callable[[], Iterator[bytes]],
        media_type: str,
        failed: Callable[[str], bytes],
    ) -> Placed:
        """What some work on a model comes to, piece by piece, in its place and its turns.

        At an empty piece a client that has left is noticed. What goes wrong after the first is `failed` in its form.
        """
        queue, end = self.queue(served), monotonic() + self.config.seconds
        with ExitStack() as place:
            place.enter_context(queue.place())
            pieces = await self.attended(request, in_thread(queue.short, begin))

            async def following() -> AsyncIterator[bytes]:
                try:
                    while True:
                        async with asyncio.timeout(end - monotonic()):
                            piece = await in_thread(queue.short, lambda: next(pieces, None))
                        if piece is None:
                            return
                        yield piece
                except TimeoutError:
                    yield failed(str(self.late()))
                except (ValueError, RefusalError) as error:
                    yield failed(str(error))
                except Exception as error:
                    LOG.error("%s", told(error, request.scope))
                    yield failed("internal error")

            return Placed(following(), media_type, place.pop_all())

    async def looked(self, served: Served, work: Callable[[], T], *, long: bool = False) -> T:
        """What some work of the explorer's on a model comes to, in its place and its turn."""
        queue = self.queue(served)
        with queue.place():
            return await in_thread(queue.long if long else queue.short, work)

    async def attended(self, request: Request, work: Awaitable[T]) -> T:
        """What some work comes to, unless the client leaves or time is up before."""
        task, leaving = asyncio.ensure_future(work), asyncio.create_task(_leaving(request))
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
        await asyncio.gather(*(asyncio.to_thread(queue.close) for queue in self._queues.values()))


async def _leaving(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
