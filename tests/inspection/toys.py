"""Models of one stack, built of the core's own layers: a language model, and an encoder with logits of its tokens."""

import torch
from torch import Tensor, nn

from regard.core.attention import MultiHeadAttention
from regard.core.blocks import DecoderLayer, EncoderLayer, Stack
from regard.core.layers import FeedForward, Residual
from regard.core.masks import causal, padding
from regard.core.mixers import AttentionConfig

WIDTH, HEADS, PAD = 16, 2, 0


def _residual(sublayer: nn.Module) -> Residual:
    return Residual(sublayer, nn.LayerNorm(WIDTH), "pre")


def _attention() -> Residual:
    return _residual(MultiHeadAttention(AttentionConfig(d_model=WIDTH, heads=HEADS)))


def _feed_forward() -> Residual:
    return _residual(FeedForward(WIDTH, 2 * WIDTH))


class LanguageModel(nn.Module):
    """tokens (B, T) -> logits of each next one."""

    def __init__(self, vocabulary: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.stack = Stack(DecoderLayer(_attention(), None, _feed_forward()) for _ in range(layers))
        self.output = nn.Linear(WIDTH, vocabulary)

    def features(self, tokens: Tensor) -> Tensor:
        return self.stack(self.embedding(tokens), mask=causal())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.features(tokens))


class Encoder(nn.Module):
    """tokens (B, T) -> logits of each."""

    def __init__(self, vocabulary: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.stack = Stack(EncoderLayer(_attention(), _feed_forward()) for _ in range(layers))
        self.output = nn.Linear(WIDTH, vocabulary)

    def features(self, tokens: Tensor) -> Tensor:
        return self.stack(self.embedding(tokens), mask=padding(tokens != PAD))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.features(tokens))


def language_model(vocabulary: int = 12, layers: int = 2) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocabulary, layers).eval()


def encoder_only(vocabulary: int = 12, layers: int = 2) -> Encoder:
    torch.manual_seed(0)
    return Encoder(vocabulary, layers).eval()
