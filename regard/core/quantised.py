"""Products and look-ups in whole numbers of eight bits or four: a quarter of the memory or less, by integer arithmetic.

Letters: N rows of activations, d_in and d_out widths, V vocabulary, G groups of 32 numbers in a row.

A row of numbers becomes whole numbers and one scale (symmetric, no zero point). All in fp32, in this order:

    top = max |x|        q = rint(x · (127 / top)), half to even        scale = top / 127

so x ≈ q · scale, and |q| ≤ 127. A row with top < 2^-120, where 127 / top would overflow, has q = 0. A matrix has a
scale for each of its rows, made once; activations have theirs for each row, made as they come. The product is

    y[n, j] = float(Σ_i q_x[n, i] · q_w[j, i]) · (scale_x[n] · scale_w[j]) + bias[j]

where the sum is exact, float() rounds to nearest, and each of the three operations after it rounds by itself: the same
bits for any batch. This is the slow truth for every engine that multiplies in integers; one that rounds the last
operations together may differ in the last bit of y. A NaN or an infinity in x makes its scale one, and so all of y's
row no number or infinite: damage shows.

In four bits each group of 32 numbers of a matrix's row has a scale and a least number of its own, both in bf16, and
w ≈ q · scale + least with 0 ≤ q ≤ 15: 20 bytes, five bits a number. Activations are of eight bits as above, but each
group of 32 has its own scale, so that a large one spoils its neighbours only. Over the groups g, in their order:

    y[n, j] = Σ_g float(Σ_i q_x[n, g, i] · q_w[j, g, i]) · (scale_x[n, g] · scale[j, g])
                  + (scale_x[n, g] · float(Σ_i q_x[n, g, i])) · least[j, g]
"""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.added import Added, added

LARGEST = 127
TINY = 2.0**-120
EXACT = 2**24 // LARGEST**2  # products whose sum fp32 holds exactly, in any order: 1040
GROUP, BLOCK = 32, 20  # numbers that share a scale in four bits, and their bytes: scale, least, two in each other
PIECE = 4096  # rows of a matrix that are made whole numbers at once
SPANS = (1.0, 0.9)  # of the way from zero to a group's ends, how much 0..15 may cover: the best is taken


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., d) -> whole numbers within ±127 as floats (..., d), and the scale of each row (..., 1).

    >>> q, scale = quantise_rows(torch.tensor([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]]))
    >>> q.tolist()
    [[32.0, -127.0, 64.0], [0.0, 0.0, 0.0]]
    """
    top = x.abs().amax(-1, keepdim=True)
    return (x * torch.where(top < TINY, 0.0, LARGEST / top)).round(), top / LARGEST


def multiply(x: Tensor, w: Tensor) -> Tensor:
    """The exact product x wᵀ of whole numbers within ±127, x (..., d_in) floats and w (d_out, d_in) int8, in int32.

    Every partial sum of EXACT products is a whole number below 2^24, so fp32 makes no error; pieces of that width are
    added as integers, up to d_in = 133,144. PyTorch's own product of int8 is not used: on processors without
    instructions for it, it may saturate.
    """
    pieces = zip(x.split(EXACT, -1), w.split(EXACT, -1), strict=True)
    return torch.stack([(a @ b.to(a.dtype).T).to(torch.int32) for a, b in pieces]).sum(0, dtype=torch.int32)


class _Product(torch.autograd.Function):
    """A product of whole numbers, where a gradient passes as if x had not been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: "WholeLinear") -> Tensor:
        ctx.linear = linear
        return linear.product(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g @ ctx.linear.matrix().to(g.dtype), None


class WholeLinear(nn.Module):
    """nn.Linear over whole numbers: weight as its kind has it, bias (d_out,) in fp32 or None."""

    scale: Tensor

    def __init__(self, shape: tuple[int, ...], weight: nn.Parameter, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d_in) -> (..., d_out)."""
        learns = torch.is_grad_enabled() and x.requires_grad
        y = _Product.apply(x, self) if learns else self.product(x)
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor) -> Tensor:
        """x (..., d_in) -> (..., d_out), without the bias."""
        raise NotImplementedError

    def matrix(self) -> Tensor:
        """Its numbers, (d_out, d_in)."""
        raise NotImplementedError


class Int8Linear(WholeLinear):
    """In eight bits: weight (d_out, d_in) int8, scale (d_out,) in fp32."""

    def __init__(self, weight: nn.Parameter, scale: nn.Parameter, bias: Tensor | None) -> None:
        super().__init__(weight.shape, weight, bias)
        self.scale = scale

    def product(self, x: Tensor) -> Tensor:
        q, scale_x = quantise_rows(x)
        return multiply(q, self.weight).to(x.dtype) * (scale_x * self.scale)

    def matrix(self) -> Tensor:
        return self.weight * self.scale[:, None]


def quantise_groups(w: Tensor) -> Tensor:
    """w (d_out, d_in) -> blocks (d_out, G, 20) of bytes: scale and least in bf16, then 16 numbers and, above, 16 more.

    >>> unpacked(quantise_groups(torch.arange(32.0)[None]))[0].flatten().tolist()[:6]
    [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    """
    x = w.unflatten(-1, (-1, GROUP))  # (d_out, G, 32)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    best = [torch.full_like(low, torch.inf), x, low, low]
    for below, above in product(SPANS, SPANS):
        least = (below * low).bfloat16().float()
        scale = ((above * high - least) / 15).bfloat16().float()
        q = ((x - least) * torch.where(scale.abs() < TINY, 0.0, 1 / scale)).round().clamp(0, 15)
        missed = (q * scale + least - x).square().sum(-1, keepdim=True)
        better = missed < best[0]
        best = [torch.where(better, a, b) for a, b in zip((missed, q, scale, least), best, strict=True)]
    _, q, *ends = best
    whole = q.to(torch.uint8)
    return torch.cat([*(end.bfloat16().view(torch.uint8) for end in ends), whole[..., :16] | whole[..., 16:] << 4], -1)


def unpacked(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """blocks (d_out, G, 20) -> numbers 0..15 (d_out, G, 32), scales and least numbers (d_out, G, 1), all in fp32."""
    scale, least = (blocks[..., i : i + 2].contiguous().view(torch.bfloat16).float() for i in (0, 2))
    two = blocks[..., 4:]
    return torch.cat([two & 15, two >> 4], -1).float(), scale, least


class Int4Linear(WholeLinear):
    """In four bits: weight (d_out, G, 20) blocks of bytes."""

    def product(self, x: Tensor) -> Tensor:
        (q_w, scale, least), wide = unpacked(self.weight), torch.promote_types(x.dtype, torch.float32)
        q, scale_x = quantise_rows(x.to(wide).unflatten(-1, (-1, GROUP)))  # (..., G, 32), (..., G, 1)
        y = torch.zeros((), dtype=wide, device=x.device)
        for g in range(q.shape[-2]):  # sums of 32 products are exact in fp32
            a, unit = q[..., g, :], scale_x[..., g, :]
            y = y + (a @ q_w[:, g].to(wide).T) * (unit * scale[:, g, 0])
            y = y + (unit * a.sum(-1, keepdim=True)) * least[:, g, 0]
        return y.to(x.dtype)

    def matrix(self) -> Tensor:
        q, scale, least = unpacked(self.weight)
        return (q * scale + least).flatten(1)

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        """Of each group, (d_out, G)."""
        return unpacked(self.weight)[1][..., 0]


class Int8Embedding(nn.Module):
    """nn.Embedding over whole numbers: weight (V, d) int8, scale (V,) in fp32; entry i is weight[i] · scale[i]."""

    def __init__(self, weight: nn.Parameter, scale: nn.Parameter) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.weight, self.scale = weight, scale

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., d)."""
        return F.embedding(tokens, self.weight) * F.embedding(tokens, self.scale[:, None])


def quantise(model: nn.Module, bits: int = 8) -> nn.Module:
    """Make every nn.Linear and nn.Embedding inside a model one over whole numbers, in place; returns the model.

    What was tied stays tied: one int8 matrix and its scales serve embedding and output. Norms, positions and
    convolutions stay as they are. In four `bits` are those products that lie between the two ends of the model and read
    whole groups of numbers; all else is in eight. The result is for use, not for training.

    >>> model = quantise(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)))
    >>> model(torch.tensor([1, 2])).shape, model[1].weight.dtype
    (torch.Size([2, 3]), torch.int8)
    """
    if added(model):
        raise ValueError("no whole numbers under what was added to a model: merge it first, with `regard merge`")
    output = getattr(model, "output", None)
    ends = {m.weight for m in output.modules() if isinstance(m, nn.Linear)} if isinstance(output, nn.Module) else set()
    places: dict[Tensor, list[tuple[str, nn.Module]]] = {}  # where each matrix is: one module may have several places
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear | nn.Embedding):
            places.setdefault(module.weight, []).append((path, module))
            ends |= {module.weight} if isinstance(module, nn.Embedding) else set()
    few = [bits == 4 and weight not in ends and weight.shape[1] % GROUP == 0 for weight in places]
    ends.clear()
    for blocks in few:  # each goes before the next is made, so that the model is hardly in memory twice
        found = places.pop(weight := next(iter(places)))
        numbers = (_blocks if blocks else _matrix)(weight)
        made = {module: _whole(module, numbers) for _, module in found}
        for path, module in found:
            model.set_submodule(path, made[module])
        del weight, found, made, module
    return model


def _whole(module: Any, numbers: tuple[Any, ...]) -> nn.Module:
    """What stands in the place of a table or a product, with its matrix in whole numbers."""
    if isinstance(module, nn.Embedding):
        return Int8Embedding(*numbers)
    if len(numbers) == 1:
        return Int4Linear(module.weight.shape, *numbers, module.bias)
    return Int8Linear(numbers[0], numbers[1], module.bias)


def _matrix(weight: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    q = weight.new_empty(weight.shape, dtype=torch.int8)
    scale = weight.new_empty(len(weight), 1, dtype=torch.float)
    if not weight.is_meta:  # which has shapes only; for a maximum of it PyTorch would load its compiler
        for some, *into in zip(*(x.split(PIECE) for x in (weight.detach(), q, scale)), strict=True):
            for part, found in zip(into, quantise_rows(some.float()), strict=True):
                part.copy_(found)
    return nn.Parameter(q, requires_grad=False), nn.Parameter(scale[:, 0], requires_grad=False)


def _blocks(weight: Tensor) -> tuple[nn.Parameter]:
    shape = len(weight), weight.shape[1] // GROUP, BLOCK
    made = weight.new_empty(shape, dtype=torch.uint8) if weight.is_meta else quantise_groups(weight.detach().float())
    return (nn.Parameter(made, requires_grad=False),)


def matrix(module: nn.Module) -> Tensor:
    """The numbers (d_out, d_in) of a product, or (V, d) of a table, be they in whole numbers or not."""
    if isinstance(module, Int8Embedding):
        return module.weight * module.scale[:, None]
    return module.matrix() if isinstance(module, WholeLinear) else module.get_parameter("weight")


def whole_matrix(module: Any) -> Tensor:
    """The same of a product or a head, with what was added to it and is on."""
    if not isinstance(module, nn.Linear | WholeLinear):
        return module.weight
    weight = matrix(module)
    for part in module.children():
        if isinstance(part, Added) and part.on:
            weight = part.weight(weight)
    return weight


def bits_of(model: nn.Module) -> int | None:
    """Of how few bits the products and look-ups of a model are; None if they are over no whole numbers."""
    kinds = {type(module) for module in model.modules()}
    return 4 if Int4Linear in kinds else 8 if kinds & {Int8Linear, Int8Embedding} else None


def dtype_of(model: nn.Module) -> torch.dtype:
    """In which numbers a model reads and makes vectors, whatever its products are over."""
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def is_quantised(model: nn.Module) -> bool:
    """Whether there are products or look-ups over whole numbers in a model."""
    return bits_of(model) is not None


def dequantise(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a quantised model as those of the plain one: each `weight` times its `scale`, which goes.

    >>> list(dequantise({"a.weight": torch.ones(2, 2, dtype=torch.int8), "a.scale": torch.ones(2)}))
    ['a.weight']
    """
    scales = {name.removesuffix("weight") + "scale": name for name, x in tensors.items() if x.dtype == torch.int8}
    plain = {name: x for name, x in tensors.items() if name not in scales}
    plain |= {name: plain[name] * tensors[scale][:, None] for scale, name in scales.items()}
    for name, x in plain.items():
        if x.dtype == torch.uint8:
            q, scale, least = unpacked(x)
            plain[name] = (q * scale + least).flatten(1)
    return plain
