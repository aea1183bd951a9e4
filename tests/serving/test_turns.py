"""The explorer's questions have their place, their time and their end, as translations have."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from regard.serving import looks
from regard.serving.config import ServeConfig
from regard.serving.live import Live
from regard.serving.registry import Registry
from regard.serving.turns import DroppedError, in_thread, safe_point
from tests.serving.servers import directory, running
from tests.serving.toys import LINES, translator

FINE = {"q": LINES[0], "source": "en", "target": "es"}
LOOK = {"source": [9, 10, 11, 2], "target": [9, 2]}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry([directory(tmp_path / "first")], engine="torch")


class Busy:
    """Work without an end, but for safe points; how often it began, and was dropped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun = self.dropped = 0
        monkeypatch.setattr(looks, name, self.work)

    def work(self, *_: Any) -> None:
        self.begun += 1
        try:
            while True:
                time.sleep(0.005)
                safe_point()
        except DroppedError:
            self.dropped += 1
            raise


def ask(address: str, route: str, **asked: Any) -> httpx.Response:
    return httpx.post(f"{address}/explore/api/{route}", json=asked or LOOK, timeout=30)


def leave(address: str, route: str) -> socket.socket:
    """A client that has asked, and does not read the answer."""
    place, body = urlsplit(address), json.dumps(LOOK).encode()
    door = socket.create_connection((place.hostname, place.port), timeout=30)
    head = f"POST /explore/api/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    door.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return door


def queued(address: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("regard_queue_length"))


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("route", "threads"), [("faithfulness", 1), ("neuron", 2)])
def test_who_leaves_costs_nothing_more(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, route: str, threads: int
) -> None:
    busy = Busy(monkeypatch, route)
    if route == "neuron":
        monkeypatch.setitem(LOOK, "attention", "x")
        monkeypatch.setitem(LOOK, "head", 0)
        monkeypatch.setitem(LOOK, "query", 0)
    with running(registry, ServeConfig()) as (address, _):
        doors = [leave(address, route) for _ in range(6)]
        until(lambda: queued(address) == 6 and busy.begun == threads)  # the others wait
        for door in doors[threads:]:
            door.close()
        until(lambda: queued(address) == threads)
        for door in doors[:threads]:
            door.close()
        until(lambda: queued(address) == 0 and busy.dropped == busy.begun)
        assert busy.begun == threads, "work was begun for somebody who had left"
        assert ask(address, "measures", **{key: LOOK[key] for key in ("source", "target")}).status_code == 200
        metrics = httpx.get(f"{address}/metrics").text
    assert f'route="/explore/api/{route}",status="499"}} 6.0' in metrics


def test_a_full_queue_says_so_and_translations_count(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(monkeypatch, "faithfulness")
    with running(registry, ServeConfig(queue=2)) as (address, _):
        doors = [leave(address, "faithfulness") for _ in range(2)]
        until(lambda: queued(address) == 2)
        for answer in (
            ask(address, "measures"),
            ask(address, "translate", text=LINES[0]),
            httpx.get(f"{address}/explore/api/models"),
            httpx.post(f"{address}/translate", json=FINE),
        ):
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            assert answer.json()["error"].startswith("2 requests are waiting already")
        for door in doors:
            door.close()
        until(lambda: queued(address) == 0)
        assert ask(address, "measures").status_code == 200
        assert ask(address, "translate", text=LINES[0]).status_code == 200
        assert queued(address) == 0
    assert busy.begun == 1


def test_time_is_up_for_the_explorer_as_well(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(monkeypatch, "faithfulness")
    with running(registry, ServeConfig(seconds=1.0)) as (address, _):
        assert ask(address, "measures").status_code == 200  # and the model is there
        late = ask(address, "faithfulness")
        assert late.status_code == 504
        assert late.json() == {"error": "this takes longer than 1 seconds: send less at a time"}
        until(lambda: busy.dropped == 1)

        def slowly(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
            yield {"kind": "source"}
            busy.work()

        monkeypatch.setattr(Live, "translate", slowly)
        lines = [json.loads(line) for line in ask(address, "translate", text="a").text.splitlines()]
        assert lines == [{"kind": "source"}, {"kind": "error", "error": late.json()["error"]}]
        until(lambda: busy.dropped == 2 and queued(address) == 0)


def test_short_questions_do_not_wait_for_long_ones(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    Busy(monkeypatch, "faithfulness")
    with running(registry, ServeConfig()) as (address, _):
        doors = [leave(address, "faithfulness") for _ in range(8)]
        until(lambda: queued(address) == 8)
        assert ask(address, "score").status_code == 200
        assert ask(address, "translate", text=LINES[0], beam=3).status_code == 200
        assert httpx.post(f"{address}/translate", json=FINE, timeout=30).status_code == 200
        for door in doors:
            door.close()


def test_a_stream_keeps_its_place_until_its_end(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    go = Event()

    def slowly(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {"kind": "source"}
        go.wait(30)

    monkeypatch.setattr(Live, "translate", slowly)
    with running(registry, ServeConfig()) as (address, _):
        with httpx.stream("POST", f"{address}/explore/api/translate", json={"text": "a"}) as answer:
            lines = answer.iter_lines()  # which are closed when they are forgotten
            assert json.loads(next(lines)) == {"kind": "source"}
            assert queued(address) == 1
            go.set()
        until(lambda: queued(address) == 0)


@pytest.mark.parametrize("work", [looks.faithfulness, looks.measures])
def test_work_under_way_ends_between_layers(work: Any) -> None:
    live = Live(translator())
    look = live.look({"source": [9] * 60 + [2], "target": [9] * 60 + [2]}, {})
    passes, begun = 0, Event()

    def counted(*_: Any) -> None:
        nonlocal passes
        passes += 1
        begun.set()
        time.sleep(0.02)

    for attention in live.attentions.values():
        attention.register_forward_pre_hook(counted)

    async def leaving() -> None:
        task = asyncio.create_task(in_thread(lane, lambda: work(live, look)))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(1) as lane:
        runner = Thread(target=asyncio.run, args=[leaving()])
        runner.start()
        runner.join(30)
    assert 0 < passes <= 3
    assert live.score(look)["tokens"], "nothing is left behind: nobody has left"
