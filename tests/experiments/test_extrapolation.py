"""Extrapolation: what is measured by length, what a report makes of it, and a run that stopped goes on."""

import hashlib
import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.core.positions import ABSOLUTE, RELATIVE
from regard.data.corpora import CORPORA
from regard.experiments import extrapolation, lab
from regard.experiments.extrapolation import ACTIONS, LETTERS, SIMPLE, WORDS, beyond, merged, reach
from regard.experiments.lab import Result, Trial
from regard.experiments.lengths import KINDS, RIVALS, contestant, judged, readable, shuffled
from regard.experiments.runs import Pair, taught, written
from regard.models.transformer import TransformerConfig

QUIET = Console(quiet=True)
TINY = {"d_model": 16, "layers": 1, "heads": 2, "dropout": 0.0}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Multi30k of sentences of all lengths, and a SCAN of one verb; no cache but the test's own."""
    draw, words = random.Random(0), {"en": "a man dog runs sees red big", "de": "ein mann hund läuft sieht rot groß"}
    texts = CORPORA["multi30k-en-de"].form
    for stem in texts.stems:
        sentences = [[draw.randrange(7) for _ in range(draw.randint(3, 90))] for _ in range(200)]
        for language, own in words.items():
            text = "".join(" ".join(own.split()[i] for i in sentence) + " .\n" for sentence in sentences)
            _put(tmp_path / "data" / "multi30k" / f"{stem}.{language}", text)
            monkeypatch.setitem(texts.sums, f"{stem}.{language}", hashlib.sha256(text.encode()).hexdigest())
    for split in ("length", "simple"):
        for part, lengths in (("train", range(1, 23)), ("test", range(24, 49) if split == "length" else range(1, 49))):
            text = "".join(f"IN:{' walk' * n} OUT:{' I_WALK' * n}\n" for n in lengths for _ in range(2))
            files = CORPORA[f"scan-in-out-{split}"].form.files
            name, _ = files[part]
            _put(tmp_path / "data" / "scan" / name, text)
            monkeypatch.setitem(files, part, (name, hashlib.sha256(text.encode()).hexdigest()))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def letters(lengths: range, count: int, seed: int = 0) -> list[Pair]:
    draw = random.Random(seed)
    drawn = ([draw.randrange(3, 8) for _ in range(draw.choice(lengths))] for _ in range(count))
    return [(ids, ids) for ids in drawn]


def made(task: str, level: float, limit: int = 4) -> Result:
    """The result of a trial, made up: `level` beyond the limit, all right within."""
    lengths = [4, 8, 16]
    common = {"lengths": lengths, "counts": [10, 10, 10], "limit": limit, "loss": 0.1, "steps": 9, "parameters": 99}
    common |= {"threads": 2}
    if task == "words":
        score = {"bleu": [30.0, 100 * level, 100 * level], "perplexity": [5.0, 9.0, 20.0], "ratio": [1.0, 0.9, 0.8]}
        return {**common, **score, "taught": 10, "corpus": 20, "vocabulary": 300}
    return {**common, "exact": [1.0, level, level], "tokens": [1.0, level, level]}


def cannot(result: Result) -> Result:
    """The same of a model that reads no more than the limit."""
    keys = {"exact", "tokens", "bleu", "perplexity", "ratio"}
    return {k: [v[0], None, None] if k in keys else v for k, v in result.items()}


def planted(levels: dict[str, float]) -> dict[str, Result]:
    tasks = [task.name for task in (*LETTERS, WORDS, ACTIONS, SIMPLE)]
    found = {f"{task}-{name}-0": made(task, levels[name]) for task in tasks for name in levels}
    found |= {f"{task}-learned-0": cannot(made(task, 0.0)) for task in tasks}
    return {key: result for key, result in found.items() if not key.startswith("words-l") or "learned" in key}


def test_a_contestant_differs_in_its_positions_alone() -> None:
    assert sorted(KINDS) == sorted(ABSOLUTE + RELATIVE)  # none is left out
    models = {name: contestant(name, 9, 8, TINY, seed=3) for name in (*KINDS, *RIVALS)}
    for kind in KINDS:
        assert models[kind].config == TransformerConfig(9).but(
            norm="pre", encoder_layers=1, decoder_layers=1, d_model=16, d_ff=64, heads=2, dropout=0.0, max_length=9,
            positions=kind,
        )  # fmt: skip
    again = contestant("rope", 9, 8, TINY, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(models["rope"].parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", ["sinusoidal", "lstm"])
def test_whole_answers_are_those_of_a_greedy_search(name: str) -> None:
    model = contestant(name, 8, 4, TINY, seed=0)
    taught(model, iter(letters(range(1, 4), 32 * 60)), QUIET, steps=60, batch=32, peak=0.01)
    pairs = letters(range(1, 6), 150, seed=1)
    whole, right = judged(model.eval(), pairs)
    assert whole is not None
    assert right is not None
    assert 0.05 < whole < 0.95  # otherwise nothing would be compared
    said = written(model, pairs)
    assert whole == sum(a == list(b) for a, (_, b) in zip(said, pairs, strict=True)) / len(pairs)
    assert whole < right


def test_learned_positions_cannot_read_on_and_others_can() -> None:
    within, over = letters(range(4, 5), 3), letters(range(5, 6), 3)
    for name in (*KINDS, *RIVALS):
        model = contestant(name, 8, 4, TINY, seed=0).eval()
        assert readable(model, within)
        assert None not in judged(model, within)
        assert (judged(model, over) == (None, None)) == (name == "learned")


def test_every_pair_comes_once_in_each_round() -> None:
    pairs: list[Pair] = [([i], [i]) for i in range(10_000)]
    drawn = shuffled(lambda rows: [pairs[i] for i in rows], range(10_000), seed=1)
    first, second = ([source[0] for source, _ in islice(drawn, 10_000)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10_000))
    assert first != second


def test_scores_beyond_the_limit_and_the_reach() -> None:
    result = {"lengths": [2, 4, 6, 8], "counts": [5, 5, 30, 10], "limit": 4, "exact": [1.0, 0.9, 0.5, 0.1]}
    assert beyond(result, ACTIONS) == pytest.approx(100 * (30 * 0.5 + 10 * 0.1) / 40)
    assert reach(result) == 6
    assert reach({**result, "exact": [0.4, 0.9, 0.9, 0.9]}) is None
    assert reach({**result, "exact": [1.0, 1.0, None, None]}) == 4
    assert beyond({**result, "exact": [1.0, 1.0, None, None]}, ACTIONS) is None
    assert beyond({**result, "counts": [5, 5, 0, 0], "exact": [1.0, 1.0, None, None]}, ACTIONS) is None  # no such test


def test_seeds_are_averaged() -> None:
    copy = LETTERS[0]
    both = {"copy-rope-0": made("copy", 0.2), "copy-rope-1": made("copy", 0.4), "copy-learned-0": made("copy", 0.9)}
    found = merged(both, copy)
    assert beyond(found["rope"], copy) == pytest.approx(30.0)
    assert merged({**both, "copy-rope-1": cannot(made("copy", 0.4))}, copy)["rope"]["exact"] == [1.0, None, None]


def test_the_report_says_what_the_results_say() -> None:
    levels = {"sinusoidal": 0.1, "shaw": 0.2, "rope": 0.3, "t5": 0.4, "alibi": 0.5, "none": 0.6, "lstm": 0.7}
    as_claimed = extrapolation.report(planted({**levels, "linear-rnn": 0.15}), "small").text
    assert "40 of 40 comparisons go as claimed, 0 the other way, and 0 are level" in as_claimed
    assert "Best on the mean is none (1.00), last learned (7.00)" in as_claimed
    assert (
        "lstm, without positions, is ahead of all of them at: Copy, Reverse, Sort, SCAN, split by length." in as_claimed
    )
    assert "linear-rnn, without positions, is ahead of all of them at: nothing." in as_claimed
    assert "ours are 10.0 to 70.0 %; within that range: shaw, linear-rnn; above it: t5, rope, alibi" in as_claimed
    assert "| learned | 99 | 100.0 | n/a | n/a | 100.0 | n/a | n/a | 4 |" in as_claimed
    turned = {name: 0.8 - level for name, level in levels.items()}
    text = extrapolation.report(planted({**turned, "linear-rnn": 0.15}), "small").text
    assert "5 of 40 comparisons go as claimed, 35 the other way" in text  # learned cannot, whatever the others do
    assert "Best on the mean is sinusoidal (1.00)" in text
    same = extrapolation.report(planted(dict.fromkeys([*levels, "linear-rnn"], 0.5)), "small").text
    assert "5 of 40 comparisons go as claimed, 0 the other way, and 35 are level" in same
    assert same.count("no difference, from 50.0 to 50.0. Not at all: learned.") == 5


def test_charts_mark_the_limit_and_end_where_a_model_does() -> None:
    levels = dict.fromkeys([*KINDS, *RIVALS], 0.5)
    charts = extrapolation.report(planted(levels), "small").charts
    assert set(charts) == {
        *(
            f"extrapolation-{task}-{key}"
            for task in ("copy", "reverse", "sort", "length")
            for key in ("exact", "tokens")
        ),
        "extrapolation-words-bleu",
        "extrapolation-words-perplexity",
    }
    chart: Any = charts["extrapolation-copy-exact"]
    assert chart.lines == {"L = 4": 4}
    assert {series.label: list(series.x) for series in chart.series}["learned"] == [4]
    assert [series.label for series in chart.series] == [*KINDS, *RIVALS]


@pytest.mark.parametrize("scale", lab.SCALES)
def test_every_scale_can_be_set_up(scale: str) -> None:
    trials = extrapolation.trials(scale)
    for trial in trials:
        settings = dict(trial.settings)
        assert json.loads(json.dumps(settings)) == settings
    assert {trial.settings["name"] for trial in trials} >= {"sinusoidal", "learned", "alibi", "lstm"}
    if scale != "smoke":
        names = {trial.name.rpartition("-")[0] for trial in trials}
        assert len(names) == len(KINDS) + 5 * (len(KINDS) + len(RIVALS))  # translation, and five of all


def test_the_whole_experiment(data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, performed, perform = tmp_path / "out", list[str](), lab._perform

    def stopping(trial: Trial, *given: Any) -> Result:
        performed.append(trial.name)
        if len(performed) == 6:
            raise KeyboardInterrupt
        return perform(trial, *given)

    monkeypatch.setattr(lab, "_perform", stopping)
    with pytest.raises(KeyboardInterrupt):
        lab.experiment("extrapolation", scale="smoke", out=out, console=QUIET)
    lab.experiment("extrapolation", scale="smoke", out=out, console=QUIET)
    names = [trial.name for trial in extrapolation.trials("smoke")]
    assert performed == [*names[:6], *names[5:]]
    kept = json.loads((out / "extrapolation.json").read_text("utf-8"), parse_constant=pytest.fail)["trials"]
    assert list(kept) == names
    translated = kept["words-alibi-0"]["result"]
    assert translated["counts"] == [4] * 5
    assert None not in translated["bleu"] + translated["perplexity"]
    assert kept["words-learned-0"]["result"]["bleu"][1:] == [None] * 4
    assert kept["length-learned-0"]["result"]["limit"] == 22
    assert set(kept["length-learned-0"]["result"]["exact"]) == {None}
    text = (out / "extrapolation.md").read_text("utf-8")
    assert all(part in text for part in ("## Copy", "## Translation", "## SCAN", "## Ranking", "20.8"))
    for name in extrapolation.report({n: record["result"] for n, record in kept.items()}, "smoke").charts:
        assert f"({name}.svg)" in text
        assert (out / f"{name}.svg").read_text("utf-8").count("<svg") == 1


def test_what_was_not_learnt_within_the_limit_is_not_compared() -> None:
    results = planted({kind: 0.5 if kind == "alibi" else 0.1 for kind in (*KINDS, *RIVALS) if kind != "learned"})
    assert "| alibi beyond sinusoidal | Press et al., 2022, language models | yes | yes | yes | yes | yes |" in (
        extrapolation.report(results, "small").text
    )
    for key in ("copy-sinusoidal-0", "simple-sinusoidal-0"):
        results[key] = {**results[key], "exact": [0.4, 0.0, 0.0]}
    results["words-sinusoidal-0"] = {**results["words-sinusoidal-0"], "bleu": [14.0, 10.0, 10.0]}
    text = extrapolation.report(results, "small").text
    assert "| alibi beyond sinusoidal | Press et al., 2022, language models | – | yes | yes | – | – |" in text
    unlearnt = "Copy: sinusoidal; Translation: sinusoidal; SCAN, split by length: sinusoidal."
    assert f"Not learnt within L, so that a rank says little: {unlearnt}" in text
