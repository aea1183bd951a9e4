"""Calibration equals its formulas counted out one by one, and its picture is drawn whole or not at all."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from regard.evaluation.calibration import Reliability, perplexity, picture, reliability


def counted(confidence: list[float], correct: list[bool], bins: int) -> tuple[list[list[int]], float, float]:
    """Members of each bin, ECE and MCE of Guo et al. (2017), in plain loops."""
    members: list[list[int]] = [[] for _ in range(bins)]
    for i, p in enumerate(confidence):
        for m in range(bins):
            if m / bins < p <= (m + 1) / bins or p == m == 0:
                members[m].append(i)
    gaps = [
        abs(sum(correct[i] for i in bin) / len(bin) - sum(confidence[i] for i in bin) / len(bin)) if bin else 0.0
        for bin in members
    ]
    return members, sum(len(bin) / len(confidence) * gap for bin, gap in zip(members, gaps, strict=True)), max(gaps)


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (8.0, 1.0), (0.3, 0.3)])
def test_equals_the_formulas_counted_out(shape: tuple[float, float], bins: int) -> None:
    rng = np.random.default_rng(bins)
    confidence = rng.beta(*shape, 400)
    correct = rng.random(400) < confidence**2
    result = reliability(confidence, correct, bins)
    members, ece, mce = counted(confidence.tolist(), correct.tolist(), bins)
    assert result.ece == pytest.approx(ece, rel=1e-12)
    assert result.mce == pytest.approx(mce, rel=1e-12)
    assert result.counts.tolist() == [len(bin) for bin in members]
    assert result.edges.tolist() == [m / bins for m in range(bins + 1)]
    for bin, mean, accuracy in zip(members, result.confidence, result.accuracy, strict=True):
        if bin:
            assert mean == pytest.approx(confidence[bin].mean())
            assert accuracy == pytest.approx(correct[bin].mean())
        else:
            assert math.isnan(mean)
            assert math.isnan(accuracy)


@pytest.mark.parametrize("bins", [10, 15, 20])
def test_an_edge_belongs_to_the_bin_below_it(bins: int) -> None:
    edges = [m / bins for m in range(bins + 1)]
    result = reliability(edges, [True] * len(edges), bins)
    assert result.counts.tolist() == [2] + [1] * (bins - 1)  # 0 and the first edge; then each its own


def test_perfect_and_worst_calibration() -> None:
    right = np.arange(1000) < 700
    assert reliability(np.full(1000, 0.7), right).ece == pytest.approx(0.0, abs=1e-12)
    worst = reliability(np.ones(5), np.zeros(5))
    assert (worst.ece, worst.mce) == (1.0, 1.0)


def test_shape_and_kind_of_array_do_not_matter() -> None:
    p = torch.rand(6, 7, generator=torch.Generator().manual_seed(0))
    right = p > 0.4
    flat = reliability(p.flatten().tolist(), right.flatten().tolist())
    for other in (reliability(p, right), reliability(p.numpy(), right.int().numpy())):
        assert other.ece == flat.ece
        assert other.counts.tolist() == flat.counts.tolist()
    assert reliability([1.0000002, -1e-9], [True, False]).ece == 0.0  # rounding


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5], [True, False]), r"confidence \(1,\) and correct \(2,\) must have one shape"),
        (([], []), "nothing to calibrate: 0 predictions"),
        (([0.5, 1.5], [1, 0]), r"confidence must lie in \[0, 1\], got 1.5"),
        (([0.5, -3.0], [1, 0]), "got -3"),
        (([0.5, math.nan], [1, 0]), "got nan"),
        (([0.5, 0.5], [1, 7]), r"correct must be true or false \(1 or 0\), got 7"),
        (([0.5], [True], 0), "bins = 0: it must be at least 1"),
    ],
)
def test_what_is_no_calibration_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reliability(*arguments)


# Perplexity


def test_perplexity() -> None:
    p = [0.5, 0.25, 0.125]
    assert perplexity(-sum(math.log(x) for x in p), 3) == pytest.approx(4.0)  # 1 / their geometric mean
    assert perplexity(0.0, 9) == 1.0
    assert perplexity(1e6, 2) == math.inf
    assert math.isnan(perplexity(math.nan, 2))
    with pytest.raises(ValueError, match="perplexity of 0 tokens"):
        perplexity(1.0, 0)
    with pytest.raises(ValueError, match=r"at least 0, got -3.5: turn its sign"):
        perplexity(-3.5, 2)


# The picture


@pytest.fixture
def result() -> Reliability:
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1.5, 500).clip(0.2)
    return reliability(confidence, rng.random(500) < confidence**1.5)


def test_an_svg_says_what_it_shows_and_comes_out_the_same_twice(result: Reliability, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        picture(result, tmp_path / "new" / name)
    a, b = (tmp_path / "new" / name for name in ("a.svg", "b.svg"))
    assert a.read_bytes() == b.read_bytes()
    assert sorted(p.name for p in a.parent.iterdir()) == ["a.svg", "b.svg"]  # nothing half-written
    texts = {"".join(node.itertext()) for node in ElementTree.parse(a).iter("{http://www.w3.org/2000/svg}text")}
    assert {f"ECE = {100 * result.ece:.2f} %", "confidence", "accuracy", "perfect calibration", "gap"} <= texts


def test_a_png_is_one(result: Reliability, tmp_path: Path) -> None:
    picture(result, tmp_path / "a.PNG")
    content = (tmp_path / "a.PNG").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")


def test_bins_without_predictions_are_left_out(tmp_path: Path) -> None:
    picture(reliability([0.9, 0.91], [True, False]), tmp_path / "a.svg")
    assert "nan" not in (tmp_path / "a.svg").read_text("utf-8").lower()


def test_a_failed_write_leaves_the_old_picture(
    result: Reliability, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.svg"
    path.write_text("old")

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        picture(result, path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]
    assert path.read_text() == "old"


def test_another_suffix_is_refused(result: Reliability, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jpeg: a picture ends in \.svg or \.png"):
        picture(result, tmp_path / "a.jpeg")
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_and_sacrebleu_are_imported_only_when_asked_for() -> None:
    code = (
        "import sys, regard.evaluation.calibration, regard.evaluation.translation;"
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'sacrebleu')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
