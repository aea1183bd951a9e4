"""Pictures from files to answers: prepared once, learnt, resumed to the bit, told, judged; or refused in one line."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.pictures import Sight
from regard.files import cache_folder
from regard.models import storage
from regard.models.family import build, configure
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.studies.judging import judge
from regard.tasks.viewer import Viewed
from tests.pictures import KINDS, folder, picture

YAML = """
task: {name: recognise}
data: {train: {folder: train}, test: {folder: test}, augment: {crop: 1, mixup: 0.1}}
model: {preset: cct-2, size: 16, d_model: 32, d_ff: 32}
train:
  steps: 36
  batch_rows: 16
  shards: 2
  schedule: {name: linear, peak: 0.01, warmup: 4}
  validate_every: 12
  checkpoint_every: 6
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pictures")
    folder(made / "train", 60)
    folder(made / "test", 8, seed=1)
    (made / "r.yaml").write_text(YAML)
    return made


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))


def learn(place: Path, out: Path, *overrides: str, **how: Any) -> Path:
    train(recipes.load(str(place / "r.yaml"), overrides), out, name="r", console=Console(quiet=True), **how)
    return out


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        return learn(place, place / "run")


def show(*arguments: object, stdin: str = "") -> str:
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin, env={"TERM": "dumb", "COLUMNS": "150"})
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def test_it_learns_what_pictures_show(place: Path, run: Path) -> None:
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["accuracy"]["score"] > 0.9
    assert figures["accuracy"]["signature"] == "pictures:24"
    assert not (run / "tokenizer.json").exists()
    task = json.loads((run / "config.json").read_text())["task"]
    assert (task["name"], task["labels"]) == ("recognise", sorted(KINDS))
    assert task["sight"]["size"] == 16
    assert "augment" not in task


def test_a_run_is_resumed_to_the_bit(place: Path, run: Path, tmp_path: Path) -> None:
    """What is drawn hangs on the seed and the batch, not on when the run was begun."""
    out = learn(place, tmp_path / "half", "train.steps=36", "train.validate_every=12")
    first = load_file(run / "model.safetensors")
    assert all(torch.equal(x, first[name]) for name, x in load_file(out / "model.safetensors").items())
    again = tmp_path / "again"
    shutil.copytree(run, again)
    for name in ("model.safetensors", "config.json", "evaluation.json"):
        (again / name).unlink()
    kept = sorted((again / "trainer").glob("*"))
    for late in kept[1:]:
        if late.is_dir():
            shutil.rmtree(late)
    learn(place, again, resume=True)
    assert all(torch.equal(x, first[name]) for name, x in load_file(again / "model.safetensors").items())


def test_pictures_of_every_form_are_told(place: Path, run: Path) -> None:
    recogniser, path = regard.load(run), place / "test" / "red" / "0.png"
    forms = [path, str(path), path.read_bytes(), Image.open(path), np.asarray(Image.open(path))]
    found = recogniser.classify(forms, top=2)
    assert len({each.logits for each in found}) == 1
    assert recogniser.classify(path, top=2).logits == pytest.approx(found[0].logits, abs=1e-5)
    assert found[0].label == "red"
    assert len(found[0].probabilities) == 2
    assert recogniser.pictured(Viewed(path)).said == "red"


def test_company_changes_no_bit_if_asked(place: Path, run: Path) -> None:
    paths = sorted((place / "test").rglob("*.png"))
    alone = regard.load(run, bitwise=True)
    assert [each.logits for each in alone.classify(paths)] == [alone.classify(path).logits for path in paths]


def test_an_ensemble_is_the_mean(place: Path, run: Path) -> None:
    path = place / "test" / "blue" / "0.png"
    assert regard.load([run, run]).classify(path).logits == pytest.approx(regard.load(run).classify(path).logits)


def test_the_command_tells_files_folders_and_tables(place: Path, run: Path, tmp_path: Path) -> None:
    path = place / "test" / "red" / "0.png"
    name, label, probability = show("classify", run, path).rstrip("\n").split("\t")
    assert (name, label, float(probability) > 0.5) == (str(path), "red", True)
    assert len(show("classify", run, place / "test", "--top", 2).splitlines()) == 24
    (tmp_path / "some.jsonl").write_text(json.dumps({"image": str(path), "id": 7}) + "\n")
    told = json.loads(show("classify", run, tmp_path / "some.jsonl", "--json"))
    assert (told["id"], told["image"], told["label"]) == (7, str(path), "red")
    assert show("classify", run, stdin=f"{path}\n") == show("classify", run, path)
    show("classify", run, place / "test", "-o", tmp_path / "out.tsv")
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 24


def test_a_model_is_judged_and_calibrated(place: Path, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    found = judge(copy, place / "test", calibrate=True)
    assert (found["task"], found["counted"], found["rows"]) == ("recognise", "pictures", 24)
    assert {"accuracy", "f1", "ece", "loss"} <= found["figures"].keys()
    assert regard.load(copy).use.temperature == found["calibrated"]["temperature"]["after"]
    assert "accuracy" in show("evaluate", copy, place / "test")


def test_damaged_pictures_are_counted_and_left_out(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "train", tmp_path / "train")
    shutil.copytree(place / "test", tmp_path / "test")
    for split, names in (("train", ("red/1", "blue/2")), ("test", ("red/1",))):
        for name in names:
            path = tmp_path / split / f"{name}.png"
            path.write_bytes(path.read_bytes()[:60])
    (tmp_path / "r.yaml").write_text(YAML)
    data = prepare(recipes.load(str(tmp_path / "r.yaml")))
    assert (len(data.train) + len(data.valid), len(data.test)) == (178, 23)
    assert any(remark.startswith("skipped") and "damaged or cut off" in remark for remark in data.remarks)
    assert any("test: 1 pictures cannot be opened" in remark for remark in data.remarks)


def test_pictures_that_are_in_two_splits_are_told(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "train", tmp_path / "train")
    folder(tmp_path / "test", 2, seed=1)
    for i in range(4):
        shutil.copy(tmp_path / "test" / "blue" / "0.png", tmp_path / "train" / "blue" / f"another{i}.png")
    (tmp_path / "r.yaml").write_text(YAML)
    data = prepare(recipes.load(str(tmp_path / "r.yaml")))
    assert any("pictures are in valid or test, too" in remark for remark in data.remarks)


def test_a_label_that_training_does_not_have_is_told_with_its_picture(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "train", tmp_path / "train")
    (folder(tmp_path / "test", 2, seed=1) / "blue").rename(tmp_path / "test" / "sky")
    (tmp_path / "r.yaml").write_text(YAML)
    with pytest.raises(ValueError, match=r"sky/0\.png: the label 'sky' is none of training: there are blue"):
        prepare(recipes.load(str(tmp_path / "r.yaml")))


def test_nothing_is_left_half_prepared(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    calls = 0
    real = Sight.pixels

    def fails(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 30:
            raise MemoryError
        return real(self, *args)

    monkeypatch.setattr(Sight, "pixels", fails)
    recipe = recipes.load(str(place / "r.yaml"))
    with pytest.raises(MemoryError):
        prepare(recipe)
    assert list((cache_folder() / "prepared").iterdir()) == []
    monkeypatch.setattr(Sight, "pixels", real)
    data = prepare(recipe)
    assert len(data.train) + len(data.valid) == 180


def test_augmentation_and_the_head_need_no_other_preparation(place: Path) -> None:
    recipe = recipes.load(str(place / "r.yaml"))
    other = recipes.load(str(place / "r.yaml"), ["data.augment.flip=true", "task.dropout=0.5"])
    one, two = prepare(recipe), prepare(other)
    assert one.identity == two.identity
    assert (two.task.augment.flip, two.task.dropout, two.task.labels) == (True, 0.5, one.task.labels)  # type: ignore[attr-defined]


def test_a_trained_model_learns_other_classes(place: Path, run: Path, tmp_path: Path) -> None:
    """Its body, and how it sees, are kept; its head is new."""
    draw = np.random.default_rng(5)
    rows = [(picture("red", draw), "bright"), (255 - picture("red", draw), "dark")] * 12
    np.savez(tmp_path / "two.npz", images=[image for image, _ in rows], labels=[label for _, label in rows])
    files = ", ".join(f"{split}: {{npz: two.npz}}" for split in ("train", "valid", "test"))
    text = f"task: {{name: recognise}}\ndata: {{{files}}}\n"
    text += f"model: {{from: {run}}}\ntrain: {{steps: 2, batch_rows: 8, freeze: [stem.*]}}\n"
    (tmp_path / "r.yaml").write_text(text)
    data = prepare(recipes.load(str(tmp_path / "r.yaml")))
    assert data.task.labels == ("bright", "dark")  # type: ignore[attr-defined]
    out = learn(tmp_path, tmp_path / "out")
    kept = load_file(run / "model.safetensors")["stem.project.0.weight"]
    assert torch.equal(load_file(out / "model.safetensors")["stem.project.0.weight"], kept)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Calls a command that must fail, and gives its one line."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        _, error = capsys.readouterr()
        assert end.value.code == 2, error
        return error

    return run


def test_what_cannot_be_told_is_one_line(place: Path, run: Path, tmp_path: Path, fail: Any) -> None:
    assert "there is no file 'a charming film'" in fail("classify", run, "a charming film")
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    assert "cut.jpg" in fail("classify", run, tmp_path / "cut.jpg")
    (tmp_path / "none").mkdir()
    assert "has no picture in it" in fail("classify", run, tmp_path / "none")
    path = place / "test" / "red" / "0.png"
    assert "are for texts" in fail("classify", run, path, "--pair", "x")
    for given in ("x", path):
        assert "cannot embed: it is a model to classify" in fail("embed", run, given)
    assert "cannot translate" in fail("translate", run, "x")
    result = CliRunner().invoke(cli.app, ["classify", str(run), str(tmp_path / "cut.jpg"), str(path)])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    assert "1 of 2 pictures were left out" in result.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.batch_rows=null", "train.batch_rows: say how many pictures"),
        ("model.preset=bert-tiny", "does not see|has no setting|there is no"),
        ("data.train.folder=nowhere", "is no folder"),
        ("task.kind=number", "mixup and cutmix are for labels"),
        ("data.resample=best", "resample"),
        ("task.name=embed", "."),
        ("data.augment.crop=-1", "data.augment.crop = -1"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(place: Path, tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn(place, tmp_path / "out", override)
    assert not (tmp_path / "out").exists()


def test_a_text_task_is_not_for_a_model_that_sees(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "task: {name: classify}\ndata: {train: {tsv: a.tsv}}\nmodel: {preset: cct-2}\ntrain: {steps: 1}\n"
    )
    with pytest.raises(ValueError, match="a model like cct-2 cannot do it; it can recognise"):
        recipes.load(str(tmp_path / "r.yaml"))


def test_a_model_that_knows_no_classes_says_so(tmp_path: Path) -> None:
    model = build(configure("vit-tiny").but(size=16, patch=8, layers=1))
    storage.save(model, tmp_path, storage.Purpose({"name": "recognise", "sight": {"size": 16}}, {}))
    with pytest.raises(ValueError, match="knows no classes yet"):
        regard.load(tmp_path)
