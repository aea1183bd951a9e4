"""A shortlist beside a model, from files or from what the model was trained on."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from torch import nn

from regard.data.dates import date_pairs
from regard.data.lexicon import Shortlist
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.native import build
from regard.recipes.shortlist import make_shortlist

RECIPE = """
data: {train: {source: ../train.src, target: ../train.tgt}, hold_out: 20}
tokens: {kind: bpe, size: 300}
model: {preset: tiny}
train: {steps: 1}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two parallel files of dates, and a model directory whose recipe names them."""
    pairs = list(islice(date_pairs(seed=1, locales=["en", "de"]), 200))
    (tmp_path / "train.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (tmp_path / "train.tgt").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
    tokenizer = Tokenizer.learn(TokensConfig(size=300), (text for pair in pairs for text in (pair.text, pair.iso)))
    storage.save(Transformer(TransformerConfig.tiny(300, encoder_layers=1, decoder_layers=1)), tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    (tmp_path / "model" / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "model"


def test_it_is_learnt_from_the_recipes_training_text_or_from_files(model: Path) -> None:
    own = make_shortlist(model, size=9, common=10)
    assert 150 < own.pairs < 200  # some are held out
    assert own.vocabulary == 300
    assert own.coverage.covered > 0.9
    first = Shortlist.load(model)
    assert len(first.offsets) == 301
    given = make_shortlist(model, model.parent / "train.src", model.parent / "train.tgt", size=9, common=10)
    assert given.pairs == 200
    tokenizer = Tokenizer.load(model / "tokenizer.json")
    year = tokenizer.encode("1987-03-05")
    few = Shortlist.load(model).of(tokenizer.encode("March 5, 1987"))
    assert sum(token in few for token in year) / len(year) > 0.8


def test_a_limit_of_the_recipe_holds(model: Path) -> None:
    (model / "recipe.yaml").write_text(RECIPE.replace("hold_out: 20", "hold_out: 20, limit: 50"))
    assert make_shortlist(model).pairs == 50


def test_what_cannot_be_done_is_said(model: Path) -> None:
    with pytest.raises(ValueError, match="source and target files come together"):
        make_shortlist(model, model.parent / "train.src")
    with pytest.raises(ValueError, match="size = 0: it must be at least 1"):
        make_shortlist(model, size=0)
    (model / "recipe.yaml").unlink()
    with pytest.raises(ValueError, match=r"has no recipe.yaml .*name --source and --target"):
        make_shortlist(model)
    content = (model / "tokenizer.json").read_text("utf-8")
    (model / "tokenizer.json").write_text(content.replace('"vocab": {', '"vocab": {"surplus": 300, '), "utf-8")
    with pytest.raises(ValueError, match="the tokenizer has 301 tokens and the model 300"):
        make_shortlist(model, model.parent / "train.src", model.parent / "train.tgt")
    assert not (model / "shortlist.safetensors").exists()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: Recurrent(RecurrentConfig(300, d_model=16)), "a Recurrent "),
        (lambda: Transformer(TransformerConfig.tiny(300, score="additive")), "full attention by additive score"),
    ],
)
def test_a_model_that_the_native_engine_cannot_run_gets_none(
    model: Path, other: Callable[[], nn.Module], why: str
) -> None:
    storage.save(other(), model)
    with pytest.raises(ValueError, match=rf"shortlists are for the native engine, .*\({why}"):
        make_shortlist(model)
    assert not (model / "shortlist.safetensors").exists()


def test_a_machine_without_a_compiler_makes_lists_for_others(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_NATIVE", "0")
    monkeypatch.setattr(build, "library", build.library.__wrapped__)  # not the one that is kept
    assert make_shortlist(model).vocabulary == 300
