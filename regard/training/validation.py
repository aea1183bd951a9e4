"""How well a model foretells text it has not seen: the likelihood of each label, given those before it.

Letters: N labels, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.core.generation import of_like_length
from regard.core.losses import logits_in_blocks
from regard.data.batching import Batch, collate
from regard.data.vocabulary import MARKS, Marks

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
def foretold(model: nn.Module, batches: Iterable[Batch], ignore: int) -> Foretold:
    """Each label of some batches, one or more, that is not `ignore`; eval mode is the caller's to set."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch in (batch.to(next(model.parameters()).device) for batch in batches):
        for logits, y in logits_in_blocks(model, batch.inputs, batch["labels"], ignore=ignore):
            z = logits.float().log_softmax(-1)  # (n, V)
            top, likeliest = z.max(-1)
            parts.append((z.gather(1, y[:, None])[:, 0].cpu(), top.exp().cpu(), (likeliest == y).cpu()))
    return Foretold(*(torch.cat(column) for column in zip(*parts, strict=True)))


def foretell(
    model: nn.Module, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], rows: int = 64, marks: Marks = MARKS
) -> Foretold:
    """Each label of the targets of (source ids, target ids), one pair or more, in their order; eval mode is the
    caller's to set."""
    given, (pad,) = list(pairs), marks.need("pad")
    some = list(of_like_length([max(map(len, pair)) + 1 for pair in given], TOKENS, rows))
    found = foretold(model, (collate([given[i] for i in each], marks=marks) for each in some), pad)
    order = [i for each in some for i in each]
    sizes, back = [len(given[i][1]) + 1 for i in order], sorted(range(len(order)), key=order.__getitem__)
    columns = (column.split(sizes) for column in (found.log_likelihood, found.confidence, found.correct))
    return Foretold(*(torch.cat([column[n] for n in back]) for column in columns))
