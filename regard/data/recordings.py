"""Recordings and what is said in them: rows, or a folder as LibriSpeech has it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.data.labelled_pictures import PictureFiles, file_end
from regard.data.rows import WAYS, Row, RowFiles
from regard.data.text import Skipped, decoded
from regard.files import read_whole

TRANSCRIPTS = "*.trans.txt"
ENDINGS = (".flac", ".wav", ".ogg", ".mp3")
SPELLING = "normalizer.json"  # of a Whisper: British words, and how Americans spell them


@dataclass(frozen=True)
class SoundFiles(PictureFiles):
    """Sounds with labels: a folder or a zip with one folder for each class, or a tsv, csv or jsonl with the paths of
    files, from where it lies, and labels. A row is like that of a picture."""

    ways = ("folder", "zip", *WAYS)
    parts = ("sound", "label")
    endings = ENDINGS
    called = "sounds"


@dataclass(frozen=True)
class RecordingFiles(RowFiles):
    """Where recordings are: one tsv, csv or jsonl of paths and texts, or a folder as LibriSpeech has it.

    A path is one from the folder in which the file of rows lies. In LibriSpeech's folders a file 84-121123.trans.txt
    lists recordings beside it, a line each: the name, without its ending, a space, and what is said.
    """

    ways = (*WAYS, "folder")
    parts = ("sound", "text")

    folder: str | None = None  # with files *.trans.txt in it, at any depth

    def fingerprint(self) -> str:
        """The same for the same rows, wherever they lie: sounds are known by their sizes and ends."""
        said = hashlib.sha256()
        for row in self.read():
            said.update(json.dumps([Path(row["sound"]).name, row["text"], *file_end(row["sound"])]).encode())
        return said.hexdigest()

    def read(self, skipped: Skipped | None = None) -> Iterator[Row]:
        """The rows, in order; one without a path or a text is left out, and counted in `skipped`."""
        beside = Path(self.path).parent
        for row in self.rows() if self.folder else super().read(skipped):
            if str(row["text"]).strip():
                yield row | {"sound": str(beside / str(row["sound"])), "text": str(row["text"])}
            elif skipped is not None:
                skipped.empty += 1

    def rows(self) -> Iterator[Row]:
        """The rows as they stand in the file, or in the lists of the folder in the order of their names."""
        if not self.folder:
            yield from super().rows()
            return
        for path in self._lists():
            for number, line in enumerate(decoded(read_whole(path), f"{path}:").splitlines(), start=1):
                name, _, text = line.strip().partition(" ")
                if not name:
                    continue
                sound = next((p for end in ENDINGS if (p := path.with_name(f"{name}{end}")).is_file()), None)
                if sound is None:
                    raise ValueError(f"{path}:{number}: there is no {name}{ENDINGS[0]} beside it")
                yield {"sound": str(sound.resolve()), "text": text}

    def _lists(self) -> list[Path]:
        found = sorted(Path(self.path).rglob(TRANSCRIPTS))
        if not found:
            raise ValueError(f"{self.path} has no {TRANSCRIPTS} in it: name a tsv, csv or jsonl of paths and texts")
        return found
