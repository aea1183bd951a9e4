"""Table 3: its rows at every scale, and what is made of their results."""

import json
import math
import random
from pathlib import Path

import pytest
from rich.console import Console

from regard.experiments import lab, runs, table3
from regard.experiments.charts import Chart
from regard.experiments.lab import Result
from regard.experiments.table3 import ROWS, differences, spearman
from regard.models.costs import parameters
from regard.recipes import reading as recipes
from regard.recipes import train as pipeline


def result(perplexity: float, bleu: float) -> Result:
    """Of a trial, made up."""
    cost = {"parameters": 1_900_000, "steps": 300, "epochs": 0.7, "vocabulary": 4000, "threads": 2, "seconds": 60.0}
    score = {"loss": math.log(perplexity), "perplexity": perplexity, "bleu": bleu}
    return {**cost, **score, "validations": [[300, math.log(perplexity), bleu - 1]]}


def planted(sign: int = 1) -> dict[str, Result]:
    """Results that lie to ours as the paper's lie to its base; or the other way round."""
    made = {row.name: result(30 * (row.perplexity / 4.92) ** sign, 20 + sign * (row.bleu - 25.8)) for row in ROWS}
    return {"base": made["base"], "base-seed-2": result(30.3, 20.2), "base-seed-3": result(29.7, 19.8), **made}


@pytest.mark.parametrize("scale", lab.SCALES)
def test_the_recipes_of_all_rows(scale: str) -> None:
    trials = {trial.name: trial.settings for trial in table3.trials(scale)}
    loaded = {name: recipes.load(s["recipe"], s["changes"]) for name, s in trials.items()}
    base = loaded["base"]
    assert {"base", "big", "learned-positions"} <= loaded.keys()
    for name, recipe in loaded.items():
        assert json.loads(json.dumps(dict(trials[name]))) == dict(trials[name])
        assert (recipe.train.seed == 1) == ("seed" not in name)
        assert name == "base" or recipe != base, name
    if scale == "full":
        for row in ROWS:
            count = parameters(loaded[row.name].model.build(36_000 if row.name == "big" else 41_000))
            assert row.millions is None or round(count / 1e6) == row.millions, row.name
        assert (base.train.steps, loaded["big"].train.steps, base.model.changes) == (100_000, 300_000, {})
    else:
        assert len({recipe.train.steps for recipe in loaded.values()}) == 1
    if scale == "small":
        assert len(trials) == len(ROWS) + 2
        costs = {parameters(loaded[name].model.build(4000)) for name in ("base", "h-1", "h-4", "h-16", "h-32")}
        assert len(costs) == 1  # heads at constant cost


def test_rank_correlation_is_that_of_the_text_books() -> None:
    draw, n = random.Random(0), 12
    for _ in range(5):
        x, y = (draw.sample(range(100), n) for _ in range(2))
        squares = sum((sorted(x).index(a) - sorted(y).index(b)) ** 2 for a, b in zip(x, y, strict=True))
        assert spearman(x, y, shuffles=1)[0] == pytest.approx(1 - 6 * squares / (n * (n * n - 1)))  # without ties
    # Ranks 1, 2½, 2½, 4 and 1, 2, 3, 4: about their mean (-1½, 0, 0, 1½) and (-1½, -½, ½, 1½).
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4], shuffles=1)[0] == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1.0, 2.0, 3.0], [5.0, 5.0, 5.0], shuffles=1) == (0.0, 1.0)  # no order at all
    rho, chance = spearman(range(8), [-x for x in range(8)])
    assert rho == pytest.approx(-1.0)
    assert chance < 0.01


def test_a_difference_must_exceed_what_the_seeds_of_base_tell() -> None:
    made = {"base": result(30, 20.0), "base-seed-2": result(30, 21.0), "h-1": result(30, 18.9), "h-4": result(30, 19.0)}
    bleu = differences(made, "bleu")
    assert bleu.noise == pytest.approx(2 * math.sqrt(0.5) * math.sqrt(1.5))  # s² = 1/2 and n = 2: 1.73
    one, four = (row for row in ROWS if row.name in ("h-1", "h-4"))
    assert [bleu.of(one), bleu.of(four)] == pytest.approx([-1.6, -1.5])
    assert not bleu.beyond(one)
    assert differences({**made, "h-1": result(30, 18.7)}, "bleu").beyond(one)
    alone = differences({"base": result(30, 20.0), "h-1": result(99, 1.0)}, "bleu")
    assert alone.noise is None
    assert not alone.beyond(one)


def test_base_is_the_mean_of_its_seeds_wherever_it_is_compared() -> None:
    made = {"base": result(33, 18.0), "base-seed-2": result(30, 20.0), "base-seed-3": result(27, 22.0)}
    rows = {name: result(30.5, 19.5) for name in ("learned-positions", "big")}  # better than the first seed alone
    text = table3.report(made | rows, "small").text
    assert "| (E) positions | 1 | 0 | 0 | base | base | base | base |" in text
    assert "Best of all is base by perplexity and base by BLEU" in text
    assert differences(made, "bleu").of(ROWS[0]) == 0


def test_the_report_says_what_the_results_say() -> None:
    same, turned = (table3.report(planted(sign), "small").text for sign in (1, -1))
    assert same.count("the order of the paper holds in the main: Spearman's ρ = 1.00") == 2
    assert turned.count("the order is the paper's turned around: Spearman's ρ = -1.00") == 2
    assert "Best of all is big by perplexity and big by BLEU" in same
    assert "Best of all is (C) N = 1 (2) by perplexity and (C) N = 1 (2) by BLEU" in turned
    assert (
        "| (A) h = 1 | 1.90 | 32.26 | **+0.073** | 18.1 | 19.1 | **-0.9** | – | 5.29 | +0.073 | 24.9 | -0.9 |" in same
    )
    assert "| (C) d_ff = 256 (1024) |" in same
    assert "| (A) heads | 4 | 1 | 1 | (A) h = 16 | (A) h = 16 | base | base |" in same  # only h = 1 exceeds the noise
    assert "| (A) heads | 4 | 1 | 0 |" in turned
    lone = {name: r for name, r in planted().items() if "seed" not in name}
    assert "nothing is known of the noise" in table3.report(lone, "full").text


def test_charts_hold_the_differences() -> None:
    charts = table3.report(planted(), "small").charts
    assert set(charts) == {f"table3-{name}" for name in ("heads", "d-k", "size", "regularisation", "agreement")}
    heads = charts["table3-heads"]
    assert isinstance(heads, Chart)
    ours, paper = heads.series
    assert list(ours.x) == list(paper.x) == [1, 4, 8, 16, 32]
    assert list(ours.y) == pytest.approx(list(paper.y))


def test_the_whole_experiment(captions: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, quiet = tmp_path / "out", Console(quiet=True)
    train, calls = pipeline.train, []

    def stopping(*given: object, **named: object) -> bool:
        calls.append(named["name"])
        return train(*given, **named) if len(calls) != 3 else False  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        lab.experiment("table3", scale="smoke", out=out, console=quiet)
    lab.experiment("table3", scale="smoke", out=out, console=quiet)
    names = [trial.name for trial in table3.trials("smoke")]
    assert calls == [*names[:3], *names[2:]]  # the third was stopped, and run once more
    kept = json.loads((out / "table3.json").read_text("utf-8"), parse_constant=pytest.fail)["trials"]
    assert list(kept) == names
    assert kept["base"]["result"]["steps"] == table3.STEPS["smoke"]
    assert kept["base"]["result"]["validations"][-1][1] == pytest.approx(kept["base"]["result"]["loss"])
    text = (out / "table3.md").read_text("utf-8")
    assert all(f"| {label} |" in text for label in ("base", "big", "(E) learned positions", "(A) heads"))
    for name in table3.report({n: record["result"] for n, record in kept.items()}, "smoke").charts:
        assert f"({name}.svg)" in text
        assert (out / f"{name}.svg").read_text("utf-8").count("<svg") == 1
