"""`regard evaluate` of models that read: the right figures for each task, two models, temperatures, BEIR's folders."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import regard
from regard import cli
from regard.data import beir
from regard.evaluation.classes import correlation
from regard.evaluation.translation import bleu, chrf
from tests.readers import TASKS, TEXTS, directory

LABELS = ("down", "even", "up")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    found = {name: directory(root / name, name) for name in TASKS}
    return {**found, "other": directory(root / "other", "classify", seed=8)}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.tsv"
    rows = [f"{text} {i}\t{LABELS[(i * 7 + len(text)) % 3]}\n" for i in range(20) for text in TEXTS]
    path.write_text("".join(rows))
    return path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], env={"COLUMNS": "120"})


def judged(*arguments: Any) -> dict[str, Any]:
    found = run(*arguments, "--json")
    assert found.exception is None, found.exception
    return json.loads(found.stdout)  # type: ignore[no-any-return]


def mistake(*arguments: Any) -> str:
    found = run(*arguments)
    assert isinstance(found.exception, ValueError | OSError), found.output
    return str(found.exception)


def test_a_classifier_is_judged_with_intervals_the_same_each_time(models: dict[str, Path], labelled: Path) -> None:
    found = judged(models["classify"], labelled)
    assert (found["task"], found["rows"], found["counted"]) == ("classify", 100, "texts")
    assert list(found["figures"]) == ["accuracy", "f1", "f1 micro", "mcc", "loss", "ece"]
    said = regard.load(models["classify"]).classify([line.split("\t")[0] for line in labelled.read_text().splitlines()])
    truth = [line.split("\t")[1] for line in labelled.read_text().splitlines()]
    right = sum(a.label == b for a, b in zip(said, truth, strict=True)) / 100
    accuracy = found["figures"]["accuracy"]
    assert accuracy["score"] == pytest.approx(right)
    assert accuracy["low"] < right < accuracy["high"]
    assert found == judged(models["classify"], labelled)
    assert found["figures"]["f1"]["signature"] == (
        f"average:macro|classes:all|equals:scikit-learn-1.9.1|version:regard-{regard.__version__}"
    )
    shown = run(models["classify"], labelled).stdout
    assert f"{right:.4f}" in shown
    assert "equals:scikit-learn-1.9.1" in "".join(shown.split())
    assert "100 texts of" in " ".join(shown.split())


def test_columns_say_where_the_parts_stand(models: dict[str, Path], labelled: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [line.split("\t") for line in labelled.read_text().splitlines()]
    path.write_text("".join(["y,sentence\n", *(f'{label},"{text}"\n' for text, label in lines)]))
    found = judged(models["classify"], path, "--column", "text=sentence", "--column", "label=0")
    assert found["figures"] == judged(models["classify"], labelled)["figures"]
    assert "no column 'sentense': did you mean 'sentence'" in mistake(
        models["classify"], path, "--column", "text=sentense", "--column", "label=y"
    )


def test_two_models_are_compared_on_the_same_rows(models: dict[str, Path], labelled: Path) -> None:
    found = judged(models["classify"], labelled, "--against", models["other"])
    theirs = judged(models["other"], labelled)["figures"]
    for name, each in found["against"].items():
        assert each["theirs"] == pytest.approx(theirs[name]["score"])
        assert each["score"] == pytest.approx(found["figures"][name]["score"] - theirs[name]["score"])
        assert 0 < each["p"] <= 1
    same = judged(models["classify"], labelled, "--against", models["classify"])["against"]["loss"]
    assert (same["score"], same["p"]) == (0.0, 1.0)
    assert "against" in run(models["classify"], labelled, "--against", models["other"]).stdout
    assert "compare like with like" in mistake(models["classify"], labelled, "--against", models["embed"])


def test_a_temperature_is_fitted_and_kept(labelled: Path, tmp_path: Path) -> None:
    model = directory(tmp_path / "model", "classify")
    before = json.loads((model / "config.json").read_text())
    found = judged(model, labelled, "--calibrate", "--picture", tmp_path / "trust.svg")
    now, after = found["calibrated"], json.loads((model / "config.json").read_text())
    assert after.pop("use") == before.pop("use") | {"temperature": now["temperature"]["after"]}
    assert after == before
    assert now["temperature"]["before"] == 1.0 != now["temperature"]["after"]
    assert now["loss"]["after"] < now["loss"]["before"]
    assert now["loss"]["after"] == found["figures"]["loss"]["score"]
    assert "% of texts" in (tmp_path / "trust.svg").read_text()
    again = judged(model, labelled, "--calibrate")["calibrated"]
    assert again["temperature"]["after"] == pytest.approx(now["temperature"]["after"], rel=1e-4)
    assert again["loss"]["before"] == pytest.approx(now["loss"]["after"])
    assert regard.load(model).use.temperature == again["temperature"]["after"]
    assert "calibrated" in run(model, labelled, "--calibrate").stdout


def test_numbers_and_scored_pairs_are_correlated(models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    rows = [(TEXTS[i % 5], f"{TEXTS[(i * 2) % 5]} {i}", float(i % 6)) for i in range(30)]
    path.write_text("text\tpair\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    found = judged(models["embed"], path)
    embedder = regard.load(models["embed"])
    alike = (embedder.embed([row[0] for row in rows]) * embedder.embed([row[1] for row in rows])).sum(1)
    expected = correlation([row[2] for row in rows], alike)
    assert {name: x["score"] for name, x in found["figures"].items()} == pytest.approx(
        {name: expected[name] for name in ("spearman", "pearson")}
    )
    numbers = directory(tmp_path / "numbers", "classify", kind="number", labels=())
    found = judged(numbers, path, *(x for part in ("text=text", "label=score") for x in ("--column", part)))
    assert list(found["figures"]) == ["spearman", "pearson", "rmse"]
    assert "nothing to calibrate" in mistake(
        numbers, path, "--column", "label=score", "--column", "text=text", "--calibrate"
    )
    path.write_text("text\tpair\tscore\na cat\ta dog\tx\na man\ta tree\t1\n")
    assert mistake(models["embed"], path) == "the score 'x' of 'a cat' is no number"


def test_gaps_spans_and_answers_are_judged_as_their_tasks_do(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{text}.\n" for text in TEXTS) * 9)
    found = judged(models["mask"], tmp_path / "text.txt", "--picture", tmp_path / "trust.png")
    assert list(found["figures"]) == ["loss", "perplexity", "accuracy"]
    assert (tmp_path / "trust.png").stat().st_size > 1000
    (tmp_path / "names.conll").write_text("a O\ndog B-PER\n\ntwo O\nmen B-ORG\n\n" * 5)
    assert list(judged(models["tag"], tmp_path / "names.conll")["figures"]) == ["f1", "precision", "recall", "accuracy"]
    rows = [{"question": "a good film", "context": TEXTS[i], "answers": [TEXTS[i].split()[-1]]} for i in range(5)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(judged(models["answer"], tmp_path / "asked.jsonl")["figures"]) == ["exact", "f1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": text, "text": f"{text} {i}"} for i, text in enumerate(TEXTS * 30)]
    lines = "".join(json.dumps(row) + "\n" for row in [*documents, {"_id": "q1", "text": TEXTS[1]}])
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "q{i}", "text": "{t}"}}\n' for i, t in enumerate(TEXTS)))
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(f"{head}q0\td0\t1\nq0\td5\t2\nq1\td1\t1\nq2\td2\t1\n")
    (folder / "qrels" / "dev.tsv").write_text(f"{head}q3\td3\t1\nq4\td4\t1\n")
    return folder


def test_retrieval_is_judged_on_a_folder_of_beirs(
    models: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.tasks.asks.AHEAD", 40)  # documents come in several windows
    found = judged(models["embed"], folder)
    assert (found["rows"], found["counted"]) == (3, "questions")
    assert list(found["figures"]) == ["ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100"]
    embedder = regard.load(models["embed"])
    documents = list(beir.load(folder).documents())
    assert documents[0][1] == f"{TEXTS[0]} {TEXTS[0]} 0"
    vectors, recalls = embedder.embed([text for _, text in documents]), []
    for id, text, wanted in (("q0", TEXTS[0], {"d0", "d5"}), ("q1", TEXTS[1], {"d1"}), ("q2", TEXTS[2], {"d2"})):
        order = [documents[i][0] for i in np.argsort(-(vectors @ embedder.embed(text)), kind="stable")]
        recalls.append(len(wanted & set([name for name in order if name != id][:10])) / len(wanted))
    assert found["figures"]["recall@10"]["score"] == pytest.approx(np.mean(recalls))
    assert judged(models["embed"], folder / "qrels" / "dev.tsv")["rows"] == 2
    other = judged(models["embed"], folder, "--against", models["embed"])["against"]
    assert other["ndcg@10"]["score"] == 0.0


def test_a_wrong_folder_is_one_line(models: dict[str, Path], folder: Path) -> None:
    (folder / "qrels" / "test.tsv").unlink()
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq9\td0\t1\n")
    assert "has dev.tsv, train.tsv: name one of them" in mistake(models["embed"], folder)
    assert "judges 'q9', which is no question" in mistake(models["embed"], folder / "qrels" / "train.tsv")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\tx\n")
    assert "the score 'x' is no number" in mistake(models["embed"], folder / "qrels" / "train.tsv")
    (folder / "queries.jsonl").unlink()
    assert "has no queries.jsonl: a folder of BEIR's has" in mistake(models["embed"], folder)


def test_mistakes_are_one_line(models: dict[str, Path], labelled: Path, tmp_path: Path) -> None:
    model = models["classify"]
    assert "rows to judge by: regard evaluate" in mistake(model)
    assert "name what to translate" in mistake("en-es")
    assert "leave out --source" in mistake(model, labelled, "--source", labelled)
    assert "--beam is for a model that translates" in mistake(model, labelled, "--beam", 3)
    assert "--calibrate is for a classifier" in mistake(models["tag"], _conll(tmp_path), "--calibrate")
    assert "leave --picture out" in mistake(models["tag"], _conll(tmp_path), "--picture", tmp_path / "a.svg")
    assert "a picture ends in .svg or .png" in mistake(model, labelled, "--picture", tmp_path / "a.gif")
    assert "are for rows to judge by" in mistake(model, "--calibrate")
    (tmp_path / "rows.xls").write_text("")
    assert "ends in none of .tsv, .csv, .jsonl" in mistake(model, tmp_path / "rows.xls")
    (tmp_path / "one.tsv").write_text("a\tup\n")
    assert "has 1 texts: there is nothing to judge by" in mistake(model, tmp_path / "one.tsv")
    (tmp_path / "two.tsv").write_text("a\tup\nb\tsideways\n")
    assert "labels that the model does not know: sideways" in mistake(model, tmp_path / "two.tsv")
    (tmp_path / "other.conll").write_text("a O\ndog B-PER\n\nRome B-LOC\ntwo I-ORG\n\n")
    assert mistake(models["tag"], tmp_path / "other.conll") == (
        "these sentences have tags that the model does not know: B-LOC"
    )
    assert not (model / "config.json.tmp").exists()


def _conll(folder: Path) -> Path:
    (folder / "names.conll").write_text("a O\ndog B-PER\n\ntwo O\nmen B-ORG\n\n")
    return folder / "names.conll"


def test_a_translator_is_judged_by_pairs_and_beside_another(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    said = regard.load().translate(["Where is the library?", "Good morning.", "I am hungry."])
    path.write_text(
        f"Where is the library?\t{said[0]}\nGood morning.\tBuenas noches, amigo.\nI am hungry.\t{said[2]}\n"
    )
    found = judged("en-es", path)
    assert (found["task"], found["rows"], found["counted"]) == ("translate", 3, "pairs")
    whole = [said[0], "Buenas noches, amigo.", said[2]]
    scores = bleu(said, whole), chrf(said, whole)
    assert [figure["score"] for figure in found["figures"].values()] == [score.value for score in scores]
    assert list(found["figures"]) == ["bleu", "chrf"]
    assert [figure["signature"] for figure in found["figures"].values()] == [score.signature for score in scores]
    assert found["figures"]["bleu"]["high"] == pytest.approx(100)
    assert judged("en-es", path, "--against", "en-es")["against"]["chrf"]["p"] == 1.0
    rows = tmp_path / "pairs.jsonl"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    rows.write_text("".join(json.dumps({"en": a, "es": b}) + "\n" for a, b in lines))
    assert judged("en-es", rows, "--column", "source=en", "--column", "target=es")["figures"] == found["figures"]
