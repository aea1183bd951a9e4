"""How well a model foretells text it has not seen: the likelihood of each label, given those before it.

Letters: N labels, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batching import Batch, collate
from regard.data.vocabulary import PAD

BLOCK = 2**22  # logits held at a time
TOKENS = 8192  # of a batch, at most, unless one pair has more


@dataclass(frozen=True)
class Foretold:
    """Each label of some text as a model foretold it."""

    log_likelihood: Tensor  # (N,) fp32, of the right label
    confidence: Tensor  # (N,) the probability of the label that the model holds for the likeliest
    correct: Tensor  # (N,) bool, whether that is the right one

    @property
    def loss(self) -> float:
        """The mean cross-entropy of a label in nats; its exponential is the perplexity."""
        return -float(self.log_likelihood.double().mean())

    @property
    def accuracy(self) -> float:
        """The share of labels foretold right."""
        return float(self.correct.double().mean())


@torch.inference_mode()
def foretell(model: nn.Module, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], rows: int = 64) -> Foretold:
    """Each label of the targets of (source ids, target ids), one pair or more; eval mode is the caller's to set."""
    ordered = sorted(pairs, key=lambda pair: -max(map(len, pair)))  # the longest first: it decides about its batch
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    start = 0
    while start < len(ordered):
        n = min(rows, max(1, TOKENS // (max(map(len, ordered[start])) + 1)))
        parts += _labels(model, collate(ordered[start : start + n]))
        start += n
    return Foretold(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _labels(model: Any, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    batch = batch.to(model.output.weight.device)
    count = batch["labels"] != PAD
    hidden, labels = model.features(**batch.inputs)[count], batch["labels"][count]
    rows = max(1, BLOCK // len(model.output.weight))
    for h, y in zip(hidden.split(rows), labels.split(rows), strict=True):
        z = model.output(h).float().log_softmax(-1)  # (n, V)
        top, likeliest = z.max(-1)
        yield z.gather(1, y[:, None])[:, 0].cpu(), top.exp().cpu(), (likeliest == y).cpu()
