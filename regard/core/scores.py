"""How well a key answers a query: the scores that attention had before, and beside, eq. 1.

Letters: B batch, H query heads, G key heads, T queries, S keys, d_q and d_k widths of a query and of a key of one head,
a = d_q width inside an additive score.

A score has two parts, so that keys which are read many times are prepared once: `keys`, whose result a cache holds, and
`forward`, from queries (B, H, T, d_q) and what `keys` made (B, H, S, ·) to scores (B, H, T, S). Every head has
parameters of its own, those of the keys one for each key head.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SCORES = ("dot", "general", "additive", "concat", "location")
SCALED = ("dot", "general")  # products, which grow with the width; the others have no scale
LARGE = 2**22  # numbers held at a time by an additive score: 16 MB in fp32


class ScoreFunction(nn.Module):
    """dot: scale · q·k, eq. 1. With a scale of 1 it is that of Luong et al. (2015)."""

    width: int | None = None  # of what `keys` makes of a key, if it is not as wide as before

    def keys(self, k: Tensor) -> Tensor:
        """k (B, G, S, d_k) -> what `forward` reads of each key."""
        return k

    def forward(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return (q * scale) @ k.transpose(-2, -1)  # (B, H, T, S)


class General(ScoreFunction):
    """scale · qᵀ W k (Luong et al. 2015): query and key may differ in width."""

    def __init__(self, heads: int, d_q: int, d_k: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(_xavier(torch.empty(heads, d_q, d_k)))

    def forward(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return super().forward(_each(q, self.matrix), k, scale)


class Additive(ScoreFunction):
    """v · tanh(W_q q + W_k k) (Bahdanau et al. 2015).

    Luong's (2015) concat, v · tanh(W [q; k]), is the same sum with W = [W_q, W_k]. What is left of the difference is
    where training begins: Xavier's bound for one matrix of 2d inputs is smaller than for two of d.
    """

    def __init__(self, heads: int, kv_heads: int, d_q: int, d_k: int, *, joint: bool = False) -> None:
        super().__init__()
        self.width = d_q
        inputs = d_q + d_k if joint else None
        self.query = nn.Parameter(_xavier(torch.empty(heads, d_q, d_q), inputs))
        self.key = nn.Parameter(_xavier(torch.empty(kv_heads, d_k, d_q), inputs))
        self.vector = nn.Parameter(_xavier(torch.empty(heads, d_q, 1)))

    def keys(self, k: Tensor) -> Tensor:
        return _each(k, self.key)  # (B, G, S, a)

    def forward(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return additive(_each(q, self.query), k, self.vector)


class Location(ScoreFunction):
    """W q over the positions of the keys (Luong et al. 2015): where to look is decided without looking."""

    def __init__(self, heads: int, d_q: int, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, d_q, longest) * d_q**-0.5)

    def forward(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        S, longest = k.shape[2], self.table.shape[2]
        if longest < S:
            raise ValueError(
                f"{S} keys are more than the {longest} positions of this location score: split the text, or raise "
                "max_length when building the model"
            )
        return _each(q, self.table[:, :, :S])


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """v · tanh(q + k) of every pair: q (B, H, T, a), k (B, H, S, a), v (H, a, 1) -> (B, H, T, S).

    The (B, H, T, S, a) numbers inside exist for some queries at a time; where there are many, the gradient computes
    them again.

    >>> k = torch.tensor([[0.0, 0.0], [9.0, -9.0]])[None, None]
    >>> additive(torch.zeros(1, 1, 1, 2), k, torch.tensor([[[1.0], [2.0]]])).round().flatten().tolist()
    [0.0, -1.0]
    """
    rows = max(1, LARGE // max(1, k.numel()))  # k has B·H·S·a numbers, and so has each query
    if q.shape[2] <= rows:
        return _added(q, k, v)
    if not torch.is_grad_enabled():
        return torch.cat([_added(part, k, v) for part in q.split(rows, 2)], 2)
    parts = [checkpoint(_added, part, k, v, use_reentrant=False, preserve_rng_state=False) for part in q.split(rows, 2)]
    return torch.cat(parts, 2)


def _added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    inner = (q[:, :, :, None] + k[:, :, None]).tanh()  # (B, H, T, S, a)
    return (inner * v[:, None, None, :, 0]).sum(-1)  # with v (H, 1, 1, a): quicker than so many tiny products


def make_score(name: str, heads: tuple[int, int], widths: tuple[int, int], longest: int) -> ScoreFunction:
    """The score of this name, for so many heads of queries and of keys and their widths.

    `longest` is how many positions `location` tells apart.
    """
    (heads_q, heads_k), (d_q, d_k) = heads, widths
    if name == "general":
        return General(heads_q, d_q, d_k)
    if name in ("additive", "concat"):
        return Additive(heads_q, heads_k, d_q, d_k, joint=name == "concat")
    if name == "location":
        return Location(heads_q, d_q, longest)
    if d_q != d_k:
        raise ValueError(
            f"a dot product needs queries and keys of one width, got {d_q} and {d_k}: choose the score general or "
            "additive, or let the attention project them"
        )
    return ScoreFunction()


def _each(x: Tensor, matrices: Tensor) -> Tensor:
    """x (B, H, T, d) times a matrix for each head, (H, d, a) -> (B, H, T, a): H products, not B·H tiny ones."""
    B, _, T, _ = x.shape
    return (x.transpose(0, 1).flatten(1, 2) @ matrices).unflatten(1, (B, T)).transpose(0, 1)


def _xavier(x: Tensor, inputs: int | None = None) -> Tensor:
    """Fill x (heads, inputs, outputs), uniform in ±√(6 / (inputs + outputs)), for each head by itself."""
    bound = math.sqrt(6 / ((inputs or x.shape[1]) + x.shape[2]))
    return nn.init.uniform_(x, -bound, bound)
