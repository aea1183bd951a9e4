"""Where a token stands (§3.5): seven encodings behind three hooks.

Letters: B batch, H heads, T queries, S keys, d_model width of the model, d_k width of a head.

An encoding overrides the hooks it needs: `add` to the embedding, `rotate` queries and keys, `bias` the scores.
A model calls all three, so any encoding works in any model. `offset` is how many positions a cache already
holds: the rows of x stand at offset, offset + 1, ...
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP = 16  # the largest distance that Shaw's positions tell from larger ones
BUCKETS = 32  # of distances, in T5's


class Positions(nn.Module):
    """No position at all: every hook does nothing."""

    shared = True  # one for all layers of a stack

    def add(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        """x (B, T, d_model) with its positions added: from `offset` on, or each its own, (B, T)."""
        return x

    def rotate(self, x: Tensor, offset: int = 0) -> Tensor:
        """Queries or keys x (B, H, T, d_k), rotated."""
        return x

    def bias(self, q: Tensor, keys: int, offset: int = 0, scale: float = 1.0) -> Tensor | None:
        """What to add to the scores scale · q·k of q (B, H, T, d_k) and that many keys: (1 or B, H, T, S)."""
        return None


def sinusoid(position: Tensor, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same): (T,) -> (T, d_model), in fp64.

    Angles are computed on the CPU here and in `Rotary`: not every accelerator has fp64.

    >>> sinusoid(torch.tensor([0, 1]), 4).round(decimals=4).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.01, 1.0]]
    """
    i = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")
    angle = position.cpu()[:, None] * 10000 ** (-i / d_model)  # (T, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]


class Sinusoidal(Positions):
    """The paper's (§3.5)."""

    def add(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        if isinstance(offset, Tensor):
            return x + sinusoid(torch.arange(x.shape[1], device="cpu"), x.shape[2]).to(x.device, x.dtype)[offset]
        at = torch.arange(offset, offset + x.shape[1], device="cpu")
        return x + sinusoid(at, x.shape[2]).to(x.device, x.dtype)


class Learned(Positions):
    """A vector for each position, up to a maximum (§3.5, Table 3 row E)."""

    def __init__(self, maximum: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(maximum, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def add(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        if isinstance(offset, Tensor):
            return x + self.table[offset]
        end = offset + x.shape[1]
        if end > len(self.table):
            raise ValueError(
                f"a sequence of {end} tokens is longer than the {len(self.table)} learned positions: split it, raise "
                "max_length when building the model, or use positions without a table (sinusoidal, rope, alibi, t5)"
            )
        return x + self.table[offset:end]


def stretched(table: Tensor, first: int, grid: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """Positions of a grid (h, w), after `first` others that stay as they are, for another one, by cubic splines:
    (first + h · w, d_model) -> (first + h' · w', d_model)."""
    maps = table[first:].float().view(1, *grid, -1).permute(0, 3, 1, 2)  # (1, d_model, h, w)
    maps = F.interpolate(maps, wanted, mode="bicubic", align_corners=False)
    return torch.cat([table[:first], maps[0].flatten(1).T.to(table.dtype)])


class Rotary(Positions):
    """RoPE: queries and keys turn by an angle proportional to their position, so q·k sees only the distance.

    Dimension i is paired with i + d_k/2 and turns by pos · base^(-2i/d_k). For texts longer than those of training they
    may turn more slowly: with `scaling` linear:N all of them N times (Chen et al. 2023); with llama3:N,low,high,L those
    that turn less than `low` times in L positions, those of more than `high` times as before, between them in between.
    """

    def __init__(self, d_k: int, base: float = 10000.0, scaling: str | None = None) -> None:
        super().__init__()
        if d_k % 2:
            raise ValueError(
                f"rotary positions (rope) turn pairs of dimensions: d_k = {d_k} must be even; set d_k, or other heads"
            )
        self.d_k, self.base, self.scaling = d_k, base, _scaling(scaling)

    def speeds(self) -> Tensor:
        """Radians a position, (d_k / 2,), in fp64.

        >>> Rotary(4).speeds().tolist(), Rotary(4, scaling="linear:4").speeds().tolist()
        ([1.0, 0.01], [0.25, 0.0025])
        """
        i = torch.arange(0, self.d_k, 2, dtype=torch.float64, device="cpu")
        speed = self.base ** (-i / self.d_k)
        if len(self.scaling) == 4:
            factor, low, high, length = self.scaling
            turns = length * speed / (2 * math.pi)
            share = ((turns - low) / (high - low)).clamp(0.0, 1.0)  # of the speed as it was
            return share * speed + (1 - share) * speed / factor
        return speed / self.scaling[0] if self.scaling else speed

    def rotate(self, x: Tensor, offset: int = 0) -> Tensor:
        at = torch.arange(offset, offset + x.shape[2], device="cpu")
        angle = at[:, None] * self.speeds()  # (T, d_k / 2)
        cos, sin = angle.cos().to(x.device, x.dtype), angle.sin().to(x.device, x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _scaling(text: str | None) -> tuple[float, ...]:
    """The numbers of `linear:N` and `llama3:N,low,high,L`."""
    if text is None:
        return ()
    name, _, numbers = text.partition(":")
    try:
        found = tuple(map(float, numbers.split(",")))
    except ValueError:
        found = ()
    ordered = len(found) < 3 or found[1] < found[2]
    if len(found) != {"linear": 1, "llama3": 4}.get(name) or not ordered or not all(0 < n < math.inf for n in found):
        raise ValueError(f"rope_scaling = {text!r}: write linear:2, or llama3:8,1,4,8192, with numbers above 0")
    return found


def distances(T: int, S: int, offset: int, device: torch.device) -> Tensor:
    """key position - query position, (T, S)."""
    return torch.arange(S, device=device) - torch.arange(offset, offset + T, device=device)[:, None]


class Shaw(Positions):
    """Relative position vectors added to the keys, q·(k + a[j - i]), distances clipped (Shaw et al. 2018).

    Each head has its own table. Their second table, for the values, is left out: they measured no gain from it.
    """

    shared = False

    def __init__(self, heads: int, d_k: int, clip: int = CLIP) -> None:
        super().__init__()
        self.clip = clip
        self.table = nn.Parameter(torch.empty(heads, 2 * clip + 1, d_k))
        nn.init.normal_(self.table, std=d_k**-0.5)

    def bias(self, q: Tensor, keys: int, offset: int = 0, scale: float = 1.0) -> Tensor:
        B, H, T, _ = q.shape
        clipped = distances(T, keys, offset, q.device).clamp(-self.clip, self.clip) + self.clip  # (T, S)
        by_distance = scale * torch.einsum("bhtd,hrd->bhtr", q, self.table)  # r: the 2·clip + 1 distances
        return by_distance.gather(-1, clipped.expand(B, H, T, keys))


class T5Bias(Positions):
    """One learned number for each head and bucket of distances; buckets widen with the distance (Raffel et al. 2020).

    Half the buckets hold one distance each, the others grow by a constant factor up to `maximum`, beyond which
    all distances share the last one. With `both_ways` half of all buckets are for keys to the right.
    """

    def __init__(self, heads: int, both_ways: bool, buckets: int = BUCKETS, maximum: int = 128) -> None:
        super().__init__()
        if buckets < 4 or maximum <= buckets // 2:
            raise ValueError(f"T5's bias needs at least 4 buckets and a larger maximum, got {buckets} and {maximum}")
        self.both_ways, self.buckets, self.maximum = both_ways, buckets, maximum
        self.table = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.table, std=0.1)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each key position - query position."""
        buckets, first = self.buckets, torch.zeros_like(distance)
        if self.both_ways:
            buckets //= 2
            first = (distance > 0) * buckets
            away = distance.abs()
        else:
            away = -distance.clamp(max=0)
        exact = buckets // 2
        growth = (away.clamp(min=1) / exact).log() / math.log(self.maximum / exact)  # 0 at `exact`, 1 at `maximum`
        wide = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(away < exact, away, wide)

    def bias(self, q: Tensor, keys: int, offset: int = 0, scale: float = 1.0) -> Tensor:
        bucket = self.bucket(distances(q.shape[2], keys, offset, q.device))
        return self.table[bucket].permute(2, 0, 1)[None].to(q.dtype)  # (T, S, H) -> (1, H, T, S)


class ALiBi(Positions):
    """Scores fall linearly with the distance, by a slope fixed for each head (Press et al. 2022).

    >>> ALiBi(heads=8).slopes[:3]
    (0.5, 0.25, 0.125)
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        # For 2^m heads a geometric series from 2^(-8/heads); for others the series of the next smaller power of two,
        # then every second slope of the next larger one.
        small = 2 ** int(math.log2(heads))
        slopes = [2 ** (-8 * (i + 1) / small) for i in range(small)]
        self.slopes = (*slopes, *(2 ** (-4 * (i + 1) / small) for i in range(0, 2 * (heads - small), 2)))

    def bias(self, q: Tensor, keys: int, offset: int = 0, scale: float = 1.0) -> Tensor:
        away = distances(q.shape[2], keys, offset, q.device).abs()
        slopes = torch.tensor(self.slopes, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        return (-slopes[:, None, None] * away)[None].to(q.dtype)  # (1, H, T, S)


ABSOLUTE = ("none", "sinusoidal", "learned")
RELATIVE = ("shaw", "t5", "rope", "alibi")
BIASED = ("shaw", "t5", "alibi")  # of these, the ones that add to the scores


def absolute_positions(kind: str, *, d_model: int, maximum: int) -> Positions:
    """The encoding of this name if it is added to the embedding; otherwise one that does nothing there."""
    if kind == "sinusoidal":
        return Sinusoidal()
    if kind == "learned":
        return Learned(maximum, d_model)
    return _nothing(kind)


def relative_positions(
    kind: str,
    *,
    heads: int,
    d_k: int,
    both_ways: bool,
    base: float = 10000.0,
    scaling: str | None = None,
) -> Positions:
    """The encoding of this name if it acts inside self-attention; otherwise one that does nothing there."""
    if kind == "shaw":
        return Shaw(heads, d_k)
    if kind == "t5":
        return T5Bias(heads, both_ways)
    if kind == "rope":
        return Rotary(d_k, base, scaling)
    if kind == "alibi":
        return ALiBi(heads)
    return _nothing(kind)


def _nothing(kind: str) -> Positions:
    if kind not in ABSOLUTE + RELATIVE:
        raise ValueError(f"unknown positions {kind!r}: choose one of {', '.join(ABSOLUTE + RELATIVE)}")
    return Positions()
