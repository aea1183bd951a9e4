"""SCAN (Lake and Baroni, 2018): commands and the actions that they mean, split so that what is tested was never taught.

    IN: jump left twice OUT: I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP

Its splits: simple, at random; length, of which training has up to 22 actions and the test 24 to 48; and jump, of which
training has `jump` alone and the test has it in every command.
"""

import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.files import cache_folder, write_whole

if TYPE_CHECKING:
    from regard.data.corpora import Corpus, Progress

URL = "https://raw.githubusercontent.com/brendenlake/SCAN/master/{name}"
ARCHIVE = "scan.tar.gz"
LINE = re.compile(r"IN: (\S.*\S) OUT: (\S.*\S)\s*")


def read_commands(lines: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Commands and actions of a file of SCAN; a mistake is told with `name` and the line.

    >>> list(read_commands(["IN: walk twice OUT: I_WALK I_WALK"], "a.txt"))
    [('walk twice', 'I_WALK I_WALK')]
    >>> list(read_commands(["walk -> I_WALK"], "a.txt"))
    Traceback (most recent call last):
    ValueError: a.txt, line 1: this is not `IN: a command OUT: its actions`
    """
    for number, line in enumerate(lines, 1):
        found = LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"{name}, line {number}: this is not `IN: a command OUT: its actions`")
        yield found[1], found[2]


@dataclass(frozen=True)
class Commands:
    """One split of SCAN, as a corpus of commands and actions."""

    files: Mapping[str, str]  # train and test -> its file, as SCAN's repository names it
    sums: Mapping[str, str]  # file -> sha256

    def held(self, data: Path, languages: tuple[str, str]) -> dict[str, Path]:
        """The archive in a person's folder, or else the files: all of them or none."""
        if (archive := data / "scan" / ARCHIVE).is_file():
            return {ARCHIVE: archive}
        found = {name: data / "scan" / name for name in self.files.values()}
        return found if all(path.is_file() for path in found.values()) else {}

    def write(self, into: Path, corpus: "Corpus", held: Mapping[str, Path], progress: "Progress | None") -> None:
        """Commands and actions of train and test, checked."""
        for split, name in self.files.items():
            place, content = self._read(name, held, progress)
            found = hashlib.sha256(content).hexdigest()
            if found != self.sums[name]:
                if not held:
                    place.unlink()
                advice = "replace it, or unset REGARD_DATA to fetch it" if held else "it was removed, try again"
                raise ValueError(f"{place}: the sha256 of {name} is {found}, not {self.sums[name]}; {advice}")
            pairs = list(read_commands(content.decode().splitlines(), name))
            for language, side in zip(corpus.languages, zip(*pairs, strict=True), strict=True):
                write_whole(into / f"{split}.{language}", "".join(f"{text}\n" for text in side))

    def _read(self, name: str, held: Mapping[str, Path], progress: "Progress | None") -> tuple[Path, bytes]:
        """Where a file was found, and what is in it."""
        if ARCHIVE in held:
            try:
                with tarfile.open(held[ARCHIVE], "r:gz") as archive:
                    member = next((m for m in archive if m.isfile() and f"/{m.name}".endswith(f"/{name}")), None)
                    file = None if member is None else archive.extractfile(member)
                    if file is not None:
                        return held[ARCHIVE], file.read()
            except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
                raise ValueError(f"{held[ARCHIVE]} is broken: {error}; replace it") from None
            raise ValueError(f"{held[ARCHIVE]} holds no {name}: replace it, or unset REGARD_DATA to fetch it")
        path = held.get(name, cache_folder() / "downloads" / "scan" / Path(name).name)
        if not path.exists():
            from regard.data.corpora import download  # which imports this module for its list

            download(URL.format(name=name), path, progress=progress)
        return path, path.read_bytes()


SUMS = {
    "simple_split/tasks_train_simple.txt": "941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd",
    "simple_split/tasks_test_simple.txt": "1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6",
    "length_split/tasks_train_length.txt": "b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2",
    "length_split/tasks_test_length.txt": "0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3",
    "add_prim_split/tasks_train_addprim_jump.txt": "e3c78485692e028eed4205e1b8b3fd0e785ef2c12d45b5b89204dadf5b239e23",
    "add_prim_split/tasks_test_addprim_jump.txt": "8147ae2651422c701162e174d9d66158daa57858a26b30317ac61797118ac7a5",
}
STEMS = {"simple": "simple_split/tasks_{}_simple", "length": "length_split/tasks_{}_length"}
STEMS["jump"] = "add_prim_split/tasks_{}_addprim_jump"
SCAN = {
    name: Commands({split: f"{stem.format(split)}.txt" for split in ("train", "test")}, SUMS)
    for name, stem in STEMS.items()
}
