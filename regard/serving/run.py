"""A server that runs; when it is told to stop it finishes what it took."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.app import create_app
from regard.serving.config import ServeConfig
from regard.serving.door import address
from regard.serving.registry import Registry

LEAST = 2**16  # bytes of an answer that a client takes while it is waited for
GRACE = 5.0  # seconds that a last answer may take beyond the limit for a request


class Connection(H11Protocol):
    """One that sends at once, and does not wait for ever: a head comes in time, or never, and an answer is read."""

    patience = 60.0  # seconds, between requests as well

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._waits: dict[str, asyncio.TimerHandle] = {}  # for a head, for an answer to be taken
        # asyncio does so only where it has made the socket itself. An answer is two small packets: without it, the
        # second waits for the first to be acknowledged, which a client may put off by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait("head", self.transport.close)

    def data_received(self, data: bytes) -> None:
        """Read on; as soon as there is a request, its time is the application's matter."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("head")
        elif "head" not in self._waits:
            self._wait("head", self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop("head")
        self._stop("answer")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for the client to take what was sent: until then it fills our memory."""
        super().pause_writing()
        self._offer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has."""
        super().resume_writing()
        self._stop("answer")

    def _offer(self, size: int) -> None:
        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left > size - LEAST:
                self.transport.abort()
            else:
                self._offer(left)

        self._wait("answer", look)

    def _wait(self, what: str, late: Callable[[], None]) -> None:
        self._waits[what] = self.loop.call_later(self.patience, late)

    def _stop(self, what: str) -> None:
        if what in self._waits:
            self._waits.pop(what).cancel()


class Server(uvicorn.Server):
    """One that says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()


def serve(
    paths: Sequence[Path],
    config: ServeConfig,
    door: socket.socket,
    *,
    ready: Callable[[str, Registry], None] = lambda address, registry: None,
    **how: Any,
) -> None:
    """Serve models at a door of `listen` until told to stop; `ready` is called with the address when it can be asked.

    `how` models are loaded: the keyword arguments of `regard.load`.
    """
    with door:
        registry = Registry(paths, config.loras, **how)
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
        server(create_app(registry, config), config, lambda: ready(address(door), registry)).run([door])


def server(app: FastAPI, config: ServeConfig, ready: Callable[[], None]) -> Server:
    """What runs an application on a socket: `server(...).run([socket])`."""
    settings = uvicorn.Config(
        app,
        http=type("Connection", (Connection,), {"patience": config.seconds}),
        log_config=None,
        log_level="warning",
        access_log=False,  # it would quote addresses, in which texts may stand
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=int(config.seconds + GRACE),
    )
    return Server(settings, ready)
