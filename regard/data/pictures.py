"""Pictures: files, bytes and arrays become pixels of one size, as a model sees them.

Letters: B batch, C channels, H and W height and width in pixels; T frames of a video.

Whatever a file holds is turned upright as its camera says, and made RGB or grey; of several frames the first counts,
or so many of them as a model of videos sees.
Nothing is opened that has more than MOST pixels: a file of some kilobytes may claim to have billions.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from regard.checks import above, at_least, one_of
from regard.data.arrays import Column

MOST = 89_478_485  # pixels of a picture: a quarter of a gigabyte in colours
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # what is opened; others may run programs
VIDEOS = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", *VIDEOS)
RESAMPLES = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers
MODES = {1: "L", 2: "LA", 3: "RGB"}  # by channels
STEP = 32  # pixels, of which the sides of a sheet are multiples
ASIDE = 256  # pictures, or frames of videos, that are opened side by side
Item = TypeVar("Item")
Made = TypeVar("Made")
Pixels = NDArray[np.uint8]
Source = str | PathLike[str] | bytes | Image.Image | NDArray[Any]  # a path, a file's content, or what it shows


class PictureError(ValueError):
    """What is no picture that can be seen."""


@dataclass(frozen=True)
class Sight:
    """How a model sees pictures, or videos: of which size, and in which numbers.

    >>> Sight(size=4).pixels(np.zeros((8, 6, 3), np.uint8)).shape
    (4, 4, 3)
    """

    size: int = 224  # pixels along a side
    height: int | None = None  # of a sheet: what is written on it is seen as large as it is, up to `size` x this
    channels: int = 3  # red, green, blue; 1: shades of grey
    resize: int | None = None  # pixels along a side before the middle is cut out; left out: nothing is cut off
    square: bool = True  # made square whatever its shape; else the shorter side has `resize` pixels
    resample: str = "bilinear"  # nearest, bilinear, bicubic, lanczos, box, hamming
    mean: tuple[float, ...] = (0.5,)  # of values from 0 to 1, a number for all channels or one for each: subtracted,
    std: tuple[float, ...] = (0.5,)  # and then divided by
    frames: int = 0  # of a video, from all of its length; 0: a picture

    def __post_init__(self) -> None:
        for name in ("mean", "std"):  # lists, as JSON has them
            object.__setattr__(self, name, tuple(getattr(self, name)))
        at_least(1, size=self.size, resize=self.resize)
        at_least(0, frames=self.frames)
        one_of(RESAMPLES, resample=self.resample)
        if self.channels not in (1, 3):
            raise ValueError(f"channels = {self.channels}: a picture has 3 (red, green, blue) or 1 (grey)")
        if self.height is not None and (self.channels != 1 or self.size % STEP or self.height % STEP):
            raise ValueError(f"height = {self.height}: a sheet is grey, and size and height are multiples of {STEP}")
        if self.resize is not None and self.resize < self.size:
            raise ValueError(f"resize = {self.resize}: it must be at least size = {self.size}, which is cut out of it")
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise ValueError(f"{name} has {len(getattr(self, name))} numbers for {self.channels} channels")
        above(0, **{f"std[{i}]": x for i, x in enumerate(self.std)})

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what it sees: (H, W, C), or (T, H, W, C)."""
        return (*([self.frames] if self.frames else []), self.size, self.size, self.channels)

    @property
    def column(self) -> Column:
        """How that lies on disk."""
        return Column.pixels(*self.shape)

    def pixels(self, source: Source, place: str = "") -> Pixels:
        """What it sees of a picture, (H, W, C), or of a video, (T, H, W, C); of its size."""
        if self.height is not None:
            return self._written(opened(source, 2, place), _named(source, place))
        if not self.frames:
            return self._fitted(opened(source, self.channels, place), _named(source, place))
        from regard.data.videos import shots

        name = _named(source, place) if place or isinstance(source, str | PathLike) else "the video"
        return np.stack(
            [self._fitted(each.convert(MODES[self.channels]), name) for each in shots(source, self.frames, name)]
        )

    def _fitted(self, image: Image.Image, name: str) -> Pixels:
        wide, high = image.size
        side = self.resize or self.size
        if self.square:
            wanted = (side, side)
        else:
            short = min(wide, high)
            wanted = (side, side * high // short) if wide <= high else (side * wide // short, side)
            if math.prod(wanted) > MOST:
                raise PictureError(f"{name} is {wide:,} x {high:,} pixels: it is too narrow to be seen")
        if image.size != wanted:
            image = image.resize(wanted, Image.Resampling(RESAMPLES[self.resample]))
        left, top = (wanted[0] - self.size) // 2, (wanted[1] - self.size) // 2
        if wanted != (self.size, self.size):
            image = image.crop((left, top, left + self.size, top + self.size))
        return np.asarray(image).reshape(self.size, self.size, self.channels)

    def _written(self, image: Image.Image, name: str) -> Pixels:
        """What is written on a sheet, of which grey and opacity are given: smaller if it must be, (H, W, 1)."""
        sheet, most = _cut_out(image, name), (self.size, int(self.height or 0))
        if (times := max(side / room for side, room in zip(sheet.size, most, strict=True))) > 1:
            wide, high = (max(1, int(side // times)) for side in sheet.size)
            smaller = sheet.resize((wide, high), Image.Resampling(RESAMPLES[self.resample]))
            sheet = _cut_out(smaller.convert("LA"), name)
        return np.asarray(sheet)[:, :, None]

    def tensor(self, pixels: Pixels) -> Tensor:
        """Pixels (B, H, W, C) as a model reads them: (B, C, H, W), around 0; of videos, (B, T, C, H, W). In memory the
        channels stay last, which convolutions are faster with."""
        x = np.array(pixels, np.float32, order="C")
        lines = x.reshape(-1, x.shape[-2] * x.shape[-1])  # in place, and by one thread: the others belong to the step
        mean, std = (np.resize(np.array(each, np.float32), lines.shape[1]) for each in (self.mean, self.std))
        lines /= 255
        lines -= mean
        lines /= std
        return torch.from_numpy(x).movedim(-1, -3)


def opened(source: Source, channels: int = 3, place: str = "") -> Image.Image:
    """A picture, upright, in colours or grey; `PictureError` says in one line why it cannot be."""
    name = _named(source, place)
    if isinstance(source, np.ndarray):
        return of_array(source, name).convert(MODES[channels])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of large pictures and odd metadata: what counts is checked here
            if isinstance(source, Image.Image):
                image = source
            else:
                file = io.BytesIO(source) if isinstance(source, bytes) else Path(source)
                image = Image.open(file, formats=FORMATS)
            if (count := math.prod(image.size)) > MOST:
                raise PictureError(f"{name} has {count:,} pixels, at most {MOST:,} are opened: make it smaller")
            image.load()
            return _plain(ImageOps.exif_transpose(image), name).convert(MODES[channels])
    except UnidentifiedImageError:
        raise PictureError(f"{name} is no picture: give one as JPEG, PNG, WebP, GIF, BMP, TIFF or PPM") from None
    except Image.DecompressionBombError:
        raise PictureError(f"{name} has more than {2 * MOST:,} pixels, at most {MOST:,} are opened") from None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise PictureError(f"{name}: {error.strerror}") from None
    except PictureError:
        raise
    except Exception as error:  # of decoders, of many kinds: struct, zlib, value, syntax, OS
        raise PictureError(f"{name} is damaged or cut off ({error}): save it again") from None


def in_groups(items: Iterable[Item], count: int) -> Iterator[list[Item]]:
    """So many at a time.

    >>> list(in_groups("abc", 2))
    [['a', 'b'], ['c']]
    """
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some


def side_by_side(make: Callable[[Item], Made], items: Iterable[Item], count: int = ASIDE) -> Iterator[Made]:
    """What is made of each item, so many at a time by threads, in their order.

    >>> list(side_by_side(len, ["a", "bcd", "ef"], 2))
    [1, 3, 2]
    """
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for some in in_groups(items, count):
            yield from pool.map(make, some)


def _cut_out(image: Image.Image, name: str) -> Image.Image:
    """What is dark on light, or light on dark, or opaque: in black on a white sheet, whose sides are whole STEPs."""
    grey, opaque = (np.asarray(each, np.float64) for each in image.split())
    shades = grey if opaque.min() == opaque.max() else 255 - opaque
    if shades.min() == shades.max():
        raise PictureError(f"{name} is all of one colour: there is nothing to read in it")
    shades = (shades - shades.min()) / np.ptp(shades) * 255
    ink = shades < 128
    if shades.mean() <= 128:
        ink, shades = shades > 128, 255 - shades
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    found = shades[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(np.uint8)
    high, wide = (-(-side // STEP) * STEP for side in found.shape)
    sheet = Image.new("L", (wide, high), 255)
    sheet.paste(Image.fromarray(found))
    return sheet


def _plain(image: Image.Image, name: str) -> Image.Image:
    """Of 16 bits the upper 8: Pillow would cut off all that is above 255."""
    if image.mode == "F":
        raise PictureError(f"{name} has fractions as its pixels: save it with whole numbers, as PNG")
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.int64).clip(0, 2**16 - 1)
        return Image.fromarray((deep >> 8).astype(np.uint8))
    return image


def of_array(pixels: NDArray[Any], name: str) -> Image.Image:
    """What an array (H, W), (H, W, C) or, as PyTorch has them, (C, H, W) shows."""
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    shape = pixels.shape
    if pixels.dtype != np.uint8 or not 2 <= len(shape) <= 3 or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        raise PictureError(f"{name} is {pixels.dtype} of shape {shape}: pixels are uint8, (H, W), (H, W, 1), 3 or 4")
    if not pixels.size or math.prod(shape[:2]) > MOST:
        raise PictureError(f"{name} has {math.prod(shape[:2]):,} pixels, 1 to {MOST:,} are seen")
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if len(shape) == 3 and shape[2] == 1 else pixels))


def _named(source: Source, place: str) -> str:
    if place:
        return place
    return str(source) if isinstance(source, str | PathLike) else "the picture"
