"""What training minimises. Letters: B batch, S and T lengths of source and target."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.core.losses import linear_cross_entropy
from regard.data.vocabulary import PAD


class EncoderDecoder(Protocol):
    """What the objective asks of a model: features (B, T, d), and the output layer that turns them into logits."""

    output: nn.Linear

    def features(self, source: Tensor, target: Tensor) -> Tensor: ...


class SequenceLoss(nn.Module):
    """Σ over labels of the cross-entropy of an encoder-decoder (§5.4).

    A sum, not a mean: what adds up over micro-batches, threads and processes. Divide it by the labels of the step.
    """

    def __init__(self, model: Any, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model: EncoderDecoder = model
        self.smoothing = smoothing

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """source (B, S), target and labels (B, T), right-padded with PAD -> a number."""
        hidden, output = self.model.features(source, target), self.model.output
        weight: Tensor = output.weight
        bias: Tensor | None = output.bias
        if torch.is_autocast_enabled(hidden.device.type):
            low = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight, bias = hidden.to(low), weight.to(low), None if bias is None else bias.to(low)
        return linear_cross_entropy(hidden, weight, labels, bias=bias, smoothing=self.smoothing, ignore=PAD)
