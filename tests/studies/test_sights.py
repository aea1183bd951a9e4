"""`regard inspect` and `regard heads` of models that see: files, figures, and one line for a mistake."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import regard
from regard import cli
from regard.inspection.page import AttentionMap
from regard.studies.atlas import make_atlas
from regard.studies.maps import inspect
from regard.studies.pruning import prune_directory
from regard.studies.sights import Sights
from tests.eyes import eyes
from tests.seers import MODELS, TEXTS, directory, png

LAST = "encoder.layers.1.self_attention"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: directory(place / name, name) for name in MODELS}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pictures, one of which is broken, and what is said of the others."""
    place = tmp_path_factory.mktemp("pictures")
    for i in range(5):
        (place / f"{i}.png").write_bytes(png(i))
    (place / "6.png").write_bytes(png()[:80])
    rows = [{"image": f"{i}.png", "caption": [TEXTS[i % len(TEXTS)], "never seen"]} for i in range(5)]
    (place / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return place


def run(*words: Any) -> str:
    found = CliRunner().invoke(cli.app, [*map(str, words)])
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls `regard` where it must fail, and gives its one line."""

    def call(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        monkeypatch.delenv("REGARD_TRACEBACK", raising=False)
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, error = capsys.readouterr()
        assert (end.value.code, out, error.count("\n")) == (2, "", 1)
        return error

    return call


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_file_holds_the_maps(paths: dict[str, Path], pictures: Path, tmp_path: Path, name: str) -> None:
    predictor: Any = regard.load(paths[name], engine="torch")
    photo = pictures / "0.png"
    more = {"pair": TEXTS[0]} if name == "clip" else {"target": TEXTS[0]} if name == "captions" else {}
    texts = [*more.values()]
    seen = inspect(paths[name], str(photo), tmp_path / "maps.npz", **more)
    arrays, wanted = np.load(tmp_path / "maps.npz"), predictor.attention(photo, *texts)
    for each in wanted:
        assert np.allclose(arrays[each.name], each.weights.numpy(), atol=1e-6)
    assert np.array_equal(
        arrays["picture"],
        predictor.sight.pixels(photo) if "sight" in vars(predictor) else predictor.viewer.sight.pixels(photo),
    )
    assert seen.title.startswith("0.png")
    for ending in ("html", "csv", "png", "svg"):
        inspect(paths[name], str(photo), tmp_path / f"maps.{ending}", **more)
    assert Image.open(tmp_path / "maps.png").size[0] > 300
    assert '"pictured":true' in (tmp_path / "maps.html").read_text("utf-8")


def test_a_command_says_what_it_wrote_and_what_does_not_apply(
    paths: dict[str, Path], pictures: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    photo, out = pictures / "0.png", tmp_path / "a.html"
    label = regard.load(paths["vit"]).classify(photo).label
    assert run("inspect", paths["vit"], photo, "-o", out) == f"{out}: 4 heads of 2 attentions, 0.png: {label}\n"
    said = run("inspect", paths["vit"], photo, "--view", "rollout", "-o", tmp_path / "a.png")
    assert "2 roll-outs of 2 attentions" in said
    run("inspect", paths["captions"], photo, "--target", TEXTS[0], "--words", "--hide-special", "-o", out)
    for options in (["--target", "x"], ["--pair", "x"], ["--words"], ["--hide-special"], ["--split"]):
        assert options[0] in refused("inspect", paths["vit"], photo, *options, "-o", out)
    assert "all heads" in refused("inspect", paths["vit"], photo, "--view", "rollout", "--heads", "0", "-o", out)
    assert "6.png" in refused("inspect", paths["vit"], pictures / "6.png", "-o", out)
    assert "none.jpg" in refused("inspect", paths["vit"], pictures / "none.jpg", "-o", out)


def test_words_of_a_caption_keep_their_picture(paths: dict[str, Path], pictures: Path) -> None:
    describer: Any = regard.load(paths["captions"], engine="torch")
    each: AttentionMap
    (each,) = describer.attention(pictures / "0.png", TEXTS[1], words=True, special=False, names="*.1.cross*")
    assert each.queries == TEXTS[1].split()
    assert each.over().shape == (2, 3, 3)
    assert each.weights.sum(-1).allclose(each.weights.new_ones(2, 5), atol=1e-5)


@pytest.mark.parametrize("name", ["vit", "cct", "captions"])
def test_an_atlas_goes_by_what_a_model_says_itself(
    paths: dict[str, Path], pictures: Path, tmp_path: Path, name: str
) -> None:
    atlas = make_atlas(paths[name], pictures=[pictures], out=tmp_path, share=0.5, seeds=1)
    study = Sights.seen(paths[name], [pictures], 1000)
    assert (atlas["called"], atlas["sentences"], len(atlas["left_out"])) == ("pictures", 5, 1)
    first = next(each for each in atlas["heads"] if each["kind"] == "encoder")
    assert first["measures"]["distance"] > 0
    assert ("special" in first["measures"]) == (name == "vit")
    assert len(first["example"]["weights"]) == len(first["example"]["rows"]) == 3
    number = [(each["name"], each["head"]) for each in atlas["heads"]].index((LAST, 1))
    with study.without({LAST: [1]}):
        without = study.loss(range(5))
    assert atlas["heads"][number]["ablation"]["loss"] == pytest.approx(without - atlas["loss"], abs=1e-4)
    assert (tmp_path / "heads.html").is_file()


def test_the_loss_is_that_of_what_a_model_says(paths: dict[str, Path], pictures: Path) -> None:
    study, recogniser = Sights.seen(paths["vit"], [pictures], 9), regard.load(paths["vit"])
    own = recogniser.classify([str(pictures / f"{i}.png") for i in range(5)])
    assert study.loss(range(5)) == pytest.approx(-sum(math.log(each.probability) for each in own) / 5, abs=1e-5)


def test_a_table_tells_what_belongs_together(
    paths: dict[str, Path], pictures: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    said = run("heads", paths["clip"], pictures / "said.jsonl", "--no-prune", "-o", tmp_path)
    assert "8 heads on 5 pictures" in said
    kinds = {each["name"]: each["kind"] for each in json.loads((tmp_path / "heads.json").read_text())["heads"]}
    assert set(kinds.values()) == {"encoder", "decoder"}
    assert "no caption" in refused("heads", paths["clip"], pictures / "0.png", "-o", tmp_path)
    assert "sees pictures" in refused("heads", paths["vit"], "--text", pictures / "said.jsonl", "-o", tmp_path)
    assert "no such file" in refused("heads", paths["vit"], tmp_path / "none.png", "-o", tmp_path)


def test_a_head_that_is_not_missed_goes(paths: dict[str, Path], pictures: Path, tmp_path: Path) -> None:
    place = directory(tmp_path / "eyes", "vit")
    make_atlas(place, pictures=[pictures], ablate=False, prune=False)
    made = prune_directory(place, tmp_path / "less", keep=3, by="atlas")
    assert (made.before.heads, made.after.heads) == (4, 3)
    assert regard.load(tmp_path / "less").classify(pictures / "0.png").label


def test_a_language_model_that_sees_is_inspected_and_its_heads_are_measured(
    pictures: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    model, photo = eyes(tmp_path / "look", "look"), pictures / "0.png"
    looker: Any = regard.load(model)
    said = run("inspect", model, photo, "--pair", "Who is it?", "-o", tmp_path / "a.npz")
    assert "0.png ║ Who is it? → " in said
    arrays, words = np.load(tmp_path / "a.npz"), "decoder.layers.0.self_attention"
    told = said.partition(" → ")[2].removesuffix("\n")
    (wanted,) = looker.attention(photo, told, question="Who is it?", names=words)
    assert np.allclose(arrays[words], wanted.weights.numpy(), atol=1e-6)
    for ending in ("html", "png", "svg"):
        run("inspect", model, photo, "--target", "a dog", "--hide-special", "-o", tmp_path / f"a.{ending}")
    assert "--words" in refused("inspect", model, photo, "--words", "-o", tmp_path / "a.html")
    atlas = make_atlas(model, pictures=[pictures], out=tmp_path, share=0.5, seeds=1)
    assert (atlas["sentences"], len(atlas["left_out"])) == (5, 1)
    by_kind = {each["kind"]: each for each in atlas["heads"]}
    assert set(by_kind) == {"encoder", "decoder"}
    assert by_kind["encoder"]["measures"]["distance"] > 0
    assert "distance" not in by_kind["decoder"]["measures"]
    assert "0,0" in by_kind["decoder"]["example"]["columns"]
    study = Sights.seen(model, [pictures], 1000)
    with study.without({words: [0]}):
        without = study.loss(range(5))
    assert atlas["heads"][0]["ablation"]["loss"] == pytest.approx(without - atlas["loss"], abs=1e-4)
    run("heads", model, pictures / "said.jsonl", "--no-prune", "-o", tmp_path)
