"""A server that asks for no key is asked by its own names alone, and by nobody's page but its own."""

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from regard.serving.config import ServeConfig
from regard.serving.errors import RefusalError
from regard.serving.names import Names
from regard.serving.registry import Registry
from tests.serving.servers import directory, running
from tests.serving.toys import LINES

FINE = {"q": LINES[0], "source": "en", "target": "es"}
PATHS = ("/health", "/explore/", "/explore/api/models", "/v1/models", "/metrics", "/docs", "/", "/nowhere")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return Registry([directory(tmp_path_factory.mktemp("models") / "first")])


@pytest.fixture(scope="module")
def address(registry: Registry) -> Iterator[str]:
    with running(registry, ServeConfig(host_names=("Translate.example.org",))) as (address, _):
        yield address


def status(config: ServeConfig, host: str, method: str = "GET", **headers: str) -> int:
    named = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {"method": method, "headers": [(name.encode(), value.encode()) for name, value in named.items()]}
    try:
        Names(config).check(scope)
    except RefusalError as refusal:
        return refusal.status
    return 200


def test_it_answers_to_its_own_names_and_those_it_is_given(address: str) -> None:
    port = urlsplit(address).port
    for name in ("localhost", "LOCALHOST", "localhost.", "127.0.0.1", "[::1]", "translate.example.org"):
        for host in (name, f"{name}:{port}", f"{name}:80"):  # a tunnel has a port of its own
            assert httpx.get(f"{address}/health", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example.localhost",
        "10.0.0.1",
        "0.0.0.0:{port}",
        "127.0.0.2",
        "localhost@evil.example",
        "[::1",
        "a b",
        "",
        ".",
        "evil.example#localhost",
    ],
)
def test_any_other_is_told_so_in_the_form_of_each_api(address: str, host: str) -> None:
    host = host.format(port=urlsplit(address).port)
    for path in PATHS:
        answer = httpx.get(address + path, headers={"Host": host})
        assert answer.status_code == 421
        error = answer.json()["error"]
        message = error["message"] if path.startswith("/v1") else error
        assert f"this server is not called {host!r}" in message
        assert "\n" not in message
    for path in ("/translate", "/detect", "/v1/completions", "/explore/api/translate"):
        assert httpx.post(address + path, json=FINE, headers={"Host": host}).status_code == 421
    answer = httpx.get(f"{address}/v1/models", headers={"Host": host})
    assert answer.json()["error"]["code"] == "unknown_host"


def test_who_names_no_host_is_no_browser(address: str) -> None:
    place = urlsplit(address)
    for request, expected in ((b"GET /health HTTP/1.0\r\n\r\n", b"200"), (b"GET /health HTTP/1.1\r\n\r\n", b"400")):
        with socket.create_connection((place.hostname, place.port), timeout=30) as door:
            door.sendall(request)
            assert door.recv(100).split()[1] == expected


def test_which_names_are_its_own_hangs_on_where_it_listens() -> None:
    evil = "evil.example:8000"
    assert status(ServeConfig(api_keys=("k",)), evil) == 200  # who has no key is told nothing
    assert status(ServeConfig(host_names=("*",)), evil) == 200
    assert status(ServeConfig(host="::1"), "[::1]:8000") == 200
    assert status(ServeConfig(host="127.0.0.5"), "127.0.0.5") == 200
    for host in ("0.0.0.0", "::", "192.0.2.7", "host.example"):
        config = ServeConfig(host=host, anyone=True)
        assert status(config, evil) == 421
        for name in ("192.0.2.7", "[2001:db8::1]:8000", socket.gethostname(), "localhost:8000"):
            assert status(config, name) == 200, (host, name)
    assert status(ServeConfig(host="host.example", anyone=True), "Host.Example:80") == 200


def test_a_page_of_another_origin_does_not_make_it_work(address: str) -> None:
    place = urlsplit(address).netloc
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for foreign in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": f"http://{place}", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        for path in ("/translate", "/detect", "/v1/embeddings", "/explore/api/page"):
            answer = httpx.post(address + path, content=b"q=a&source=en&target=es", headers=form | foreign)
            assert answer.status_code == 403
            assert "--cors" in json.dumps(answer.json())
        assert httpx.get(f"{address}/health", headers=foreign).status_code == 200
    for own in (
        {},
        {"Origin": f"http://{place}"},
        {"Origin": "https://behind.a.proxy.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "moz-extension://0123"},
        {"Origin": "chrome-extension://0123", "Sec-Fetch-Site": "none"},
    ):
        assert httpx.post(f"{address}/translate", data=FINE, headers=own).status_code == 200


def test_origins_that_are_named_may_ask() -> None:
    there = {"origin": "http://other.example", "sec_fetch_site": "cross-site"}
    for cors, expected in (
        ((), 403),
        (("http://other.example",), 200),
        (("*",), 200),
        (("http://third.example",), 403),
    ):
        assert status(ServeConfig(cors=cors), "localhost", "POST", **there) == expected
        keyed = ServeConfig(cors=cors, api_keys=("k",))  # which a browser may send by itself, once it was told
        assert status(keyed, "any.example", "POST", **there) == expected


def test_every_answer_has_the_headers_that_keep_a_page_at_home(address: str) -> None:
    for path in PATHS:
        answer = httpx.get(address + path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy, path
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors" in httpx.get(address, headers={"Host": "evil.example"}).headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["", "a b", "http://a", "a/b"])
def test_what_is_no_name_cannot_be_given(name: str) -> None:
    with pytest.raises(ValueError, match="write the name of a host"):
        ServeConfig(host_names=(name,))
