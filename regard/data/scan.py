"""SCAN (Lake and Baroni, 2018): commands and the actions that they mean, split so that what is tested was never taught.

    IN: jump left twice OUT: I_TURN_LEFT I_JUMP I_TURN_LEFT I_JUMP

Its splits: simple, at random; length, of which training has up to 22 actions and the test 24 to 48; and jump, of which
training has `jump` alone and the test has it in every command.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.downloads import Progress, check_sum, download, members, reading
from regard.files import cache_folder, write_whole

if TYPE_CHECKING:
    from regard.data.corpora import Corpus

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

    files: Mapping[str, Sequence[str]]  # train and test -> its file, as SCAN's repository names it, and its sha256

    def held(self, data: Path, languages: Sequence[str]) -> dict[str, Path]:
        """The archive in a person's folder, or else the files: all of them or none."""
        if (archive := data / "scan" / ARCHIVE).is_file():
            return {ARCHIVE: archive}
        found = {name: data / "scan" / name for name, _ in self.files.values()}
        return found if all(path.is_file() for path in found.values()) else {}

    def write(self, into: Path, corpus: "Corpus", held: Mapping[str, Path], progress: Progress | None) -> None:
        """Commands and actions of train and test, checked."""
        for split, (name, sha256) in self.files.items():
            path = held.get(name, cache_folder() / "downloads" / "scan" / Path(name).name)
            path = held.get(ARCHIVE, path)
            if not path.exists():
                download(URL.format(name=name), path, progress=progress)
            with reading(path, ours=not held):
                if ARCHIVE in held:
                    with members(path) as read:
                        content = read(name)
                else:
                    content = path.read_bytes()
                check_sum(hashlib.sha256(content).hexdigest(), sha256)
            pairs = list(read_commands(content.decode().splitlines(), name))
            for language, side in zip(corpus.languages, zip(*pairs, strict=True), strict=True):
                write_whole(into / f"{split}.{language}", "".join(f"{text}\n" for text in side))
