"""What every conversion begins with, and the settings that an import may need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.adaptation.prune import prune
from regard.convert import FORMATS, export
from regard.convert.source import Source
from regard.models import storage
from regard.models.costs import forward_flops, parameters
from regard.models.transformer import Transformer, TransformerConfig
from tests.convert.toys import SHAPE, learn


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_norm_of_the_embedding_and_bias_of_the_output_are_as_they_say(tmp_path: Path, norm_kind: str) -> None:
    plain = TransformerConfig(40, **SHAPE, norm_kind=norm_kind)
    config = plain.but(embedding_norm=True, output_bias=True)
    model = Transformer(config).eval()
    assert parameters(config) == sum(p.numel() for p in model.parameters())
    assert forward_flops(config) == forward_flops(plain)
    tokens = torch.randint(1, 40, (2, 5))
    embedding = model.source_embedding
    assert isinstance(embedding.norm, nn.LayerNorm | nn.RMSNorm)
    nn.init.uniform_(embedding.norm.weight)
    bare = Transformer(plain).eval().source_embedding
    bare.tokens = embedding.tokens
    torch.testing.assert_close(embedding(tokens), embedding.norm(bare(tokens)))
    before = model(tokens, tokens)
    nn.init.normal_(model.output.bias)
    torch.testing.assert_close(model(tokens, tokens), before + model.output.bias)
    storage.save(model, tmp_path)
    assert torch.equal(storage.load(tmp_path)(tokens, tokens), model(tokens, tokens))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "tokenizer.json").unlink(), "is not a whole model directory: it has no tokenizer.json"),
        (
            lambda path: learn("char").save(path / "tokenizer.json"),
            "tokens, but the model's vocabulary is 300",
        ),
        (lambda path: (path / "config.json").unlink(), "is not a model directory: it has no config.json"),
    ],
)
def test_a_directory_that_is_not_whole_is_not_exported(
    build: Callable[..., Path], tmp_path: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    directory = build()
    spoil(directory)
    with pytest.raises(ValueError, match=message):
        export(directory, tmp_path / "out", "hf")
    assert not (tmp_path / "out").exists()


def test_a_model_in_bf16_is_exported_in_fp32(build: Callable[..., Path]) -> None:
    directory = build()
    storage.save(storage.load(directory, dtype=torch.bfloat16), directory)
    assert {tensor.dtype for tensor in Source.load(directory).tensors.values()} == {torch.float32}


@pytest.mark.parametrize("to", FORMATS)
def test_a_model_that_has_lost_heads_is_refused(build: Callable[..., Path], tmp_path: Path, to: str) -> None:
    directory = build()
    storage.save(prune(storage.load(directory), {"decoder.layers.0.cross_attention": [1]}), directory)
    with pytest.raises(ValueError, match="has lost some heads, and other formats have one number of heads"):
        export(directory, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()
