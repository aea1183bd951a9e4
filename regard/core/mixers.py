"""What stands between the projections of an attention and W_O: from queries, keys and values to what each head mixes.

Letters: B batch, H heads, G key/value heads, T queries, S keys, d_k and d_v widths of a head; K rows of x read one row
of a memory, as the hypotheses of a beam read one sentence.

`Full` is eq. 1 with any score and normaliser, `Efficient` what looks at fewer pairs (`regard.core.efficient`); which of
them an attention has, its `AttentionConfig` says. A mixer has a `Tap` for each of the things that pass from one to the
next, for whoever looks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from regard.checks import at_least, one_of
from regard.core.backends import BACKENDS, backend_of, dense, fitted
from regard.core.cache import KeyValues, Recent, Sums
from regard.core.dropout import Dropout, check_probability
from regard.core.efficient import Inner, Kind, causal_and_keep, check_causal, check_kind
from regard.core.linformer import Linformer
from regard.core.masks import AnyMask
from regard.core.monotonic import Monotonic
from regard.core.normalisers import ALONG_A_MEMORY, Normaliser, make_normaliser, read_normaliser, softmax
from regard.core.positions import Positions
from regard.core.scores import SCALED, SCORES, ScoreFunction, make_score

Past = KeyValues | Recent | Sums


class Tap(nn.Module):
    """An identity with a name in the module tree: who adds a watcher sees what flows through, and may replace it."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Callable[[Tensor], Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        for watch in self.watchers:
            x = watch(x)
        return x


class Under(NamedTuple):
    """Under what queries meet keys."""

    mask: AnyMask | None
    bias: Tensor | None
    scale: float
    cache: Past | None
    rows: int  # of x: B, or K times as many; a row of q then has K · T queries, and becomes K rows


class Mixer(nn.Module):
    """q (B, H, T, d_k), k (B, G, S, d_k), v (B, G, S, d_v) -> (B, H, T, d_v).

    It is no child of its attention, which takes its parts for its own: so their names are as short as they can be.
    """

    def __init__(self, *, dropout: float, backend: str) -> None:
        super().__init__()
        self.backend = backend
        self.queries, self.keys, self.values = Tap(), Tap(), Tap()
        self.scores, self.weights, self.outputs = Tap(), Tap(), Tap()
        self.dropout = Dropout(dropout)

    @property
    def watched(self) -> bool:
        """Whether somebody looks at a tap."""
        taps = (self.queries, self.keys, self.values, self.scores, self.weights, self.outputs)
        return any(tap.watchers for tap in taps)

    def prepared(self, k: Tensor) -> Tensor:
        """What is made of each key once, however often it is read: a cache holds this."""
        return k

    def past(self) -> Past:
        """An empty past, as small as it can be; of all keys while somebody watches."""
        return KeyValues()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, under: Under) -> Tensor:
        raise NotImplementedError


class Full(Mixer):
    """Score, mask, normalise, mix: eq. 1 where the score is dot and the normaliser soft-max."""

    def __init__(
        self, score: ScoreFunction, normalise: Normaliser | Monotonic, key_width: int, *, dropout: float, backend: str
    ) -> None:
        super().__init__(dropout=dropout, backend=backend)
        self.score, self.normalise, self.width = score, normalise, score.width or key_width
        self.plain = type(score) is ScoreFunction and normalise is softmax

    def prepared(self, k: Tensor) -> Tensor:
        return self.score.keys(k)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, under: Under) -> Tensor:
        mask, bias, scale, cache, rows = under
        k, v = fitted(q, k, v, mask, bias, self.width)
        if self.plain and not self.watched:
            return backend_of(self.backend)(q, k, v, mask, bias, scale, self.dropout.now)
        allowed, K = dense(mask, q, k), max(1, rows // max(1, len(q)))
        if K > 1:
            allowed, bias = (None if x is None else _apart(x.expand(len(k), -1, -1, -1), K) for x in (allowed, bias))
            q, k, v = _apart(q, K), k.repeat_interleave(K, 0), v.repeat_interleave(K, 0)
        q, k, v = self.queries(q), self.keys(k), self.values(v)
        scores = self.score(q, k, scale)  # (B·K, H, T, S)
        scores = self.scores(scores if bias is None else scores + bias)
        along = (q, k, scale, cache) if isinstance(self.normalise, Monotonic) else ()
        weights = self.weights(self.normalise(scores, allowed, *along))
        return self.outputs(self.dropout(weights) @ v)  # (B·K, H, T, d_v)


class Efficient(Mixer):
    """Fewer pairs than all: whole, or on from a cache; or by its weights, where somebody looks."""

    def __init__(self, kind: str, efficient: Inner, *, dropout: float, backend: str) -> None:
        super().__init__(dropout=dropout, backend=backend)
        self.kind, self.efficient = kind, efficient

    def past(self) -> Past:
        return KeyValues() if self.watched or self.backend == "math" else self.efficient.past() or KeyValues()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, under: Under) -> Tensor:
        mask, bias, scale, cache, _ = under
        if bias is not None:
            raise ValueError(f"attention {self.kind!r} takes no bias: it has no scores to add it to")
        is_causal, keep = (True, None) if cache is not None else causal_and_keep(mask, k.shape[2], self.kind)
        if is_causal and isinstance(self.efficient, Linformer):
            raise ValueError(f"attention {self.kind!r} has no causal form: take another one for decoding")
        if isinstance(cache, Recent | Sums):
            if self.watched:
                raise ValueError("this cache keeps no keys to look at: begin with a new one, made while watching")
            check_causal(mask, self.kind)
            return self.efficient.step(q, k, v, cache, scale=scale)
        k, v = fitted(q, k, v, mask, bias)
        if not (self.watched or self.backend == "math" or cache is not None):
            return self.efficient(q, k, v, is_causal=is_causal, keep=keep, scale=scale, dropout=self.dropout.now)
        q, k, v = self.queries(q), self.keys(k), self.values(v)
        allowed, pattern = dense(mask, q, k), self.efficient.allowed(q.shape[2], k.shape[2], is_causal, q.device)
        if pattern is not None:
            allowed = pattern if allowed is None else pattern & allowed
        weights = self.efficient.weights(q, k, allowed, scale, self.scores)  # (B, H, T, S)
        return self.outputs(self.dropout(self.weights(weights)) @ v)


def _apart(x: Tensor, K: int) -> Tensor:
    """x (B, H, K·T, d) -> (B·K, H, T, d), a row for each of K that read one memory; (B, H, 1, d) serves them all."""
    return x.repeat_interleave(K, 0) if x.shape[2] == 1 else x.unflatten(2, (K, -1)).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True)
class AttentionConfig:
    """The shape of a multi-head attention (§3.2.2). Left out: d_k = d_v = d_model / heads, kv_heads = heads."""

    d_model: int
    heads: int
    kv_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    bias: bool = True
    qkv_bias: bool | None = None  # of W_Q, W_K, W_V: bias, if left out
    output: bool = True  # W_O
    gated: bool = False  # what W_O makes is weighed by a gate, which it makes as well (Huang et al., 2019)
    scale: float | None = None  # 1/√d_k
    dropout: float = 0.0
    backend: str = "auto"
    score: str = "dot"  # general, additive, concat, location: regard.core.scores
    normaliser: str = "softmax"  # topk:K, hard, sparsemax, entmax, monotonic, chunkwise:W: regard.core.normalisers
    project: bool = True  # W_Q, W_K, W_V; without them heads are slices of what comes in
    kind: str = "full"  # window:W, linear, ...: the efficient form of a self-attention, regard.core.efficient
    max_length: int = 1024  # of a sequence that linformer:R projects or the score location looks at

    def __post_init__(self) -> None:
        at_least(1, d_model=self.d_model, heads=self.heads, kv_heads=self.kv_heads, d_k=self.d_k, d_v=self.d_v)
        check_probability(self.dropout)
        if (self.d_k is None or self.d_v is None) and self.d_model % self.heads:
            raise ValueError(
                f"d_model = {self.d_model} does not divide into {self.heads} heads: choose a divisor or set d_k, d_v"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}: choose a divisor")
        one_of(("auto", *BACKENDS), backend=self.backend)
        one_of(SCORES, score=self.score)
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


def make_mixer(c: AttentionConfig, cross: bool, positions: Positions, d_k: int, key_width: int) -> Mixer:
    """What mixes in an attention of this config, whose keys are so wide."""
    if c.kind != "full":
        if cross or type(positions).bias is not Positions.bias:
            where = "attention to a memory" if cross else f"positions that add to scores ({positions})"
            raise ValueError(f"attention {c.kind!r} is not for {where}: take full attention there")
        inner = Kind.read(c.kind).make(d_k=d_k, max_length=c.max_length, heads=c.heads)
        assert inner is not None
        return Efficient(c.kind, inner, dropout=c.dropout, backend=c.backend)
    name, width = read_normaliser(c.normaliser)
    if name in ALONG_A_MEMORY and not cross:
        raise ValueError(f"the normaliser {c.normaliser} walks along a memory: self-attention has none")
    score = make_score(c.score, (c.heads, c.kv_heads or c.heads), (d_k, key_width), c.max_length)
    normalise: Normaliser | Monotonic
    if name in ALONG_A_MEMORY:
        normalise = Monotonic(c.heads, d_k, score.width or key_width, width)
    else:
        normalise = make_normaliser(c.normaliser)
    return Full(score, normalise, key_width, dropout=c.dropout, backend=c.backend)
