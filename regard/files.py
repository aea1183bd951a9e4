"""Files that are whole or not there: written beside their place, on to the disk, then renamed. And where caches are."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WEEK = 7 * 24 * 3600  # seconds


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole or not at all, creating its directories; text is UTF-8.

    >>> with tempfile.TemporaryDirectory() as runs:
    ...     write_whole(f"{runs}/quickstart/recipe.yaml", "train: {}")
    ...     os.listdir(f"{runs}/quickstart")
    ['recipe.yaml']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{secrets.token_hex(8)}.tmp")  # beside it, where os.replace is atomic
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory to write into, which gets its name when all of it is on the disk; nothing is overwritten.

    >>> with tempfile.TemporaryDirectory() as runs:
    ...     with new_directory(f"{runs}/new") as directory:
    ...         write_whole(directory / "config.json", "{}")
    ...     os.listdir(runs)
    ['new']
    """
    place = Path(path).absolute()
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ValueError(f"{path} is already there: name a new directory, or remove it first")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as hidden:
        made = Path(hidden) / place.name  # one level down: `hidden` itself is closed to other users
        made.mkdir()
        yield made
        for file in [*made.rglob("*"), made]:
            sync(file)
        os.rename(made, place)
        sync(place.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """Have what was written to a file, or the names in a directory, on the disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Where fetched things are kept."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "regard"


def sweep(folder: Path, pattern: str) -> None:
    """Remove what has been there for a week under a temporary name: a process that was killed has left it."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process was first
            if time.time() - path.stat().st_mtime > WEEK:
                shutil.rmtree(path)
