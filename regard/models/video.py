"""An encoder that sees what moves: a video is cut into tubelets, the patches of a few frames at a time.

Letters: B batch, C channels, H and W height and width in pixels, T times (of `tubelet` frames each), N patches at a
time, d_model width of the model.

All T · N of them attend to each other: `joint`, and soon too many (ViViT, model 1: Arnab et al., 2021). Or each time by
itself, and then one vector of each time to those of the others: `factorised` (ViViT, model 2). Or in each layer first
over time, from a patch to the same place, and then over space: `divided` (TimeSformer: Bertasius et al., 2021).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from regard.checks import one_of
from regard.core import blocks
from regard.core.layers import LateResidual
from regard.core.outputs import HeadConfig, head, pooled
from regard.core.positions import absolute_positions
from regard.core.stems import Patches, Tubelets, patched, tubes
from regard.models.family import Family, draw_seeing
from regard.models.vision import VisionConfig

WAYS = ("joint", "factorised", "divided")


class Video(nn.Module):
    """A video in, something about it out: what, its head says.

    >>> import torch
    >>> model = Video(vivit_tiny(layers=2), HeadConfig("classes", 10))
    >>> model(torch.randn(2, 8, 1, 32, 32)).shape
    torch.Size([2, 10])
    """

    reads = "pixels"

    def __init__(self, config: "VideoConfig", head_config: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.head = config, head_config or HeadConfig("vector", pool="first" if config.tokens else "mean")
        c = config
        self.time_stem = self.time_encoder = None
        if c.space_time == "factorised":
            self.stem, self.encoder = patched(c, c.d_model, c.tokens, kernel=c.kernel), blocks.encoder(c, c.layers)
            when = absolute_positions(c.positions, d_model=c.d_model, maximum=c.tokens + c.times)
            # Times are as the patches of a picture that is one patch wide.
            self.time_stem = Patches(nn.Identity(), when, d_model=c.d_model, grid=(c.times, 1), tokens=c.tokens)
            self.time_encoder = blocks.encoder(c, c.time_layers)
        else:
            self.stem = _tubelets(c)
            self.encoder = blocks.divided(c, c.layers) if c.space_time == "divided" else blocks.encoder(c, c.layers)
        self.output = head(self.head, c.d_model)
        draw_seeing(self)
        for module in self.modules():
            if isinstance(module, LateResidual):
                module.rest()

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, frames, C, H, W) -> what the head makes of them."""
        return self.output(self.features(pixels))

    def features(self, pixels: Tensor) -> Tensor:
        """What the head reads, first the tokens: (B, tokens + T · N, d_model); of a factorised one (B, tokens + T,
        d_model)."""
        x = tubes(pixels, self.config.tubelet)  # (B, T, C · tubelet, H, W)
        B, T = x.shape[:2]
        if self.time_encoder is not None and self.time_stem is not None:
            x = self.encoder(self.stem(x.flatten(0, 1)))  # (B · T, tokens + N, d_model)
            x = pooled(x, None, "first" if self.config.tokens else "mean").unflatten(0, (B, T))
            return self.time_encoder(self.time_stem(x.transpose(1, 2)[..., None]))
        if self.config.space_time == "divided":
            return self.encoder(self.stem(x), tokens=self.config.tokens, times=T)
        return self.encoder(self.stem(x))


@dataclass(frozen=True)
class VideoConfig(VisionConfig):
    """Everything that makes an encoder of videos; the defaults are those of TimeSformer."""

    norm_eps: float = 1e-6
    frames: int = 8  # of the videos that it learns from
    tubelet: int = 1  # frames that make one, side by side
    space_time: str = "divided"  # joint, factorised: which tubelets attend to which
    time_layers: int = 4  # over the times, of a factorised one; the others are within a time
    own_positions: bool = False  # one is learnt for each tubelet; else one for its place, and one for its time

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(WAYS, space_time=self.space_time)
        if self.frames % self.tubelet:
            raise ValueError(f"frames = {self.frames}: they must be a multiple of tubelet = {self.tubelet}")
        if self.own_positions and (self.space_time == "factorised" or self.positions != "learned"):
            raise ValueError("own_positions are learned ones, of a model that is joint or divided: leave them out")

    @property
    def times(self) -> int:
        """Tubelets one after the other."""
        return self.frames // self.tubelet


def _tubelets(c: VideoConfig) -> Patches:
    """Those of a model that reads all times at once."""
    own, count = c.own_positions, c.tokens + c.times * c.side**2
    times = absolute_positions("none" if own else c.positions, d_model=c.d_model, maximum=c.times)
    places = absolute_positions("learned" if own else "none", d_model=c.d_model, maximum=count)
    bare = c.but(positions="none", own_positions=False) if own else c
    return patched(bare, c.d_model, c.tokens, kernel=c.kernel, made=partial(Tubelets, times=times, places=places))


def timesformer_base(**changes: Any) -> VideoConfig:
    """TimeSformer: 8 frames of 224 x 224, 121 million parameters."""
    return VideoConfig(tokens=1).but(**changes)


def vivit_base(**changes: Any) -> VideoConfig:
    """ViViT-B/16x2, model 1: 32 frames of 224 x 224, all to all, 89 million parameters."""
    own = VideoConfig(tokens=1, frames=32, tubelet=2, space_time="joint", own_positions=True, feed_forward="gelu_tanh")
    return own.but(**changes)


def vivit_factorised(**changes: Any) -> VideoConfig:
    """ViViT-B/16x2, model 2: 12 layers within a time, and 4 over the times, 115 million parameters."""
    return vivit_base(space_time="factorised", own_positions=False).but(**changes)


def vivit_tiny(**changes: Any) -> VideoConfig:
    """4 layers of width 96 for 8 grey frames of 32 x 32, two a tubelet, after three convolutions: what a CPU trains in
    minutes."""
    own = VideoConfig(layers=4, d_model=96, d_ff=192, heads=3, tokens=1, size=32, channels=1, convolutions=3, tubelet=2)
    return own.but(**changes)


FAMILY = Family(
    VideoConfig,
    Video,
    {
        "timesformer-base": timesformer_base,
        "vivit-base": vivit_base,
        "vivit-factorised": vivit_factorised,
        "vivit-tiny": vivit_tiny,
    },
    heads=("classes", "vector"),
)
