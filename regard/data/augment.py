"""Pictures changed by chance while a model learns: another of the same kind each time, drawn by (seed, epoch, batch).

Letters: B batch, C channels, H and W height and width in pixels, K classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from regard.checks import at_least, share
from regard.data.pictures import Pixels

STRONGEST = 30  # strength of an operation
GREY = 128  # what stands where a picture was moved away


@dataclass(frozen=True)
class Augment:
    """What becomes of a picture before a model sees it; and of two of them, which are shown as one."""

    crop: int = 0  # pixels around it, black, of which its own size is cut out anew
    scale: float = 1.0  # cut out at least this share of it, and make that as large
    flip: bool = False  # every second one is seen in a mirror
    operations: int = 0  # so many of 14, drawn for each: turned, brighter, fewer colours, ... (RandAugment)
    strength: int = 9  # of these, up to 30
    erase: float = 0.0  # chance that a rectangle of it is noise
    mixup: float = 0.0  # two are blended; shares are drawn from a beta distribution of this; 0: off
    cutmix: float = 0.0  # a rectangle of one is that of another; as above. Of both, each is used every second time

    def __post_init__(self) -> None:
        at_least(0, **{f"data.augment.{name}": getattr(self, name) for name in ("crop", "operations", "strength")})
        at_least(0, **{f"data.augment.{name}": getattr(self, name) for name in ("mixup", "cutmix")})
        share(whole=True, **{"data.augment.scale": self.scale, "data.augment.erase": self.erase})
        if self.strength > STRONGEST or self.scale == 0:
            raise ValueError(f"data.augment: strength is at most {STRONGEST}, and scale above 0")

    @property
    def blends(self) -> bool:
        """Whether a label may be a share of two."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def in_steps(self) -> bool:
        """Whether `drawn` is all that becomes of a picture, and that is something."""
        return self.scale == 1.0 and self.erase == 0.0 and (self.operations > 0 or self.crop > 0 or self.flip)

    def drawn(self, draw: Random) -> list[int]:
        """The steps by which a picture is changed, places in `steps`; how far down and to the right it is cut out; and
        whether it is seen in a mirror."""
        steps = [2 * draw.choice(PLACES) + draw.choice((0, 1)) for _ in range(self.operations)]
        moved = [draw.randint(-self.crop, self.crop) if self.crop else 0 for _ in range(2)]
        return [*steps, *moved, self.flip and draw.random() < 0.5]

    def steps(self, high: int, wide: int) -> list[tuple[str, tuple[float, ...]]]:
        """Of each operation, in each direction: what it is called, and its numbers for pictures of this size."""
        m = self.strength / STRONGEST
        return [(each.change.__name__, each.numbers(m, sign, high, wide)) for each in OPERATIONS for sign in SIGNS]

    def picture(self, pixels: Pixels, draw: Random) -> Pixels:
        """One picture (H, W, C), changed; or a video (T, H, W, C), all of whose frames are changed alike."""
        if pixels.ndim == 4:
            made, state = list[Pixels](), draw.getstate()
            for frame in pixels:
                draw.setstate(state)
                made.append(self.picture(frame, draw))
            return np.stack(made)
        high, wide, channels = pixels.shape
        if self.scale < 1.0:
            pixels = _seen(pixels, lambda image: _zoomed(image, draw, self.scale))
        *steps, top, left, mirrored = self.drawn(draw)
        for step in steps:
            pixels = OPERATIONS[step // 2](pixels, self.strength / STRONGEST, SIGNS[step % 2])
        if self.crop:
            around = np.zeros((high + 2 * self.crop, wide + 2 * self.crop, channels), np.uint8)
            around[self.crop : self.crop + high, self.crop : self.crop + wide] = pixels
            pixels = around[self.crop + top :, self.crop + left :][:high, :wide]
        if mirrored:
            pixels = pixels[:, ::-1]
        if self.erase and draw.random() < self.erase:
            top, left, h, w = _rectangle(high, wide, draw.uniform(0.02, 0.33), draw)
            pixels = pixels.copy()
            noise = np.frombuffer(draw.randbytes(h * w * channels), np.uint8)
            pixels[top : top + h, left : left + w] = noise.reshape(h, w, channels)
        return pixels

    def blended(self, pixels: Tensor, labels: Tensor, draw: Random) -> tuple[Tensor, Tensor]:
        """Pictures (B, C, H, W), or videos (B, T, C, H, W), each with some of another, and labels (B, K) that say how
        much of which."""
        cut = self.cutmix > 0 and (self.mixup == 0 or draw.random() < 0.5)
        alpha = self.cutmix if cut else self.mixup
        own, other = draw.betavariate(alpha, alpha), torch.tensor(draw.sample(range(len(pixels)), len(pixels)))
        if cut:
            high, wide = pixels.shape[-2:]
            top, left, h, w = _rectangle(high, wide, 1 - own, draw, square=True)
            pixels = pixels.clone()
            pixels[..., top : top + h, left : left + w] = pixels[..., top : top + h, left : left + w][other]
            own = 1 - h * w / (high * wide)
        else:
            pixels = own * pixels + (1 - own) * pixels[other]
        return pixels, own * labels + (1 - own) * labels[other]


def _rectangle(high: int, wide: int, area: float, draw: Random, square: bool = False) -> tuple[int, int, int, int]:
    """Where a rectangle of this share of a picture begins, and its height and width; at an edge it may be less."""
    ratio = 1.0 if square else draw.uniform(0.5, 2.0)
    h, w = (max(1, min(side, round(side * (area * r) ** 0.5))) for side, r in ((high, ratio), (wide, 1 / ratio)))
    if square:  # around a point anywhere, as in the paper
        y, x = draw.randrange(high), draw.randrange(wide)
        top, left = max(0, y - h // 2), max(0, x - w // 2)
        return top, left, min(high, y - h // 2 + h) - top, min(wide, x - w // 2 + w) - left
    return draw.randint(0, high - h), draw.randint(0, wide - w), h, w


def _zoomed(image: Image.Image, draw: Random, least: float) -> Image.Image:
    top, left, h, w = _rectangle(image.height, image.width, draw.uniform(least, 1.0), draw)
    return image.resize(image.size, Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))


def _seen(pixels: Pixels, change: Callable[[Image.Image], Image.Image]) -> Pixels:
    """Pixels (H, W, C), changed by Pillow."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return np.asarray(change(image)).reshape(pixels.shape)


def _same(pixels: Pixels) -> Pixels:
    return pixels


def _moved(pixels: Pixels, *matrix: float) -> Pixels:
    """Of each pixel (x, y): what was at (a x + b y + c, d x + e y + f)."""
    grey, way = GREY if pixels.shape[2] == 1 else (GREY,) * 3, Image.Transform.AFFINE
    return _seen(pixels, lambda x: x.transform(x.size, way, matrix, Image.Resampling.BILINEAR, fillcolor=grey))


def _turn(degrees: float, high: int, wide: int) -> tuple[float, ...]:
    """The matrix that turns a picture around its middle, as Pillow has it."""
    angle, x, y = -math.radians(degrees % 360), wide / 2, high / 2
    cos, sin, against = (round(each, 15) for each in (math.cos(angle), math.sin(angle), -math.sin(angle)))
    return cos, sin, cos * -x + sin * -y + x, against, cos, against * -x + cos * -y + y


def _coloured(pixels: Pixels, factor: float) -> Pixels:
    return _seen(pixels, lambda image: ImageEnhance.Color(image).enhance(factor))


def _sharpened(pixels: Pixels, factor: float) -> Pixels:
    return _seen(pixels, lambda image: ImageEnhance.Sharpness(image).enhance(factor))


# What follows changes a brightness by itself, so by a table of the 256 there are. Pillow has these operations, too, and
# equals them, but takes longer to make such a table than to use it.


def _apart(pixels: Pixels, table: Callable[[Pixels], Pixels]) -> Pixels:
    """Each channel by a table of its own."""
    return np.stack([table(channel)[channel] for channel in pixels.transpose(2, 0, 1)], -1)


def _stretched(pixels: Pixels) -> Pixels:
    return _apart(pixels, _stretch)


def _evened(pixels: Pixels) -> Pixels:
    return _apart(pixels, _even)


def _stretch(channel: Pixels) -> Pixels:
    """So that the darkest pixel is 0, and the brightest 255 (autocontrast)."""
    low, high = int(channel.min()), int(channel.max())
    if low == high:
        return RAMP
    scale = 255.0 / (high - low)
    return np.clip((RAMP * scale - low * scale).astype(int), 0, 255).astype(np.uint8)


def _even(channel: Pixels) -> Pixels:
    """So that every brightness is about as frequent (equalize)."""
    counts = np.bincount(channel.ravel(), minlength=256)
    below = counts.cumsum() - counts
    step = int(below[channel.max()]) // 255
    return np.minimum((step // 2 + below) // step, 255).astype(np.uint8) if step else RAMP


def _solarised(pixels: Pixels, least: float) -> Pixels:
    """What is at least so bright, as in a negative."""
    return np.where(least > RAMP, RAMP, 255 - RAMP)[pixels]


def _posterised(pixels: Pixels, mask: float) -> Pixels:
    """Of each brightness, these bits."""
    return (RAMP & np.uint8(mask))[pixels]


def _brightened(pixels: Pixels, factor: float) -> Pixels:
    return _blended(0, factor)[pixels]


def _contrasted(pixels: Pixels, factor: float) -> Pixels:
    """Blended with a picture that is as bright as its mean everywhere."""
    grey = pixels if pixels.shape[2] == 1 else np.asarray(Image.fromarray(pixels).convert("L"))
    return _blended(int(grey.mean() + 0.5), factor)[pixels]


@cache
def _blended(value: int, factor: float) -> Pixels:
    ramp = Image.fromarray(RAMP[None])
    return np.asarray(Image.blend(Image.new("L", ramp.size, value), ramp, factor))[0]


RAMP = np.arange(256, dtype=np.uint8)
SIGNS = (-1, 1)


class Operation(NamedTuple):
    """How a picture is changed, and by which numbers: of how strong from 0 to 1, in which direction, height, width."""

    change: Callable[..., Pixels]
    numbers: Callable[[float, int, int, int], tuple[float, ...]]

    def __call__(self, pixels: Pixels, m: float, sign: int) -> Pixels:
        return self.change(pixels, *self.numbers(m, sign, *pixels.shape[:2]))


# RandAugment, Cubuk et al., 2020.
OPERATIONS = (
    Operation(_same, lambda m, sign, h, w: ()),
    Operation(_stretched, lambda m, sign, h, w: ()),
    Operation(_evened, lambda m, sign, h, w: ()),
    Operation(_moved, lambda m, sign, h, w: _turn(sign * 30 * m, h, w)),
    Operation(_solarised, lambda m, sign, h, w: (round(256 * (1 - m)),)),
    Operation(_posterised, lambda m, sign, h, w: (256 - (1 << round(4 * m)),)),
    Operation(_coloured, lambda m, sign, h, w: (1 + sign * 0.9 * m,)),
    Operation(_contrasted, lambda m, sign, h, w: (1 + sign * 0.9 * m,)),
    Operation(_brightened, lambda m, sign, h, w: (1 + sign * 0.9 * m,)),
    Operation(_sharpened, lambda m, sign, h, w: (1 + sign * 0.9 * m,)),
    Operation(_moved, lambda m, sign, h, w: (1, sign * 0.3 * m, 0, 0, 1, 0)),
    Operation(_moved, lambda m, sign, h, w: (1, 0, 0, sign * 0.3 * m, 1, 0)),
    Operation(_moved, lambda m, sign, h, w: (1, 0, sign * 0.45 * m * w, 0, 1, 0)),
    Operation(_moved, lambda m, sign, h, w: (1, 0, 0, 0, 1, sign * 0.45 * m * h)),
)
PLACES = range(len(OPERATIONS))
