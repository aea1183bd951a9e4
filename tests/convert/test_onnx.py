"""Under onnxruntime every search gives what it gives on the PyTorch model, and nothing is computed twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.convert import export
from regard.convert.onnx import Onnx, _Decoder
from regard.data.tokenizers import Tokenizer
from regard.data.vocabulary import EOS
from regard.decoding.module import Module
from regard.decoding.protocol import SearchConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from tests.convert.toys import sentences
from tests.decoding.toys import asking, search

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def check(directory: Path, out: Path) -> None:
    """Greedy and beam search on graphs and on the model: the same tokens, the same scores."""
    export(directory, out, "onnx")
    model, tokenizer = storage.load(directory), Tokenizer.load(out / "tokenizer.json")
    assert isinstance(model, Transformer)
    graphs, module = Onnx(out), Module(model)
    assert (graphs.vocabulary, graphs.room([5, 2])) == (module.vocabulary, module.room([5, 2]))
    requests = [asking([*ids, EOS]) for ids in tokenizer.encode_batch(sentences(9, seed=4))]
    for config in (SearchConfig(beam=1, extra=5), SearchConfig(beam=3, best=2, extra=5)):
        # Six rows are few: sentences take the places of those that are done.
        found, expected = (search(each, requests, config, rows=6) for each in (graphs, module))
        assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


@pytest.mark.slow  # tracing takes its time
def test_a_trained_model_writes_the_same(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    check(trained, tmp_path / "out")
    assert capfd.readouterr() == ("", "")  # the exporter's notes are not for our users


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_length": 30, "embedding_norm": True, "output_bias": True, "tie": "none"},
        {
            "positions": "rope",
            "feed_forward": "swiglu",
            "norm_kind": "rms",
            "norm": "pre",
            "kv_heads": 2,
            "bias": False,
        },
        {"positions": "t5", "bias": False, "d_k": 6, "d_v": 5, "feed_forward": "silu"},
        {"positions": "alibi", "scale": 0.3, "norm_eps": 1e-3, "feed_forward": "glu"},
        {"positions": "shaw", "feed_forward": "gelu", "tie": "target"},
    ],
    ids=str,
)
def test_every_kind_of_model_writes_the_same(
    build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    check(build(**changes), tmp_path / "out")


def test_a_convolution_is_refused_and_so_is_another_directory(build: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="our ONNX graph cannot express feed_forward = 'convolution'"):
        export(build(feed_forward="convolution"), tmp_path / "out", "onnx")
    with pytest.raises(ValueError, match=r"not a directory that regard exported to ONNX: it has no encoder.onnx"):
        Onnx(tmp_path / "model")


def test_an_export_leaves_the_model_as_it_was() -> None:
    model = Transformer(TransformerConfig.tiny(20))
    before = [*model.modules()]
    decoder = _Decoder(model)
    assert all(a is b for a, b in zip(before, model.modules(), strict=True))
    assert {id(p) for p in decoder.parameters()} == {id(p) for p in model.parameters()}
