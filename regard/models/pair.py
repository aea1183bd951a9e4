"""Two towers, of which one sees and one reads, and what they make of a picture and of its caption is near: CLIP.

Letters: B pictures, N texts, C channels, H and W height and width in pixels, T length, d_vector width of what is
compared.

CLIP (Radford et al., 2021) is a ViT, normalised before its first layer, and a stack that reads a text from left to
right, of which the last place stands for all of it. Each is projected to one space; how sharply vectors are told apart
there is learnt.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core import blocks
from regard.core.masks import causal
from regard.core.outputs import HeadConfig, pooled
from regard.core.positions import absolute_positions
from regard.core.stems import Embedding, patched, patches_along
from regard.models.family import Config, Family, StackSizes, draw_seeing

SHARPNESS = math.log(1 / 0.07)  # log of what cosines are multiplied by, at first, as in CLIP


class Pair(nn.Module):
    """Pictures and texts in, how much each belongs to each out.

    >>> model = Pair(clip_tiny(vocabulary=100, size=32, patch=8))
    >>> model(torch.randn(2, 3, 32, 32), torch.randint(3, 100, (4, 7))).shape
    torch.Size([2, 4])
    """

    reads = "pairs"
    # What each reads, and whether from left to right.
    towers: ClassVar[dict[str, tuple[str, bool]]] = {"picture_encoder": ("pixels", False), "encoder": ("tokens", True)}

    def __init__(self, config: "PairConfig") -> None:
        super().__init__()
        self.config = c = config
        self.head = HeadConfig("vector", pool="last", normalise=True)
        sees = c.pictures
        self.picture_stem = patched(c, sees.d_model, 1, bias=False, norm=blocks.make_norm(sees))
        self.picture_encoder = blocks.encoder(sees, c.picture_layers)
        self.picture_output = nn.Linear(sees.d_model, c.d_vector, bias=False)
        positions = absolute_positions(c.positions, d_model=c.d_model, maximum=c.max_length)
        self.stem = Embedding(nn.Embedding(c.vocabulary, c.d_model), positions, dropout=c.dropout, scale=1.0)
        self.encoder = blocks.encoder(c, c.layers)
        self.output = nn.Linear(c.d_model, c.d_vector, bias=False)
        self.sharpness = nn.Parameter(torch.full((1,), SHARPNESS))
        draw_seeing(self)

    def forward(self, pixels: Tensor, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """pixels (B, C, H, W), tokens (N, T) -> the cosine of each two, sharpened (B, N)."""
        sees, reads = (F.normalize(x, dim=-1) for x in self.features(pixels, tokens, keep))
        return self.sharpness.exp() * sees @ reads.T

    def features(self, pixels: Tensor, tokens: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The vectors of pictures (B, d_vector) and of texts (N, d_vector), of any length."""
        return self.seen(pixels), self.read(tokens, keep)

    def places(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        """Where a picture shows what a text says: of each word, with those before it, which patch is how near.

        pixels (B, C, H, W), tokens (B, T) -> shares (B, T, 1 + patches), of the token before them none. Patches go the
        way of that token, and words that of the last: soft-max of the cosines, as sharp as between pictures.
        """
        sees = self.picture_output(self.picture_encoder(self.picture_stem(pixels))[:, 1:])
        reads = self.output(self.encoder(self.stem(tokens), mask=causal()))
        alike = F.normalize(reads, dim=-1) @ F.normalize(sees, dim=-1).transpose(1, 2)
        return F.pad((self.sharpness.exp() * alike).softmax(-1), (1, 0))

    def seen(self, pixels: Tensor) -> Tensor:
        """pixels (B, C, H, W) -> (B, d_vector)."""
        return self.picture_output(self.picture_encoder(self.picture_stem(pixels))[:, 0])

    def read(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """tokens (N, T), right-padded, of which those to `keep` count, or all -> (N, d_vector), of the last."""
        # Right-padding needs no mask here: what comes after a token is hidden from it by causality.
        return self.output(pooled(self.encoder(self.stem(tokens), mask=causal()), keep, "last"))


@dataclass(frozen=True)
class PairConfig(blocks.LayerConfig, StackSizes, Config):
    """Everything that makes two towers; what is not of pictures by its name is of texts, or of both. The defaults are
    those of CLIP with ViT-B/32."""

    positions: str = "learned"  # sinusoidal, rope, alibi, t5, shaw, none
    max_length: int = 77
    norm: str = "pre"
    feed_forward: str = "gelu_quick"  # relu, gelu, gelu_tanh, silu, glu, swiglu, geglu, geglu_tanh
    dropout: float = 0.0
    size: int = 224  # pixels along a side of the pictures that it learns from
    channels: int = 3  # of colours; 1: shades of grey
    patch: int = 32  # pixels along a side of a patch
    convolutions: int = 0  # layers that make the patches, each of which halves the sides; 0: the patches are cut out
    picture_layers: int = 12
    picture_d_model: int = 768
    picture_d_ff: int = 3072
    picture_heads: int = 12
    d_vector: int = 512  # of what is compared

    def __post_init__(self) -> None:
        self.check()
        self.check_layers("self_attention")
        self.pictures.attention  # noqa: B018  checks heads and widths
        if not self.convolutions and self.patch > self.size:
            raise ValueError(f"patch = {self.patch}: it must be at most size = {self.size}")
        if self.self_attention.startswith("linformer") or self.score == "location":
            raise ValueError(f"{self.self_attention}, {self.score}: they are for texts of one greatest length")

    @property
    def pictures(self) -> blocks.LayerConfig:
        """The layers of the tower that sees."""
        own = {"d_model": self.picture_d_model, "d_ff": self.picture_d_ff, "heads": self.picture_heads}
        known = {name: getattr(self, name) for name in blocks.LayerConfig.__dataclass_fields__}
        return blocks.LayerConfig(**known | own)

    @property
    def side(self) -> int:
        """Patches along a side."""
        return patches_along(self.size, self.patch, self.convolutions)

    @property
    def longest(self) -> int | None:
        """The most tokens that it can read if it has a parameter for each of them; None: it reads any number."""
        return self.max_length if self.positions == "learned" else None


def clip_base(vocabulary: int = 49_408, **changes: Any) -> PairConfig:
    """CLIP with ViT-B/32: 151 million parameters."""
    return PairConfig(vocabulary).but(**changes)


def clip_tiny(vocabulary: int, **changes: Any) -> PairConfig:
    """Two towers of 4 layers of width 192 for pictures of 96 x 96, with four convolutions before the first: what a CPU
    trains in an hour."""
    sizes = {"layers": 4, "d_model": 192, "d_ff": 768, "heads": 3, "d_vector": 192, "size": 96, "convolutions": 4}
    sees = {"picture_layers": 4, "picture_d_model": 192, "picture_d_ff": 768, "picture_heads": 3}
    return PairConfig(vocabulary).but(**sizes, **sees, feed_forward="gelu").but(**changes)


FAMILY = Family(PairConfig, Pair, {"clip-tiny": clip_tiny, "clip-base": clip_base}, heads=("vector",))
