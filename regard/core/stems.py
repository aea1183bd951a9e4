"""The lower end of a stack: what makes vectors of what is read. Words come by their embeddings (§3.4).

Letters: B batch, T positions, d_model width of the model.
"""

import math

import torch
from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.positions import Positions


def words(vocabulary: int, d_model: int, std: float | None = None) -> nn.Embedding:
    """A vector for each word (§3.4); times √d_model, as `Embedding` takes them, of unit variance like the positions."""
    tokens = nn.Embedding(vocabulary, d_model)
    nn.init.normal_(tokens.weight, std=d_model**-0.5 if std is None else std)
    return tokens


class Stem(nn.Module):
    """What a stack begins with: whatever is read -> (B, T, d_model)."""


class Embedding(Stem):
    """Token vectors times √d_model, plus positions, then dropout (§3.4, §3.5, §5.4). `tokens` may be shared.

    Some models add a vector for the sentence of a pair that a token is in (BERT): `segments`; some normalise the sum
    (BART, BERT): `norm`; and some have vectors of another width than the stack (ALBERT): `widen` makes them fit.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: Positions,
        *,
        segments: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        widen: nn.Module | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.segments, self.norm, self.widen = tokens, positions, segments, norm, widen
        self.scale = math.sqrt(tokens.embedding_dim) if scale is None else scale
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, offset: int | Tensor = 0, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T), the first at position `offset`, or each at its own (B, T) -> (B, T, d_model).

        `segments` (B, T) numbers the sentences; left out, or where there is one vector for all, all is the first.
        """
        x = self.positions.add(self._vectors(tokens) * self.scale, offset)
        if self.segments is not None:
            apart = segments is not None and self.segments.num_embeddings > 1
            x = x + self.segments(segments if apart and segments is not None else tokens.new_zeros(1))
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.widen is None else self.widen(x)

    def _vectors(self, tokens: Tensor) -> Tensor:
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens are integers (batch, length), got {tokens.dtype} of shape {tuple(tokens.shape)}")
        try:
            return self.tokens(tokens)
        except IndexError as error:
            raise ValueError(
                f"token ids lie in 0..{self.tokens.num_embeddings - 1}, got {int(tokens.min())}..{int(tokens.max())}: "
                "does the tokenizer belong to this model?"
            ) from error
