"""The lower end of a stack: what makes vectors of what is read. Words come by their embeddings (§3.4), sound by
convolutions, pictures in patches.

Letters: B batch, T positions, d_model width of the model; C channels, H and W height and width in pixels; of a video, T
times.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.positions import Learned, Positions, absolute_positions, stretched
from regard.core.ways import Ways

GROUPS = 32  # of channels that are normalised together


def words(vocabulary: int, d_model: int, std: float | None = None) -> nn.Embedding:
    """A vector for each word (§3.4); times √d_model, as `Embedding` takes them, of unit variance like the positions."""
    tokens = nn.Embedding(vocabulary, d_model)
    nn.init.normal_(tokens.weight, std=d_model**-0.5 if std is None else std)
    return tokens


@Ways
def bags(rows: Tensor, table: Tensor) -> Tensor:
    """Sums of R rows of a table (V, d) each: which, (..., R) -> (..., d).

    >>> bags(torch.tensor([[0, 0], [1, 0]]), torch.tensor([[1.0], [10.0]])).tolist()
    [[2.0], [11.0]]
    """
    return F.embedding_bag(rows.flatten(0, -2), table, mode="sum").view(*rows.shape[:-1], -1)


class Stem(nn.Module):
    """What a stack begins with: whatever is read -> (B, T, d_model)."""


class Embedding(Stem):
    """Token vectors times √d_model, plus positions, then dropout (§3.4, §3.5, §5.4). `tokens` may be shared.

    Some models add a vector for the sentence of a pair that a token is in (BERT): `segments`; some normalise the sum
    (BART, BERT): `norm`; and some have vectors of another width than the stack (ALBERT): `widen` makes them fit.

    What was taught beside a model may stand before its first token: vectors, those of a `prompt`; and before them
    positions that only attention knows of, those of a `prefix`.
    """

    prompt: Any
    prefix: Any

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: Positions,
        *,
        segments: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        widen: nn.Module | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.segments, self.norm, self.widen = tokens, positions, segments, norm, widen
        self.scale = math.sqrt(tokens.embedding_dim) if scale is None else scale
        self.dropout = Dropout(dropout)
        self.register_module("prompt", None)
        self.register_module("prefix", None)

    @property
    def virtual(self) -> int:
        """Vectors before that of the first token."""
        return self.prompt.length if self.prompt is not None and self.prompt.on else 0

    def kept(self, keep: Tensor) -> Tensor:
        """Which of (B, T) count, and all of what stands before them: (B, virtual + T)."""
        return F.pad(keep, (self.virtual, 0), value=True) if self.virtual else keep

    def forward(
        self,
        tokens: Tensor,
        offset: int | Tensor = 0,
        segments: Tensor | None = None,
        seen: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """tokens (B, T), the first at position `offset`, or each at its own (B, T) -> (B, T, d_model).

        `segments` (B, T) numbers the sentences; left out, or where there is one vector for all, all is the first.
        Before those at position 0 stands the prompt, if there is one: (B, virtual + T, d_model). At the places (B, T)
        of what was `seen`, its vectors (..., d_model) stand one after the other, whatever the tokens are.
        """
        x = self._vectors(tokens if seen is None else tokens.masked_fill(seen[0], 0))
        if seen is not None:
            x = x.masked_scatter(seen[0][..., None], seen[1].to(x.dtype))
        if isinstance(offset, Tensor) or offset == 0:
            first = self.prefix.length if self.prefix is not None and self.prefix.on else 0
            if n := self.virtual:
                x = torch.cat([self.prompt.vectors.to(x.dtype).expand(len(x), -1, -1), x], 1)
                segments = None if segments is None else F.pad(segments, (n, 0))
                if isinstance(offset, Tensor):
                    offset = torch.cat([torch.arange(n).to(offset).expand(len(x), n), offset + n], 1)
            offset = offset + first
        x = self.positions.add(x * self.scale, offset)
        if self.segments is not None:
            apart = segments is not None and self.segments.num_embeddings > 1
            x = x + self.segments(segments if apart and segments is not None else tokens.new_zeros(1))
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.widen is None else self.widen(x)

    def _vectors(self, tokens: Tensor) -> Tensor:
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens are integers (batch, length), got {_kind(tokens)}")
        try:
            return self.tokens(tokens)
        except IndexError as error:
            raise ValueError(
                f"token ids lie in 0..{self.tokens.num_embeddings - 1}, got {int(tokens.min())}..{int(tokens.max())}: "
                "does the tokenizer belong to this model?"
            ) from error


class Frames(Stem):
    """Sound: two convolutions over the frames of a spectrogram, of which the second halves their number, plus positions
    (Radford et al., 2022). There is a place for each half: 1,500 of them are thirty seconds.
    """

    def __init__(self, bands: int, d_model: int, places: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, d_model, 3, padding=1)
        self.second = nn.Conv1d(d_model, d_model, 3, stride=2, padding=1)
        self.positions = Learned(places, d_model)
        self.positions.table = nn.Parameter(_waves(places, d_model), requires_grad=False)
        self.dropout = Dropout(dropout)

    def forward(self, frames: Tensor) -> Tensor:
        """frames (B, 2T, bands) -> (B, T, d_model)."""
        if frames.dim() != 3 or frames.shape[2] != self.first.in_channels or not frames.is_floating_point():
            raise ValueError(
                f"sound is numbers (batch, frames, {self.first.in_channels}), got {frames.dtype} of shape "
                f"{tuple(frames.shape)}"
            )
        x = F.gelu(self.second(F.gelu(self.first(frames.transpose(1, 2))))).transpose(1, 2)
        return self.dropout(self.positions.add(x))


def _waves(places: int, d_model: int) -> Tensor:
    """Whisper's sinusoids: all sines, then all cosines, of wavelengths from 2π to 10,000 · 2π, both included."""
    half, where = d_model // 2, torch.get_default_device()
    with torch.device("cpu"):  # where there is no memory, PyTorch would load its compiler to multiply
        slower = torch.exp(torch.arange(half) * (-math.log(10000) / max(1, half - 1)))
        angle = torch.arange(places)[:, None] * slower
        table = F.pad(torch.cat([angle.sin(), angle.cos()], 1), (0, d_model - 2 * half))
    return table.to(where)


class Patches(Stem):
    """A picture as words: each patch a vector, line by line, plus positions, then dropout (Dosovitskiy et al., 2021).

    `project` makes of (B, C, H, W) a map of vectors (B, d_model, h, w); `tokens` more, which are learnt, stand before
    them: that of the class, and that of a teacher's (Touvron et al., 2021). Positions were learnt for a `grid` (h, w);
    for a picture of another size they are stretched, or, if they are `cut`, a smaller one has those of the first rows
    and columns. Some models normalise the sum (CLIP): `norm`.
    """

    def __init__(
        self,
        project: nn.Module,
        positions: Positions,
        *,
        d_model: int,
        grid: tuple[int, int],
        tokens: int = 0,
        cut: bool = False,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.project, self.positions, self.grid, self.cut, self.norm = project, positions, grid, cut, norm
        self.tokens = nn.Parameter(torch.zeros(tokens, d_model)) if tokens else None
        self.dropout = Dropout(dropout)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, C, H, W) -> (B, tokens + h · w, d_model)."""
        x = self.placed(pixels)
        return self.dropout(x if self.norm is None else self.norm(x))

    def placed(self, pixels: Tensor) -> Tensor:
        """The vectors, with their positions."""
        if pixels.dim() != 4 or not pixels.is_floating_point():
            raise ValueError(f"pixels are numbers (batch, channels, height, width), got {_kind(pixels)}")
        x = self.project(pixels)  # (B, d_model, h, w)
        grid = (x.shape[2], x.shape[3])
        x = x.flatten(2).transpose(1, 2)  # (B, h · w, d_model)
        first = 0 if self.tokens is None else len(self.tokens)
        if self.tokens is not None:
            x = torch.cat([self.tokens.to(x.dtype).expand(len(x), -1, -1), x], 1)
        if self.cut and isinstance(self.positions, Learned):
            return x + self._first(self.positions.table, first, grid).to(x.dtype)
        if grid != self.grid and isinstance(self.positions, Learned):
            return x + stretched(self.positions.table, first, self.grid, grid).to(x.dtype)
        return self.positions.add(x)

    def _first(self, table: Tensor, tokens: int, grid: tuple[int, int]) -> Tensor:
        """Positions of the tokens, and of the first rows and columns: (tokens + h · w, d_model)."""
        if grid[0] > self.grid[0] or grid[1] > self.grid[1]:
            raise ValueError(f"a picture of {grid[0]} x {grid[1]} patches: there are positions for {self.grid}")
        places = table[tokens:].unflatten(0, self.grid)[: grid[0], : grid[1]]  # (h, w, d_model)
        return torch.cat([table[:tokens], places.flatten(0, 1)])


class Tubelets(Patches):
    """A video as words (Arnab et al., 2021): the patches of each of its times, time by time, after the tokens.

    `times` are positions of a time, the same for all its patches, beside those in the picture (TimeSformer); `places`
    one for each patch of each time (ViViT).
    """

    def __init__(self, project: nn.Module, positions: Positions, *, times: Positions, places: Positions, **how: Any):
        super().__init__(project, positions, **how)
        self.times, self.places = times, places

    def placed(self, pixels: Tensor) -> Tensor:
        """pixels (B, T, C, H, W) -> (B, tokens + T · h · w, d_model)."""
        B, T = pixels.shape[:2]
        x = super().placed(pixels.flatten(0, 1)).unflatten(0, (B, T))  # (B, T, tokens + h · w, d_model)
        first = 0 if self.tokens is None else len(self.tokens)
        tokens, x = x[:, 0, :first], x[:, :, first:]
        if isinstance(self.times, Learned) and len(self.times.table) != T:
            when = stretched(self.times.table, 0, (len(self.times.table), 1), (T, 1)).to(x.dtype)[None]
        else:
            when = self.times.add(x.new_zeros(1, T, x.shape[3]))
        if isinstance(self.places, Learned):
            h, w = self.grid
            if (T, x.shape[2]) != (known := ((len(self.places.table) - first) // (h * w), h * w)):
                raise ValueError(
                    f"a video of {T} x {x.shape[2]} tubelets: this model has positions of {known[0]} x {known[1]}, and "
                    "sees only as many frames as it has learnt from, of that size"
                )
        return self.places.add(torch.cat([tokens, (x + when[:, :, None]).flatten(1, 2)], 1))


def tubes(pixels: Tensor, tubelet: int) -> Tensor:
    """Some frames at a time are one picture, with all their colours: a patch of it is a tubelet.

    pixels (B, frames, C, H, W) -> (B, T, C · tubelet, H, W).
    """
    if pixels.dim() != 5 or not pixels.is_floating_point() or not pixels.shape[1] or pixels.shape[1] % tubelet:
        raise ValueError(
            f"a video is numbers (batch, frames, channels, height, width), of {tubelet} frames or a multiple of that; "
            f"got {_kind(pixels)}"
        )
    return pixels.unflatten(1, (-1, tubelet)).transpose(2, 3).flatten(2, 3)


def patched(
    c: Any,
    d_model: int,
    tokens: int,
    *,
    kernel: int = 3,
    bias: bool = True,
    norm: nn.Module | None = None,
    made: Callable[..., Patches] = Patches,
) -> Patches:
    """The patches of a config that has pictures, or videos: they are cut out, or made by convolutions."""
    stages, height = getattr(c, "residual", ""), getattr(c, "height", None)
    channels = c.channels * getattr(c, "tubelet", 1)
    if stages:
        project: nn.Module = ResNet(channels, d_model, [*map(int, stages.split(","))])
    elif c.convolutions:
        project = Convolutions(channels, d_model, c.convolutions, kernel)
    else:
        project = CutOut(channels, d_model, c.patch, c.patch, bias=bias)
    grid = (c.side if height is None else patches_along(height, c.patch, c.convolutions), c.side)
    positions = absolute_positions(c.positions, d_model=d_model, maximum=tokens + math.prod(grid))
    how = {"d_model": d_model, "grid": grid, "tokens": tokens, "norm": norm, "dropout": c.dropout}
    return made(project, positions, cut=height is not None, **how)


def patches_along(size: int, patch: int, convolutions: int) -> int:
    """How many there are along a side of `size` pixels: each convolution halves it.

    >>> patches_along(224, 16, 0), patches_along(32, 16, 2)
    (14, 8)
    """
    for _ in range(convolutions):
        size = (size + 1) // 2
    return size if convolutions else size // patch


class CutOut(nn.Conv2d):
    """Patches cut out of a picture, (B, C, H, W) -> (B, d_model, h, w): a convolution whose stride is its kernel, as
    one product, which for large patches is three times as fast."""

    def forward(self, x: Tensor) -> Tensor:
        p = self.kernel_size[0]
        h, w = x.shape[2] // p, x.shape[3] // p
        x = x[:, :, : h * p, : w * p].unflatten(3, (w, p)).unflatten(2, (h, p))  # (B, C, h, p, w, p)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, h, w, C · p · p)
        return F.linear(x, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


class Convolutions(nn.Sequential):
    """What makes patches in a compact transformer (Hassani et al., 2021): convolutions with ReLU and max-pooling, each
    of which halves height and width: (B, C, H, W) -> (B, d_model, h, w)."""

    def __init__(self, channels: int, d_model: int, layers: int, kernel: int, width: int = 64) -> None:
        widths = [channels, *[width] * (layers - 1), d_model]
        made = list[nn.Module]()
        for before, after in pairwise(widths):
            convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False)
            nn.init.kaiming_normal_(convolution.weight)
            made += [convolution, nn.MaxPool2d(3, 2, 1), nn.ReLU()]  # the other way round is the same, and slower
        super().__init__(*made)


class ResNet(nn.Module):
    """What makes patches in a hybrid (Dosovitskiy et al., 2021): a residual network of bottlenecks with group
    normalisation (He et al., 2016; Kolesnikov et al., 2020), so many `layers` in each stage. The sides become a
    quarter, and a half of that in each stage after the first: (B, C, H, W) -> (B, d_model, h, w)."""

    def __init__(self, channels: int, d_model: int, layers: list[int], width: int = 64) -> None:
        super().__init__()
        self.first, self.norm = SameConvolution(channels, width, 7, 2), nn.GroupNorm(GROUPS, width)
        self.blocks, self.shortcuts, self.begins = nn.ModuleList(), nn.ModuleList(), dict[int, int]()
        before = width
        for stage, count in enumerate(layers):
            after, stride = 4 * width * 2**stage, 2 if stage else 1
            self.begins[len(self.blocks)] = stage
            self.shortcuts.append(nn.Sequential(SameConvolution(before, after, 1, stride), nn.GroupNorm(GROUPS, after)))
            self.blocks.extend(ResidualBlock(after if i else before, after, 1 if i else stride) for i in range(count))
            before = after
        self.last = nn.Conv2d(before, d_model, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(_around(x, 3, 2, -math.inf), 3, 2)
        for i, block in enumerate(self.blocks):
            x = block(x, self.shortcuts[self.begins[i]](x) if i in self.begins else x)
        return self.last(x)


class ResidualBlock(nn.Module):
    """Three convolutions, the middle one over neighbours and with few channels, and a way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = after // 4
        shapes = ((before, inner, 1, 1), (inner, inner, 3, stride), (inner, after, 1, 1))
        self.convolutions = nn.ModuleList(SameConvolution(*shape) for shape in shapes)
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, shape[1]) for shape in shapes)

    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolution(F.relu(x) if i else x))
        return F.relu(x + past)


class SameConvolution(nn.Conv2d):
    """A convolution with zeros around a map, so that a step of its stride is a place of the output."""

    def __init__(self, before: int, after: int, kernel: int, stride: int) -> None:
        super().__init__(before, after, kernel, stride, bias=False)
        nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_around(x, self.kernel_size[0], self.stride[0]))


def _around(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """What a kernel needs around a map (..., H, W); of an odd number, one more on the right and below."""
    high, wide = (max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in x.shape[-2:])
    return F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2), value=value)


def _kind(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"
