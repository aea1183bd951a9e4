"""A Transformer whose source is a picture: patches in place of words, and a caption is its translation.

Letters: B batch, C channels, H and W height and width in pixels, T length of a caption.

The encoder is that of ViT, the decoder that of GPT-2 with attention to what the encoder has seen: with the settings of
`vit-gpt2` the two are theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.core import blocks
from regard.core.generation import Reading, longest
from regard.core.mixers import AttentionConfig
from regard.core.stems import Patches, patched, patches_along
from regard.models.family import Family
from regard.models.transformer import Memory, Transformer, TransformerConfig


class Captioner(Transformer):
    """A picture in, text out.

    >>> model = Captioner(caption_tiny(vocabulary=100, size=32))
    >>> model(torch.randn(2, 3, 32, 32), torch.randint(3, 100, (2, 5))).shape
    torch.Size([2, 5, 100])
    """

    reads = "pixels"
    config: "CaptionerConfig"

    def reading(self, target: nn.Embedding) -> Patches:
        """What makes vectors of a picture."""
        return patched(self.config, self.config.d_model, self.config.tokens)

    def encode(self, source: Tensor) -> Memory:
        """source (B, C, H, W) -> what the decoder attends to."""
        return Memory(self.encoder(self.source_embedding(source)))

    def start(self, sources: Sequence[Any], device: torch.device) -> Reading:
        """B pictures (C, H, W) -> what `step` continues, a row for each."""
        return Reading(self.encode(torch.stack([*sources]).to(device)), self.new_cache())

    def room(self, source: Any) -> int | None:
        """Tokens that a caption may have."""
        return longest(self)


@dataclass(frozen=True)
class CaptionerConfig(TransformerConfig):
    """Everything that makes a captioner."""

    tie: str = "target"
    size: int = 224  # pixels along a side of the pictures that it learns from
    channels: int = 3  # of colours; 1: shades of grey
    patch: int = 16  # pixels along a side of a patch
    tokens: int = 0  # before the patches: 1 that stands for all of them (ViT)
    convolutions: int = 0  # layers that make the patches, each of which halves the sides; 0: the patches are cut out
    residual: str = ""  # 2,3,7: a residual network makes the patches, with so many layers in each stage
    height: int | None = None  # pictures have any size up to `size` x this, and positions of their rows and columns
    gated: bool = False  # in the decoder, what an attention says is weighed by a gate
    encoder_feed_forward: str | None = None  # feed_forward, if left out
    encoder_norm_eps: float | None = None  # norm_eps, if left out
    encoder_d_k: int | None = None  # d_k and d_v, if left out
    encoder_qkv_bias: bool | None = None  # qkv_bias, if left out

    def __post_init__(self) -> None:
        super().__post_init__()
        self.encoding.check_layers()
        stages = self.residual.split(",") if self.residual else []
        if not all(each.isdecimal() and int(each) for each in stages):
            raise ValueError(f"residual = {self.residual!r}: say how many layers each stage has, as 2,3,7")
        made = 2 ** (len(stages) + 1)
        if stages and (self.convolutions or self.patch != made):
            raise ValueError(f"residual = {self.residual!r} makes patches: set patch to {made}, and convolutions to 0")
        if self.tie not in ("target", "none"):
            raise ValueError(f"tie = {self.tie!r}: a picture has no words: choose target or none")
        if not self.convolutions and self.patch > self.size:
            raise ValueError(f"patch = {self.patch}: it must be at most size = {self.size}")
        if self.self_attention.startswith("linformer") or "location" in (self.score, self.cross_score):
            raise ValueError(f"{self.self_attention}, {self.score}: they are for texts of one greatest length")

    @property
    def encoding(self) -> blocks.LayerConfig:
        """The layers of the encoder."""
        known = {name: getattr(self, name) for name in blocks.LayerConfig.__dataclass_fields__}
        own = {"feed_forward": self.encoder_feed_forward, "norm_eps": self.encoder_norm_eps}
        own |= {"d_k": self.encoder_d_k, "d_v": self.encoder_d_k, "qkv_bias": self.encoder_qkv_bias}
        return blocks.LayerConfig(**known | {name: x for name, x in own.items() if x is not None})

    @property
    def decoder_attention(self) -> AttentionConfig:
        return replace(super().decoder_attention, gated=self.gated)

    @property
    def cross_attention(self) -> AttentionConfig:
        return replace(super().cross_attention, gated=self.gated)

    @property
    def side(self) -> int:
        """Patches along a side."""
        return patches_along(self.size, self.patch, self.convolutions)


def vit_gpt2(vocabulary: int = 50_257, **changes: Any) -> CaptionerConfig:
    """ViT-base and GPT-2: 239 million parameters."""
    own = CaptionerConfig(vocabulary, encoder_layers=12, decoder_layers=12, d_model=768, d_ff=3072, heads=12, tokens=1)
    own = own.but(norm="pre", positions="learned", scale_embedding=False, attention_dropout=0.1)
    own = own.but(feed_forward="gelu_tanh", encoder_feed_forward="gelu", encoder_norm_eps=1e-12)
    return own.but(**changes)


def latex_ocr(vocabulary: int = 8_000, **changes: Any) -> CaptionerConfig:
    """LaTeX-OCR (Blecher, 2022): formulas up to 672 x 192, grey, as LaTeX; 25 million parameters."""
    own = CaptionerConfig(vocabulary, encoder_layers=4, decoder_layers=4, d_model=256, d_ff=1024, heads=8, tokens=1)
    own = own.but(size=672, height=192, channels=1, residual="2,3,7", norm="pre", positions="learned", max_length=512)
    own = own.but(d_k=64, d_v=64, qkv_bias=False, encoder_d_k=32, encoder_qkv_bias=True, gated=True, tie="none")
    own = own.but(feed_forward="geglu", encoder_feed_forward="gelu", encoder_norm_eps=1e-6, dropout=0.0)
    return own.but(scale_embedding=False, output_bias=True).but(**changes)


def caption_tiny(vocabulary: int, **changes: Any) -> CaptionerConfig:
    """4+4 layers of width 192 for pictures of 96 x 96, with four convolutions before the first: what a CPU trains in
    an hour."""
    own = CaptionerConfig(vocabulary, encoder_layers=4, decoder_layers=4, d_model=192, d_ff=768, heads=3)
    own = own.but(norm="pre", feed_forward="gelu", size=96, convolutions=4)
    return own.but(**changes)


FAMILY = Family(
    CaptionerConfig, Captioner, {"caption-tiny": caption_tiny, "vit-gpt2": vit_gpt2, "latex-ocr": latex_ocr}
)
