"""Requests are translated together, and each gets what it would get alone."""

import random
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from regard.serving.config import ServeConfig
from regard.serving.errors import RefusalError
from regard.serving.libretranslate import translating
from regard.serving.metrics import Metrics
from regard.serving.queue import Job, Queue, together
from regard.serving.registry import Registry, Served
from regard.tasks.asks import Ask, Settings
from tests.serving.servers import Hold, directory
from tests.serving.toys import LINES

TEXTS = [*LINES, "a dog. Two men sit!\n\n A woman.", "", " ", "men " * 30]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Registry([directory(tmp_path / "a")]).get()


@pytest.fixture
def queue(served: Served) -> Iterator[Queue]:
    made = Queue(served, ServeConfig(batch_tokens=200), Metrics())
    yield made
    made.close()


def value(queue: Queue, name: str, **labels: str) -> float:
    found = queue.metrics.registry.get_sample_value(name, {"model": "a", **labels})
    assert found is not None
    return found


def test_every_answer_is_that_of_the_translator_whatever_the_company(queue: Queue, served: Served) -> None:
    draw = random.Random(1)
    asked = [(draw.sample(TEXTS, draw.randint(1, 3)), draw.choice([1, 1, 2, 5])) for _ in range(60)]
    with ThreadPoolExecutor(16) as clients:
        found = list(
            clients.map(lambda ask: queue.submit(queue.prepare(translating(ask[0], best=ask[1]))).result(30), asked)
        )
    for (texts, best), answers in zip(asked, found, strict=True):
        offline = served.predictor().hypotheses(texts, best=best, beam=max(best, 3), split=True)
        assert [[t.text for t in a.translations] for a in answers] == [[t.text for t in each] for each in offline]
    assert value(queue, "regard_batch_requests_count") < 60  # some were together
    assert value(queue, "regard_batch_requests_sum") == 60
    assert value(queue, "regard_tokens_total", side="read") == value(queue, "regard_batch_tokens_sum")


def test_while_a_batch_is_at_work_the_next_one_gathers(queue: Queue, served: Served) -> None:
    hold = Hold(served)
    first = queue.submit(queue.prepare(translating([LINES[0]])))
    assert hold.begun.wait(30)
    asked = zip(LINES[1:] * 2, [1] * 5 + [2], strict=True)
    rest = [queue.submit(queue.prepare(translating([text], best=best))) for text, best in asked]
    hold.go.set()
    for future in (first, *rest):
        future.result(30)
    assert [sorted(batch) for batch in hold.batches] == [LINES[:1], sorted([*LINES[1:], *LINES[1:3]]), LINES[3:]]


def test_a_batch_keeps_to_its_budget_and_to_like_lengths() -> None:
    same, other = Settings(), Settings(seed=1)
    jobs = [Job([], same, size) for size in (20, 90, 22, 300, 19, 40)] + [Job([], other, 20)]
    assert [job.tokens for job in together(jobs, 70)] == [20, 19, 22]
    assert [job.tokens for job in together(jobs, 1_000)] == [20, 19, 22, 40, 90, 300]
    assert [job.tokens for job in together(jobs[3:], 10)] == [300]  # alone, if it must be
    assert together([], 10) == []


def test_who_has_left_is_not_translated(queue: Queue, served: Served) -> None:
    hold = Hold(served)
    first = queue.submit(queue.prepare(translating([LINES[0]])))
    assert hold.begun.wait(30)
    second, third = (queue.submit(queue.prepare(translating([text]))) for text in LINES[1:3])
    assert second.cancel()
    assert not first.cancel()  # it is at work
    hold.go.set()
    third.result(30)
    with pytest.raises(CancelledError):
        second.result()
    assert hold.batches == [[LINES[0]], [LINES[2]]]
    assert value(queue, "regard_cancelled_total") == 1


def test_who_has_left_is_forgotten_at_once(queue: Queue, served: Served) -> None:
    hold = Hold(served)
    first = queue.submit(queue.prepare(translating([LINES[0]])))
    assert hold.begun.wait(30)
    for _ in range(5):  # a batch may be long, and clients that come and go are many
        assert queue.submit(queue.prepare(translating([LINES[1]]))).cancel()
    assert queue._jobs == []
    assert value(queue, "regard_cancelled_total") == 5
    hold.go.set()
    first.result(30)


def test_a_lone_request_does_not_wait_for_company_and_two_go_together(served: Served) -> None:
    queue, hold = Queue(served, ServeConfig(wait_ms=60_000), Metrics()), Hold(served)
    hold.go.set()
    with queue.place():
        queue.submit(queue.prepare(translating([LINES[0]]))).result(30)
    with queue.place(), queue.place():  # one of whom is still on its way
        jobs = [queue.prepare(translating([text])) for text in LINES[1:3]]
        for future in [queue.submit(job) for job in jobs]:
            future.result(30)
    assert hold.batches == [LINES[:1], LINES[1:3]]
    queue.close()


def test_what_one_request_breaks_it_breaks_for_itself(queue: Queue, served: Served) -> None:
    hold = Hold(served)
    futures = [queue.submit(queue.prepare(translating([LINES[0]])))]
    assert hold.begun.wait(30)
    settings = queue.prepare(translating([LINES[0]])).settings
    futures += [queue.submit(Job([Ask(text)], settings, 5)) for text in ("\ud800", *LINES)]
    hold.go.set()
    with pytest.raises(Exception, match=r"surrogate|str"):
        futures[1].result(30)
    for future, text in zip([futures[0], *futures[2:]], [LINES[0], *LINES], strict=True):
        assert future.result(30)[0].translations[0].text == served.predictor().translate(text)


def test_a_full_queue_refuses_and_recovers(served: Served) -> None:
    queue = Queue(served, ServeConfig(queue=2), Metrics())
    with queue.place(), queue.place():
        with pytest.raises(RefusalError, match="slow down") as refused, queue.place():
            pass
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
        assert value(queue, "regard_queue_length") == 2
    with queue.place():
        assert queue.inside == 1


def test_a_request_of_too_many_tokens_is_refused(served: Served) -> None:
    queue = Queue(served, ServeConfig(tokens=10), Metrics())
    assert queue.prepare(translating(["a dog"])).tokens <= 10
    with pytest.raises(RefusalError, match="sub-words exceed the limit of 10") as refused:
        queue.prepare(translating(["a dog"] * 10))
    assert refused.value.status == 400


def test_closing_finishes_what_was_taken(served: Served) -> None:
    queue, hold = Queue(served, ServeConfig(batch_tokens=1), Metrics()), Hold(served)
    jobs = [queue.prepare(translating([text])) for text in LINES]
    futures = [queue.submit(job) for job in jobs]
    assert hold.begun.wait(30)
    with ThreadPoolExecutor(1) as other:
        closing = other.submit(queue.close)
        hold.go.set()
        closing.result(30)
    assert [future.result(0)[0].translations[0].text for future in futures] == served.predictor().translate(LINES)
    with pytest.raises(RefusalError, match="shutting down"):
        queue.submit(jobs[0])
    Queue(served, ServeConfig(), Metrics()).close()  # one that was never used


def test_a_model_that_is_gone_is_a_matter_of_the_server(served: Served, tmp_path: Path) -> None:
    queue = Queue(served, ServeConfig(), Metrics())
    job = queue.prepare(translating([LINES[0]]))
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(RefusalError, match="model a cannot be loaded") as refused:
        queue.submit(job).result(30)
    assert refused.value.status == 503
    assert str(tmp_path) not in refused.value.message
    queue.close()


def test_a_broken_model_is_loaded_once_for_a_batch(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(served, ServeConfig(wait_ms=60_000), Metrics())
    jobs, loads = [queue.prepare(translating([text])) for text in LINES], []

    def broken() -> None:
        loads.append(1)
        raise ValueError("damaged")

    monkeypatch.setattr(served, "predictor", broken)
    with ExitStack() as inside:
        for _ in jobs:
            inside.enter_context(queue.place())
        for future in [queue.submit(job) for job in jobs]:
            with pytest.raises(RefusalError, match="cannot be loaded"):
                future.result(30)
    assert loads == [1]
    queue.close()
