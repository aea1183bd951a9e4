"""Who is let in, and how much may be sent: over raw sockets, as those send who mean no good."""

import json
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import httpx
import pytest

from regard.decoding.protocol import DAMAGED
from regard.models import storage
from regard.serving import libretranslate, looks
from regard.serving.config import ServeConfig, read_keys
from regard.serving.detect import Detected, Detector
from regard.serving.limits import GUESSES, REMEMBERED, Doorkeeper, Rate
from regard.serving.markup import Page
from regard.serving.registry import Registry
from tests.serving.servers import Hold, directory, running
from tests.serving.toys import CROSS, LINES, model

PATH = b"explore/api/maps"
FINE = {"q": LINES[0], "source": "en", "target": "es"}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry([directory(tmp_path / "first")])


@pytest.fixture
def address(registry: Registry) -> Iterator[str]:
    with running(registry, ServeConfig(explorer=False, characters=1_000)) as (address, _):
        yield address


@pytest.fixture
def hasty(registry: Registry) -> Iterator[str]:
    """One that has no time."""
    with running(registry, ServeConfig(explorer=False, seconds=1.0)) as (address, _):
        yield address


def connect(address: str) -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=30)


def received(door: socket.socket) -> tuple[int, dict[str, object]]:
    """Status and JSON of an answer that ends with its connection."""
    data = b""
    while piece := door.recv(65536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def head(length: str, more: str = "") -> bytes:
    kind = "Content-Type: application/json\r\n"
    return f"POST /translate HTTP/1.1\r\nHost: localhost\r\n{kind}{length}\r\n{more}\r\n".encode()


def post(address: str) -> httpx.Response:
    return httpx.post(f"{address}/translate", json=FINE, timeout=30)


def metric(address: str, line: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(each.rsplit(" ", 1)[1]) for each in lines if each.startswith(line))


def test_a_slow_client_is_let_go(hasty: str) -> None:
    with connect(hasty) as door:
        door.sendall(head("Content-Length: 100") + b'{"q": ')  # and no more
        status, said = received(door)
    assert (status, said) == (408, {"error": "the request did not arrive within 1 seconds"})
    assert metric(hasty, 'regard_refused_total{reason="slow"}') == 1


def test_who_does_not_begin_is_let_go_as_well(hasty: str) -> None:
    with connect(hasty) as silent, connect(hasty) as half, connect(hasty) as again:
        half.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nX-")
        again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        assert silent.recv(1) == half.recv(1) == b""
        answer = b""
        while piece := again.recv(65536):
            answer += piece
        assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert httpx.get(f"{hasty}/health").status_code == 200


@pytest.mark.parametrize("reads", [False, True])
def test_who_does_not_read_is_let_go_and_who_reads_slowly_is_not(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    size = 30 * 2**20  # more than the system holds for both sides
    monkeypatch.setattr(looks, "pack", lambda *_, **__: bytes(size))
    asked = json.dumps({"source": [9, 2], "target": [9, 2], "attentions": [{"name": CROSS}]}).encode()
    with running(registry, ServeConfig(seconds=1.0)) as (address, _):
        assert httpx.get(f"{address}/explore/api/models", timeout=30).status_code in (200, 504)  # it is being loaded
        registry.get().predictor()
        with connect(address) as door:  # now: who connects and says nothing for a second is let go
            begin = head(f"Content-Length: {len(asked)}", "Connection: close\r\n").replace(b"translate", PATH)
            door.sendall(begin + asked)
            got = len(door.recv(2**16))
            time.sleep(0.0 if reads else 2.5)
            while piece := door.recv(2**18):
                got += len(piece)
                time.sleep(0.02)
        assert (got > size) is reads


def test_an_answer_does_not_wait_for_the_client_to_acknowledge_its_head(registry: Registry) -> None:
    with running(registry) as (address, server), httpx.Client() as client:
        assert client.get(f"{address}/health").status_code == 200
        (connection,) = server.server_state.connections
        door = connection.transport.get_extra_info("socket")
        assert door.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_one_client_sends_does_not_hold_up_the_others(
    registry: Registry, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = Event(), Event()

    def page(html: str) -> Page:
        begun.set()
        assert go.wait(30)
        return Page(html)

    monkeypatch.setattr(libretranslate, "Page", page)
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(httpx.post, f"{address}/translate", json={**FINE, "format": "html"}, timeout=30)
        assert begun.wait(30)
        assert post(address).status_code == 200
        go.set()
        assert slow.result().status_code == 200


def test_a_model_that_is_being_loaded_does_not_hold_up_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([directory(tmp_path / "first"), directory(tmp_path / "second", pair="en, de")])
    slow, go = registry.get("second"), Event()
    load = slow.predictor
    monkeypatch.setattr(slow, "predictor", lambda: load() if go.wait(30) else None)
    with running(registry) as (address, _), ThreadPoolExecutor(64) as clients:
        german = {**FINE, "target": "de"}
        taken = [clients.submit(httpx.post, f"{address}/translate", json=german, timeout=30) for _ in range(40)]
        while metric(address, 'regard_queue_length{model="second"}') < 40:
            time.sleep(0.01)
        try:
            assert httpx.post(f"{address}/translate", json=FINE, timeout=10).status_code == 200
        finally:
            go.set()
        assert {future.result().status_code for future in taken} == {200}


def test_the_time_of_a_request_is_that_of_all_its_work(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    go = Event()
    english = Detected(confidence=1.0, language="en")
    monkeypatch.setattr(Detector, "guess", lambda *_: [english] if go.wait(30) else [])
    with running(registry, ServeConfig(explorer=False, seconds=0.5)) as (address, _):
        for path in ("translate", "detect"):
            late = httpx.post(f"{address}/{path}", json={**FINE, "source": "auto"}, timeout=30)
            assert late.status_code == 504
        go.set()


def test_a_huge_body_is_refused_before_it_is_sent(address: str) -> None:
    with connect(address) as door:
        door.sendall(head("Content-Length: 99999999999"))
        assert received(door)[0] == 413
    with connect(address) as door:  # one that does not say how much is coming
        door.sendall(head("Transfer-Encoding: chunked"))
        try:
            for _ in range(100):
                door.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                time.sleep(0.001)
        except OSError:
            pass  # it was hung up on us
        else:
            pytest.fail("all of it was taken")
    assert post(address).status_code == 200
    assert metric(address, 'regard_refused_total{reason="size"}') == 2


def test_who_leaves_is_not_translated(registry: Registry, address: str) -> None:
    hold = Hold(registry.get())
    with ThreadPoolExecutor(1) as other:
        first = other.submit(post, address)
        assert hold.begun.wait(30)
        body = json.dumps({**FINE, "q": LINES[1]}).encode()
        with connect(address) as door:
            door.sendall(head(f"Content-Length: {len(body)}") + body)
            while metric(address, "regard_queue_length") < 2:
                time.sleep(0.01)
        while metric(address, "regard_queue_length") > 1:  # its place is free at once
            time.sleep(0.01)
        hold.go.set()
        assert first.result().status_code == 200
    assert post(address).status_code == 200
    assert [LINES[1]] not in hold.batches
    assert metric(address, 'regard_requests_total{method="POST",route="/translate",status="499"}') == 1


def test_half_a_body_and_gone(address: str) -> None:
    with connect(address) as door:
        door.sendall(head("Content-Length: 100") + b'{"q": ')
    assert post(address).status_code == 200


def test_what_takes_too_long_is_given_up(registry: Registry, hasty: str) -> None:
    hold = Hold(registry.get())
    answer = post(hasty)
    assert answer.status_code == 504
    assert answer.json() == {"error": "this takes longer than 1 seconds: send less at a time"}
    hold.go.set()
    while post(hasty).status_code != 200:  # which a busy machine may not manage at once
        pass


def test_too_many_requests_are_sent_away_and_the_server_recovers(registry: Registry) -> None:
    with running(registry, ServeConfig(explorer=False, queue=3)) as (address, _), ThreadPoolExecutor(8) as clients:
        hold = Hold(registry.get())
        taken = [clients.submit(post, address) for _ in range(3)]
        while metric(address, "regard_queue_length") < 3:
            time.sleep(0.01)
        refused = [post(address) for _ in range(4)]
        assert [answer.status_code for answer in refused] == [429] * 4
        assert all(answer.headers["Retry-After"] == "1" for answer in refused)
        assert refused[0].json()["error"].startswith("3 requests are waiting already: slow down")
        hold.go.set()
        expected = registry.get().predictor().translate(LINES[0])
        assert [future.result().json() for future in taken] == [{"translatedText": expected}] * 3
        assert post(address).json() == {"translatedText": expected}
        assert metric(address, 'regard_refused_total{reason="queue"}') == 4


def test_a_server_that_is_told_to_stop_finishes_what_it_took(registry: Registry) -> None:
    with running(registry) as (address, server), ThreadPoolExecutor(4) as clients:
        hold = Hold(registry.get())
        taken = [clients.submit(post, address) for _ in range(4)]
        while metric(address, "regard_queue_length") < 4:
            time.sleep(0.01)
        server.should_exit = True
        while server.servers and server.servers[0].is_serving():
            time.sleep(0.01)
        time.sleep(0.2)  # it has stopped to listen, and waits
        assert not any(future.done() for future in taken)
        hold.go.set()
        assert [future.result().status_code for future in taken] == [200] * 4
    with pytest.raises(httpx.ConnectError):
        post(address)


def test_a_model_that_vanishes_is_a_503_until_it_is_back(registry: Registry, address: str, tmp_path: Path) -> None:
    assert httpx.get(f"{address}/ready").json() == {"status": "ready", "models": {"first": "to be loaded"}}
    expected = post(address).json()
    assert httpx.get(f"{address}/ready").json()["models"] == {"first": "loaded"}
    weights = tmp_path / "first" / storage.WEIGHTS
    weights.rename(tmp_path / "away")
    answer = post(address)
    assert answer.status_code == 503
    assert answer.json() == {"error": "the model first cannot be loaded: the server's log says why"}
    assert httpx.get(f"{address}/ready").status_code == 503
    assert httpx.get(f"{address}/health").status_code == 200
    (tmp_path / "away").rename(weights)
    assert post(address).json() == expected
    assert httpx.get(f"{address}/ready").status_code == 200


def test_weights_that_are_no_numbers_are_told_as_what_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = directory(tmp_path / "first")
    made = model()
    made.output.weight.data[5] = float("nan")
    storage.save(made, place)
    said = "has values that are no numbers (NaN or infinite)"
    with running(Registry([place]), ServeConfig()) as (address, _):
        assert post(address).status_code == 503
        assert said in caplog.text
        answer = httpx.post(f"{address}/explore/api/translate", json={"text": "a"})
        assert answer.status_code == 503
        assert said in answer.json()["error"]
        # Numbers that become none on the way.
        made.output.weight.data.fill_(3e38)
        storage.save(made, place)
        answer = post(address)
        assert (answer.status_code, answer.json()) == (503, {"error": f"the model first cannot be used: {DAMAGED}"})
        looks = {"source": [9, 10, 11, 2], "target": [9, 2]}
        for route in ("score", "measures", "faithfulness"):
            answer = httpx.post(f"{address}/explore/api/{route}", json=looks)
            assert (answer.status_code, answer.json()) == (503, {"error": DAMAGED}), route
        last = httpx.post(f"{address}/explore/api/translate", json={"text": "a"}).text.splitlines()[-1]
        assert json.loads(last) == {"kind": "error", "error": DAMAGED}
        storage.save(model(), place)
        assert post(address).status_code == 200


def test_a_mistake_of_ours_is_a_500_without_its_story(
    registry: Registry, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = "what a client has said"

    def broken(asks: object, settings: object) -> None:
        raise RuntimeError(words)

    translator = registry.get().predictor()
    translator.answers = broken  # type: ignore[method-assign, assignment]
    answer = post(address)
    assert (answer.status_code, answer.json()) == (500, {"error": "internal error"})
    del translator.answers
    assert post(address).status_code == 200
    assert "RuntimeError in /translate" in caplog.text
    assert words not in caplog.text


def test_the_log_says_how_it_went_and_not_what_was_said(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="regard.serving")
    with running(registry) as (address, _):
        assert post(address).status_code == 200
        httpx.get(f"{address}/a%0Asecret?q=secret")
        httpx.post(f"{address}/translate?q=secret", data={"source": "secret", "target": "es"})
    lines = [record.getMessage() for record in caplog.records if record.name == "regard.serving"]
    assert [line.split(" ms")[0].rsplit(" ", 1)[0] for line in lines] == [
        "POST /translate 200",
        "GET unknown 404",
        "POST /translate 400",
    ]
    assert lines[0].endswith(f"ms {len(LINES[0])} characters")
    for word in ("secret", *LINES[0].split()[1:]):
        assert word not in " ".join(lines)


def test_a_key_opens_what_is_behind_the_explorer_and_the_metrics(registry: Registry) -> None:
    with running(registry, ServeConfig(api_keys=("one-key",))) as (address, _):
        browser = {"Authorization": "Basic " + b64encode(b":one-key").decode()}
        for path in ("/metrics", "/explore/", "/explore/api/models"):
            closed = httpx.get(address + path)
            assert (closed.status_code, list(closed.json())) == (401, ["error"]), path
            assert closed.headers["WWW-Authenticate"].startswith("Basic")
            for wrong in ("Basic !", "Basic é", "Bearer other", "Digest one-key", "Bearer é"):
                assert httpx.get(address + path, headers={"Authorization": wrong.encode()}).status_code == 401
            for right in (browser, {"Authorization": "Bearer one-key"}):
                assert httpx.get(address + path, headers=right).status_code == 200
        for path in ("/health", "/ready", "/docs", "/spec"):
            assert httpx.get(address + path).status_code == 200


def test_wrong_keys_slow_their_sender_down_and_nobody_else(registry: Registry) -> None:
    with running(registry, ServeConfig(api_keys=("one-key", "two-key"))) as (address, _):

        def ask(key: str, sender: str, path: str = "/v1/models") -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": sender}
            return httpx.get(address + path, headers=headers)

        assert ask("one-key", "192.0.2.1").status_code == 200
        wrong = [ask(f"guess-{n}", "192.0.2.1") for n in range(GUESSES + 5)]
        assert [each.status_code for each in wrong] == [401] * GUESSES + [429] * 5
        assert 1 <= int(wrong[-1].headers["Retry-After"]) <= 60 / GUESSES + 1
        assert wrong[-1].json()["error"]["type"] == "rate_limit_error"
        for path in ("/explore/", "/metrics"):
            assert ask("guess", "192.0.2.1", path).status_code == 429
        assert ask("two-key", "192.0.2.1").status_code == 429  # it might be one more guess
        assert ask("one-key", "192.0.2.1").status_code == 200  # and this was right before
        assert {ask(key, "192.0.2.2").status_code for key in ("one-key", "two-key") * GUESSES} == {200}
        # Of IPv6, a client has a whole network.
        six = [ask("guess", f"2001:db8::{n}").status_code for n in range(1, GUESSES + 2)]
        assert six == [401] * GUESSES + [429]
        assert ask("guess", "2001:db8:0:1::1").status_code == 401


def test_keys_that_were_right_are_remembered_in_bounds() -> None:
    door = Doorkeeper(ServeConfig(api_keys=("k",)))
    for n in range(REMEMBERED + 10):
        assert door._fits(b"k", str(n))
        assert not door._fits(b"x" * 1000, str(n))
    assert len(door._right) == len(door._guesses._saved) == REMEMBERED


def test_pages_of_other_origins_may_ask_only_where_that_is_said(registry: Registry, address: str) -> None:
    there = {"Origin": "http://other.example"}
    assert "access-control-allow-origin" not in httpx.get(f"{address}/health", headers=there).headers
    with running(registry, ServeConfig(explorer=False, cors=("http://other.example",))) as (other, _):
        answer = httpx.get(f"{other}/health", headers=there)
        assert answer.headers["access-control-allow-origin"] == "http://other.example"
        elsewhere = httpx.get(f"{other}/health", headers={"Origin": "http://third.example"})
        assert "access-control-allow-origin" not in elsewhere.headers
        late = httpx.post(f"{other}/translate", json={}, headers=there)
        assert (late.status_code, late.headers["access-control-allow-origin"]) == (400, "http://other.example")


def test_a_rate_is_saved_up_and_forgotten() -> None:
    now = 0.0
    rate = Rate(60, clock=lambda: now)
    assert [rate.wait("a") for _ in range(61)] == [0.0] * 60 + [1.0]
    now = 0.5
    assert rate.wait("a") == pytest.approx(0.5)
    now = 3.0
    assert [rate.wait("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert rate.wait("a") > 0
    now = 1e9
    assert [rate.wait("a") for _ in range(61)][-1] > 0  # no more than a minute's worth
    for client in range(REMEMBERED + 10):
        rate.wait(str(client))
    assert len(rate._saved) == REMEMBERED


def test_keys_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one # of mine\n\n# two\nthree\n")
    assert read_keys(file, {"REGARD_API_KEYS": "four, one"}) == ("four", "one", "three")
    assert read_keys(None, {}) == ()
    for content, message in (
        (b"# none\n", "has no key"),
        (b"\xff", "no text in UTF-8"),
        (b"a b\n", "ASCII without spaces"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_keys(file, {})
    with pytest.raises(OSError, match="No such file"):
        read_keys(tmp_path / "nowhere", {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": 70_000}, "port = 70000"),
        ({"queue": 0}, "queue = 0: it must be at least 1"),
        ({"rate": 0}, "rate = 0"),
        ({"seconds": 0.0}, "seconds = 0.0"),
        ({"seconds": float("nan")}, "seconds = nan"),
        ({"seconds": float("inf")}, "seconds = inf"),
        ({"wait_ms": -1.0}, "wait_ms = -1.0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServeConfig(**changes)  # type: ignore[arg-type]
