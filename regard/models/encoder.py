"""An encoder alone, which reads a text as a whole, both ways: BERT and its kin are configs of it.

Letters: B batch, T length, V vocabulary, d_model width of the model.

BERT (Devlin et al., 2019) is the left half of Figure 1 with learned positions, a vector for the sentence of a pair that
a token is in, and GELU. RoBERTa (Liu et al., 2019) has no such sentences; DistilBERT (Sanh et al., 2019) half the
layers; ALBERT (Lan et al., 2020) one layer, gone through again and again, and narrow vectors of words.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from regard.core import blocks
from regard.core.masks import padding
from regard.core.outputs import HEADS, POOLED, HeadConfig, head
from regard.core.positions import absolute_positions
from regard.core.stems import Embedding
from regard.models.family import Config, Family, StackSizes, draw_first


class Encoder(nn.Module):
    """A text in, something about it out: what, its head says.

    >>> import torch
    >>> model = Encoder(bert_tiny(vocabulary=100), HeadConfig("classes", 3))
    >>> model(torch.randint(3, 100, (2, 7))).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: "EncoderConfig", head_config: HeadConfig | None = None) -> None:
        super().__init__()
        self.config, self.head = config, head_config or HeadConfig(hidden=config.feed_forward)
        c = config
        width = c.d_embedding or c.d_model
        self.stem = Embedding(
            nn.Embedding(c.vocabulary, width),
            absolute_positions(c.positions, d_model=width, maximum=c.max_length),
            segments=nn.Embedding(c.segments, width) if c.segments else None,
            norm=blocks.make_norm(c, width) if c.embedding_norm else None,
            widen=nn.Linear(width, c.d_model) if c.d_embedding else None,
            dropout=c.dropout,
            scale=1.0,
        )
        self.encoder = blocks.encoder(c, 1 if c.shared else c.layers)
        self.output = head(self.head, c.d_model, self.stem.tokens, lambda width: blocks.make_norm(c, width))
        self.apply(draw_first)
        if c.shared:
            self.encoder.repeat(c.layers)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        """tokens (B, T), of which those to `keep` count; segments (B, T): which sentence of a pair each is in -> what
        the head makes of them."""
        keep = tokens != self.config.pad if keep is None else keep
        x = self.features(tokens, segments, keep)
        return self.output(x, keep=keep if x.shape[1] == keep.shape[1] else self.stem.kept(keep))

    def features(self, tokens: Tensor, segments: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        """What the head reads, (B, T, d_model); one that makes one thing of all reads a prompt as well."""
        keep = self.stem.kept(tokens != self.config.pad if keep is None else keep)
        mask = padding(keep).dense(1, keep.shape[1], keep.device)
        x = self.encoder(self.stem(tokens, segments=segments), mask=mask, keep=keep)
        return x[:, n:] if (n := self.stem.virtual) and self.head.kind not in POOLED else x


@dataclass(frozen=True)
class EncoderConfig(blocks.LayerConfig, StackSizes, Config):
    """Everything that makes an encoder; the defaults are those of BERT-base."""

    layers: int = field(default=12, metadata={"least": 0})  # 0: vectors of words, and nothing on them
    d_model: int = 768
    d_ff: int = 3072
    heads: int = 12
    positions: str = "learned"  # rope, alibi, t5, shaw, sinusoidal, none
    max_length: int = 512
    norm_eps: float = 1e-12
    feed_forward: str = "gelu"  # relu, gelu_tanh, silu, glu, swiglu, geglu, geglu_tanh, convolution
    attention_dropout: float = 0.1
    segments: int | None = 2  # sentences that are told apart; none: they are not
    d_embedding: int | None = None  # of the vectors of words, which are then widened
    embedding_norm: bool = True  # of words plus positions
    shared: bool = False  # all layers are one
    pad: int = 0

    def __post_init__(self) -> None:
        self.check()
        self.check_layers()

    @property
    def longest(self) -> int | None:
        """The most positions that it can read if it has a parameter for each of them; None: it reads any number."""
        tables = self.positions == "learned" or self.score == "location" or self.self_attention.startswith("linformer")
        return self.max_length if tables else None


def bert_base(vocabulary: int = 30_522, **changes: Any) -> EncoderConfig:
    """BERT-base: 110 million parameters."""
    return EncoderConfig(vocabulary).but(**changes)


def bert_tiny(vocabulary: int, **changes: Any) -> EncoderConfig:
    """2 layers of width 128: BERT-tiny of Turc et al. (2019)."""
    return EncoderConfig(vocabulary, layers=2, d_model=128, d_ff=512, heads=2).but(**changes)


def bert_mini(vocabulary: int, **changes: Any) -> EncoderConfig:
    """4 layers of width 256."""
    return EncoderConfig(vocabulary, layers=4, d_model=256, d_ff=1024, heads=4).but(**changes)


def minilm(vocabulary: int = 30_522, **changes: Any) -> EncoderConfig:
    """6 layers of width 384: MiniLM of Wang et al. (2020), 23 million parameters."""
    return EncoderConfig(vocabulary, layers=6, d_model=384, d_ff=1536).but(**changes)


def roberta_base(vocabulary: int = 50_265, **changes: Any) -> EncoderConfig:
    """RoBERTa-base: 125 million parameters."""
    return EncoderConfig(vocabulary, segments=1, norm_eps=1e-5, pad=1).but(**changes)


def distilbert(vocabulary: int = 30_522, **changes: Any) -> EncoderConfig:
    """DistilBERT: 66 million parameters."""
    return EncoderConfig(vocabulary, layers=6, segments=None).but(**changes)


def albert_base(vocabulary: int = 30_000, **changes: Any) -> EncoderConfig:
    """ALBERT-base: 12 million parameters."""
    own = EncoderConfig(vocabulary, d_embedding=128, shared=True, dropout=0.0, attention_dropout=0.0)
    return own.but(feed_forward="gelu_tanh").but(**changes)


FAMILY = Family(
    EncoderConfig,
    Encoder,
    {
        "bert-tiny": bert_tiny,
        "bert-mini": bert_mini,
        "bert-base": bert_base,
        "minilm": minilm,
        "roberta-base": roberta_base,
        "distilbert": distilbert,
        "albert-base": albert_base,
    },
    heads=HEADS,
)
