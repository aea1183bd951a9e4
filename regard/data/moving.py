"""Videos that are made: pictures that move, and bounce off the edges (after Moving MNIST: Srivastava et al., 2015).

Letters: N videos, T frames, H and W height and width in pixels.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from regard.data.downloads import Held, Progress
from regard.data.labelled_pictures import PictureArrays
from regard.data.pictures import Pixels

WAYS = {  # right, and down
    "right": (1, 0),
    "down-right": (1, 1),
    "down": (0, 1),
    "down-left": (-1, 1),
    "left": (-1, 0),
    "up-left": (-1, -1),
    "up": (0, -1),
    "up-right": (1, -1),
}
SLOWEST, FASTEST = 2, 4  # pixels a frame
STRAIGHT = 2  # steps before it bounces for the first time


@dataclass(frozen=True)
class MovingPictures(PictureArrays):
    """Raw pictures, at half their size, that move on black. A video is labelled with what it shows, and where that
    sets out for: `7|up-left`."""

    counts: dict[str, int]  # split -> videos
    frames: int
    size: int  # pixels along a side of a frame

    def write(self, into: Path, corpus: Any, held: Held, progress: Progress | None) -> None:
        """`train.npz` and so on, with videos (N, T, H, W) and their labels."""
        for split, images, labels in self.split(held, progress):
            draw, found = Random(f"{corpus.name} {split}"), list[tuple[Pixels, str]]()
            for i in range(self.counts[split]):
                way = draw.choice([*WAYS])
                moves = moving(halved(images[i % len(images), :, :, 0]), way, self.frames, self.size, draw)
                found.append((moves, f"{labels[i % len(images)]}|{way}"))
            videos, names = zip(*found, strict=True)
            np.savez_compressed(into / f"{split}.npz", videos=np.stack(videos), labels=np.array(names))


def halved(picture: Pixels) -> Pixels:
    """Of four pixels one: (H, W) -> (H / 2, W / 2)."""
    high, wide = (side // 2 for side in picture.shape)
    return picture[: 2 * high, : 2 * wide].reshape(high, 2, wide, 2).mean((1, 3)).astype(np.uint8)


def moving(picture: Pixels, way: str, frames: int, size: int, draw: Random) -> Pixels:
    """A picture (h, w) that sets out somewhere in a square, one of WAYS: (T, H, W)."""
    speed, made = draw.randint(SLOWEST, FASTEST), np.zeros((frames, size, size), np.uint8)
    places = []
    for step, side in zip(WAYS[way], reversed(picture.shape), strict=True):
        room, ahead = size - side, STRAIGHT * speed
        start = draw.randint(ahead if step < 0 else 0, room - (ahead if step > 0 else 0))
        places.append([_bounced(start + step * speed * t, room) for t in range(frames)])
    for frame, left, top in zip(made, *places, strict=True):
        frame[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return made


def _bounced(place: int, room: int) -> int:
    """A place on a line that is reflected at 0 and at `room`."""
    place %= 2 * room
    return min(place, 2 * room - place)
