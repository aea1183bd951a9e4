"""Vectors of words become a model that embeds, and a beginning for others."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from regard.convert import import_
from regard.models import storage
from regard.recipes.reading import load
from regard.recipes.train import train

VECTORS = {
    "the": [1, 0, 2],
    "cat": [0, 3, -1],
    "sat": [2, 2, 0.5],
    ".": [-1, 0, 0],
    "n't": [0, -2, 1],
    "did": [1, 1, 1],
}


def written(path: Path, vectors: dict[str, list[float]] = VECTORS, head: str = "") -> Path:
    path.write_text(head + "".join(f"{word} {' '.join(map(str, x))}\n" for word, x in vectors.items()))
    return path


@pytest.mark.parametrize("head", ["", "6 3\n"])
def test_a_text_is_the_mean_of_its_words(tmp_path: Path, head: str) -> None:
    import_(written(tmp_path / "toy.vec", head=head), tmp_path / "out")
    model = regard.load(tmp_path / "out")
    unknown = np.mean([*VECTORS.values()], 0)
    for text, words in (("The cat didn't.", ["the", "cat", "did", "n't", "."]), ("sat xyzzy", ["sat", None])):
        expected = sum(np.array(VECTORS[word]) if word else unknown for word in words)
        np.testing.assert_allclose(model.embed(text), expected / np.linalg.norm(expected), atol=1e-6)


def test_case_counts_where_the_words_have_any(tmp_path: Path) -> None:
    import_(written(tmp_path / "toy.txt", VECTORS | {"Cat": [5, 0, 0]}), tmp_path / "out")
    np.testing.assert_allclose(regard.load(tmp_path / "out").embed("Cat"), [1, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("the 1 2 3\ncat 1 2\n", "line 2: 'cat 1 2' is no word and its 3 numbers"),
        ("the 1 2 3\ncat 1 two 3\n", "line 2: 'cat 1 two 3'"),
        ("the 1 2 3\ncat 1 nan 3\n", "line 2: 'cat 1 nan 3'"),
        ("A text, and no vectors.\n", "line 1: 'A text, and no vectors.'"),
        ("", "line 1: ''"),
        ("the 1 2 3\ncat 1 2 3\nthe 3 4 5\n", "has the word 'the' 2 times"),
        ("the 1 2 3\n[CLS] 1 2 3\n", "has the word '[CLS]' 2 times, or it is the name of a mark"),
    ],
)
def test_what_is_no_file_of_vectors_is_one_line(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "toy.vec").write_text(content)
    with pytest.raises(ValueError, match=re.escape(told)):
        import_(tmp_path / "toy.vec", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_layers_are_put_on_words_that_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import_(written(tmp_path / "toy.vec"), tmp_path / "words")
    rows = [{"text": f"the cat {'sat' if i % 2 else 'did'} {i}", "label": i % 2} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = """
task: {name: classify}
data: {train: {jsonl: rows.jsonl}}
model: {from: words, layers: 2, d_model: 8, d_embedding: 3, d_ff: 8, heads: 2, norm: pre, positions: sinusoidal}
train: {steps: 8, batch_rows: 16, freeze: [stem.tokens.weight]}
"""
    (tmp_path / "r.yaml").write_text(recipe)
    assert train(load("r.yaml"), Path("run"), name="r", console=Console(quiet=True))
    before, after = (storage.load(place).state_dict() for place in ("words", "run"))
    assert torch.equal(before["stem.tokens.weight"], after["stem.tokens.weight"])
    assert storage.config("run").layers == 2
    assert regard.load("run").classify("the cat sat 9").label in ("0", "1")
    with pytest.raises(ValueError, match=r"no beginning for this model: 'stem\.tokens\.weight' is of shape"):
        train(load("r.yaml", ["model.d_embedding=4"]), Path("other"), name="r", console=Console(quiet=True))
