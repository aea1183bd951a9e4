"""Where pictures and their labels are: folders, archives, tables that name files, arrays.

A row has an `image`, which is opened when it is needed, its `label`, and a `name`, by which it is known and held out:
so a folder may be larger than memory.
"""

import gzip
import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regard.checks import hint
from regard.data.downloads import Held, Progress, Raw
from regard.data.pictures import ENDINGS, Pixels, Source, opened
from regard.data.rows import Row, RowFiles
from regard.data.text import Skipped
from regard.files import digest, regular_size

TAIL = 2**10  # bytes at the end of a file by which, and by its size, it is known again
SAID = 5  # classes that are named
PAIRS = (
    ("images", "labels"),
    ("videos", "labels"),
    ("image", "label"),
    ("x", "y"),
    ("data", "labels"),
)  # of an npz, what is looked for


@dataclass(frozen=True)
class Zipped:
    """A picture in a zip."""

    archive: str
    member: str

    def content(self) -> bytes:
        """The file."""
        archive, lock = _archive(self.archive, os.stat(self.archive).st_mtime_ns)
        with lock:
            return archive.read(self.member)

    def end(self) -> tuple[int, str]:
        """Its size, and a sum of it."""
        about = _archive(self.archive, os.stat(self.archive).st_mtime_ns)[0].getinfo(self.member)
        return about.file_size, str(about.CRC)


@dataclass(frozen=True)
class PictureFiles(RowFiles):
    """Pictures with labels: a folder or a zip with one folder for each class; a tsv, csv or jsonl with the paths of
    files; an npz; or MNIST's idx, whose labels lie beside it. Videos in the same way.

    `columns` says where `image` and `label` stand in a table, or what their arrays in an npz are called.
    """

    ways: ClassVar[tuple[str, ...]] = ("folder", "zip", "tsv", "csv", "jsonl", "npz", "idx")
    parts: ClassVar[tuple[str, ...]] = ("image", "label")
    endings: ClassVar[tuple[str, ...]] = ENDINGS  # of files that are taken from a folder or a zip
    called: ClassVar[str] = "pictures"

    folder: str | None = None  # with one folder for each class
    zip: str | None = None  # the same, packed
    npz: str | None = (
        None  # numpy's arrays: images (N, H, W) or (N, H, W, C), videos (N, T, H, W[, C]), and labels (N,)
    )
    idx: str | None = None  # train-images-idx3-ubyte, .gz if you like; train-labels-idx1-ubyte lies beside it

    @classmethod
    def at(cls, path: str | PathLike[str], columns: Iterable[str] = ()) -> Self:
        """What a file or folder holds, by its name."""
        return cls(idx=str(path)) if "idx3" in Path(path).name else super().at(path, columns)

    def fingerprint(self) -> str:
        """The same for the same pictures, wherever they lie: of files that are named, by their sizes and ends."""
        how = [*sorted(self.columns.items())]
        if self.zip or self.npz:
            return hashlib.sha256(json.dumps([digest(self.path), how]).encode()).hexdigest()
        if self.idx:
            return hashlib.sha256(
                json.dumps([digest(each) for each in (self.idx, _labels(self.idx))]).encode()
            ).hexdigest()
        said = hashlib.sha256(json.dumps(how).encode())
        for row in self.rows():
            said.update(json.dumps([row["name"], row["label"], *file_end(row["image"])]).encode())
        return said.hexdigest()

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The rows, in order; a picture that is named and not there is left out, and counted in `skipped`. So are
        classes without pictures, and pictures that an earlier row gives another label."""
        known = dict[tuple[int, str], tuple[str, Any]]()  # by what a picture is known again: its label
        if skipped is not None and (empty := self._empty()):
            skipped.notes[
                f"classes without {self.called}: {', '.join(empty[:SAID])}{' ...' * (len(empty) > SAID)}"
            ] += len(empty)
        for row in self.rows():
            missing = isinstance(row["image"], str) and not os.path.isfile(row["image"])
            if not missing and str(row["label"]).strip():
                if skipped is not None and _contradicts(known, row):
                    skipped.notes[f"{self.called} that have two labels"] += 1
                yield row
            elif skipped is not None:
                why = "are named, but not there" if missing else "without a label"
                skipped.notes[f"{self.called} {why}"] += 1

    def rows(self) -> Iterator[Row]:
        """All rows."""
        if self.folder:
            return self._folder(Path(self.folder))
        if self.zip:
            return self._zip(self.zip)
        if self.npz or self.idx:
            return self._arrays()
        return self._listed()

    @classmethod
    def takes(cls, name: str) -> bool:
        """Whether a file is one, by its name."""
        return name.lower().endswith(cls.endings) and not name.startswith(".")

    def _listed(self) -> Iterator[Row]:
        regular_size(self.path)  # no pipe: rows are read several times
        base = Path(self.path).parent
        for row in super().rows():
            name, label = (row[part] for part in self.parts)
            if str(name).strip():
                yield {"image": str(base / str(name)), "label": label, "name": str(name)}

    def _empty(self) -> list[str]:
        """Folders of classes that have no picture."""
        if not self.folder or not os.path.isdir(self.folder):
            return []
        walks = ((each, os.walk(each)) for each in _classes(Path(self.folder)))
        return [
            each.name for each, walk in walks if not any(self.takes(name) for _, _, names in walk for name in names)
        ]

    def _folder(self, folder: Path) -> Iterator[Row]:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: name one that has a folder for each class")
        found = False
        for label in _classes(folder):
            for place, folders, names in os.walk(label):
                folders[:] = sorted(each for each in folders if not each.startswith("."))
                for name in sorted(filter(self.takes, names)):
                    path, found = Path(place) / name, True
                    yield {"image": str(path), "label": label.name, "name": path.relative_to(folder).as_posix()}
        if not found:
            loose = sum(self.takes(each.name) for each in folder.iterdir())
            there = f"{loose:,} {self.called}, but not in folders" if loose else f"no {self.called[:-1]} in any folder"
            raise ValueError(f"{folder} has {there}: it has one folder for each class, with its {self.called}")

    def _zip(self, path: str) -> Iterator[Row]:
        try:
            names = _archive(path, os.stat(path).st_mtime_ns)[0].namelist()
        except (zipfile.BadZipFile, OSError) as error:
            raise ValueError(f"{path} is no zip: {error}") from None
        inside = sorted(name for name in names if self.takes(PurePosixPath(name).name) and "__MACOSX" not in name)
        top = {name.split("/")[0] for name in inside}
        depth = int(len(top) == 1 and all(name.count("/") > 1 for name in inside))  # all of it in one folder
        if not inside or any(name.count("/") <= depth for name in inside):
            some = f"{len(inside):,} {self.called}"
            raise ValueError(f"{path} has {some}: it has one folder for each class, with its {self.called}")
        for name in inside:
            yield {"image": Zipped(path, name), "label": name.split("/")[depth], "name": name}

    def _arrays(self) -> Iterator[Row]:
        if self.idx:
            images, labels = read_idx(self.idx), read_idx(_labels(self.idx))
        else:
            images, labels = self._of_npz(str(self.npz))
        if images.ndim not in (3, 4, 5) or images.dtype != np.uint8:
            raise ValueError(
                f"{self.path}: images are {images.dtype} {images.shape}, not uint8 (N, H, W) or (N, H, W, C), nor "
                "videos (N, T, H, W) or (N, T, H, W, C)"
            )
        labels = labels.reshape(-1)
        if len(images) != len(labels):
            raise ValueError(f"{self.path} has {len(images):,} images and {len(labels):,} labels: they belong together")
        for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            label = label.decode() if isinstance(label, bytes) else label
            yield {"image": image, "label": label, "name": str(i)}

    def _of_npz(self, path: str) -> tuple[NDArray[Any], NDArray[Any]]:
        try:
            with np.load(path, allow_pickle=False) as held:
                names = held.files
                known = next((pair for pair in PAIRS if set(pair) <= set(names)), ("images", "labels"))
                wanted = [str(self.columns.get(part, name)) for part, name in zip(self.parts, known, strict=True)]
                for part, name in zip(self.parts, wanted, strict=True):
                    if name not in names:
                        raise ValueError(f"no array {name!r} for {part}: {hint(name, names)}, by columns")
                images, labels = (held[name] for name in wanted)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
        return images, labels


@dataclass(frozen=True)
class PictureArrays(Raw):
    """Raw pictures of one size, in MNIST's files, or as PNGs with a picture in each line."""

    parts: dict[str, dict[str, Any]]  # split -> members: a list of images, and labels
    labels: Sequence[str]  # by number
    shape: Sequence[int]  # height, width, channels

    def write(self, into: Path, corpus: Any, held: Held, progress: Progress | None) -> None:
        """`train.npz` and so on, with images (N, H, W, C) and the names of their labels."""
        for split, images, labels in self.split(held, progress):
            np.savez(into / f"{split}.npz", images=images, labels=labels)

    def split(self, held: Held, progress: Progress | None) -> Iterator[tuple[str, Pixels, NDArray[np.str_]]]:
        """The images of each split, (N, H, W, C), and the names of their labels."""
        with self.reading(held, progress) as read:
            for split, part in self.parts.items():
                images = np.concatenate([_bytes(read(name), name).reshape(-1, *self.shape) for name in part["images"]])
                yield split, images, np.array(self.labels)[_bytes(read(part["labels"]), part["labels"])]


def _bytes(content: bytes, name: str) -> NDArray[np.uint8]:
    if name.endswith(".json"):
        return np.array(json.loads(content), np.uint8)
    return np.asarray(opened(content, place=name)) if name.endswith(".png") else idx_array(content)


is_picture = PictureFiles.takes


def files_in(folder: str | PathLike[str], kind: type[PictureFiles] = PictureFiles) -> list[Path]:
    """All pictures in a folder, or other such files, and in those inside of it, by their names."""
    found = sorted(Path(at) / each for at, _, files in os.walk(folder) for each in files if kind.takes(each))
    if not found:
        raise ValueError(f"{folder} has no {kind.called[:-1]} in it: name a folder that has, or a file")
    return found


def content_of(image: Any) -> Source:
    """What a row shows: what is packed, or kept elsewhere, is taken out."""
    held: Source = image.content() if hasattr(image, "content") else image
    return held


def trace_of(image: Any) -> str:
    """The same for the same picture, whatever it is called."""
    if isinstance(image, str):
        return digest(image) if os.path.isfile(image) else image
    held = image.content() if isinstance(image, Zipped) else image.tobytes()
    return hashlib.sha256(held).hexdigest()


def read_idx(path: str) -> NDArray[np.uint8]:
    """An array of bytes as MNIST has it, plain or .gz."""
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            return idx_array(file.read())
    except (struct.error, ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no idx file as MNIST has them: {error}") from None


def idx_array(content: bytes) -> NDArray[np.uint8]:
    """What an idx file holds: 0, 0, 8 for bytes, the number of dimensions, each of them, and the bytes."""
    zeros, kind, count = struct.unpack(">HBB", content[:4])
    if (zeros, kind) != (0, 8):
        raise ValueError("it does not begin with 0, 0, 8")
    shape = struct.unpack(f">{count}I", content[4 : 4 + 4 * count])
    return np.frombuffer(content, np.uint8, offset=4 + 4 * count).reshape(shape)


def _labels(images: str) -> str:
    """The labels that lie beside images."""
    path = Path(images)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if beside == path or not beside.is_file():
        raise ValueError(f"{images} has no labels beside it: {beside.name} is not there")
    return str(beside)


def file_end(image: Any) -> tuple[int, str]:
    """The size of a file, and its end: where it is damaged or changed, most show it."""
    try:
        with open(image, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            return size, hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError:
        return 0, ""


def _classes(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _contradicts(known: dict[tuple[int, str], tuple[str, Any]], row: Row) -> bool:
    """Whether a picture that is known already has another label in this row; it is known from now on."""
    image, label = row["image"], str(row["label"])
    held = isinstance(image, np.ndarray)
    mark = (image.nbytes, trace_of(image)) if held else image.end() if isinstance(image, Zipped) else file_end(image)
    first, same = known.setdefault(mark, (label, None if held else image))
    return first != label and (held or trace_of(same) == trace_of(image))  # ends may be alike by chance


@lru_cache(4)
def _archive(path: str, stamp: int) -> tuple[zipfile.ZipFile, Lock]:
    return zipfile.ZipFile(path), Lock()
