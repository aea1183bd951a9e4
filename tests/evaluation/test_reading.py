"""Figures of classes and of what is found, against slow truths; intervals that hold what they promise."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from regard.evaluation.bootstrap import compared, drawn, intervals
from regard.evaluation.calibration import reliability
from regard.evaluation.classes import (
    AGREEMENT,
    CORRELATION,
    agreement,
    among_first,
    correlation,
    decided,
    f1,
    fitted_temperature,
    indicated,
    matthews,
    probable,
    surprise,
)
from regard.evaluation.retrieval import RETRIEVAL, means, ranks_judged, retrieval
from regard.evaluation.spans import TAGGING
from regard.evaluation.texts import JIWER, ROUGE

RNG = np.random.default_rng


def made(n: int, classes: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model that is as sure as it is right, times a scale, and what is true."""
    logits = RNG(classes).normal(size=(n, classes)) * 2
    p = probable(logits, True)
    chosen = (RNG(1).random((n, 1)) < p.cumsum(1)).argmax(1)
    return logits * scale, chosen[:, None] == np.arange(classes)


@pytest.mark.parametrize("classes", [2, 5])
def test_every_figure_of_one_class_is_what_counting_gives(classes: int) -> None:
    logits, truth = made(300, classes)
    p = probable(logits, True)
    y, said = truth.argmax(1).tolist(), p.argmax(1).tolist()
    told = p.argmax(1)[:, None] == np.arange(classes)
    found = agreement(truth, told, p)
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in zip(y, said, strict=True)) / 300)
    scores = []
    for c in range(classes):
        right = sum(a == b == c for a, b in zip(y, said, strict=True))
        scores.append(2 * right / (y.count(c) + said.count(c)))
    assert found["f1"] == pytest.approx(sum(scores) / classes)
    assert found["f1 micro"] == pytest.approx(found["accuracy"])
    assert found["loss"] == pytest.approx(-sum(math.log(p[n, c]) for n, c in enumerate(y)) / 300)
    # Matthews' coefficient is the correlation of the two tables of ones and zeros, each less its means (Gorodkin).
    a, b = truth - truth.mean(0), told - told.mean(0)
    assert found["mcc"] == pytest.approx((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))
    assert found["ece"] == reliability(p.max(1), np.array(y) == np.array(said)).ece


def test_of_several_classes_each_is_a_decision_and_which_figures_there_are_does_not_hang_on_the_rows() -> None:
    logits = RNG(0).normal(size=(200, 3))
    p = probable(logits, False)
    assert np.allclose(p, 1 / (1 + np.exp(-logits)))
    truth, told = RNG(1).random((200, 3)) < p, p >= 0.5
    found = agreement(truth, told, p, one=False)
    assert found["f1"] == pytest.approx(np.mean([f1(truth[:, i], told[:, i]) for i in range(3)]))
    each = zip(p.ravel().tolist(), truth.ravel().tolist(), strict=True)
    assert found["loss"] == pytest.approx(np.mean([-math.log(q if true else 1 - q) for q, true in each]))
    confidence, right = decided(truth, p, one=False)
    assert confidence.min() >= 0.5
    assert right.mean() == pytest.approx((truth == told).mean())
    single = np.flatnonzero((truth.sum(1) == 1) & (told.sum(1) == 1))[:5]
    assert agreement(truth[single], told[single], p[single], one=False).keys() == found.keys()
    assert probable(np.array([-800.0, 800.0]), False).tolist() == [0.0, 1.0]


def test_where_nothing_varies_figures_are_numbers() -> None:
    truth = indicated([["a"], ["a"]], ["a", "b"])
    assert matthews(truth.argmax(1), truth.argmax(1), 2) == 0.0
    assert f1(~truth, truth) == 0.0
    assert surprise(truth, np.array([[0.0, 1.0], [1.0, 0.0]]), True) < 1e3


@pytest.mark.parametrize("scale", [0.3, 1.0, 6.0])
def test_a_temperature_is_found_that_undoes_a_scale(scale: float) -> None:
    logits, truth = made(20_000, 3, scale)
    found = fitted_temperature(logits, truth)
    assert found == pytest.approx(scale, rel=0.03)
    losses = [surprise(truth, probable(logits / t, True), True) for t in (found, found * 1.01, found / 1.01)]
    assert losses[0] == min(losses)
    before, after = (reliability(*decided(truth, probable(logits / t, True), True)).ece for t in (1.0, found))
    assert after < 0.01
    assert scale == 1.0 or after < before / 5


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held, random_ = 0, RNG(5)
    for _ in range(60):
        x = random_.random(80) < 0.7
        low, high = intervals(lambda rows, x=x: {"share": float(x[rows].mean())}, 80, times=200)["share"][1:]  # type: ignore[misc]
        held += low <= 0.7 <= high
    assert 51 <= held <= 60
    assert [row.tolist() for row in drawn(9, 2, 3)] == [row.tolist() for row in drawn(9, 2, 3)]
    with pytest.raises(ValueError, match="the number of rows = 1: it must be at least 2"):
        intervals(lambda rows: {}, 1)


def test_two_models_are_compared_on_the_same_draws() -> None:
    base = RNG(0).random(400) < 0.7
    other = base.copy()
    other[:12] = ~other[:12]  # nearly the same answers: a small difference is no chance
    better = base | (np.arange(400) < 40)

    def share(x: np.ndarray) -> object:
        return lambda rows: {"accuracy": float(x[rows].mean())}

    found = compared(share(better), share(base), 400)["accuracy"]  # type: ignore[arg-type]
    assert found.score == pytest.approx(better.mean() - base.mean())
    assert 0 < found.low <= found.score <= found.high
    assert found.p < 0.01
    noise = compared(share(other), share(base), 400)["accuracy"]  # type: ignore[arg-type]
    assert noise.p > 0.05
    back = compared(share(base), share(better), 400)["accuracy"]  # type: ignore[arg-type]
    assert (back.score, back.p) == (-found.score, found.p)


@pytest.mark.oracle
def test_ranks_are_judged_as_trec_eval_does() -> None:
    pytrec = pytest.importorskip("pytrec_eval")
    draw = random.Random(0)
    wanted, run = {}, {}
    for q in range(50):
        docs = [f"d{i}" for i in range(draw.randint(5, 300))]
        wanted[f"q{q}"] = {d: draw.choice([0, 0, 1, 2, 3, -1]) for d in draw.sample(docs, 5)}
        run[f"q{q}"] = {d: draw.random() for d in docs}
    theirs = pytrec.RelevanceEvaluator(wanted, {"ndcg_cut.10", "recall.1,10,100"}).evaluate(run)
    ten = {q: dict(sorted(each.items(), key=lambda pair: -pair[1])[:10]) for q, each in run.items()}
    first = pytrec.RelevanceEvaluator(wanted, {"recip_rank"}).evaluate(ten)
    ranked = [(sorted(run[q], key=lambda d: -run[q][d])[:100], wanted[q]) for q in run]
    ours = ranks_judged(ranked)
    for name, other in {"ndcg@10": "ndcg_cut_10", **{f"recall@{n}": f"recall_{n}" for n in (1, 10, 100)}}.items():
        assert ours[name].tolist() == pytest.approx([theirs[q][other] for q in run])
    assert ours["mrr@10"].tolist() == pytest.approx([first[q]["recip_rank"] for q in run])
    assert ours.keys() == RETRIEVAL.keys()


@pytest.mark.oracle
@pytest.mark.parametrize("one", [True, False])
def test_figures_of_classes_are_those_of_scikit_learn(one: bool) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    logits = RNG(3).normal(size=(200, 7))
    logits[:, 6] -= 9  # a class that nobody tells
    p = probable(logits, one)
    y = RNG(4).integers(0, 6, 200)
    truth = y[:, None] == np.arange(7) if one else RNG(4).random((200, 7)) < p
    told = p.argmax(1)[:, None] == np.arange(7) if one else p >= 0.5
    found = agreement(truth, told, p, one)
    expected = {
        "accuracy": metrics.accuracy_score(truth, told),
        "f1": metrics.f1_score(truth, told, average="macro", zero_division=0),
        "f1 micro": metrics.f1_score(truth, told, average="micro", zero_division=0),
        "loss": metrics.log_loss(y, p, labels=range(7)) if one else metrics.log_loss(truth.ravel(), p.ravel()),
    }
    if one:
        expected["mcc"] = metrics.matthews_corrcoef(y, told.argmax(1))
        top5 = metrics.top_k_accuracy_score(y, p, k=5, labels=range(7))
        assert among_first(truth, p, 5) == pytest.approx(top5)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert {*found} <= AGREEMENT.keys()


@pytest.mark.oracle
def test_correlations_are_those_of_scipy() -> None:
    stats, metrics = pytest.importorskip("scipy.stats"), pytest.importorskip("sklearn.metrics")
    x = RNG(5).normal(size=80).round(1)  # some are equal
    y = x + RNG(6).normal(size=80).round(1)
    found = correlation(x, y)
    assert found["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(x, y))
    assert found.keys() == CORRELATION.keys()


def test_signatures_name_the_versions_that_tests_have() -> None:
    """What a figure is said to equal is what it was compared with: the pin is the proof."""
    told = {*AGREEMENT.values(), *CORRELATION.values(), *RETRIEVAL.values(), *TAGGING.values(), ROUGE, JIWER}
    named = {each.removeprefix("equals:") for how in told for each in how.split("|") if each.startswith("equals:")}
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
    known = {pin.replace("==", "-").replace("_", "-") for pin in pins}
    assert {each.replace("_", "-") for each in named} <= known
    assert len(named) == 6


def test_ranks_are_judged_as_by_hand() -> None:
    """Grades 3, 2 and 1 at ranks 2, 4 and beyond the tenth; a document that is worth less than nothing."""
    gains = {"a": 3.0, "b": 2.0, "c": 1.0, "d": -1.0}
    ranked = ["d", "a", "x", "b", *(f"y{i}" for i in range(8)), "c"]
    found = ranks_judged([(ranked, gains)])
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert found["ndcg@10"][0] == pytest.approx((3 / math.log2(3) + 2 / math.log2(5)) / ideal)
    assert found["mrr@10"][0] == 0.5
    assert [found[f"recall@{n}"][0] for n in (1, 10, 100)] == pytest.approx([0, 2 / 3, 1])
    both = retrieval(np.array([[0.1, 0.9], [0.9, 0.1]]), [{1}, {1}])
    assert means(both, np.array([0, 0, 1]))["mrr@10"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert ranks_judged([(["a"], {"a": 0.0})])["ndcg@10"].tolist() == [0.0]
    with pytest.raises(ValueError, match="no question wants any document"):
        ranks_judged([])
