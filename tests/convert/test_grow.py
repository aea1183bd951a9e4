"""The benchmarks' grown model is the small one: their weights differ, their logits do not."""

import importlib.util
from pathlib import Path

import pytest
import torch

from regard.models.transformer import Transformer, TransformerConfig

PATH = Path(__file__).parents[2] / "bench" / "grow.py"


@pytest.mark.parametrize("shape", ["base", "wider"])
def test_a_grown_model_has_the_same_logits(shape: str) -> None:
    spec = importlib.util.spec_from_file_location("grow", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    small = Transformer(TransformerConfig.tiny(60, norm="pre")).eval()
    for parameter in small.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    to = TransformerConfig.base(60) if shape == "base" else TransformerConfig.tiny(60, d_model=256, decoder_layers=5)
    large = module.grow(small, to)
    assert large.config.but(positions="sinusoidal", max_length=1024, norm="post") == to
    source, target = torch.randint(1, 60, (3, 9)), torch.randint(1, 60, (3, 7))
    source[0, 5:] = 0
    with torch.inference_mode():
        torch.testing.assert_close(large(source, target), small(source, target), atol=1e-4, rtol=1e-5)
