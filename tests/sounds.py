"""Small sounds for models to learn from: tones, one for each word, and strings of them."""

import json
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from regard.data.sound import RATE, as_wav

TONES = {"low": 300.0, "mid": 900.0, "high": 2700.0}


def tone(word: str, draw: Random, seconds: float = 0.2) -> NDArray[np.float32]:
    """A word: a tone, a little higher or lower each time, in a little noise."""
    at = np.arange(int(RATE * seconds)) / RATE
    noise = np.random.default_rng(draw.randrange(2**32)).standard_normal(len(at))
    wave = np.sin(2 * np.pi * TONES[word] * draw.uniform(0.93, 1.07) * at) * np.hanning(len(at))
    return (0.3 * wave + 0.003 * noise).astype(np.float32)


def folder(place: Path, count: int, seed: int = 0) -> Path:
    """A folder for each word, with so many sounds in it."""
    draw = Random(seed)
    for word in TONES:
        (place / word).mkdir(parents=True)
        for i in range(count):
            (place / word / f"{i}.wav").write_bytes(as_wav(tone(word, draw), RATE))
    return place


def strings(place: Path, count: int, seed: int = 0) -> Path:
    """Sounds of one to three words, and a jsonl that says which."""
    draw, rows = Random(seed), []
    place.mkdir(parents=True)
    for i in range(count):
        words = [draw.choice([*TONES]) for _ in range(draw.randint(1, 3))]
        (place / f"{i}.wav").write_bytes(as_wav(np.concatenate([tone(word, draw) for word in words]), RATE))
        rows.append(json.dumps({"sound": f"{i}.wav", "text": " ".join(words)}))
    (place / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return place / "rows.jsonl"
