"""Who may ask, how often, and how much may be sent: keys, rates, and the gate that every request passes."""

import asyncio
import base64
import hashlib
import ipaddress
import logging
import secrets
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.config import ServeConfig
from regard.serving.errors import INFERENCE, ClientGoneError, RefusalError, response
from regard.serving.metrics import Metrics
from regard.serving.names import Names

LOG = logging.getLogger("regard.serving")
REMEMBERED = 10_000  # keys and addresses whose rate is known
GUESSES = 10  # wrong keys that an address may offer in a minute
HEADERS = {  # of every answer that has no other
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
GONE = 499  # no status of HTTP's: what the log says of a client that did not wait


class Rate:
    """So many requests a minute for each client, of which it may have saved up a minute's worth.

    >>> now = 0.0
    >>> rate = Rate(2, clock=lambda: now)
    >>> [rate.wait("me"), rate.wait("me"), rate.wait("me"), rate.wait("you")]
    [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self.clock = per_minute, clock
        self._saved: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> requests left, when

    def wait(self, client: str) -> float:
        """Seconds until this client may ask; 0: now, and that request is counted."""
        now = self.clock()
        left, then = self._saved.pop(client, (float(self.per_minute), now))
        left = min(self.per_minute, left + (now - then) * self.per_minute / 60)
        allowed = left >= 1
        self._saved[client] = left - allowed, now
        if len(self._saved) > REMEMBERED:
            self._saved.popitem(last=False)
        return 0.0 if allowed else (1 - left) * 60 / self.per_minute

    def back(self, client: str) -> None:
        """That request does not count."""
        if client in self._saved:
            left, then = self._saved[client]
            self._saved[client] = left + 1, then


class Doorkeeper:
    """Asks for a key where there are any, and sends away who asks too often, or offers too many wrong keys.

    Who has offered too many is not told whether the next is right: else guessing would go on. But others may share the
    address, behind a proxy for instance: a key that was right from there before is let in at any time.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._keys = [key.encode() for key in config.api_keys]
        self._guesses, self._right = Rate(GUESSES), OrderedDict[tuple[str, bytes], None]()
        self._rate = None if config.rate is None else Rate(config.rate)

    def admit(self, request: Request, key: str | None = None) -> None:
        """Let a request in or refuse it; `key` is one that came in its body."""
        libre = not request.url.path.startswith(
            ("/v1", "/explore", "/metrics", "/models", *INFERENCE)
        )  # where 401 is not known
        key = key or offered(request.headers.get("authorization", ""))
        address = client(request)
        if self._keys:
            challenge = {} if libre else {"WWW-Authenticate": 'Basic realm="regard"'}  # a browser asks the person
            if not key:
                message = "a key is required: send it as `api_key`, or as `Authorization: Bearer KEY`"
                raise RefusalError(400 if libre else 401, message, reason="key", headers=challenge)
            if not self._fits(key.encode("utf-8", "replace"), address):  # JSON can spell half a character
                code = None if libre else "invalid_api_key"
                raise RefusalError(403 if libre else 401, "invalid API key", reason="key", code=code, headers=challenge)
        rate = None if request.method == "GET" else self._rate
        if rate and (wait := rate.wait(f"key {key}" if self._keys else address)):
            raise _slower(wait, f"{rate.per_minute} requests a minute are allowed", "rate")

    def _fits(self, key: bytes, address: str) -> bool:
        seen = address, hashlib.sha256(key).digest()
        if seen in self._right:
            self._right.move_to_end(seen)
            return True
        if wait := self._guesses.wait(address):
            raise _slower(wait, f"{GUESSES} wrong keys a minute are allowed", "key")
        if not any(secrets.compare_digest(key, known) for known in self._keys):
            return False
        self._guesses.back(address)
        self._right[seen] = None
        if len(self._right) > REMEMBERED:
            self._right.popitem(last=False)
        return True

    async def guard(self, request: Request) -> None:
        """The same, for routes whose key comes in a header."""
        self.admit(request)


def _slower(wait: float, message: str, reason: str) -> RefusalError:
    headers = {"Retry-After": str(int(wait) + 1)}
    return RefusalError(429, f"slow down: {message}", reason=reason, code="rate_limit_exceeded", headers=headers)


def client(request: Request) -> str:
    """Who asks: an address, or of IPv6 the network, in which one client has as many addresses as it likes."""
    host = request.client.host if request.client else ""
    return str(ipaddress.IPv6Network((host.partition("%")[0], 64), strict=False)) if ":" in host else host


def offered(authorization: str) -> str | None:
    """The key in an `Authorization` header: a bearer token, or the password that a browser has asked for.

    >>> offered("Bearer one-key"), offered("Basic " + base64.b64encode(b"me:one-key").decode()), offered("Basic ?")
    ('one-key', 'one-key', None)
    """
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value.strip()).decode().partition(":")[2]
        except ValueError:  # no base64, or no text
            return None
    elif scheme.lower() != "bearer":
        return None
    return value.strip() or None


class Gate:
    """What every request passes on its way in and out.

    Its body is read, up to a limit of size and of time, before anything else is done. Whatever goes wrong further in
    is answered without a traceback. Of each request the log and the metrics keep how it went, and nothing that it said.
    """

    def __init__(self, app: ASGIApp, *, config: ServeConfig, metrics: Metrics, sees: bool = False) -> None:
        self.app, self.config, self.metrics, self.names, self.sees = app, config, metrics, Names(config), sees

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                body = await self._body(scope, receive)
                self.names.check(scope)
                await self.app(scope, _after(body, receive), sending)
            except RefusalError as refusal:
                self.metrics.refused.labels(refusal.reason).inc()
                await response(scope["path"], refusal)(scope, receive, sending)
        except ClientGoneError:
            status = GONE
        except Exception as error:
            LOG.error("%s", told(error, scope))
            if not status:
                await response(scope["path"], RefusalError(500, "internal error"))(scope, receive, sending)
        finally:
            self._note(scope, status, time.perf_counter() - begin)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        large = self.sees or scope["path"].startswith("/v1/audio/")
        limit = self.config.upload if large else self.config.body
        close = {"Connection": "close"}  # what is still coming is not read
        headers = dict(scope["headers"])
        size = headers.get(b"content-length", b"")
        if size and b"transfer-encoding" in headers:  # where a request ends, a proxy may see otherwise
            raise RefusalError(400, "a request has either Content-Length or Transfer-Encoding", headers=close)
        body, too_large = bytearray(), size.isdigit() and int(size) > limit
        try:
            async with asyncio.timeout(self.config.seconds):
                more = True
                while more and not too_large:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    body += message.get("body", b"")
                    more, too_large = message.get("more_body", False), len(body) > limit
        except TimeoutError:
            late = f"the request did not arrive within {self.config.seconds:g} seconds"
            raise RefusalError(408, late, reason="slow", headers=close) from None
        if too_large:
            raise RefusalError(413, f"the request exceeds {limit:,} bytes", reason="size", headers=close)
        return bytes(body)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = scope["method"], _route(scope)
        known = method if method in ("GET", "POST", "OPTIONS", "HEAD") else "other"
        self.metrics.requests.labels(known, route, str(status)).inc()
        self.metrics.latency.labels(known, route).observe(seconds)
        characters = scope.get("state", {}).get("characters")
        said = "" if characters is None else f" {characters} characters"
        LOG.info("%s %s %d %.1f ms%s", known, route, status, seconds * 1e3, said)


def told(error: Exception, scope: Scope) -> str:
    """What the log says of a mistake of ours: its kind and its place. Its message may quote the request."""
    place = "".join(traceback.format_tb(error.__traceback__)[-5:])
    return f"{type(error).__name__} in {_route(scope)}\n{place.rstrip()}"


def _route(scope: Scope) -> str:
    """The route that a request has taken, not its path: that is the client's to choose."""
    return getattr(scope.get("route"), "path", "unknown")


def _after(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, and then what comes after it."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return given.pop() if given else await receive()

    return again
