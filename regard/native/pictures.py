"""Pictures changed by chance while a model learns (pictures.c): all of a batch in one call, to the bits of Python."""

from collections.abc import Sequence
from functools import cache, lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.native.build import library
from regard.native.compiler import UnavailableError

# As in pictures.c.
KINDS = (
    "_same",
    "_stretched",
    "_evened",
    "_moved",
    "_solarised",
    "_posterised",
    "_coloured",
    "_contrasted",
    "_brightened",
    "_sharpened",
)
BEHIND = 4


class Changes(Protocol):
    """What `regard.data.augment.Augment` says of itself. Whatever changes other than pixels has `picture` alone."""

    @property
    def in_steps(self) -> bool: ...
    def drawn(self, draw: Random) -> list[int]: ...
    def steps(self, high: int, wide: int) -> list[tuple[str, tuple[float, ...]]]: ...
    def picture(self, pixels: NDArray[Any], draw: Random) -> NDArray[Any]: ...
    def __hash__(self) -> int: ...


def augmented(augment: Changes, images: Sequence[NDArray[Any]], draw: Random) -> NDArray[Any]:
    """What `augment.picture` makes of each picture (H, W, C) or video (T, H, W, C), by the same draws, as one array."""
    lib = _library() if all(map(_known, images)) and augment.in_steps else None
    if lib is None:
        return np.stack([augment.picture(image, draw) for image in images])
    pixels = np.ascontiguousarray(np.stack(images))  # whose pixels lie as theirs did
    *_, high, wide, channels = pixels.shape
    plan = np.array([augment.drawn(draw) for _ in images], np.int32)
    plan = plan.repeat(pixels[0].size // (size := high * wide * channels), 0)  # the frames of a video alike
    room, steps = np.empty(2 * (size + BEHIND), np.uint8), _steps(augment, high, wide)
    lib.change_pictures(len(plan), high, wide, channels, pixels, plan.shape[1] - 3, plan, steps, room)
    return pixels


def _known(image: NDArray[Any]) -> bool:
    return image.dtype == np.uint8 and image.ndim in (3, 4) and image.shape[-1] in (1, 3) and 0 < image.size < 2**31


@lru_cache(64)
def _steps(augment: Changes, high: int, wide: int) -> NDArray[np.float64]:
    """As pictures.c reads them: a kind and six numbers."""
    steps = augment.steps(high, wide)
    return np.array([[KINDS.index(kind), *numbers, *[0.0] * (6 - len(numbers))] for kind, numbers in steps])


@cache
def _library() -> SimpleNamespace | None:
    try:
        return library()
    except UnavailableError:
        return None
