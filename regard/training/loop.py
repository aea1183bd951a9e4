"""The training loop: batches in, reports out, one for each step; what to show of them is the caller's business."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.losses import linear_cross_entropy
from regard.data.batching import Batch
from regard.data.vocabulary import PAD
from regard.training.parallel import Shards


@dataclass(frozen=True)
class Report:
    """One step."""

    step: int
    loss: float  # a token
    learning_rate: float
    tokens_per_second: float  # labels


def sequence_loss(model: Any, source: Tensor, target: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Σ over labels of the cross-entropy of an encoder-decoder: source (B, S), target and labels (B, T)."""
    hidden = model.features(source, target)
    return linear_cross_entropy(hidden, model.output.weight, labels, smoothing=smoothing, ignore=PAD)


def fit(
    model: nn.Module,
    batches: Iterable[Batch],
    schedule: Callable[[int], float],
    *,
    smoothing: float = 0.1,
    clip: float = 1.0,
    shards: int | None = None,
) -> Iterator[Report]:
    """Train on each batch in turn with Adam (§5.3): a step is one batch, its loss a mean over its labels."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    if parameters[0].device.type != "cpu":
        shards = 1  # an accelerator shares the work out by itself
    with Shards(shards) as parallel:
        for step, batch in enumerate(batches, 1):
            start, tokens = time.perf_counter(), batch.tokens
            model.train()

            def loss(*rows: Tensor, tokens: int = tokens) -> Tensor:
                return sequence_loss(model, *rows, smoothing=smoothing) / tokens

            total = parallel.backward(loss, parameters, (batch.source, batch.target, batch.labels))
            nn.utils.clip_grad_norm_(parameters, clip)
            for group in optimiser.param_groups:
                group["lr"] = schedule(step)
            optimiser.step()
            optimiser.zero_grad()
            yield Report(step, total.item(), schedule(step), tokens / (time.perf_counter() - start))
