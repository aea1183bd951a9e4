"""A model directory, read to be written in another format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.adaptation.change import listed
from regard.core.added import added
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer
from regard.files import read_whole
from regard.models import storage
from regard.models.transformer import TransformerConfig

TOKENIZER = "tokenizer.json"
PAPERS: dict[str, tuple[object, ...]] = {  # the attention of eq. 1, which is all that other programs have
    **dict.fromkeys(("score", "cross_score"), ("dot", None)),
    **dict.fromkeys(("normaliser", "cross_normaliser"), ("softmax", None)),
    **dict.fromkeys(("self_attention", "decoder_self_attention"), ("full", None)),
}


class Source(NamedTuple):
    """What every export begins with."""

    model: Any
    words: Tokenizer | None  # of a model that reads or writes text
    task: Mapping[str, Any] = {}  # what it is for, if that is known
    template: str | None = None  # of a chat

    @classmethod
    def load(cls, directory: str | Path, *, adding: bool = False) -> "Source":
        """The model of a directory, in fp32, and its tokenizer; one that only adds to another, if it may."""
        path = Path(directory) / TOKENIZER
        model: Any = storage.load(directory, dtype=torch.float32)
        if any("prune" in change for change in listed(model)):
            raise ValueError(
                f"{directory} has lost some heads, and other formats have one number of heads for all attentions: "
                "export the model that it was pruned from"
            )
        if added(model) and not adding:
            raise ValueError(f"{directory} adds to another model: export what `regard merge {directory} OUT` makes")
        tokenizer = None
        if getattr(model.config, "vocabulary", 0):
            if not path.is_file():
                raise ValueError(f"{directory} is not a whole model directory: it has no {TOKENIZER}")
            tokenizer = Tokenizer.load(path)
            for name in ("vocabulary", "source_vocabulary"):
                if (size := getattr(model.config, name, None)) not in (None, count := len(tokenizer)):
                    raise ValueError(
                        f"{path} has {count} tokens, but the model's {name} is {size}: they do not belong together"
                    )
        purpose, chat = storage.purpose(directory), Path(directory) / storage.TEMPLATE
        template = read_whole(chat).decode() if chat.is_file() else None
        return cls(model, tokenizer, {} if purpose is None else purpose.task, template)

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def tokenizer(self) -> Tokenizer:
        """That of a model which has one."""
        if self.words is None:
            raise ValueError(f"a {type(self.model).__name__} model has no words: only --to hf is for it")
        return self.words

    @property
    def head(self) -> HeadConfig:
        return getattr(self.model, "head", HeadConfig())

    def is_one(self, format: str, *kinds: type[Any]) -> None:
        """Raise if the model is none of those that a format can have."""
        if type(self.model) not in kinds:
            *others, last = (kind.__name__ for kind in kinds)
            some = f"{', '.join(others)} or {last}" if others else f"a {last}"
            name = type(self.model).__name__
            raise ValueError(
                f"{'an' if name[0] in 'AEIOU' else 'a'} {name} model: only {some} can be exported to {format}"
            )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model by each of its names."""
        return self.model.state_dict()

    @property
    def pieces(self) -> list[str]:
        """The vocabulary, in the order of its ids."""
        return [str(self.tokenizer.rust.id_to_token(i)) for i in range(len(self.tokenizer))]


def refuse(config: Any, format: str, **valid: tuple[object, ...]) -> None:
    """Raise if a setting is none of those that a format can express.

    >>> refuse(TransformerConfig.tiny(50, positions="rope"), "CTranslate2", positions=("sinusoidal", "learned"))
    Traceback (most recent call last):
    ValueError: CTranslate2 cannot express positions = 'rope', only 'sinusoidal', 'learned'
    """
    for name, values in valid.items():
        if (value := getattr(config, name, values[0])) not in values:
            raise ValueError(f"{format} cannot express {name} = {value!r}, only {', '.join(map(repr, values))}")


def same_heads(config: TransformerConfig) -> dict[str, tuple[object, ...]]:
    """The settings of heads that share d_model evenly, for `refuse`."""
    width = config.d_model // config.heads
    return {"kv_heads": (None, config.heads), "d_k": (None, width), "d_v": (None, width)}
