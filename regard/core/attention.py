"""Attention (§3.2): score -> mask -> normalise -> mix.

Letters: B batch, H heads, T queries, S keys, d_model width of the model, d_k and d_v widths of a head.

`attend` is eq. 1; the ways through it are in `regard.core.backends`. `MultiHeadAttention` projects, mixes, joins, and
applies W_O; what mixes is a `regard.core.mixers.Mixer`: eq. 1, or what may stand in its place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.backends import backend_of, check_added, fitted, one_dtype, weights
from regard.core.cache import KeyValues
from regard.core.dropout import check_probability
from regard.core.layers import linear
from regard.core.masks import AnyMask, beyond
from regard.core.mixers import AttentionConfig, Mixer, Past, Under, make_mixer
from regard.core.positions import Positions


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: AnyMask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Attention(Q, K, V) = softmax(scale · QKᵀ + bias) V, eq. 1.

    q (B, H, T, d_k), k (B, G, S, d_k), v (B, G, S, d_v) -> (B, H, T, d_v); G divides H, each key/value head
    then serves H / G query heads. `mask` is bool (True = may attend) or a `Mask`; `bias` is added to the
    scores; both have four dimensions, each full or 1. A row that may see nothing gives zeros. `scale` is
    1/√d_k unless given. `backend` is math, fused, chunked or auto.

    >>> import torch
    >>> q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 3)
    >>> attend(q, k, v).shape
    torch.Size([2, 4, 5, 3])
    """
    k, v = fitted(q, k, v, mask, bias)
    check_probability(dropout)
    return backend_of(backend)(q, k, v, mask, bias, q.shape[-1] ** -0.5 if scale is None else scale, dropout)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: AnyMask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The weights softmax(scale · QKᵀ + bias) of eq. 1, (B, H, T, S); zeros where masked.

    >>> import torch
    >>> attention_weights(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)).tolist()
    [[[[0.5, 0.5]]]]
    """
    k, _ = fitted(q, k, k, mask, bias)
    return weights(q, k, mask, bias, q.shape[-1] ** -0.5 if scale is None else scale)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O (§3.2.2).

    Self-attention, with one product for queries, keys and values; or, given `d_memory`, attention from x to a
    memory of that width, with one product for keys and values. Without projections, keys and values are both slices
    of the memory. `norm` makes a normalisation of a width, for the queries and keys of each head of a self-attention.

    >>> import torch
    >>> attention = MultiHeadAttention(AttentionConfig(d_model=16, heads=4))
    >>> attention(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    mix: Mixer
    prefix: Any  # of keys and values, that were added

    def __init__(
        self,
        config: AttentionConfig,
        *,
        d_memory: int | None = None,
        positions: Positions | None = None,
        norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.cross, self.positions = config, d_memory is not None, positions or Positions()
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        self.d_k = config.d_k or config.d_model // config.heads
        self.d_v = config.d_v or config.d_model // config.heads
        self.d_memory = config.d_model if d_memory is None else d_memory
        key_width = self.d_k
        if not config.project:
            if self.d_memory % self.heads:
                raise ValueError(f"a memory of width {d_memory} does not divide into {self.heads} heads: use a divisor")
            key_width = self.d_v = self.d_memory // self.heads
        self.widths = [self.heads * self.d_k, self.kv_heads * key_width, self.kv_heads * self.d_v]  # of Q, K, V
        bias = config.bias if config.qkv_bias is None else config.qkv_bias
        if config.project and d_memory is None:
            self.query_key_value = linear(config.d_model, *self.widths, bias=bias)
        elif config.project:
            self.query = linear(config.d_model, self.widths[0], bias=bias)
            self.key_value = linear(self.d_memory, *self.widths[1:], bias=bias)
        self.query_norm = norm(self.d_k) if norm else None
        self.key_norm = norm(key_width) if norm else None
        self.__dict__["mix"] = mix = make_mixer(config, self.cross, self.positions, self.d_k, key_width)
        for name, part in mix.named_children():
            self.add_module(name, part)
        self.register_module("prefix", None)
        self.output: Any = nn.Identity()
        if config.output and config.gated:
            halves = linear(self.heads * self.d_v, config.d_model, config.d_model, bias=config.bias)
            self.output = nn.Sequential(halves, nn.GLU())
        elif config.output:
            self.output = linear(self.heads * self.d_v, config.d_model, bias=config.bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AnyMask | None = None,
        bias: Tensor | None = None,
        cache: Past | None = None,
    ) -> Tensor:
        """x (B, T, d_model), memory (B, S, d_memory) -> (B, T, d_model); without W_O (B, T, heads · d_v).

        With a cache, x holds the new positions only: self-attention adds their keys and values to the cache;
        attention to a memory projects it at the first step and reads the cache from then on. x may have K rows in a
        row for each row of the memory, as the hypotheses of a beam have that read one sentence: it is copied for none.
        """
        scale = self.d_k**-0.5 if self.config.scale is None else self.config.scale
        offset = self._offset(cache)
        q, k, v = self._from_memory(x, memory, cache) if self.cross else self._from_itself(x, memory, cache, offset)
        if (ahead := self.ahead) and (self.cross or offset == ahead):  # keys of which who calls knows nothing
            mask, bias = beyond(mask, ahead), None if bias is None else F.pad(bias, (ahead, 0))
        if not self.cross and (relative := self.positions.bias(q, k.shape[2], offset, scale)) is not None:
            check_added(None, bias, (*q.shape[:3], k.shape[2]), q.dtype)  # a sum would hide its shape
            bias = relative if bias is None else bias + relative
        heads = self.mix.forward(q, k, v, Under(mask, bias, scale, cache, x.shape[0]))  # (B, H, T, d_v)
        y = self.output(heads.transpose(1, 2).flatten(2))  # (B, K·T, H·d_v) W_O
        return y.reshape(*x.shape[:2], y.shape[2])

    @property
    def watched(self) -> bool:
        """Whether somebody looks at a tap."""
        return self.mix.watched

    def new_cache(self) -> Past:
        """An empty past of this attention, as small as its kind allows; of all keys while somebody watches."""
        return self.mix.past()

    def split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """What matrices side by side made of one input: x (..., Σ widths) -> (..., width) of each."""
        return x.split(widths, -1)

    @property
    def ahead(self) -> int:
        """Keys and values that were taught, before all others: those of a prefix (Li & Liang, 2021)."""
        return self.prefix.length if self.prefix is not None and self.prefix.on else 0

    def _offset(self, cache: Past | None) -> int:
        """Where the first of x stands: behind the past, which begins with the prefix."""
        return self.ahead if cache is None or not cache.length else cache.length

    def _behind_prefix(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, S, d) with those of the prefix before them."""
        if not self.ahead:
            return k, v
        keys, values = (x.to(k.dtype).expand(len(k), -1, -1, -1) for x in self.prefix.key_value())
        return torch.cat([keys, k], 2), torch.cat([values, v], 2)

    def _from_itself(
        self, x: Tensor, memory: Tensor | None, cache: Past | None, offset: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        if memory is not None:
            raise ValueError("this is a self-attention: build it with d_memory= to attend to a memory")
        self._check_input("x", x, self.config.d_model)
        q, k, v = self.split(self.query_key_value(x), self.widths) if self.config.project else (x, x, x)
        q, k, v = _split(q, self.heads), _split(k, self.kv_heads), _split(v, self.kv_heads)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = self.positions.rotate(q, offset), self.mix.prepared(self.positions.rotate(k, offset))
        if cache is None or not cache.length:
            k, v = self._behind_prefix(k, v)
        return (q, *cache.extend(k, v)) if isinstance(cache, KeyValues) else (q, k, v)

    def _from_memory(self, x: Tensor, memory: Tensor | None, cache: Past | None) -> tuple[Tensor, Tensor, Tensor]:
        self._check_input("x", x, self.config.d_model)
        assert cache is None or isinstance(cache, KeyValues)
        if cache is not None and cache.keys is not None and cache.values is not None:
            k, v = cache.keys, cache.values
        elif memory is None:
            raise ValueError("this attention reads a memory: pass it, or a cache that has seen it")
        else:
            self._check_input("memory", memory, self.d_memory)
            k, v = self.split(self.key_value(memory), self.widths[1:]) if self.config.project else (memory, memory)
            k, v = self._behind_prefix(self.mix.prepared(_split(k, self.kv_heads)), _split(v, self.kv_heads))
            if cache is not None:
                cache.keys, cache.values, cache.length = k, v, k.shape[2]
        if len(x) != len(k):  # K rows read one memory: as K · T queries of one row
            if not len(k) or len(x) % len(k):
                raise ValueError(
                    f"x and the memory do not fit together: {len(x)} rows read {len(k)}; give x as many, or a multiple"
                )
            x = x.reshape(len(k), -1, x.shape[2])  # (B·K, T, d_model) -> (B, K·T, d_model)
        return _split(self.query(x) if self.config.project else x, self.heads), k, v

    def _check_input(self, name: str, x: Tensor, width: int) -> None:
        if x.dim() != 3 or x.shape[2] != width:
            raise ValueError(f"this attention takes {name} of shape (batch, length, {width}), got {tuple(x.shape)}")
        if self.config.project:
            weight: Tensor | None = (self.query if self.cross else self.query_key_value).weight
        else:
            weight = next(self.mix.parameters(), None)
        if weight is not None and weight.is_floating_point() and not one_dtype(x, weight):  # int8 reads any
            raise ValueError(f"{name} is {x.dtype}, and the weights {weight.dtype}: convert one of them with .to()")


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, T, H·d) -> (B, H, T, d)
