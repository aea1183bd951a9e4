"""Force-decoding: how likely a model holds an output that is given.

Letters: B pairs, S source length, T target length with its end, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.decoding.module import EncoderDecoder
from regard.decoding.protocol import DAMAGED, Special

Pair = tuple[Sequence[int], Sequence[int]]


@torch.inference_mode()
def log_probabilities(
    model: EncoderDecoder,
    pairs: Sequence[Pair],
    *,
    special: Special,
    tokens: int = 4096,
    device: torch.device | str = "cpu",
) -> list[list[float]]:
    """For each (source, target) log p of every token of the target and of its end, given those before.

    A source is as the model reads it, with its end; a target has no marks, as in `Hypothesis`. The sum of a row is
    log P. Pairs of like length share a batch; logits of at most `tokens` positions are held at a time, whatever the
    lengths.
    """
    scores: list[list[float]] = [[] for _ in pairs]
    for rows in batches(pairs, tokens):
        source = _padded([pairs[i][0] for i in rows], special.pad).to(device)
        target = _padded([[special.bos, *pairs[i][1]] for i in rows], special.pad).to(device)
        labels = _padded([[*pairs[i][1], special.eos] for i in rows], special.pad).to(device)
        memory, cache = model.encode(source), model.new_cache()
        width = max(1, tokens // len(rows))  # a target longer than `tokens` is read in steps
        found = torch.cat(
            [
                _chosen(model.decode(read, memory, cache), label)
                for read, label in zip(target.split(width, 1), labels.split(width, 1), strict=True)
            ],
            1,
        )
        for i, row in zip(rows, found.tolist(), strict=True):
            scores[i] = row[: len(pairs[i][1]) + 1]
    return scores


def batches(pairs: Sequence[Pair], tokens: int) -> Iterator[list[int]]:
    """The indices of pairs, each once, those of like length together: B · max(S, T) <= tokens, or one pair."""
    lengths = [max(len(source), len(target) + 1) for source, target in pairs]
    batch: list[int] = []
    for i in sorted(range(len(pairs)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _padded(rows: list[Sequence[int]], pad: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def _chosen(logits: Tensor, labels: Tensor) -> Tensor:
    """logits (B, T, V), labels (B, T) -> log p of the labels (B, T), in fp32 on the CPU."""
    logits = logits.float()
    found = logits.gather(2, labels[:, :, None])[:, :, 0] - logits.logsumexp(2)
    if found.isnan().any():
        raise ValueError(DAMAGED)
    return found.clamp(max=0.0).cpu()  # rounding may leave a little above 0
