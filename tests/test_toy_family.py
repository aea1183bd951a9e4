"""A new member is one model file, a new task is one file: toys of both go through every door; no room knows them."""

import json
import shutil
from pathlib import Path

import httpx
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.adaptation.prune import prune
from regard.models import storage
from regard.models.family import FAMILIES
from regard.recipes import reading
from regard.recipes.train import train
from regard.serving.registry import Registry
from regard.tasks.task import TASKS
from tests import toy_family, toy_task
from tests.serving.servers import running

RECIPE = """
task: {name: generate, block: 24}
data: {train: {text: text.txt, documents: line}, hold_out: 20}
tokens: {kind: char, size: 0}
model: {preset: bag, heads: 4}
train:
  steps: 12
  batch_tokens: 256
  smoothing: 0.0
  optimiser: {name: adamw}
  checkpoint_every: 4
  validate_every: 6
  shards: 2
decode: {limit: 20, sampling: null, beam: 2}
"""
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that a new member adds to a file that is there."""
    monkeypatch.setitem(FAMILIES, "bag", toy_family.__name__)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and the run of a recipe for it."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "text.txt").write_text("".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(600)))
    (folder / "toy.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "bag", toy_family.__name__)
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        assert train(reading.load(str(folder / "toy.yaml")), folder / "run", name="toy", console=QUIET)
    return folder / "run"


def show(*arguments: object) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def test_a_recipe_names_it_and_a_mistake_in_its_settings_is_told(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(RECIPE)
    recipe = reading.load(str(tmp_path / "toy.yaml"), ["model.heads=8"])
    assert recipe.model.build(50) == toy_family.bag(50, heads=8)
    (tmp_path / "whole.yaml").write_text(reading.dump(recipe))
    assert reading.load(str(tmp_path / "whole.yaml")) == recipe
    with pytest.raises(ValueError, match=r"unknown key 'head' in model; did you mean 'heads'\?"):
        reading.load(str(tmp_path / "toy.yaml"), ["model.head=8"])
    with pytest.raises(ValueError, match="a model like bag cannot do it; it can generate"):
        reading.load("quickstart", ["model.preset=bag"])
    assert '"bag"' in json.dumps(reading.schema())


def test_it_learns_and_a_run_that_is_resumed_is_the_same_model(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(run.parent / "cache"))
    half = tmp_path / "half"
    shutil.copytree(run, half)
    for later in ("step-00000008*", "step-00000012*"):
        shutil.rmtree(next((half / "trainer").glob(later)))  # as if killed after step 4
    (half / "model.safetensors").unlink()
    train(reading.load(str(half / "recipe.yaml")), half, name="toy", resume=True, console=QUIET)
    a, b = (load_file(each / "model.safetensors") for each in (run, half))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0]


def test_it_is_stored_with_what_it_is_for(run: Path, tmp_path: Path) -> None:
    about = json.loads((run / "config.json").read_text())
    assert (about["family"], about["task"]["name"]) == ("bag", "generate")
    model = storage.load(run)
    assert isinstance(model, toy_family.Bag)
    storage.save(model, tmp_path, storage.purpose(run))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (run / name).read_bytes()


def test_it_writes_what_the_slow_truth_writes_in_any_company(run: Path) -> None:
    generator = regard.load(run)
    prompts = ["1 and 2", "", "17 and 18 make"]
    slow = []
    for prompt in prompts:
        ids = generator.ids(prompt)
        start = len(ids)
        while len(ids) < start + 20 and ids[-1] != generator.eos:
            ids.append(int(generator.model(torch.tensor([ids]))[0, -1].argmax()))
        slow.append(generator.tokenizer.decode(ids[start:]))
    assert generator.generate(prompts, beam=1) == slow
    assert show("generate", run, "1 and 2", "--beam", "1").rstrip("\n") == slow[0]
    assert generator.score(["1 and 2 make 3."])[0].log_probability < 0.0


def test_it_is_served(run: Path) -> None:
    expected = regard.load(run).generate("1 and 2", beam=1, limit=9)
    with running(Registry([run])) as (address, _):
        body = {"model": "run", "prompt": "1 and 2", "max_tokens": 9, "temperature": 0}
        answer = httpx.post(f"{address}/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == expected


def test_it_is_seen_accounted_for_and_made_smaller(run: Path, tmp_path: Path) -> None:
    generator = regard.load(run)
    model, tokens = generator.model, torch.tensor([generator.ids("1 and 2")])
    with regard.record(model) as seen:
        model(tokens)
    (name,) = seen
    assert seen[name].shape == (1, 4, tokens.shape[1], tokens.shape[1])
    with regard.edit(model, {name: {0: 0.0}}):
        silent = model(tokens)
    assert torch.allclose(prune(model, {name: [0]})(tokens), silent, atol=1e-5)
    assert "1 and 2" in generator.attention_page("1 and 2")
    account = json.loads(show("info", run, "--json"))
    assert account["parameters"] == sum(p.numel() for p in model.parameters())
    assert account["memory"]["cache_per_target_token"] == 2 * 64 * 4  # a key and a value of d_model numbers
    show("quantize", run, tmp_path / "int8")
    assert isinstance(regard.load(tmp_path / "int8").generate("1 and 2"), str)


def test_a_new_task_is_learnt_stored_and_used_by_a_member_that_knows_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "label", toy_task.__name__)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    lines = [f"{word} {i}\t{word[0].upper()}\n" for i in range(200) for word in ("cat", "dog", "bird")]
    (tmp_path / "lines.tsv").write_text("".join(lines))
    (tmp_path / "label.yaml").write_text(
        "task: {name: label}\n"
        "data: {train: {text: lines.tsv, documents: line}, hold_out: 30}\n"
        "tokens: {kind: char, size: 0}\n"
        "model: {preset: bag}\n"
        "train: {steps: 30, batch_tokens: 512, smoothing: 0.0, optimiser: {name: adamw}, schedule: {warmup: 5}}\n"
    )
    recipe = reading.load(str(tmp_path / "label.yaml"))
    assert train(recipe, tmp_path / "run", name="label", console=QUIET)
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["accuracy"]["score"] > 0.9
    labeller = regard.load(tmp_path / "run")
    assert [labeller.label(text) for text in ("cat 3", "dog 999", "bird 12")] == ["C", "D", "B"]
    with pytest.raises(ValueError, match="cannot generate: it is a model to label"):
        regard.load(tmp_path / "run", task="generate")
    with pytest.raises(ValueError, match=r"override task.block=9: task.block is for the task generate, .* label"):
        reading.load(str(tmp_path / "label.yaml"), ["task.block=9"])
