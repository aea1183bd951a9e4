"""A directory without some heads is a whole one, and translates as the old one does with these silenced."""

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from regard import load
from regard.adaptation.gates import GateConfig
from regard.cli import app
from regard.convert.precision import quantize_directory
from regard.data.dates import date_pairs
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.inspection.taps import attentions, edit
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig
from regard.studies.pruning import prune_directory

ENCODER, CROSS = "encoder.layers.0.self_attention", "decoder.layers.0.cross_attention"
DECODER = "decoder.layers.0.self_attention"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two parallel files, and a random model whose weights are large, so that its outputs vary."""
    pairs = list(islice(date_pairs(seed=1, locales=["en", "de"]), 60))
    (tmp_path / "text.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (tmp_path / "text.tgt").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
    tokenizer = Tokenizer.learn(TokensConfig(size=300), (text for pair in pairs for text in (pair.text, pair.iso)))
    torch.manual_seed(0)
    network = Transformer(TransformerConfig.tiny(len(tokenizer), encoder_layers=1, decoder_layers=1))
    for parameter in network.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    storage.save(network, tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    (tmp_path / "model" / "heads.html").write_text("of the old heads")
    return tmp_path / "model"


@pytest.fixture
def text(model: Path) -> dict[str, Path]:
    return {"source": model.parent / "text.src", "reference": model.parent / "text.tgt"}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("heads", [{ENCODER: [3, 1], CROSS: [0]}, {DECODER: [0, 1, 2, 3], CROSS: [2]}])
def test_translates_as_with_these_heads_silenced(model: Path, precision: str, heads: dict[str, list[int]]) -> None:
    if precision != "fp32":
        old, model = model, model.with_name(precision)
        quantize_directory(old, model, precision)
    out = model.with_name("smaller")
    made = prune_directory(model, out, heads=heads)
    assert made.gone == {name: sorted(numbers) for name, numbers in heads.items()}
    assert (made.before.heads, made.after.heads) == (12, 12 - sum(map(len, heads.values())))
    assert made.after.bytes == (out / storage.WEIGHTS).stat().st_size < made.before.bytes
    assert made.after.parameters < made.before.parameters
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    texts = ["March 5, 1987", "17. Juli 2020"]
    whole = load(model, engine="torch")
    with edit(whole.model, {name: dict.fromkeys(numbers, 0.0) for name, numbers in heads.items()}):
        expected = whole.translate(texts)
    for engine in ("torch", "native") if shutil.which("cc") else ("torch",):
        assert load(out, engine=engine).translate(texts) == expected
    assert whole.translate(texts) != expected


def test_keeps_the_most_important(model: Path, text: dict[str, Path]) -> None:
    half = prune_directory(model, model.with_name("half"), keep=0.5, **text)
    six = prune_directory(model, model.with_name("six"), keep=6, **text)
    assert half == six
    assert half.after.heads == 6
    assert half.before.loss is not None
    assert half.after.loss != half.before.loss
    first = prune_directory(model, model.with_name("eleven"), keep=11, **text, limit=10)
    (name,) = first.gone
    assert first.gone[name][0] in range(4)
    none = prune_directory(model, model.with_name("none"), keep=0, **text)
    assert none.after.heads == 0
    mute = load(model, engine="torch")
    with edit(mute.model, {name: dict.fromkeys(range(4), 0.0) for name in attentions(mute.model)}):
        expected = mute.translate("March 5, 1987", beam=1)
    assert load(model.with_name("none"), engine="auto").translate("March 5, 1987", beam=1) == expected


def test_gates_may_choose(model: Path, text: dict[str, Path]) -> None:
    quick = GateConfig(steps=3)
    made = prune_directory(model, model.with_name("nine"), keep=9, by="gates", gates=quick, **text)
    assert made.after.heads == 9
    greedy = GateConfig(steps=60, price=50.0)  # no head is worth that much
    shut = prune_directory(model, model.with_name("shut"), by="gates", gates=greedy, **text, limit=4)
    assert shut.after.heads == 0


def test_the_atlas_may_choose(model: Path) -> None:
    names = list(attentions(storage.load(model)))
    heads = [{"name": name, "head": h, "importance": 10 * i + h} for i, name in enumerate(names) for h in range(4)]
    (model / "heads.json").write_text(json.dumps({"heads": heads}))
    made = prune_directory(model, model.with_name("seven"), keep=7, by="atlas")
    assert made.gone == {ENCODER: [0, 1, 2, 3], DECODER: [0]}
    assert made.after.loss is None
    (model / "heads.json").write_text(json.dumps({"heads": heads[1:]}))
    with pytest.raises(ValueError, match=r"heads\.json is about other heads than the model's: make it again"):
        prune_directory(model, model.with_name("other"), keep=7, by="atlas")
    for damaged in ("[]", "{", '{"heads": [{"name": 1}]}'):
        (model / "heads.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"heads\.json is no atlas of heads"):
            prune_directory(model, model.with_name("other"), keep=7, by="atlas")
    assert not model.with_name("other").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say which heads go, by heads, or how many stay, by keep"),
        ({"keep": 3}, "importance is measured on a text: give source and reference"),
        ({"keep": 3, "by": "atlas"}, r"has no heads\.json: make it with"),
        ({"keep": 3, "by": "luck"}, "by = 'luck': choose importance, gates or atlas"),
        ({"keep": 3, "heads": {ENCODER: [0]}}, "give one of them"),
        ({"keep": 3, "source": True}, "source and reference belong together"),
        ({"keep": 13, "source": True, "reference": True}, "keep = 13: the model has 12 heads"),
        ({"keep": 1.5, "source": True, "reference": True}, r"keep = 1\.5: a share lies in \[0, 1\]"),
        ({"heads": {ENCODER: [4]}}, r"has heads 0\.\.3, not 4"),
        ({"heads": {"encoder": [0]}}, "no attention is named 'encoder'"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    model: Path, text: dict[str, Path], options: dict[str, object], message: str
) -> None:
    given = {key: text[key] if value is True else value for key, value in options.items()}
    with pytest.raises(ValueError, match=message):
        prune_directory(model, model.with_name("out"), **given)
    assert not model.with_name("out").exists()


def test_texts_of_other_lengths_and_existing_directories_are_refused(model: Path, text: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="is already there"):
        prune_directory(model, model, heads={ENCODER: [0]})
    text["source"].write_text("one line\n")
    with pytest.raises(ValueError, match=r"1 line and .* 60: line by line they are translations"):
        prune_directory(model, model.with_name("out"), keep=3, **text)


def test_the_verb(model: Path, text: dict[str, Path]) -> None:
    run = CliRunner()
    files = ["--source", str(text["source"]), "--reference", str(text["reference"])]
    heads = ["--heads", f"{ENCODER}:1,3", "--heads", f"{CROSS}:0"]
    named = run.invoke(app, ["prune", str(model), str(model.with_name("named")), *heads])
    assert named.exit_code == 0, named.output
    assert f"{ENCODER}: without 1, 3" in named.output
    assert "9 of 12 heads" in named.output
    kept = run.invoke(app, ["prune", str(model), str(model.with_name("kept")), "--keep", "0.75", *files])
    assert kept.exit_code == 0, kept.output
    assert "9 of 12 heads" in kept.output
    assert "loss" in kept.output
    info = run.invoke(app, ["info", str(model.with_name("named"))])
    assert info.exit_code == 0, info.output
