"""A language model is studied on a text: its heads, what becomes of it without them, what it looks at."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cli
from regard.inspection.axes import END
from regard.inspection.importance import head_importance
from regard.studies.atlas import make_atlas
from regard.studies.pruning import prune_directory
from regard.studies.study import STRETCH, Stretches
from tests.serving.toys import LINES, directory, writer

LAST = "decoder.layers.1.self_attention"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writer(tmp_path_factory.mktemp("models") / "writer")


@pytest.fixture(scope="module")
def text(model: Path) -> Path:
    path = model / "text.txt"
    path.write_text("\n".join([*LINES * 6, ""]), "utf-8")
    return path


def test_stretches_are_the_text_and_each_label_counts_once(model: Path, text: Path) -> None:
    study, generator = Stretches.of(model, text, 1000), regard.load(model)
    rows = [each["tokens"] for each in study.examples]
    assert {len(row) for row in rows[:-1]} == {STRETCH + 1}
    whole = [generator.bos, *study.tokenizer.encode(text.read_text("utf-8")), generator.eos]
    assert [rows[0][0], *(id for row in rows for id in row[1:])] == whole
    assert sum(batch.count for batch in study.batches(range(len(rows)))) == len(whole) - 1
    # Nats a label, from one pass over each stretch by itself.
    total = 0.0
    for row in rows:
        log_p = generator.model(tokens=torch.tensor([row[:-1]]))[0].log_softmax(-1)
        total -= float(log_p.gather(1, torch.tensor(row[1:])[:, None]).sum())
    assert math.isclose(study.loss(range(len(rows))), total / (len(whole) - 1), rel_tol=1e-4)
    assert len(Stretches.of(model, text, 2).examples) == 2


def test_an_atlas_of_a_language_model_goes_by_its_loss(model: Path, text: Path, tmp_path: Path) -> None:
    atlas = make_atlas(model, text=text, out=tmp_path, limit=8, share=0.5, seeds=1, prices=())
    assert "bleu" not in atlas
    assert [(each["name"], each["head"]) for each in atlas["heads"]] == [
        (f"decoder.layers.{layer}.self_attention", head) for layer in (0, 1) for head in range(4)
    ]
    study = Stretches.of(model, text, 8)
    importance = head_importance(study.model, study.batches(range(8)), pad=study.pad)
    for each in atlas["heads"]:
        assert each["importance"] == pytest.approx(float(importance[each["name"]][each["head"]]), abs=1e-4)
        assert math.isfinite(each["ablation"]["loss"])
        example = each["example"]
        assert (example["row"], example["columns"][1:]) == ("predicts", example["rows"][:-1])
    with study.without({LAST: [2]}):
        without = study.loss(range(8))
    (entry,) = (each for each in atlas["heads"] if (each["name"], each["head"]) == (LAST, 2))
    assert entry["ablation"]["loss"] == pytest.approx(without - atlas["loss"], abs=1e-4)
    assert [point["kept"] for point in atlas["pruning"]["importance"]] == [8, 4, 0]
    assert json.loads((tmp_path / "heads.json").read_text("utf-8"))["heads"]
    assert (tmp_path / "heads.html").read_text("utf-8")


def test_a_language_model_loses_heads(model: Path, text: Path, tmp_path: Path) -> None:
    made = prune_directory(model, tmp_path / "five", keep=5, text=text, limit=8)
    assert (made.before.heads, made.after.heads) == (8, 5)
    assert made.before.loss is not None
    assert made.after.loss is not None
    smaller = regard.load(tmp_path / "five")
    assert isinstance(smaller.generate("a dog", limit=5, seed=1), str)
    study = Stretches.of(model, text, 8)
    with study.without(made.gone):
        assert study.loss(range(8)) == pytest.approx(made.after.loss, abs=1e-4)


def test_a_map_has_the_token_read_below_and_the_next_beside(model: Path) -> None:
    generator = regard.load(model)
    found = generator.attention("a dog", names=LAST, heads=[1])[0]
    assert found.queries == ["a", "▁", "d", "o", "g", END]
    assert found.keys == ["<s>", "a", "▁", "d", "o", "g"]
    assert found.query_role == "predicted"
    assert torch.allclose(found.weights.sum(-1), torch.ones(1, 6))
    assert not found.weights[0].triu(1).any()
    bare = generator.attention("a dog", names=LAST, special=False)[0]
    assert (bare.queries, bare.keys) == (["a", "▁", "d", "o", "g"], ["a", "▁", "d", "o", "g"])


def run(*words: object) -> Any:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.mark.parametrize("kind", ["html", "svg", "csv", "npz"])
def test_inspect_writes_what_a_language_model_reads(model: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"map.{kind}"
    done = run("inspect", model, "a dog runs", "-o", path)
    heads = "4 heads of 1 attention" if kind == "svg" else "8 heads of 2 attentions"
    assert done.output.strip() == f"{path}: {heads}, a dog runs"
    assert path.stat().st_size


def test_inspect_puts_the_words_of_a_language_model_together(model: Path, tmp_path: Path) -> None:
    run("inspect", model, "a dog runs", "-o", tmp_path / "map.csv", "--words", "--hide-special")
    rows = (tmp_path / "map.csv").read_text().splitlines()
    assert {"dog", "runs"} <= {cell.strip('"') for row in rows for cell in row.split(",")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "MODEL", "a", "-o", "a.html", "--target", "b"], "--target is for translations"),
        (["inspect", "MODEL", "a", "-o", "a.html", "--no-split"], "--split is for translations"),
        (["heads", "MODEL", "--source", "a", "--reference", "b"], "give --text, not --source, --reference"),
        (["heads", "MODEL", "--text", "TEXT", "--gold", "a"], "is about the words of translations"),
        (["heads", "MODEL"], "has no recipe that names a text: give --text"),
        (["heads", "TRANSLATOR", "--text", "TEXT"], "--text is for a language model"),
        (["prune", "MODEL", "OUT", "--keep", "3"], "importance is measured on a text"),
        (["prune", "TRANSLATOR", "OUT", "--keep", "3", "--text", "TEXT"], "--text is for a language model"),
    ],
)
def test_what_does_not_apply_is_said_in_one_line(
    model: Path, text: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "translator").mkdir()
    named = {"MODEL": model, "TEXT": text, "OUT": tmp_path / "out", "TRANSLATOR": directory(tmp_path / "translator")}
    done = run(*(named.get(word, word) for word in words))
    assert done.exit_code != 0
    said = str(done.exception) if isinstance(done.exception, ValueError) else done.output
    assert message in " ".join(said.split())


def test_heads_and_prune_by_name(model: Path, text: Path, tmp_path: Path) -> None:
    done = run("heads", model, "--text", text, "-o", tmp_path, "--limit", 4, "--no-prune", "--no-ablate")
    assert "8 heads on 4 stretches of text" in done.output
    done = run("prune", model, tmp_path / "out", "--heads", f"{LAST}:0,3", "--text", text)
    assert "6 of 8 heads" in done.output
    assert f"nats per token of {text}" in "".join(done.output.splitlines())
