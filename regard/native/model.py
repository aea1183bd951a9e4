"""A PyTorch model handed to the C engine, a Transformer or one half of it: its weights, laid out as it reads them.

Letters: V vocabulary, S source length, N outputs and K inputs of a product.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import c_int32
from threading import Lock
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.core.added import merged
from regard.core.attention import MultiHeadAttention
from regard.core.blocks import DecoderLayer, EncoderLayer, Stack
from regard.core.generation import DecoderOnly, room_after, room_beside
from regard.core.layers import Residual
from regard.core.positions import Learned, Positions, Rotary, Sinusoidal, sinusoid
from regard.core.quantised import Int8Embedding, dtype_of
from regard.core.stems import Embedding, Frames, Patches
from regard.decoding.protocol import Floats
from regard.native import build
from regard.native.adapters import NativeAdapter
from regard.native.build import UnsupportedError
from regard.native.layout import Layout, activation_of, whole
from regard.native.rows import Desk, Listened, NativeRows


class Shortlists(Protocol):
    """Which target tokens a sentence may use."""

    def of(self, source: Sequence[int]) -> NDArray[np.integer[Any]]:
        """Their ids, sorted."""


class Laid(Layout):
    """The weights of a model as the engine reads them. `UnavailableError` says why it cannot."""

    adapter: NativeAdapter | None = None  # what is added to them
    ears: build.Ears | None = None  # of a model that hears

    def __init__(self, model: nn.Module, source: str | None, target: str | None, threads: int) -> None:
        """Its embeddings have these names, with an encoder beside the one, and a decoder beside the other."""
        super().__init__(0)
        self.library, self.threads = build.library(), threads
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
        stem = getattr(model, source) if source else None
        self.patches = stem if isinstance(stem, Patches) else None  # what makes vectors of pictures
        with torch.no_grad():
            self.c = self._model(model, {side: getattr(model, name) for side, name in parts.items()})
        self._reach, self._growing = c_int32(0), Lock()  # of the position tables: shared by `with_threads`, as they are
        self._desks: dict[int, list[Desk]] = {}  # that nobody works at, by their threads
        self.reach(256)

    def seen(self, pictures: Iterable[Any]) -> list[Floats]:
        """The vectors (T, d) of each picture (C, H, W): of each by one thread, so that none minds its company."""
        patches = self.patches
        assert patches is not None
        kind = dtype_of(patches)

        @torch.inference_mode()
        def one(picture: Any) -> Floats:
            return patches(torch.stack([*picture])[None].to(kind))[0].float().contiguous().numpy()

        with ThreadPoolExecutor(self.threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            return list(pool.map(one, pictures))

    @contextmanager
    def desk(self) -> Iterator[Desk]:
        """One to work at, for who has it alone."""
        kept = self._desks.setdefault(self.threads, [])
        try:
            desk = kept.pop()
        except IndexError:
            desk = Desk(self.library, self.threads)
        yield desk
        kept.append(desk)

    def reach(self, length: int) -> None:
        """Have position tables at least so long."""
        with self._growing:  # a search that wants less must not put a shorter one in the place of a longer one
            if length <= self._reach.value:
                return
            length = max(length, 2 * self._reach.value)
            if self.turning is not None:
                d = self.turning.d_k
                still = (torch.arange(d) < d // 2).float().expand(1, 1, length, d)  # what turns into cosines and sines
                self.c.turns = self.place(self.turning.rotate(still)[0, 0], length, d)
            for side, positions in self.positions.items():
                embedding = getattr(self.c, side)
                if isinstance(positions, Sinusoidal):  # the old table stays: another thread may be reading it
                    table = sinusoid(torch.arange(length), embedding.width).float()
                elif isinstance(positions, Learned):
                    table = positions.table.float()
                else:
                    continue
                embedding.positions = self.place(table, len(table), embedding.width)
            self._reach.value = length

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
        place = _all("normalisations", "place", (m.place for m in modules if isinstance(m, Residual)))
        d_k, d_v, scale = _all("attentions", "shape", ((m.d_k, m.d_v, m.config.scale) for m in attentions))
        networks = [layer.feed_forward.sublayer for layer in layers]
        self.d, self.turning = attentions[0].config.d_model, self._turning(attentions)
        embeddings = {side: parts[side] for side in ("target", "source") if side in parts}
        if getattr(model.config, "lookahead", None) is not None:
            raise UnsupportedError("its encoder looks only so far ahead")
        if isinstance(embeddings.get("source"), Frames):
            self.ears = self._ears(embeddings.pop("source"))
        self.positions = {side: _absolute(embedding) for side, embedding in embeddings.items()}
        tables = [len(p.table) for p in self.positions.values() if isinstance(p, Learned)]
        self.longest = min(tables) if tables else None
        return build.Model(
            d=self.d,
            heads=max(m.heads for m in attentions),
            kv_heads=max(m.kv_heads for m in attentions),
            d_k=whole(d_k),
            d_v=whole(d_v),
            d_ff=max(f.outer.in_features for f in networks),
            encoder_layers=len(encoder.layers),
            decoder_layers=len(decoder.layers),
            pre=place == "pre",
            gated=any(activation_of(f)[1] for f in networks),
            causal=getattr(model, "causal", False),
            turned=0 if self.turning is None else self.turning.d_k,
            score_scale=d_k**-0.5 if scale is None else scale,
            encoder=self.stack(encoder),
            decoder=self.stack(decoder),
            encoder_norm=self.norm(encoder.norm, self.d),
            decoder_norm=self.norm(decoder.norm, self.d),
            **{side: self._embedding(side, embedding, model.output) for side, embedding in embeddings.items()},
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

    def _embedding(self, side: str, embedding: Any, output: Any) -> build.Embedding:
        if not isinstance(embedding, Embedding):  # its vectors come from PyTorch
            return build.Embedding(width=self.d)
        tokens, segments, widen = (getattr(embedding, name) for name in ("tokens", "segments", "widen"))
        if side == "target" and (segments or widen) is not None:
            raise UnsupportedError("a decoder whose embedding has segments, or another width")
        V, width = len(tokens.weight), self.d if widen is None else widen.in_features
        result = build.Embedding(factor=embedding.scale, tokens=V, width=width)
        result.norm = self.norm(embedding.norm, width)
        if side == "target" and tokens.weight is getattr(output, "weight", None):
            pass  # tied: it is read where it is laid out as a product, and lies there once
        elif isinstance(tokens, Int8Embedding):
            result.q, result.scale = self.place(tokens.weight, V, width), self.place(tokens.scale, V)
        elif tokens.weight.dtype == torch.bfloat16:
            result.h = self.place(tokens.weight.view(torch.int16), V, width)
        else:
            result.table = self.place(tokens.weight.float(), V, width)
        if segments is not None:
            table = segments(torch.arange(segments.num_embeddings, device=segments.weight.device))
            result.segments = self.place(table.float(), segments.num_embeddings, width)
        if widen is not None:
            result.widen = self.product(widen, self.d, width)
        return result

    def _ears(self, stem: Frames) -> build.Ears:
        """Two convolutions: products of three frames, or vectors, that lie side by side."""
        flat = [Flat(stem.first), Flat(stem.second)]
        products = [self.product(each, self.d, each.in_features) for each in flat]
        places = self.place(stem.positions.table.float(), len(stem.positions.table), self.d)
        self.bands, self.frames = int(stem.first.in_channels), 2 * len(stem.positions.table)
        return build.Ears(*products, places)

    def adapted(self, model: nn.Module, base: nn.Module) -> Self:
        """The same weights, to which is added what LoRA has added to their model, `base`: the other shares its tensors.

        `UnsupportedError` says what else there is.
        """
        other = copy.copy(self)
        other.adapter = NativeAdapter(model, base, self.d)
        return other


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
        self.c.logits = self.product(output, getattr(output, "out_features", 0), self.d)
        self.shortlists = shortlists
        self.ragged = shortlists is None  # each start lays out the columns of the last product anew
        self.vocabulary = int(self.c.logits.N)
        self.tokens = int((self.c.target if self.alone or self.ears else self.c.source).tokens)  # a source may have
        self.layers = int(self.c.decoder_layers)
        self.key_width, self.value_width = self.c.kv_heads * self.c.d_k, self.c.kv_heads * self.c.d_v

    def adapted(self, model: nn.Module, base: nn.Module) -> Self:
        other = super().adapted(model, base)
        if other.adapter is not None and other.adapter.head is not None:
            raise UnsupportedError("it has an output layer of its own")
        return other

    def rows(self) -> "NativeRows":
        return NativeRows(self)

    def room(self, source: Sequence[int]) -> int | None:
        if self.patches is not None:
            return self.longest
        return (room_after if self.alone or self.ears else room_beside)(source, self.longest)

    def hear(self, frames: NDArray[np.float32]) -> Listened:
        """What is in frames of sound, (n, bands), to be searched as a source that was read."""
        if self.ears is None:
            raise ValueError("the model reads words, not sound")
        n = len(frames)
        if frames.shape != (n, self.bands) or not 1 <= n <= self.frames or frames.dtype != np.float32:
            raise ValueError(
                f"sound is numbers (1 to {self.frames} frames, {self.bands}), got {frames.dtype} of the shape "
                f"{frames.shape}"
            )
        S, given = (n + 1) // 2, np.pad(frames, ((1, 1), (0, 0)))
        states, block = np.empty((S, self.d), np.float32), np.empty(self.memory_size(S), np.float32)
        with self.desk() as desk:
            space = desk.space(self.library.room(self.c, S, S, self.threads, 0) + 4 * (n + 2) * self.d)
            self.library.hear(self.c, self.ears, n, given, block, states, desk.team, space)
        return Listened(block, states)

    def with_threads(self, threads: int) -> "Native":
        """The same weights, shared by another number of threads."""
        other = copy.copy(self)
        other.threads = threads
        return other

    def memory_size(self, S: int) -> int:
        """Numbers in the block of a sentence of S tokens; a decoder alone has none."""
        return 0 if self.alone else int(self.library.memory_size(self.c, S))


class Flat(nn.Linear):
    """A convolution as a product of what it sees at once, side by side."""

    def __init__(self, convolution: nn.Conv1d) -> None:
        nn.Module.__init__(self)  # draws nothing, and asks for no memory
        self.weight = nn.Parameter(convolution.weight.transpose(1, 2).flatten(1))
        self.bias = convolution.bias  # type: ignore[assignment]
        self.out_features, self.in_features = self.weight.shape


def _all(what: str, how: str, values: Iterable[Any]) -> Any:
    """What they all have."""
    found = {*values}
    if len(found) != 1:
        raise UnsupportedError(f"its {what} differ in {how}" if found else f"it has no {what}")
    return found.pop()


def _absolute(embedding: nn.Module) -> Positions:
    if not isinstance(embedding, Embedding | Patches):
        raise UnsupportedError(f"a {type(embedding).__name__} in place of an embedding")
    positions: Any = embedding.positions if isinstance(embedding, Embedding) else Positions()
    if type(positions) not in (Positions, Sinusoidal, Learned):
        raise UnsupportedError(f"{type(positions).__name__} positions")
    return positions
