"""Captions from files to answers: learnt, searched for, judged; or refused in one line."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import regard
from regard import cli
from regard.recipes import reading as recipes
from regard.recipes.train import train
from tests.captions import captioned

YAML = """
task: {name: caption}
data: {train: {jsonl: train.jsonl}, valid: {jsonl: test.jsonl}, test: {tsv: test.tsv}, max_length: 24}
tokens: {kind: bpe, size: 290}
model: {preset: caption-tiny, size: 16, convolutions: 2, encoder_layers: 1, decoder_layers: 1, d_model: 32, d_ff: 64,
        heads: 2, dropout: 0.0}
train: {steps: 120, batch_rows: 16, schedule: {name: linear, peak: 0.01, warmup: 4}, validate_every: 60}
decode: {beam: 2}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("captions")
    captioned(place, "train", 90, 0)
    captioned(place, "test", 12, 1)
    (place / "r.yaml").write_text(YAML)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        train(recipes.load(str(place / "r.yaml"), []), place / "run", name="r", console=Console(quiet=True))
    return place / "run"


def test_it_says_what_pictures_show(run: Path) -> None:
    describer = regard.load(run)
    pictures = [str(run.parent / f"test{i}.png") for i in range(12)]
    said = describer.caption(pictures)
    assert [("red", "green", "blue")[i % 3] in text for i, text in enumerate(said)].count(True) >= 11
    assert describer.caption(pictures[1]) == said[1]
    figures = json.loads((run / "evaluation.json").read_text())
    assert [*figures] == ["bleu1", "bleu2", "bleu3", "bleu4", "cider"]
    assert figures["bleu4"]["score"] > 80
    assert figures["cider"]["signature"].startswith("pictures:12")


def test_the_command_describes_pictures(run: Path) -> None:
    image = run.parent / "test2.png"

    def show(*arguments: object) -> str:
        result = CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})
        assert result.exit_code == 0, result.exception or result.output
        return result.stdout

    path, text = show("caption", run, image).rstrip("\n").split("\t")
    assert (path, text) == (str(image), regard.load(run).caption(image))
    told = json.loads(show("caption", run, image, "--json", "--beam", 3, "--best", 2))
    assert told["text"] == regard.load(run).caption(image, beam=3)
    assert len(told["others"]) == 1
    judged = json.loads(show("evaluate", run, run.parent / "test.tsv", "--json"))
    assert judged["figures"]["cider"]["signature"].startswith("words:lower, letters|version:")


def test_a_model_that_does_not_see_is_refused(run: Path) -> None:
    (run.parent / "wrong.yaml").write_text(YAML.replace("caption-tiny, size: 16, convolutions: 2,", "tiny,"))
    with pytest.raises(ValueError, match="caption"):
        recipes.load(str(run.parent / "wrong.yaml"), []).purpose()
