"""Sounds by their kind: a sound in, its class out. It is recognition, of what is heard and not seen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from regard.data.corpora import fetched
from regard.data.recordings import SoundFiles
from regard.data.rows import RowFiles
from regard.data.sound import Ear, SpecAugment
from regard.native import UnsupportedError
from regard.tasks.classify import Evaluation
from regard.tasks.recognise import Recognise, RecogniseConfig, Recogniser
from regard.tasks.task import Data, Sections
from regard.tasks.uses import ClassifyUse
from regard.tasks.viewer import Looks, Viewed


@dataclass(frozen=True)
class SoundConfig(Data):
    """Where sounds and labels come from."""

    train: SoundFiles | None = None  # your own files
    valid: SoundFiles | None = None  # held out of train if left out
    test: SoundFiles | None = None  # held out of train if left out
    augment: SpecAugment = field(default_factory=SpecAugment)  # what is done to them by chance while a model learns
    files_of: ClassVar[type[RowFiles]] = SoundFiles

    def of_corpus(self, name: str, progress: Any) -> dict[str, Any]:
        found = fetched(name, progress=progress)
        return {split: self.files_of(jsonl=str(path)) for split, (path, *_) in found.items()}


def hearing(recipe: Any, example: str) -> Any:
    """The config of the model of a recipe, if it hears; it is of any vocabulary."""
    c = recipe.model.build(2)
    if getattr(c, "bands", None) is None:
        preset = recipe.model.preset
        raise ValueError(f"task.name = {recipe.task.name}: a model like {preset} does not hear; take {example}")
    return c


@dataclass(frozen=True)
class HearConfig(RecogniseConfig):
    """What a model is for."""

    name: str = "hear"


class Hearer(Recogniser):
    """A model that tells what kind of sound something is.

    >>> hearer = load("runs/digits")                  # doctest: +SKIP
    >>> hearer.classify("seven.wav").label            # doctest: +SKIP
    '7'
    """

    def native(self, model: nn.Module) -> Looks:
        raise UnsupportedError("sounds that are told by their kind")

    def size(self, asks: Sequence[Viewed], settings: Any = None) -> tuple[int, int]:
        c: Any = self.model.config
        return len(asks) * c.positions_in_all, 0


@dataclass(frozen=True)
class Hear(Recognise):
    """A sound in, its class out."""

    sight: Ear = field(default_factory=Ear)  # type: ignore[assignment]  # what is heard at once
    augment: SpecAugment = field(default_factory=SpecAugment)  # type: ignore[assignment]

    name, called, verb = "hear", "sound classification", "classify"
    sections = Sections(HearConfig, SoundConfig, ClassifyUse, Evaluation)
    row, rows = "sound", "sounds"
    reads = "frames"
    opened = Hearer

    @classmethod
    def of(cls, recipe: Any) -> "Hear":
        t, d, c = recipe.task, recipe.data, hearing(recipe, "ast-tiny")
        pool = t.pool or ("first" if getattr(c, "tokens", 0) else "mean")
        return cls((), t.kind, None, pool, t.hidden, t.dropout, Ear(c.bands, c.frames), d.augment)


TASK = Hear
