"""An encoder that sees: a picture is cut into patches, and these are read as the words of a text are.

Letters: B batch, C channels, H and W height and width in pixels, T positions, d_model width of the model.

ViT (Dosovitskiy et al., 2021) is the left half of Figure 1, pre-norm, over patches of 16 x 16 pixels, and a token that
stands for all of them. DeiT (Touvron et al., 2021) has one more, which learns from a teacher. CCT (Hassani et al.,
2021) is for few pictures: convolutions make the patches, and no token is needed, since all of them are weighed.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.core import blocks
from regard.core.outputs import HeadConfig, head
from regard.core.stems import patched, patches_along
from regard.models.family import Config, Family, draw_seeing


class Vision(nn.Module):
    """A picture in, something about it out: what, its head says.

    >>> import torch
    >>> model = Vision(vit_tiny(size=32, patch=8, layers=2), HeadConfig("classes", 10))
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    reads = "pixels"

    def __init__(self, config: "VisionConfig", head_config: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.head = config, head_config or HeadConfig("vector", pool="first" if config.tokens else "mean")
        c = config
        norm = blocks.make_norm(c) if c.first_norm else None
        self.stem = patched(c, c.d_model, c.tokens, kernel=c.kernel, bias=norm is None, norm=norm)
        self.encoder = blocks.encoder(c, c.layers)
        self.output = head(self.head, c.d_model)
        if self.head.pool == "both" and c.tokens < 2:
            raise ValueError(f"head.pool = 'both' reads two tokens, the model has {c.tokens}: set tokens to 2")
        draw_seeing(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, C, H, W) -> what the head makes of them."""
        return self.output(self.features(pixels))

    def features(self, pixels: Tensor) -> Tensor:
        """What the head reads, (B, T, d_model): first the tokens, then the patches, line by line."""
        return self.encoder(self.stem(pixels))


@dataclass(frozen=True)
class VisionConfig(blocks.LayerConfig, Config):
    """Everything that makes an encoder of pictures; the defaults are those of ViT-base, without its token."""

    layers: int = 12
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    positions: str = "learned"  # sinusoidal, rope, alibi, t5, shaw, none
    norm: str = "pre"
    norm_eps: float = 1e-12
    feed_forward: str = "gelu"  # relu, gelu_tanh, silu, glu, swiglu, geglu, geglu_tanh, convolution
    dropout: float = 0.0
    size: int = 224  # pixels along a side of the pictures that it learns from
    channels: int = 3  # of colours; 1: shades of grey
    patch: int = 16  # pixels along a side of a patch
    tokens: int = 0  # before the patches: 1 that stands for all of them (ViT), 2 also one of a teacher (DeiT)
    convolutions: int = 0  # layers that make the patches, each of which halves the sides; 0: the patches are cut out
    kernel: int = 3  # of these convolutions
    first_norm: bool = False  # patches are normalised before the first layer, and cut out without a bias (CLIP)
    longest = None  # it sees pictures of any size

    def __post_init__(self) -> None:
        self.check()
        self.check_layers()
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel}: it must be odd, so that it is centred")
        if not self.convolutions and self.patch > self.size:
            raise ValueError(f"patch = {self.patch}: it must be at most size = {self.size}")
        if self.self_attention.startswith("linformer") or self.score == "location":
            raise ValueError(f"{self.self_attention}, {self.score}: they are for texts of one greatest length")

    @property
    def side(self) -> int:
        """Patches along a side."""
        return patches_along(self.size, self.patch, self.convolutions)


def vit_tiny(**changes: Any) -> VisionConfig:
    """12 layers of width 192: 5.5 million parameters."""
    return VisionConfig(d_model=192, d_ff=768, heads=3, tokens=1).but(**changes)


def vit_small(**changes: Any) -> VisionConfig:
    """12 layers of width 384: 22 million parameters."""
    return VisionConfig(d_model=384, d_ff=1536, heads=6, tokens=1).but(**changes)


def vit_base(**changes: Any) -> VisionConfig:
    """ViT-base: 86 million parameters."""
    return VisionConfig(tokens=1).but(**changes)


def vit_large(**changes: Any) -> VisionConfig:
    """ViT-large: 303 million parameters."""
    return VisionConfig(layers=24, d_model=1024, d_ff=4096, heads=16, tokens=1).but(**changes)


def deit_tiny(**changes: Any) -> VisionConfig:
    """DeiT-tiny with the token of a teacher."""
    return vit_tiny(tokens=2).but(**changes)


def deit_base(**changes: Any) -> VisionConfig:
    """DeiT-base with the token of a teacher."""
    return vit_base(tokens=2).but(**changes)


def cct_2(**changes: Any) -> VisionConfig:
    """CCT-2/3x2 for pictures of 32 x 32: 0.28 million parameters."""
    own = VisionConfig(layers=2, d_model=128, d_ff=128, heads=2, size=32, convolutions=2, norm_eps=1e-5)
    return own.but(**changes)


def cct_7(**changes: Any) -> VisionConfig:
    """CCT-7/3x1 for pictures of 32 x 32: 3.8 million parameters."""
    return cct_2(layers=7, d_model=256, d_ff=512, heads=4, convolutions=1).but(**changes)


FAMILY = Family(
    VisionConfig,
    Vision,
    {
        "vit-tiny": vit_tiny,
        "vit-small": vit_small,
        "vit-base": vit_base,
        "vit-large": vit_large,
        "deit-tiny": deit_tiny,
        "deit-base": deit_base,
        "cct-2": cct_2,
        "cct-7": cct_7,
    },
    heads=("classes", "vector"),
)
