"""Greedy search: the likeliest token, again and again.

Letters: B batch, S source length, T target length, V vocabulary.
"""

from typing import Any, Protocol

import torch
from torch import Tensor


class EncoderDecoder(Protocol):
    """What decoding asks of a model."""

    def encode(self, source: Tensor) -> Any: ...
    def decode(self, target: Tensor, memory: Any, cache: Any = None) -> Tensor: ...
    def new_cache(self) -> Any: ...


@torch.inference_mode()
def greedy(model: EncoderDecoder, source: Tensor, *, bos: int, eos: int, pad: int, maximum: int) -> Tensor:
    """source (B, S) -> the likeliest continuation of `bos`, token by token, (B, T <= maximum).

    Each row ends in `eos`, and in padding after it; a row without `eos` was cut at the maximum.
    """
    memory, cache = model.encode(source), model.new_cache()
    newest = torch.full((len(source), 1), bos, device=source.device)
    done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    tokens: list[Tensor] = []
    while len(tokens) < maximum and not done.all():
        newest = model.decode(newest, memory, cache)[:, -1:].argmax(-1)  # (B, 1)
        newest = newest.masked_fill(done[:, None], pad)
        done = done | (newest[:, 0] == eos)
        tokens.append(newest)
    return torch.cat(tokens, 1) if tokens else source.new_empty(len(source), 0)
