"""Files that are whole or not there: written beside their place, on to the disk, then renamed. Files that can be read
whole, and directories for one process at a time. And where caches are."""

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LARGEST = 2**28  # bytes that are read at once; a tokenizer.json of a quarter of a million tokens has 2^24
HOUR, WEEK = 3600, 7 * 24 * 3600  # seconds
LEFT = re.compile(r"\.[0-9a-f]{16}\.tmp|\.saving")  # what a process that is killed leaves of a file, or of a model
_mine: dict[tuple[int, int], int] = {}  # directories that a thread of this process has for itself


def write_whole(path: str | os.PathLike[str], content: str | bytes | Iterator[bytes]) -> None:
    """Write a file whole or not at all, creating its directories; text is UTF-8, and what is large comes in parts.

    >>> with tempfile.TemporaryDirectory() as runs:
    ...     write_whole(f"{runs}/quickstart/recipe.yaml", "train: {}")
    ...     os.listdir(f"{runs}/quickstart")
    ['recipe.yaml']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, f".{'?' * 16}.tmp", HOUR)
    partial = path.with_name(f".{secrets.token_hex(8)}.tmp")  # beside it, where os.replace is atomic
    try:
        with partial.open("wb") as file:
            content = content.encode() if isinstance(content, str) else content
            file.writelines([content] if isinstance(content, bytes) else content)
        sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_whole(path: str | os.PathLike[str], most: int = LARGEST) -> bytes:
    """The bytes of a file that may have at most so many."""
    if (size := regular_size(path)) > most:
        raise ValueError(f"{path} has {size:,} bytes: what it should be has at most {most:,}")
    with open(path, "rb") as file:
        return file.read(most)


def digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular_size(path: str | os.PathLike[str]) -> int:
    """The size of a file. What is none is refused: a pipe, where one may wait for ever, a device, which has no end."""
    about = os.stat(path)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path} is no file, but a pipe or a device: name a file")
    return about.st_size


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
    if place.exists() and not (place.is_dir() and vacant(place)):
        raise ValueError(f"{path} is already there: name a new directory, or remove it first")
    hidden = place.with_name(f".{place.name}.new")
    with alone_in(hidden, called=place):
        try:
            made = hidden / place.name  # one level down: `hidden` itself is closed to other users
            shutil.rmtree(made, ignore_errors=True)  # left by a process that was killed
            hidden.chmod(0o700)
            made.mkdir()
            yield made
            for file in [*made.rglob("*"), made]:
                sync(file)
            for left in place.iterdir() if place.exists() else ():
                discard(left)
            os.rename(made, place)
            sync(place.parent)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def common_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory to write into, as `new_directory`, that several processes may make at once: the first one's stays."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place.parent, ".making-*")
    with tempfile.TemporaryDirectory(prefix=".making-", dir=place.parent) as hidden:
        made = Path(hidden) / place.name
        made.mkdir()
        yield made
        for file in [*made.rglob("*"), made]:
            sync(file)
        try:
            made.rename(place)
        except OSError:
            if not place.exists():
                raise
        sync(place.parent)


def vacant(directory: Path, besides: str = "") -> bool:
    """Whether a directory is empty `besides` names that begin so, and what a process that was killed has left."""
    names = [path.name for path in directory.iterdir()]
    return all(LEFT.fullmatch(name) or (besides and name.startswith(besides)) for name in names)


@contextmanager
def alone_in(directory: Path, called: Path | None = None) -> Iterator[None]:
    """Have a directory, made if need be, for this thread: meanwhile another process, or thread, is refused.

    The lock is on the directory itself and ends with the process, however that ends: it leaves no trace. A directory
    that was made for this, and is still empty, goes again. Some networks' file systems have no such locks.
    """
    made = not directory.exists()
    while True:
        with suppress(FileExistsError):
            directory.mkdir(parents=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # which refuses a file of that name
        key = os.fstat(handle).st_dev, os.fstat(handle).st_ino
        if _mine.get(key) == threading.get_ident():  # within another such block
            os.close(handle)
            yield
            return
        if not lock(handle):
            os.close(handle)
            where = called or directory
            raise ValueError(f"another process is at work in {where}: wait for its end, or choose another place")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(directory), os.fstat(handle)):
                break
        os.close(handle)  # removed by who had it before, between the opening and the lock
    _mine[key] = threading.get_ident()
    try:
        yield
    finally:
        del _mine[key]
        if made:
            with suppress(OSError):  # it is not empty
                directory.rmdir()
        os.close(handle)


def lock(handle: int) -> bool:
    """Lock what a handle stands for until it is closed; False if another one has it."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # there are no locks here
            pass
    return True


def discard(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


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


def sweep(folder: Path, pattern: str, age: float = WEEK) -> None:
    """Remove what has been there so long under a temporary name: a process that was killed has left it."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process was first
            if time.time() - path.stat().st_mtime > age:
                discard(path)
