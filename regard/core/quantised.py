"""Products and look-ups in whole numbers of eight bits: a quarter of the memory, and integer arithmetic.

Letters: N rows of activations, d_in and d_out widths, V vocabulary.

A row of numbers becomes whole numbers and one scale (symmetric, no zero point). All in fp32, in this order:

    top = max |x|        q = rint(x · (127 / top)), half to even        scale = top / 127

so x ≈ q · scale, and |q| ≤ 127. A row with top < 2^-120, where 127 / top would overflow, has q = 0. A matrix has a
scale for each of its rows, made once; activations have theirs for each row, made as they come. The product is

    y[n, j] = float(Σ_i q_x[n, i] · q_w[j, i]) · (scale_x[n] · scale_w[j]) + bias[j]

where the sum is exact, float() rounds to nearest, and each of the three operations after it rounds by itself: the same
bits for any batch. This is the slow truth for every engine that multiplies in integers; one that rounds the last
operations together may differ in the last bit of y. A NaN or an infinity in x makes its scale one, and so all of y's
row no number or infinite: damage shows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.added import Added, added

LARGEST = 127
TINY = 2.0**-120
EXACT = 2**24 // LARGEST**2  # products whose sum fp32 holds exactly, in any order: 1040


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


def _product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    q, scale_x = quantise_rows(x)
    return multiply(q, weight).to(x.dtype) * (scale_x * scale)


class _Product(torch.autograd.Function):
    """The same, where a gradient passes as if x had not been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return _product(x, weight, scale)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        weight, scale = ctx.saved_tensors
        return (g * scale.to(g.dtype)) @ weight.to(g.dtype), None, None


class Int8Linear(nn.Module):
    """nn.Linear over whole numbers: weight (d_out, d_in) int8, scale (d_out,), bias (d_out,) in fp32 or None."""

    def __init__(self, weight: nn.Parameter, scale: nn.Parameter, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.scale, self.bias = weight, scale, bias

    def forward(self, x: Tensor) -> Tensor:
        """x (..., d_in) -> (..., d_out)."""
        learns = torch.is_grad_enabled() and x.requires_grad
        y = (_Product.apply if learns else _product)(x, self.weight, self.scale)
        return y if self.bias is None else y + self.bias


class Int8Embedding(nn.Module):
    """nn.Embedding over whole numbers: weight (V, d) int8, scale (V,) in fp32; entry i is weight[i] · scale[i]."""

    def __init__(self, weight: nn.Parameter, scale: nn.Parameter) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = weight.shape
        self.weight, self.scale = weight, scale

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (...) -> (..., d)."""
        return F.embedding(tokens, self.weight) * F.embedding(tokens, self.scale[:, None])


def quantise(model: nn.Module) -> nn.Module:
    """Make every nn.Linear and nn.Embedding inside a model one over whole numbers, in place; returns the model.

    What was tied stays tied: one int8 matrix and its scales serve embedding and output. Norms, positions and
    convolutions stay as they are. The result is for use, not for training.

    >>> model = quantise(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)))
    >>> model(torch.tensor([1, 2])).shape, model[1].weight.dtype
    (torch.Size([2, 3]), torch.int8)
    """
    if added(model):
        raise ValueError("no whole numbers under what was added to a model: merge it first, with `regard merge`")
    matrices: dict[Tensor, tuple[nn.Parameter, nn.Parameter]] = {}
    made: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            if module.weight not in matrices:
                matrices[module.weight] = _matrix(module.weight)
            matrix = matrices[module.weight]
            made[module] = Int8Linear(*matrix, module.bias) if isinstance(module, nn.Linear) else Int8Embedding(*matrix)
    for path, module in list(model.named_modules(remove_duplicate=False)):  # one module may have several places
        if module in made:
            model.set_submodule(path, made[module])
    return model


def _matrix(weight: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    if weight.is_meta:  # which has shapes only; for a maximum of it PyTorch would load its compiler
        q, scale = weight.detach(), weight.new_empty(len(weight), 1, dtype=torch.float)
    else:
        q, scale = quantise_rows(weight.detach().float())
    return nn.Parameter(q.to(torch.int8), requires_grad=False), nn.Parameter(scale[:, 0], requires_grad=False)


def matrix(module: nn.Module) -> Tensor:
    """The numbers (d_out, d_in) of a product, or (V, d) of a table, be they in whole numbers or not."""
    weight = module.get_parameter("weight")
    return weight * module.scale[:, None] if isinstance(module, Int8Linear | Int8Embedding) else weight


def whole_matrix(module: Any) -> Tensor:
    """The same of a product or a head, with what was added to it and is on."""
    if not isinstance(module, nn.Linear | Int8Linear):
        return module.weight
    weight = matrix(module)
    for part in module.children():
        if isinstance(part, Added) and part.on:
            weight = part.weight(weight)
    return weight


def is_quantised(model: nn.Module) -> bool:
    """Whether there are products or look-ups over whole numbers in a model."""
    return any(isinstance(module, Int8Linear | Int8Embedding) for module in model.modules())


def dequantise(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a quantised model as those of the plain one: each `weight` times its `scale`, which goes.

    >>> list(dequantise({"a.weight": torch.ones(2, 2, dtype=torch.int8), "a.scale": torch.ones(2)}))
    ['a.weight']
    """
    scales = {name.removesuffix("weight") + "scale": name for name, x in tensors.items() if x.dtype == torch.int8}
    plain = {name: x for name, x in tensors.items() if name not in scales}
    return plain | {name: plain[name] * tensors[scale][:, None] for scale, name in scales.items()}
