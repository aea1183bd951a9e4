"""Is a model as sure as it is right? Reliability, expected calibration error, perplexity.

Letters: N tokens, M bins.
"""

import math
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.checks import at_least, need
from regard.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = 1e-3  # an exponential of a rounded logarithm may leave [0, 1] by this much


def perplexity(total_negative_log_likelihood: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood (in nats) of a token; infinite where it is beyond floating point.

    >>> perplexity(3 * math.log(10), 3)  # as unsure as among ten equally likely tokens
    10.0...
    """
    if tokens < 1:
        raise ValueError(f"the perplexity of {tokens} tokens is not defined: it needs at least 1")
    if total_negative_log_likelihood < -TOLERANCE * tokens:
        raise ValueError(f"a negative log-likelihood is at least 0, got {total_negative_log_likelihood}: turn its sign")
    try:
        return math.exp(total_negative_log_likelihood / tokens)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often a model is right, beside how sure it is, by bins of confidence."""

    edges: NDArray[np.float64]  # (M + 1,): bin m holds the confidences in (edges[m], edges[m + 1]]; the first, 0 too
    counts: NDArray[np.int64]  # (M,)
    confidence: NDArray[np.float64]  # (M,) mean in each bin, NaN where it is empty
    accuracy: NDArray[np.float64]  # (M,) share of correct ones in each bin, NaN where it is empty
    ece: float  # expected calibration error: Σ counts / N · |accuracy - confidence|
    mce: float  # maximum calibration error: the largest |accuracy - confidence|


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> Reliability:
    """Calibration in bins of equal width, as in Guo et al. (2017).

    confidence: of N predictions the probability that the model gave them; correct: of the same N whether they were
    right. Two arrays of one shape.

    >>> result = reliability([0.9, 0.9, 0.6, 0.6], [True, True, True, False], bins=10)
    >>> round(result.ece, 3), round(result.mce, 3)
    (0.1, 0.1)
    """
    p, right = np.asarray(confidence, np.float64), np.asarray(correct)
    if p.shape != right.shape:
        raise ValueError(f"confidence {p.shape} and correct {right.shape} must have one shape")
    if p.size == 0:
        raise ValueError("there is nothing to calibrate: 0 predictions")
    at_least(1, bins=bins)
    if not ((inside := (p >= -TOLERANCE) & (p <= 1 + TOLERANCE)).all()):  # NaN is not
        raise ValueError(f"confidence must lie in [0, 1], got {p[~inside][0]:g}: give probabilities, not scores")
    if not ((known := (right == 0) | (right == 1)).all()):
        raise ValueError(f"correct must be true or false (1 or 0), got {right[~known][0]}")
    p, right = p.ravel().clip(0, 1), right.ravel().astype(np.float64)
    edges = np.arange(bins + 1) / bins
    of_bin = (np.searchsorted(edges, p, side="left") - 1).clip(0)  # compares with the edges: no rounding of p · M
    counts = np.bincount(of_bin, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 in an empty bin
        mean = np.bincount(of_bin, p, bins) / counts
        accuracy = np.bincount(of_bin, right, bins) / counts
    gap = np.abs(accuracy - mean)
    ece = float(np.nansum(counts * gap) / p.size)
    return Reliability(edges, counts, mean, accuracy, ece, mce=float(np.nanmax(gap)))


BLUE, RED, GREY = "#7ba3cc", "#c0392b", "#7f858e"


def check_picture(path: Path) -> str:
    """The kind of picture that a path asks for: svg or png."""
    if (kind := path.suffix.lower().lstrip(".")) not in ("svg", "png"):
        raise ValueError(f"{path}: a picture ends in .svg or .png")
    need("matplotlib", "plot")
    return kind


def picture(result: Reliability, path: str | os.PathLike[str], of: str = "tokens") -> None:
    """Draw the reliability diagram to `path`, an .svg or a .png, whole or not at all, creating its directories.

    Above, the accuracy of each bin, and at its mean confidence the gap to the diagonal of perfect calibration: the
    gaps are what the error adds up. Below, how the predictions spread over confidence.
    """
    path = Path(path)
    kind = check_picture(path)
    matplotlib = need("matplotlib", "plot")
    from matplotlib.figure import Figure  # without pyplot: no window and no current figure

    # The same result gives the same file: no date, fixed names inside; text stays text.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard", "font.size": 10}):
        figure = Figure(figsize=(5, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        _accuracy(above, result)
        _histogram(below, result, of)
        figure.suptitle(f"ECE = {100 * result.ece:.2f} %", fontsize=13, fontweight="bold")
        content = BytesIO()
        figure.savefig(content, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    write_whole(path, content.getvalue())


def _accuracy(axes: "Axes", result: Reliability) -> None:
    some = result.counts > 0
    left, width = result.edges[:-1][some], np.diff(result.edges)[some]
    accuracy, confidence = result.accuracy[some], result.confidence[some]
    axes.bar(left, accuracy, width, align="edge", color=BLUE, edgecolor="white", label="accuracy")
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1.2, label="perfect calibration")
    axes.vlines(confidence, accuracy, confidence, color=RED, linewidth=2, label="gap")
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=3, frameon=False, handlelength=1.4)
    _plain(axes)


def _histogram(axes: "Axes", result: Reliability, of: str) -> None:
    share = 100 * result.counts / result.counts.sum()
    axes.bar(result.edges[:-1], share, np.diff(result.edges), align="edge", color=GREY, edgecolor="white")
    axes.set(xlabel="confidence", ylabel=f"% of {of}")
    _plain(axes)


def _plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(color=GREY)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
