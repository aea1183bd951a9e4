"""Charts of experiments as SVG: declared as values, drawn by matplotlib, the same bytes for the same values."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from regard.checks import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by those who see few colours (Okabe and Ito), and by their marks.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000", "#882255")
MARKS = "os^Dv<>PX"
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "regard", "font.family": "sans-serif", "font.size": 10}


@dataclass(frozen=True)
class Series:
    """Points of one name, joined by a line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None  # and high: a band around the line
    high: Sequence[float] | None = None
    style: str = "line"  # line, points (not joined), or dashes (without marks, as for a fit)
    colour: int | None = None  # of COLOURS, as of the points that a fit belongs to; its own place, if left out


@dataclass(frozen=True)
class Chart:
    """Lines over two axes."""

    title: str
    x: str  # what the axis shows, with its unit
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    lines: Mapping[str, float] | None = None  # vertical lines: label -> x

    def svg(self) -> str:
        """The chart as a text of SVG."""
        return _svg(self._draw)

    def _draw(self, axes: "Axes") -> None:
        for i, each in enumerate(self.series):
            i = i if each.colour is None else each.colour
            colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
            look = {"line": f"{mark}-", "points": mark, "dashes": "--"}[each.style]
            axes.plot(each.x, each.y, look, color=colour, label=each.label, markersize=4, linewidth=1.4)
            if each.low is not None and each.high is not None:
                axes.fill_between(each.x, each.low, each.high, color=colour, alpha=0.15, linewidth=0)
        for label, place in (self.lines or {}).items():
            axes.axvline(place, color="#999999", linewidth=1, linestyle=":")
            axes.text(place, 0.98, f" {label}", transform=axes.get_xaxis_transform(), va="top", fontsize=8)
        if self.log_x:
            axes.set_xscale("log")
            self._tick(axes)
        if self.log_y:
            axes.set_yscale("log")
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y)
        axes.grid(alpha=0.3, linewidth=0.5)
        if len(self.series) > 1:
            axes.legend(frameon=False, fontsize=8)

    def _tick(self, axes: "Axes") -> None:
        """Numbers of a handy size as they are, 16 and not 2 x 10^1: the points' own, if there is room for them."""
        places = sorted({float(x) for each in self.series for x in each.x})
        if not places or places[0] < 0.01 or places[-1] >= 1e5:
            return
        if len(places) <= 12 and all(b / a >= 1.25 for a, b in pairwise(places)):
            axes.set_xticks(places, [f"{x:g}" for x in places])
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}" if places[-1] / places[0] < 10 else "")


@dataclass(frozen=True)
class Bars:
    """A bar for each name, of one series or of several side by side."""

    title: str
    y: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]  # label -> a height for each name

    def svg(self) -> str:
        """The chart as a text of SVG."""
        return _svg(self._draw)

    def _draw(self, axes: "Axes") -> None:
        width = 0.8 / len(self.series)
        for i, (label, heights) in enumerate(self.series.items()):
            places = [n + (i - (len(self.series) - 1) / 2) * width for n in range(len(self.names))]
            axes.bar(places, heights, width * 0.95, color=COLOURS[i % len(COLOURS)], label=label)
        long = sum(map(len, self.names)) > 60
        axes.set_xticks(
            range(len(self.names)), self.names, rotation=30 if long else 0, ha="right" if long else "center"
        )
        axes.set(title=self.title, ylabel=self.y)
        axes.grid(axis="y", alpha=0.3, linewidth=0.5)
        if len(self.series) > 1:
            axes.legend(frameon=False, fontsize=8)


def _svg(draw: Callable[["Axes"], None]) -> str:
    matplotlib = need("matplotlib", "plot")
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
