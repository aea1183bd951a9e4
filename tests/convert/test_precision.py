"""A model directory in another number format: whole, usable, never over another."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.convert.precision import quantize_directory
from regard.core.quantised import bits_of
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig

RECIPE = "data: {train: {source: a, target: b}}\ntrain: {steps: 1}\ndecode: {beam: 2}\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small random model with everything that its use needs, and what only its training did."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.learn(TokensConfig(size=280), ["the dog runs, the cat sleeps, a bird sings"] * 9)
    config = TransformerConfig.shallow(len(tokenizer), encoder_layers=1)
    storage.save(Transformer(config), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    (tmp_path / "model" / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "model" / "evaluation.json").write_text("{}")
    (tmp_path / "model" / "trainer").mkdir()
    return tmp_path / "model"


@pytest.mark.parametrize(("precision", "share"), [("int8", 0.28), ("bf16", 0.51), ("int4", 0.24)])
def test_a_smaller_directory_is_whole_and_comes_back(model: Path, precision: str, share: float) -> None:
    small = model.parent / "runs" / "small"
    sizes = quantize_directory(model, small, precision)
    assert {path.name for path in small.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "recipe.yaml",
    }
    assert os.listdir(small.parent) == ["small"]
    assert sizes.after == (small / "model.safetensors").stat().st_size < share * sizes.before
    assert bits_of(storage.load(small)) == {"int8": 8, "int4": 4}.get(precision)
    translator = regard.load(small)
    assert isinstance(translator.translate("the dog sleeps"), str)
    assert translator.tokenizer.encode("the dog") == regard.load(model).tokenizer.encode("the dog")

    back = model.parent / "back"
    quantize_directory(small, back, "fp32")
    before, after = (load_file(folder / "model.safetensors") for folder in (model, back))
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert after[name].dtype == torch.float32
        torch.testing.assert_close(
            after[name], x, atol=float(x.abs().max()) / (6 if precision == "int4" else 250), rtol=0
        )
    if precision == "bf16":
        assert all(torch.equal(after[name], x.bfloat16().float()) for name, x in before.items())


def test_int8_from_bf16_has_fp32_around_it_and_a_shortlist_goes_along(model: Path) -> None:
    (model / "shortlist.safetensors").write_bytes(b"as it is")
    quantize_directory(model, model.parent / "bf16", "bf16")
    quantize_directory(model.parent / "bf16", model.parent / "int8")
    dtypes = {x.dtype for x in storage.load(model.parent / "int8").parameters()}
    assert dtypes == {torch.int8, torch.float32}
    assert (model.parent / "int8" / "shortlist.safetensors").read_bytes() == b"as it is"


def test_what_cannot_be_done_is_said_and_leaves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = model.parent
    with pytest.raises(ValueError, match=r"unknown precision 'int5': choose one of int8, int4, bf16, fp32"):
        quantize_directory(model, here / "new", "int5")
    with pytest.raises(ValueError, match=r"model is already there: name a new directory"):
        quantize_directory(model, model)
    (here / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"file is already there"):
        quantize_directory(model, here / "file")
    with pytest.raises(ValueError, match=r"nowhere is not a directory"):
        quantize_directory(here / "nowhere", here / "new")
    (here / "empty").mkdir()
    quantize_directory(model, here / "empty")  # nothing is lost there
    for precision in ("int8", "int4"):
        with pytest.raises(ValueError, match=r"empty is int8 already"):
            quantize_directory(here / "empty", here / "new", precision)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        quantize_directory(model, here / "new")
    assert sorted(os.listdir(here)) == ["empty", "file", "model"]
