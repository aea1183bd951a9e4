"""What training minimises. Letters: B batch, T length of what is said."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.core.losses import linear_cross_entropy
from regard.data.vocabulary import PAD


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
