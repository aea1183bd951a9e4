"""A PyTorch model handed to the C engine, a Transformer or one half of it: its weights, laid out as it reads them.

Letters: V vocabulary, S source length, N outputs and K inputs of a product.
"""

import copy
from collections.abc import Iterable, Sequence
from ctypes import c_int32
from functools import partial
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.core.added import merged
from regard.core.attention import MultiHeadAttention
from regard.core.blocks import DecoderLayer, EncoderLayer, Stack
from regard.core.generation import DecoderOnly, room_after, room_beside
from regard.core.layers import FeedForward, GatedFeedForward, OffsetRMSNorm, Residual
from regard.core.positions import Learned, Positions, Rotary, Sinusoidal, sinusoid
from regard.core.quantised import Int8Embedding, Int8Linear
from regard.core.stems import Embedding
from regard.native import build
from regard.native.build import UnsupportedError
from regard.native.rows import NativeRows

NORMS = nn.LayerNorm | nn.RMSNorm | OffsetRMSNorm
ACTIVATIONS: dict[Any, int] = {F.relu: 0, F.gelu: 1, F.silu: 2, torch.sigmoid: 3, torch.tanh: 5}
GELU_BY_TANH = 4


class Shortlists(Protocol):
    """Which target tokens a sentence may use."""

    def of(self, source: Sequence[int]) -> NDArray[np.integer[Any]]:
        """Their ids, sorted."""


class Laid:
    """The weights of a model as the engine reads them: copies. `UnavailableError` says why it cannot."""

    def __init__(self, model: nn.Module, source: str | None, target: str | None, threads: int) -> None:
        """Its embeddings have these names, with an encoder beside the one, and a decoder beside the other."""
        self.library, self.threads = build.library(), threads
        self._kept: list[Any] = []  # what the engine has addresses of
        parts = {name: name for name in ("encoder",) * bool(source) + ("decoder",) * bool(target)}
        parts |= {side: name for side, name in (("source", source), ("target", target)) if name}
        for name in (*parts.values(), "output"):
            if not hasattr(model, name):
                raise UnsupportedError(f"a {type(model).__name__} has no {name.replace('_', ' ')}")
        self.half = not (source and target)
        try:
            model = merged(model)
        except ValueError as error:
            raise UnsupportedError(f"what was added to it cannot be merged: {error}") from None
        with torch.no_grad():
            self.c = self._model(model, {side: getattr(model, name) for side, name in parts.items()})
        self._reach, self._growing = c_int32(0), Lock()  # of the position tables: shared by `with_threads`, as they are
        self.reach(256)

    def reach(self, length: int) -> None:
        """Have position tables at least so long."""
        with self._growing:  # a search that wants less must not put a shorter one in the place of a longer one
            if length <= self._reach.value:
                return
            length = max(length, 2 * self._reach.value)
            if self.turning is not None:
                d = self.turning.d_k
                still = (torch.arange(d) < d // 2).float().expand(1, 1, length, d)  # what turns into cosines and sines
                self.c.turns = self._address(self.turning.rotate(still)[0, 0], length, d)
            for side, positions in self.positions.items():
                embedding = getattr(self.c, side)
                if isinstance(positions, Sinusoidal):  # the old table stays: another thread may be reading it
                    table = sinusoid(torch.arange(length), embedding.width).float()
                elif isinstance(positions, Learned):
                    table = positions.table.float()
                else:
                    continue
                embedding.positions = self._address(table, len(table), embedding.width)
            self._reach.value = length

    def _address(self, x: Tensor | None, *shape: int) -> int | None:
        """Where a copy of x lies, which has this shape: the engine takes it for granted."""
        if x is None:
            return None
        if x.shape != shape:
            raise UnsupportedError(f"it has numbers of the shape {tuple(x.shape)} where {shape} belong")
        array = x.detach().cpu().clone(memory_format=torch.contiguous_format).numpy()
        self._kept.append(array)
        return array.ctypes.data

    def _model(self, model: nn.Module, parts: dict[str, Any]) -> build.Model:
        encoder, decoder = parts.get("encoder", Stack(())), parts.get("decoder", Stack(()))
        for stack, kind in ((encoder, EncoderLayer), (decoder, DecoderLayer)):
            if not isinstance(stack, Stack) or not all(isinstance(layer, kind) for layer in stack.layers):
                raise UnsupportedError(f"a {type(model).__name__} model has other layers")
        if any((layer.cross_attention is None) != self.half for layer in decoder.layers):
            raise UnsupportedError("its attentions to a source are not those of its family")
        if encoder.scale != 1.0 or decoder.scale != 1.0:
            raise UnsupportedError("what its output layer reads is scaled")
        modules, layers = list(model.modules()), [*encoder.layers, *decoder.layers]
        attentions = [m for m in modules if isinstance(m, MultiHeadAttention)]
        for c in (m.config for m in attentions):
            if (c.score, c.normaliser, c.project, c.kind) != ("dot", "softmax", True, "full"):
                raise UnsupportedError(f"{c.kind} attention by {c.score} score and {c.normaliser}")
        if any(m.query_norm is not None for m in attentions):
            raise UnsupportedError("its queries and keys are normalised")
        eps = _all("normalisations", "eps", (m.eps for m in modules if isinstance(m, NORMS)))
        place = _all("normalisations", "place", (m.place for m in modules if isinstance(m, Residual)))
        d_k, d_v, scale = _all("attentions", "shape", ((m.d_k, m.d_v, m.config.scale) for m in attentions))
        networks = ((_activation(f), f.outer.in_features) for f in (layer.feed_forward.sublayer for layer in layers))
        (activation, gated), d_ff = _all("feed-forward layers", "shape or activation", networks)
        self.d, self.turning = attentions[0].config.d_model, self._turning(attentions)
        embeddings = {side: parts[side] for side in ("target", "source") if side in parts}
        self.positions = {side: _absolute(embedding) for side, embedding in embeddings.items()}
        tables = [len(p.table) for p in self.positions.values() if isinstance(p, Learned)]
        self.longest = min(tables) if tables else None
        return build.Model(
            d=self.d,
            heads=max(m.heads for m in attentions),
            kv_heads=max(m.kv_heads for m in attentions),
            d_k=_whole(d_k),
            d_v=_whole(d_v),
            d_ff=d_ff,
            encoder_layers=len(encoder.layers),
            decoder_layers=len(decoder.layers),
            pre=place == "pre",
            activation=activation,
            gated=gated,
            turned=0 if self.turning is None else self.turning.d_k,
            score_scale=d_k**-0.5 if scale is None else scale,
            eps=eps,
            encoder=self._layers(encoder),
            decoder=self._layers(decoder),
            encoder_norm=self._norm(encoder.norm, self.d),
            decoder_norm=self._norm(decoder.norm, self.d),
            **{side: self._embedding(side, embedding) for side, embedding in embeddings.items()},
        )

    def _turning(self, attentions: Sequence[MultiHeadAttention]) -> Rotary | None:
        """How queries and keys turn: in all layers alike."""
        found = [m.positions for m in attentions]
        allowed = (Positions, Rotary) if self.half else (Positions,)
        if other := next((each for each in found if type(each) not in allowed), None):
            raise UnsupportedError(f"{type(other).__name__} positions")
        speeds = {(*each.speeds().tolist(),) if isinstance(each, Rotary) else None for each in found}
        first = found[0] if isinstance(found[0], Rotary) else None
        if len(speeds) != 1 or (first and first.d_k != attentions[0].d_k):
            raise UnsupportedError("its layers differ in their positions")
        return first

    def _layers(self, stack: Stack) -> Any:
        made: dict[tuple[nn.Parameter, ...], build.Layer] = {}  # one may be gone through often
        for key, layer in ((tuple(layer.parameters()), layer) for layer in stack.layers):
            made[key] = made[key] if key in made else self._layer(layer)
        layers = (build.Layer * len(stack.layers))(*(made[tuple(layer.parameters())] for layer in stack.layers))
        self._kept.append(layers)
        return layers

    def _layer(self, layer: Any) -> build.Layer:
        result = build.Layer()
        attention, cross, ffn = layer.self_attention, getattr(layer, "cross_attention", None), layer.feed_forward
        for residual in (attention, cross, ffn):
            assert residual is None or isinstance(residual, Residual)
        result.attention_norm = self._norm(attention.norm, self.d)
        result.own, result.query_key_value, result.output = self._attention(attention.sublayer, "query_key_value")
        if cross is not None:
            result.cross_norm = self._norm(cross.norm, self.d)
            result.read, result.query, result.key_value, result.cross_output = self._attention(
                cross.sublayer, "query", "key_value"
            )
        (_, gated), d_ff = _activation(ffn.sublayer), ffn.sublayer.outer.in_features
        result.feed_forward_norm = self._norm(ffn.norm, self.d)
        result.inner = self._product(ffn.sublayer.inner, d_ff * (1 + gated), self.d)
        result.outer = self._product(ffn.sublayer.outer, self.d, d_ff)
        return result

    def _attention(self, attention: nn.Module, *products: str) -> list[Any]:
        """How many heads it has, these of its products, and W_O."""
        if getattr(attention, "heads", None) == 0:  # all pruned: a product of nothing, and its bias
            b: Any = attention.bias
            bias = None if b is None else b.float()
            last = build.Product(N=self.d, bias=self._address(bias, self.d))
            return [build.Heads(), *(build.Product() for _ in products), last]
        if not isinstance(attention, MultiHeadAttention):
            raise UnsupportedError(f"it has a {type(attention).__name__} in place of attention")
        queries, keys = _heads(attention.heads, attention.d_k), _heads(attention.kv_heads, attention.d_k)
        values, mixed = _heads(attention.kv_heads, attention.d_v), _heads(attention.heads, attention.d_v)
        rows = {"query": queries, "key_value": _beside(keys, values), "query_key_value": _beside(queries, keys, values)}
        return [
            build.Heads(attention.heads, attention.kv_heads),
            *(self._product(getattr(attention, name), _held(rows[name]), self.d, rows[name]) for name in products),
            self._product(attention.output, self.d, _held(mixed), None, mixed),
        ]

    def _norm(self, norm: nn.Module | None, d: int) -> build.Norm:
        if norm is None:
            return build.Norm()
        if not isinstance(norm, NORMS):
            raise UnsupportedError(f"a {type(norm).__name__}")
        if norm.weight is None:
            raise UnsupportedError(f"a {type(norm).__name__} without a gain")
        gain = norm.weight.float() + (1 if isinstance(norm, OffsetRMSNorm) else 0)
        if not isinstance(norm, nn.LayerNorm):
            return build.Norm(self._address(gain, d), None)
        bias = torch.zeros_like(gain) if norm.bias is None else norm.bias.float()
        return build.Norm(self._address(gain, d), self._address(bias, d))

    def _embedding(self, side: str, embedding: Any) -> build.Embedding:
        tokens, segments, widen = embedding.tokens, embedding.segments, embedding.widen
        if side == "target" and (segments or widen) is not None:
            raise UnsupportedError("a decoder whose embedding has segments, or another width")
        V, width = len(tokens.weight), self.d if widen is None else widen.in_features
        result = build.Embedding(factor=embedding.scale, tokens=V, width=width)
        result.norm = self._norm(embedding.norm, width)
        if isinstance(tokens, Int8Embedding):
            result.q, result.scale = self._address(tokens.weight, V, width), self._address(tokens.scale, V)
        elif tokens.weight.dtype == torch.bfloat16:
            result.h = self._address(tokens.weight.view(torch.int16), V, width)
        else:
            result.table = self._address(tokens.weight.float(), V, width)
        if segments is not None:
            table = segments(torch.arange(segments.num_embeddings, device=segments.weight.device))
            result.segments = self._address(table.float(), segments.num_embeddings, width)
        if widen is not None:
            result.widen = self._product(widen, self.d, width)
        return result

    @torch.no_grad()
    def _product(
        self, linear: nn.Module, N: int, K: int, rows: Tensor | None = None, columns: Tensor | None = None
    ) -> build.Product:
        """A linear layer in panels: (N, K) -> (N / 32, K, 32); in int8 (N / 32, K / 4, 32, 4).

        `rows` and `columns` say which of its outputs and inputs stand where, -1: a zero.
        """
        if not isinstance(linear, nn.Linear | Int8Linear):
            raise UnsupportedError(f"a {type(linear).__name__} in place of a product")
        if linear.weight.shape != (N, K):
            raise UnsupportedError(f"it has a product of the shape {tuple(linear.weight.shape)} where {N, K} belongs")
        weight = _arrange(_arrange(linear.weight, rows).T, columns).T  # (N, K)
        bias = None if linear.bias is None else _arrange(linear.bias.float(), rows)
        (N, K), four = weight.shape, 4 if isinstance(linear, Int8Linear) else 1
        half = weight.dtype == torch.bfloat16
        result = build.Product(K=K, N=N, bias=self._address(bias, N))
        panels, groups = -(-N // build.PANEL), -(-K // four)
        kind = torch.int8 if four > 1 else torch.int16 if half else torch.float32
        laid = torch.zeros(panels * build.PANEL, groups * four, dtype=kind)
        laid[:N, :K] = weight.view(torch.int16) if half else weight
        laid = laid.view(panels, build.PANEL, groups, four).transpose(1, 2)
        address = self._address(laid, *laid.shape)
        if isinstance(linear, Int8Linear):
            result.q, result.scale = address, self._address(_arrange(linear.scale, rows), N)
            result.sum = self._address(128 * weight.sum(1, dtype=torch.int32), N)
        elif half:
            result.h = address
        else:
            result.w = address
        return result


class Native(Laid):
    """A model in the C engine, ready to be searched (`regard.decoding.protocol.Searchable`).

    With `shortlists` a sentence's output has only tokens of its list, and only the columns of the last product that
    some list names are computed. `threads` share each large product: the way to be quick with one sentence at a time;
    many sentences are better shared among searches.
    """

    def __init__(self, model: nn.Module, *, shortlists: Shortlists | None = None, threads: int = 1) -> None:
        self.alone = isinstance(model, DecoderOnly)  # a decoder, which reads sources as its own beginning
        source, target = (None, "stem") if self.alone else ("source_embedding", "target_embedding")
        super().__init__(model, source, target, threads)
        output: Any = model.output
        self.c.logits = self._product(output, getattr(output, "out_features", 0), self.d)
        self.shortlists = shortlists
        self.ragged = shortlists is None  # each start lays out the columns of the last product anew
        self.vocabulary = int(self.c.logits.N)
        self.tokens = int((self.c.target if self.alone else self.c.source).tokens)  # that a source may have
        self.layers = int(self.c.decoder_layers)
        self.key_width, self.value_width = self.c.kv_heads * self.c.d_k, self.c.kv_heads * self.c.d_v

    def rows(self) -> "NativeRows":
        return NativeRows(self)

    def room(self, source: Sequence[int]) -> int | None:
        return (room_after if self.alone else room_beside)(source, self.longest)

    def with_threads(self, threads: int) -> "Native":
        """The same weights, shared by another number of threads."""
        other = copy.copy(self)
        other.threads = threads
        return other

    def memory_size(self, S: int) -> int:
        """Numbers in the block of a sentence of S tokens; a decoder alone has none."""
        return 0 if self.alone else self.layers * (self.key_width * _whole(S) + self.value_width * S)


def _all(what: str, how: str, values: Iterable[Any]) -> Any:
    """What they all have."""
    found = {*values}
    if len(found) != 1:
        raise UnsupportedError(f"its {what} differ in {how}" if found else f"it has no {what}")
    return found.pop()


def _whole(d: int) -> int:
    """So many numbers, filled up to whole vectors."""
    return -(-d // build.VECTOR) * build.VECTOR


def _heads(heads: int, d: int) -> Tensor:
    """Where the numbers of each head stand when it is filled up: their old places, or -1."""
    places = torch.full((heads, _whole(d)), -1)
    places[:, :d] = torch.arange(heads * d).view(heads, d)
    return places.flatten()


def _held(places: Tensor) -> int:
    """How many of them are of something."""
    return int((places >= 0).sum())


def _beside(*parts: Tensor) -> Tensor:
    """The places of several matrices that lie side by side."""
    first, placed = 0, []
    for part in parts:
        placed.append(torch.where(part < 0, -1, part + first))
        first += int(part.max()) + 1
    return torch.cat(placed)


def _arrange(x: Tensor, places: Tensor | None) -> Tensor:
    """The rows of x at these places, zeros for -1."""
    if places is None:
        return x
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])[places]


def _absolute(embedding: nn.Module) -> Positions:
    if not isinstance(embedding, Embedding):
        raise UnsupportedError(f"a {type(embedding).__name__} in place of an embedding")
    positions = embedding.positions
    if type(positions) not in (Positions, Sinusoidal, Learned):
        raise UnsupportedError(f"{type(positions).__name__} positions")
    return positions


def _activation(ffn: nn.Module) -> tuple[int, bool]:
    """Its number in C, and whether it is a gate."""
    f: Any = ffn.gate if isinstance(ffn, GatedFeedForward) else isinstance(ffn, FeedForward) and ffn.activation
    return number(f, ffn), isinstance(ffn, GatedFeedForward)


def number(f: Any, of: nn.Module) -> int:
    """What C calls an activation."""
    by_tanh = isinstance(f, partial) and (f.func, f.args, f.keywords) == (F.gelu, (), {"approximate": "tanh"})
    number = GELU_BY_TANH if by_tanh else ACTIVATIONS.get(f)
    if number is None:
        raise UnsupportedError(f"a {type(of).__name__} of this kind")
    return number
