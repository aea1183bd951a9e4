"""A model without some of its heads: smaller in memory and on disk, and the same function as with these silenced."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.heads import Headless, kept_keys, write_heads
from regard.core.monotonic import Monotonic
from regard.core.quantised import Int8Linear
from regard.inspection.taps import attentions

Model = TypeVar("Model", bound=nn.Module)
# Of these, each head has a part of its own.
PARTS = {"query", "key_value", "query_key_value", "output", "positions", "score", "normalise"}


def prune(model: Model, heads: Mapping[str, Iterable[int]]) -> Model:
    """A new model without these heads, by attention; the old one stays as it is.

    Heads are numbered as the model has them now. Its config remembers them by their first numbers, for slopes and
    biases of positions belong to those. What is left of an attention without any head is the bias of W_O.

    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> smaller = prune(model, {"encoder.layers.0.self_attention": [1, 3], "decoder.layers.3.self_attention": range(4)})
    >>> attentions(smaller)["encoder.layers.0.self_attention"].heads, len(attentions(smaller))
    (2, 11)
    """
    check_prunable(model)
    known = attentions(model)
    smaller: Any = copy.deepcopy(model)
    places = {module: path for path, module in smaller.named_modules()}
    kept: dict[str, tuple[int, ...]] = smaller.config.kept
    for name, numbers in heads.items():
        if name not in known:
            near = get_close_matches(name, known, n=1) or list(known)
            raise ValueError(f"no attention is named {name!r}: did you mean {near[0]}?")
        count, gone = known[name].heads, set(numbers)
        if beyond := sorted(gone - set(range(count))):
            raise ValueError(f"{name} has heads 0..{count - 1}, not {beyond[0]}")
        left = [head for head in range(count) if head not in gone]
        if gone:
            attention, kept[name] = attentions(smaller)[name], tuple(kept[name][head] for head in left)
            # How many keys serve them is what the config says of them: heads may have gone before.
            first = smaller.config.attention
            keys = kept_keys(first.heads, first.kv_heads or first.heads, kept[name])
            smaller.set_submodule(places[attention], _without(attention, left, len(keys)))
    smaller.config = smaller.config.but(kept_heads=write_heads(kept))
    return smaller


def check_prunable(model: nn.Module) -> None:
    """Refuse a model whose attentions have more than what belongs to one head or another."""
    if not hasattr(getattr(model, "config", None), "kept_heads"):
        raise ValueError(f"the heads of a {type(model).__name__} model cannot be pruned, only a Transformer's")
    for name, attention in attentions(model).items():
        more = {key.partition(".")[0] for key in attention.state_dict()} - PARTS
        if more or not attention.config.project:
            c = attention.config
            raise ValueError(
                f"{name} cannot lose a head: {c.kind} attention by {c.score} score and {c.normaliser} has "
                f"{' and '.join(sorted(more)) or 'slices'} that all heads share"
            )


def _without(attention: MultiHeadAttention, left: list[int], kv_heads: int) -> nn.Module:
    """The attention with only the heads `left`, which so many key/value heads serve."""
    output: Any = attention.output
    if isinstance(output, nn.Identity):
        raise ValueError("an attention without W_O cannot lose a head: its output would become narrower")
    if not left:
        headless = Headless(attention.config.d_model, bias=False)
        headless.bias = output.bias
        return headless.train(attention.training)
    keys = _keys(attention, left, kv_heads)
    q = _numbers(left, attention.d_k)
    k, v = _numbers(keys, attention.d_k), _numbers(keys, attention.d_v)
    Q, K, _ = attention.widths  # where keys and values begin, in products that lie side by side
    with torch.device("meta"):  # its parameters are made below
        d_memory = attention.key_value.in_features if attention.cross else None
        positions = attention.positions.of(left)
        shape = replace(attention.config, heads=len(left), kv_heads=kv_heads, d_k=attention.d_k, d_v=attention.d_v)
        made = MultiHeadAttention(shape, d_memory=d_memory)
    mix: Any = attention.mix
    made.positions = positions
    made.score = made.mix.score = mix.score.of(left, keys)
    if isinstance(mix.normalise, Monotonic):
        made.normalise = made.mix.normalise = mix.normalise.of(left)
    if attention.cross:
        made.query = _product(attention.query, made.query, rows=q)
        made.key_value = _product(attention.key_value, made.key_value, rows=torch.cat([k, K + v]))
    else:
        made.query_key_value = _product(
            attention.query_key_value, made.query_key_value, rows=torch.cat([q, Q + k, Q + K + v])
        )
    made.output = _product(output, made.output, columns=_numbers(left, attention.d_v))
    return made.train(attention.training)


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
        torch.cat([keys + _numbers([i], attention.d_k), keys + K + _numbers([i], attention.d_v)]) for i in (one, other)
    )
    scored = getattr(attention.score, "key", None)  # what an additive score makes of each key
    return (scored is None or torch.equal(scored[one], scored[other])) and all(
        torch.equal(x[a], x[b])
        for x in (product.weight, product.bias, getattr(product, "scale", None))
        if x is not None
    )


def _numbers(heads: list[int], width: int) -> Tensor:
    """Where the numbers of some heads lie in a product that makes so many for each."""
    return (torch.tensor(heads)[:, None] * width + torch.arange(width)).flatten()


def _product(old: Any, new: Any, rows: Tensor | None = None, columns: Tensor | None = None) -> Any:
    """Some outputs and inputs of a product, as `new` has them."""

    def some(x: Tensor, columns: Tensor | None = None) -> nn.Parameter:
        part = x.detach() if rows is None else x.detach()[rows]
        return nn.Parameter(part.clone() if columns is None else part[:, columns], x.requires_grad)

    weight, bias = some(old.weight, columns), None if old.bias is None else some(old.bias)
    if isinstance(old, Int8Linear):
        return Int8Linear(weight, some(old.scale), bias)
    new.weight, new.bias = weight, bias
    return new
