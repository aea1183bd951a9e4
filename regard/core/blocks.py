"""The layers of Figure 1 and their stack.

Letters: B batch, T positions, S positions of the memory, d_model width of the model.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from regard.core.cache import Cache, LayerCache
from regard.core.layers import Residual
from regard.core.masks import AnyMask


class EncoderLayer(nn.Module):
    """Figure 1, left: self-attention, feed-forward."""

    def __init__(self, self_attention: Residual, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward

    def forward(self, x: Tensor, *, mask: AnyMask | None = None, keep: Tensor | None = None) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model). `keep` (B, T) tells real tokens from padding."""
        x = self.self_attention(x, mask=mask)
        return self.feed_forward(x, keep=keep)


class DecoderLayer(nn.Module):
    """Figure 1, right: masked self-attention, attention to the memory (if there is one), feed-forward."""

    def __init__(self, self_attention: Residual, cross_attention: Residual | None, feed_forward: Residual) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AnyMask | None = None,
        memory_mask: AnyMask | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, d_model), memory (B, S, any width) -> (B, T, d_model)."""
        x = self.self_attention(x, mask=mask, cache=cache and cache.self_attention)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, mask=memory_mask, cache=cache and cache.cross_attention)
        return self.feed_forward(x, cache=cache and cache.feed_forward)


class Stack(nn.Module):
    """N layers, one after the other; a pre-norm stack ends with a normalisation of its own."""

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, x: Tensor, *args: Any, cache: Cache | None = None, **kwargs: Any) -> Tensor:
        """x (B, T, d_model) -> (B, T, d_model); each layer gets its part of the cache and everything else."""
        for i, layer in enumerate(self.layers):
            x = layer(x, *args, **kwargs) if cache is None else layer(x, *args, cache=cache[i], **kwargs)
        return x if self.norm is None else self.norm(x)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Every layer of every stack in a model: a stack is whatever holds a list of `layers`, whichever the family."""
    stacks = [getattr(module, "layers", None) for module in model.modules()]
    return [layer for stack in stacks if isinstance(stack, nn.ModuleList) for layer in stack]
