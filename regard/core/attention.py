"""Attention (§3.2): score -> mask -> normalise -> mix.

Letters: B batch, H heads, T queries, S keys, d_model width of the model, d_k and d_v widths of a head.

`attend` is eq. 1 behind one door with three ways through it. `math` writes out the weights and is the oracle;
`fused` (PyTorch's kernels) and `chunked` (O(T) memory) must equal it. `MultiHeadAttention` only holds the
projections around it, and a `Tap` for each of the things that pass from one to the next when somebody looks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from regard.checks import choose, one_of
from regard.core.backends import BACKENDS, Backend, auto, check_added, dense, fitted, one_dtype, weights
from regard.core.cache import KeyValues, Recent, Sums
from regard.core.dropout import check_probability
from regard.core.dropout import dropout as drop
from regard.core.efficient import Kind, causal_and_keep, check_causal, check_kind
from regard.core.heads import kept_keys
from regard.core.layers import linear
from regard.core.linformer import Linformer
from regard.core.masks import AnyMask
from regard.core.monotonic import Monotonic
from regard.core.normalisers import ALONG_A_MEMORY, Normaliser, make_normaliser, read_normaliser
from regard.core.positions import Positions
from regard.core.scores import SCALED, SCORES, make_score


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

    >>> q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 3)
    >>> attend(q, k, v).shape
    torch.Size([2, 4, 5, 3])
    """
    k, v = fitted(q, k, v, mask, bias)
    check_probability(dropout)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    way: Backend = auto if backend == "auto" else choose("attention backend", backend, BACKENDS)
    return way(q, k, v, mask, bias, scale, dropout)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: AnyMask | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The weights softmax(scale · QKᵀ + bias) of eq. 1, (B, H, T, S); zeros where masked.

    >>> attention_weights(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)).tolist()
    [[[[0.5, 0.5]]]]
    """
    k, _ = fitted(q, k, k, mask, bias)
    return weights(q, k, mask, bias, q.shape[-1] ** -0.5 if scale is None else scale)


class Tap(nn.Module):
    """An identity with a name in the module tree: who adds a watcher sees what flows through, and may replace it."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Callable[[Tensor], Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        for watch in self.watchers:
            x = watch(x)
        return x


@dataclass(frozen=True)
class AttentionConfig:
    """The shape of a multi-head attention (§3.2.2). Left out: d_k = d_v = d_model / heads, kv_heads = heads."""

    d_model: int
    heads: int
    kv_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    bias: bool = True
    output: bool = True  # W_O
    scale: float | None = None  # 1/√d_k
    dropout: float = 0.0
    backend: str = "auto"
    score: str = "dot"  # general, additive, concat, location: regard.core.scores
    normaliser: str = "softmax"  # topk:K, hard, sparsemax, entmax, monotonic, chunkwise:W: regard.core.normalisers
    project: bool = True  # W_Q, W_K, W_V; without them heads are slices of what comes in
    kind: str = "full"  # window:W, linear, ...: the efficient form of a self-attention, regard.core.efficient
    max_length: int = 1024  # of a sequence that linformer:R projects or the score location looks at

    def __post_init__(self) -> None:
        for name in ("d_model", "heads", "kv_heads", "d_k", "d_v"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} = {value}: it must be at least 1")
        check_probability(self.dropout)
        if (self.d_k is None or self.d_v is None) and self.d_model % self.heads:
            raise ValueError(
                f"d_model = {self.d_model} does not divide into {self.heads} heads: choose a divisor or set d_k, d_v"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}: choose a divisor")
        one_of(("auto", *BACKENDS), backend=self.backend)
        if self.score not in SCORES:
            raise ValueError(f"unknown score {self.score!r}: choose one of {', '.join(SCORES)}")
        read_normaliser(self.normaliser)
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale = {self.scale}: it must be a finite number; leave it out for 1/√d_k")
        if self.scale is not None and self.score not in SCALED:
            raise ValueError(f"scale = {self.scale} is one of the scores {' and '.join(SCALED)}; {self.score} has none")
        if not self.plain and self.backend not in ("auto", "math"):
            raise ValueError(
                f"backend = {self.backend!r} knows the score dot and the normaliser softmax only, not {self.score} and "
                f"{self.normaliser}: leave it at auto"
            )
        if not self.project and (self.kv_heads not in (None, self.heads) or self.d_k or self.d_v):
            raise ValueError("without projections (project = False) heads are slices: leave out kv_heads, d_k and d_v")
        check_kind(
            self.kind,
            dropout=self.dropout,
            scale=self.scale,
            plain=self.plain,
            backend=self.backend,
            max_length=self.max_length,
        )

    @property
    def plain(self) -> bool:
        """Whether it is eq. 1: score dot, normaliser softmax."""
        return (self.score, self.normaliser) == ("dot", "softmax")

    def keep(self, heads: Sequence[int]) -> "AttentionConfig":
        """The shape of what is left with only these heads, one or more, each as wide as before.

        >>> AttentionConfig(d_model=16, heads=4).keep([0, 2, 3])
        AttentionConfig(d_model=16, heads=3, kv_heads=3, d_k=4, d_v=4, ...)
        """
        if not self.project:
            raise ValueError("an attention without projections (project = False) cannot lose a head: it has no W_Q")
        width = self.d_model // self.heads
        kv_heads = len(kept_keys(self.heads, self.kv_heads or self.heads, heads))
        return replace(self, heads=len(heads), kv_heads=kv_heads, d_k=self.d_k or width, d_v=self.d_v or width)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O (§3.2.2).

    Self-attention, with one product for queries, keys and values; or, given `d_memory`, attention from x to a
    memory of that width, with one product for keys and values. Without projections, keys and values are both slices
    of the memory.

    >>> attention = MultiHeadAttention(AttentionConfig(d_model=16, heads=4))
    >>> attention(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, config: AttentionConfig, *, d_memory: int | None = None, positions: Positions | None = None
    ) -> None:
        super().__init__()
        self.config, self.cross = config, d_memory is not None
        self.positions = positions or Positions()
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
        if config.project and d_memory is None:
            self.query_key_value = linear(config.d_model, *self.widths, bias=config.bias)
        elif config.project:
            self.query = linear(config.d_model, self.widths[0], bias=config.bias)
            self.key_value = linear(self.d_memory, *self.widths[1:], bias=config.bias)
        name, width = read_normaliser(config.normaliser)
        if name in ALONG_A_MEMORY and d_memory is None:
            raise ValueError(f"the normaliser {config.normaliser} walks along a memory: self-attention has none")
        self.score = make_score(config.score, (self.heads, self.kv_heads), (self.d_k, key_width), config.max_length)
        self.normalise: Normaliser | Monotonic
        if name in ALONG_A_MEMORY:
            self.normalise = Monotonic(self.heads, self.d_k, self.score.width or key_width, width)
        else:
            self.normalise = make_normaliser(config.normaliser)
        if config.kind != "full" and (self.cross or type(self.positions).bias is not Positions.bias):
            where = "attention to a memory" if self.cross else f"positions that add to scores ({self.positions})"
            raise ValueError(f"attention {config.kind!r} is not for {where}: take full attention there")
        self.efficient = Kind.read(config.kind).make(d_k=self.d_k, max_length=config.max_length)
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights, self.outputs = Tap(), Tap(), Tap()
        self.output = (
            nn.Identity() if not config.output else linear(self.heads * self.d_v, config.d_model, bias=config.bias)
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AnyMask | None = None,
        bias: Tensor | None = None,
        cache: KeyValues | Recent | Sums | None = None,
    ) -> Tensor:
        """x (B, T, d_model), memory (B, S, d_memory) -> (B, T, d_model); without W_O (B, T, heads · d_v).

        With a cache, x holds the new positions only: self-attention adds their keys and values to the cache;
        attention to a memory projects it at the first step and reads the cache from then on. x may have K rows in a
        row for each row of the memory, as the hypotheses of a beam have that read one sentence: it is copied for none.
        """
        self._check_input("x", x, self.config.d_model)
        scale = self.d_k**-0.5 if self.config.scale is None else self.config.scale
        dropout = self.config.dropout if self.training else 0.0
        whole = cache if isinstance(cache, KeyValues) else None  # a cache of every key
        if self.cross:
            q, k, v = self._from_memory(x, memory, whole)
        elif memory is not None:
            raise ValueError("this is a self-attention: build it with d_memory= to attend to a memory")
        else:
            offset = cache.length if cache is not None else 0
            q, k, v = self._from_itself(x, whole, offset)
            if (relative := self.positions.bias(q, k.shape[2], offset, scale)) is not None:
                check_added(None, bias, (*q.shape[:3], k.shape[2]), q.dtype)  # a sum would hide its shape
                bias = relative if bias is None else bias + relative
        if self.efficient is not None:
            heads = self._efficiently(q, k, v, mask, bias, scale, dropout, cache)
        elif self.watched or not self.config.plain:
            K = max(1, len(x) // max(1, len(q)))
            heads = self._tapped(q, k, v, mask, bias, scale, dropout, K, whole)
        else:
            heads = attend(q, k, v, mask=mask, bias=bias, scale=scale, dropout=dropout, backend=self.config.backend)
        y = self.output(heads.transpose(1, 2).flatten(2))  # (B, K·T, H·d_v) W_O
        return y.reshape(*x.shape[:2], y.shape[2])

    @property
    def watched(self) -> bool:
        """Whether somebody looks at a tap."""
        taps = (self.queries, self.keys, self.values, self.scores, self.weights, self.outputs)
        return any(tap.watchers for tap in taps)

    def _tapped(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AnyMask | None,
        bias: Tensor | None,
        scale: float,
        dropout: float,
        K: int,
        cache: KeyValues | None,
    ) -> Tensor:
        """The math path through the taps: a row for each row of x, a key and value head for each query head."""
        k, v = fitted(q, k, v, mask, bias, self.score.width or self.widths[1] // self.kv_heads)
        allowed = dense(mask, q, k)
        if K > 1:
            allowed, bias = (None if x is None else _apart(x.expand(len(k), -1, -1, -1), K) for x in (allowed, bias))
            q, k, v = _apart(q, K), k.repeat_interleave(K, 0), v.repeat_interleave(K, 0)
        q, k, v = self.queries(q), self.keys(k), self.values(v)
        scores = self.score(q, k, scale)  # (B·K, H, T, S)
        scores = self.scores(scores if bias is None else scores + bias)
        if isinstance(self.normalise, Monotonic):
            weights = self.weights(self.normalise(scores, allowed, q, k, scale, cache))
        else:
            weights = self.weights(self.normalise(scores, allowed))
        return self.outputs(drop(weights, dropout) @ v)  # (B·K, H, T, d_v)

    def _efficiently(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AnyMask | None,
        bias: Tensor | None,
        scale: float,
        dropout: float,
        cache: KeyValues | Recent | Sums | None,
    ) -> Tensor:
        """Whole, or on from a cache; or by its weights, where somebody looks or the cache holds all keys anyway."""
        assert self.efficient is not None
        if bias is not None:
            raise ValueError(f"attention {self.config.kind!r} takes no bias: it has no scores to add it to")
        is_causal, keep = (True, None) if cache is not None else causal_and_keep(mask, k.shape[2], self.config.kind)
        if is_causal and isinstance(self.efficient, Linformer):
            raise ValueError(f"attention {self.config.kind!r} has no causal form: take another one for decoding")
        if isinstance(cache, Recent | Sums):
            if self.watched:
                raise ValueError("this cache keeps no keys to look at: begin with a new one, made while watching")
            check_causal(mask, self.config.kind)
            return self.efficient.step(q, k, v, cache, scale=scale)
        k, v = fitted(q, k, v, mask, bias)
        if not (self.watched or self.config.backend == "math" or cache is not None):
            return self.efficient(q, k, v, is_causal=is_causal, keep=keep, scale=scale, dropout=dropout)
        q, k, v = self.queries(q), self.keys(k), self.values(v)
        T, S = q.shape[2], k.shape[2]
        allowed = dense(mask, q, k)
        weights = self.efficient.weights(
            q, k, allowed, is_causal=is_causal, offset=S - T, scale=scale, see=self.scores
        )  # (B, H, T, S)
        return self.outputs(drop(self.weights(weights), dropout) @ v)

    def new_cache(self) -> KeyValues | Recent | Sums:
        """An empty past of this attention, as small as its kind allows; of all keys while somebody watches."""
        if self.efficient is None or self.watched or self.config.backend == "math":
            return KeyValues()
        return self.efficient.past() or KeyValues()

    def _check_input(self, name: str, x: Tensor, width: int) -> None:
        if x.dim() != 3 or x.shape[2] != width:
            raise ValueError(f"this attention takes {name} of shape (batch, length, {width}), got {tuple(x.shape)}")
        if self.config.project:
            weight: Tensor | None = (self.query if self.cross else self.query_key_value).weight
        else:
            weight = next(self.score.parameters(), None)
        if weight is not None and weight.is_floating_point() and not one_dtype(x, weight):  # int8 reads any
            raise ValueError(f"{name} is {x.dtype}, and the weights {weight.dtype}: convert one of them with .to()")

    def _from_itself(self, x: Tensor, cache: KeyValues | None, offset: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.split(self.query_key_value(x), self.widths) if self.config.project else (x, x, x)
        q, k, v = _split(q, self.heads), _split(k, self.kv_heads), _split(v, self.kv_heads)
        q, k = self.positions.rotate(q, offset), self.score.keys(self.positions.rotate(k, offset))
        return (q, k, v) if cache is None else (q, *cache.extend(k, v))

    def split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """What matrices side by side made of one input: x (..., Σ widths) -> (..., width) of each."""
        return x.split(widths, -1)

    def _from_memory(self, x: Tensor, memory: Tensor | None, cache: KeyValues | None) -> tuple[Tensor, Tensor, Tensor]:
        if cache is not None and cache.keys is not None and cache.values is not None:
            k, v = cache.keys, cache.values
        elif memory is None:
            raise ValueError("this attention reads a memory: pass it, or a cache that has seen it")
        else:
            self._check_input("memory", memory, self.d_memory)
            k, v = self.split(self.key_value(memory), self.widths[1:]) if self.config.project else (memory, memory)
            k, v = self.score.keys(_split(k, self.kv_heads)), _split(v, self.kv_heads)
            if cache is not None:
                cache.keys, cache.values, cache.length = k, v, k.shape[2]
        if len(x) != len(k):  # K rows read one memory: as K · T queries of one row
            if not len(k) or len(x) % len(k):
                raise ValueError(
                    f"x and the memory do not fit together: {len(x)} rows read {len(k)}; give x as many, or a multiple"
                )
            x = x.reshape(len(k), -1, x.shape[2])  # (B·K, T, d_model) -> (B, K·T, d_model)
        return _split(self.query(x) if self.config.project else x, self.heads), k, v


def _apart(x: Tensor, K: int) -> Tensor:
    """x (B, H, K·T, d) -> (B·K, H, T, d), a row for each of K that read one memory; (B, H, 1, d) serves them all."""
    return x.repeat_interleave(K, 0) if x.shape[2] == 1 else x.unflatten(2, (K, -1)).transpose(1, 2).flatten(0, 1)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, T, H·d) -> (B, H, T, d)
