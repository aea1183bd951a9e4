"""Where a request ends is beyond doubt: what a proxy might read otherwise is refused, and its connection closed."""

import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from tests.serving.servers import directory, running

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = GET + b"Connection: close\r\n\r\n"  # a second request, in what may be the body of the first
CHUNKED = b"0\r\n\r\n" + HIDDEN


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    registry = Registry([directory(tmp_path_factory.mktemp("models") / "first")])
    with running(registry, ServeConfig(seconds=5.0)) as (address, _):
        yield address


def answers(address: str, data: bytes) -> list[int]:
    """The status of each answer until the connection is closed."""
    place, got = urlsplit(address), b""
    with socket.create_connection((place.hostname, place.port), timeout=20) as door:
        door.sendall(data)
        try:
            while piece := door.recv(65536):
                got += piece
        except ConnectionResetError:
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", got)]


def post(*headers: bytes, version: bytes = b"1.1", end: bytes = b"\r\n") -> bytes:
    lines = [b"POST /translate HTTP/" + version, b"Host: localhost", b"Content-Type: application/json", *headers]
    return end.join([*lines, b"", b""])


def test_a_request_that_is_measured_twice_closes_its_connection(address: str) -> None:
    for length in (b"0", b"5", str(len(CHUNKED)).encode()):
        both = [b"Content-Length: " + length, b"Transfer-Encoding: chunked"]
        for headers in (both, both[::-1]):
            assert answers(address, post(*headers) + CHUNKED) == [400], headers
    assert answers(address, GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED) == [400]


@pytest.mark.parametrize(
    "headers",
    [
        [b"Content-Length: 0", b"Content-Length: 50"],
        [b"Content-Length: 0, 50"],
        [b"Content-Length: +0"],
        [b"Content-Length: -1"],
        [b"Content-Length: 0x0"],
        [b"Content-Length: 0_0"],
        [b"Content-Length:"],
        [b"Content-Length: 99999999999999999999999"],
        [b"Content-Length : 0"],
        [b"Transfer-Encoding : chunked"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding:\x0bchunked"],
        [b"Transfer-Encoding:", b" chunked", b"Content-Length: 0"],
        [b"X: y", b" Content-Length: 50", b"Content-Length: 0", b"Transfer-Encoding: chunked"],
        [b"X: y\rContent-Length: 50"],
        [b"X: y\0"],
        [b" X: y"],
    ],
    ids=repr,
)
def test_what_could_be_read_in_two_ways_is_refused(address: str, headers: list[bytes]) -> None:
    found = answers(address, post(*headers) + CHUNKED)
    assert found
    assert {*found} <= {400, 413, 501}, "a second request was found in the first"


@pytest.mark.parametrize(
    "chunks",
    [
        b"5;a=b\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"ffffffffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_chunks_end_where_they_say(address: str, chunks: bytes) -> None:
    found = answers(address, post(b"Transfer-Encoding: chunked") + chunks + HIDDEN)
    assert found in ([400], [400, 200], [413])  # `hello` is no JSON; then the second request is one


def test_requests_one_after_the_other_are_answered_in_their_order(address: str) -> None:
    fine = post(b"Content-Length: 2") + b"{}"
    unknown = HIDDEN.replace(b"/health", b"/nowhere")
    assert answers(address, GET + b"\r\n" + fine + GET + b"\r\n" + unknown + GET + b"\r\n") == [200, 400, 200, 404]


def test_a_head_has_its_limits(address: str) -> None:
    assert answers(address, post(b"X: " + b"y" * 2_000_000)) == [400]
    assert answers(address, b"".join([b"GET /health HTTP/1.1\r\n", *[b"X: y\r\n"] * 20_000])) == [400]
    assert answers(address, HIDDEN) == [200]
