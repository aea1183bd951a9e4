"""Attention over the times of a video, laid out over all of its places: each map is then of the same axes.

Letters: B batch, H heads, T times, N patches at a time, L = tokens + T · N places.
"""

from typing import Any

import torch
from torch import Tensor, nn


def apart(model: nn.Module) -> bool:
    """Whether an attention of a model looks at parts of what it sees, as at one time of a video."""
    return getattr(getattr(model, "config", None), "space_time", "joint") != "joint"


def shared(model: nn.Module, shares: Tensor) -> Tensor:
    """Shares of places, (L,); those of times, (tokens + T,), are shared among their patches."""
    c: Any = getattr(model, "config", None)
    if getattr(c, "space_time", "") != "factorised":
        return shares
    N = c.side**2
    return torch.cat([shares[: c.tokens], (shares[c.tokens :] / N).repeat_interleave(N)])


def said(model: nn.Module, name: str, outputs: Tensor) -> Tensor:
    """What the heads of an attention say at each place: outputs (…, H, …, d_v) as they are made -> (B, H, L, d_v)."""
    if not apart(model):
        return outputs
    c: Any = model.config
    k, T, N = c.tokens, c.times, c.side**2
    if name.startswith("time_encoder"):
        return torch.cat([outputs[:, :, :k], outputs[:, :, k:].repeat_interleave(N, 2)], 2)
    of_time = ".time" in name
    x = outputs.unflatten(0, (-1, N if of_time else T)).transpose(1, 2)  # (B, H, N, T, d_v); (B, H, T, tokens + N, d_v)
    if of_time:
        return nn.functional.pad(x.transpose(2, 3).flatten(2, 3), (0, 0, k, 0))
    return torch.cat([x[:, :, :, :k].mean(2), x[:, :, :, k:].flatten(2, 3)], 2)


def over_all(model: nn.Module, name: str, maps: Tensor) -> Tensor:
    """What an attention of a model puts where: maps as it makes them -> (B, H, L, L).

    Of a divided one (B · N, H, T, T), where the tokens take no part, or (B · T, H, tokens + N, tokens + N), where these
    are part of each time and hear the mean. Of a factorised one the latter; and (B, H, tokens + T, tokens + T), whose
    times are shared among their patches.
    """
    if not apart(model):
        return maps
    c: Any = model.config
    k, T, N = c.tokens, c.times, c.side**2
    H, L = maps.shape[1], k + T * N
    if name.startswith("time_encoder"):
        over = torch.cat([maps[..., :k], (maps[..., k:] / N).repeat_interleave(N, -1)], -1)
        return torch.cat([over[:, :, :k], over[:, :, k:].repeat_interleave(N, 2)], 2)
    of_time = ".time" in name
    x = maps.unflatten(0, (-1, N if of_time else T))
    found = maps.new_zeros(len(x), H, L, L)
    patches = found[:, :, k:, k:].unflatten(3, (T, N)).unflatten(2, (T, N))  # (B, H, T, N, T, N)
    if of_time:  # the same patch at all times
        patches.diagonal(dim1=3, dim2=5).copy_(x.permute(0, 2, 3, 4, 1))
        return found
    patches.diagonal(dim1=2, dim2=4).copy_(x[..., k:, k:].permute(0, 2, 3, 4, 1))  # all patches of the same time
    found[:, :, :k, :k] = x[..., :k, :k].mean(1)
    found[:, :, :k, k:] = (x[..., :k, k:] / T).permute(0, 2, 3, 1, 4).flatten(3)
    found[:, :, k:, :k] = x[..., k:, :k].transpose(1, 2).flatten(2, 3)
    return found
