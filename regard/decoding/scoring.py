"""Force-decoding: how likely a model holds an output that is given.

Letters: B pairs, S source length, T target length with its end, R rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from regard.core.generation import EncoderDecoder, of_like_length, padded
from regard.core.losses import label_log_probabilities
from regard.decoding.edits import log_soft_max
from regard.decoding.protocol import DAMAGED, Searchable

Pair = tuple[Sequence[int], Sequence[int]]
Forked = tuple[Sequence[int], Sequence[Sequence[int]]]  # a text, and ways in which it may go on


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


def continuations(
    engine: Searchable, before: Sequence[int], texts: Sequence[Forked], *, rows: int, tokens: int = 4096
) -> list[list[list[float]]]:
    """For each text, of one token at least, log p of every token of each way in which it may go on.

    What stands `before` all texts is read once for as many as go together, and a text once for its continuations.
    """
    scores: list[list[list[float]]] = [[[] for _ in ways] for _, ways in texts]
    own = 0 if engine.ragged else len(before)  # each row has a copy of it then
    for some in of_like_length([len(ids) + own for ids, _ in texts], tokens, rows):
        at_work, depth = engine.rows(), 0
        at_work.start([before])
        at_work.reorder(np.zeros(len(some), np.int64))
        at_work.extend([texts[i][0][:-1] for i in some])
        newest = [texts[i][0][-1] for i in some]
        row_of = {(i, k): row for row, i in enumerate(some) for k in range(len(texts[i][1]))}
        while row_of:
            log_p = log_soft_max(at_work.step(np.array(newest)))  # (R, V)
            for (i, k), row in row_of.items():
                scores[i][k].append(min(0.0, float(log_p[row, texts[i][1][k][depth]])))
            depth += 1
            going = [each for each in row_of if len(texts[each[0]][1][each[1]]) > depth]
            at_work.reorder(np.array([row_of[each] for each in going], np.int64))
            newest = [texts[i][1][k][depth - 1] for i, k in going]
            row_of = {each: row for row, each in enumerate(going)}
    return scores
