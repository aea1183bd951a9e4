"""What stands around attention: feed-forward networks (§3.3) and residual connections (§3.1).

Letters: B batch, T positions, d_model width of the model, d_ff inner width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checks import choose, one_of
from regard.core.cache import Window
from regard.core.dropout import Dropout, dropout

gelu_tanh = partial(F.gelu, approximate="tanh")


def gelu_quick(x: Tensor) -> Tensor:
    """What CLIP has for GELU."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
}
KERNEL = 3  # positions that a convolution feed-forward sees


class OffsetRMSNorm(nn.Module):
    """RMSNorm whose gain is 1 + weight, as in Gemma."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) -> (..., width); never in half precision, in which 1 + weight has few digits."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, 1 + self.weight.to(wide), self.eps).to(x.dtype)


NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "rms_offset": OffsetRMSNorm}


def linear(d_in: int, *d_out: int, bias: bool = True) -> nn.Linear:
    """Matrices d_in -> d_out side by side in one product, each with Xavier's initialisation of its own."""
    product = nn.Linear(d_in, sum(d_out), bias)
    product.parts = d_out  # type: ignore[assignment]  # plain numbers, for who takes each matrix by itself
    for matrix in product.weight.split(d_out):
        nn.init.xavier_uniform_(matrix)
    if bias:
        nn.init.zeros_(product.bias)
    return product


class FeedForward(nn.Module):
    """FFN(x) = activation(x W1 + b1) W2 + b2 at each position, eq. 2."""

    def __init__(
        self, d_model: int, d_ff: int, activation: str = "relu", *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = choose("activation", activation, ACTIVATIONS)
        self.inner = linear(d_model, d_ff, bias=bias)
        self.outer = linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, cache: Window | None = None) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model). `keep` and `cache` matter to a convolution only."""
        return self.outer(self.dropout(self.activation(self.inner(x))))


class GatedFeedForward(nn.Module):
    """(gate(x W) ⊙ x V) W2, where the gate is a sigmoid (GLU), SiLU (SwiGLU) or GELU; W and V in one product."""

    def __init__(
        self, d_model: int, d_ff: int, gate: str = "swiglu", *, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.gate = choose("gate", gate, GATES)
        self.inner = linear(d_model, d_ff, d_ff, bias=bias)
        self.outer = linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, cache: Window | None = None) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model)."""
        z, value = self.inner(x).chunk(2, -1)  # (B, T, d_ff) each
        return self.outer(self.dropout(self.gated(z, value)))

    def gated(self, z: Tensor, value: Tensor) -> Tensor:
        """gate(z) ⊙ value, (B, T, d_ff) each."""
        return self.gate(z) * value


class ConvolutionFeedForward(nn.Module):
    """Equation 2 with a depthwise convolution over time inside: each position also sees its neighbours.

    A depthwise convolution and a product at each position make a depthwise-separable convolution. `causal`
    looks back only; otherwise the kernel is centred and padding (`keep` False) counts as zero.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        kernel: int = KERNEL,
        *,
        causal: bool,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if kernel < 1 or (kernel % 2 == 0 and not causal):
            raise ValueError(f"a convolution needs a kernel of at least 1, and an odd one to be centred; got {kernel}")
        self.kernel, self.causal = kernel, causal
        self.inner = linear(d_model, d_ff, bias=bias)
        self.depthwise = nn.Conv1d(d_ff, d_ff, kernel, groups=d_ff, bias=bias)
        self.outer = linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, cache: Window | None = None) -> Tensor:
        """x (B, T, d_model), keep (B, T) bool -> (B, T, d_model); a cache remembers the last inputs."""
        x = self.inner(x)  # (B, T, d_ff)
        if keep is not None:
            x = x * keep[:, :, None]
        if self.causal:
            x = (cache or Window()).slide(x, self.kernel)
        else:
            x = F.pad(x, (0, 0, self.kernel // 2, self.kernel // 2))
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)  # (B, T, d_ff)
        return self.outer(self.dropout(x.relu()))


class Residual(nn.Module):
    """A sub-layer with its residual connection and normalisation, stated once for every model.

    `post` is the paper's LayerNorm(x + Sublayer(x)) (§3.1), `pre` is x + Sublayer(LayerNorm(x)). Dropout acts on
    the sub-layer's output (§5.4); `skip` is stochastic depth: the probability that an example goes past the
    sub-layer while training.
    """

    def __init__(
        self,
        sublayer: nn.Module,
        norm: nn.Module,
        place: str = "post",
        *,
        dropout: float = 0.0,
        skip: float = 0.0,
    ) -> None:
        super().__init__()
        one_of(("post", "pre"), place=place)
        self.sublayer, self.norm, self.place, self.skip = sublayer, norm, place, skip
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model); everything else goes to the sub-layer."""
        s = self.sublayer(x if self.place == "post" else self.norm(x), *args, **kwargs)
        if self.skip and self.training:
            s = s * dropout(s.new_ones(s.shape[0], 1, 1), self.skip)
        return self.add(x, s)

    def add(self, x: Tensor, s: Tensor) -> Tensor:
        """x and what the sub-layer made of it, (B, T, d_model) each, together."""
        x = x + self.dropout(s)
        return self.norm(x) if self.place == "post" else x


class LateResidual(Residual):
    """One more product after the sub-layer, at first 0: until it learns to add something, all is as it was without it.
    So a model of pictures becomes one of videos (Bertasius et al., 2021)."""

    def __init__(self, sublayer: nn.Module, norm: Any, place: str = "post", **how: Any) -> None:
        super().__init__(sublayer, norm, place, **how)
        width = len(norm.weight)
        self.product = nn.Linear(width, width)
        self.rest()

    def rest(self) -> None:
        """Add nothing, as at first."""
        nn.init.zeros_(self.product.weight)
        nn.init.zeros_(self.product.bias)

    def add(self, x: Tensor, s: Tensor) -> Tensor:
        return super().add(x, self.product(s))
