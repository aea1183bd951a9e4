"""A model that sees a picture as a whole: pictures in, what its head says of them out.

Letters: B batch, C classes.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.quantised import dtype_of
from regard.data.augment import Augment
from regard.data.labelled_pictures import Zipped, content_of
from regard.data.pictures import Pixels, Sight, in_groups
from regard.data.tokenizers import Tokenizer
from regard.decoding.protocol import DAMAGED
from regard.inspection.axes import inputs
from regard.inspection.maps import attention_maps
from regard.inspection.page import AttentionMap
from regard.native import NativeReader
from regard.tasks.engines import Engines
from regard.tasks.task import Data

TOGETHER = 64  # pictures, or frames of videos, that are seen at once
Looks = Callable[[Sequence[Pixels]], list[Tensor]]


@dataclass(frozen=True)
class SeenConfig(Data):
    """Where pictures come from, and how they are seen."""

    resize: int | None = None  # pixels along a side before the middle is cut out; left out: nothing is cut off
    square: bool = True  # made square whatever their shape; else the shorter side has `resize` pixels
    resample: str = "bicubic"  # nearest, bilinear, lanczos, box, hamming
    mean: tuple[float, ...] = (0.5,)  # of values from 0 to 1: subtracted
    std: tuple[float, ...] = (0.5,)  # and then divided by
    augment: Augment = field(default_factory=Augment)  # what is done to them by chance while a model learns

    def sight(self, recipe: Any, instead: str) -> Sight:
        """How they are seen by the model of a recipe, which may begin with one that has learnt it; where that does not
        see, `instead` is said."""
        c, like = recipe.model.build(2**16), recipe.model.base or recipe.model.preset
        if getattr(c, "channels", None) is None:
            raise ValueError(f"task.name = {recipe.task.name}: a model like {like} does not see; {instead}")
        if getattr(c, "height", None) is not None:
            raise ValueError(f"a model like {like} reads sheets of many sizes: it cannot be trained here")
        own = {name: getattr(self, name) for name in ("resize", "square", "resample", "mean", "std")}
        plain = {name for name, value in own.items() if value == getattr(SeenConfig, name)}
        begun = {name: value for name, value in recipe.model.task().get("sight", {}).items() if name in plain}
        return Sight(**own | begun | {"size": c.size, "channels": c.channels, "frames": getattr(c, "frames", 0)})


@dataclass(frozen=True, eq=False)
class Viewed:
    """A picture to look at: a path, the content of a file, what Pillow has opened, or pixels (H, W, C); or a video."""

    image: Any
    place: str = ""  # where it stands, for errors
    id: object = None  # whatever its owner knows it by
    ready: bool = False  # pixels of the size that the model sees


class Viewer(Engines):
    """One model, or several whose answers are averaged."""

    longest = None

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        tokenizer: Tokenizer,
        use: Any,
        sight: Sight,
        *,
        shortlists: object = None,
        **how: Any,
    ) -> None:
        """`sight` says how it sees pictures, `use` how its answers are told."""
        super().__init__(model, tokenizer, **how)
        if shortlists is not None:
            raise ValueError("a shortlist is for what is written: this model sees")
        self.use, self.sight = use, sight

    def on(self, model: nn.Module) -> Self:
        """The same on another model: so that somebody can watch that one."""
        other = copy(self)
        other.models, other.model, other._made = [model], model, None
        return other

    def size(self, asks: Sequence[Viewed], settings: Any = None) -> tuple[int, int]:
        """Positions that some pictures or videos have; nothing is written."""
        c: Any = self.model.config
        return len(asks) * (c.tokens + c.side**2 * getattr(c, "times", 1)), 0

    def written(self, answer: Any) -> int:
        """Tokens of an answer: none."""
        return 0

    def seen(self, asks: Sequence[Viewed]) -> list[Pixels]:
        """The pixels of pictures, opened side by side; one that cannot be is a `PictureError`."""

        def look(ask: Viewed) -> Pixels:
            if ask.ready:
                return np.asarray(content_of(ask.image))
            place = ask.place or (ask.image.member if isinstance(ask.image, Zipped) else "")
            return self.sight.pixels(content_of(ask.image), place)

        if len(asks) == 1:
            return [look(asks[0])]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(look, asks))

    def read(self, picture: Any) -> tuple[Pixels, Tensor]:
        """What it sees of a picture, (H, W, C), and that as the model reads it, (1, C, H, W); of a video with T frames
        (T, H, W, C) and (1, T, C, H, W)."""
        (pixels,) = self.seen([picture if isinstance(picture, Viewed) else Viewed(picture)])
        return pixels, self.sight.tensor(pixels[None]).to(self.device, dtype_of(self.model))

    def film(self, pixels: Pixels) -> Pixels:
        """A picture as it is; of a video, the first frame of each time, each below the one before: (T · H, W, C)."""
        c: Any = self.model.config
        return pixels[:: c.tubelet].reshape(-1, *pixels.shape[2:]) if self.sight.frames else pixels

    def attention(
        self,
        picture: Any,
        *,
        names: str | Sequence[str] = "*",
        heads: Sequence[int] | None = None,
        view: str = "weights",
    ) -> list[AttentionMap]:
        """What every head looks at while the model sees a picture; the view "rollout" is of all heads up to a layer."""
        pixels, x = self.read(picture)
        how: Any = {"names": names, "heads": heads, "view": view, "pixels": self.film(pixels)}
        return attention_maps(self.model, {inputs(self.model)[0]: x}, {}, **how)

    def outputs(self, asks: Sequence[Viewed]) -> list[Tensor]:
        """What the head says of each picture; the mean of all models."""
        found = list[Tensor]()
        for some in in_groups(asks, min(max(1, TOGETHER // max(1, self.sight.frames)), self.rows)):
            pixels = self.seen(some)
            each = [engine(pixels) for engine in self.engines]
            found += [torch.stack(said).mean(0) for said in zip(*each, strict=True)] if len(each) > 1 else each[0]
        if not all(end.isfinite() for said in found for end in said.aminmax()):
            raise ValueError(DAMAGED)
        return found

    def native(self, model: nn.Module) -> Looks:
        reader, head = NativeReader(model, threads=self.workers or torch.get_num_threads()), model.output

        @torch.inference_mode()
        def looks(pixels: Sequence[Pixels]) -> list[Tensor]:
            kind = dtype_of(model)
            read = reader.looked(self.sight.tensor(np.stack(pixels)))
            return [head(torch.from_numpy(each)[None].to(kind))[0].float() for each in read]  # type: ignore[operator]

        return looks

    def module(self, model: nn.Module, reason: str) -> Looks:
        @torch.inference_mode()
        def looks(pixels: Sequence[Pixels]) -> list[Tensor]:
            kind = dtype_of(model)
            x = self.sight.tensor(np.stack(pixels)).to(self.device, kind)
            parts = x.split(1) if self.bitwise else [x]
            return [row for part in parts for row in model(part).float().cpu()]

        return looks
