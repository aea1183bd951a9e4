"""What training minimises. Letters: B batch, T length of what is said, C classes."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.losses import linear_cross_entropy
from regard.data.vocabulary import PAD
from regard.training.distributed import gathered

IGNORE = -100  # a label that does not count


class Objective(nn.Module):
    """Σ loss over the labels of a batch, whose tensors it takes by name.

    A sum, not a mean: what adds up over micro-batches, threads and processes. Divide it by the labels of the step.
    """

    separable: ClassVar[bool] = True  # the sum over a batch is that over its rows: no shard or process changes it

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class NextToken(Objective):
    """The cross-entropy of each label, given what a model has read (§5.4): translation, a language model, captions.

    The model has features(**inputs) (B, T, d), and the output layer that turns them into logits. Labels that are
    `ignore` do not count.
    """

    def __init__(self, model: Any, smoothing: float = 0.0, ignore: int = PAD) -> None:
        super().__init__(model)
        self.smoothing, self.ignore = smoothing, ignore

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        """labels (B, T) -> a number."""
        model: Any = self.model
        hidden, weight, bias = model.features(**inputs), model.output.weight, model.output.bias
        if torch.is_autocast_enabled(hidden.device.type):
            low = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight, bias = hidden.to(low), weight.to(low), None if bias is None else bias.to(low)
        return linear_cross_entropy(hidden, weight, labels, bias=bias, smoothing=self.smoothing, ignore=self.ignore)


class Masked(NextToken):
    """The tokens that were hidden from a model (BERT), and, if its head says it, what two sentences have to do with
    each other: that counts as much as all the tokens of its row."""

    def forward(self, labels: Tensor, relation: Tensor | None = None, **inputs: Tensor) -> Tensor:
        """labels (B, T), relation (B,) -> a number."""
        model: Any = self.model
        features, hidden = model.features(**inputs), labels != self.ignore
        head = model.output
        h = features[hidden]
        low = torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype
        h = head.before(h) if hasattr(head, "before") else h
        bias = None if head.bias is None else head.bias.to(low)
        loss = linear_cross_entropy(
            h.to(low), head.weight.to(low), labels[hidden], bias=bias, smoothing=self.smoothing, ignore=self.ignore
        )
        if relation is None:
            return loss
        each = F.cross_entropy(head.relation(features).float(), relation, reduction="none")
        return loss + (each * hidden.sum(1)).sum()


class Labelled(Objective):
    """What something is: one class of several, those of several that apply, or a number; of a text, or of each token.

    A class that is IGNORE does not count.
    """

    def __init__(self, model: nn.Module, kind: str = "one", smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.kind, self.smoothing = kind, smoothing

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        """labels (B,) or (B, T) of classes; (B, C) of zeros and ones; (B,) of numbers -> a number."""
        said = self.model(**inputs).float()
        if self.kind == "several":
            return F.binary_cross_entropy_with_logits(said, labels.float(), reduction="sum")
        if self.kind == "number":
            return F.mse_loss(said[..., 0], labels.float(), reduction="sum")
        return F.cross_entropy(
            said.flatten(0, -2), labels.flatten(), reduction="sum", ignore_index=IGNORE, label_smoothing=self.smoothing
        )


class Spans(Objective):
    """Where something begins and ends: two choices among the places of a row."""

    def forward(self, labels: Tensor, keep: Tensor, **inputs: Tensor) -> Tensor:
        """labels (B, 2), keep (B, T) -> a number."""
        said = self.model(keep=keep, **inputs).float().masked_fill(~keep[:, :, None], float("-inf"))  # (B, T, 2)
        return F.cross_entropy(said, labels, reduction="sum") / 2


class Contrastive(Objective):
    """Which of all second texts belongs to each first one (InfoNCE): those of other rows are wrong, and so are hard
    negatives, if there are any. It looks at a whole batch, of all processes, at once."""

    separable = False

    def __init__(self, model: nn.Module, scale: float = 20.0) -> None:
        super().__init__(model)
        self.scale = scale

    def forward(self, tokens: Tensor, keep: Tensor, group: Tensor) -> Tensor:
        """tokens (N, T) of all texts; group (N,): 0 a first text, 1 its second, 2 a negative -> a number."""
        vectors = F.normalize(self.model(tokens=tokens, keep=keep).float(), dim=-1)
        first = vectors[group == 0]
        others, before = gathered(torch.cat([vectors[group == 1], vectors[group == 2]]))
        if not (group == 1).any():  # a process that is left without rows keeps step with the others
            return 0.0 * (vectors.sum() + others.sum())
        labels = before + torch.arange(len(first), device=first.device)
        return F.cross_entropy(self.scale * first @ others.T, labels, reduction="sum")


class Alike(Objective):
    """How alike two texts are: the cosine of their vectors is to be the label, from 0 to 1."""

    separable = False

    def forward(self, labels: Tensor, tokens: Tensor, keep: Tensor, group: Tensor) -> Tensor:
        """labels (N,), of which the first are those of the pairs; tokens, keep and group as above -> a number."""
        vectors = F.normalize(self.model(tokens=tokens, keep=keep).float(), dim=-1)
        first, second = vectors[group == 0], vectors[group == 1]
        return F.mse_loss((first * second).sum(-1), labels[: len(first)].float(), reduction="sum")
