"""Where a server is reached: it takes its port, or says who has it; before torch is loaded."""

import errno
import ipaddress
import socket

from regard.serving.config import KEYS, ServeConfig


def listen(config: ServeConfig) -> socket.socket:
    """The socket of a server, if it may and can have it."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ValueError(f"there is no address {config.host!r} on this machine: use 127.0.0.1, or 0.0.0.0") from None
    family, _, _, _, place = found[0]
    if not (ipaddress.ip_address(place[0]).is_loopback or config.api_keys or config.anyone):
        raise ValueError(
            f"{config.host} can be reached from other machines, and there is no API key: name a file of keys with "
            f"--keys, set {KEYS}, or say --anyone to serve without"
        )
    try:
        return socket.create_server(place[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port {config.port} of {config.host} is in use: choose another with --port, 0 for any"
            ) from None
        raise ValueError(f"cannot listen on port {config.port} of {config.host}: {error.strerror}") from None


def address(door: socket.socket) -> str:
    """Where a socket is reached."""
    host, port = door.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
