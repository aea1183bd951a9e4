"""Which requests are meant for this server: those that call it by its name, and not those of other people's pages.

A browser lets a page ask the host that the page came from, and goes by the host's name. So whoever owns a name can let
it point to 127.0.0.1 once the page is loaded, and have the page ask a server that listens to its own machine alone. The
name that was asked for stands in `Host`, where no page can change it.
"""

import ipaddress
import socket

from starlette.types import Scope

from regard.serving.config import ServeConfig, host_name
from regard.serving.errors import RefusalError

OWN = ("localhost", "127.0.0.1", "::1")
SAFE = ("GET", "HEAD", "OPTIONS")  # methods that ask for no work


class Names:
    """What a server is called, and which other origins may ask it."""

    def __init__(self, config: ServeConfig) -> None:
        self.cors = config.cors
        # Who has no key is told nothing: there, any name will do.
        self.any = bool(config.api_keys) or "*" in config.host_names
        self.known = {*OWN, config.host.lower(), *map(host_name, config.host_names)}
        # One that is there for other machines has as many addresses as they have ways to it; but no page can come
        # from an address that is not its own.
        self.addresses = not is_loopback(config.host)
        if self.addresses:
            self.known.add(socket.gethostname().lower())

    def check(self, scope: Scope) -> None:
        """Refuse a request that is meant for another server, or that a page of another origin sends unasked."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "localhost")  # HTTP/1.0 may leave it out, and no browser does
        name = host_name(host)
        if not (self.any or name in self.known or (self.addresses and name and is_address(name))):
            message = f"this server is not called {host[:100]!r}: ask for localhost, or start it with --host-name NAME"
            raise RefusalError(421, message, reason="host", code="unknown_host")
        if scope["method"] not in SAFE and self.foreign(host, headers):
            message = f"pages of {headers.get(b'origin', 'other origins')[:100]} may not ask: allow it with --cors"
            raise RefusalError(403, message, reason="origin", code="unknown_origin")

    def foreign(self, host: str, headers: dict[bytes, str]) -> bool:
        """Whether a page of another origin asks. Its browser would not show it the answer, but let us work for it."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if {"*", origin} & {*self.cors}:
            return False
        if origin and "-extension://" in origin:  # not a page's: the person has installed it
            return False
        if site is not None:  # newer browsers know what a proxy may hide
            return site not in ("same-origin", "none")
        return origin is not None and origin.partition("://")[2] != host


def is_address(name: str) -> bool:
    """Whether a host is named by an address."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a host, by its name or address, is this machine alone."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
