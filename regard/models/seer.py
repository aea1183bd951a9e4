"""A language model that sees: among its words stand the patches of a picture, projected into its space (LLaVA).

Letters: B batch, N pictures, C channels, H and W height and width in pixels, P patches of a picture, T length.

LLaVA (Liu et al., 2023) is a vision encoder, a network of two layers on each of its patches, and a decoder that reads
these as it reads words. What stands for the whole picture in the encoder, its first token, is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.core import blocks
from regard.core.cache import Cache
from regard.core.generation import Illustrated, Source
from regard.models.decoder import Decoder, DecoderConfig, llama_tiny
from regard.models.family import Family, named
from regard.models.vision import Vision, VisionConfig

PLACE = -1  # of a patch among tokens, where no token of the vocabulary means it
TOWERS = {"vision": "", "pair": "picture_"}  # families that see, and what their tensors begin with
# Of a model that sees, by its own names, and by those that they have here.
OWN = ("layers", "d_model", "d_ff", "heads", "positions", "feed_forward", "norm_eps", "tokens")
FREE = ("dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth", "backend", "max_length")
COMMON = ("size", "channels", "patch", "convolutions", "kernel", "first_norm")


class Seer(Decoder):
    """Pictures and text in, more text out.

    >>> model = Seer(seer_tiny(vocabulary=100, size=32))
    >>> tokens = torch.tensor([[5, *[PLACE] * model.config.places, 6, 7]])
    >>> model(tokens, torch.randn(1, 3, 32, 32)).shape
    torch.Size([1, 7, 100])
    """

    reads = "both"
    towers: ClassVar[dict[str, tuple[str, bool]]] = {"sight": ("pixels", False)}
    config: "SeerConfig"

    def __init__(self, config: "SeerConfig") -> None:
        super().__init__(config)
        c = config
        self.sight = Vision(c.sight)
        self.project = nn.Sequential(
            nn.Linear(c.picture_d_model, c.d_model), nn.GELU(), nn.Linear(c.d_model, c.d_model)
        )
        self.project.apply(self._draw)
        if c.before_end:  # what comes after is there, but nothing reads it
            for part in (self.sight.encoder.norm, *self.sight.encoder.layers[c.read_layers :]):
                part.requires_grad_(False)

    def forward(self, tokens: Tensor, pixels: Tensor | None = None, documents: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """tokens (B, T), of which the places of patches are those of pixels (N, C, H, W) -> logits (B, T, V)."""
        return self.output(self.features(tokens, documents=documents, pixels=pixels))

    def features(  # type: ignore[override]
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        documents: Tensor | None = None,
        pixels: Tensor | None = None,
    ) -> Tensor:
        """What the output layer reads, (B, T, d_model)."""
        if pixels is None:
            return super().features(tokens, cache, documents)
        at, vectors = tokens == self.config.place, self.seen(pixels)
        if (places := int(at.sum())) != (count := vectors.shape[0] * vectors.shape[1]):
            raise ValueError(f"{len(pixels)} pictures have {count} patches, and the text {places} places for them")
        return super().features(tokens, cache, documents, (at, vectors))

    def seen(self, pixels: Tensor) -> Tensor:
        """pixels (N, C, H, W) -> what stands for their patches among words, (N, P, d_model)."""
        c, x = self.config, self.sight.stem(pixels)
        if c.before_end:
            for layer in self.sight.encoder.layers[: c.read_layers]:
                x = layer(x)
        else:
            x = self.sight.encoder(x)
        return self.project(x[:, c.picture_tokens :])

    def start(self, sources: Sequence[Any], device: torch.device) -> Any:
        """B prompts without their last tokens, with pictures in some of them -> a cache of them, a row for each."""
        if not (shown := [each for each in sources if isinstance(each, Illustrated)]):
            return super().start(sources, device)
        ids: list[Source] = [each.ids if isinstance(each, Illustrated) else each for each in sources]
        cache, like = self.new_cache(), next(p for p in self.parameters() if p.is_floating_point())
        pixels = torch.cat([each.pixels for each in shown]).to(like)
        self.features(torch.tensor(ids, device=device), cache, pixels=pixels)
        return cache


@dataclass(frozen=True)
class SeerConfig(DecoderConfig):
    """Everything that makes a language model that sees; what is not of pictures by its name is of texts."""

    size: int = 224  # pixels along a side of the pictures that it learns from
    channels: int = 3  # of colours; 1: shades of grey
    patch: int = 16  # pixels along a side of a patch
    convolutions: int = 0  # layers that make the patches, each of which halves the sides; 0: the patches are cut out
    kernel: int = 3  # of these convolutions
    first_norm: bool = False  # patches are normalised before the first layer, and cut out without a bias (CLIP)
    picture_layers: int = 12
    picture_d_model: int = 768
    picture_d_ff: int = 3072
    picture_heads: int = 12
    picture_positions: str = "learned"
    picture_feed_forward: str = "gelu"
    picture_norm_eps: float = 1e-12
    picture_tokens: int = 0  # before the patches, which are left out
    before_end: int = 0  # what comes before the encoder's last norm is read: 1; before its last layer, too: 2 (LLaVA)
    image: int | None = None  # the token that has the places of patches; left out: none, and -1 says where they are

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.sight  # which checks what is of pictures
        if self.before_end > self.picture_layers:
            raise ValueError(f"before_end = {self.before_end}: of {self.picture_layers} layers at least one is read")
        if self.image is not None and self.image >= self.vocabulary:
            raise ValueError(f"image = {self.image} is no token: the vocabulary has ids 0..{self.vocabulary - 1}")

    @property
    def sight(self) -> VisionConfig:
        """The encoder of pictures."""
        own = {name: getattr(self, f"picture_{name}") for name in OWN} | {name: getattr(self, name) for name in COMMON}
        return VisionConfig(**own)

    @property
    def read_layers(self) -> int:
        """Layers of the encoder that pictures go through."""
        return self.picture_layers - max(0, self.before_end - 1)

    @property
    def places(self) -> int:
        """Patches of a picture."""
        return self.sight.side**2

    @property
    def place(self) -> int:
        """What stands for a patch among tokens."""
        return PLACE if self.image is None else self.image


def joined(language: Any, sees: Any) -> SeerConfig:
    """The config of two models, one that writes and one that sees: what both have learnt fits into it."""
    if type(language) is not DecoderConfig or (family := named(sees)) not in TOWERS:
        kinds = f"{named(language)} and {named(sees)}"
        raise ValueError(f"a language model sees by an encoder of pictures (ViT, CCT, CLIP): these are {kinds}")
    if family == "pair":
        pictures = asdict(sees.pictures) | {"layers": sees.picture_layers, "tokens": 1, "first_norm": True}
    else:
        pictures = asdict(sees)
    own = {f"picture_{name}": pictures[name] for name in OWN}
    own |= {name: pictures.get(name, getattr(sees, name, getattr(VisionConfig, name))) for name in COMMON}
    made = SeerConfig(**asdict(language), **own)
    for name, value in vars(made.sight).items():
        if name in blocks.LayerConfig.__dataclass_fields__ and value != pictures[name] and name not in FREE:
            raise ValueError(f"an encoder with {name} = {pictures[name]!r} cannot be one of a language model that sees")
    return made


def sight_of(sees: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model with this config, which sees, by the names that they have here."""
    own = TOWERS[named(sees)]
    parts = tuple(f"{own}{part}." for part in ("stem", "encoder"))
    return {f"sight.{name.removeprefix(own)}": x for name, x in tensors.items() if name.startswith(parts)}


def seer_tiny(vocabulary: int, **changes: Any) -> SeerConfig:
    """4+4 layers of width 192 for pictures of 96 x 96, with four convolutions before the first, and the parts of Llama:
    what a CPU trains in an hour."""
    language = llama_tiny(vocabulary, d_model=192, d_ff=512, heads=3)
    sees = VisionConfig(layers=4, d_model=192, d_ff=768, heads=3, size=96, convolutions=4, norm_eps=1e-5)
    return joined(language, sees).but(**changes)


FAMILY = Family(SeerConfig, Seer, {"seer-tiny": seer_tiny})
