"""CTranslate2 writes with the exported weights what regard writes, piece by piece."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Rust

from regard.convert import export
from regard.models import storage
from regard.models.transformer import Transformer
from tests.convert.toys import log_probabilities, search, sentences

ctranslate2 = pytest.importorskip("ctranslate2")


def check(directory: Path, out: Path, count: int = 8) -> None:
    """Greedy and beam search and forced scores agree, sentence by sentence."""
    export(directory, out, "ctranslate2")
    translator = ctranslate2.Translator(str(out), inter_threads=1, intra_threads=1)
    model, tokenizer = storage.load(directory), Rust.from_file(str(out / "tokenizer.json"))
    assert isinstance(model, Transformer)
    encoded = [tokenizer.encode(text) for text in sentences(count, seed=7)]
    targets = []
    for width in (1, 3):
        found = translator.translate_batch(
            [row.tokens for row in encoded],
            beam_size=width,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=10,
            replace_unknowns=False,
        )
        targets = [result.hypotheses[0] for result in found]
        ours = [search(model, row.ids, width, 10) for row in encoded]
        assert len(set(map(tuple, ours))) > 1
        assert [[tokenizer.token_to_id(piece) for piece in row] for row in targets] == ours
    for row, target, scored in zip(
        encoded, targets, translator.score_batch([row.tokens for row in encoded], targets), strict=True
    ):
        expected = log_probabilities(model, row.ids, [tokenizer.token_to_id(piece) for piece in target])
        assert scored.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "feed_forward": "gelu"},
        {"positions": "learned", "max_length": 40, "feed_forward": "silu", "tie": "none", "output_bias": True},
        {"positions": "none", "norm": "pre", "norm_kind": "rms", "feed_forward": "swiglu", "bias": False},
        {"feed_forward": "glu", "tie": "target", "scale_embedding": False, "scale": 0.2, "norm_eps": 1e-3},
        {"embedding_norm": True, "positions": "learned", "feed_forward": "gelu"},
    ],
    ids=str,
)
def test_a_random_model_writes_the_same(build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any]) -> None:
    check(build(**changes), tmp_path / "out")


def test_a_trained_model_writes_the_same(trained: Path, tmp_path: Path) -> None:
    check(trained, tmp_path / "out", count=20)


def test_int8_is_passed_on(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "fp32", "ctranslate2")
    export(trained, tmp_path / "int8", "ctranslate2", quantization="int8")
    assert (tmp_path / "int8" / "model.bin").stat().st_size < (tmp_path / "fp32" / "model.bin").stat().st_size
    rows = [text.split() for text in sentences(40, seed=9)]
    fp32, int8 = (
        ctranslate2.Translator(str(tmp_path / kind), inter_threads=1, intra_threads=1).translate_batch(rows)
        for kind in ("fp32", "int8")
    )
    same = sum(a.hypotheses == b.hypotheses for a, b in zip(fp32, int8, strict=True))
    assert same >= 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rope"}, "CTranslate2 cannot express positions = 'rope', only 'sinusoidal', 'learned', 'none'"),
        ({"feed_forward": "convolution"}, "CTranslate2 cannot express feed_forward = 'convolution'"),
        ({"kv_heads": 2}, "CTranslate2 cannot express kv_heads = 2, only None, 4"),
        ({"d_v": 5}, "CTranslate2 cannot express d_v = 5, only None, 8"),
    ],
)
def test_what_cannot_be_expressed_is_named(
    build: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export(build(**changes), tmp_path / "out", "ctranslate2")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing half-written beside it either
