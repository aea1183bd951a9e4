"""A PyTorch Transformer handed to the C engine, as a `Searchable` whose rows never meet.

Letters: R rows, V vocabulary, d width of the model, S source length, N outputs and K inputs of a product.

The past of a row is a list of cells, one for each token: places in one pool of keys and values. To reorder rows is to
copy these lists; no key and no value moves, and what a sentence's rows share is stored once. What the encoder found is
one block for each sentence, which all of its rows read.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.blocks import Stack
from regard.core.layers import Embedding, FeedForward, GatedFeedForward, Residual
from regard.core.positions import Learned, Positions, Sinusoidal, sinusoid
from regard.core.quantised import Int8Embedding, Int8Linear
from regard.decoding.protocol import DAMAGED, Best, Floats, Ints
from regard.native import build
from regard.native.build import Unavailable

PANEL = 32  # columns of a product that lie together in the engine
VECTOR = 16
ENCODE = 512  # source tokens that go through the encoder together: the room to work stays small
SELECT = 48  # rows whose logits are held at once: they stay in the second cache
ACTIVATIONS: dict[Any, int] = {F.relu: 0, F.gelu: 1, F.silu: 2}
GATES: dict[Any, int] = {torch.sigmoid: 3, F.silu: 4}

Int32 = NDArray[np.int32]


class Shortlists(Protocol):
    """Which target tokens a sentence may use."""

    def of(self, source: Sequence[int]) -> NDArray[np.integer[Any]]:
        """Their ids, sorted."""


def native(model: nn.Module, shortlists: Shortlists | None = None) -> "Native":
    """The engine with a model's weights, copied; `Unavailable` says why there is none."""
    return Native(model, shortlists)


class Native:
    """A model in the C engine, ready to be searched (`regard.decoding.protocol.Searchable`).

    With `shortlists` a sentence's output has only tokens of its list, and only the columns of the last product that
    some list names are computed.
    """

    ragged = True

    def __init__(self, model: nn.Module, shortlists: Shortlists | None = None) -> None:
        self.library = build.library()
        self.shortlists = shortlists
        self._kept: list[Any] = []  # what the engine has addresses of
        with torch.no_grad():
            self.c = self._model(model)
        self.vocabulary = int(self.c.logits.N)
        self.positions = [_absolute(e) for e in (model.source_embedding, model.target_embedding)]
        tables = [len(p.table) for p in self.positions if isinstance(p, Learned)]
        self.longest = min(tables) if tables else None
        self.d, self.layers = int(self.c.d), int(self.c.decoder_layers)
        self.key_width, self.value_width = self.c.kv_heads * self.c.d_k, self.c.kv_heads * self.c.d_v
        self._reach = 0
        self.reach(256)

    def rows(self) -> "NativeRows":
        return NativeRows(self)

    def reach(self, length: int) -> None:
        """Have position tables at least so long."""
        if length <= self._reach:
            return
        length = max(length, 2 * self._reach)
        for embedding, positions in zip((self.c.source, self.c.target), self.positions, strict=True):
            if isinstance(positions, Sinusoidal):  # the old table stays: another thread may be reading it
                embedding.positions = self._address(sinusoid(torch.arange(length), self.d).float())
            elif isinstance(positions, Learned):
                embedding.positions = self._address(positions.table.float())
        self._reach = length

    def memory_size(self, S: int) -> int:
        """Numbers in the block of a sentence of S tokens."""
        return self.layers * (self.key_width * (-(-S // VECTOR) * VECTOR) + self.value_width * S)

    def _address(self, x: Tensor | NDArray[Any] | None) -> int | None:
        if x is None:
            return None
        array = x.detach().cpu().contiguous().numpy() if isinstance(x, Tensor) else np.ascontiguousarray(x)
        self._kept.append(array)
        return array.ctypes.data

    def _model(self, model: nn.Module) -> build.Model:
        parts = ("source_embedding", "target_embedding", "encoder", "decoder", "output")
        for part in parts:
            if not hasattr(model, part):
                raise Unavailable(f"a {type(model).__name__} has no {part.replace('_', ' ')}")
        encoder, decoder, output = model.encoder, model.decoder, model.output
        assert isinstance(encoder, Stack) and isinstance(decoder, Stack)
        first: Any = decoder.layers[0]
        attention, ffn = first.self_attention.sublayer, first.feed_forward.sublayer
        norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
        if len({m.eps for m in norms}) != 1:
            raise Unavailable("its normalisations differ in eps")
        if not isinstance(attention, MultiHeadAttention):
            raise Unavailable(f"it has a {type(attention).__name__} in place of attention")
        scale = attention.config.scale
        return build.Model(
            d=attention.config.d_model,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            d_k=attention.d_k,
            d_v=attention.d_v,
            d_ff=ffn.outer.in_features if isinstance(ffn, FeedForward | GatedFeedForward) else 0,
            encoder_layers=len(encoder.layers),
            decoder_layers=len(decoder.layers),
            pre=first.self_attention.place == "pre",
            activation=_activation(ffn),
            score_scale=attention.d_k**-0.5 if scale is None else scale,
            eps=norms[0].eps,
            source=self._embedding(model.source_embedding),
            target=self._embedding(model.target_embedding),
            encoder=self._layers(encoder),
            decoder=self._layers(decoder),
            encoder_norm=self._norm(encoder.norm),
            decoder_norm=self._norm(decoder.norm),
            logits=self._product(output),
        )

    def _layers(self, stack: Stack) -> Any:
        layers = (build.Layer * len(stack.layers))(*map(self._layer, stack.layers))
        self._kept.append(layers)
        return layers

    def _layer(self, layer: Any) -> build.Layer:
        result = build.Layer()
        attention, cross, ffn = layer.self_attention, getattr(layer, "cross_attention", None), layer.feed_forward
        for residual in (attention, cross, ffn):
            assert residual is None or isinstance(residual, Residual)
        if type(attention.sublayer.positions) is not Positions:
            raise Unavailable(f"{type(attention.sublayer.positions).__name__} positions")
        result.attention_norm = self._norm(attention.norm)
        result.query_key_value = self._product(attention.sublayer.query_key_value)
        result.output = self._product(attention.sublayer.output)
        if cross is not None:
            result.cross_norm = self._norm(cross.norm)
            result.query = self._product(cross.sublayer.query)
            result.key_value = self._product(cross.sublayer.key_value)
            result.cross_output = self._product(cross.sublayer.output)
        _activation(ffn.sublayer)
        result.feed_forward_norm = self._norm(ffn.norm)
        result.inner, result.outer = self._product(ffn.sublayer.inner), self._product(ffn.sublayer.outer)
        return result

    def _norm(self, norm: nn.Module | None) -> build.Norm:
        if norm is None:
            return build.Norm()
        if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            raise Unavailable(f"a {type(norm).__name__}")
        gain = norm.weight.float()
        if isinstance(norm, nn.RMSNorm):
            return build.Norm(self._address(gain), None)
        bias = torch.zeros_like(gain) if norm.bias is None else norm.bias.float()
        return build.Norm(self._address(gain), self._address(bias))

    def _embedding(self, embedding: nn.Module) -> build.Embedding:
        if not isinstance(embedding, Embedding):
            raise Unavailable(f"a {type(embedding).__name__} in place of an embedding")
        _absolute(embedding)
        tokens: Any = embedding.tokens
        result = build.Embedding(factor=embedding.scale, tokens=len(tokens.weight))
        result.norm = self._norm(getattr(embedding, "norm", None))
        if isinstance(tokens, Int8Embedding):
            result.q, result.scale = self._address(tokens.weight), self._address(tokens.scale)
        else:
            result.table = self._address(tokens.weight.float())
        return result

    def _product(self, linear: nn.Module) -> build.Product:
        """A linear layer in panels: (N, K) -> (N / 32, K, 32); in int8 (N / 32, K / 4, 32, 4)."""
        if not isinstance(linear, nn.Linear | Int8Linear):
            raise Unavailable(f"a {type(linear).__name__} in place of a product")
        bias = None if linear.bias is None else linear.bias.float()
        result = build.Product(K=linear.in_features, N=linear.out_features, bias=self._address(bias))
        panels, groups = -(-linear.out_features // PANEL), -(-linear.in_features // 4)
        if isinstance(linear, nn.Linear):
            w = torch.zeros(panels * PANEL, linear.in_features)
            w[: linear.out_features] = linear.weight
            result.w = self._address(w.unflatten(0, (panels, PANEL)).transpose(1, 2))
        else:
            q = torch.zeros(panels * PANEL, groups * 4, dtype=torch.int8)
            q[: linear.out_features, : linear.in_features] = linear.weight
            result.q = self._address(q.view(panels, PANEL, groups, 4).transpose(1, 2))
            result.scale = self._address(linear.scale)
            result.sum = self._address(128 * linear.weight.sum(1, dtype=torch.int32))
        return result


def _absolute(embedding: Any) -> Positions:
    positions = embedding.positions
    if type(positions) not in (Positions, Sinusoidal, Learned):
        raise Unavailable(f"{type(positions).__name__} positions")
    return positions


def _activation(ffn: nn.Module) -> int:
    if isinstance(ffn, FeedForward):
        number = ACTIVATIONS.get(ffn.activation)
    else:
        number = GATES.get(ffn.gate) if isinstance(ffn, GatedFeedForward) else None
    if number is None:
        raise Unavailable(f"a {type(ffn).__name__} of this kind")
    return number


class NativeRows:
    """The rows of one search in the C engine (`regard.decoding.protocol.Rows`)."""

    def __init__(self, model: Native) -> None:
        self.model = model
        self.lengths: Int32 = np.zeros(0, np.int32)  # (R,) tokens of each row
        self.sentence: Int32 = np.zeros(0, np.int32)  # (R,) which one it reads
        self.history: Int32 = np.zeros((0, 32), np.int32)  # (R, room for tokens): its cells
        # Of each sentence, by its number; numbers are used again.
        self.memory: list[Floats | None] = []
        self.address: Ints = np.zeros(0, np.int64)
        self.source_length: Int32 = np.zeros(0, np.int32)
        self.list: list[Ints | None] = []  # the ids of its shortlist
        # The pool.
        self.free: Int32 = np.zeros(0, np.int32)
        self.owner: Int32 = np.zeros(0, np.int32)  # which sentence has a cell, or -1
        self.keys: Floats = np.zeros((model.layers, 0, model.key_width), np.float32)
        self.values: Floats = np.zeros((model.layers, 0, model.value_width), np.float32)
        self.space = np.zeros(0, np.uint8)
        self.features: Floats = np.zeros((0, model.d), np.float32)
        self.columns: Columns | None = None

    def start(self, sources: Sequence[Sequence[int]]) -> None:
        lengths = np.array([len(source) for source in sources], np.int32)
        self.model.reach(int(lengths.max(initial=0)))
        numbers = self._numbers(len(sources))
        for i, source in zip(numbers, sources, strict=True):
            block = np.empty(self.model.memory_size(len(source)), np.float32)
            self.memory[i], self.address[i], self.source_length[i] = block, block.ctypes.data, len(source)
            if self.model.shortlists is not None:
                self.list[i] = np.asarray(self.model.shortlists.of(source), np.int64)
        first = 0
        while first < len(sources):
            last, tokens = first + 1, int(lengths[first])
            while last < len(sources) and tokens + lengths[last] <= ENCODE:
                tokens += int(lengths[last])
                last += 1
            ids = np.concatenate([np.asarray(source, np.int32) for source in sources[first:last]])
            address = self.address[numbers[first:last]]
            space = self._space(self.model.library.room(self.model.c, tokens, int(lengths[first:last].max())))
            self.model.library.encode(
                self.model.c,
                last - first,
                ids.ctypes.data,
                lengths[first:last].ctypes.data,
                address.ctypes.data,
                space,
            )
            first = last
        R, new = len(self.lengths), len(sources)
        self.lengths = np.concatenate([self.lengths, np.zeros(new, np.int32)])
        self.sentence = np.concatenate([self.sentence, np.array(numbers, np.int32)])
        history = np.zeros((R + new, self.history.shape[1]), np.int32)
        history[:R] = self.history
        self.history, self.columns = history, None

    def step(self, tokens: Ints) -> Floats:
        features = self._advance(tokens)
        out = np.empty((len(tokens), self.model.vocabulary), np.float32)
        if self.model.shortlists is None:
            self._logits(self.model.c.logits, features, out)
        else:
            columns = self._columns()
            some = np.empty((len(tokens), len(columns.ids)), np.float32)
            self._logits(columns.product, features, some)
            out.fill(-np.inf)
            out[:, columns.ids] = some + columns.bias[columns.index[self.sentence]]
        if np.isnan(out).any():
            raise ValueError(DAMAGED)
        return out

    def best(self, tokens: Ints, n: int, *, normalise: bool = True) -> Best:
        features = self._advance(tokens)
        R, product, bias, columns = len(tokens), self.model.c.logits, None, None
        if self.model.shortlists is not None:
            columns = self._columns()
            product = columns.product
            at = columns.bias.ctypes.data + columns.index[self.sentence] * columns.bias.strides[0]
            bias = at.astype(np.int64)
        n = min(n, product.N)
        scores, chosen = np.empty((R, n), np.float32), np.empty((R, n), np.int32)
        block = min(R, SELECT)
        space = self._space(4 * block * (product.N + 16) + block * (product.K + 8) + 128)
        fine = self.model.library.best(
            product,
            R,
            features.ctypes.data,
            n,
            normalise,
            None if bias is None else bias.ctypes.data,
            scores.ctypes.data,
            chosen.ctypes.data,
            block,
            space,
        )
        if not fine:
            raise ValueError(DAMAGED)
        return Best(scores, chosen.astype(np.int64) if columns is None else columns.ids[chosen])

    def reorder(self, rows: Ints) -> None:
        before = self.sentence
        self.lengths, self.sentence, self.history = self.lengths[rows], self.sentence[rows], self.history[rows]
        there = np.zeros(len(self.memory), bool)
        there[before] = True
        there[self.sentence] = False
        if there.any():  # who has left
            for i in there.nonzero()[0]:
                self.memory[i] = self.list[i] = None
            cells = there[self.owner].nonzero()[0] if len(self.owner) else self.owner
            cells = cells[self.owner[cells] >= 0]
            self.owner[cells] = -1
            self.free = np.concatenate([self.free, cells.astype(np.int32)])
            self.columns = None

    def _advance(self, tokens: Ints) -> Floats:
        """Append a token to each row -> (R, d), what the last product reads."""
        R = len(tokens)
        if R != len(self.lengths):
            raise ValueError(f"{R} tokens for {len(self.lengths)} rows: give one to each")
        if R and not 0 <= tokens.min() <= tokens.max() < self.model.c.target.tokens:
            raise ValueError(f"token ids lie in 0..{self.model.c.target.tokens - 1}")
        if len(self.free) < R:
            self._grow(R)
        cells, self.free = self.free[len(self.free) - R :], self.free[: len(self.free) - R]
        longest = int(self.lengths.max(initial=0)) + 1
        self.model.reach(longest)
        if longest > self.history.shape[1]:
            self.history = np.concatenate([self.history, np.zeros_like(self.history)], 1)
        self.history[np.arange(R), self.lengths] = cells
        self.lengths += 1
        self.owner[cells] = self.sentence
        sources = self.source_length[self.sentence]
        if len(self.features) < R:
            self.features = np.empty((2 * R, self.model.d), np.float32)
        tokens = tokens.astype(np.int32)
        address = self.address[self.sentence]
        widest = max(longest, int(sources.max(initial=0)))
        space = self._space(self.model.library.room(self.model.c, R, widest))
        self.model.library.decode(
            self.model.c,
            R,
            tokens.ctypes.data,
            self.lengths.ctypes.data,
            self.history.ctypes.data,
            self.history.shape[1],
            self.keys.ctypes.data,
            self.values.ctypes.data,
            self.keys.shape[1],
            address.ctypes.data,
            sources.ctypes.data,
            widest,
            self.features.ctypes.data,
            space,
        )
        return self.features[:R]

    def _numbers(self, count: int) -> list[int]:
        """Numbers for so many new sentences."""
        vacant = [i for i, block in enumerate(self.memory) if block is None][:count]
        more = count - len(vacant)
        vacant += range(len(self.memory), len(self.memory) + more)
        self.memory += [None] * more
        self.list += [None] * more
        self.address = np.concatenate([self.address, np.zeros(more, np.int64)])
        self.source_length = np.concatenate([self.source_length, np.zeros(more, np.int32)])
        return vacant

    def _grow(self, cells: int) -> None:
        """Double the pool, or make it larger by so many cells if that is more."""
        old = self.keys.shape[1]
        more = max(cells, old, 256)
        for name in ("keys", "values"):
            pool = getattr(self, name)
            larger = np.empty((pool.shape[0], old + more, pool.shape[2]), np.float32)
            larger[:, :old] = pool
            setattr(self, name, larger)
        self.free = np.concatenate([self.free, np.arange(old, old + more, dtype=np.int32)])
        self.owner = np.concatenate([self.owner, np.full(more, -1, np.int32)])

    def _space(self, size: int) -> int:
        """The address of so many bytes to work in, at a multiple of 64."""
        if len(self.space) < size + 64:
            self.space = np.empty(size + size // 2 + 64, np.uint8)
        return -(-self.space.ctypes.data // 64) * 64

    def _logits(self, product: build.Product, features: Floats, out: Floats) -> None:
        R = len(features)
        space = self._space(R * (product.K + 8) + 64)
        self.model.library.logits(product, R, features.ctypes.data, out.ctypes.data, space)

    def _columns(self) -> "Columns":
        """The columns that the sentences at work may use."""
        if self.columns is None:
            here = np.unique(self.sentence)
            lists = [ids for i in here if (ids := self.list[i]) is not None]
            self.columns = Columns(self.model, here, lists, len(self.memory))
        return self.columns


class Columns:
    """The last product, narrowed to the shortlists of some sentences."""

    def __init__(self, model: Native, sentences: Ints, lists: list[Ints], count: int) -> None:
        self.ids = np.unique(np.concatenate(lists))  # (n,)
        whole, n = model.c.logits, len(self.ids)
        panels, groups = -(-n // PANEL), -(-whole.K // 4)
        self.w = np.zeros((panels, whole.K, PANEL) if whole.w else 0, np.float32)
        self.q = np.zeros(0 if whole.w else (panels, groups, PANEL, 4), np.int8)
        self.scale, self.sum = np.zeros(n, np.float32), np.zeros(n, np.int32)
        self.offset = np.zeros(n if whole.bias else 0, np.float32)
        parts = (self.w, self.q, self.scale, self.sum, self.offset)
        ids = self.ids.astype(np.int32)
        model.library.columns(whole, n, ids.ctypes.data, *(part.ctypes.data for part in parts))
        w, q, scale, total, offset = (part.ctypes.data if part.size else None for part in parts)
        self.product = build.Product(whole.K, n, w, q, scale, total, offset)
        # What is not on a sentence's own list is not for it, though it is computed: its output depends on no other.
        self.bias = np.full((len(sentences), n), -np.inf, np.float32)
        for row, own in zip(self.bias, lists, strict=True):
            row[np.searchsorted(self.ids, own)] = 0.0
        self.index = np.zeros(count, np.int64)  # which row of `bias` a sentence has
        self.index[sentences] = np.arange(len(sentences))
