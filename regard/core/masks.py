"""Masks: which query may look at which key. True = may attend.

Letters: B batch, H heads, T queries, S keys.

A mask is a bool tensor broadcastable to (B, H, T, S), or a `Mask`: a rule over query and key indices. A rule
is evaluated block by block where it is needed, so nobody has to hold the T x S table of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Mask:
    """A rule (query indices (T, 1), key indices (1, S)) -> bool, broadcastable to (B, H, T, S).

    `shape` is (B, H, T, S) with 1 where any size will do. `triangle` marks the plain causal mask, which fused
    kernels know by name; `keep` (B, S) says all of a padding mask. Masks combine with `&` and `|`.

    >>> causal().dense(3, 3)[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """

    rule: Callable[[Tensor, Tensor], Tensor]
    shape: Shape = (1, 1, 1, 1)
    triangle: bool = False
    keep: Tensor | None = None

    def block(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The mask at these query indices (T,) and key indices (S,): bool, 4-D, with sizes of 1 left as they are."""
        allowed = self.rule(queries[:, None], keys[None, :])
        return allowed[(None,) * (4 - allowed.dim())]

    def dense(self, T: int, S: int, device: torch.device | str = "cpu") -> Tensor:
        """The whole mask as a bool tensor broadcastable to (B, H, T, S)."""
        return self.block(torch.arange(T, device=device), torch.arange(S, device=device))

    def __and__(self, other: "Mask") -> "Mask":
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(lambda i, j: self.rule(i, j) & other.rule(i, j), _join(self.shape, other.shape))

    def __or__(self, other: "Mask") -> "Mask":
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(lambda i, j: self.rule(i, j) | other.rule(i, j), _join(self.shape, other.shape))


AnyMask = Tensor | Mask


def _join(a: Shape, b: Shape) -> Shape:
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        raise ValueError(f"masks of shapes {a} and {b} do not go together: each size must agree or be 1")
    B, H, T, S = (max(m, n) for m, n in zip(a, b, strict=True))
    return B, H, T, S


def causal(offset: int = 0) -> Mask:
    """No query sees a later key (§3.2.3). With `offset` keys already in a cache, query i stands at offset + i; without
    a cache, it sees so many later ones."""
    return Mask(lambda i, j: j <= i + offset, triangle=offset == 0)


def padding(keep: Tensor) -> Mask:
    """Only real tokens are seen; `keep` is (B, S) bool, True = a real token.

    >>> padding(torch.tensor([[True, True, False]])).dense(1, 3).tolist()
    [[[[True, True, False]]]]
    """
    if keep.dtype != torch.bool or keep.dim() != 2:
        raise ValueError(
            f"padding() takes a bool tensor (batch, keys), True = a real token; got {keep.dtype} of shape "
            f"{tuple(keep.shape)}: pass e.g. `tokens != pad`"
        )
    B, S = keep.shape
    return Mask(lambda i, j: keep[:, None, None, j.flatten()], (B, 1, 1, S), keep=keep)


def beyond(mask: AnyMask | None, n: int) -> AnyMask | None:
    """The same with n more keys before the others: everybody sees them.

    >>> beyond(causal(), 1).dense(2, 3)[0, 0].int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    if mask is None or not n:
        return mask
    if isinstance(mask, Tensor):
        return mask if mask.shape[3] == 1 else F.pad(mask, (n, 0), value=True)
    B, H, T, S = mask.shape
    return Mask(lambda i, j: (j < n) | mask.rule(i, (j - n).clamp(min=0)), (B, H, T, S if S == 1 else S + n))


def alike(groups: Tensor) -> Mask:
    """A query sees the keys of its own group; `groups` is (B, T) of whole numbers, such as those of documents.

    >>> alike(torch.tensor([[0, 0, 1]])).dense(3, 3)[0, 0].int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    B, T = groups.shape
    return Mask(lambda i, j: groups[:, None, i.flatten(), None] == groups[:, None, None, j.flatten()], (B, 1, T, T))


def window(W: int, dilation: int = 1) -> Mask:
    """A query sees itself and W keys on each side; with a dilation D every D-th of them (Beltagy et al. 2020).

    >>> window(1).dense(4, 4)[0, 0].int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    """
    return Mask(lambda i, j: ((i - j).abs() <= W * dilation) & ((i - j) % dilation == 0))


def diagonal_blocks(B: int) -> Mask:
    """Positions 0..B-1 see each other, the next B each other, and so on."""
    return Mask(lambda i, j: i // B == j // B)


def first(G: int) -> Mask:
    """The first G positions see all and are seen by all."""
    return Mask(lambda i, j: (i < G) | (j < G))


def random_blocks(R: int, size: int, *, seed: int, both_ways: bool) -> Mask:
    """Each block of `size` queries sees R blocks of keys picked at random (Zaheer et al. 2020)."""

    def rule(i: Tensor, j: Tensor) -> Tensor:
        return (random_picks(i // size, R, seed=seed, both_ways=both_ways) == (j // size)[..., None]).any(-1)

    return Mask(rule)


def random_picks(block: Tensor, R: int, *, seed: int, both_ways: bool) -> Tensor:
    """R blocks for each block of queries, (...) -> (..., R): among 0..block, or both ways among 0..2·block.

    They are a function of seed and block alone, never of the length of the text: neither padding nor what is still to
    be decoded changes them. So both ways as many are picked ahead as behind, and some lie beyond the end.
    """
    x = (block[..., None] * 8191 + torch.arange(R, device=block.device)) * 131071 + seed % 2**31
    for _ in range(3):  # a congruential step, then high bits into low ones
        x = (x * 1103515245 + 12345) & (2**31 - 1)
        x = x ^ (x >> 13)
    return x % (block[..., None] * (2 if both_ways else 1) + 1)
