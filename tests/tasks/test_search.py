"""Documents that are found by their vectors: exactly, in any company, and embedded once."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data.collection import Documents
from regard.tasks import asks
from regard.tasks.embed import Embedder
from regard.tasks.index import Index, nearest, unit
from regard.tasks.reader import Given
from tests.readers import TEXTS, directory

WORDS = ("a dog runs", "two men", "the film", "in the park", "is awful", "a bench", "fine", "and long", "good")
MANY = [f"{a}, {b}" for a in WORDS for b in WORDS]  # 81 documents


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    pairs = {"labels": ("no", "yes")}
    made = {"embed": directory(root / "embed", "embed"), "other": directory(root / "other", "embed", seed=4)}
    made["pairs"] = directory(root / "pairs", "classify", **pairs)
    made["single"] = directory(root / "single", "classify", pairs=False, **pairs)
    return made | {"three": directory(root / "three", "classify")}


@pytest.fixture(scope="module")
def embedder(models: dict[str, Path]) -> Embedder:
    return regard.load(models["embed"])  # type: ignore[no-any-return]


def truth(embedder: Embedder, query: str, texts: list[str], top: int) -> list[tuple[int, float]]:
    """By the cosines with all of them, of equals the first of them first."""
    a, b = (np.array([embedder.embed(text) for text in some], np.float64) for some in ([query], texts))
    scores = (a @ b.T)[0] / np.linalg.norm(a) / np.linalg.norm(b, axis=1)
    order = sorted(range(len(texts)), key=lambda i: (-round(scores[i], 9), i))[:top]
    return [(i, scores[i]) for i in order]


@pytest.mark.parametrize("size", [1, 3, 50, 81])
def test_the_nearest_are_those_of_all_products_however_they_are_cut(size: int) -> None:
    draw = np.random.default_rng(0)
    vectors, queries = unit(draw.normal(size=(81, 16))), unit(draw.normal(size=(7, 16)))
    vectors[40:60] = vectors[20:40]  # equals
    scores = (queries.astype(np.float64)[:, None] * vectors.astype(np.float64)).sum(-1)
    expected = [np.argsort(-row, kind="stable")[:9].tolist() for row in scores]
    found = nearest(queries, (vectors[i : i + size] for i in range(0, 81, size)), 9)
    assert [[n for n, _ in row] for row in found] == expected
    assert [x for _, x in found[2]] == scores[2][expected[2]].tolist()
    assert [nearest(query[None], [vectors], 9)[0] for query in queries] == found
    assert [len(row) for row in nearest(queries, [vectors[:4]], 9)] == [4] * 7


def test_an_index_finds_what_all_cosines_say_in_any_company(embedder: Embedder, tmp_path: Path) -> None:
    index = Index.build(embedder, MANY, tmp_path / "index")
    together = index.search(TEXTS, top=5)
    for query, found in zip(TEXTS, together, strict=True):
        expected = truth(embedder, query, MANY, 5)
        assert [(hit.id, hit.text) for hit in found] == [(str(i + 1), MANY[i]) for i, _ in expected]
        assert [hit.score for hit in found] == pytest.approx([x for _, x in expected], abs=1e-6)
    assert [index.search(query, top=5) for query in TEXTS] == together
    assert embedder.search(TEXTS, MANY, top=5) == together
    assert embedder.search(TEXTS, index, top=5) == embedder.search(TEXTS, tmp_path / "index", top=5) == together
    assert index.search([]) == []
    vectors = index.store.vectors()
    assert isinstance(vectors.base, np.memmap)
    assert all(np.shares_memory(block, vectors) for block in index.store.blocks())  # nothing is copied


def counted(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is embedded from now on."""
    seen: list[str] = []
    answers = Embedder.answers

    def watched(self: Embedder, given: list[Given], settings: Any) -> Any:
        seen.extend(ask.text for ask in given)
        return answers(self, given, settings)

    monkeypatch.setattr(Embedder, "answers", watched)
    return seen


def test_only_what_is_new_is_embedded(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, index = counted(embedder, monkeypatch), Index(embedder, tmp_path / "index")
    assert index.renew(MANY[:9]) == len(seen) == 9
    assert index.renew([("x", "another"), *MANY[5:9], MANY[5]]) == 1
    assert seen[9:] == ["another"]
    assert [hit.id for hit in index.search(MANY[5], top=2)] == ["2", "6"]  # twice the same, in their order
    assert len(index) == 6
    assert index.add(["one more", ("y", MANY[0])]) == 1  # whose vector is still known
    again = Index.open(embedder, tmp_path / "index")
    assert [hit.id for hit in again.search(MANY[0], top=1)] == ["y"]
    assert [hit.text for hit in again.search("one more", top=1)] == ["one more"]
    assert again.search(TEXTS, top=8) == embedder.search(TEXTS, list(again.store), top=8)
    assert sorted(path.suffix for path in (tmp_path / "index").iterdir()) == [".b16", ".f32", ".json", ".jsonl", ".npy"]


def test_after_an_interruption_it_goes_on(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "AHEAD", 10)
    index, place = Index(embedder, tmp_path / "index"), tmp_path / "index"

    def interrupted(stage: str, done: int, total: int) -> None:
        assert (stage, total) == ("documents", 81)
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.renew(MANY, interrupted)
    with pytest.raises(ValueError, match="has no documents yet: build it"):
        Index.open(embedder, place)
    with open(place / "vectors.f32", "ab") as file:
        file.write(b"half a vector, and no key")
    (place / "documents.new").write_text("left by a process that was killed")
    seen = counted(embedder, monkeypatch)
    again = Index(embedder, place)
    assert again.renew(MANY) == len(seen) == 51
    assert again.search(TEXTS) == embedder.search(TEXTS, MANY)


def test_vectors_of_another_model_are_refused_and_named(models: dict[str, Path], tmp_path: Path) -> None:
    place, other = tmp_path / "index", regard.load(models["other"])
    Index.build(regard.load(models["embed"]), MANY, place, name="runs/first")
    with pytest.raises(ValueError, match=r"has vectors of another model.*: runs/first \(\w{12}\), not runs/second"):
        Index(other, place, name="runs/second")
    with pytest.raises(ValueError, match="has vectors of another model"):
        other.search("fine", place)
    (place / "index.json").write_text("{")
    with pytest.raises(ValueError, match=r"index.json is damaged .*: remove"):
        other.search("fine", place)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match="is no index, and not empty"):
        Index(other, tmp_path / "full")
    for documents, said in ([[], "there are no documents"], [["a", " "], "the document 2 is blank: leave it out"]):
        with pytest.raises(ValueError, match=said):
            Index.build(other, documents, tmp_path / "empty")
    assert not (tmp_path / "empty").exists()  # nothing is left of a mistake


def read(path: Path, **how: Any) -> list[tuple[str, str]]:
    return [tuple(each) for each in Documents(path, **how).read()]  # type: ignore[misc]


def test_documents_are_lines_paragraphs_files_and_rows(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\n\n \nthree\n")
    (folder / "inner" / "b.md").write_text("four")
    assert read(folder / "a.txt") == [("a.txt:1", "one"), ("a.txt:2", "two"), ("a.txt:5", "three")]
    paragraphs = [("a.txt:1", "one\ntwo"), ("a.txt:5", "three"), ("inner/b.md:1", "four")]
    assert read(folder, unit="paragraph") == paragraphs
    assert read(folder, unit="file") == [("a.txt", "one\ntwo\n\n \nthree"), ("inner/b.md", "four")]
    (tmp_path / "a.tsv").write_text("id\ttext\nx\tone\n7\ttwo\n")
    assert read(tmp_path / "a.tsv") == [("x", "one"), ("7", "two")]
    (tmp_path / "b.csv").write_text('"one",x\n,y\n"two",z\n')
    assert read(tmp_path / "b.csv") == [("1", "one"), ("3", "two")]
    assert read(tmp_path / "b.csv", columns=("text=1", "id=0")) == [("one", "x"), ("2", "y"), ("two", "z")]
    row = json.dumps({"_id": "d1", "title": "Cats", "text": "They sit."})
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(f"{row}\n".encode()))
    assert read(tmp_path / "corpus.jsonl.gz") == read(tmp_path) == [("d1", "Cats They sit.")]  # as BEIR has it


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("nowhere", {}, "there is no .*nowhere: name a file, or a folder"),
        ("nowhere", {"unit": "passage"}, "there is no .*nowhere: name a file, or a folder"),
        ("nothing", {}, "has no text in it"),
        ("blank.txt", {}, "has no document with text in it"),
        ("torn.txt", {"unit": "passage"}, r"in it \(1 of the files could not be read.*torn.txt \(line 1"),
        ("blank.txt", {"columns": ("text=1",)}, "columns are those of a table"),
        ("a.jsonl", {}, "has no 'text'"),
        ("blank.txt", {"unit": "word"}, "unit = 'word': choose file, paragraph, line or passage"),
    ],
)
def test_what_holds_no_documents_is_refused(tmp_path: Path, name: str, how: Any, said: str) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "torn.txt").write_bytes(b"\xff")
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(ValueError, match=said):
        read(tmp_path / name, **how)


def test_a_classifier_of_pairs_ranks_what_was_found(
    models: dict[str, Path], embedder: Embedder, tmp_path: Path
) -> None:
    ranker = regard.load(models["pairs"])
    index = Index.build(embedder, MANY, tmp_path / "index", reranker=ranker)
    found = index.search(TEXTS[0], top=3)
    near = embedder.search(TEXTS[0], MANY, top=30)
    scores = {hit.text: ranker.classify(TEXTS[0], hit.text).probabilities["yes"] for hit in near}
    best = sorted(scores, key=lambda text: -scores[text])[:3]
    assert [hit.text for hit in found] == best != [hit.text for hit in near[:3]]
    assert [hit.score for hit in found] == pytest.approx([scores[text] for text in best])
    with pytest.raises(ValueError, match="texts are ranked by one number or two classes: this model has 3"):
        Index(embedder, tmp_path / "index", reranker=regard.load(models["three"]))
    with pytest.raises(ValueError, match="by a model that learnt from pairs: this one learnt from single texts"):
        Index(embedder, tmp_path / "index", reranker=regard.load(models["single"]))


def run(*arguments: Any, stdin: str = "") -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), input=stdin)


def test_the_command_keeps_vectors_and_takes_queries_from_anywhere(
    models: dict[str, Path], embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    documents, asked = tmp_path / "many.txt", tmp_path / "asked.txt"
    documents.write_text("".join(f"{text}\n" for text in ["", *MANY]))
    asked.write_text("".join(f"{text}\n" for text in TEXTS))
    given = [(f"many.txt:{i}", text) for i, text in enumerate(MANY, start=2)]
    expected = embedder.search(TEXTS, given, top=2)
    first = run("search", models["embed"], documents, *TEXTS, "--top", 2)
    assert "81 documents, 81 new texts embedded: " in first.stderr
    assert "1 blank documents were left out" in first.stderr
    lines = [
        f"{rank}\t{hit.score:.4f}\t{hit.id}\t{hit.text}" for row in expected for rank, hit in enumerate(row, start=1)
    ]
    assert first.stdout.splitlines() == lines
    again = run("search", models["embed"], documents, asked, "--top", 2)
    assert "81 documents, 0 new texts embedded: " in again.stderr
    assert (
        again.stdout
        == first.stdout
        == run("search", models["embed"], documents, "--top", 2, stdin=asked.read_text()).stdout
    )
    row = json.dumps({"query": TEXTS[1], "id": 7})
    (said,) = run("search", models["embed"], documents, "--jsonl", "--top", 2, stdin=row).stdout.splitlines()
    assert json.loads(said) == {"id": 7, "query": TEXTS[1], "hits": [hit._asdict() for hit in expected[1]]}
    with open(documents, "a") as file:
        file.write("something else\n")
    changed = run("search", models["embed"], documents, "something else", "--top", 1, "--json")
    assert "82 documents, 1 new text embedded: " in changed.stderr
    assert json.loads(changed.stdout)["hits"][0]["id"] == "many.txt:83"
    ranked = run("search", models["embed"], documents, TEXTS[0], "--rerank", models["pairs"], "--top", 2)
    assert len(ranked.stdout.splitlines()) == 2
    out = tmp_path / "out.txt"
    single = run("search", models["embed"], documents, TEXTS[0], "--rerank", models["single"], "-o", out)
    assert "this one learnt from single texts" in str(single.exception)
    assert not out.exists()
    place = next((tmp_path / "cache" / "search").iterdir())
    wrong = run("search", models["other"], documents, TEXTS[0], "--index", place)
    assert "has vectors of another model" in str(wrong.exception)
    assert "cannot embed: it is a model to classify" in str(run("search", models["pairs"], documents, "x").exception)


def test_a_line_of_the_store_may_be_anything(embedder: Embedder, tmp_path: Path) -> None:
    strange = ["a\nb", "tab\there", "\u2028", '"quoted" \\', "é" * 50]
    index = Index.build(
        embedder, [(f"id\n{i}", text) for i, text in enumerate(strange) if text.strip()], tmp_path / "x"
    )
    assert {hit.text for hit in index.search("a", top=9)} == {text for text in strange if text.strip()}


@pytest.mark.oracle
@pytest.mark.slow
def test_semantic_search_of_sentence_transformers_finds_the_same(tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    import torch

    draw = np.random.default_rng(1)
    vectors, queries = (unit(draw.normal(size=(n, 64))) for n in (3_000, 40))
    expected = theirs.util.semantic_search(torch.from_numpy(queries), torch.from_numpy(vectors), top_k=20)
    found = nearest(queries, [vectors[:1_000], vectors[1_000:]], 20)
    assert [[n for n, _ in row] for row in found] == [[hit["corpus_id"] for hit in row] for row in expected]
    assert np.allclose(
        [[x for _, x in row] for row in found], [[hit["score"] for hit in row] for row in expected], atol=1e-5
    )
