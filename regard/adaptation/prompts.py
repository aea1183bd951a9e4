"""What stands before a text, taught instead of written: vectors before those of its words, or keys and values.

Prompt tuning (Lester et al., 2021) has vectors that go before the embeddings of the input and take positions. Prefix
tuning (Li & Liang, 2021) has keys and values in every attention; while they are taught, they may be made of a smaller
network, which is left behind when they are saved.

Letters: n virtual tokens, G key/value heads, d_k and d_v widths of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checks import at_least
from regard.core.added import Added
from regard.core.attention import MultiHeadAttention
from regard.core.blocks import DecoderLayer, EncoderLayer
from regard.core.stems import Embedding

PLACES = ("encoder", "decoder", "cross")
INITIAL = 0.02  # standard deviation of keys and values at first


class Vectors(Added):
    """Vectors before those of the tokens."""

    def __init__(self, length: int, table: nn.Module) -> None:
        super().__init__()
        self.length, whole = length, next(iter(table.parameters()))
        device = whole.device
        self.vectors = nn.Parameter(torch.empty(length, whole.shape[1], device=device))
        if not whole.is_meta:  # as words that are drawn, which is better than noise
            with torch.no_grad():
                self.vectors.copy_(table(torch.randint(len(whole), (length,)).to(device)))

    def merge(self, module: nn.Module) -> None:
        raise ValueError("a prompt is read with each text, and no change of weights")


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors before those of the words that are read."""

    length: int = 20  # n: they take so many positions

    def __post_init__(self) -> None:
        at_least(1, length=self.length)

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"prompt of {self.length} vectors"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        stem = _read_first(model)
        if stem is None:
            raise ValueError(f"prompt finds nothing to change: a {type(model).__name__} model reads no words by layers")
        if stem.prompt is not None:
            raise ValueError("there is something called 'prompt' already: a model has one prompt, make it longer")
        stem.prompt = Vectors(self.length, stem.tokens)
        return _ahead(model, self.length)


def _read_first(model: nn.Module) -> Embedding | None:
    """The embedding of what a model of layers reads: of an encoder-decoder, the encoder's."""
    stem = getattr(model, "stem", None) or getattr(model, "source_embedding", None)
    return stem if isinstance(stem, Embedding) and _layers(model) else None


def _layers(model: nn.Module) -> list[EncoderLayer | DecoderLayer]:
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def _ahead(model: nn.Module, n: int) -> nn.Module:
    """The model, noting that n positions are taken."""
    ahead, longest = getattr(model, "ahead", 0) + n, getattr(model.config, "longest", None)
    model.ahead = ahead  # type: ignore[assignment]
    if longest is not None and ahead >= longest:
        raise ValueError(f"length = {n}: the model has {longest} positions, and a text needs some of them")
    return model


class Root(nn.Module):
    """What all keys and values of a prefix are made of while they are taught: tanh(E W)."""

    def __init__(self, length: int, hidden: int, d_model: int, like: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(like.new_empty(length, d_model))
        self.inner, self.bias = nn.Parameter(like.new_empty(hidden, d_model)), nn.Parameter(like.new_zeros(hidden))
        if not like.is_meta:
            nn.init.normal_(self.vectors)
            nn.init.uniform_(self.inner, -(d_model**-0.5), d_model**-0.5)

    def forward(self) -> Tensor:
        return torch.tanh(F.linear(self.vectors, self.inner, self.bias))  # (n, hidden)


class KeysValues(Added):
    """Keys and values of an attention, before all others."""

    def __init__(self, length: int, of: MultiHeadAttention, like: Tensor, root: Root | None) -> None:
        super().__init__()
        self.length, self.root = length, root
        self.sizes = (of.kv_heads, of.d_k), (of.kv_heads, of.d_v)
        if root is None:
            shapes = [(heads, length, d) for heads, d in self.sizes]
            self.keys, self.values = (nn.Parameter(like.new_empty(shape)) for shape in shapes)
            drawn = [self.keys, self.values]
        else:
            wide, hidden = sum(heads * d for heads, d in self.sizes), len(root.inner)
            self.outer, self.bias = nn.Parameter(like.new_empty(wide, hidden)), nn.Parameter(like.new_zeros(wide))
            drawn = [self.outer]
        for x in drawn if not like.is_meta else ():
            nn.init.normal_(x, std=INITIAL)

    def key_value(self) -> tuple[Tensor, Tensor]:
        """(G, n, d_k), (G, n, d_v)."""
        if self.root is None:
            return self.keys, self.values
        made = F.linear(self.root(), self.outer, self.bias)
        parts = made.split([heads * d for heads, d in self.sizes], -1)
        keys, values = (x.unflatten(1, size).transpose(0, 1) for x, size in zip(parts, self.sizes, strict=True))
        return keys, values

    def merge(self, module: nn.Module) -> None:
        raise ValueError("a prefix is looked at by each token, and no change of weights")


class Shifted(Added):
    """So many positions before the first token, that only attention knows of."""

    roles = ()

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def merge(self, module: nn.Module) -> None:
        raise ValueError("a prefix is looked at by each token, and no change of weights")


@dataclass(frozen=True)
class Prefix:
    """Keys and values before those of the tokens, in every layer."""

    length: int = 20  # n: they take so many positions
    hidden: int | None = None  # they are made of a network with such an inside, until they are saved
    where: Sequence[str] = PLACES  # attentions: encoder, decoder, cross

    def __post_init__(self) -> None:
        at_least(1, length=self.length, hidden=self.hidden)
        if not isinstance(self.where, list | tuple) or not self.where or set(self.where) - set(PLACES):
            raise ValueError(f"where = {self.where!r}: it is a list of {', '.join(PLACES)}")

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"prefix of {self.length} keys and values in {places} attentions"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        root: Root | None = None
        found = set[str]()
        for layer in _layers(model):
            own = "encoder" if isinstance(layer, EncoderLayer) else "decoder"
            for place, residual in ((own, layer.self_attention), ("cross", getattr(layer, "cross_attention", None))):
                attention = getattr(residual, "sublayer", None)
                if residual is None or place not in self.where or not isinstance(attention, MultiHeadAttention):
                    continue
                c = attention.config
                if not (c.plain and c.kind == "full" and c.project):
                    raise ValueError(f"prefix is of full attention: {c.kind} attention by {c.score} score has no place")
                if attention.prefix is not None:
                    raise ValueError("there is something called 'prefix' already: a model has one, make it longer")
                like: Any = residual.norm.weight
                if root is None and self.hidden is not None:
                    root = Root(self.length, self.hidden, c.d_model, like)
                attention.prefix = KeysValues(self.length, attention, like, root)
                found.add(place)
        if not found:
            raise ValueError(
                f"prefix finds nothing to change: a {type(model).__name__} has no attention {', '.join(self.where)}"
            )
        stems: dict[str, Any] = {
            "encoder": _read_first(model),
            "decoder": getattr(model, "target_embedding", _read_first(model)),
        }
        for stem in (stems.get(place) for place in found):
            if isinstance(stem, Embedding):  # pictures and sounds have their own places
                stem.prefix = Shifted(self.length)
        return _ahead(model, self.length)

    def settled(self, model: nn.Module) -> "Prefix":
        """In place: keys and values by themselves, whatever they were made of."""
        for module in model.modules():
            if isinstance(module, MultiHeadAttention) and isinstance(made := module.prefix, KeysValues) and made.root:
                plain = KeysValues(self.length, module, made.outer, None)
                with torch.no_grad():
                    for to, x in zip((plain.keys, plain.values), made.key_value(), strict=True):
                        to.copy_(x)
                module.prefix = plain
        return replace(self, hidden=None)
