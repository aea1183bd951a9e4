"""A model without some of its heads: smaller in memory and on disk, and the same function as with these silenced.

`encoder.layers.0.self_attention:1,3 decoder.layers.2.cross_attention:0` names three heads of two attentions; nothing
after a colon is no head at all. Heads are counted from 0.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.checks import hint
from regard.core.added import added
from regard.core.attention import MultiHeadAttention
from regard.core.cache import KeyValues
from regard.core.monotonic import Monotonic
from regard.core.positions import ALiBi, Positions, Rotary, Shaw, T5Bias
from regard.core.quantised import bits_of
from regard.core.scores import Additive, General, Location
from regard.inspection.taps import attentions

Model = TypeVar("Model", bound=nn.Module)
# Which axis of which parameter is a query head; of an additive score's keys it is a key head.
AXES: dict[type[nn.Module], dict[str, int]] = {
    General: {"matrix": 0},
    Additive: {"query": 0, "key": 0, "vector": 0},
    Location: {"table": 0},
    Monotonic: {"offset": 0},
    Shaw: {"table": 0},
}
PROJECTIONS = {"query", "key_value", "query_key_value", "output", "positions"}


@dataclass(frozen=True)
class Prune:
    """Of each attention that is named, only these heads, by the numbers they have when it is applied; else all."""

    kept: Mapping[str, Sequence[int]]

    def apply(self, model: Model) -> Model:
        """The model with these heads alone, in place. Slopes and biases of positions stay with their heads."""
        known, places = attentions(model), {module: path for path, module in model.named_modules()}
        if not isinstance(self.kept, Mapping) or not all(
            isinstance(heads, list | tuple) and all(type(head) is int for head in heads) for heads in self.kept.values()
        ):
            raise ValueError(f"kept = {self.kept!r}: it is the heads of each attention by name")
        check_prunable(model)
        for name, heads in self.kept.items():
            left = _checked(name, heads, known)
            attention = known[name]
            if not left:
                model.set_submodule(places[attention], Headless(attention))
            elif len(left) < attention.heads:
                _cut(attention, left)
        return model


def prune(model: Model, heads: Mapping[str, Iterable[int]]) -> Model:
    """A new model without these heads, by attention; the old one stays as it is.

    Heads are numbered as the model has them now. It remembers them by their first numbers in `model.changes`. What is
    left of an attention without any head is the bias of W_O.

    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> smaller = prune(model, {"encoder.layers.0.self_attention": [1, 3], "decoder.layers.3.self_attention": range(4)})
    >>> attentions(smaller)["encoder.layers.0.self_attention"].heads, len(attentions(smaller))
    (2, 11)
    """
    check_prunable(model)
    known, kept = attentions(model), {}
    for name, numbers in heads.items():
        if gone := _checked(name, numbers, known):
            kept[name] = [head for head in range(known[name].heads) if head not in gone]
    smaller = Prune(kept).apply(copy.deepcopy(model))
    before: list[Any] = getattr(model, "changes", [])
    first = next((change.kept for change in before if isinstance(change, Prune)), {})
    kept = {name: [first[name][head] for head in left] if name in first else left for name, left in kept.items()}
    others = [change for change in before if not isinstance(change, Prune)]
    smaller.changes = [Prune({**first, **kept}), *others] if first or kept else others  # type: ignore[assignment]
    return smaller


def of_text(text: str) -> Prune | None:
    """What format 1 of a model directory calls kept_heads; None if it names no attention."""
    return Prune({name: list(heads) for name, heads in read_heads(text).items()}) if text.strip() else None


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


def check_prunable(model: nn.Module) -> None:
    """Refuse a model whose attentions have more than what belongs to one head or another."""
    known = attentions(model)
    if not known:
        raise ValueError(f"a {type(model).__name__} model has no heads to prune")
    if added(model):
        raise ValueError("no head is pruned under what was added to a model: merge it first, with `regard merge`")
    if any(getattr(module, "of_heads", False) for module in model.modules()):
        raise ValueError(f"a {type(model).__name__} model cannot lose a head: what it adds to scores is of all of them")
    if bits_of(model) == 4:
        raise ValueError(
            "no head is pruned out of groups of four bits: prune the model they were made of, then quantize"
        )
    seen: dict[Any, str] = {}
    for name, attention in known.items():
        c = attention.config
        own = {f"{path}.{of}" for path, m in attention.named_modules() for of in AXES.get(type(m), ())}
        more = {key.partition(".")[0] for key in attention.state_dict() if key not in own} - PROJECTIONS
        more |= {"a gate"} if c.gated else set()
        if more or not (c.project and c.output):
            shared = " and ".join(sorted(more)) or "slices"
            has = f"{shared} that all heads share" if more or not c.project else "no W_O"
            raise ValueError(
                f"{name} cannot lose a head: {c.kind} attention by {c.score} score and {c.normaliser} has {has}"
            )
        if (first := seen.setdefault(attention.output.weight, name)) != name:
            raise ValueError(f"{name} cannot lose a head: it is the same layer as {first}, gone through again")


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

    heads = 0

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        output: Any = attention.output
        self.bias = output.bias
        self.train(attention.training)

    def forward(self, x: Tensor, *_: object, cache: KeyValues | None = None, **__: object) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model), as an attention is called; a cache counts the positions."""
        if cache is not None:
            cache.length += x.shape[1]
        return torch.zeros_like(x) if self.bias is None else self.bias.expand_as(x)

    def new_cache(self) -> KeyValues:
        """A past that counts positions."""
        return KeyValues()


class SomeT5(T5Bias):
    """Some columns of a table that all layers of a stack share."""

    def __init__(self, all_heads: T5Bias, heads: list[int]) -> None:
        with torch.device("meta"):  # the table is the old one: another layer may use the other columns
            super().__init__(1, all_heads.both_ways, all_heads.buckets, all_heads.maximum)
        self.table, self.heads = all_heads.table, heads

    def bias(self, q: Tensor, keys: int, offset: int = 0, scale: float = 1.0) -> Tensor:
        return super().bias(q, keys, offset, scale)[:, self.heads]


def _checked(name: str, heads: Iterable[int], known: Mapping[str, MultiHeadAttention]) -> list[int]:
    """The numbers of some heads of an attention, in their order."""
    if name not in known:
        raise ValueError(f"no attention is named {name!r}: {hint(name, known)}")
    numbers, count = sorted(set(heads)), known[name].heads
    if beyond := [head for head in numbers if not 0 <= head < count]:
        raise ValueError(f"{name} has heads 0..{count - 1}, not {beyond[0]}")
    return numbers


def _cut(attention: MultiHeadAttention, left: list[int]) -> None:
    """Leave an attention only the heads `left`, in place."""
    # How many keys serve them is a matter of its first heads, of which some may have gone before.
    heads, kv_heads, first = getattr(attention, "first", (attention.heads, attention.kv_heads, range(attention.heads)))
    first = [first[head] for head in left]
    keys = _keys(attention, left, len(kept_keys(heads, kv_heads, first)))
    for module in attention.modules():
        for name, axis in AXES.get(type(module), {}).items():
            some = keys if isinstance(module, Additive) and name == "key" else left
            setattr(module, name, _some(getattr(module, name), some, axis))
    attention.positions = _positions(attention.positions, left)
    q = _numbers(left, attention.d_k)
    k, v = _numbers(keys, attention.d_k), _numbers(keys, attention.d_v)
    Q, K, _ = attention.widths  # where keys and values begin, in products that lie side by side
    if attention.cross:
        _cut_product(attention.query, q)
        _cut_product(attention.key_value, [*k, *(K + i for i in v)])
    else:
        _cut_product(attention.query_key_value, [*q, *(Q + i for i in k), *(Q + K + i for i in v)])
    _cut_product(attention.output, _numbers(left, attention.d_v), 1)
    d_k, d_v = attention.d_k, attention.d_v
    attention.first = heads, kv_heads, first  # type: ignore[assignment]  # a note, in plain numbers
    attention.heads, attention.kv_heads, attention.widths = len(left), len(keys), [len(q), len(k), len(v)]
    attention.config = replace(attention.config, heads=len(left), kv_heads=len(keys), d_k=d_k, d_v=d_v)


def _positions(positions: Positions, left: list[int]) -> Positions:
    """The same for some heads, where several layers may share them; a table of its own is cut already."""
    if isinstance(positions, T5Bias):
        columns = positions.heads if isinstance(positions, SomeT5) else range(positions.table.shape[1])
        return SomeT5(positions, [columns[head] for head in left])
    if isinstance(positions, ALiBi):
        some = ALiBi(len(positions.slopes))
        some.slopes = tuple(positions.slopes[head] for head in left)
        return some
    if type(positions) not in (Positions, Rotary, Shaw):
        raise ValueError(f"{type(positions).__name__} positions: nobody knows which part of them is a head's")
    return positions


def _keys(attention: MultiHeadAttention, left: list[int], kv_heads: int) -> list[int]:
    """The key/value heads that so many, in their order, become, which serve the heads `left` evenly."""
    group, each = attention.heads // attention.kv_heads, len(left) // kv_heads
    found = []
    for i in range(0, len(left), each):
        first, *copies = sorted({head // group for head in left[i : i + each]})
        if any(not _same(attention, first, copy) for copy in copies):
            raise ValueError(f"key/value heads {first} and {copies[0]} were one, and have been trained apart since")
        found.append(first)
    return found


def _same(attention: MultiHeadAttention, one: int, other: int) -> bool:
    """Whether two key/value heads are copies of each other."""
    product: Any = attention.key_value if attention.cross else attention.query_key_value
    Q, K, _ = attention.widths
    keys = 0 if attention.cross else Q
    a, b = (
        [*(keys + n for n in _numbers([i], attention.d_k)), *(keys + K + n for n in _numbers([i], attention.d_v))]
        for i in (one, other)
    )
    scored = getattr(getattr(attention, "score", None), "key", None)  # what an additive score makes of each key
    return (scored is None or torch.equal(scored[one], scored[other])) and all(
        torch.equal(x[a], x[b])
        for x in (product.weight, product.bias, getattr(product, "scale", None))
        if x is not None
    )


def _numbers(heads: list[int], width: int) -> list[int]:
    """Where the numbers of some heads lie in a product that makes so many for each."""
    return [head * width + i for head in heads for i in range(width)]


def _some(x: nn.Parameter, numbers: list[int], axis: int = 0) -> nn.Parameter:
    return nn.Parameter(x.detach().index_select(axis, torch.tensor(numbers, device=x.device)), x.requires_grad)


def _cut_product(product: Any, numbers: list[int], axis: int = 0) -> None:
    """Some outputs (axis 0) or inputs (axis 1) of a product, be it in whole numbers or not."""
    product.weight = _some(product.weight, numbers, axis)
    for name in ("bias", "scale"):
        if axis == 0 and getattr(product, name, None) is not None:
            setattr(product, name, _some(getattr(product, name), numbers))
    product.out_features, product.in_features = product.weight.shape
