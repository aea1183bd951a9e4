"""A compiled model learns what the model learns."""

import pytest
import torch

from regard.data.batching import collate
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.config import TrainConfig
from regard.training.loop import Learner
from regard.training.objectives import NextToken
from regard.training.optimisers import OptimiserConfig


def losses(compile: bool) -> list[float]:
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig.tiny(12, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, heads=2, dropout=0.0)
    )
    config = TrainConfig(steps=3, shards=1, optimiser=OptimiserConfig("adam"), compile=compile)
    rows = [[3 + (i + j) % 9 for j in range(2 + i)] for i in range(4)]
    with Learner(NextToken(model, 0.1), lambda step: 1e-2, config) as learner:
        batches = [collate([(row, row[::-1]) for row in rows[: 2 + n]]) for n in range(3)]  # of three shapes
        return [learner.step([batch], batch.count).loss for batch in batches]


@pytest.mark.slow
def test_compiled_and_not_are_the_same_training() -> None:
    assert losses(compile=True) == pytest.approx(losses(compile=False), abs=1e-4)
