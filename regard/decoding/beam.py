"""Beam search (§6.1): the likeliest few beginnings, side by side.

Letters: B sentences, A of them still at work, K width, S source length, T tokens so far, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.greedy import EncoderDecoder


@dataclass(frozen=True)
class Hypothesis:
    """One output of the search."""

    tokens: list[int]  # without bos and eos
    score: float  # log P / lp, by which hypotheses are ranked
    log_probability: float  # log P of the tokens and of eos


def length_penalty(length: int, alpha: float) -> float:
    """lp(Y) of Wu et al. (2016, eq. 14), where |Y| = `length` counts eos; 1 for every length if alpha = 0.

    >>> length_penalty(1, 0.6), length_penalty(25, 0.0), length_penalty(25, 1.0)
    (1.0, 1.0, 5.0)
    """
    return float(((5 + length) / 6) ** alpha)


@torch.inference_mode()
def beam(
    model: EncoderDecoder,
    source: Tensor,
    *,
    bos: int,
    eos: int,
    pad: int,
    width: int = 4,
    alpha: float = 0.6,
    maximum: Tensor | int,
    best: int = 1,
) -> list[list[Hypothesis]]:
    """source (B, S) -> for each sentence its `best` hypotheses, the best first; fewer only where fewer exist.

    Each step continues the `width` best beginnings of a sentence by every token and looks at the 2 · width best of
    these: those among the first `width` that end in `eos` are finished, and the first `width` others go on. At
    `maximum` tokens, eos included, (B,) or one for all, the first `width` are finished as they are. A finished
    hypothesis has the score log P / lp; of equal ones the earlier, the one of the better beginning, and the lower
    token id come first. Width 1 is greedy search.

    The model's memory and cache must offer `reorder(index)`: the rows `index` of the batch, in that order.
    """
    _check(width, alpha, best)
    limits = _limits(maximum, len(source))
    limit = torch.tensor(limits)  # (A,)
    kept: list[list[Hypothesis]] = [[] for _ in limits]
    memory, cache = model.encode(source), model.new_cache()
    rows = list(range(len(source)))  # which sentences are at work
    # The bookkeeping stays on the CPU in fp64: few numbers, and sums of many logarithms.
    prefix = torch.full((len(rows), 1, 1), bos)  # (A, 1, T); after the first step (A, K, T)
    log_p = torch.zeros(len(rows), 1, dtype=torch.float64)  # (A, 1), (A, K)
    length = 0
    while rows:
        length += 1
        A, beams, _ = prefix.shape
        newest = prefix[:, :, -1:].flatten(0, 1).to(source.device)
        logits = model.decode(newest, memory, cache)[:, -1]  # (A·K, V)
        gain, token = _top_log_probabilities(logits, 2 * width)  # (A·K, n)
        total = log_p[:, :, None] + gain.unflatten(0, (A, beams))  # (A, K, n)
        if beams < width:  # the first step: the other beginnings are not there yet
            total = F.pad(total, (0, 0, 0, width - beams), value=-math.inf)
            token = F.pad(token.unflatten(0, (A, beams)), (0, 0, 0, width - beams), value=pad)
        total, order = total.flatten(1).sort(dim=1, descending=True, stable=True)
        total, order = total[:, : 2 * width], order[:, : 2 * width]
        token = token.reshape(A, -1).gather(1, order)
        parent = order // gain.shape[1] % beams  # % for those that are not there

        ends = (token == eos) | (limit == length)[:, None]
        for i, k in (ends & total.isfinite())[:, :width].nonzero().tolist():
            y = [*prefix[i, parent[i, k], 1:].tolist(), *([] if token[i, k] == eos else [int(token[i, k])])]
            p = float(total[i, k])
            of_row = kept[rows[i]]
            of_row.append(Hypothesis(y, p / length_penalty(length, alpha), p))
            of_row.sort(key=lambda h: -h.score)  # stable: the earlier of equals stays before
            del of_row[best:]

        # At most one end for each beginning, so `width` of the 2 · width candidates go on.
        log_p, go_on = total.masked_fill(token == eos, -math.inf).sort(dim=1, descending=True, stable=True)
        log_p, go_on = log_p[:, :width], go_on[:, :width]
        parent, token = parent.gather(1, go_on), token.gather(1, go_on)
        stay = torch.tensor(
            [
                length < limits[b] and _can_improve(kept[b], leader, limits[b], width, alpha, best)
                for b, leader in zip(rows, log_p[:, 0].tolist(), strict=True)
            ]
        )
        prefix = torch.cat([prefix[torch.arange(A)[:, None], parent], token[:, :, None]], 2)[stay]
        index = (torch.arange(A)[:, None] * beams + parent)[stay].flatten().to(source.device)
        cache.reorder(index)
        if beams < width or not stay.all():  # else each sentence has the rows that it had
            memory = memory.reorder(index)
        log_p, limit = log_p[stay], limit[stay]
        rows = [b for b, stays in zip(rows, stay.tolist(), strict=True) if stays]
    return kept


def _can_improve(kept: list[Hypothesis], leader: float, limit: int, width: int, alpha: float, best: int) -> bool:
    """Whether the likeliest unfinished hypothesis, of log P = `leader`, may still finish among the `best`.

    log P only falls, and lp is largest at the greatest length: none can reach more than leader / lp(limit).
    """
    if leader == -math.inf:
        return False
    if len(kept) < best:
        return True
    # With one beginning at a time nothing is compared, and the first to finish is the greedy answer.
    return width > 1 and leader / length_penalty(limit, alpha) > kept[-1].score


def _top_log_probabilities(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """logits (R, V) -> log-probabilities and ids of the n (or V) likeliest tokens, (R, n), in fp64, on the CPU.

    Equals come in the order of their ids, which `topk` alone does not promise.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    value, token = logits.topk(min(n + 1, logits.shape[1]))
    if value.shape[1] > n:  # where the first that is left out equals the last that is taken, choose by id
        tied = ((value[:, n] == value[:, n - 1]) & value[:, n].isfinite()).nonzero()[:, 0]
        exact, ids = logits[tied].sort(dim=1, descending=True, stable=True)
        value[tied], token[tied] = exact[:, : n + 1], ids[:, : n + 1]
        value, token = value[:, :n], token[:, :n]
    token, by_id = token.sort(dim=1)
    value, by_value = value.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    gain = (value - logits.logsumexp(1, keepdim=True)).clamp(max=0.0)  # rounding may leave a little above 0
    if gain.isnan().any():
        raise ValueError("the model's scores are not numbers (NaN or infinite): its weights are damaged or diverged")
    return gain.cpu().double(), token.gather(1, by_value).cpu()


def _limits(maximum: Tensor | int, B: int) -> list[int]:
    if isinstance(maximum, Tensor) and maximum.shape != (B,):
        raise ValueError(f"maximum {tuple(maximum.shape)} must be a number, or one for each of the {B} sentences")
    limits: list[int] = maximum.tolist() if isinstance(maximum, Tensor) else [maximum] * B
    if min(limits, default=1) < 1:
        raise ValueError(f"maximum = {min(limits)}: it must be at least 1")
    return limits


def _check(width: int, alpha: float, best: int) -> None:
    if width < 1:
        raise ValueError(f"width = {width}: a beam has at least 1 hypothesis")
    if not 1 <= best <= width:
        raise ValueError(f"best = {best}: a beam of width {width} yields 1 to {width} hypotheses")
    if not 0.0 <= alpha < math.inf:
        raise ValueError(f"alpha = {alpha}: the exponent of the length penalty is at least 0")
