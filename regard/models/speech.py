"""A Transformer whose source is sound: frames of a spectrogram in place of words (Whisper; Radford et al., 2022).

Letters: B batch, T positions, of two frames each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.generation import Reading, longest
from regard.core.masks import causal
from regard.core.stems import Frames
from regard.models.family import Family
from regard.models.transformer import Memory, Transformer, TransformerConfig


class Listener(Transformer):
    """Sound in, text out.

    >>> model = Listener(whisper_tiny(100, places=8, d_model=48))
    >>> model(torch.randn(2, 16, 80), torch.randint(3, 100, (2, 5))).shape
    torch.Size([2, 5, 100])
    """

    reads = "frames"
    alike = True
    config: "ListenerConfig"

    def reading(self, target: nn.Embedding) -> Frames:
        """What makes vectors of sound."""
        c = self.config
        return Frames(c.bands, c.d_model, c.places, c.dropout)

    def encode(self, source: Tensor) -> Memory:
        """frames (B, 2T, bands) -> what the decoder attends to."""
        ahead = self.config.lookahead
        mask = None if ahead is None else causal(ahead)
        return self.remembered(self.encoder(self.source_embedding(source), mask=mask))

    def remembered(self, states: Tensor) -> Memory:
        """What an encoder made of sound, (B, T, d_model) -> what the decoder attends to."""
        return Memory(states)

    def start(self, sources: Sequence[Any], device: torch.device) -> Reading:
        """B sounds, which were encoded before a search begins -> what `step` continues, a row for each."""
        state = Reading(Memory(torch.cat([each.memory.states for each in sources]).to(device)), self.new_cache())
        if len(sources[0]):
            self.extend(torch.tensor([[*each.written] for each in sources], device=device), state)
        return state

    def room(self, source: Any) -> int | None:
        """Tokens that a text may have after those with which it begins."""
        most = longest(self)
        return None if most is None else most - len(source)


@dataclass(frozen=True)
class ListenerConfig(TransformerConfig):
    """Everything that makes a model that hears."""

    tie: str = "target"
    bands: int = 80  # numbers in each frame of sound
    places: int = 1500  # positions of the encoder, two frames each: thirty seconds
    lookahead: int | None = None  # positions that each layer of the encoder may look into the future; left out: all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie not in ("target", "none"):
            raise ValueError(f"tie = {self.tie!r}: a model that reads sound has words to write only: target, or none")

    @property
    def frames(self) -> int:
        """That it hears at once."""
        return 2 * self.places


def speech_tiny(vocabulary: int, **changes: Any) -> ListenerConfig:
    """3+1 layers of width 96 for three seconds: what a CPU trains in minutes."""
    sizes = {"encoder_layers": 3, "decoder_layers": 1, "d_model": 96, "d_ff": 192, "heads": 3}
    own = ListenerConfig(vocabulary, bands=40, places=150, norm="pre", feed_forward="gelu")
    return own.but(**sizes).but(**changes)


def whisper_tiny(vocabulary: int = 51_865, **changes: Any) -> ListenerConfig:
    """Whisper of Radford et al. (2022), the smallest: 38 million parameters."""
    sizes = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 384, "d_ff": 1536, "heads": 6, "max_length": 448}
    own = {"norm": "pre", "feed_forward": "gelu", "positions": "learned", "scale_embedding": False, "dropout": 0.0}
    return ListenerConfig(vocabulary).but(**sizes, **own).but(**changes)


FAMILY = Family(ListenerConfig, Listener, {"whisper-tiny": whisper_tiny, "speech-tiny": speech_tiny})
