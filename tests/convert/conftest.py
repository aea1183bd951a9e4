"""Small models with a tokenizer, in directories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.batching import collate
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.objectives import NextToken
from tests.convert.toys import SHAPE, learn, sentences


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """A directory with a random model; its weights are larger than usual, so that outputs vary."""

    def build(kind: str = "bpe", **changes: Any) -> Path:
        directory = tmp_path / "model"
        tokenizer = learn(kind)
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(len(tokenizer), **SHAPE | changes))
        for name, parameter in model.named_parameters():  # no bias or gain is left at its neutral value
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
            elif parameter.dim() == 1:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
            else:
                torch.nn.init.normal_(parameter, std=2.0 * parameter.std().item())
        storage.save(model, directory)
        tokenizer.save(directory / "tokenizer.json")
        return directory

    return build


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model that is being taught to write sentences backwards."""
    directory = tmp_path_factory.mktemp("trained")
    tokenizer = learn("none")
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(len(tokenizer), **SHAPE, norm="pre", dropout=0.0))
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    rows = tokenizer.encode_batch(sentences(2000, seed=1))
    for start in range(0, 5000, 50):
        batch = collate([(row, row[::-1]) for row in rows[start % 2000 :][:50]])
        loss = NextToken(model)(**batch.tensors) / batch.count
        adam.zero_grad()
        loss.backward()
        adam.step()
    storage.save(model.eval(), directory)
    tokenizer.save(directory / "tokenizer.json")
    return directory
