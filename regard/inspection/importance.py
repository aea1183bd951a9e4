"""How much each head of a model is missed: by its gradient, by silencing it, and by silencing more and more of them.

Letters: B sentences, H heads, T labels of a sentence, V vocabulary. The models here have features and an output
layer (`regard.core.losses`), and are in eval mode; their heads are counted from 0 in each attention.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.losses import token_log_probabilities
from regard.core.quantised import is_quantised
from regard.inspection.axes import Taught
from regard.inspection.taps import attentions, edit

Importance = Mapping[str, Tensor]  # (H,) for each attention by name
Found = TypeVar("Found", covariant=True)


@torch.inference_mode()
def loss(model: nn.Module, batches: Iterable[Taught], *, pad: int) -> float:
    """The mean cross-entropy of a label, in nats; padding does not count."""
    total, tokens = 0.0, 0
    for batch in batches:
        total += float(sentence_losses(model, batch, pad).double().sum())
        tokens += int((batch["labels"] != pad).sum())
    return total / tokens


def sentence_losses(model: nn.Module, batch: Taught, pad: int) -> Tensor:
    """The cross-entropy of each sentence, (B,): the sum over its labels."""
    return -token_log_probabilities(model, batch.inputs, batch["labels"], ignore=pad).sum(1)


def head_importance(
    model: nn.Module,
    batches: Iterable[Taught],
    *,
    pad: int,
    normalise: bool = True,
    losses: Callable[[Taught], Tensor] | None = None,
) -> dict[str, Tensor]:
    """The mean over sentences x of |∂L(x)/∂ξ|, where ξ scales what a head says (Michel et al., 2019): (H,) by name.

    L is the cross-entropy of a whole sentence. The absolute value is taken for each sentence: a head that helps with
    one and harms another is important. With `normalise` each attention's heads have the l2-norm 1, as the paper's.
    `losses` are those of a model that is not taught tokens: of a batch, any numbers whose sum is its loss.

    >>> from regard.data.batching import Batch
    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> model = Transformer(TransformerConfig.tiny(vocabulary=100)).eval()
    >>> source, target, labels = torch.randint(3, 100, (3, 2, 5))
    >>> batch = Batch({"source": source, "target": target, "labels": labels}, count=10)
    >>> found = head_importance(model, [batch], pad=0)
    >>> found["decoder.layers.2.cross_attention"].shape
    torch.Size([4])
    """
    if is_quantised(model):
        raise ValueError("no gradient flows through whole numbers: load the model with precision fp32")
    known = attentions(model)
    if not known:
        raise ValueError(f"a {type(model).__name__} model without attention has no heads to measure")
    found = {name: torch.zeros(attention.heads) for name, attention in known.items()}
    sentences = 0
    for batch in batches:
        first = next(iter(batch.inputs.values()))
        B, device = len(first), first.device
        with torch.enable_grad():
            masks = {name: torch.ones(B, a.heads, device=device, requires_grad=True) for name, a in known.items()}
            with edit(model, {name: partial(scaled, mask) for name, mask in masks.items()}):
                total = (sentence_losses(model, batch, pad) if losses is None else losses(batch)).sum()
        # A sentence's row of a mask reaches no other's loss: the gradient of the sum is the gradients side by side.
        for name, gradient in zip(masks, torch.autograd.grad(total, list(masks.values())), strict=True):
            found[name] += gradient.abs().sum(0).cpu()
        sentences += B
    if not sentences:
        raise ValueError("importance is measured on sentences: there are none")
    return {name: F.normalize(x, dim=0) if normalise else x / sentences for name, x in found.items()}


def scaled(mask: Tensor, weights: Tensor) -> Tensor:
    """Weights (B, H, T, S) times a mask (B, H) of heads; of a video, the parts of each row lie one after the other."""
    mask = mask.repeat_interleave(len(weights) // len(mask), 0)
    return weights * mask[:, :, None, None].to(weights.dtype)


@torch.inference_mode()
def moved(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How far, for its size, what a model says moves without each of its heads: (H,) by name."""
    whole = model(**inputs)
    apart = ablate_each(model, lambda: (model(**inputs) - whole).norm() / whole.norm().clamp(min=1e-9))
    return {name: torch.stack([apart[name, h] for h in range(a.heads)]) for name, a in attentions(model).items()}


def ablate_each(model: nn.Module, measure: Callable[[], Found]) -> dict[tuple[str, int], Found]:
    """What `measure` finds while one head is silent, for each head of each attention in turn."""
    found = {}
    for name, attention in attentions(model).items():
        for head in range(attention.heads):
            with edit(model, {name: {head: 0.0}}):
                found[name, head] = measure()
    return found


def least_important(importance: Importance, count: int) -> dict[str, list[int]]:
    """The `count` heads of least importance, by attention; of equals, those that come first.

    >>> least_important({"a": torch.tensor([0.6, 0.8]), "b": torch.tensor([0.9, 0.1])}, 2)
    {'a': [0], 'b': [1]}
    """
    return _by_name(_ranked(importance)[:count])


def _ranked(importance: Importance) -> list[tuple[str, int]]:
    """Every head, the least important first."""
    values = {(name, head): value for name, row in importance.items() for head, value in enumerate(row.tolist())}
    return sorted(values, key=lambda place: values[place])


def _by_name(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    heads: dict[str, list[int]] = {}
    for name, head in sorted(places):
        heads.setdefault(name, []).append(head)
    return heads


class Pruned(NamedTuple, Generic[Found]):
    """One point of a pruning curve."""

    kept: int  # heads at work
    found: Found  # what was measured with these
    silenced: dict[str, list[int]]


def pruning_curve(
    model: nn.Module,
    importance: Importance | Callable[[], Importance],
    measure: Callable[[], Found],
    *,
    share: float = 0.1,
    down_to: int = 0,
) -> list[Pruned[Found]]:
    """What `measure` finds as the least important heads fall silent, a `share` of all at a time, `down_to` so many.

    An `importance` that is a function is asked again before each step, while those that went before are silent.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share = {share}: the share of heads to silence at a time lies above 0, and is 1 at most")
    total = sum(attention.heads for attention in attentions(model).values())
    step = max(1, round(share * total))
    silent: list[tuple[str, int]] = []
    curve = []
    while True:
        silenced = _by_name(silent)
        with edit(model, {name: dict.fromkeys(heads, 0.0) for name, heads in silenced.items()}):
            curve.append(Pruned(total - len(silent), measure(), silenced))
            if (left := total - len(silent)) <= down_to:
                return curve
            ranked = _ranked(importance() if callable(importance) else importance)
        silent += [place for place in ranked if place not in silent][: min(step, left - down_to)]


def random_curve(
    model: nn.Module, measure: Callable[[], Found], *, seed: int, share: float = 0.1
) -> list[Pruned[Found]]:
    """The curve of heads that fall silent in an order drawn by chance: what any other must beat."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.rand(attention.heads, generator=generator) for name, attention in attentions(model).items()}
    return pruning_curve(model, drawn, measure, share=share)
