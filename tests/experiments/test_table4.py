"""Table 4: trees that a sequence model writes."""

import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from regard.api import load
from regard.data.text import PairFiles
from regard.data.treebank import Tree, linear, read_trees
from regard.experiments import lab, table4
from regard.experiments.table4 import baselines, judged


def a_tree(draw: random.Random, label: str = "S") -> str:
    """A sentence of a small language."""
    if label == "S":
        return f"(S {a_tree(draw, 'NP-SBJ')} {a_tree(draw, 'VP')} (. .))"
    if label == "VP":
        verb = f"(VBD {draw.choice(['saw', 'heard', 'met'])})"
        return f"(VP {verb} {a_tree(draw, 'NP')})" if draw.random() < 0.7 else f"(VP {verb} (NP (-NONE- *T*)))"
    noun = f"({label} (DT the) (NN {draw.choice(['dog', 'man', 'bird', 'house'])}))"
    return f"({label} {noun} (PP (IN of) {a_tree(draw, 'NP')}))" if draw.random() < 0.3 else noun


@pytest.fixture
def treebank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    draw, folder = random.Random(1), tmp_path / "data" / "treebank"
    folder.mkdir(parents=True)
    for number, sentences in ((1, 60), (151, 20), (171, 20)):
        text = "\n".join(f"( {a_tree(draw)} )" for _ in range(sentences))
        (folder / f"wsj_{number:04}.mrg").write_text(text)
    return folder


def trees(*texts: str) -> list[Tree]:
    return list(read_trees(texts, "a test"))


def test_gold_trees_are_all_right_and_no_trees_are_none() -> None:
    gold = trees("(S (NP (DT the) (NN dog)) (VP (VBD slept)) (. .))", "(S (NP (PRP it)) (VP (VBD slept)))")
    right = judged(gold, [linear(tree) for tree in gold])
    assert (right["f1"], right["exact"], right["well formed"]) == (100.0, 100.0, 100.0)
    half = judged(gold, [linear(gold[0]), linear(gold[1])[:-1]])  # the last bracket of the second is missing
    assert (half["exact"], half["well formed"], half["precision"]) == (50.0, 50.0, 100.0)
    assert half["recall"] == 50.0  # 3 of 6 brackets
    assert half["by length"]["10"][0] == 2
    assert half["by length"]["20"] == [0, 0.0]
    words = judged(gold, [["dog", "XX"], []])  # what a bad model may write
    assert (words["f1"], words["well formed"]) == (0.0, 0.0)


def test_baselines_are_trees_of_every_length(treebank: Path, tmp_path: Path) -> None:
    flat = " ".join("(NN word)" for _ in range(9))
    texts = [f"( (S {flat[: 10 * n - 1]}) )" for n in range(1, 10)]
    (treebank / "wsj_0172.mrg").write_text("\n".join(texts))
    found = baselines(tmp_path, Console(quiet=True), corpus="treebank-en-trees")
    assert found["sentences"] == {"train": 60, "valid": 20, "test": 29}
    assert found["right"]["well formed"] == found["flat"]["well formed"] == 100.0
    assert found["labels"] == ["S", "NP"]
    assert 0.0 < found["flat"]["recall"] < found["right"]["recall"]
    assert found["flat"]["precision"] == 100.0  # an S is around every sentence


def test_right_branching_by_hand(treebank: Path, tmp_path: Path) -> None:
    # S(0,5), NP(1,4), NP(2,4) are the right-branching tree of five words, of which the last stands outside.
    (treebank / "wsj_0171.mrg").write_text("( (S (NN a) (VP (VB b) (NP (NN c) (NN d))) (. .)) )")
    found = baselines(tmp_path, Console(quiet=True), corpus="treebank-en-trees")["right"]
    assert (found["precision"], found["recall"]) == (pytest.approx(200 / 3), pytest.approx(200 / 3))


@pytest.mark.parametrize("scale", lab.SCALES)
def test_every_scale_can_be_set_up(scale: str) -> None:
    base, *models = table4.trials(scale)
    assert [base.name, *(trial.name for trial in models)] == ["baselines", "transformer", "lstm"]
    for trial in models:
        settings = json.loads(json.dumps(dict(trial.settings)))
        assert settings == dict(trial.settings)
        files = {split: PairFiles(source="a", target="b") for split in ("train", "valid", "test")}
        recipe = table4.recipe(files, settings["model"], settings["train"], settings["extra"])
        assert recipe.model.preset == settings["model"]["preset"]
        if (scale, trial.name) == ("full", "transformer"):  # §6.3
            config = recipe.model.build(16_000)
            assert (config.encoder_layers, config.decoder_layers, config.d_model) == (4, 4, 1024)


def test_missing_data_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    with pytest.raises(ValueError, match=r"yours to get .* set REGARD_DATA to a folder with treebank/"):
        lab.experiment("table4", scale="smoke", out=tmp_path / "out", console=Console(quiet=True))


def test_rare_words_are_read_as_their_class(treebank: Path, tmp_path: Path) -> None:
    (treebank / "wsj_0151.mrg").write_text("( (S (NP (DT The) (NNP Parliament)) (VP (VBD met) (CD 12)) (. .)) )")
    files = table4._texts(table4._trees("treebank-en-trees", 1000, 0), 2, tmp_path / "text")
    assert Path(str(files["valid"].source)).read_text("utf-8") == "the <Aa:ment> met <0> .\n"
    assert Path(str(files["valid"].target)).read_text("utf-8") == "(S (NP XX XX )NP (VP XX XX )VP XX )S\n"


@pytest.mark.slow
def test_the_whole_experiment(treebank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_NATIVE", "0")  # in a new cache it would be compiled first
    monkeypatch.chdir(tmp_path)
    out, quiet = Path("out"), Console(quiet=True)
    lab.experiment("table4", scale="smoke", out=out, console=quiet)
    text = (out / "table4.md").read_text("utf-8")
    assert all(figure in text for figure in ("91.3", "92.7", "88.3", "right-branching", "Trained on "))
    assert (out / "table4.svg").read_text("utf-8").count("<svg") == 1
    kept = json.loads((out / "table4.json").read_text("utf-8"))["trials"]
    for name in ("transformer", "lstm"):
        result = kept[name]["result"]
        assert {key for key in result if key.startswith(("held", "free"))} == {"held 1", "held 2", "free 1", "free 2"}
        assert all(result[key]["well formed"] == 100.0 for key in ("held 1", "held 2"))
        model = load(out / "trials" / name / "model")  # a model directory as any other
        assert isinstance(model.translate("the dog met the man ."), str)
    # A run that was stopped before its end goes on, and comes to the same figures.
    result = kept["transformer"]["result"]
    (out / "trials" / "transformer.json").unlink()
    (out / "trials" / "transformer" / "model" / "evaluation.json").unlink()
    lab.experiment("table4", scale="smoke", out=out, console=quiet)
    again = json.loads((out / "table4.json").read_text("utf-8"))["trials"]
    assert again["transformer"]["result"] == result
    assert again["lstm"] == kept["lstm"]


@pytest.mark.slow
def test_a_small_language_is_learnt(treebank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_NATIVE", "0")
    draw = random.Random(2)
    (treebank / "wsj_0002.mrg").write_text("\n".join(f"( {a_tree(draw)} )" for _ in range(300)))
    settings = dict(table4.trials("smoke")[1].settings)
    size = {"preset": "tiny", "norm": "pre", "d_model": 32, "d_ff": 64, "heads": 2, "dropout": 0.0}
    settings["model"] = {**size, "encoder_layers": 1, "decoder_layers": 1}
    settings["train"] |= {"epochs": 20, "schedule": {"peak": 0.01, "warmup": 20}}
    settings |= {"first": 0, "longest": 14}
    found = table4.parser(tmp_path / "trial", Console(quiet=True), **settings)
    assert found["held 1"]["f1"] > 70.0  # right-branching comes to 34
    assert found["held 1"]["f1"] >= found["free 1"]["f1"]
