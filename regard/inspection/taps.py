"""Look at and change what flows through a model's taps: every head of every attention, by name.

An attention is named by its place in the model: `encoder.layers.0.self_attention`, `decoder.layers.2.cross_attention`.
Both `record` and `edit` work for any model built on `regard.core`, and leave it exactly as it was.

Letters: B batch, H heads, T queries, S keys.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial

from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention, Tap

Change = Mapping[int, float] | Callable[[Tensor], Tensor]


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


@contextmanager
def record(model: nn.Module, names: str = "*") -> Iterator[dict[str, Tensor]]:
    """Inside the block, collect the weights (B, H, T, S) of each attention whose name matches the pattern `names`.

    An attention that runs several times (as in step-by-step decoding) leaves the weights of its last run.

    >>> import torch
    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> with record(model, "decoder.*.cross_attention") as seen:
    ...     _ = model(torch.randint(3, 100, (1, 7)), torch.randint(3, 100, (1, 5)))
    >>> seen["decoder.layers.2.cross_attention"].shape
    torch.Size([1, 4, 5, 7])
    """
    chosen = {name: a for name, a in attentions(model).items() if fnmatchcase(name, names)}
    if not chosen:
        raise ValueError(f"no attention is named {names!r}: the model has {', '.join(attentions(model)) or 'none'}")
    seen: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[[Tensor], Tensor]:
        def watch(weights: Tensor) -> Tensor:
            seen[name] = weights.detach()
            return weights

        return watch

    with _watching({a.weights: remember(name) for name, a in chosen.items()}):
        yield seen


@contextmanager
def edit(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Inside the block, change the weights of some attentions.

    For each name give either {head: factor}, where 0.0 silences the head and 2.0 doubles its part, or a function
    of the weights (B, H, T, S) that returns what to use instead.

    >>> import torch
    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100))
    >>> with edit(model, {"encoder.layers.0.self_attention": {3: 0.0}}):
    ...     _ = model(torch.randint(3, 100, (1, 7)), torch.randint(3, 100, (1, 5)))
    """
    known = attentions(model)
    watchers: dict[Tap, Callable[[Tensor], Tensor]] = {}
    for name, change in changes.items():
        if name not in known:
            near = get_close_matches(name, known, n=1) or list(known)
            raise ValueError(f"no attention is named {name!r}: did you mean {' or '.join(near)}?")
        # `partial` makes a watcher of its own of a function that may be at work already, in an edit around this one.
        own = partial(change) if callable(change) else _scaling(change, known[name].heads, name)
        watchers[known[name].weights] = own
    with _watching(watchers):
        yield


def _scaling(factors: Mapping[int, float], heads: int, name: str) -> Callable[[Tensor], Tensor]:
    for head in factors:
        if not 0 <= head < heads:
            raise ValueError(f"{name} has heads 0..{heads - 1}, not {head}")

    def scale(weights: Tensor) -> Tensor:
        factor = weights.new_tensor([factors.get(head, 1.0) for head in range(heads)])
        return weights * factor[:, None, None]

    return scale


@contextmanager
def _watching(watchers: Mapping[Tap, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    try:
        for tap, watch in watchers.items():
            tap.watchers.append(watch)
        yield
    finally:
        for tap, watch in watchers.items():
            tap.watchers.remove(watch)
