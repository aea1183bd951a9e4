"""An encoder that hears: frames of a spectrogram in, what its head says of them out.

Letters: B batch, n frames, T positions, d_model width of the model, V vocabulary.

AST (Gong et al., 2021) sees the spectrogram as a picture: patches of 16 bands by 16 frames, which overlap, are read as
ViT reads its own, and two tokens stand for all of them. Without patches, two convolutions over the frames make the
positions, as in Whisper: these follow the sound in time, so that each may say what is heard there (CTC).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.core import blocks
from regard.core.masks import causal
from regard.core.outputs import HeadConfig, head
from regard.core.positions import absolute_positions
from regard.core.stems import Frames, Patches
from regard.models.family import Config, Family


class Audio(nn.Module):
    """Sound in, something about it out: what, its head says.

    >>> import torch
    >>> model = Audio(ast_tiny(frames=64, layers=1), HeadConfig("classes", 10))
    >>> model(torch.randn(2, 64, 40)).shape
    torch.Size([2, 10])
    """

    reads = "frames"

    def __init__(self, config: "AudioConfig", head_config: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.head = config, head_config or HeadConfig("vector", pool="mean")
        c = config
        if c.patch:
            positions = absolute_positions("learned", d_model=c.d_model, maximum=c.positions_in_all)
            project = nn.Conv2d(1, c.d_model, c.patch, c.stride or c.patch)
            how: dict[str, Any] = {"grid": c.grid, "tokens": c.tokens, "dropout": c.dropout}
            self.stem: nn.Module = Patches(project, positions, d_model=c.d_model, **how)
        else:
            self.stem = Frames(c.bands, c.d_model, c.frames // 2, c.dropout)
        self.encoder = blocks.encoder(c, c.layers)
        if self.head.kind != "tokens":
            self.output = head(self.head, c.d_model)
        elif c.patch or not c.vocabulary:
            raise ValueError("words are told of positions that follow the sound: set patch to 0, and have a vocabulary")
        else:
            self.output = nn.Linear(c.d_model, c.vocabulary)

    def forward(self, frames: Tensor) -> Tensor:
        """frames (B, n, bands) -> what the head makes of them; of words, logits at each position (B, T, V)."""
        return self.output(self.features(frames))

    def features(self, frames: Tensor) -> Tensor:
        """What the head reads, (B, T, d_model)."""
        c = self.config
        x = self.stem(frames.transpose(1, 2)[:, None] if c.patch else frames)
        return self.encoder(x, mask=None if c.lookahead is None else causal(c.lookahead))


@dataclass(frozen=True)
class _Sizes:
    layers: int = 12


@dataclass(frozen=True)
class AudioConfig(blocks.LayerConfig, _Sizes, Config):
    """Everything that makes an encoder of sound; the defaults are those of AST."""

    vocabulary: int = 0  # words that are told of positions; 0: none
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    norm: str = "pre"
    norm_eps: float = 1e-12
    feed_forward: str = "gelu"  # relu, gelu_tanh, silu, glu, swiglu, geglu, geglu_tanh, convolution
    dropout: float = 0.0
    bands: int = 128  # numbers in each frame of sound
    frames: int = 1024  # that are heard at once: 100 are a second
    patch: int = 0  # bands, and frames, of a patch; 0: convolutions over the frames, which halve their number
    stride: int = 0  # from patch to patch; 0: they do not overlap
    tokens: int = 0  # before the patches: 2 stand for all of them (AST)
    lookahead: int | None = None  # positions that each layer may look into the future; left out: all
    longest = None

    def __post_init__(self) -> None:
        self.check()
        self.check_layers()
        if self.patch > min(self.bands, self.frames):
            raise ValueError(f"patch = {self.patch}: a window has {self.bands} bands and {self.frames} frames")
        if self.tokens and not self.patch:
            raise ValueError(f"tokens = {self.tokens}: they stand before patches; set patch, or tokens to 0")
        if self.patch and self.lookahead is not None:
            raise ValueError(f"lookahead = {self.lookahead}: patches do not follow each other in time; set patch to 0")
        if self.frames % 2:
            raise ValueError(f"frames = {self.frames}: two are a position, so it must be even")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along bands and frames."""
        step = self.stride or self.patch
        return (self.bands - self.patch) // step + 1, (self.frames - self.patch) // step + 1

    @property
    def positions_in_all(self) -> int:
        """That are read of a window."""
        return self.tokens + self.grid[0] * self.grid[1] if self.patch else self.frames // 2


def ast_base(vocabulary: int = 0, **changes: Any) -> AudioConfig:
    """AST of Gong et al. (2021) for ten seconds: 87 million parameters."""
    return AudioConfig(vocabulary=vocabulary, patch=16, stride=10, tokens=2).but(**changes)


def ast_tiny(vocabulary: int = 0, **changes: Any) -> AudioConfig:
    """3 layers of width 96 over patches of 8 bands by 8 frames, for 1.28 seconds: what a CPU trains in minutes."""
    own = ast_base(vocabulary, layers=3, d_model=96, d_ff=192, heads=3, bands=40, frames=128, patch=8, stride=0)
    return own.but(tokens=0).but(**changes)


def hearing_tiny(vocabulary: int = 0, **changes: Any) -> AudioConfig:
    """3 layers of width 96 over two convolutions, for three seconds."""
    own = AudioConfig(vocabulary=vocabulary, layers=3, d_model=96, d_ff=192, heads=3, bands=40, frames=300)
    return own.but(dropout=0.1, norm_eps=1e-5).but(**changes)


FAMILY = Family(
    AudioConfig,
    Audio,
    {"ast-base": ast_base, "ast-tiny": ast_tiny, "hearing-tiny": hearing_tiny},
    heads=("classes", "vector", "tokens"),
)
