"""A student of any task with classes or tokens learns from a teacher as well, resumes exactly, and owes it nothing."""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file

import regard
from regard import cli
from regard.recipes import reading
from regard.recipes.distil import distil
from regard.recipes.train import train
from tests import pictures

QUIET = Console(quiet=True)
GOOD, BAD = [f"{a}{b}" for a in "bdfg" for b in "aeiou"], [f"{a}{b}" for a in "klmn" for b in "aeiou"]
TRAIN = (
    "{steps: 6, batch_tokens: 256, smoothing: 0.0, checkpoint_every: 3, shards: 2, validate_every: 3, "
    "optimiser: {name: adamw}, schedule: {name: constant, peak: 0.003, warmup: 2}}"
)
SMALL = "layers: 1, d_model: 16, d_ff: 32, heads: 2, max_length: 32"
LARGE = "layers: 2, d_model: 24, d_ff: 32, heads: 2, max_length: 32"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def rows(n: int, seed: int, wrong: float = 0.0) -> list[dict[str, str]]:
    """Texts of nine words, of which more are good or bad; of some, the wrong one is said."""
    draw = random.Random(seed)
    found = []
    for _ in range(n):
        words = draw.choices(GOOD + BAD, k=9)
        good = sum(word in GOOD for word in words) > 4
        found.append({"text": " ".join(words), "label": "good" if good != (draw.random() < wrong) else "bad"})
    return found


def write(path: Path, found: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    write(folder / "rows.jsonl", rows(300, 1))
    write(folder / "other.jsonl", [row | {"label": row["label"] + "!"} for row in rows(300, 1)])
    for name, n in (("text", 300), ("held", 20)):
        (folder / f"{name}.txt").write_text("".join(row["text"] + ".\n" for row in rows(n, n)))
    pictures.folder(folder / "pictures", 24)
    return folder


CLASSIFY = "task: {name: classify}\ndata: {train: {jsonl: rows.jsonl}, hold_out: 20, max_length: 32}\n"
TEXT = "data: {train: {text: text.txt}, valid: {text: held.txt}, test: {text: held.txt}}\n"
RECIPES: dict[str, tuple[str, str]] = {
    "classify": (CLASSIFY, "bert-tiny"),
    "mask": (f"task: {{name: mask, block: 32}}\n{TEXT}", "bert-tiny"),
    "generate": (f"task: {{name: generate, block: 32}}\n{TEXT}", "gpt-tiny"),
    "recognise": (
        "task: {name: recognise, pool: both}\ndata: {train: {folder: pictures}, hold_out: 4}\n",
        "deit-tiny",
    ),
}


def recipe(folder: Path, name: str, sizes: str, *more: str, out: str = "") -> Path:
    about, preset = RECIPES[name]
    model, how = f"{{preset: {preset}, {sizes}, dropout: 0.1}}", TRAIN
    if name == "recognise":
        model = f"{{preset: {preset}, {sizes.replace(', max_length: 32', '')}, size: 16, patch: 8}}"
        how = TRAIN.replace("batch_tokens: 256", "batch_rows: 16")
    path = folder / f"{out or name}.yaml"
    tokens = "" if name == "recognise" else "tokens: {kind: bpe, size: 280}\n"
    path.write_text("\n".join([f"{about}{tokens}model: {model}", f"train: {how}", *more]))
    return path


def run(path: Path, *changes: str, out: str = "", resume: bool = False) -> Path:
    place = path.parent / "runs" / (out or path.stem)
    how: dict[str, Any] = {"resume": True} if resume else {"overwrite": True}
    assert train(reading.load(str(path), changes), place, name=path.stem, console=QUIET, **how)
    return place


@pytest.fixture(scope="module")
def teachers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return {name: run(recipe(folder, name, LARGE, out=f"teacher-{name}")) for name in RECIPES}


def same(a: Path, b: Path) -> bool:
    ours, theirs = (load_file(place / "model.safetensors") for place in (a, b))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("name", RECIPES)
def test_a_student_resumes_bit_for_bit_and_keeps_nothing_of_its_teacher(
    name: str, folder: Path, teachers: dict[str, Path]
) -> None:
    section = f"distil: {{teacher: {teachers[name]}, layers: [[1, 2]]}}"
    path = recipe(folder, name, SMALL, section, out=f"student-{name}")
    whole = run(path)
    run(path, "train.steps=3", out=f"parts-{name}")
    parts = run(path, out=f"parts-{name}", resume=True)
    assert same(whole, parts)
    assert not same(whole, run(path, "distil.share=0.0", "distil.layers=[]", out=f"alone-{name}"))
    assert not any("maps" in key for key in load_file(whole / "model.safetensors"))
    kept = [safe_open(file, "pt").keys() for file in (whole / "trainer").rglob("*.safetensors")]
    assert any("maps" in key for keys in kept for key in keys)
    assert not any("teacher" in key for keys in kept for key in keys)
    regard.load(whole)
    if name != "recognise":
        assert (whole / "tokenizer.json").read_bytes() == (teachers[name] / "tokenizer.json").read_bytes()


def test_the_verb_is_for_all_of_them_and_goes_on(
    folder: Path,
    teachers: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = recipe(folder, "classify", SMALL, out="by-verb")
    teacher = teachers["classify"]
    assert distil(teacher, reading.load(str(path), ["train.steps=3"]), tmp_path / "run", name="a", console=QUIET)
    assert distil(teacher, reading.load(str(path)), tmp_path / "run", name="a", console=QUIET)
    whole = run(path, f"distil.teacher={teacher}", out="by-key")
    assert same(whole, tmp_path / "run")
    for wrong, message in (
        (["--mix"], "--mix is for translations"),
        (["distil.layers=[[2, 1]]"], "the student has layers"),
    ):
        monkeypatch.setattr(
            sys, "argv", ["regard", "distill", *map(str, (teacher, path, "--out", tmp_path / "no")), *wrong]
        )
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
        assert not (tmp_path / "no" / "recipe.yaml").exists()


def test_what_was_added_to_a_model_is_taught_as_well(folder: Path, teachers: dict[str, Path]) -> None:
    teacher = teachers["classify"]
    path = recipe(folder, "classify", SMALL, out="changed")
    changes = [
        f"model.from={teacher}",
        "changes=[{lora: {rank: 2}}]",
        f"distil.teacher={teacher}",
        "distil.layers=[[1,1]]",
    ]
    whole = run(path, *changes)
    run(path, *changes, "train.steps=3", out="changed-parts")
    assert same(whole, run(path, *changes, out="changed-parts", resume=True))
    assert not any("maps" in key for key in load_file(whole / "model.safetensors"))


def test_a_teacher_of_something_else_is_refused(folder: Path, teachers: dict[str, Path], tmp_path: Path) -> None:
    def refused(path: Path, *changes: str) -> str:
        with pytest.raises(ValueError, match=r".") as error:
            run(path, *changes, out="wrong")
        assert not (folder / "runs" / "wrong" / "recipe.yaml").exists()
        return str(error.value)

    student, teacher = recipe(folder, "classify", SMALL, out="wrong"), teachers["classify"]
    assert "it is to mask, and this recipe is to classify" in refused(student, f"distil.teacher={teachers['mask']}")
    assert "not a model directory" in refused(student, f"distil.teacher={tmp_path}")
    labels = refused(student, f"distil.teacher={teacher}", "data.train.jsonl=" + str(folder / "other.jsonl"))
    assert 'its labels = ["bad", "good"], and the student\'s ["bad!", "good!"]' in labels
    assert 'its kind = "one", and the student\'s "several"' in refused(
        student, f"distil.teacher={teacher}", "task.kind=several"
    )
    long = refused(student, f"distil.teacher={teacher}", "data.max_length=64", "model.max_length=64")
    assert "it reads 32 tokens, and a text may have 64" in long
    other = run(recipe(folder, "classify", SMALL, out="words"), "tokens={kind: char, size: 0}")
    said = refused(student, f"model.from={other}", f"distil.teacher={teacher}")
    assert "of 280 tokens is another than the student's of" in said
    seen = recipe(folder, "recognise", SMALL, out="wrong")
    finer = refused(seen, f"distil.teacher={teachers['recognise']}", "model.size=24")
    assert "its sight = " in finer
    assert "neither classes nor tokens" in refused(
        recipe(folder, "classify", SMALL, out="wrong"), f"distil.teacher={_numbers(folder)}", *NUMBERS
    )
    assert "distil.share = 1.5" in refused(student, f"distil.teacher={teacher}", "distil.share=1.5")


NUMBERS = ["task.kind=number", "data.train.jsonl=numbers.jsonl"]


def _numbers(folder: Path) -> Path:
    write(folder / "numbers.jsonl", [{"text": row["text"], "label": str(i % 7)} for i, row in enumerate(rows(300, 3))])
    NUMBERS[1] = f"data.train.jsonl={folder / 'numbers.jsonl'}"
    return run(recipe(folder, "classify", SMALL, out="numbers"), *NUMBERS)


def test_a_run_goes_on_with_the_same_teacher_wherever_it_lies(
    folder: Path, teachers: dict[str, Path], tmp_path: Path
) -> None:
    path = recipe(folder, "classify", SMALL, out="moved")
    run(path, f"distil.teacher={teachers['classify']}", "train.steps=3")
    shutil.copytree(teachers["classify"], tmp_path / "there")
    run(path, f"distil.teacher={tmp_path / 'there'}", resume=True)
    run(path, f"distil.teacher={teachers['classify']}", "train.steps=3")
    taught = run(recipe(folder, "classify", LARGE, out="another"), "train.seed=5")
    with pytest.raises(ValueError, match=r"the training data has changed since this run began, or its teacher"):
        run(path, f"distil.teacher={taught}", resume=True)
    with pytest.raises(ValueError, match=r"distil.temperature = 3.0 cannot change in a run that has begun"):
        run(path, f"distil.teacher={teachers['classify']}", "distil.temperature=3.0", resume=True)


@pytest.mark.slow
def test_a_student_learns_more_with_a_teacher(folder: Path) -> None:
    """Of labels of which a third is wrong; the teacher has seen many that are right."""
    write(folder / "many.jsonl", rows(3000, 11))
    write(folder / "few.jsonl", rows(400, 12, wrong=0.35))
    write(folder / "test.jsonl", rows(500, 13))
    held = f"data.valid={{jsonl: {folder}/test.jsonl}}", f"data.test={{jsonl: {folder}/test.jsonl}}"
    how = [
        *held,
        "train.steps=250",
        "train.batch_tokens=1024",
        "train.validate_every=250",
        "tokens={kind: bpe, size: 280}",
    ]

    def right(out: str, sizes: str, *changes: str) -> float:
        place = run(recipe(folder, "classify", sizes, out=out), *how, *changes)
        return float(json.loads((place / "evaluation.json").read_text())["accuracy"]["score"])

    wide = LARGE.replace("24", "48")
    teacher = right("knows", wide, f"data.train.jsonl={folder / 'many.jsonl'}")
    few = f"data.train.jsonl={folder / 'few.jsonl'}"
    alone = right("alone", SMALL, few)
    taught = right("taught", SMALL, few, f"distil.teacher={folder / 'runs' / 'knows'}", "distil.share=0.9")
    assert teacher > 0.9
    assert taught > alone + 0.1
