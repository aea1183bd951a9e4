"""kNN-LM and kNN-MT: what a model says next, mixed with what followed when it was in a like state before.

Letters: N rows, V vocabulary, d width of what the output layer reads, k neighbours, λ share.

p(y) = (1 - λ) p_model(y) + λ p_kNN(y), and p_kNN(y) ∝ Σ exp(-|h - h_i|² / τ) over those of the k nearest states h_i
that y followed (Khandelwal et al., 2020, eq. 2 and 3; 2021 for translation, with a temperature τ). Nothing is taught:
the model stays as it is, and what it remembers lies beside it, in the folder `memory` of its directory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import above, at_least, one_of
from regard.checks import share as from_0_to_1
from regard.core.added import Added, add, without

NEAR = ("exact", "ivf", "hnsw")
CONTEXT = 12  # tokens before and after a neighbour that are shown


def weighed(distances: Tensor, temperature: float) -> Tensor:
    """What each of some neighbours counts: squared distances (..., k) -> (..., k), whose sum is 1."""
    return (-distances / temperature).softmax(-1)


def mixed(logits: Tensor, tokens: Tensor, weights: Tensor, share: float) -> Tensor:
    """log p of each token: logits (N, V) of a model; neighbours' tokens (N, k), and what each counts (N, k) -> (N, V).

    >>> p = mixed(torch.zeros(1, 4), torch.tensor([[2, 2]]), torch.tensor([[0.5, 0.5]]), share=0.2)
    >>> [round(x, 4) for x in p.exp()[0].tolist()]
    [0.2, 0.2, 0.4, 0.2]
    """
    said = logits.double().softmax(-1) * (1 - share)  # the sum of two that may be far apart
    return said.scatter_add(-1, tokens, share * weights.double()).log().to(logits.dtype)


class Recall(Added):
    """Beside an output layer: what it says of a state, mixed with what is remembered of states like it."""

    roles, folder = (), "memory"
    memory: Any = None  # `nearest` of states, and `tokens` that followed them

    def __init__(self, change: "Neighbours", width: int) -> None:
        super().__init__()
        self.change, self.width, self.near = change, width, change.near

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor, Any, Any]:
        """Of states x (N, d) the neighbours' tokens (N, k), what each counts, their numbers and squared distances."""
        if self.memory is None:
            raise ValueError("what this model remembers has not been opened: load it by its directory, regard.load")
        distances, numbers = self.memory.nearest(x.float().cpu().numpy(), self.change.neighbours)
        weights = weighed(torch.from_numpy(distances), self.change.temperature)
        return torch.from_numpy(self.memory.tokens(numbers)).to(x.device), weights.to(x.device), numbers, distances

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.change.share or x.is_meta or not x.numel():
            return y
        tokens, weights, *_ = self.nearest(x.detach().flatten(0, -2))
        return mixed(y.flatten(0, -2), tokens, weights, self.change.share).view_as(y)

    def merge(self, module: nn.Module) -> None:
        raise ValueError("what is remembered lies beside a model, and is no change of weights")


@dataclass(frozen=True)
class Neighbours:
    """What followed states like this one has a share in what is said next."""

    share: float = 0.25  # λ of what is remembered, from 0 to 1
    neighbours: int = 16  # k
    temperature: float = 10.0  # τ of their squared distances: the higher, the more alike they count
    near: str = "exact"  # how they are found: by comparing all, or what faiss proposes: ivf, hnsw

    def __post_init__(self) -> None:
        from_0_to_1(share=self.share)
        at_least(1, neighbours=self.neighbours)
        above(0, temperature=self.temperature)
        one_of(NEAR, near=self.near)

    def says(self, places: int) -> str:
        """What it is, in a few words."""
        return f"neighbours: {self.neighbours} at {self.temperature:g}, with a share of {self.share:g}"

    def apply(self, model: nn.Module) -> nn.Module:
        """The model with them, in place."""
        output: Any = getattr(model, "output", None)
        if getattr(output, "weight", None) is None or not hasattr(model, "new_cache"):
            raise ValueError(f"neighbours finds nothing to change: a {type(model).__name__} model writes no tokens")
        add(output, "neighbours", Recall(self, output.weight.shape[1]))
        return model


def recall_of(model: nn.Module) -> Recall | None:
    """What a model has of this, if it has."""
    return next((part for part in model.modules() if isinstance(part, Recall)), None)


def chosen(
    own: Tensor, distances: Tensor, right: Tensor, temperatures: list[float], shares: list[float]
) -> tuple[float, float, float]:
    """The share and the temperature under which labels are likeliest, and their loss: log p (N,) that a model gives
    them, distances (N, k) of neighbours, and whether each has the label (N, k)."""
    best = inf, 0.0, temperatures[0]
    for temperature in temperatures:
        near = (weighed(distances, temperature) * right).sum(-1)  # p_kNN of the label
        for share in shares:
            loss = -float(((1 - share) * own.double().exp() + share * near).clamp(min=1e-300).log().mean())
            best = min(best, (loss, share, temperature))
    loss, share, temperature = best
    return share, temperature, loss


class Like(NamedTuple):
    """A state that was remembered."""

    token: str  # that followed it
    weight: float  # what it counts among the neighbours
    distance: float  # squared
    place: str  # file:line
    before: str
    after: str


class Reminded(NamedTuple):
    """One token, and why it is said."""

    token: str  # as it stands in the text; the likeliest, where the text ends
    p: float
    alone: float  # what the model by itself gives it
    near: list[Like]
    ends: bool  # it ends a translation


@torch.inference_mode()
def reminded(
    model: nn.Module, tokenizer: Any, h: Tensor, labels: Sequence[int | None], eos: int, top: int
) -> list[Reminded]:
    """For what the output layer of a model that remembers reads (T, d), and the tokens that follow (None: the likeliest
    one): how likely each is, without and with what is remembered, and the `top` nearest of that."""
    output: Any = model.output
    log_p = output(h).float().log_softmax(-1)
    with without(model, "neighbours"):
        alone = output(h).float().log_softmax(-1)
    part = recall_of(model)
    assert part is not None
    _, weights, numbers, distances = part.nearest(h)
    found = []
    for t, label in enumerate(labels):
        id = int(log_p[t].argmax()) if label is None else label
        near = [
            _like(tokenizer, part.memory.neighbour(int(number)), float(weight), float(distance))
            for number, weight, distance in zip(numbers[t, :top], weights[t], distances[t], strict=False)
        ]
        p, by_itself = (float(x[t, id].exp()) for x in (log_p, alone))
        found.append(Reminded(tokenizer.pieces([id])[0], p, by_itself, near, label == eos))
    return found


def _like(tokenizer: Any, found: Any, weight: float, distance: float) -> Like:
    line = found.line + tokenizer.decode(found.before).count("\n")
    before, after = (tokenizer.decode(ids) for ids in (found.before[-CONTEXT:], found.after[:CONTEXT]))
    return Like(tokenizer.pieces([found.token])[0], weight, distance, f"{found.file}:{line}", before, after)
