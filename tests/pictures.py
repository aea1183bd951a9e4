"""Pictures that are easily told apart, in folders."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

KINDS = ("red", "green", "blue")


def picture(kind: str, draw: np.random.Generator, size: int = 16) -> NDArray[np.uint8]:
    """Noise, brighter in one colour."""
    pixels = draw.integers(0, 100, (size, size, 3), np.uint8)
    pixels[:, :, KINDS.index(kind)] += 120
    return pixels


def folder(place: Path, count: int, seed: int = 0, ending: str = "png") -> Path:
    """So many pictures of each kind."""
    draw = np.random.default_rng(seed)
    for kind in KINDS:
        (place / kind).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(picture(kind, draw)).save(place / kind / f"{i}.{ending}")
    return place
