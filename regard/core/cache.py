"""What a decoder remembers between steps: a value that the caller holds, never a module.

Letters: B batch, H key/value heads, S positions so far, d width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class KeyValues:
    """Keys and values of the past of one attention, in buffers that double when full. They are written in place, so
    a cache is for inference.

    >>> past = KeyValues()
    >>> for _ in range(3):
    ...     keys, values = past.extend(torch.ones(2, 4, 1, 8), torch.ones(2, 4, 1, 8))
    >>> keys.shape, past.length
    (torch.Size([2, 4, 3, 8]), 3)
    """

    keys: Tensor | None = None  # (B, H, capacity, d_k)
    values: Tensor | None = None  # (B, H, capacity, d_v)
    length: int = 0
    alignment: Tensor | None = None  # (rows, heads, S): where a monotonic attention stands in a memory

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k (B, H, T, d_k) and v (B, H, T, d_v); return all keys and values so far, as views."""
        start, end = self.length, self.length + k.shape[2]
        if self.keys is not None and len(self.keys) != len(k):
            raise ValueError(f"the cache holds a batch of {len(self.keys)}, not of {len(k)}: start a new one")
        self.keys, self.values = _room(self.keys, k, start, end), _room(self.values, v, start, end)
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reorder(self, index: Tensor) -> None:
        """Keep the rows `index` of the batch, in that order (a beam search chooses its survivors so)."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, index)
            self.values = self.values.index_select(0, index)

    def follow(self, rows: Tensor) -> None:
        """Keep the rows of what was decoded, of which a memory may serve several: they stand apart in it."""
        if self.alignment is not None:
            self.alignment = self.alignment.index_select(0, rows)


def _room(buffer: Tensor | None, new: Tensor, start: int, end: int) -> Tensor:
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    B, H, _, d = new.shape
    larger = new.new_empty(B, H, max(end, 2 * start, 16), d)
    if buffer is not None:
        larger[:, :, :start] = buffer[:, :, :start]
    return larger


@dataclass
class Recent:
    """The first and the last keys and values of the past, of an attention that looks at no others: O(first + last).

    >>> past = Recent(first=1, last=2)
    >>> for i in range(6):
    ...     keys, values, at = past.extend(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
    >>> at.tolist(), past.length
    ([0, 3, 4, 5], 6)
    """

    first: int = 0
    last: int = 0
    keys: Tensor | None = None  # (B, H, at most first + last, d_k)
    values: Tensor | None = None
    at: Tensor | None = None  # (at most first + last,): where each of them stands
    length: int = 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Append k (B, H, T, d_k) and v (B, H, T, d_v); return what was kept, and these, and where each stands."""
        start, self.length = self.length, self.length + k.shape[2]
        at = torch.arange(start, self.length, device=k.device)
        if self.keys is not None and self.values is not None and self.at is not None:
            if len(self.keys) != len(k):
                raise ValueError(f"the cache holds a batch of {len(self.keys)}, not of {len(k)}: start a new one")
            k, v, at = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2), torch.cat([self.at, at])
        self.keys, self.values, self.at = k, v, at
        if len(at) > self.first + self.last:
            ends = torch.cat([at.new_tensor(range(self.first)), torch.arange(len(at) - self.last, len(at)).to(at)])
            self.keys, self.values, self.at = k.index_select(2, ends), v.index_select(2, ends), at[ends]
        return k, v, at

    def reorder(self, index: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)


@dataclass
class Sums:
    """The whole past of a linear attention: Σ φ(k) [v, 1]ᵀ, divided by e to the power of `level`. It never grows."""

    sums: Tensor | None = None  # (B, H, features, d_v + 1)
    level: Tensor | None = None  # (B, H, 1, 1)
    length: int = 0

    def reorder(self, index: Tensor) -> None:
        if self.sums is not None and self.level is not None:
            self.sums, self.level = self.sums.index_select(0, index), self.level.index_select(0, index)


@dataclass
class Window:
    """The last inputs of a causal convolution, (B, kernel - 1, d)."""

    past: Tensor | None = None

    def slide(self, x: Tensor, kernel: int) -> Tensor:
        """Put the remembered inputs before x (B, T, d), zeros at the start; remember the newest."""
        if self.past is None:
            self.past = x.new_zeros(x.shape[0], kernel - 1, x.shape[2])
        x = torch.cat([self.past, x], dim=1)
        self.past = x[:, x.shape[1] - (kernel - 1) :]
        return x

    def reorder(self, index: Tensor) -> None:
        if self.past is not None:
            self.past = self.past.index_select(0, index)


@dataclass
class LayerCache:
    """The past of one decoder layer. Cross-attention keys and values are filled once and then reused."""

    self_attention: KeyValues | Recent | Sums = field(default_factory=KeyValues)
    cross_attention: KeyValues = field(default_factory=KeyValues)
    feed_forward: Window = field(default_factory=Window)

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        if rows is not None:
            self.self_attention.reorder(rows)
            self.feed_forward.reorder(rows)
            self.cross_attention.follow(rows)
        if memory is not None:
            self.cross_attention.reorder(memory)


class Cache(list[LayerCache]):
    """The past of a stack of layers.

    >>> Cache.empty(6).length
    0
    """

    @classmethod
    def empty(cls, layers: int) -> "Cache":
        return cls(LayerCache() for _ in range(layers))

    @property
    def length(self) -> int:
        """How many positions have been decoded."""
        return self[0].self_attention.length if self else 0

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        """Keep these rows (n,) of what was decoded, and these of the memory, in that order; None leaves them alone."""
        for layer in self:
            layer.reorder(rows, memory)
