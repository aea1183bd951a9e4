"""How a server behaves: one frozen dataclass, and where its keys come from."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.checks import above, at_least

KEYS = "REGARD_API_KEYS"
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+?)\.?)(?::\d*)?", re.ASCII)  # an address in brackets, or a name


@dataclass(frozen=True)
class ServeConfig:
    """Where a server listens, whom it answers, and how much it takes on: the options of `regard serve`."""

    host: str = "127.0.0.1"  # listen at this address
    port: int = 8000  # and at this port; 0: any that is free
    api_keys: tuple[str, ...] = ()  # one of them is asked for, if there are any
    anyone: bool = False  # without a key, serve other machines, too
    host_names: tuple[str, ...] = ()  # `NAME` answer to this name, too; * is any
    rate: int | None = None  # requests a minute, of each client: of a key, or of an address
    characters: int = 10_000  # of the texts of a request, at most
    tokens: int = 10_000  # sub-words of a request, at most
    megabytes: int = 25  # of a sound, or of a request with pictures, at most
    minutes: float = 60.0  # that a sound goes on for, at most
    seconds: float = 60.0  # for a request, at most, and as much again for its head and for its body to arrive
    queue: int = 256  # requests of a model that wait or are at work, at most; more are sent away
    batch_tokens: int = 2_048  # sub-words that are worked on together
    wait_ms: float = 2.0  # milliseconds that a request waits for company, if any is to be expected
    cors: tuple[str, ...] = ()  # `ORIGIN` let pages of this origin ask; * is any
    explorer: bool = True  # serve the page that shows the models at work
    pictures: tuple[Path, ...] = ()  # `PATH` a picture, or a folder of them, that the page has to choose from
    loras: Path | None = None  # `DIR` serve the LoRAs in it, too, by their names, as they come and go

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port = {self.port}: it is a number from 0 to {2**16 - 1}")
        at_least(1, rate=self.rate, characters=self.characters, tokens=self.tokens)
        at_least(1, queue=self.queue, batch_tokens=self.batch_tokens, megabytes=self.megabytes)
        above(0, minutes=self.minutes)
        for name in self.host_names:
            if name != "*" and host_name(name) is None:
                raise ValueError(f"host_names = {name!r}: write the name of a host, as translate.example.org")
        if not 0 < self.seconds <= 1e6:
            raise ValueError(f"seconds = {self.seconds}: it must be more than 0, and no more than a million")
        if not 0 <= self.wait_ms <= 1e6:
            raise ValueError(f"wait_ms = {self.wait_ms}: it must be at least 0")

    @property
    def body(self) -> int:
        """Bytes of the largest body: a character that a form spells out, such as %F0%9F%90%88, has twelve."""
        return 2**16 + 12 * self.characters

    @property
    def upload(self) -> int:
        """The same where sound or pictures are sent."""
        return self.body + 2**20 * self.megabytes


def host_name(host: str) -> str | None:
    """The name or address in a `Host` header, without its port; None if there is none.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("127.0.0.1"), host_name("a@b")
    ('localhost', '::1', '127.0.0.1', None)
    """
    found = HOST.fullmatch(host.lower())
    return (found[1] or found[2]) if found else None


def read_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """API keys: the lines of a file, where # begins a remark, and REGARD_API_KEYS, where commas are between them.

    >>> read_keys(None, {"REGARD_API_KEYS": "one-key, another"})
    ('one-key', 'another')
    """
    found = [key.strip() for key in environment.get(KEYS, "").split(",")]
    if file is not None:
        try:
            lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
        except UnicodeDecodeError:
            raise ValueError(f"{file} is no text in UTF-8: a file of keys has one in each line") from None
        if not any(lines):
            raise ValueError(f"{file} has no key in it: write one in each line")
        found += lines
    for key in found:
        if not key.isascii() or len(key.split()) > 1:
            raise ValueError("an API key has a character that no header can carry: use ASCII without spaces")
    return tuple(dict.fromkeys(key for key in found if key))
