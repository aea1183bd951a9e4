"""Pictures and captions from files to answers: learnt, found by each other, told by words; or refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

import regard
from regard import cli
from regard.evaluation.retrieval import hits
from regard.models.pair import Pair, clip_tiny
from regard.recipes import reading as recipes
from regard.recipes.train import train
from regard.studies.judging import judge
from regard.tasks.uses import Prompting
from regard.training.objectives import Matched
from tests.captions import captioned
from tests.pictures import KINDS

YAML = """
task: {name: match}
data:
  {train: {jsonl: train.jsonl},
   valid: {jsonl: test.jsonl}, test: {tsv: test.tsv}, augment: {flip: true}, max_length: 16}
tokens: {kind: bpe, size: 290}
model: {preset: clip-tiny, size: 16, convolutions: 2, layers: 1, d_model: 24, d_ff: 32, heads: 2, d_vector: 16,
        picture_layers: 1, picture_d_model: 24, picture_d_ff: 32, picture_heads: 2}
train:
  steps: 40
  batch_rows: 16
  schedule: {name: linear, peak: 0.01, warmup: 4}
  validate_every: 20
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


def show(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def test_a_picture_is_told_by_words_that_it_has_read_elsewhere(run: Path) -> None:
    matcher = regard.load(run)
    pictures = [run.parent / f"test{i}.png" for i in range(12)]
    told = [matcher.classify(each, KINDS, prompt="a photo of {label} things").label for each in pictures]
    assert told == [KINDS[i % 3] for i in range(12)]
    seen, said = matcher.see(pictures), matcher.embed(["it is all red .", "it is all blue ."])
    assert seen.shape == (12, 16)
    np.testing.assert_allclose(np.linalg.norm(seen, axis=1), 1, atol=1e-5)
    assert (seen[::3] @ said.T).argmax(1).tolist() == [0] * 4


def test_the_command_tells_and_embeds_pictures_and_texts(run: Path) -> None:
    image = run.parent / "test1.png"
    said = show("classify", run, image, "--labels", "r=red,g=green,b=blue", "--prompt", "a photo of {label} things")
    assert said.split("\t")[:2] == [str(image), "g"]
    assert (
        show("classify", run, image, "--labels", "it is all red .,it is all green .").split("\t")[1].endswith("green .")
    )
    path, vector = show("embed", run, image).rstrip("\n").split("\t")
    assert path == str(image)
    np.testing.assert_allclose(json.loads(vector), regard.load(run).see([image])[0], atol=1e-6)
    texts = np.array([json.loads(line) for line in show("embed", run, "it is all green .").splitlines()])
    np.testing.assert_allclose(texts, regard.load(run).embed(["it is all green ."]), atol=1e-6)


def test_it_is_judged_by_what_is_found_both_ways(run: Path) -> None:
    told = judge(run, run.parent / "test.tsv")
    figures: Any = json.loads((run / "evaluation.json").read_text())
    names = ["recall", *(f"{what} r@{n}" for what in ("text", "picture") for n in (1, 5, 10))]
    assert [*figures] == names
    assert figures["text r@5"]["score"] > 0.7  # of its colour are 8 captions of 24, which are all alike
    assert figures["recall"]["score"] == pytest.approx(np.mean([figures[name]["score"] for name in names[1:]]))
    assert told is not None


def test_classes_in_words_are_judged_on_pictures_with_labels(run: Path, tmp_path: Path) -> None:
    names, prompt = [f"test{i}.png" for i in range(12)], "a photo of {label} things"
    truth = [KINDS[i % 3] for i in range(11)] + ["blue" if KINDS[11 % 3] != "blue" else "red"]  # one is mislabelled
    for name, label in zip(names, truth, strict=True):
        (tmp_path / "folder" / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(run.parent / name, tmp_path / "folder" / label)
    rows = [{"image": str(run.parent / name), "label": label} for name, label in zip(names, truth, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rows.tsv").write_text("".join(f"{row['image']}\t{row['label']}\n" for row in rows))
    images = np.stack([np.asarray(Image.open(row["image"]).convert("RGB")) for row in rows])
    np.savez(tmp_path / "rows.npz", images=images, labels=np.array([KINDS.index(label) for label in truth]))
    matcher, numbered = regard.load(run), ",".join(f"{i}={kind}" for i, kind in enumerate(KINDS))
    own = [matcher.classify(row["image"], KINDS, prompt=prompt).label for row in rows]
    right = np.mean([a == b for a, b in zip(own, truth, strict=True)])
    assert right == 11 / 12
    for data in ("folder", "rows.jsonl", "rows.tsv", "rows.npz"):
        labels = numbered if data.endswith("npz") else ",".join(KINDS)
        words = ("evaluate", run, tmp_path / data, "--labels", labels, "--prompt", prompt, "--json")
        found = json.loads(show(*words))
        assert (found["counted"], found["rows"]) == ("pictures", 12)
        assert found["figures"]["accuracy"]["score"] == pytest.approx(right)
        assert "top5" not in found["figures"]
    many = [*KINDS, "wooden", "old", "new", "far"]
    more = Prompting(prompt, ",".join(many))
    figures = judge(run, tmp_path / "folder", asked=more)["figures"]
    likely = [[*matcher.classify(row["image"], many, prompt=prompt).probabilities] for row in rows]
    first = [label in each[:5] for each, label in zip(likely, truth, strict=True)]
    assert figures["top5"]["score"] == pytest.approx(np.mean(first))
    for asked, says in (
        (Prompting(prompt, "red,green"), "does not know: blue"),
        (Prompting(prompt), "--labels"),
        (Prompting(prompt, "red,green", calibrated=True), "--prompt alone"),
    ):
        with pytest.raises(ValueError, match=says):
            judge(run, tmp_path / "folder", asked=asked)
    with pytest.raises(ValueError, match="--calibrate"):
        judge(run, tmp_path / "folder", asked=more, calibrate=True)


def test_hits_are_those_of_a_slow_count() -> None:
    scores = np.random.default_rng(0).normal(size=(30, 40))
    wanted = [np.random.default_rng(i).choice(40, 3, replace=False) for i in range(30)]
    found = hits(scores, wanted, "text")
    for depth in (1, 5, 10):
        both = zip(np.argsort(-scores)[:, :depth].tolist(), wanted, strict=True)
        slow = [bool({*first} & {*want.tolist()}) for first, want in both]
        assert found[f"text r@{depth}"].tolist() == slow


def test_the_objective_is_half_a_choice_each_way_and_never_sharper_than_a_hundred() -> None:
    torch.manual_seed(0)
    model = Pair(clip_tiny(50, size=16, convolutions=2, layers=1, picture_layers=1)).eval()
    inputs = {"pixels": torch.randn(5, 3, 16, 16), "tokens": torch.randint(3, 50, (5, 6))}
    inputs |= {"keep": torch.arange(6) < torch.tensor([6, 3, 4, 1, 5])[:, None]}
    logits = model(**inputs)
    right = torch.arange(5)
    expected = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    torch.testing.assert_close(Matched(model)(**inputs, row=right), 5 * expected)
    twice = {name: torch.cat([x, x[:1]]) for name, x in inputs.items()}  # of a process that has no rows
    torch.testing.assert_close(Matched(model)(**twice, row=torch.tensor([0, 1, 2, 3, 4, 0])), 5 * expected)
    model.sharpness.data.fill_(9.0)
    Matched(model)(**inputs, row=right)
    assert model.sharpness.exp().item() == pytest.approx(100)


def test_what_cannot_be_asked_is_refused(run: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        result = CliRunner().invoke(cli.app, list(map(str, arguments)), env={"TERM": "dumb", "COLUMNS": "150"})
        assert result.exit_code != 0
        return str(result.exception or "") + result.output

    image = run.parent / "test0.png"
    assert "knows no classes: say which there are by --labels" in refused("classify", run, image)
    assert "two at least" in refused("classify", run, image, "--labels", "dog")
    assert "no {label} in it" in refused("classify", run, image, "--labels", "a,b", "--prompt", "a photo")
    recipe = YAML.replace("  batch_rows: 16\n", "")
    (run.parent / "wrong.yaml").write_text(recipe)
    with pytest.raises(ValueError, match=r"train.batch_rows"):
        recipes.load(str(run.parent / "wrong.yaml"), [])
