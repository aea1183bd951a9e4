"""Spoken digits: the recordings of the Free Spoken Digit Dataset, as a corpus of sounds or of strings of them.

Six people say each digit fifty times, in files such as 7_jackson_32.wav. Two of them are for the test alone; of the
others, the first five of each digit are held out for validation, which the dataset calls its test.
"""

import hashlib
import io
import json
import wave
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.downloads import Held, Progress, check_sum, download, members, reading
from regard.data.sound import Samples, as_wav
from regard.files import cache_folder

if TYPE_CHECKING:
    from regard.data.corpora import Corpus

URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.zip"
ARCHIVE, FOLDER = "free-spoken-digit-dataset-1.0.10.zip", "recordings"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
UNHEARD = SPEAKERS[-2:]  # speakers of the test
TAKES, EARLY = 50, 5  # of each digit by each speaker; and the first, of validation
RATE = 8000
PAUSE, LONGEST = 0.15, 2.9  # seconds: between two digits of a string at most, and of all of it


@dataclass(frozen=True)
class SpokenDigits:
    """Each recording by itself, or strings of them by one speaker each, made by chance that is the same everywhere."""

    sha256: str | None  # of all recordings, in the order of their names; None: any will do
    lengths: Sequence[int]  # digits of a string, from and to
    strings: dict[str, int]  # split -> how many; without, each recording by itself

    def held(self, data: Path, languages: Sequence[str]) -> Held:
        """The archive in a person's folder, or a folder of the recordings."""
        archive, folder = data / "fsdd" / ARCHIVE, data / "fsdd" / FOLDER
        return {ARCHIVE: archive} if archive.is_file() else {FOLDER: folder} if folder.is_dir() else {}

    def write(self, into: Path, corpus: "Corpus", held: Held, progress: Progress | None) -> None:
        """The sounds, and train.jsonl and so on: paths, what is said, by whom, and when each digit ends."""
        with _recordings(held, progress) as found:
            check_sum(hashlib.sha256(b"".join(found[name] for name in sorted(found))).hexdigest(), self.sha256)
        for split in corpus.splits:
            rows = self._strings(split, found) if self.strings else self._single(split, found)
            (into / split).mkdir()
            with open(into / f"{split}.jsonl", "w", encoding="utf-8", newline="\n") as lines:
                for name, content, row in rows:
                    (into / split / name).write_bytes(content)
                    lines.write(json.dumps({"sound": f"{split}/{name}", **row}) + "\n")

    def _single(self, split: str, found: Mapping[str, bytes]) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
        for speaker, takes in _parts(split).items():
            for name in (f"{digit}_{speaker}_{take}.wav" for digit in range(10) for take in takes):
                digit = int(name[0])
                yield name, found[name], {"text": WORDS[digit], "label": str(digit), "speaker": speaker}

    def _strings(self, split: str, found: Mapping[str, bytes]) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
        draw, parts, made = Random(f"strings {split}"), _parts(split), 0
        while made < self.strings[split]:
            speaker = draw.choice([*parts])
            digits = [draw.randrange(10) for _ in range(draw.randint(*self.lengths))]
            pieces, ends = list[Samples](), list[float]()
            for digit in digits:
                pieces.append(_samples(found[f"{digit}_{speaker}_{draw.choice(parts[speaker])}.wav"]))
                ends.append(round(sum(map(len, pieces)) / RATE, 3))
                pieces.append(np.zeros(int(draw.random() * PAUSE * RATE), np.float32))
            sound = np.concatenate(pieces)
            if len(sound) <= LONGEST * RATE:
                text = " ".join(WORDS[digit] for digit in digits)
                yield f"{made:05}.wav", as_wav(sound, RATE), {"text": text, "speaker": speaker, "ends": ends}
                made += 1


def _parts(split: str) -> dict[str, range]:
    """The speakers of a split, and their takes of each digit."""
    if split == "test":
        return dict.fromkeys(UNHEARD, range(TAKES))
    takes = range(EARLY) if split == "valid" else range(EARLY, TAKES)
    return dict.fromkeys((each for each in SPEAKERS if each not in UNHEARD), takes)


@contextmanager
def _recordings(held: Held, progress: Progress | None) -> Iterator[dict[str, bytes]]:
    """What each file holds, by its name."""
    names = [f"{digit}_{speaker}_{take}.wav" for digit in range(10) for speaker in SPEAKERS for take in range(TAKES)]
    if FOLDER in held:
        with reading(held[FOLDER], ours=False):
            yield {name: (held[FOLDER] / name).read_bytes() for name in names}
        return
    path = held.get(ARCHIVE, cache_folder() / "downloads" / ARCHIVE)
    if not path.exists():
        download(URL, path, progress=progress)
    with reading(path, ours=not held), members(path) as read:
        yield {name: read(f"{FOLDER}/{name}") for name in names}


def _samples(content: bytes) -> Samples:
    with wave.open(io.BytesIO(content)) as sound:
        whole = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    return (whole / 2**15).astype(np.float32)
