"""The questions: what is measured is what is said, answers follow the results, and a run that stopped goes on."""

import json
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.data.batching import collate
from regard.experiments import lab, questions
from regard.experiments.lab import Result, Trial
from regard.experiments.questions import content, cost, ensemble, heads, limits, scale
from regard.experiments.questions.tasks import (
    SIZES,
    learnt,
    measured,
    pairs_of,
    unseen,
    untaught,
    vocabulary,
)
from regard.experiments.runs import written
from regard.inspection.taps import attentions, record
from regard.models.transformer import TransformerConfig

QUIET = Console(file=StringIO(), width=100)
TINY = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "heads": 4}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """The folder of a run that was stopped at its sixth trial and taken up again; the trials of both runs."""
    folder = tmp_path_factory.mktemp("questions")
    performed: list[str] = []
    perform = lab._perform

    def watched(trial: Trial, *args: Any) -> Result:
        if len(performed) == 5 and not stopped:
            raise KeyboardInterrupt
        performed.append(trial.name)
        return perform(trial, *args)

    stopped: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "_perform", watched)
        with pytest.raises(KeyboardInterrupt):
            lab.experiment("questions", scale="smoke", out=folder, console=QUIET)
        stopped, performed = performed, []
        lab.experiment("questions", scale="smoke", out=folder, console=QUIET)
    return folder, stopped, performed


def test_a_run_that_stopped_goes_on_with_the_rest(smoke: tuple[Path, list[str], list[str]]) -> None:
    _, first, second = smoke
    assert len(first) == 5
    assert first + second == [trial.name for trial in questions.EXPERIMENT.trials("smoke")]


def test_the_report_has_every_question_with_its_table_and_chart(smoke: tuple[Path, list[str], list[str]]) -> None:
    folder = smoke[0]
    text = (folder / "questions.md").read_text("utf-8")
    known = json.loads((folder / "questions.json").read_text("utf-8"))
    assert list(known["trials"]) == [trial.name for trial in questions.EXPERIMENT.trials("smoke")]
    for i, question in enumerate(questions.QUESTIONS, 1):
        section = text.split(f"## {i}. {question.asked}\n")[1].split("\n## ")[0]
        assert "|:--|" in section
        assert "**Answer.**" in section
        for name in (part.split(".svg")[0] for part in section.split("](")[1:]):
            assert name.startswith("questions-")
            assert "<svg" in (folder / f"{name}.svg").read_text("utf-8")
    assert "nan" not in text


@pytest.mark.parametrize("size", lab.SCALES)
def test_every_trial_of_every_scale_can_be_named_kept_and_built(size: str) -> None:
    trials = questions.EXPERIMENT.trials(size)
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        assert json.loads(json.dumps(trial.settings)) == trial.settings
        settings = {k: v for k, v in trial.settings.items() if k in TransformerConfig.__dataclass_fields__}
        if "d_model" in settings:
            TransformerConfig(50).but(**settings)


def test_right_is_what_a_greedy_search_writes() -> None:
    model, _ = learnt(QUIET, "count", range(1, 7), steps=40, seed=0, **TINY)
    pairs = unseen("count", range(1, 7), 0, 200)
    right = measured(model, pairs)["right"]
    assert 0.05 < right < 1.0  # otherwise nothing would be compared
    said = written(model, pairs)
    assert right == sum(a == list(b) for a, (_, b) in zip(said, pairs, strict=True)) / len(pairs)


def test_a_lookup_has_one_answer_and_it_is_there() -> None:
    words = vocabulary("lookup")
    for source, target in islice(pairs_of("lookup", range(1, 9), 3), 200):
        *entries, asked = words.decode(source)
        known = {entry[0]: entry[1] for entry in entries}
        assert known[asked[0]] == words.decode(target)[0]
        assert len(known) == len(entries)


def test_saturation_has_the_norm_of_the_jacobian() -> None:
    scores = torch.randn(5, 7, dtype=torch.double) * 2
    norms = [torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row).norm() for row in scores]
    weights = scores.softmax(-1)
    entropy, largest, gradient = scale.saturation(weights)
    assert gradient == pytest.approx(float(torch.stack(norms).median()))
    assert largest == pytest.approx(float(weights.max(-1).values.median()))
    even = scale.saturation(torch.full((1, 8), 1 / 8))
    assert even[:2] == pytest.approx((1.0, 1 / 8))
    assert entropy < 1


def test_the_variance_of_a_product_is_its_width() -> None:
    found = scale.drawn(Path(), QUIET, d_k=512, keys=64, draws=200)
    assert found["variance"] == pytest.approx(512, rel=0.15)
    assert found["none"]["gradient"] < found["root"]["gradient"] / 2
    assert found["none"]["entropy"] < found["root"]["entropy"] < found["whole"]["entropy"]


def test_fixed_weights_do_not_hang_on_content_and_learn_by_place() -> None:
    model = untaught("copy", 0, **TINY)
    source, target = torch.randint(3, 13, (2, 1, 6)).unbind(0)
    batches = [(source, target), (source.flip(1), target.flip(1))]

    def maps() -> list[dict[str, torch.Tensor]]:
        found = []
        for batch in batches:
            with record(model) as seen:
                model(*batch)
            found.append(dict(seen.weights))
        return found

    first, second = maps()
    assert any(not torch.allclose(first[name], second[name], atol=1e-3) for name in first)
    content.fix(model, learns=True)
    model(source, target).sum().backward()
    for attention in attentions(model).values():
        gradient = attention.scores.get_parameter("fixed.table").grad
        assert gradient is not None
        torch.nn.init.normal_(attention.scores.get_parameter("fixed.table"))
    first, second = maps()
    for name in first:
        assert torch.equal(first[name], second[name])
    cross = first["decoder.layers.0.cross_attention"]
    assert not torch.allclose(cross, cross.roll(1, 2), atol=1e-3)


def test_a_sum_of_heads_is_a_tied_output_matrix() -> None:
    assert heads.equal(Path(), QUIET, d_model=32, heads=8)["difference"] < 1e-5


def test_wider_heads_make_up_for_the_weights_of_a_sum() -> None:
    common = {**TINY, "d_model": 64, "heads": 8, "steps": 1, "tested": 4, "seed": 0}
    size = {way: heads.joined(Path(), QUIET, way=way, **common)["parameters"] for way in heads.WAYS}
    assert size["sum"] < size["concat"]
    assert size["wide"] == pytest.approx(size["concat"], rel=0.02)


def test_heads_that_do_the_same_are_alike_and_one_head_is_alone() -> None:
    model = untaught("sort", 0, **TINY).eval()
    pairs = unseen("sort", [6], 0, 8)
    assert heads.likeness(untaught("sort", 0, **{**TINY, "heads": 1}).eval(), pairs)["distance"] is None
    apart = heads.likeness(model, pairs)["distance"]
    content.fix(model, learns=False)
    same = heads.likeness(model, pairs)
    assert apart is not None
    assert apart > 1e-4
    assert same["distance"] == pytest.approx(0, abs=1e-6)
    assert same["alike"] == 1.0


def test_an_encoder_without_positions_is_equivariant() -> None:
    found = {kind: content.permuted(Path(), QUIET, positions=kind, seed=0, **TINY) for kind in content.KINDS}
    assert found["none"]["difference"] < 1e-5
    assert found["sinusoidal"]["difference"] > 0.01


def test_an_ensemble_is_no_worse_than_its_members_are_on_the_mean() -> None:
    members = [untaught("sort", seed, **TINY).eval() for seed in range(3)]
    pairs = unseen("sort", [6], 0, 32)
    alone = [measured(ensemble.Mixture([member]), pairs)["loss"] for member in members]
    assert alone[0] == pytest.approx(measured(members[0], pairs)["loss"], rel=1e-5)
    # The members' probabilities are added, not averaged: a constant that the soft-max of the loss takes out again.
    assert measured(ensemble.Mixture(members), pairs)["loss"] < sum(alone) / 3  # Jensen


def test_every_choice_of_what_is_left_counts() -> None:
    asked: list[tuple[int, ...]] = []

    def measure(kept: tuple[int, ...]) -> dict[str, float]:
        asked.append(kept)
        return {"sum": float(sum(kept))}

    found = ensemble.subsets(measure)
    assert len(set(asked)) == len(asked) == 1 + 4 + 6 + 4
    assert [each["sum"] for each in found] == [6.0, 4.5, 3.0, 1.5]


def curve(*right: float) -> list[dict[str, float]]:
    return [{"loss": -share, "right": share} for share in right]


@pytest.mark.parametrize("best", scale.SCALES)
def test_the_answer_about_the_scale_names_what_was_best(best: str) -> None:
    results: dict[str, Result] = {}
    for d_k in scale.DRAWN["small"]:
        figures = {"entropy": 0.5, "largest": 0.5, "gradient": 0.1}
        results[f"scale-drawn-{d_k}"] = {"variance": 3.0 * d_k**1.5, **dict.fromkeys(scale.SCALES, figures)}
    for d_k in scale.WIDTHS["small"]:
        for name in scale.SCALES:
            for seed in range(2):
                loss = 0.1 + 0.01 * seed if name == best else 1.0 + seed
                found = {"loss": loss, "right": 0.5, "deviation": 1.0, "curve": [[1, 2.0], [2, 1.0]]}
                results[f"scale-{d_k}-{name}-{seed}"] = found
    answer = scale.SCALE.answer(results, "small")
    assert "to the power 1.50" in answer.short
    assert f"at d_k = 256 the scale {scale.SCALES[best]} ends with the lowest loss" in answer.short
    assert ("do not overlap" in answer.short) == (best != "whole")


@pytest.mark.parametrize(("attention", "said"), [(0.99, "that is what counts"), (0.1, "brought attention nothing")])
def test_the_answer_about_averages_is_computed(attention: float, said: str) -> None:
    shares = {"content": attention, "places": 0.4, "mean": 0.3}
    results = {
        f"average-{task}-{name}-0": {"right": share} for task in ("copy", "lookup") for name, share in shares.items()
    }
    assert said in content.AVERAGE.answer(results, "small").short


@pytest.mark.parametrize(("left", "said"), [(0.2, "work together"), (0.89, "may be called an ensemble")])
def test_the_answer_about_ensembles_is_computed(left: float, said: str) -> None:
    results = {
        "ensemble-heads-0": {
            "silent": curve(0.9, left, 0.1, 0.0),
            "louder": curve(0.9, 0.1, 0.1, 0.0),
            "parameters": 100,
        },
        "ensemble-models-0": {"members": curve(0.9, 0.88, 0.85, 0.8), "parameters": 101},
    }
    answer = ensemble.ENSEMBLE.answer(results, "small")
    assert said in answer.short
    assert "alone is right in 80 %" in answer.short


def test_models_that_learnt_nothing_tell_nothing_of_ensembles() -> None:
    flat = curve(0.1, 0.1, 0.1, 0.1)
    results = {
        "ensemble-heads-0": {"silent": flat, "louder": flat, "parameters": 100},
        "ensemble-models-0": {"members": flat, "parameters": 101},
    }
    short = ensemble.ENSEMBLE.answer(results, "small").short
    assert "too few are right with all of them to tell" in short
    assert "may be called" not in short


def test_runs_that_overlap_do_not_make_content_count() -> None:
    runs = {"content": (0.5, 0.9), "places": (0.6, 0.2), "mean": (0.3, 0.1)}
    results = {
        f"average-{task}-{name}-{seed}": {"right": share}
        for task in ("copy", "lookup")
        for name, shares in runs.items()
        for seed, share in enumerate(shares)
    }
    assert "brought attention nothing that every run shows" in content.AVERAGE.answer(results, "small").short


def test_no_head_is_spared_where_nothing_is_right() -> None:
    assert heads.spared([{"kept": 8, "right": 0.0}, {"kept": 4, "right": 0.0}], "right") is None


def test_the_jacobian_of_a_saturated_soft_max_is_not_rounded_away() -> None:
    found = scale.drawn(Path(), QUIET, d_k=1024, keys=64, draws=200)
    generator = torch.Generator().manual_seed(1024)
    q, k = (torch.randn(200, n, 1024, generator=generator).double() for n in (1, 64))
    a = (q @ k.mT).softmax(-1)[:, 0]
    norms = (torch.diag_embed(a) - a[:, :, None] * a[:, None]).norm(dim=(1, 2))
    assert found["none"]["gradient"] == pytest.approx(float(norms.median()), rel=1e-6)


def test_the_answer_about_limits_tells_what_was_learnt_and_what_was_lost() -> None:
    results = {
        f"limits-{task}-{layers}-0": {"right": [inside] * 10 + [beyond] * 10}
        for task, inside, beyond in (("copy", 1, 0), ("sort", 1, 0.1), ("count", 1, 0.9), ("parity", 0.6, 0.5))
        for layers in (1, 2)
    }
    short = limits.LIMITS.answer(results, "small").short
    assert "copy, sort and count; not learnt: parity (60 %)" in short
    assert "fails at copy, sort and parity; count goes furthest" in short


def test_the_answer_about_cost_names_the_planted_crossing() -> None:
    results = {
        f"cost-{batch}-{n}": {
            "training": {"attention": 1e-9 * n**2, "lstm": 1e-6 * n, "linear": 1e-9 * n},
            "decoding": {"attention": 1e-6, "lstm": 1e-5, "linear": 1e-5},
            "threads": 2,
        }
        for batch in cost.BATCHES["small"]
        for n in cost.LENGTHS["small"]
    }
    answer = cost.COST.answer(results, "small")
    assert "than one through an LSTM from n ≈ 1000 on" in answer.short
    assert "a linear recurrence at every n from 16 on" in answer.short
    assert "longer than an LSTM not even at n = 4096" in answer.short
    assert answer.charts["questions-cost"].lines == {"≥ LSTM": pytest.approx(1000)}  # type: ignore[union-attr]


def test_the_answer_about_heads_says_which_cannot_be_told_apart() -> None:
    atlas = heads.atlas(Path(), QUIET, model="en-es")
    assert atlas["heads"] == atlas["importance"][0]["kept"]
    results: dict[str, Result] = {"heads-atlas": atlas}
    measured_losses = [(5.0, 6.0), (3.0, 4.0), (1.0, 2.0), (1.5, 2.5), (7.0, 8.0)]
    for count, losses in zip(heads.COUNTS["small"], measured_losses, strict=True):
        points = [{"kept": kept, "right": right} for kept, right in ((8, 1.0), (6, 0.995), (4, 0.5))]
        for seed, loss in enumerate(losses):
            found = {"loss": loss, "right": 1.0, "distance": 0.3, "alike": 0.1}
            results[f"heads-{count}-{seed}"] = {**found, "curves": {"importance": points, "chance": points}}
    short = heads.HEADS.answer(results, "small").short
    assert "4 heads have the lowest loss; 8 cannot be told from it" in short
    assert "16-head models 25 %" in short


def test_the_answer_about_embeddings_names_the_better_and_whether_the_runs_overlap() -> None:
    results: dict[str, Result] = {}
    losses = {(32, "with"): (1, 2), (32, "without"): (3, 4), (128, "with"): (2, 4), (128, "without"): (1, 3)}
    for d in scale.MODELS["small"]:
        for name in ("with", "without"):
            for seed, loss in enumerate(losses[d, name]):
                found = {"loss": loss, "right": 1.0, "before": 1.4, "after": 2.0, "curve": [[1, 2.0]]}
                results[f"embedding-{d}-{name}-{seed}"] = found
    short = scale.EMBEDDING.answer(results, "small").short
    assert "at d_model = 32 the models with it end with the lower loss in every run" in short
    assert "at d_model = 128 the models without it end with the lower loss on the mean, but" in short


def test_a_pass_can_be_timed_and_padding_is_not_in_it() -> None:
    found = cost.timed(Path(), QUIET, n=8, batch=2, d=16, repeats=1)
    assert set(found["training"]) == set(found["decoding"]) == set(cost.LAYERS)
    assert min(*found["training"].values(), *found["decoding"].values()) > 0
    assert collate(unseen("sort", [scale.LENGTHS[-1]], 0, 4))["source"].min() > 0
    assert SIZES["smoke"].steps < SIZES["small"].steps < SIZES["full"].steps
