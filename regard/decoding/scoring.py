"""Force-decoding: how likely a model holds an output that is given.

Letters: B pairs, S source length, T target length with its end, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.core.generation import EncoderDecoder, of_like_length, padded
from regard.core.losses import label_log_probabilities
from regard.decoding.protocol import DAMAGED

Pair = tuple[Sequence[int], Sequence[int]]


@torch.inference_mode()
def log_probabilities(
    model: EncoderDecoder,
    pairs: Sequence[Pair],
    *,
    first: int,
    eos: int,
    tokens: int = 4096,
    device: torch.device | str = "cpu",
) -> list[list[float]]:
    """For each (source, target) log p of every token of the target and of its end, given those before.

    A source is as the model reads it, with its end; a target has no marks, as in `Hypothesis`, and `first` is read
    before it. The sum of a row is log P. Pairs of like length share a batch; logits of at most `tokens` positions are
    held at a time, whatever the lengths.
    """
    scores: list[list[float]] = [[] for _ in pairs]
    for rows in batches(pairs, tokens):
        at_work = model.start([pairs[i][0] for i in rows], torch.device(device))
        read, said = ([[*before, *pairs[i][1], *after] for i in rows] for before, after in (([first], []), ([], [eos])))
        target, labels = (padded(each, eos, model.config.vocabulary).to(device) for each in (read, said))
        width = max(1, tokens // len(rows))  # a target longer than `tokens` is read in steps
        steps = zip(target.split(width, 1), labels.split(width, 1), strict=True)
        found = [_chosen(model.decode(some, at_work.memory, at_work.cache), label) for some, label in steps]
        for i, row in zip(rows, torch.cat(found, 1).tolist(), strict=True):
            scores[i] = row[: len(pairs[i][1]) + 1]
    return scores


def batches(pairs: Sequence[Pair], tokens: int) -> Iterator[list[int]]:
    """The indices of pairs, each once, those of like length together: B · max(S, T) <= tokens, or one pair."""
    return of_like_length([max(len(source), len(target) + 1) for source, target in pairs], tokens)


def _chosen(logits: Tensor, labels: Tensor) -> Tensor:
    """logits (B, T, V), labels (B, T) -> log p of the labels (B, T), in fp32 on the CPU."""
    found = label_log_probabilities(logits, labels)
    if found.isnan().any():
        raise ValueError(DAMAGED)
    return found.clamp(max=0.0).cpu()  # rounding may leave a little above 0
