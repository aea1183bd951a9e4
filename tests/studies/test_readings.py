"""Models that read are studied on texts: with labels of their recipe, or with what they say themselves; and drawn."""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import regard
from regard import cli
from regard.api import told
from regard.inspection.taps import attentions
from regard.studies.atlas import make_atlas
from regard.studies.maps import inspect
from regard.studies.pruning import prune_directory
from regard.studies.study import Readings, study_of
from regard.tasks.reader import Given
from tests.readers import TASKS, TEXTS, directory
from tests.serving.toys import denoiser

LAST = "encoder.layers.1.self_attention"
LABELLED = {  # of each task a recipe's test: how it is read, and what stands there
    "classify": ("tsv", ", columns: {text: 0, label: 1}", "a good film\tup\nthe film is awful\tdown\nfine\teven\n"),
    "embed": (
        "tsv",
        ", columns: {text: 0, pair: 1}",
        "a good film\ttwo men sit on a bench\ntwo men sit\ta dog\nthe park\ta bench\n",
    ),
    "tag": ("conll", "", "two O\nmen B-PER\nsit O\n\nfilm B-ORG\nruns O\n\nfine O\n\n"),
    "answer": (
        "jsonl",
        "",
        "".join(
            json.dumps({"question": "who", "context": text, "answer": "film", "start": text.index("film")}) + "\n"
            for text in ("a film", "a good film", "the film")
        ),
    ),
}


@pytest.fixture(params=TASKS)
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    return request.param, directory(tmp_path / request.param, request.param)


def lines(place: Path, name: str) -> Path:
    rows = [f"{text.split()[-1]}\t{text}" if name == "answer" else text for text in TEXTS]
    path = place / "text.txt"
    path.write_text("\n".join([*rows * 2, ""]), "utf-8")
    return path


def test_an_atlas_goes_by_what_a_model_says_itself(reader: tuple[str, Path], tmp_path: Path) -> None:
    name, path = reader
    text = lines(tmp_path, name)
    atlas = make_atlas(path, text=text, share=0.5, seeds=1)
    study = Readings.of(path, text, 1000)
    everything = range(len(study.examples))
    assert (atlas["called"], "bleu" in atlas) == ("texts", False)
    assert [(each["name"], each["head"]) for each in atlas["heads"]] == [
        (f"encoder.layers.{layer}.self_attention", head) for layer in (0, 1) for head in (0, 1)
    ]
    with study.without({LAST: [1]}):
        without = study.loss(everything)
    assert atlas["heads"][3]["ablation"]["loss"] == pytest.approx(without - atlas["loss"], abs=1e-4)
    assert all(math.isfinite(each["importance"]) and each["importance"] > 0 for each in atlas["heads"])
    example = atlas["heads"][0]["example"]
    assert (example["row"], example["rows"]) == ("reads", example["columns"])
    assert [point["kept"] for point in atlas["pruning"]["importance"]] == [4, 2, 0]
    assert atlas["pruning"]["gates"] is None
    assert json.loads((path / "heads.json").read_text("utf-8"))["heads"]
    assert "texts" in (path / "heads.html").read_text("utf-8")
    made = prune_directory(path, tmp_path / "less", keep=3, by="atlas")
    assert (made.before.heads, made.after.heads) == (4, 3)
    with pytest.raises(ValueError, match="its heads go by its atlas"):
        prune_directory(path, tmp_path / "none", keep=3, text=text)


def test_the_loss_is_that_of_what_a_model_says(tmp_path: Path) -> None:
    path = directory(tmp_path / "classify", "classify")
    text = tmp_path / "text.txt"
    text.write_text("a good film\tfine\nthe film is awful\n", "utf-8")  # a pair, and one alone
    study, classifier = Readings.of(path, text, 9), regard.load(path)
    own = classifier.classify([("a good film", "fine"), "the film is awful"])
    wanted = -sum(math.log(each.probability) for each in own) / 2
    assert study.loss(range(2)) == pytest.approx(wanted, abs=1e-5)


def test_vectors_are_told_apart(tmp_path: Path) -> None:
    path, text = directory(tmp_path / "embed", "embed"), lines(tmp_path, "embed")
    study, embedder = Readings.of(path, text, 5), regard.load(path)
    vectors = torch.from_numpy(embedder.embed(TEXTS))
    order = [i for rows in study.rows(range(5)) for i in rows]
    wanted = F.cross_entropy(20 * vectors[order] @ vectors[order].T, torch.arange(5))
    assert study.loss(range(5)) == pytest.approx(float(wanted), abs=1e-4)


@pytest.mark.parametrize("name", LABELLED)
def test_rows_of_a_recipe_have_their_labels(tmp_path: Path, name: str) -> None:
    path = directory(tmp_path / name, name)
    ending, columns, content = LABELLED[name]
    file = tmp_path / f"test.{ending}"
    file.write_text(content, "utf-8")
    files = f"{{{ending}: {file}{columns}}}"
    recipe = f"task: {{name: {name}}}\ndata: {{train: {files}, valid: {files}, test: {files}}}\n"
    (path / "recipe.yaml").write_text(f"{recipe}model: {{preset: bert-tiny}}\ntrain: {{steps: 1}}\n", "utf-8")
    study = Readings.of(path, None, 9)
    predictor, task = regard.load(path), told(path).task
    assert len(study.examples) == 3
    (which,) = study.rows(range(3))
    batch = task.collate(predictor.tokenizer, 0.0)([study.learnt[i] for i in which], Random(0))
    wanted = task.objective(predictor.model, 0.0, predictor.tokenizer)(**batch.tensors) / batch.count
    assert study.loss(range(3)) == pytest.approx(float(wanted.detach()), abs=1e-5)
    for each in make_atlas(path, prune=False)["heads"]:
        example = each["example"]
        assert len(example["weights"]) == len(example["rows"]) == len(example["columns"]) == len(example["weights"][0])
        assert (example["rows"][0], example["rows"][-1]) == ("<s>", "</s>")


def test_denoising_is_studied_on_spoilt_text(tmp_path: Path) -> None:
    path, text = denoiser(tmp_path / "denoise"), tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS * 4), "utf-8")
    study = study_of(path, None, None, text, 4)
    assert set(study.examples[0]) == {"source", "target"}
    atlas = make_atlas(path, text=text, limit=4, ablate=False, prune=False)
    assert {each["kind"] for each in atlas["heads"]} == {"encoder", "decoder", "cross"}
    assert math.isfinite(atlas["loss"])


def test_what_a_study_needs_is_said(tmp_path: Path) -> None:
    path, text = directory(tmp_path / "answer", "answer"), tmp_path / "text.txt"
    text.write_text("who sits\n", "utf-8")
    for asked, message in (
        (["--text", str(text)], "'who sits' has no context: write it on the same line, after a tab"),
        ([], "has no recipe that names a text: give --text"),
        (["--source", str(text), "--reference", str(text)], "is a question answering model, and has no translations"),
    ):
        done = CliRunner().invoke(cli.app, ["heads", str(path), *asked])
        assert message in str(done.exception), done.output


def test_what_is_read_is_drawn(reader: tuple[str, Path], tmp_path: Path) -> None:
    name, path = reader
    predictor: Any = regard.load(path, engine="torch")
    pair = "a dog runs" if predictor.pairs else None
    text = "two [MASK] sit" if name == "mask" else "two men sit"
    read = predictor.framed([Given(text, pair)])[0][0]
    pieces = predictor.tokenizer.pieces(read.ids)
    for words in (False, True):
        for special in (False, True):
            for kind in (".html", ".svg", ".csv", ".npz"):
                found = inspect(path, text, tmp_path / f"a{kind}", pair=pair, words=words, special=special)
                assert (tmp_path / f"a{kind}").stat().st_size > 100
            count = len(attentions(predictor.model))
            assert [len(each.weights) for each in found.maps] == [2] * count
            (*_, last) = found.maps
            if not words:
                marks = {"<s>", "</s>"}
                assert list(last.queries) == [piece for piece in pieces if special or piece not in marks]
            torch.testing.assert_close(last.weights.sum(-1), torch.ones(last.weights.shape[:2]))
    assert ("<mask>" in last.queries) == (name == "mask")
    assert found.title == (text if pair is None else f"{text} ║ {pair}")
    if pair is None:
        done = CliRunner().invoke(cli.app, ["inspect", str(path), text, "--pair", "x", "-o", str(tmp_path / "a.csv")])
        assert "has a second text: this model reads one, so leave the other out" in str(done.exception)


def test_marks_are_words_of_their_own(tmp_path: Path) -> None:
    predictor: Any = regard.load(directory(tmp_path / "answer", "answer"), engine="torch")
    whole = predictor.attention("a bench", "park bench", names=LAST, words=True)[0]
    assert list(whole.queries) == ["<s>", "a", "bench", "</s>", "park", "bench", "</s>"]
    ids = predictor.framed([Given("a bench")])[0][0].ids
    assert predictor._words([ids[0], *ids]).texts[:3] == ["<s>", "<s>", "a"]  # two marks side by side are two
