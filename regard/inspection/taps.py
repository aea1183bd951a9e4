"""Look at and change what flows through a model's taps: every head of every attention, by name.

An attention is named by its place in the model: `encoder.layers.0.self_attention`, `decoder.layers.2.cross_attention`.
Both `record` and `edit` work for any model built on `regard.core`, and leave it exactly as it was.

Letters: B batch, H heads, T queries, S keys, d_k and d_v widths of a head.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Generic, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from regard.checks import hint
from regard.core.attention import MultiHeadAttention
from regard.core.mixers import Tap

Replace = Callable[[Tensor], Tensor]
Change = Mapping[int, float | Replace] | Replace
Held = TypeVar("Held", Tensor, list[Tensor])


@dataclass(frozen=True)
class Seen(Generic[Held]):
    """What was recorded, by the name of the attention: `seen[name]` are its weights, as `seen.weights[name]`.

    Keys and values are those of each query head, and rotations are in queries and keys already.
    """

    weights: dict[str, Held] = field(default_factory=dict)  # (B, H, T, S)
    scores: dict[str, Held] = field(default_factory=dict)  # (B, H, T, S): scale · QKᵀ + bias, before mask and soft-max
    queries: dict[str, Held] = field(default_factory=dict)  # (B, H, T, d_k)
    keys: dict[str, Held] = field(default_factory=dict)  # (B, H, S, d_k)
    values: dict[str, Held] = field(default_factory=dict)  # (B, H, S, d_v)
    outputs: dict[str, Held] = field(default_factory=dict)  # (B, H, T, d_v): of each head, before W_O

    def __getitem__(self, name: str) -> Held:
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


TAPS = tuple(Seen.__dataclass_fields__)
Names = str | Iterable[str]
Heads = Sequence[int] | None
Recording = AbstractContextManager[Seen[Held]]


def attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Every attention of a model by name, in the order of the model.

    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> list(attentions(Transformer(TransformerConfig.tiny(100, encoder_layers=1, decoder_layers=1))))
    ['encoder.layers.0.self_attention', 'decoder.layers.0.self_attention', 'decoder.layers.0.cross_attention']
    """
    return {
        name.removesuffix(".sublayer"): module
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }


@overload
def record(
    model: nn.Module, names: Names = "*", *, what: Names = "weights", heads: Heads = None
) -> Recording[Tensor]: ...
@overload
def record(
    model: nn.Module, names: Names = "*", *, what: Names = "weights", heads: Heads = None, every: Literal[True]
) -> Recording[list[Tensor]]: ...
@contextmanager
def record(
    model: nn.Module, names: Names = "*", *, what: Names = "weights", heads: Heads = None, every: bool = False
) -> Iterator[Seen[Any]]:
    """Inside the block, collect what flows through each attention whose name matches a pattern of `names`.

    `what` names one or several of weights, scores, queries, keys, values, outputs; `heads`, which to keep. An attention
    that runs several times, as in a search, leaves what its last run gave, or with `every` a list of what each gave.
    What is left out is not held: a narrow choice bounds the memory.

    >>> import torch
    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> with record(model, "decoder.*.cross_attention", what=("weights", "values"), heads=[0, 3]) as seen:
    ...     _ = model(torch.randint(3, 100, (1, 7)), torch.randint(3, 100, (1, 5)))
    >>> seen["decoder.layers.2.cross_attention"].shape, seen.values["decoder.layers.2.cross_attention"].shape
    (torch.Size([1, 2, 5, 7]), torch.Size([1, 2, 7, 32]))
    """
    seen: Seen[Any] = Seen()
    watchers = [
        (_tap(attention, kind), _remembering(getattr(seen, kind), name, checked_heads(heads, attention, name), every))
        for name, attention in _chosen(model, names).items()
        for kind in _listed(what)
    ]
    with _watching(watchers):
        yield seen


@contextmanager
def edit(model: nn.Module, changes: Mapping[str, Change], *, what: str = "weights") -> Iterator[None]:
    """Inside the block, change what flows through some attentions.

    For each name give either {head: factor}, where 0.0 silences the head and 2.0 doubles its part; or {head: function}
    of what flows, such as the weights (B, T, S), that returns what to use instead; or one function for all heads,
    such as of the weights (B, H, T, S).

    >>> import torch
    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> with edit(model, {"encoder.layers.0.self_attention": {3: 0.0, 1: lambda weights: weights.roll(1, -1)}}):
    ...     _ = model(torch.randint(3, 100, (1, 7)), torch.randint(3, 100, (1, 5)))
    """
    known = attentions(model)
    watchers = []
    for name, change in changes.items():
        if name not in known:
            raise ValueError(f"no attention is named {name!r}: {hint(name, known)}")
        if not callable(change):
            checked_heads(list(change), known[name], name)
        watchers.append((_tap(known[name], what), change if callable(change) else _changing(change)))
    with _watching(watchers):
        yield


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _chosen(model: nn.Module, names: Names) -> dict[str, MultiHeadAttention]:
    known = attentions(model)
    if not known:
        raise ValueError(f"a {type(model).__name__} model without attention has no heads: there is nothing to see")
    for pattern in _listed(names):
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"no attention is named {pattern!r}: the model has {', '.join(known)}")
    return {name: a for name, a in known.items() if any(fnmatchcase(name, pattern) for pattern in _listed(names))}


def _tap(attention: MultiHeadAttention, kind: str) -> Tap:
    if kind not in TAPS:
        raise ValueError(f"there is no tap for {kind!r}: choose from {', '.join(TAPS)}")
    return getattr(attention, kind)


def checked_heads(heads: Heads, attention: MultiHeadAttention, name: str) -> Heads:
    """The numbers of some heads of an attention, if it has them."""
    for head in heads or ():
        if not 0 <= head < attention.heads:
            raise ValueError(f"{name} has heads 0..{attention.heads - 1}, not {head}")
    return heads


def _remembering(held: dict[str, Any], name: str, heads: Heads, every: bool) -> Replace:
    def watch(x: Tensor) -> Tensor:
        kept = x.detach() if heads is None else x.detach()[:, list(heads)]
        if every:
            held.setdefault(name, []).append(kept)
        else:
            held[name] = kept
        return x

    return watch


def _changing(changes: Mapping[int, float | Replace]) -> Replace:
    def change(x: Tensor) -> Tensor:
        heads = list(x.unbind(1))
        for head, how in changes.items():
            heads[head] = how(heads[head]) if callable(how) else heads[head] * how
        return torch.stack(heads, 1)

    return change


@contextmanager
def _watching(watchers: Sequence[tuple[Tap, Replace]]) -> Iterator[None]:
    added: list[tuple[Tap, Replace]] = []
    try:
        for tap, watch in watchers:
            # A watcher of its own, even of a function that is at work already in a block around this one.
            added.append((tap, partial(watch)))
            tap.watchers.append(added[-1][1])
        yield
    finally:
        for tap, watch in added:
            tap.watchers.remove(watch)
