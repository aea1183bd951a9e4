"""Micro-batching: requests that arrive together are answered together, and each gets what it would get alone.

A request waits in the queue of its model, where one thread takes the oldest, and with it those that ask for the same
settings and are nearest in length, up to a budget of sub-words. While that thread is at work the next batch gathers.
Models that only add LoRA to another one stand in its line: requests to all of them are one batch.
When it is idle, it waits a moment for company if some is to be expected: others are being prepared, or the last batch
had several. What a request is answered does not hang on that company: a predictor gives the same output in any batch.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Any

from regard.decoding.protocol import DAMAGED
from regard.serving.config import ServeConfig
from regard.serving.errors import RefusalError
from regard.serving.metrics import Metrics
from regard.serving.registry import Served
from regard.tasks.company import MOST, meet

LOG = logging.getLogger("regard.serving")
Asked = tuple[list[Any], Any]  # what is asked of a predictor, and the settings: as its `answers` takes them


@dataclass(eq=False)
class Job:
    """What one request asks for."""

    asks: list[Any]
    settings: Any
    tokens: int  # sub-words that it is charged for: those it reads, and where they may be many, those it writes
    read: int = 0  # and those it reads alone
    predictor: Any = None  # who is asked, though its files may have gone; None: whoever is there by then
    queue: Any = None  # in which it came
    future: Future[list[Any]] = field(default_factory=Future)
    arrived: float = field(default_factory=monotonic)


class Queue:
    """The requests to one model, and the thread that answers them."""

    def __init__(self, served: Served, config: ServeConfig, metrics: Metrics, lead: "Queue | None" = None) -> None:
        """`lead`: the queue in whose line its requests stand, if not in its own."""
        self.served, self.config, self.metrics, self._lead = served, config, metrics, lead or self
        self.inside = 0  # requests that were let in and have not left
        self.coming = 0  # the same of all that stand in its line
        # Where requests are prepared: while one model is being loaded, those of the others need a thread, too.
        self.desk = ThreadPoolExecutor(1, thread_name_prefix=f"regard {served.id}")
        # Where the explorer's questions are answered: short ones do not wait for those that take long.
        self.short = ThreadPoolExecutor(2, thread_name_prefix=f"regard {served.id}")
        self.long = ThreadPoolExecutor(1, thread_name_prefix=f"regard {served.id}")
        self._jobs: list[Job] = []
        self._crowded = False  # whether the last batch had several
        self._change = Condition()
        self._thread: Thread | None = None
        self._closed = False
        self._company = ThreadPoolExecutor(MOST, thread_name_prefix=f"regard {served.id}")  # of several models
        metrics.watch(served.id, self, inside=lambda: self.inside, loaded=lambda: served.loaded)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue, for one request and as long as the block lasts; from one thread, the event loop's."""
        if self.inside >= self.config.queue:
            message = f"{self.inside} requests are waiting already: slow down, and try again in a second"
            raise RefusalError(429, message, reason="queue", code="queue_full", headers={"Retry-After": "1"})
        self.inside += 1
        self._lead.coming += 1
        try:
            yield
        finally:
            self.inside -= 1
            self._lead.coming -= 1

    def prepare(self, asked: Callable[[Any], Asked]) -> Job:
        """What is to be done for a request, as it says of a predictor; loads the model if need be."""
        predictor = self.predictor()
        asks, settings = asked(predictor)
        read, written = predictor.size(asks, settings)
        if read + written > self.config.tokens:
            said = f"{read} sub-words" if not written else f"{read} sub-words and up to {written} to be written"
            message = f"Invalid request: {said} exceed the limit of {self.config.tokens}"
            raise RefusalError(400, message, reason="size", code="too_long")
        return Job(asks, settings, read + written, read, predictor if self.served.passing else None)

    def submit(self, job: Job) -> Future[list[Any]]:
        """Have a job done. A future that is cancelled before its turn costs nothing."""
        job.queue = job.queue or self
        if self._lead is not self:
            return self._lead.submit(job)
        with self._change:
            if self._closed:
                raise RefusalError(503, "the server is shutting down", reason="closed", headers={"Retry-After": "5"})
            if self._thread is None:
                self._thread = Thread(target=self._work, name=f"regard {self.served.id}", daemon=True)
                self._thread.start()
            self._jobs.append(job)
            self._change.notify()
        job.future.add_done_callback(lambda future: self._forget(job) if future.cancelled() else None)
        return job.future

    def _forget(self, job: Job) -> None:
        """Its client has left before its turn: it does not wait for it, either."""
        with self._change:
            if job in self._jobs:
                self._jobs.remove(job)
        self.metrics.cancelled.labels(job.queue.served.id).inc()

    def close(self) -> None:
        """Take no more, and finish what was taken."""
        self.metrics.forget(self.served.id, self)
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()
        for threads in (self.desk, self.short, self.long, self._company):
            threads.shutdown()

    def predictor(self) -> Any:
        """The model; what is wrong with its files is for the log, and the client is asked to come back."""
        try:
            return self.served.predictor()
        except (ValueError, OSError) as error:
            LOG.error("the model %s cannot be loaded: %s", self.served.id, error)
            message = f"the model {self.served.id} cannot be loaded: the server's log says why"
            raise RefusalError(503, message, reason="model", headers={"Retry-After": "10"}) from None

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[Job]:
        """The jobs that come next, none only when the queue is closed and empty."""
        with self._change:
            while True:
                while not self._jobs and not self._closed:
                    self._change.wait()
                while (
                    self._jobs
                    and not self._closed
                    and (self._crowded or self.coming > len(self._jobs))
                    and sum(job.tokens for job in self._jobs) < self.config.batch_tokens
                    and (left := self._jobs[0].arrived + self.config.wait_ms / 1e3 - monotonic()) > 0
                ):
                    self._change.wait(left)
                batch = together(self._jobs, self.config.batch_tokens)
                self._jobs = [job for job in self._jobs if job not in batch]
                batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
                self._crowded = len(batch) > 1
                if batch or (self._closed and not self._jobs):
                    return batch

    def _answer(self, batch: list[Job]) -> None:
        begin, parts = monotonic(), _parts(batch)
        if len(parts) == 1:
            found = [_done(partial(_answers, parts[0]))]
        else:
            found = meet([partial(_answers, part) for part in parts], self._company)
        answered = [part for part, each in zip(parts, found, strict=True) if each.exception() is None]
        if jobs := [job for part in answered for job in part]:
            labels = self.served.id
            self.metrics.batch_seconds.labels(labels).observe(monotonic() - begin)
            self.metrics.batch_requests.labels(labels).observe(len(jobs))
            self.metrics.batch_tokens.labels(labels).observe(sum(job.tokens for job in jobs))
        for part, each in zip(parts, found, strict=True):
            id, error = part[0].queue.served.id, each.exception()
            if error is None:
                written, answers = each.result()
                self.metrics.tokens.labels(id, "read").inc(sum(job.read for job in part))
                self.metrics.tokens.labels(id, "written").inc(written)
                for job, answer in zip(part, answers, strict=True):
                    job.future.set_result(answer)
            elif len(batch) > 1 and not isinstance(error, RefusalError):  # which is of the model, and so of all
                for job in part:  # that one of them cannot be answered is no matter of the others
                    self._answer([job])
            else:
                if str(error) == DAMAGED:
                    error = RefusalError(503, f"the model {id} cannot be used: {DAMAGED}", reason="model")
                for job in part:
                    job.future.set_exception(error)


def _parts(batch: list[Job]) -> list[list[Job]]:
    """Those of one model and the same settings, each."""
    parts: list[list[Job]] = []
    for job in batch:
        for part in parts:
            if part[0].queue is job.queue and part[0].predictor is job.predictor and part[0].settings == job.settings:
                part.append(job)
                break
        else:
            parts.append([job])
    return parts


def _answers(part: list[Job]) -> tuple[int, list[list[Any]]]:
    """What a model answers to some jobs, and how many sub-words it has written."""
    predictor = part[0].predictor or part[0].queue.predictor()
    found = iter(predictor.answers([ask for job in part for ask in job.asks], part[0].settings))
    answers = [[next(found) for _ in job.asks] for job in part]
    return sum(predictor.written(answer) for each in answers for answer in each), answers


def _done(work: Callable[[], Any]) -> Future[Any]:
    """What becomes of some work."""
    future = Future[Any]()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


def _alike(one: Job, other: Job) -> bool:
    """Whether they can be answered together: with the same settings, or by several models with the same search."""
    if one.queue is other.queue:
        return bool(one.settings == other.settings)
    return bool(getattr(one.settings, "search", None) == getattr(other.settings, "search", None))


def together(jobs: Sequence[Job], budget: int) -> list[Job]:
    """The oldest job, and with it those that can be answered with it and are nearest to it in length.

    >>> jobs = [Job([], "greedy", 10), Job([], "wide", 10), Job([], "greedy", 80), Job([], "greedy", 12)]
    >>> [job.tokens for job in together(jobs, budget=30)]
    [10, 12]
    """
    if not jobs:
        return []
    first = jobs[0]
    alike = [job for job in jobs if _alike(job, first)]
    chosen: list[Job] = []
    for job in sorted(alike, key=lambda job: abs(job.tokens - first.tokens)):
        budget -= job.tokens
        if budget < 0 and chosen:
            break
        chosen.append(job)
    return chosen
