"""Attention maps as bytes: a header in JSON, then the numbers, so that a page need not parse them.

4 bytes, little-endian, say how long the header is; it is padded by spaces, and each map begins at a multiple of 8.
"""

import json
from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor


def pooled(maps: Tensor, size: int) -> Tensor:
    """maps (H, T, S) -> the largest number of each block of rows and columns, at most `size` of both.

    Blocks are ⌈T / size⌉ rows high and ⌈S / size⌉ columns wide; the last may be smaller.

    >>> import torch
    >>> pooled(torch.arange(15.0).view(1, 3, 5), 2).tolist()
    [[[7.0, 9.0], [12.0, 14.0]]]
    """
    _, T, S = maps.shape
    blocks = -(-T // size), -(-S // size)
    return maps if blocks == (1, 1) else F.max_pool2d(maps[None], blocks, ceil_mode=True)[0]


def pack(view: str, maps: Iterable[tuple[str, list[int], Tensor]], *, dtype: str, pool: int = 0) -> bytes:
    """(name, heads, numbers (H, T, S) that are not negative) of each map -> bytes.

    u8 holds whole 255ths of `scale`, which is 1 for weights, else the largest number of a map; f32 the numbers.
    """
    entries, parts, offset = [], list[bytes](), 0
    for name, heads, numbers in maps:
        numbers = pooled(numbers, pool) if pool else numbers
        scale = 1.0 if view == "weights" else float(numbers.max()) if numbers.numel() else 1.0
        if dtype == "u8":
            data = (numbers * (255 / (scale or 1.0))).round_().clamp_(0, 255).byte().numpy().tobytes()
        else:
            data = numbers.contiguous().numpy().astype("<f4", copy=False).tobytes()
        entries.append({"name": name, "heads": heads, "shape": list(numbers.shape), "offset": offset, "scale": scale})
        parts.append(data + b"\0" * (-len(data) % 8))
        offset += len(parts[-1])
    header = json.dumps({"view": view, "dtype": dtype, "maps": entries}, separators=(",", ":")).encode()
    header += b" " * (-(4 + len(header)) % 8)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])
