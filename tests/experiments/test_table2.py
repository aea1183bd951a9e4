"""Table 2: its models at every scale, and what is made of their results."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from regard.experiments import lab, table2
from regard.experiments.charts import Chart
from regard.experiments.lab import Result
from regard.experiments.table2 import MODELS, PAPER, agreement, cost_of, level
from regard.models.costs import parameters
from regard.recipes import reading as recipes


def result(bleu: float, flops: float = 8e12, seconds: float | None = 100.0) -> Result:
    """Of a trial, made up: BLEU grows with the steps, in a straight line."""
    cost = {"parameters": 1_840_000, "vocabulary": 4000, "steps": 400, "epochs": 0.9, "threads": 2}
    way = [[step, 5.0, bleu * step / 400] for step in (100, 200, 300, 400)]
    score = {"loss": 3.0, "perplexity": 20.1, "bleu": bleu, "chrf2": 40.0}
    return {**cost, **score, "flops": flops, "seconds": seconds, "validations": way}


def as_published(language: str) -> dict[str, Result]:
    """Models in the paper's order."""
    named = {key: model.paper for key, model in MODELS.items() if model.paper}
    return {
        f"{language}-{key}": result(PAPER[paper].bleu[language])
        for key, paper in named.items()
        if language in PAPER[paper].bleu
    }


@pytest.mark.parametrize("scale", lab.SCALES)
def test_the_recipes_of_all_models(scale: str) -> None:
    trials = {trial.name: trial.settings for trial in table2.trials(scale)}
    loaded = {name: recipes.load(s["recipe"], s["changes"]) for name, s in trials.items()}
    for name, recipe in loaded.items():
        language, model, adam = table2.split(name)
        assert json.loads(json.dumps(dict(trials[name]))) == dict(trials[name])
        assert recipe.train.optimiser.name == ("adam" if adam or scale == "full" else "muon")
        if scale == "full":
            assert recipe.data.languages == ("en", language)
            assert recipe.train.steps == (300_000 if model == "transformer-wide" else 100_000)
            assert recipe.train.average == (20 if model == "transformer-wide" else 5)
        else:
            assert recipe.data.corpus == f"multi30k-en-{language}"
    if scale == "full":  # the paper's models are the paper's recipes
        for name, shipped in (("transformer", "base"), ("transformer-wide", "big")):
            assert loaded[f"de-{name}"].model == recipes.load(f"wmt14-en-de-{shipped}").model
        assert loaded["fr-transformer-wide"].model == recipes.load("wmt14-en-fr-big").model
        assert loaded["fr-transformer"].model == recipes.load("wmt14-en-de-base").model
    if scale == "small":  # the same steps for all, and about as many parameters
        sizes = {name: parameters(recipe.model.build(4000)) for name, recipe in loaded.items() if "wide" not in name}
        assert max(sizes.values()) < 1.25 * min(sizes.values())
        assert len({recipe.train for name, recipe in loaded.items() if not name.endswith("adam")}) == 1


def test_the_cost_of_a_quality_lies_between_validations() -> None:
    assert cost_of(result(20.0), 10.0) == 4e12
    assert cost_of(result(20.0), 12.5) == pytest.approx(5e12)
    assert cost_of(result(20.0), 2.5) == pytest.approx(1e12)  # before the first validation
    assert cost_of(result(20.0), 21.0) is None
    assert cost_of(result(0.0), level({"de-lstm": result(0.0)})) == 0.0  # nothing learnt, nothing asked


def test_agreement_counts_pairs_in_the_papers_order() -> None:
    assert agreement(as_published("de"), "de") == (10, 10)
    assert agreement(as_published("fr"), "fr") == (6, 6)
    best_last = {**as_published("de"), "de-transformer-wide": result(1.0)}
    assert agreement(best_last, "de") == (6, 10)
    others = {**as_published("de"), "de-gru": result(99.0), "de-lstm-adam": result(99.0)}  # not in the paper
    assert agreement(others, "de") == (10, 10)


def test_the_report_says_what_the_results_say() -> None:
    german = {"de-transformer": result(20.0, 8e12), "de-lstm": result(15.0, 4e12, seconds=400.0)}
    german |= {"de-bytenet": result(5.0, 1e12), "de-lstm-adam": result(4.0)}
    french = {"fr-transformer": result(20.0, 8e12), "fr-lstm": result(30.0, 4e12, seconds=None)}
    report = table2.report(german | french, "small")
    text = report.text
    assert "The best BLEU is that of Transformer: 20.0." in text
    assert "LSTM, Luong's attention reached 10.0 BLEU of validation sentences with the fewest FLOPs." in text
    rival = "BLEU against the best of the others, LSTM, Luong's attention, with"
    assert f"+5.0 {rival} 2.00 times its FLOPs and 0.25 times its time." in text
    assert "Of 3 pairs of models that the paper has too, 3 come in the paper's order." in text
    assert "The best BLEU is that of LSTM, Luong's attention: 30.0." in text
    assert f"-10.0 {rival} 2.00 times its FLOPs. " in text
    assert "| ByteNet | 1.84 | 1.0e+12 | 100 | 20.1 | 5.0 | 40.0 | – | ByteNet | 23.75 | – |" in text
    assert "| LSTM, Luong's attention, Adam | 1.84 |" in text
    assert "| Transformer (big) | 28.4 | 41.8 | 2.3e+19 | 2.3e+19 |" in text
    curves = report.charts["table2-en-de-flops"]
    assert isinstance(curves, Chart)
    assert [series.label for series in curves.series] == ["Transformer", "LSTM, Luong's attention", "ByteNet"]
    assert list(curves.series[1].x) == [1e12, 2e12, 3e12, 4e12]
    assert set(report.charts) == {f"table2-en-{x}-{y}" for x in ("de", "fr") for y in ("flops", "seconds")} | {
        "table2-paper"
    }


def test_nothing_learnt_is_nothing_found() -> None:
    text = table2.report(
        {"de-transformer": result(0.2), "de-lstm": result(0.0), "fr-transformer": result(0.0)}, "small"
    ).text
    assert text.count("Nobody has learnt to translate, so nothing follows.") == 2
    assert "in the paper's order" not in text
    assert "fewest FLOPs" not in text


def test_both_sides_are_compared_at_the_better_of_their_optimisers() -> None:
    german = {"de-transformer": result(20.0, seconds=None), "de-lstm": result(10.0)}
    german |= {"de-transformer-adam": result(30.0, seconds=None), "de-lstm-adam": result(25.0)}
    text = table2.report(german | {"fr-transformer": result(20.0)}, "small").text
    assert (
        "The Transformer, Adam has +5.0 BLEU against the best of the others, LSTM, Luong's attention, Adam, with"
        in text
    )


def test_a_batch_has_room_for_the_longest_sentence_at_the_scale_of_smoke() -> None:
    for trial in table2.trials("smoke"):
        recipe = recipes.load(trial.settings["recipe"], trial.settings["changes"])
        assert recipe.train.batch_tokens >= 256  # Multi30k in 300 sub-words has a sentence of 129


def test_the_whole_experiment(captions: None, tmp_path: Path) -> None:
    out, quiet = tmp_path / "out", Console(quiet=True)
    lab.experiment("table2", scale="smoke", out=out, console=quiet)
    names = [trial.name for trial in table2.trials("smoke")]
    kept = json.loads((out / "table2.json").read_text("utf-8"), parse_constant=pytest.fail)["trials"]
    assert list(kept) == names
    for record in kept.values():
        steps = [step for step, *_ in record["result"]["validations"]]
        assert steps == [6, 12]
        assert record["result"]["flops"] > 0
    text = (out / "table2.md").read_text("utf-8")
    assert "## English to German" in text
    assert "## English to French" in text
    for name in table2.report({n: record["result"] for n, record in kept.items()}, "smoke").charts:
        assert f"({name}.svg)" in text
        assert (out / f"{name}.svg").read_text("utf-8").count("<svg") == 1
    (out / "trials" / "de-lstm.json").unlink()  # the model is there: measured again, not trained again
    lab.experiment("table2", scale="smoke", out=out, console=quiet)
    again = json.loads((out / "table2.json").read_text("utf-8"))["trials"]
    assert again["de-lstm"]["result"] == kept["de-lstm"]["result"]
    assert again["de-lstm"]["seconds"] != kept["de-lstm"]["seconds"]
    assert again["de-convs2s"] == kept["de-convs2s"]
