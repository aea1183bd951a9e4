"""Videos that are easily told apart, but not by any of their frames: they grow brighter, or darker."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

WAYS = ("brighter", "darker")


def video(way: str, draw: np.random.Generator, frames: int = 6, size: int = 16) -> NDArray[np.uint8]:
    """(T, H, W, 3): noise, lighter by and by."""
    made = draw.integers(0, 60, (frames, size, size, 3), np.uint8)
    made += np.linspace(0, 190, frames).astype(np.uint8)[:, None, None, None]
    return made if way == "brighter" else made[::-1]


def written(frames: NDArray[np.uint8], path: Path, codec: str = "mpeg4", rate: int = 10) -> Path:
    """A file of them."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = {"gif": "rgb8"}.get(codec, "yuv420p")
        stream.options = {"qscale": "1"}
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode())
    return path


def folder(place: Path, count: int, seed: int = 0) -> Path:
    """So many of each way."""
    draw = np.random.default_rng(seed)
    for way in WAYS:
        (place / way).mkdir(parents=True)
        for i in range(count):
            written(video(way, draw), place / way / f"{i}.mp4")
    return place
