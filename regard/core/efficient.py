"""Self-attention that is not all to all, by name: from `window:64` to the module that does it.

    full                eq. 1
    window:W            W keys on each side, or the W before and itself           exact, O(n W)
    dilated:W:D         the same over every D-th position                         exact, O(n W)
    longformer:W:G      a window; the first G positions see all, and all see them exact, O(n (W + G))
    bigbird:W:G:R       the same, and R random blocks of 32 keys for each 32 queries; bigbird:W:G:R:SEED for other ones
    blocks:B            within blocks of B positions                              exact, O(n B)
    segments:L:M        within segments of L, and to the M before each, from which nothing is learnt: Transformer-XL
    memorizing:L:M:K    the same, and to the K best of all keys before, by a gate: a Memorizing Transformer's layer
    linformer:R         to R learnt mixtures of the keys; not causal              approximate, O(n R)
    performer:F         exp(q·k) by F random features; performer:F:relu           approximate, O(n F)
    linear              the kernel elu + 1                                        another kernel, O(n)

Each is a module between the projections of a `MultiHeadAttention`, with three ways through it: called, it mixes a
whole sequence, q, k (B, H, n, d_k) and v (B, H, n, d_v) -> (B, H, n, d_v); `step` goes on from what `past()` began;
`weights` writes out (B, H, T, S) what values are multiplied with, under the mask and what the kind has `allowed`: the
slow truth, and what a watcher sees. A `step` takes k and v of G key/value heads, G a divisor of H, and remembers only
these.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.linear import Elu, Exponential, Linear, Relu
from regard.core.linformer import Linformer, check_rank
from regard.core.masks import AnyMask, Mask
from regard.core.memorizing import Memorizing
from regard.core.sparse import SIZE, Band, DiagonalBlocks, Segments, Sparse

Inner = Sparse | Linear | Linformer | Memorizing
FORMS = {
    "full": "full",
    "window": "window:64",
    "dilated": "dilated:32:4",
    "longformer": "longformer:64:2",
    "bigbird": "bigbird:64:2:3",
    "blocks": "blocks:64",
    "segments": "segments:64:64",
    "memorizing": "memorizing:64:64:32",
    "linformer": "linformer:64",
    "performer": "performer:256",
    "linear": "linear",
}
PATTERNS = ("window", "dilated", "longformer", "bigbird", "blocks", "segments")  # exact: soft-max of some of the scores


@dataclass(frozen=True)
class Kind:
    """A kind of attention: its name, its numbers, and the kernel of a Performer.

    >>> Kind.read("longformer:64:2")
    Kind(name='longformer', numbers=(64, 2), relu=False)
    >>> Kind.read("window:wide")
    Traceback (most recent call last):
    ValueError: attention 'window:wide': write it as in window:64, with whole numbers from 1 on
    """

    name: str
    numbers: tuple[int, ...] = ()
    relu: bool = False

    @classmethod
    def read(cls, text: str) -> "Kind":
        name, *rest = text.split(":")
        if name not in FORMS:
            raise ValueError(f"unknown attention {text!r}: choose one of {', '.join(FORMS.values())}")
        relu = name == "performer" and rest[1:] == ["relu"]
        rest = rest[:1] if relu else rest
        expected = FORMS[name].count(":")
        seeded = name == "bigbird" and len(rest) == expected + 1  # any number may be the seed
        if (
            not all(part.isascii() and part.isdigit() for part in rest)
            or len(rest) != expected + seeded
            or not all(map(int, rest[:expected]))
        ):
            numbers = f", with whole numbers from 1 on{' (the last may be relu)' * (name == 'performer')}"
            raise ValueError(f"attention {text!r}: write it as in {FORMS[name]}{numbers if expected else ''}")
        return cls(name, tuple(map(int, rest)), relu)

    @property
    def causal(self) -> bool:
        """Whether a decoder can use it."""
        return self.name != "linformer"

    @property
    def reach(self) -> int:
        """How long a sequence must be for all that the numbers of a pattern ask for; 0 of any other kind."""
        match self.name, self.numbers:
            case "dilated", (W, D):
                return W * D
            case "bigbird", (W, G, R, *_):
                return max(W, G, (R - 1) * SIZE + 1)  # R blocks, of which the last may be a short one
        return max(self.numbers) if self.name in PATTERNS else 0

    def make(self, *, d_k: int, max_length: int, heads: int) -> Inner | None:
        """Its module; None for full attention."""
        match self.name, self.numbers:
            case (("window" | "dilated"), numbers):
                return Sparse(Band(*numbers))
            case "longformer", (W, G):
                return Sparse(Band(W, first=G))
            case "bigbird", (W, G, R, *seed):
                return Sparse(Band(W, first=G, random=R, seed=sum(seed)))
            case "blocks", (B,):
                return Sparse(DiagonalBlocks(B))
            case "segments", (L, M):
                return Sparse(Segments(L, M))
            case "memorizing", (L, M, K):
                return Memorizing(L, M, K, heads)
            case "linformer", (R,):
                return Linformer(R, max_length)
            case "performer", (features,):
                return Linear(Relu(features, d_k) if self.relu else Exponential(features, d_k))
            case "linear", _:
                return Linear(Elu())
        return None


def check_kind(text: str, *, dropout: float, scale: float | None, plain: bool, backend: str, max_length: int) -> Kind:
    """The kind that a text names, if it goes together with what else an attention is made of."""
    kind = Kind.read(text)
    if kind.name == "full":
        return kind
    if not plain:
        raise ValueError(f"attention {text!r} has its own way from scores to weights: leave score and normaliser alone")
    if backend not in ("auto", "math"):
        raise ValueError(f"backend = {backend!r} is one of full attention, not of {text!r}: leave it at auto, or math")
    if kind.name in ("segments", "memorizing") and backend == "math":
        raise ValueError(f"backend = 'math' would learn across the segments of {text!r}: leave it at auto")
    if dropout and kind.name not in PATTERNS:
        raise ValueError(
            f"attention {text!r} has no weights for an attention dropout of {dropout} to drop: set it to 0"
        )
    if scale is not None and (kind.name == "linear" or kind.relu):
        raise ValueError(f"scale = {scale}: the kernel of {text!r} has none; leave it out")
    if scale is not None and scale < 0 and kind.name == "performer":
        raise ValueError(f"scale = {scale}: {text!r} takes its square root; choose one that is not negative")
    if kind.name == "linformer":
        check_rank(kind.numbers[0], max_length)
    if kind.reach > max_length:
        raise ValueError(
            f"attention {text!r} reaches {kind.reach} positions, more than max_length = {max_length}, the longest "
            "sequence: choose smaller numbers, raise max_length, or take full attention"
        )
    return kind


def causal_and_keep(mask: AnyMask | None, S: int, text: str) -> tuple[bool, Tensor | None]:
    """What a mask says to an efficient attention: whether it is causal, and which of S keys are no padding, (B, S)."""
    if mask is None:
        return False, None
    if isinstance(mask, Mask) and mask.triangle:
        return True, None
    keep = mask.keep if isinstance(mask, Mask) else None
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1:3] == (1, 1):
        keep = mask[:, 0, 0]
    if keep is not None and keep.shape[1] in (1, S):
        return False, keep.expand(-1, S)
    kind = f" of {mask.dtype}" if isinstance(mask, Tensor) else ""
    raise ValueError(
        f"attention {text!r} has a pattern of its own, and takes causal() or a bool padding mask (batch, 1, 1, {S}) "
        f"beside it, not a mask of shape {tuple(mask.shape)}{kind}"
    )


def check_causal(mask: AnyMask | None, text: str) -> None:
    """Refuse a mask that a cache of the newest keys, or of sums, has no place for."""
    if mask is not None and tuple(mask.shape) != (1, 1, 1, 1):
        raise ValueError(
            f"attention {text!r} goes on from its cache under causal() alone, not under a mask of shape "
            f"{tuple(mask.shape)}"
        )
