"""Spoken digits as a corpus: who is in which split, strings that are the same everywhere, files that are refused."""

import io
import json
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from regard.data.digits import RATE, SPEAKERS, UNHEARD, WORDS, SpokenDigits
from regard.data.sound import as_wav


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings as they are called, of which each is a number of samples that no other has."""
    made = tmp_path_factory.mktemp("data") / "fsdd" / "recordings"
    made.mkdir(parents=True)
    for digit in range(10):
        for s, speaker in enumerate(SPEAKERS):
            for take in range(50):
                sound = np.full(800 + 300 * digit + 50 * s + take, 0.25, np.float32)
                (made / f"{digit}_{speaker}_{take}.wav").write_bytes(as_wav(sound, RATE))
    return made.parents[1]


def made(data: Path, into: Path, **how: Any) -> dict[str, list[dict[str, Any]]]:
    form = SpokenDigits(**{"sha256": None, "lengths": (2, 5), "strings": {}, **how})
    into.mkdir()
    corpus: Any = SimpleNamespace(splits=("train", "valid", "test"))
    form.write(into, corpus, form.held(data, ("", "")), None)
    return {
        split: [json.loads(line) for line in (into / f"{split}.jsonl").read_text().splitlines()]
        for split in corpus.splits
    }


def samples(path: Path) -> int:
    with wave.open(io.BytesIO(path.read_bytes())) as sound:
        assert sound.getframerate() == RATE
        return sound.getnframes()


def test_two_speakers_are_in_the_test_alone(data: Path, tmp_path: Path) -> None:
    found = made(data, tmp_path / "own")
    assert {split: len(rows) for split, rows in found.items()} == {"train": 1800, "valid": 200, "test": 1000}
    assert {row["speaker"] for row in found["test"]} == set(UNHEARD)
    assert not {row["speaker"] for row in found["train"] + found["valid"]} & set(UNHEARD)
    assert all(int(Path(row["sound"]).stem.split("_")[2]) < 5 for row in found["valid"])
    row = found["train"][77]
    assert row["text"] == WORDS[int(row["label"])]
    assert (tmp_path / "own" / row["sound"]).name.startswith(row["label"])


def test_strings_are_the_same_everywhere_and_say_what_they_say(data: Path, tmp_path: Path) -> None:
    counts = {"train": 30, "valid": 5, "test": 5}
    found = made(data, tmp_path / "a", strings=counts)
    assert made(data, tmp_path / "b", strings=counts) == found
    assert {split: len(rows) for split, rows in found.items()} == counts
    for split, rows in found.items():
        for row in rows:
            words = row["text"].split()
            assert 2 <= len(words) == len(row["ends"]) <= 5
            assert (row["speaker"] in UNHEARD) == (split == "test")
            least = 800 + 300 * WORDS.index(words[0]) + 50 * SPEAKERS.index(row["speaker"])
            take = round(row["ends"][0] * RATE) - least  # ends are told to the millisecond: 8 samples
            low, high = {"train": (5, 50), "valid": (0, 5), "test": (0, 50)}[split]
            assert low - 4 <= take < high + 4
            assert row["ends"][-1] * RATE - 8 <= samples(tmp_path / "a" / row["sound"]) <= 2.9 * RATE
    assert (tmp_path / "a" / "train" / "00003.wav").read_bytes() == (
        tmp_path / "b" / "train" / "00003.wav"
    ).read_bytes()


def test_other_recordings_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"recordings is broken: its sha256 is"):
        made(data, tmp_path / "own", sha256="0" * 64)
    assert SpokenDigits("0" * 64, (1, 1), {}).held(tmp_path, ("", "")) == {}
