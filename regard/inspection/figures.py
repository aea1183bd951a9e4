"""Attention maps as files: the page (HTML), figures (SVG, PNG), and numbers for other programs (NPZ, CSV).

A single head is drawn large, with its tokens; several are a grid, a row for each attention, a column for each head.
What looks at a picture is laid over that: what stands for the whole of it, or the mean of all words; of a single head
each word.
"""

import csv
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.checks import need
from regard.inspection.page import AttentionMap, attention_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Nearly white to deep blue: lightness alone carries the order, so no hue has to be told from another.
COLOURS = ("#eff5f2", "#a6e7d6", "#55d3cc", "#10b6c4", "#0c97b5", "#0278a5", "#005998", "#223c78", "#24254b")
HOT = ("#0b0620", "#4a1166", "#a52c60", "#e8602d", "#fbb61a", "#fcffa4")  # over a picture, which is dimmed
INK, SOFT = "#1b1f2e", "#5d6577"
# matplotlib takes each character from the first of these fonts that has it; those of other scripts are often there.
FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Hebrew"]
FONTS += ["Noto Sans Devanagari", "Noto Sans Thai", "PingFang SC", "Microsoft YaHei", "Arial Unicode MS"]
DRAWN = 40_000  # cells that are drawn as shapes; more become a picture within the figure
LABELLED = 48  # tokens along an axis of a grid; more are too small to read
PIXELS = 40e6  # of a PNG, at most
FLOOR = 1e-3  # of the largest value: where logarithmic colours begin
SAYS = {"read": "reads", "predicted": "predicts", "said": "says"}


def to_html(maps: Sequence[AttentionMap], *, title: str = "", note: str = "", log: bool = False) -> bytes:
    """The bytes of `attention_page`."""
    page = attention_page(maps, title=title, note=note, log=log)
    return page.encode("utf-8", "xmlcharrefreplace")  # a title from a shell may hold undecodable bytes


def to_svg(maps: Sequence[AttentionMap], *, title: str = "", note: str = "", log: bool = False) -> bytes:
    """A vector figure, whose text is text; the same maps give the same bytes.

    >>> import torch
    >>> cross = AttentionMap("cross", torch.full((1, 2, 4), 0.25), ["a", "b"], ["w", "x", "y", "z"], "predicted")
    >>> to_svg([cross], title="wxyz → ab").startswith(b"<?xml")
    True
    """
    return _saved(maps, title, note, log, format="svg", metadata={"Date": None})


def to_png(maps: Sequence[AttentionMap], *, title: str = "", note: str = "", log: bool = False) -> bytes:
    """A figure in pixels."""
    return _saved(maps, title, note, log, format="png")


def to_npz(maps: Sequence[AttentionMap]) -> bytes:
    """Arrays by name: NAME (H, T, S), NAME.queries (T,) and NAME.keys (S,) of texts, NAME.heads (H,) of numbers; of
    what is seen `picture` (H, W, C), `grid` (tokens, rows, columns, times), and `shares` of its places in what stands
    for it.

    >>> import torch
    >>> cross = AttentionMap("cross", torch.full((1, 2, 4), 0.25), "ab", "wxyz", "predicted")
    >>> arrays = np.load(BytesIO(to_npz([cross])))
    >>> arrays["cross"].shape, arrays["cross.keys"].tolist()
    ((1, 2, 4), ['w', 'x', 'y', 'z'])
    """
    arrays: dict[str, Any] = {}
    for each in _named(maps):
        arrays[each.name] = _numbers(each)
        arrays[f"{each.name}.queries"] = np.array(list(each.queries), dtype=np.str_)
        arrays[f"{each.name}.keys"] = np.array(list(each.keys), dtype=np.str_)
        arrays[f"{each.name}.heads"] = np.array(each.numbers)
        if each.picture is not None:
            arrays |= {"picture": each.picture.pixels, "grid": np.array(each.picture.grid)}
            arrays["shares"] = each.picture.shares.numpy()
    content = BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def to_csv(maps: Sequence[AttentionMap]) -> bytes:
    """A line for each weight, with the texts of its two tokens; the digits give back the very number.

    >>> import torch
    >>> cross = AttentionMap("cross", torch.tensor([[[0.1, 0.9]]]), "a", "wx", "predicted")
    >>> print(to_csv([cross]).decode(), end="")
    attention,head,query,query_token,key,key_token,weight
    cross,0,0,a,0,w,0.1
    cross,0,0,a,1,x,0.9
    """
    out = StringIO()
    lines = csv.writer(out, lineterminator="\n")
    (view,) = {each.view for each in _named(maps)}
    number = "weight" if view == "weights" else view
    lines.writerow(["attention", "head", "query", "query_token", "key", "key_token", number])
    for each in maps:
        for head, rows in zip(each.numbers, _numbers(each), strict=True):
            for i, (query, row) in enumerate(zip(each.queries, rows, strict=True)):
                for j, (key, weight) in enumerate(zip(each.keys, row, strict=True)):
                    lines.writerow([each.name, head, i, query, j, key, str(weight)])
    return out.getvalue().encode("utf-8", "backslashreplace")


def _named(maps: Sequence[AttentionMap]) -> Sequence[AttentionMap]:
    names = [each.name for each in maps]
    if not names or len(set(names)) < len(names) or len({each.view for each in maps}) > 1:
        raise ValueError(f"a file needs one or more maps of one view, each of its own name; got {names}")
    return maps


def _numbers(each: AttentionMap) -> NDArray[Any]:
    weights = each.weights.detach().cpu()
    return (weights if weights.element_size() >= 4 else weights.float()).numpy()  # NumPy has no bfloat16


def _saved(maps: Sequence[AttentionMap], title: str, note: str, log: bool, **options: Any) -> bytes:
    content = BytesIO()
    with _style():
        heads = sum(len(each.weights) for each in _named(maps))
        alone = _worded if maps[0].picture is not None and maps[0].query_role != "read" else _one
        figure = alone(maps[0], log) if heads == 1 else _grid(maps, log)
        width, height = figure.get_size_inches()
        _write(figure.suptitle, title, width / 0.1, fontsize=12, fontweight="bold")
        _write(figure.supxlabel, note, width / 0.06, fontsize=7, color=SOFT)
        figure.savefig(content, dpi=min(160.0, (PIXELS / (width * height)) ** 0.5), bbox_inches="tight", **options)
    return content.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    """Text stays text, files come out the same each time, and a character that no font has is no reason to complain."""
    matplotlib, fonts = need("matplotlib", "plot"), need("matplotlib.font_manager", "plot")
    there = {font.name for font in fonts.fontManager.ttflist}
    style: dict[Any, Any] = {
        "font.family": [font for font in FONTS if font in there] or ["sans-serif"],
        "text.parse_math": False,  # a dollar in a text is a dollar
        "svg.fonttype": "none",
        "svg.hashsalt": "regard",
        "text.color": INK,
        "axes.labelcolor": SOFT,
        "axes.edgecolor": SOFT,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        yield


def _over(axes: "Axes", each: AttentionMap, head: int, log: bool, query: int | None = None) -> Any:
    """Attention over a picture: the strongest patch has the strongest colour, and is told."""
    from matplotlib.colors import LinearSegmentedColormap

    assert each.picture is not None
    pixels, values = each.picture.pixels.astype(np.float64) / 255, each.over(query)[head].double().cpu().numpy()
    colours = pixels if pixels.shape[2] == 3 else pixels.repeat(3, axis=2)
    grey = colours @ [0.3, 0.59, 0.11]
    extent = (0, values.shape[1], values.shape[0], 0)
    axes.imshow(0.8 * (grey[..., None] + 0.35 * (colours - grey[..., None])), extent=extent, interpolation="bilinear")
    part = values / max(values.max(), 1e-30)
    part = np.maximum(0, 1 + np.log10(np.maximum(part, 1e-9)) / 3) if log else part
    hot = LinearSegmentedColormap.from_list("hot", HOT)
    mesh = axes.imshow(part, cmap=hot, vmin=0, vmax=1, alpha=0.1 + 0.62 * part, extent=extent, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return mesh, float(values.max())


def _worded(each: AttentionMap, log: bool) -> "Figure":
    """One head that looks from words to a picture: a picture for each word."""
    from matplotlib.figure import Figure

    across = min(6, len(each.queries))
    down = -(-len(each.queries) // across)
    figure = Figure(figsize=(1.7 * across, 2.0 * down + 0.6), layout="constrained")
    for i, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        if i >= len(each.queries):
            axes.set_axis_off()
            continue
        _, top = _over(axes, each, 0, log, i)
        axes.set_title(f"{_piece(each.queries[i])}\n{top:.3g}", fontsize=9)
    return figure


def _one(each: AttentionMap, log: bool) -> "Figure":
    from matplotlib.figure import Figure

    if each.picture is not None:
        figure = Figure(figsize=(5.2, 5.4), layout="constrained")
        axes = figure.subplots()
        _, top = _over(axes, each, 0, log)
        axes.set_xlabel(f"{each.name}, head {each.numbers[0]}: up to {top:.3g}")
        return figure
    _, T, S = each.weights.shape
    cell = max(0.12, min(0.42, 11 / max(T, S)))  # inches
    figure = Figure(figsize=(S * cell + 2.6, T * cell + 2.2), layout="constrained")
    axes = figure.subplots()
    mesh = _draw(axes, each, 0, log, T * S <= DRAWN)
    size = max(3.5, min(11.0, 50 * cell))
    _label(axes, each, size, rows=True, columns=True)
    axes.set_ylabel(SAYS[each.query_role])
    axes.set_xlabel(f"{each.name}, head {each.numbers[0]}: attends to")
    axes.xaxis.set_label_position("top")
    _scale(figure, mesh, axes, each, log, shrink=0.8)
    return figure


def _grid(maps: Sequence[AttentionMap], log: bool) -> "Figure":
    from matplotlib.figure import Figure

    columns = max(len(each.weights) for each in maps)
    across = max(16 if each.picture else min(each.weights.shape[2], LABELLED) for each in maps)
    cell = max(0.075, min(0.16, 3 / across))  # inches
    size = max(3.5, min(8.0, 55 * cell))  # of letters, in points: 72 are an inch
    width = max(1.2, across * cell)
    heights = [width if each.picture else max(1.2, min(4.0, each.weights.shape[1] * cell)) for each in maps]
    below = sum(0 if each.picture else max(map(len, each.keys)) for each in maps) * 0.6 * size / 72
    shapes = [each.picture.pixels.shape if each.picture else (1, 1) for each in maps]
    narrow = max(0.9, width * min(1.0, max(shape[1] / shape[0] for shape in shapes)))  # a film, of many frames
    wide, tall = columns * narrow + 2.2, sum(heights) + below + 0.25 * len(maps) + 0.8
    figure = Figure(figsize=(wide, tall), layout="constrained")
    panels = figure.subplots(len(maps), columns, squeeze=False, height_ratios=heights)
    vector = sum(each.weights.numel() for each in maps) <= DRAWN
    mesh: Any = None
    for i, (each, row) in enumerate(zip(maps, panels, strict=True)):
        _, T, S = each.weights.shape
        for head, axes in enumerate(row):
            if head >= len(each.weights):
                axes.set_axis_off()
                continue
            if each.picture is not None:
                _, top = _over(axes, each, head, log)
                name = "roll-out" if each.view == "rollout" else f"head {each.numbers[head]}"
                axes.set_title(f"{name} · {top:.2g}", fontsize=7, color=SOFT)
                continue
            mesh = _draw(axes, each, head, log, vector)
            _label(axes, each, size, rows=head == 0 and T <= LABELLED, columns=S <= LABELLED)
            if i == 0 or each.numbers != maps[i - 1].numbers:
                axes.set_title(f"head {each.numbers[head]}", fontsize=8, color=SOFT)
        place = each.name.replace(".layers.", " ").replace(".", " ").replace("_", "-")
        row[0].set_ylabel(place if each.picture else f"{place}\n{SAYS[each.query_role]}", fontsize=8)
    if maps[0].view == "weights" and mesh is not None:  # one scale for all; lengths have one for each attention
        _scale(figure, mesh, panels, maps[0], log, shrink=min(0.8, 2.4 / tall))
    return figure


def _scale(figure: "Figure", mesh: Any, axes: Any, each: AttentionMap, log: bool, *, shrink: float) -> None:
    label = {"weights": "weight", "rollout": "share"}.get(each.view, "length of what is added")
    ticks = [each.largest * 10.0**power for power in (-3, -2, -1, 0)] if log else None
    bar = figure.colorbar(mesh, ax=axes, shrink=shrink, pad=0.02, label=label, ticks=ticks, format="%.3g")
    bar.outline.set_visible(False)
    bar.ax.minorticks_off()


def _draw(axes: "Axes", each: AttentionMap, head: int, log: bool, vector: bool) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    top = each.largest
    norm = LogNorm(FLOOR * top, top, clip=True) if log else Normalize(0.0, top, clip=True)
    colours = LinearSegmentedColormap.from_list("regard", COLOURS)
    values = np.maximum(_numbers(each)[head].astype(np.float64), FLOOR * top if log else 0.0)
    mesh = axes.pcolormesh(values, cmap=colours, norm=norm, rasterized=not vector, linewidth=0, antialiased=False)
    axes.invert_yaxis()  # the first query is above
    axes.set_aspect("equal" if max(values.shape) <= 4 * min(values.shape) else "auto")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
    return mesh


def _label(axes: "Axes", each: AttentionMap, size: float, *, rows: bool, columns: bool) -> None:
    if columns:
        axes.set_xticks(np.arange(len(each.keys)) + 0.5, list(map(_piece, each.keys)), fontsize=size, rotation=90)
    if rows:
        axes.set_yticks(np.arange(len(each.queries)) + 0.5, list(map(_piece, each.queries)), fontsize=size)
    axes.tick_params(length=0, pad=2)


def _piece(token: str) -> str:
    """A token without the mark of the blank before it, unless that is all of it."""
    return "␣" if token == "▁" else visible(token.removeprefix("▁"))


def _write(place: Callable[..., Any], text: str, letters: float, **style: Any) -> None:
    """Write a text above or below a figure, in lines of so many letters."""
    if text:
        place("\n".join(wrap(visible(text), int(letters))), **style)


def visible(text: str) -> str:
    """A text of which everything can be seen: what does not print becomes a mark or its number.

    >>> visible("a b"), visible(""), visible(chr(10)), visible(chr(0))
    ('a b', '∅', '⏎', 'U+0000')
    """
    marks = {"\n": "⏎", "\t": "⇥"}
    seen = "".join(c if c.isprintable() else marks.get(c, f"U+{ord(c):04X}") for c in text)
    return "∅" if not seen else "␣" * len(seen) if seen.isspace() else seen
