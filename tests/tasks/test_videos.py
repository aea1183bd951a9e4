"""Videos from files to answers: prepared once, learnt, resumed to the bit, told, judged, served; or counted."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard import cli
from regard.recipes import reading as recipes
from regard.recipes.prepare import prepare
from regard.recipes.train import train
from regard.serving.config import ServeConfig
from regard.serving.registry import Registry
from regard.studies.judging import judge
from tests.serving.servers import running
from tests.videos import WAYS, folder, video, written

pytest.importorskip("av")
YAML = """
task: {name: recognise, pool: mean}
data: {train: {folder: train}, valid: {folder: test}, test: {folder: test}, augment: {crop: 1, mixup: 0.1}}
model: {preset: vivit-tiny, size: 16, channels: 3, frames: 4, convolutions: 2, layers: 1, d_model: 48, d_ff: 48}
train:
  steps: 40
  batch_rows: 12
  shards: 2
  optimiser: {name: muon}
  schedule: {name: linear, peak: 0.02, warmup: 4}
  validate_every: 20
  checkpoint_every: 20
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("videos")
    folder(made / "train", 24)
    folder(made / "test", 6, seed=1)
    (made / "r.yaml").write_text(YAML)
    return made


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(place / "cache"))
    monkeypatch.setenv("REGARD_NATIVE", "0")  # nothing to compile


def learn(place: Path, out: Path, *overrides: str, **how: Any) -> Path:
    train(recipes.load(str(place / "r.yaml"), overrides), out, name="r", console=Console(quiet=True), **how)
    return out


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        patch.setenv("REGARD_NATIVE", "0")
        return learn(place, place / "run")


def show(*arguments: object) -> Any:
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})
    assert result.exit_code == 0, result.exception or result.output
    return result


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("space_time", ["joint", "factorised", "divided"])
def test_where_there_is_a_c_engine_videos_are_seen_without_it(
    space_time: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGARD_NATIVE")
    monkeypatch.delenv("REGARD_CACHE")  # what is compiled lies there
    out = learn(place, tmp_path / "run", f"model.space_time={space_time}", "train.steps=2", "train.validate_every=1")
    shown = next((place / "test").rglob("*.mp4"))
    found, expected = (regard.load(out, **how).classify(shown) for how in ({}, {"engine": "torch"}))
    assert found == expected


def test_it_learns_what_no_frame_tells(place: Path, run: Path) -> None:
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["accuracy"]["score"] > 0.9
    assert figures["accuracy"]["signature"] == "videos:12"
    task = json.loads((run / "config.json").read_text())["task"]
    assert (task["name"], task["labels"], task["sight"]["frames"]) == ("recognise", [*WAYS], 4)


def test_a_run_is_resumed_to_the_bit(place: Path, run: Path, tmp_path: Path) -> None:
    again, first = tmp_path / "again", load_file(run / "model.safetensors")
    shutil.copytree(run, again)
    for name in ("model.safetensors", "config.json", "evaluation.json"):
        (again / name).unlink()
    kept = sorted(each for each in (again / "trainer").iterdir() if each.is_dir())
    for late in kept[1:]:
        shutil.rmtree(late)
    learn(place, again, resume=True)
    assert all(torch.equal(x, first[name]) for name, x in load_file(again / "model.safetensors").items())


def test_videos_of_every_form_are_told(place: Path, run: Path) -> None:
    recogniser, path = regard.load(run, bitwise=True), place / "test" / "brighter" / "0.mp4"
    told = recogniser.classify([path, str(path), path.read_bytes()])
    assert len({each.logits for each in told}) == 1
    assert told[0].label == "brighter"
    clip = video("darker", np.random.default_rng(9))
    assert recogniser.classify(clip).label == "darker"
    paths = sorted((place / "test").rglob("*.mp4"))
    together = regard.load(run).classify(paths)
    assert [each.label for each in together] == [path.parent.name for path in paths]
    alone = [recogniser.classify(path).logits for path in paths]
    assert alone == [each.logits for each in recogniser.classify(paths)]


def test_the_command_tells_and_judges(place: Path, run: Path, tmp_path: Path) -> None:
    path = place / "test" / "darker" / "1.mp4"
    name, label, _ = show("classify", run, path).stdout.rstrip("\n").split("\t")
    assert (name, label) == (str(path), "darker")
    assert len(show("classify", run, place / "test").stdout.splitlines()) == 12
    (tmp_path / "cut.mp4").write_bytes(path.read_bytes()[:200])
    one = written(video("brighter", np.random.default_rng(0), 1), tmp_path / "one.mp4")
    result = show("classify", run, path, tmp_path / "cut.mp4", one)
    assert len(result.stdout.splitlines()) == 1
    assert "cut.mp4 is no video, or damaged" in result.stderr
    assert "one.mp4 has one frame" in result.stderr
    assert "2 of 3 videos were left out" in result.stderr
    assert judge(run, place / "test")["counted"] == "videos"
    clips = np.stack([video(way, np.random.default_rng(4)) for way in WAYS])
    np.savez(tmp_path / "some.npz", videos=clips, labels=[*WAYS])
    assert "accuracy" in show("evaluate", run, tmp_path / "some.npz").stdout
    assert "videos of 4 frames of 16 x 16" in " ".join(show("info", run).stdout.split())


def test_videos_are_uploaded(place: Path, run: Path) -> None:
    path = place / "test" / "brighter" / "2.mp4"
    expected = regard.load(run).classify(path).probabilities
    with running(Registry([run]), ServeConfig(explorer=False)) as (url, _):
        for sent in (
            {"files": {"file": ("clip.mp4", path.read_bytes())}},
            {"content": path.read_bytes(), "headers": {"Content-Type": "video/mp4"}},
        ):
            answer = httpx.post(f"{url}/predict", **sent)  # type: ignore[arg-type]
            assert answer.status_code == 200, answer.text
            assert {each["label"]: each["score"] for each in answer.json()} == pytest.approx(expected, abs=1e-5)
        answer = httpx.post(f"{url}/predict", files={"file": ("clip.mp4", path.read_bytes()[:99])})
        assert answer.status_code in (400, 422)
        assert "picture 1 is no video, or damaged" in answer.json()["error"]


def test_damaged_videos_are_counted_and_left_out(place: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(place / split, tmp_path / split)
    (tmp_path / "train" / "brighter" / "0.mp4").write_bytes(b"")
    (tmp_path / "train" / "brighter" / "photo.png").write_bytes(b"\x89PNG")
    written(video("brighter", np.random.default_rng(0), 1), tmp_path / "test" / "brighter" / "one.mp4")
    (tmp_path / "r.yaml").write_text(YAML)
    data = prepare(recipes.load(str(tmp_path / "r.yaml")))
    assert (len(data.train), len(data.test)) == (47, 12)
    assert any(remark.startswith("skipped 2 videos: ") and "0.mp4" in remark for remark in data.remarks)
    assert any("test: 1 videos cannot be opened" in remark and "one frame" in remark for remark in data.remarks)


def test_a_video_is_prepared_once_for_as_many_frames(place: Path) -> None:
    four, again = (prepare(recipes.load(str(place / "r.yaml"), [f"train.steps={n}"])).identity for n in (1, 2))
    two = prepare(recipes.load(str(place / "r.yaml"), ["model.frames=2"]))
    assert four == again != two.identity
    assert two.train.columns["image"].shape == (2, 16, 16, 3)
