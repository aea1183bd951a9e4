"""Some of the heads of a model: as text, and what is left of an attention that keeps only these.

`encoder.layers.0.self_attention:1,3 decoder.layers.2.cross_attention:0` names three heads of two attentions; nothing
after a colon is no head at all. Heads are counted from 0.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from regard.core.cache import KeyValues


def read_heads(text: str) -> dict[str, tuple[int, ...]]:
    """The heads that a text names, of each attention in their order.

    >>> read_heads("encoder.layers.0.self_attention:3,1 decoder.layers.2.cross_attention:")
    {'encoder.layers.0.self_attention': (1, 3), 'decoder.layers.2.cross_attention': ()}
    """
    heads: dict[str, tuple[int, ...]] = {}
    for part in text.split():
        name, colon, numbers = part.rpartition(":")
        each = [number for number in numbers.split(",") if number]
        if not colon or not name or not all(number.isascii() and number.isdigit() for number in each):
            raise ValueError(f"{part!r} names no heads: write, for example, encoder.layers.0.self_attention:1,3")
        if name in heads:
            raise ValueError(f"{name} is named twice: name all its heads at once, as in {name}:1,3")
        heads[name] = tuple(sorted(set(map(int, each))))
    return heads


def write_heads(heads: Mapping[str, Iterable[int]]) -> str:
    """What `read_heads` reads.

    >>> write_heads({"encoder.layers.0.self_attention": [1, 3]})
    'encoder.layers.0.self_attention:1,3'
    """
    return " ".join(f"{name}:{','.join(map(str, numbers))}" for name, numbers in heads.items())


def kept_keys(heads: int, kv_heads: int, kept: Sequence[int]) -> list[int]:
    """Which key/value heads serve some of the query heads, where all of `heads` share `kv_heads` evenly.

    A key/value head goes with the last query head that reads it. Each of those that stay serves as many query heads as
    every other: where they no longer come in equal numbers, one that serves more is there several times.

    >>> kept_keys(8, 2, [0, 1, 5, 7]), kept_keys(8, 2, [0, 1, 2, 3]), kept_keys(8, 2, [0, 1, 2, 3, 6, 7])
    ([0, 1], [0], [0, 0, 1])
    """
    readers = Counter(head // (heads // kv_heads) for head in sorted(kept))
    each = math.gcd(*readers.values())  # 0 of no readers at all: then there is no key either
    return [key for key, count in readers.items() for _ in range(count // each)]


class Headless(nn.Module):
    """An attention that has lost all of its heads: the bias of W_O alone is left."""

    def __init__(self, d_model: int, *, bias: bool = True) -> None:
        super().__init__()
        self.d_model = d_model
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(
        self, x: Tensor, memory: object = None, *, mask: object = None, cache: KeyValues | None = None
    ) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model), as an attention is called; a cache counts the positions."""
        if cache is not None:
            cache.length += x.shape[1]
        return torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)
