"""`regard inspect` and `Translator.attention`: what was looked at, in every kind of file; one line for a mistake."""

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.api import Translator
from regard.data.batching import collate
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.transformer import Transformer, TransformerConfig

LINES = ["a dog runs", "two men sit on a bench", "a woman reads.", "the man in the hat looks at a dog"]
TEXT, TARGET = "two men sit", "a woman reads."
Fail = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory; the model has learned nothing, and its outputs are short."""
    directory = tmp_path_factory.mktemp("models") / "shipped" / "en-es"
    directory.mkdir(parents=True)
    tokenizer = Tokenizer.learn(TokensConfig("bpe", size=280), LINES * 3)
    tokenizer.save(directory / "tokenizer.json")
    torch.manual_seed(3)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 32, "d_ff": 32, "heads": 4}
    built = Transformer(TransformerConfig.tiny(len(tokenizer), **shape))
    built.output.weight.data *= 4.0  # surer of itself
    storage.save(built, directory)
    (directory / "recipe.yaml").write_text(
        "data: {corpus: tatoeba-en-es, max_length: 40}\ntrain: {steps: 1}\ndecode: {extra: 4}\n"
    )
    return directory


@pytest.fixture(scope="module")
def translator(model: Path) -> Translator:
    return regard.load(model)


@pytest.fixture(autouse=True)
def here(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("regard.shipped.SHIPPED", model.parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """Calls `regard inspect` where it must fail, and gives its one line."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", "inspect", *map(str, arguments)])
        monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capsys.readouterr()
        assert (end.value.code, out, error.count("\n")) == (2, "", 1)
        return error.removeprefix("error: ").strip()

    return call


def show(*arguments: object) -> str:
    """What `regard inspect` says when it succeeds."""
    result = CliRunner().invoke(cli.app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_maps_are_those_of_the_output_that_the_search_found(translator: Translator) -> None:
    (best,) = translator.hypotheses(TEXT)
    maps = {each.name: each for each in translator.attention(TEXT)}
    cross = maps["decoder.layers.1.cross_attention"]
    assert cross.queries == [*best.tokens, "</s>"]
    assert cross.keys == [*translator.tokenizer.pieces(translator.tokenizer.encode(TEXT)), "</s>"]
    greedy = translator.hypotheses(TEXT, beam=1)[0].tokens
    assert translator.attention(TEXT, beam=1)[0].queries == [*greedy, "</s>"]
    assert greedy != best.tokens


def test_the_maps_of_a_given_target(translator: Translator) -> None:
    batch = collate([(translator.tokenizer.encode(TEXT), translator.tokenizer.encode(TARGET))])
    with regard.record(translator.model) as seen, torch.no_grad():
        translator.model(batch["source"], batch["target"])
    maps = translator.attention(TEXT, TARGET)
    assert {each.name for each in maps} == set(seen)
    for each in maps:
        torch.testing.assert_close(each.weights, seen[each.name][0])


def test_words_and_special_tokens(translator: Translator) -> None:
    maps = {each.name: each for each in translator.attention(TEXT, TARGET, words=True)}
    cross = maps["decoder.layers.0.cross_attention"]
    assert cross.queries == ["a", "woman", "reads.", "</s>"]
    assert cross.keys == ["two", "men", "sit", "</s>"]
    torch.testing.assert_close(cross.weights.sum(-1), torch.ones(4, 4))
    (bare,) = translator.attention(TEXT, TARGET, words=True, special=False, names="*0.cross_attention", heads=[2])
    torch.testing.assert_close(bare.weights[0], (kept := cross.weights[2, :3, :3]) / kept.sum(-1, keepdim=True))
    with pytest.raises(ValueError, match="nothing is written, and special tokens are left out"):
        translator.attention(TEXT, "", special=False)


def test_one_sentence_is_looked_at(translator: Translator) -> None:
    for text, parts in (("  ", "0"), ("a dog runs " * 30, "[2-9]")):
        with pytest.raises(ValueError, match=f"attention is for one sentence, got {parts}"):
            translator.attention(text)
    with pytest.raises(ValueError, match="there is no setting 'word'"):
        translator.attention(TEXT, word=True)


def test_int8_models_can_be_looked_at(model: Path) -> None:
    small, plain = regard.load(model, precision="int8"), regard.load(model)
    for view in ("weights", "norm"):
        both = [translator.attention(TEXT, TARGET, view=view) for translator in (small, plain)]
        for a, b in zip(*both, strict=True):
            assert torch.corrcoef(torch.stack([a.weights.flatten(), b.weights.flatten()]))[0, 1] > 0.98
            assert not torch.equal(a.weights, b.weights)


def test_all_heads_in_every_kind_of_file_and_of_figures_those_to_the_source(
    translator: Translator, model: Path, here: Path
) -> None:
    said = translator.translate(TEXT)
    for ending, heads, attentions in (("html", 20, 5), ("npz", 20, 5), ("csv", 20, 5), ("svg", 8, 2), ("PNG", 8, 2)):
        line = show(model, TEXT, "-o", f"new/out.{ending}")
        assert line == f"new/out.{ending}: {heads} heads of {attentions} attentions, {TEXT} → {said}\n"
    maps = {each.name: each for each in translator.attention(TEXT)}
    with np.load(here / "new/out.npz", allow_pickle=False) as arrays:
        for name, each in maps.items():
            assert np.array_equal(arrays[name], each.weights.numpy())
    with (here / "new/out.csv").open(encoding="utf-8", newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == sum(each.weights.numel() for each in maps.values())
    page = (here / "new/out.html").read_text("utf-8")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    assert [entry["name"] for entry in data["maps"]] == list(maps)
    svg = (here / "new/out.svg").read_text("utf-8")
    assert "decoder 1 cross-attention" in svg
    assert "encoder" not in svg
    assert (here / "new/out.PNG").read_bytes().startswith(b"\x89PNG")
    assert not list((here / "new").glob(".*"))


def test_options(translator: Translator, model: Path, here: Path) -> None:
    show(model, TEXT, "-o", "a.npz", "--target", TARGET, "--names", "encoder*", "--names", "*0.cross*",
         "--heads", "3,1", "--view", "norm", "--words", "--hide-special")  # fmt: skip
    expected = translator.attention(
        TEXT, TARGET, names=["encoder*", "*0.cross*"], heads=[3, 1], view="norm", words=True, special=False
    )
    with np.load(here / "a.npz") as arrays:
        assert {name for name in arrays.files if name.endswith("attention")} == {each.name for each in expected}
        for each in expected:
            assert np.array_equal(arrays[each.name], each.weights.numpy())
            assert arrays[f"{each.name}.heads"].tolist() == [3, 1]
    show(model, TEXT, "-o", "a.html", "--words", "--hide-special", "--log")
    page = (here / "a.html").read_text("utf-8")
    assert "sums over those of a key, means over those of a query" in page
    assert "the rest of a row sums to 1" in page
    show(model, TEXT, "-o", "one.svg", "--names", "*1.cross*", "--heads", "2", "--hide-special")
    svg = (here / "one.svg").read_text("utf-8")
    assert "decoder.layers.1.cross_attention, head 2" in svg
    assert "the rest of a row sums to 1" in svg


def test_without_a_model_the_shipped_one_is_asked(here: Path, model: Path) -> None:
    assert show(TEXT, "-o", "a.csv") == show("en-es", TEXT, "-o", "a.csv") == show(model, TEXT, "-o", "a.csv")


def test_mistakes(fail: Fail, model: Path, here: Path) -> None:
    assert "a.gif: the ending says what to write: choose one of .html, .svg, .png, .npz, .csv" in fail(
        model, TEXT, "-o", "a.gif"
    )
    assert "say where to write by -o" in fail(model, TEXT)
    assert "en-es is a model: say what it shall read" in fail("en-es", "-o", "a.svg")
    assert "is a model: say what it shall read" in fail(model, "-o", "a.svg")
    assert "got 4 words: put the text in quotation marks" in fail(model, *TEXT.split(), "-o", "a.svg")
    assert "nowhere is not a directory" in fail("nowhere", TEXT, "-o", "a.svg")
    assert "--heads 1;2: write numbers with commas between them" in fail(model, TEXT, "-o", "a.svg", "--heads", "1;2")
    assert "has heads 0..3, not 4" in fail(model, TEXT, "-o", "a.svg", "--heads", "4")
    assert "has heads 0..3, not -1" in fail(model, TEXT, "-o", "a.svg", "--heads=-1")
    assert "no attention is named 'x'" in fail(model, TEXT, "-o", "a.svg", "--names", "x")
    assert "view = 'x': choose weights, norm or rollout" in fail(model, TEXT, "-o", "a.svg", "--view", "x")
    assert "--log is about colours, and .csv has none" in fail(model, TEXT, "-o", "a.csv", "--log")
    assert "attention is for one sentence, got 0" in fail(model, " ", "-o", "a.csv")
    (here / "file").write_text("")
    assert "file" in fail(model, TEXT, "-o", "file/a.csv")
    assert [path.name for path in here.iterdir()] == ["file"]
