"""When each token is said: by heads of a decoder that follow the sound, and the cheapest way through what they see.

Letters: H heads, T tokens, S positions of the sound.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.inspection.taps import record

SMOOTH = 7  # positions of which the median is taken


@torch.inference_mode()
def spoken_at(
    model: nn.Module, memory: Any, tokens: Sequence[int], first: int, heads: Sequence[Sequence[int]], places: int
) -> tuple[NDArray[np.int64], Tensor]:
    """Where in the first `places` positions of a memory each token begins that comes after number `first`, the end too;
    and the logits of each of them.

    A head is [layer, head]. It looks where a token is said when it is about to be written, by way of the one before it.
    What it sees there is compared with what it sees at all others.
    """
    names = {layer: f"decoder.layers.{layer}.cross_attention" for layer, _ in heads}
    decoder: Any = model
    device = next(model.parameters()).device
    with record(model, names.values()) as seen:
        logits = decoder.decode(torch.tensor([[*tokens]], device=device), memory)[0].float()
    x = torch.stack([seen[names[layer]][0, head, :, :places] for layer, head in heads]).float()  # (H, T, S)
    x = x / x.sum(-1, keepdim=True)
    spread, mean = torch.std_mean(x, dim=1, keepdim=True, correction=0)
    x = (x - mean) / spread.clamp(min=1e-12)
    if places > SMOOTH // 2:
        x = F.pad(x, (SMOOTH // 2, SMOOTH // 2), mode="reflect").unfold(2, SMOOTH, 1).median(-1).values
    return beginnings(-x.mean(0)[first:-1].double().cpu().numpy()), logits[first:-1]


def beginnings(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Costs (T, S) -> where each row begins on the cheapest way from the first cell to the last, which goes right, down
    or both (dynamic time warping).

    >>> beginnings(np.array([[0.0, 9, 9, 9], [9, 0, 0, 9], [9, 9, 9, 0]])).tolist()
    [0, 1, 3]
    """
    T, S = cost.shape
    total = np.full((T + 1, S + 1), np.inf)
    total[0, 0] = 0.0
    for i in range(T):  # along a row a way goes right: what it costs is a difference of sums
        sums = np.concatenate([[0.0], cost[i].cumsum()])
        above = np.minimum(total[i, :-1], total[i, 1:])
        total[i + 1, 1:] = sums[1:] + np.minimum.accumulate(above - sums[:-1])
    first, i, j = np.zeros(T, np.int64), T, S
    while i > 0 and j > 0:
        first[i - 1] = j - 1
        both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        if both < down and both < right:
            i, j = i - 1, j - 1
        elif down < both and down < right:
            i -= 1
        else:
            j -= 1
    return first
