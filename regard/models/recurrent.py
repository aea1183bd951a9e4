"""Recurrent encoder-decoders with attention: what the Transformer replaced, and the linear kind that rivals it.

Letters: B sentences, R rows of the target (K for each sentence), S source length, T target length, d width, V words.

The encoder reads the source in both directions, half of the width each. A decoder of cells (rnn, gru, lstm) attends in
one of two ways. Bahdanau et al. (2015) ask with the state before the step, and the context enters the cell:

    c_t = attend(s_(t-1)),  s_t = cell([e_t; c_t], s_(t-1))

Luong et al. (2015) ask with the state after it, and with input feeding the last result enters the cell:

    s_t = cell([e_t; h̃_(t-1)], s_(t-1)),  c_t = attend(s_t)

In both h̃_t = tanh(W [c_t; s_t]) is what the output layer reads. Either way a step needs the one before, so the target
is read step by step; only Luong's without input feeding runs whole, with PyTorch's fused kernels. When somebody watches
the attention of a decoder that runs by step, it sees each step, (R, H, 1, S), where it may edit; and at last, once
more, all queries of the target at once, (R, H, T, S): so what `record` keeps is the whole map.

The linear cell (`regard.core.recurrence`) stands in the blocks of a Transformer, in place of self-attention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.blocks import Stack
from regard.core.dropout import Dropout
from regard.core.generation import EncoderDecoder
from regard.core.layers import FeedForward, Residual, linear
from regard.core.masks import padding
from regard.core.mixers import AttentionConfig
from regard.core.outputs import logits
from regard.core.positions import Positions
from regard.core.recurrence import LinearRecurrence, RecurrentPast, reverse
from regard.core.scores import SCALED
from regard.core.stems import Embedding, words
from regard.models.family import Config, Family

State = tuple[Tensor, ...]  # of a cell: h, and of an LSTM also c, (R, d) each
CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
STEPS: dict[str, Callable[..., Any]] = {"rnn": torch.rnn_tanh_cell, "gru": torch.gru_cell, "lstm": torch.lstm_cell}


@dataclass(frozen=True)
class RecurrentConfig(Config):
    """Everything that makes a recurrent encoder-decoder; the defaults are in the manner of Luong et al. (2015)."""

    vocabulary: int
    source_vocabulary: int | None = None  # the same, if left out
    cell: str = "lstm"  # rnn, gru, lstm, linear
    encoder_layers: int = 2
    decoder_layers: int = 2
    d_model: int = 512
    d_ff: int | None = None  # of the linear cell's blocks: 2 d_model, if left out; the others have no feed-forward
    bidirectional: bool = True  # the encoder, half of the width in each direction
    attention: str = "luong"  # or bahdanau: ask after the step, or before it
    input_feeding: bool = True  # what attention gave enters the cell; the linear cell reads all words at once, without
    scale: float | None = None  # of the scores: 1/√d_k, but 1 of one head that reads the states themselves, if left out
    score: str | None = None  # general (luong), additive (bahdanau) or dot (linear), if left out
    normaliser: str = "softmax"
    heads: int = 1  # one head reads the encoder's states themselves; several have W_Q, W_K, W_V
    max_length: int = 1024  # of a source whose score is location
    tie: str = "all"  # which embeddings are one matrix: all, target (with the output), none
    dropout: float = 0.2  # of the embeddings, between layers, and of what the output layer reads
    pad: int = 0

    def __post_init__(self) -> None:
        self.check(cell=(*CELLS, "linear"), attention=("luong", "bahdanau"))
        self.cross_attention  # noqa: B018  checks heads, widths, score and normaliser
        if self.bidirectional and self.d_model % 2:
            raise ValueError(f"d_model = {self.d_model} does not halve into two directions: make it even")
        if self.cell == "linear" and (self.input_feeding or self.attention != "luong"):
            raise ValueError(
                "cell = 'linear' reads all words at once, so no result of attention can enter it: set "
                "input_feeding = false and attention = luong, or choose another cell"
            )
        if self.cell != "linear" and self.d_ff is not None:
            raise ValueError(f"d_ff = {self.d_ff}: only cell = 'linear' has a feed-forward network; leave d_ff out")
        if self.attention == "bahdanau" and not self.input_feeding:
            raise ValueError(
                "attention = 'bahdanau' feeds its context to the cell: set input_feeding = true, or attention = luong"
            )

    @property
    def longest(self) -> int | None:
        """The most positions that it can read if it has a parameter for each of them; None: it reads any number."""
        return self.max_length if self.score == "location" else None

    @property
    def cross_attention(self) -> AttentionConfig:
        """The part that attention to the source needs."""
        if self.cell == "linear":
            return AttentionConfig(
                self.d_model,
                self.heads,
                scale=self.scale,
                score=self.score or "dot",
                normaliser=self.normaliser,
                max_length=self.max_length,
            )
        score = self.score or {"luong": "general", "bahdanau": "additive"}[self.attention]
        alone = self.heads == 1  # as in both papers: scores of the states as they are, and not divided by √d_k
        return AttentionConfig(
            self.d_model,
            self.heads,
            output=False,  # W [c; s] comes after it
            scale=1.0 if self.scale is None and alone and score in SCALED else self.scale,
            score=score,
            normaliser=self.normaliser,
            project=not alone,
            max_length=self.max_length,
        )

    @classmethod
    def rnn(cls, vocabulary: int, **changes: Any) -> "RecurrentConfig":
        """2+2 layers of Elman's (1990) units, with Luong's attention."""
        return cls(vocabulary, cell="rnn", d_model=320).but(**changes)

    @classmethod
    def gru(cls, vocabulary: int, **changes: Any) -> "RecurrentConfig":
        """1+1 layers of gated units with additive attention before the step, as in Bahdanau et al. (2015)."""
        return cls(vocabulary, cell="gru", encoder_layers=1, decoder_layers=1, d_model=256, attention="bahdanau").but(
            **changes
        )

    @classmethod
    def lstm(cls, vocabulary: int, **changes: Any) -> "RecurrentConfig":
        """2+2 layers of LSTM (Hochreiter & Schmidhuber, 1997) with Luong's attention and input feeding."""
        return cls(vocabulary, d_model=192).but(**changes)

    @classmethod
    def linear_rnn(cls, vocabulary: int, **changes: Any) -> "RecurrentConfig":
        """4+4 blocks of width 128: the Transformer's `tiny` with recurrence in place of self-attention."""
        return cls(
            vocabulary,
            cell="linear",
            encoder_layers=4,
            decoder_layers=4,
            d_model=128,
            heads=4,
            input_feeding=False,
            dropout=0.1,
        ).but(**changes)


class RecurrentMemory(NamedTuple):
    """What the encoder hands to the decoder."""

    states: Tensor  # (B, S, d)
    mask: Tensor  # (B, 1, 1, S): which states may be attended to
    lengths: Tensor  # (B,)

    def reorder(self, index: Tensor) -> "RecurrentMemory":
        """The rows `index` of the batch, in that order."""
        return RecurrentMemory(*(part.index_select(0, index) for part in self))


class RecurrentCache(list[RecurrentPast]):
    """What a decoder remembers, a `RecurrentPast` for each part of it: of a size that does not grow with the target."""

    def reorder(self, rows: Tensor | None, memory: Tensor | None) -> None:
        """Keep these rows (n,) of what was decoded, and these of the memory, in that order; None leaves them alone."""
        for past in self:
            past.reorder(rows, memory)


class Recurrent(EncoderDecoder, nn.Module):
    """An encoder-decoder of recurrent layers that attends to its source.

    >>> model = Recurrent(RecurrentConfig.lstm(vocabulary=100))
    >>> source, target = torch.randint(3, 100, (2, 7)), torch.randint(3, 100, (2, 5))
    >>> model(source, target).shape
    torch.Size([2, 5, 100])
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = c = config
        target = words(c.vocabulary, c.d_model)
        source = target if c.tie == "all" else words(c.source_vocabulary or c.vocabulary, c.d_model)
        self.source_embedding = Embedding(source, Positions(), dropout=c.dropout)  # the order is in the recurrence
        self.target_embedding = Embedding(target, Positions(), dropout=c.dropout)
        self.encoder: nn.Module
        self.decoder: nn.Module
        if c.cell == "linear":
            self.encoder = Stack((Block(c, attends=False) for _ in range(c.encoder_layers)), nn.LayerNorm(c.d_model))
            self.decoder = Stack((Block(c, attends=True) for _ in range(c.decoder_layers)), nn.LayerNorm(c.d_model))
        else:
            self.encoder = Stack(CellEncoderLayer(c) for _ in range(c.encoder_layers))
            self.decoder = CellDecoder(c)
        self.output = logits(target, tied=c.tie != "none")

    def encode(self, source: Tensor) -> RecurrentMemory:
        """source (B, S), padded with `pad` -> what the decoder attends to."""
        keep = source != self.config.pad
        mask, lengths = padding(keep).dense(1, keep.shape[1], keep.device), keep.sum(1)
        x = self.source_embedding(source)
        return RecurrentMemory(self.encoder(x, lengths=lengths if self.config.bidirectional else None), mask, lengths)

    def new_cache(self) -> RecurrentCache:
        """An empty cache for `decode`; the caller holds it."""
        attending = self.config.cell != "linear"  # a place for the decoder's one attention; a block has its own
        return RecurrentCache(RecurrentPast() for _ in range(self.config.decoder_layers + attending))

    def continued(self, target: Tensor, memory: RecurrentMemory, cache: RecurrentCache | None = None) -> Tensor:
        """target (R, T) -> what the output layer reads, (R, T, d)."""
        # Right-padding needs no mask here: what comes after a token cannot reach back.
        if not len(memory.mask) or len(target) % len(memory.mask):
            raise ValueError(
                f"target and source do not fit together: {len(target)} rows read {len(memory.mask)}; give as many, or "
                "a multiple"
            )
        return self.decoder(self.target_embedding(target), memory, cache=cache)


class Cell(nn.Module):
    """One recurrent layer: over a whole sequence by PyTorch's fused kernels, or one step at a time."""

    def __init__(self, kind: str, d_in: int, d_out: int) -> None:
        super().__init__()
        self.run = CELLS[kind](d_in, d_out, batch_first=True)
        self.step = STEPS[kind]
        for name, weight in self.run.named_parameters():
            for part in weight.split(d_out):  # of each gate
                if name == "weight_hh_l0":
                    nn.init.orthogonal_(part)  # what circulates neither grows nor vanishes (Saxe et al., 2014)
                elif name == "weight_ih_l0":
                    nn.init.xavier_uniform_(part)
                else:
                    nn.init.zeros_(part)
        if kind == "lstm":
            forget = self.run.get_parameter("bias_ih_l0")[d_out : 2 * d_out]
            nn.init.ones_(forget)  # that is, remember at first (Gers et al., 2000)

    def forward(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """x (R, T, d_in), or of one step (R, d_in), from a state, or from zeros -> h likewise, and the new state."""
        pair = isinstance(self.run, nn.LSTM)
        if x.dim() == 2:
            new = self.step(x, state if pair else state[0], *self.run.all_weights[0])
            return (new[0], new) if pair else (new, (new,))
        parts = tuple(part[None] for part in state)  # (1, R, d_out) each: PyTorch counts layers
        y, last = self.run(x, None if not state else parts if pair else parts[0])
        return y, tuple(part[0] for part in (last if pair else (last,)))


class CellEncoderLayer(nn.Module):
    """A recurrent layer over the source, in one direction or in both."""

    def __init__(self, c: RecurrentConfig) -> None:
        super().__init__()
        width = c.d_model // 2 if c.bidirectional else c.d_model
        self.onward = Cell(c.cell, c.d_model, width)
        self.back = Cell(c.cell, c.d_model, width) if c.bidirectional else None
        self.dropout = Dropout(c.dropout)

    def forward(self, x: Tensor, *, lengths: Tensor | None) -> Tensor:
        """x (B, S, d), lengths (B,) to read from the end -> (B, S, d). Padding comes last in either direction."""
        y, _ = self.onward(x)
        if self.back is not None and lengths is not None:
            z, _ = self.back(reverse(x, lengths))
            y = torch.cat([y, reverse(z, lengths)], -1)
        return self.dropout(y)


class CellDecoder(nn.Module):
    """A stack of cells and one attention; the docstring of this file has the equations."""

    def __init__(self, c: RecurrentConfig) -> None:
        super().__init__()
        self.early, self.feeding, self.both_ways = c.attention == "bahdanau", c.input_feeding, c.bidirectional
        widths = [c.d_model * (2 if c.input_feeding else 1)] + [c.d_model] * (c.decoder_layers - 1)
        self.layers = nn.ModuleList(Cell(c.cell, width, c.d_model) for width in widths)
        self.parts = 2 if c.cell == "lstm" else 1  # of a state
        self.start = linear(c.d_model, *[c.d_model] * (self.parts * c.decoder_layers))
        self.cross_attention = MultiHeadAttention(c.cross_attention, d_memory=c.d_model)
        self.readout = linear(2 * c.d_model, c.d_model, bias=False)
        self.dropout = Dropout(c.dropout)

    def forward(self, x: Tensor, memory: RecurrentMemory, *, cache: RecurrentCache | None) -> Tensor:
        """x (R, T, d) -> h̃ (R, T, d). The cache has a place for each cell, and the last for attention and its h̃."""
        *cells, attending = [RecurrentPast() for _ in range(len(self.layers) + 1)] if cache is None else cache
        if not attending.state:
            self._begin(memory, len(x), cells, attending)
        read = self._by_step if self.feeding else self._whole
        return self.dropout(read(x, memory, cells, attending))

    def _begin(self, memory: RecurrentMemory, rows: int, cells: list[RecurrentPast], attending: RecurrentPast) -> None:
        """States from where the encoder ended in each direction, tanh(W h) (Bahdanau et al., 2015); h̃ from zeros."""
        B, _, d = memory.states.shape
        end = (memory.lengths - 1).clamp(min=0)[:, None, None].expand(B, 1, d)
        ended = memory.states.gather(1, end)[:, 0]  # (B, d)
        if self.both_ways:
            ended = torch.cat([ended[:, : d // 2], memory.states[:, 0, d // 2 :]], -1)
        begun = self.start(ended).tanh().repeat_interleave(rows // B, 0)  # (R, layers · parts · d)
        for own, state in zip(cells, begun.chunk(len(cells), -1), strict=True):
            own.state = state.chunk(self.parts, -1)  # (R, d) each
        attending.state = (begun.new_zeros(rows, d),)

    def _whole(
        self, x: Tensor, memory: RecurrentMemory, cells: list[RecurrentPast], attending: RecurrentPast
    ) -> Tensor:
        """All positions at once, layer by layer."""
        for i, (cell, own) in enumerate(zip(self.layers, cells, strict=True)):
            x, own.state = cell(self.dropout(x) if i else x, own.state)
        return self._mixed(self._attend(x, memory, attending), x)

    def _by_step(
        self, x: Tensor, memory: RecurrentMemory, cells: list[RecurrentPast], attending: RecurrentPast
    ) -> Tensor:
        """Position by position, through all layers and attention."""
        queries, results = [], []
        for word in x.unbind(1):  # (R, d)
            query = cells[-1].state[0]
            if self.early:
                context = self._attend(query[:, None], memory, attending)[:, 0]
            h = torch.cat([word, context if self.early else attending.state[0]], -1)  # (R, 2d)
            for i, (cell, own) in enumerate(zip(self.layers, cells, strict=True)):
                h, own.state = cell(self.dropout(h) if i else h, own.state)
            if not self.early:
                query, context = h, self._attend(h[:, None], memory, attending)[:, 0]
            attending.state = (self._mixed(context, h),)
            queries.append(query)
            results.append(attending.state[0])
        if self.cross_attention.watched and len(queries) > 1:  # what was seen in parts, seen whole
            self._attend(torch.stack(queries, 1), memory, RecurrentPast())
        return torch.stack(results, 1)

    def _attend(self, queries: Tensor, memory: RecurrentMemory, attending: RecurrentPast) -> Tensor:
        queries = queries.to(memory.states.dtype)  # under autocast some kernels give fp32, and some bf16
        return self.cross_attention(queries, memory.states, mask=memory.mask, cache=attending.cross_attention)

    def _mixed(self, context: Tensor, h: Tensor) -> Tensor:
        return self.readout(torch.cat([context, h], -1)).tanh()  # h̃


class Block(nn.Module):
    """A layer of a Transformer (pre-norm) with a linear recurrence in place of self-attention."""

    def __init__(self, c: RecurrentConfig, *, attends: bool) -> None:
        super().__init__()

        def residual(sublayer: nn.Module) -> Residual:
            return Residual(sublayer, nn.LayerNorm(c.d_model), "pre", dropout=c.dropout)

        self.recurrence = residual(LinearRecurrence(c.d_model))
        self.cross_attention = residual(MultiHeadAttention(c.cross_attention, d_memory=c.d_model)) if attends else None
        self.feed_forward = residual(FeedForward(c.d_model, c.d_ff or 2 * c.d_model))

    def forward(
        self,
        x: Tensor,
        memory: RecurrentMemory | None = None,
        *,
        lengths: Tensor | None = None,
        cache: RecurrentPast | None = None,
    ) -> Tensor:
        """x (R, T, d) -> (R, T, d)."""
        x = self.recurrence(x, lengths=lengths, cache=cache)
        if self.cross_attention is not None and memory is not None:
            x = self.cross_attention(x, memory.states, mask=memory.mask, cache=cache and cache.cross_attention)
        return self.feed_forward(x)


FAMILY = Family(
    RecurrentConfig,
    Recurrent,
    {
        "rnn": RecurrentConfig.rnn,
        "gru": RecurrentConfig.gru,
        "lstm": RecurrentConfig.lstm,
        "linear-rnn": RecurrentConfig.linear_rnn,
    },
)
