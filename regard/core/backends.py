"""Ways through eq. 1, all of one signature: `math` writes out the weights and is the oracle that the others must equal.

Letters: B batch, H heads, G key/value heads, T queries, S keys, d_k and d_v widths of a head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.checks import choose
from regard.core.chunked import chunked
from regard.core.dropout import dropout as drop
from regard.core.masks import AnyMask, Mask, Shape
from regard.core.normalisers import softmax
from regard.core.ways import Ways

LARGE = 2**26  # numbers: a quarter of a gigabyte in fp32
AUTOCAST = {torch.float32, torch.bfloat16, torch.float16}  # what it casts; fp64 it leaves alone


def weights(q: Tensor, k: Tensor, mask: AnyMask | None, bias: Tensor | None, scale: float) -> Tensor:
    """softmax(scale · QKᵀ + bias), zeros where masked: (B, H, T, S)."""
    scores = (q * scale) @ k.transpose(-2, -1)
    return softmax(scores if bias is None else scores + bias, dense(mask, q, k))


def math(
    q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, bias: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """Eq. 1 as it is written."""
    return drop(weights(q, k, mask, bias, scale), dropout) @ v


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, bias: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """PyTorch's kernels."""
    if isinstance(mask, Mask) and mask.triangle and bias is None and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True, scale=scale)
    if (allowed := dense(mask, q, k)) is None:
        return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=scale)
    blind = ~allowed.any(-1, keepdim=True)
    # Kernels differ in what they make of a row that may see nothing: let it see everything and take the result away.
    guard = blind.device.type != "cpu" or bool(blind.any())
    if guard:
        allowed = allowed | blind
    if bias is not None:
        bias = torch.where(allowed, bias, -torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, allowed if bias is None else bias, dropout, scale=scale)
    return out.masked_fill(blind, 0.0) if guard else out


Backend = Callable[[Tensor, Tensor, Tensor, AnyMask | None, Tensor | None, float, float], Tensor]
BACKENDS: dict[str, Backend] = {"math": math, "fused": fused, "chunked": chunked}


def backend_of(name: str) -> Backend:
    """The one of this name; `auto` chooses by shapes."""
    return auto if name == "auto" else choose("attention backend", name, BACKENDS)


@Ways
def auto(
    q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, bias: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """PyTorch's kernels, unless they would write out the weights or the mask themselves."""
    (B, H, T, _), S, name = q.shape, k.shape[2], "fused"
    if dropout and q.device.type == "cpu":  # they would, and their dropout is slow
        name = "math" if B * H * T * S <= LARGE else "chunked"
    elif (bias is not None and bias.requires_grad and B * H * T * S > LARGE) or (
        isinstance(mask, Mask) and not mask.triangle and T * S > LARGE
    ):
        name = "chunked"
    return BACKENDS[name](q, k, v, mask, bias, scale, dropout)


def dense(mask: AnyMask | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask as a tensor that broadcasts to (B, H, T, S)."""
    return mask.dense(q.shape[2], k.shape[2], q.device) if isinstance(mask, Mask) else mask


def each_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values x (B, G, S, d) with a head for each query head that reads them, (B, heads, S, d)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def fitted(
    q: Tensor, k: Tensor, v: Tensor, mask: AnyMask | None, bias: Tensor | None, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """k and v with one head for each query head; what does not fit together is refused, naming the values.

    `width` is that of the keys, where a score can do with another than d_k.
    """
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"attention takes q, k and v of four dimensions (batch, heads, length, width); got {shapes}")
    (B, H, T, d_k), (_, G, S, _) = q.shape, k.shape
    if k.shape != (B, G, S, width or d_k) or v.shape[:3] != (B, G, S):
        raise ValueError(
            f"q, k and v do not fit together: {shapes}. The batch must be the same for all, d_k for q and k, "
            "heads and length for k and v"
        )
    if G == 0 or H % G:
        raise ValueError(f"{H} query heads cannot share {G} key/value heads evenly ({shapes}): use a divisor of {H}")
    if not one_dtype(q, k, v):
        raise ValueError(f"q, k and v have dtypes {q.dtype}, {k.dtype}, {v.dtype}: convert them to one with .to()")
    check_added(mask, bias, (B, H, T, S), q.dtype)
    return each_head(k, H), each_head(v, H)


def check_added(mask: AnyMask | None, bias: Tensor | None, shape: Shape, dtype: torch.dtype) -> None:
    """Refuse what cannot be laid over scores of this shape, of queries of this dtype."""
    if isinstance(mask, Tensor) and mask.dtype != torch.bool:
        raise ValueError(
            f"a mask is bool, True = may attend; got {mask.dtype}. Pass `mask.bool()`, or, for numbers to add to the "
            "scores, `bias=`"
        )
    if bias is not None and bias.dtype != dtype:
        raise ValueError(f"bias is {bias.dtype} and q is {dtype}: convert the bias with .to({dtype})")
    for name, x in (("mask", mask), ("bias", bias)):
        if x is not None and (len(x.shape) != 4 or any(n not in (1, m) for n, m in zip(x.shape, shape, strict=True))):
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} does not fit (batch, heads, queries, keys) = {shape}: give it four "
                "dimensions, each of that size or 1"
            )


def one_dtype(*tensors: Tensor) -> bool:
    """Whether all have one dtype, or autocast will give it to them."""
    dtypes = {x.dtype for x in tensors}
    return len(dtypes) == 1 or (torch.is_autocast_enabled(tensors[0].device.type) and dtypes <= AUTOCAST)
