"""Models of every family through the same doors: trained by a recipe, resumed, used, seen, made smaller; or refused."""

import json
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.adaptation.prune import prune
from regard.data.dates import date_pairs
from regard.data.vocabulary import EOS
from regard.models import storage
from regard.models.family import FAMILIES, build, configure, family, family_of, presets
from regard.models.transformer import TransformerConfig
from regard.recipes import reading as recipes
from regard.recipes.train import train
from regard.serving import looks
from regard.serving.live import Live
from regard.training.config import TrainConfig
from regard.training.distributed import World
from regard.training.loop import Learner
from regard.training.objectives import NextToken
from regard.training.optimisers import OptimiserConfig, hidden_matrices

YAML = """
data: {train: {source: train.src, target: train.tgt}, hold_out: 15, max_length: 40}
tokens: {kind: bpe, size: 350}
model: MODEL
train:
  steps: 4
  batch_tokens: 512
  shards: 2
  schedule: {name: linear, peak: 0.01, warmup: 2}
  validate_every: 4
  validate_sentences: 4
  checkpoint_every: 2
decode: {beam: 2, extra: 5}
"""
SMALL = "encoder_layers: 1, decoder_layers: 1, d_model: 16"
TINY = f"preset: tiny, {SMALL}, d_ff: 16"
MODELS = {
    "lstm": f"{{preset: lstm, {SMALL}}}",
    "convs2s": f"{{preset: convs2s, {SMALL}}}",
    "bytenet": f"{{preset: bytenet, {SMALL}}}",
    "additive": f"{{{TINY}, score: additive}}",
}
MORE = {
    "gru": f"{{preset: gru, {SMALL}}}",
    "rnn": f"{{preset: rnn, {SMALL}, input_feeding: false}}",
    "linear-rnn": f"{{preset: linear-rnn, {SMALL}}}",
    "general": f"{{{TINY}, score: general}}",
    "sparsemax": f"{{{TINY}, normaliser: sparsemax}}",
    "monotonic": f"{{{TINY}, cross_normaliser: monotonic}}",
    "window": f"{{{TINY}, self_attention: 'window:2'}}",
    "performer": f"{{{TINY}, self_attention: 'performer:8'}}",
    "linear": f"{{{TINY}, self_attention: linear}}",
}
EVERY = [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
TEXT = "5 mars 1987"
ADAMW = OptimiserConfig("adamw")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parallel files of dates."""
    made = tmp_path_factory.mktemp("dates")
    pairs = list(islice(date_pairs(seed=1, locales=["en", "fr", "de"]), 300))
    (made / "train.src").write_text("".join(f"{pair.text}\n" for pair in pairs), "utf-8")
    (made / "train.tgt").write_text("".join(f"{pair.iso}\n" for pair in pairs), "utf-8")
    for side in ("src", "tgt"):
        lines = (made / f"train.{side}").read_text("utf-8").splitlines(keepends=True)
        (made / f"test.{side}").write_text("".join(lines[:6]), "utf-8")
    return made


@pytest.fixture(autouse=True)
def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))


def learn(folder: Path, name: str, **how: Any) -> Path:
    """The run of a model, made once."""
    run = folder / name
    if how or not run.exists():
        recipe = folder / f"{name}.yaml"
        recipe.write_text(YAML.replace("MODEL", (MODELS | MORE)[name]))
        train(recipes.load(str(recipe)), run, name=name, console=Console(quiet=True), **how)
    return run


def show(*arguments: object, stdin: str = "") -> str:
    """The output of a command that must succeed."""
    environment = {"TERM": "dumb", "COLUMNS": "150"}
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin, env=environment)
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Calls a command that must fail, and gives its one line."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        _, error = capsys.readouterr()
        assert (end.value.code, error.count("\n")) == (2, 1), error
        return error

    return run


def test_every_preset_belongs_to_a_family_and_builds_its_model() -> None:
    assert {family_of(preset) for preset in presets()} == set(FAMILIES)
    assert {"transformer", "recurrent", "convolutional", "decoder", "encoder", "vision", "pair"} < set(FAMILIES)
    for preset in presets():
        config = configure(preset, ["d_model=576"], vocabulary=50)
        with torch.device("meta"):
            assert type(build(config)) is family(family_of(preset)).model
    assert configure("lstm", ["input_feeding=false"], vocabulary=50).input_feeding is False
    with pytest.raises(ValueError, match="unknown preset 'lstms': did you mean 'lstm'"):
        configure("lstms", vocabulary=50)
    with pytest.raises(ValueError, match="a Recurrent model has no setting 'norm'"):
        configure("lstm", ["norm=pre"], vocabulary=50)
    with pytest.raises(ValueError, match="a dict is no config of a model"):
        build({})


@pytest.mark.parametrize("name", EVERY)
def test_a_run_that_is_resumed_is_the_same_model(folder: Path, name: str) -> None:
    through, half = learn(folder, name), folder / f"{name}-half"
    shutil.copytree(through, half)
    shutil.rmtree(next((half / "trainer").glob("step-00000004*")))  # as if killed after step 2
    (half / "model.safetensors").unlink()
    train(recipes.load(str(half / "recipe.yaml")), half, name=name, resume=True, console=Console(quiet=True))
    a, b = (load_file(run / "model.safetensors") for run in (through, half))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_trained_translates_scores_and_evaluates(folder: Path, name: str) -> None:
    run = learn(folder, name)
    translator = regard.load(run)
    texts = (folder / "test.src").read_text("utf-8").splitlines()
    lines = show("translate", run, folder / "test.src", "--beam", "3").split("\n")[:-1]
    assert len(lines) == len(texts)
    # Alone or in company, a sentence is translated alike.
    assert lines == [translator.translate(text, beam=3) for text in texts]
    assert translator.score([TEXT], ["1987-03-05"])[0].log_probability < 0.0
    files = ["--source", folder / "test.src", "--reference", folder / "test.tgt"]
    assert json.loads(show("evaluate", run, *files, "--json"))["perplexity"] > 1.0
    account = json.loads(show("info", run, "--json"))
    assert account["parameters"] == sum(p.numel() for p in storage.load(run).parameters())


@pytest.mark.parametrize("name", [name for name in EVERY if name != "bytenet"])
def test_its_attention_is_seen(folder: Path, tmp_path: Path, name: str) -> None:
    run = learn(folder, name)
    said = show("inspect", run, TEXT, "--target", "1987-03-05", "-o", tmp_path / "seen.html")
    assert "seen.html: " in said
    translator = regard.load(run)
    source, target = (len(translator.tokenizer.encode(text)) + 1 for text in (TEXT, "1987-03-05"))
    maps = translator.attention(TEXT, "1987-03-05", names="*cross_attention")
    assert maps
    for each in maps:
        assert each.weights.shape[1:] == (target, source)
        assert (each.weights.sum(-1) <= 1.0 + 1e-5).all()
    assert show("inspect", run, TEXT, "--view", "norm", "--words", "-o", tmp_path / "seen.svg")
    files = ["--source", folder / "test.src", "--reference", folder / "test.tgt"]
    show("heads", run, *files, "-o", tmp_path, "--no-prune", "--limit", "3")
    atlas = json.loads((tmp_path / "heads.json").read_text("utf-8"))
    assert {head["kind"] for head in atlas["heads"]} >= {"cross"}
    assert all(head["ablation"] for head in atlas["heads"])


@pytest.mark.parametrize("name", EVERY)
def test_int8_makes_a_smaller_model_that_loads_draws_nothing_and_translates(
    folder: Path, tmp_path: Path, name: str
) -> None:
    run = learn(folder, name)
    show("quantize", run, tmp_path / "int8")
    before = torch.get_rng_state()
    loaded = storage.load(tmp_path / "int8"), storage.load(run)
    assert torch.equal(torch.get_rng_state(), before)
    assert [type(each) for each in loaded] == [type(storage.load(run))] * 2
    assert (tmp_path / "int8" / "model.safetensors").stat().st_size < (run / "model.safetensors").stat().st_size
    assert len(show("translate", tmp_path / "int8", stdin=f"{TEXT}\n").split("\n")) == 2


def test_what_a_family_cannot_do_is_one_clear_line(folder: Path, tmp_path: Path, fail: Any) -> None:
    lstm, bytenet, additive = (learn(folder, name) for name in ("lstm", "bytenet", "additive"))
    says = {"onnx": "only Encoder, Decoder, ", "ctranslate2": "only a Transformer can be exported"}
    for to, why in {**says, "hf": "no class of Hugging Face's is one"}.items():
        assert f"a Recurrent model: {why}" in fail("export", lstm, tmp_path / "x", "--to", to)
        apart = (
            "score = 'additive' (in marian it is 'dot')"
            if to == "hf"
            else "cannot express score = 'additive', only 'dot'"
        )
        assert apart in fail("export", additive, tmp_path / "x", "--to", to)
    texts = ["--source", folder / "test.src", "--reference", folder / "test.tgt"]
    assert "decoder.cross_attention cannot lose a head: full attention by general score" in fail(
        "prune", lstm, tmp_path / "y", "--keep", "1", *texts
    )
    assert "there is nothing to see" in fail("inspect", bytenet, TEXT, "-o", tmp_path / "z.html")
    assert "there is nothing to see" in fail("heads", bytenet, *texts)
    assert "nothing to align by" in fail("translate", bytenet, folder / "test.src", "--align")
    assert "no native engine for this model" in fail("translate", lstm, folder / "test.src", "--engine", "native")
    assert "shortlists are for the native engine, and it cannot run this model (a Recurrent" in fail("shortlist", lstm)
    assert not list(tmp_path.iterdir())
    shared = build(TransformerConfig.tiny(50, self_attention="linformer:4", decoder_self_attention="full"))
    with pytest.raises(ValueError, match=r"encoder\.layers\.0\.self_attention cannot lose a head: linformer:4"):
        prune(shared, {})


def test_the_explorer_shows_what_there_is(folder: Path) -> None:
    lstm, bytenet = (Live(regard.load(learn(folder, name))) for name in ("lstm", "bytenet"))
    (only,) = lstm.about()["attentions"]
    sides = {name: {"input": each, "late": False} for name, each in (("queries", "target"), ("keys", "source"))}
    assert only == {
        "name": "decoder.cross_attention", "kind": "cross", **sides, "causal": False, "role": "predicted",
        "layer": 0, "heads": 1, "dots": False,
    }  # fmt: skip
    texts = {"source": TEXT, "target": "1987-03-05"}
    given = {name: [*lstm.tokenizer.encode(text), EOS] for name, text in texts.items()}
    look = lstm.look(given, {})
    ((name, heads, weights),) = looks.maps(lstm, look, "weights", [("decoder.cross_attention", None)])
    assert (name, heads) == ("decoder.cross_attention", [0])
    assert weights.shape == (1, len(given["target"]), len(given["source"]))
    assert looks.measures(lstm, look)["heads"][0]["importance"] == pytest.approx(1.0)  # the only head of its attention
    assert isinstance(looks.faithfulness(lstm, look)["gradient"]["tau"], float)
    # A silent head changes what is said.
    silent = lstm.look(given, {"decoder.cross_attention": {0: 0.0}})
    assert lstm.score(silent)["log_probability"] != lstm.score(look)["log_probability"]
    with pytest.raises(ValueError, match="full attention by general score has no products of queries and keys"):
        looks.neuron(lstm, look, "decoder.cross_attention", 0, 0)
    assert bytenet.about()["attentions"] == []
    assert [line["kind"] for line in bytenet.translate(TEXT) if line][-1] == "done"
    with pytest.raises(ValueError, match="without attention has no heads"):
        looks.measures(bytenet, bytenet.look(given, {}))


def test_a_part_that_a_model_does_not_have_cannot_be_computed_twice() -> None:
    model = build(configure("lstm", ["d_model=16"], vocabulary=50))
    with pytest.raises(ValueError, match=r"train\.recompute=feed_forward: a Recurrent model has no such part"):
        Learner(NextToken(model, 0.1), lambda step: 0.0, TrainConfig(steps=1, recompute="feed_forward"))
    two = World(rank=0, size=2)
    with pytest.raises(ValueError, match=r"fsdp cannot share out PyTorch's recurrent cells: use ddp"):
        Learner(NextToken(model, 0.1), lambda step: 0.0, TrainConfig(steps=1, distributed="fsdp", optimiser=ADAMW), two)


def test_muon_trains_the_matrices_of_each_gate() -> None:
    model = build(configure("lstm", ["d_model=16", "encoder_layers=1", "decoder_layers=1"], vocabulary=50))
    hidden = hidden_matrices(model)
    gates = {name: p for name, p in model.named_parameters() if ".weight_ih_" in name or ".weight_hh_" in name}
    assert len(gates) == 6  # in and over, of two directions and of the decoder
    assert all(hidden[p] == (len(p) // 4,) * 4 for p in gates.values())
    assert model.get_parameter("output.weight") not in hidden


def test_a_table_of_positions_bounds_what_is_read() -> None:
    long = {"max_length": 30}
    bounded = [{"positions": "learned"}, {"score": "location"}, {"cross_score": "location"}]
    assert [TransformerConfig.tiny(50, **long, **each).longest for each in bounded] == [30, 30, 30]
    linformer = {"self_attention": "linformer:4", "decoder_self_attention": "full"}
    assert TransformerConfig.tiny(50, **long, **linformer).longest == 30
    assert [presets()[name](50).longest for name in ("tiny", "lstm", "bytenet", "convs2s")] == [
        None,
        None,
        None,
        1024,
    ]
