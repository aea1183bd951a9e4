"""Scaling: the whole experiment on made-up text, its resumption, and a report that follows its numbers."""

import json
import signal
from itertools import product
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from regard.experiments import lab, scaling
from regard.experiments.lab import SCALES, Experiment, Result
from regard.recipes import reading as recipes

QUIET = Console(quiet=True)


def made_up(parameters: float, data: float) -> dict[str, Result]:
    """Results of L = 2 + 30 / N^parameters + 20 / D^data."""
    results = {}
    for width, pairs in product([32, 64, 128, 256], [1000, 4000, 16_000, 64_000]):
        N, shared = 40 * width**2, {"steps": 300, "epochs": 2.0, "vocabulary": 2000, "batch": 2048, "threads": 2}
        loss = 2 + 30 / N**parameters + 20 / pairs**data
        results[f"width-{width}-pairs-{pairs}"] = {
            **shared,
            "loss": loss,
            "pairs": pairs,
            "seen": pairs,
            "width": width,
            "parameters": N,
        }
    return results


def test_the_report_finds_planted_exponents() -> None:
    text = scaling.report(made_up(0.3, 0.5), "small").text
    row = next(line for line in text.splitlines() if line.startswith("| L(N, D) |"))
    assert "| 0.3 [0.3, 0.3] | 0.5 [0.5, 0.5] |" in row
    assert "N ∝ C^0.62 and D ∝ C^0.38" in text  # 0.5 / 0.8
    assert "better in 3 of 3 cases; the best width was 256" in text
    assert "lies outside the confidence of ours" in text
    assert "change their term of the joint law by -18.8%, twice the data theirs by -29.3%" in text  # 2^-0.3, 2^-0.5


def test_larger_models_that_are_worse_are_said_to_be_worse() -> None:
    text = scaling.report(made_up(-0.01, 0.5), "small").text
    assert "better in 0 of 3 cases; the best width was 32" in text


@pytest.mark.parametrize("scale", SCALES)
def test_every_recipe_of_every_scale_can_be_loaded(scale: str) -> None:
    for trial in scaling.trials(scale):
        plan = recipes.load(trial.settings["recipe"], trial.settings["changes"])
        assert plan.train.smoothing == 0
        assert plan.data.limit is None or plan.data.limit >= trial.settings["pairs"]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Words and their translation, as a recipe of its own."""
    random, words = Random(0), [f"{a}{b}{c}" for a, b, c in product("bdkl", "aeiou", "mnst")]
    for split, size in (("train", 300), ("valid", 20), ("test", 5)):
        lines = [[random.choice(words) for _ in range(random.randint(2, 9))] for _ in range(size)]
        (tmp_path / f"{split}.a").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        (tmp_path / f"{split}.b").write_text("".join(f"{' '.join(w[::-1] for w in line)}\n" for line in lines))
    files = "\n".join(f"  {split}: {{source: {split}.a, target: {split}.b}}" for split in ("train", "valid", "test"))
    head, tail = "description: made up\ndata:\n", "model: {preset: tiny}\ntrain: {steps: 4, optimiser: {name: muon}}\n"
    (tmp_path / "made.yaml").write_text(f"{head}{files}\n{tail}")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scaling, "RECIPE", {"smoke": str(tmp_path / "made.yaml")})
    monkeypatch.setattr(lab, "find", lambda name: scaling.EXPERIMENT)
    return tmp_path


def test_a_model_sees_no_more_pairs_than_it_is_given(corpus: Path) -> None:
    def loss(pairs: int, name: str) -> Result:
        changes = [*scaling._settings("smoke", 16)["changes"], "train.steps=6"]
        folder = corpus / name
        return scaling.trained_on(folder, QUIET, recipe=str(corpus / "made.yaml"), changes=changes, pairs=pairs)

    few, many = loss(5, "few"), loss(200, "many")
    assert (few["pairs"], few["seen"], few["epochs"]) == (5, 5, 6.0)  # one batch holds them all
    assert many["seen"] < 200
    assert many["epochs"] < 1
    assert few["loss"] != many["loss"]
    again = loss(5, "few")  # finished already: goes on from its last checkpoint, and has nothing to do
    assert {**again, "seconds": 0} == {**few, "seconds": 0}


def test_what_is_interrupted_is_saved_and_goes_on(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "recipe": str(corpus / "made.yaml"),
        "changes": [*scaling._settings("smoke", 16)["changes"], "train.steps=5"],
    }
    whole = scaling.trained_on(corpus / "whole", QUIET, **settings, pairs=20)
    foretell, looked = scaling.foretell, []

    def pressing(model: Any, pairs: Any) -> Any:
        looked.append(len(looked) + 1)
        if looked == [1, 2]:
            signal.raise_signal(signal.SIGINT)
        return foretell(model, pairs)

    monkeypatch.setattr(scaling, "foretell", pressing)
    with pytest.raises(KeyboardInterrupt):
        scaling.trained_on(corpus / "half", QUIET, **settings, pairs=20)
    assert len(looked) == 2
    half = scaling.trained_on(corpus / "half", QUIET, **settings, pairs=20)
    assert len(looked) == 5  # after each step: none was taken twice
    assert {**half, "seconds": 0} == {**whole, "seconds": 0}


@pytest.mark.slow
def test_the_whole_experiment_and_its_resumption(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[str] = []
    this: Experiment = lab.find("scaling")
    perform = lab._perform

    def watched(trial: lab.Trial, folder: Path, console: Console) -> Result:
        if len(known) == 3:
            raise KeyboardInterrupt
        known.append(trial.name)
        return perform(trial, folder, console)

    monkeypatch.setattr(lab, "_perform", watched)
    out = corpus / "out"
    with pytest.raises(KeyboardInterrupt):
        lab.experiment("scaling", scale="smoke", out=out, console=QUIET)
    first, known[:] = known[:], [""] * 4  # never three again
    lab.experiment("scaling", scale="smoke", out=out, console=QUIET)
    assert [*first, *known[4:]] == [trial.name for trial in this.trials("smoke")]
    text = (out / "scaling.md").read_text("utf-8")
    assert "| L(N, D) |" in text
    assert "nan" not in text
    assert set(json.loads((out / "scaling.json").read_text("utf-8"))["trials"]) == {*first, *known[4:]}
    for name in ("parameters", "data", "paper"):
        assert f"(scaling-{name}.svg)" in text
        assert ElementTree.parse(out / f"scaling-{name}.svg").getroot().tag.endswith("svg")
