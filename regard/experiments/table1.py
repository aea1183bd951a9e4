"""Table 1 (§4): what a layer costs. The paper's formulas beside measurements of one layer of each kind.

Time is measured, contestants in turn; bytes, operations in a row and layers on the way are counted on real layers
(`regard.experiments.layers`), exactly. Letters: n positions, d width.
"""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, table
from regard.experiments.layers import (
    HEAD,
    LAYERS,
    flops,
    kept_bytes,
    layers_on_the_way,
    operations_in_a_row,
    through,
)

TIMED = [name for name in LAYERS if name != "dilated"]  # which costs what the other convolution does
RIVALS = ("lstm", "gru", "linear")  # of self-attention, in the question of the crossover
EXPONENTS = {"n²·d": (2, 1), "r·n·d": (1, 1), "n·d²": (1, 2), "k·n·d²": (1, 2), "–": (1, 2)}  # of n and d
LARGE = 2**25  # weights that are written out, at most
ROUNDS = 3, 25  # at least, at most
LAST = 3  # lengths, or widths, over which an exponent is fitted: the largest

Grid = list[tuple[int, int, list[int]]]  # batch, d, lengths
GRIDS: Mapping[str, Grid] = {
    "smoke": [(1, d, [8, 16, 32]) for d in (8, 16, 32)] + [(2, 8, [8, 16, 32])],
    "small": [(1, d, [2**i for i in range(4, 13)]) for d in (64, 128, 256)]
    + [(1, 512, [2**i for i in range(4, 12)]), (1, 1024, [2**i for i in range(4, 11)])]
    + [(16, d, [2**i for i in range(4, 11)]) for d in (64, 128, 256, 512)],
    "full": [(batch, d, [2**i for i in range(4, 15)]) for batch in (1, 16) for d in (64, 128, 256, 512, 1024, 2048)],
}
SECONDS = {"smoke": 0.0, "small": 1.0, "full": 10.0}  # for each length, unless ROUNDS says otherwise
COUNTED = {"smoke": [8, 16, 32], "small": [16, 32, 64, 128, 256], "full": [16, 32, 64, 128, 256, 512]}


def trials(scale: str) -> list[Trial]:
    """Times for each batch and width, and what is counted."""
    return [
        Trial("counted", counted, {"lengths": COUNTED[scale], "d": 8}),
        *(
            Trial(f"batch-{b}-width-{d}", timed, {"batch": b, "d": d, "lengths": n, "seconds": SECONDS[scale]})
            for b, d, n in GRIDS[scale]
        ),
    ]


def counted(folder: Path, console: Console, *, lengths: Sequence[int], d: int) -> Result:
    """A trial: for each layer and length, operations in a row within a layer, and layers on the way."""
    torch.manual_seed(0)
    return {
        name: [
            {
                "n": n,
                "operations": operations_in_a_row(layer.make(d, 0), torch.randn(1, n, d)),
                "layers": layers_on_the_way(lambda i: layer.make(d, i), n, d),  # noqa: B023  used at once
            }
            for n in lengths
        ]
        for name, layer in LAYERS.items()
    }


def timed(folder: Path, console: Console, *, batch: int, d: int, lengths: Sequence[int], seconds: float) -> Result:
    """A trial: for each length and layer the medians of seconds forward, and forward and backward; kept bytes."""
    torch.manual_seed(0)
    points = []
    for n in lengths:
        x = torch.randn(batch, n, d, requires_grad=True)
        few = batch * max(1, d // HEAD) * n * n <= LARGE
        layers = {name: LAYERS[name].make(d, 0) for name in TIMED if few or name != "written"}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
        for layer in layers.values():
            _seconds(layer, x)  # the first run is slower
        start = time.perf_counter()
        while len(times["lstm"]) < ROUNDS[0] or (
            time.perf_counter() - start < seconds and len(times["lstm"]) < ROUNDS[1]
        ):
            for name, layer in layers.items():
                times[name].append(_seconds(layer, x))
        for name, layer in layers.items():
            forward, both = (median(column) for column in zip(*times[name], strict=True))
            kept = kept_bytes(layer, x) / batch
            points.append({"layer": name, "n": n, "forward": forward, "both": both, "bytes": kept})
    return {"batch": batch, "d": d, "threads": torch.get_num_threads(), "points": points}


def _seconds(layer: nn.Module, x: Tensor) -> tuple[float, float]:
    """Of a forward pass, and of one with its backward pass."""
    start = time.perf_counter()
    with torch.no_grad():
        through(layer, x)
    middle = time.perf_counter()
    y = through(layer, x)
    torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))
    return middle - start, time.perf_counter() - middle


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """a in y = c · x^a, by least squares in the logarithms of the last few points.

    >>> round(exponent([1, 2, 4, 8], [7, 12, 48, 192]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x[-LAST:]), np.log(y[-LAST:]), 1)[0])


def crossover(n: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The length from which on ours costs more than theirs, between lengths by a straight line in the logarithms.

    Infinite if ours costs less up to the last length, 0 if it costs more from the first on.

    >>> crossover([1, 4, 16], [1, 16, 256], [8, 32, 128])  # n² and 8n
    8.0
    """
    ahead = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if ahead[-1] < 0:
        return math.inf
    for (low, before), (high, after) in reversed(list(pairwise(zip(n, ahead, strict=True)))):
        if before < 0 <= after:
            return float(low * (high / low) ** (before / (before - after)))
    return 0.0


def crossover_of_flops(rival: str, d: int) -> float:
    """The same by count: attention has weights and a part that grows with n, its rival has weights alone.

    >>> crossover_of_flops("lstm", 64), crossover_of_flops("gru", 64), crossover_of_flops("linear", 64)
    (128.0, 64.0, 0.0)
    """
    theirs, *ours = flops(rival, 1, d), flops("attention", 1, d), flops("attention", 2, d) / 2  # for each position
    growth = ours[1] - ours[0]
    return max(0.0, (theirs - (ours[0] - growth)) / growth)


def report(results: Results, scale: str) -> Findings:
    """The paper's table, measured; the crossovers; charts."""
    counts = results["counted"]
    runs = [result for name, result in results.items() if name != "counted"]
    single = [run for run in runs if run["batch"] == 1]
    middle = single[len(single) // 2]
    parts = [
        _asked(runs, counts),
        "## The table",
        _table(single, counts),
        _grows(single),
        _chart_of("time", f"seconds of a layer over n at d = {middle['d']}"),
        _chart_of("memory", f"bytes kept for the backward pass over n at d = {middle['d']}"),
        "## Operations in a row, and the way between positions",
        _counted(counts),
        _chart_of("operations", "operations in a row over n"),
        _chart_of("path", "operations between the first and the last position over n"),
        "## Where self-attention becomes the slower layer",
        _crossovers(runs),
        _answer(runs),
        _chart_of("crossover", "the length of the crossover over d"),
        "## Seconds",
        _seconds_table(runs),
    ]
    return Findings("\n\n".join(parts), _charts(runs, middle, counts))


def _chart_of(name: str, shows: str) -> str:
    return f"![{shows}](table1-{name}.svg)"


def column(run: Result, layer: str, key: str) -> tuple[list[int], list[float]]:
    """Lengths at which a layer was measured, and what was measured: forward, both, bytes or flops."""
    points = [point for point in run["points"] if point["layer"] == layer]
    return [p["n"] for p in points], [flops(layer, p["n"], run["d"]) if key == "flops" else p[key] for p in points]


def over_widths(runs: Sequence[Result], layer: str, key: str) -> tuple[list[int], list[float]]:
    """The same over widths, at the longest length that was measured at all of them."""
    columns = {run["d"]: dict(zip(*column(run, layer, key), strict=True)) for run in runs}
    n = max(set.intersection(*(set(each) for each in columns.values())))
    return list(columns), [each[n] for each in columns.values()]


def _asked(runs: Sequence[Result], counts: Result) -> str:
    batches = " and ".join(str(b) for b in sorted({run["batch"] for run in runs}))
    widths = sorted({run["d"] for run in runs})
    lengths = [p["n"] for run in runs for p in run["points"]]
    threads = ", ".join(map(str, sorted({run["threads"] for run in runs})))
    return (
        "Table 1 of the paper gives for each kind of layer the order of its arithmetic, of the operations that must "
        "wait for one another, and of the longest way between two positions. Here one layer of each kind is built and "
        f"measured: d from {widths[0]} to {widths[-1]}, n from {min(lengths)} to {max(lengths)}, {batches} sequences "
        f"at a time, fp32, {threads} threads. Times are medians of {ROUNDS[0]} to {ROUNDS[1]} rounds in which the "
        f"layers take turns. Self-attention has heads of width {HEAD}, its four projections, and PyTorch's fused "
        "kernel; a second row writes its weights out and keeps them. Recurrent layers are PyTorch's, the linear "
        "recurrence is regard's parallel scan. The paper's orders leave out constants and the projections of "
        "attention, which are of the order n·d²; exponents of FLOPs, over the same lengths and widths, show what "
        "these make of the formula before any machine is asked."
    )


def _table(runs: Sequence[Result], counts: Result) -> str:
    """The paper's three columns, each with what was found."""
    middle, rows = runs[len(runs) // 2], []
    first, last = counts["attention"][0]["n"], counts["attention"][-1]["n"]
    for name, layer in LAYERS.items():
        cost: list[object] = [None] * 5
        if name in TIMED:
            of_n = [exponent(*column(middle, name, key)) for key in ("flops", "both")]
            of_d = [exponent(*over_widths(runs, name, key)) for key in ("flops", "both")]
            cost = [f"{a:.2f}" for a in (*of_n, *of_d, exponent(*column(middle, name, "bytes")))]
        ends = counts[name][0], counts[name][-1]
        inside = " → ".join(str(each["operations"]) for each in ends)
        way = " → ".join(str(each["layers"] * each["operations"]) for each in ends)
        rows.append([layer.label, layer.complexity, *cost, layer.sequential, inside, layer.path, way])
    head = ["layer", "complexity, O(·)", "FLOPs ∝ n^", "time ∝ n^", "FLOPs ∝ d^", "time ∝ d^", "bytes ∝ n^"]
    spans = f"n = {first} → {last}"
    return table([*head, "sequential, O(·)", f"in a row, {spans}", "path, O(·)", f"on the way, {spans}"], rows)


def _grows(runs: Sequence[Result]) -> str:
    """What the exponents say, nearest whole number beside the claim."""
    run = runs[len(runs) // 2]
    right: list[str] = []
    wrong: list[str] = []
    n = column(run, "lstm", "both")[0][-LAST:]
    for name in TIMED:
        found, claim = exponent(*column(run, name, "both")), EXPONENTS[LAYERS[name].complexity][0]
        (right if abs(found - claim) < 0.5 else wrong).append(
            f"{LAYERS[name].label} (n^{found:.2f}, claimed n^{claim})"
        )
    text = (
        f"Exponents of n are fitted over n = {n[0]} to {n[-1]} at d = {run['d']}, forward and backward, one sequence. "
    )
    text += f"Within a half of the claim: {', '.join(right) or 'none'}. "
    return text + (f"Farther from it: {', '.join(wrong)}." if wrong else "None is farther from it.")


def _counted(counts: Result) -> str:
    rows = []
    for name, points in counts.items():
        inside, layers, way = (
            [each["operations"] for each in points],
            [each["layers"] for each in points],
            [each["operations"] * each["layers"] for each in points],
        )
        grows = exponent([each["n"] for each in points], way)
        rows.append([LAYERS[name].label, *map(_list, (inside, layers, way)), f"{abs(grows):.2f}"])  # no -0.00
    lengths = _list(each["n"] for each in counts["attention"])
    text = (
        "Operations in a row are the longest chain of tensor operations of a forward pass in which each needs the "
        "result of the one before: no machine, however parallel, takes fewer steps. Layers on the way are how many of "
        "them must be stacked until the gradient at the last position reaches the first; the way is their product, "
        f"and its exponent of n that over the last {LAST} lengths. Counted at n = {lengths}."
    )
    return f"{text}\n\n" + table(["layer", "in a row", "layers", "on the way", "way ∝ n^"], rows)


def _list(values: object) -> str:
    return ", ".join(map(str, values))  # type: ignore[call-overload]


def crossings(run: Result, rival: str) -> dict[str, float]:
    """Where self-attention becomes slower than a rival, forward, and forward and backward."""
    return {key: crossover(*column(run, "attention", key), column(run, rival, key)[1]) for key in ("forward", "both")}


def _crossovers(runs: Sequence[Result]) -> str:
    rows: list[list[object]] = []
    for run in runs:
        cells: list[object] = []
        longest = run["points"][-1]["n"]
        for rival in RIVALS:
            found = crossings(run, rival)
            cells += [_place(crossover_of_flops(rival, run["d"]), longest, counted=True)]
            cells += [_place(found[key], longest) for key in ("forward", "both")]
        rows.append([f"{run['batch']} × n × {run['d']}", run["d"], *cells])
    head = [f"{LAYERS[rival].label}: {what}" for rival in RIVALS for what in ("FLOPs", "forward", "and backward")]
    text = (
        "By the paper's orders n²·d and n·d² the two meet at n = d. By count of FLOPs, projections included, they meet "
        "where 4d² + 2nd is what a token of the rival costs: 8d² of an LSTM (n = 2d), 6d² of a GRU (n = d), 4d² of the "
        "linear recurrence (never: attention always has more). By measurement:"
    )
    return f"{text}\n\n" + table(["layer's input", "n = d", *head], rows)


def _place(n: float, longest: int, counted: bool = False) -> str:
    if n == 0:
        return "none" if counted else "from the start"
    return f"over {longest}" if n == math.inf else f"{n:.0f}"


def _answer(runs: Sequence[Result]) -> str:
    """Which layer is faster at n = d, and how many times as long as d the crossover is."""
    lines = []
    for rival in RIVALS:
        at, ratios = [], []
        for run in runs:
            n, ours = column(run, "attention", "both")
            if run["d"] in n:
                at.append(column(run, rival, "both")[1][n.index(run["d"])] / ours[n.index(run["d"])])
            found = crossings(run, rival)["both"]
            ratios += [found / run["d"]] if 0 < found < math.inf else []
        text = f"- {LAYERS[rival].label}: "
        if at:
            ahead = sum(each > 1 for each in at)
            text += f"at n = d self-attention was the faster layer in {ahead} of {len(at)} settings "
            text += f"({min(at):.2g} to {max(at):.2g} times as fast, forward and backward); "
        where = f"{min(ratios):.2g} to {max(ratios):.2g} times d" if ratios else "no length that was measured"
        lines.append(
            f"{text}the crossover lay at {where}"
            + (f" where it was seen ({len(ratios)} settings)." * bool(ratios) or ".")
        )
    return "\n".join(lines)


def _seconds_table(runs: Sequence[Result]) -> str:
    """Milliseconds forward and backward at the shortest, a middle and the longest length of each width."""
    rows = []
    for run in runs:
        n = column(run, "attention", "both")[0]
        for i in sorted({0, len(n) // 2, len(n) - 1}):
            times = [dict(zip(*column(run, name, "both"), strict=True)).get(n[i]) for name in TIMED]
            rows.append([f"{run['batch']} × {n[i]} × {run['d']}", *(None if t is None else 1000 * t for t in times)])
    text = "Milliseconds of a forward and a backward pass over so many sequences × n × d:"
    return f"{text}\n\n" + table(["input", *(LAYERS[name].label for name in TIMED)], rows)


def _charts(runs: Sequence[Result], middle: Result, counts: Result) -> dict[str, Chart]:
    def lines(key: str) -> list[Series]:
        return [Series(LAYERS[name].label, *column(middle, name, key)) for name in TIMED]

    def ways(value: str) -> list[Series]:
        return [
            Series(
                LAYERS[name].label,
                [each["n"] for each in points],
                [each["operations"] * (each["layers"] if value == "path" else 1) for each in points],
            )
            for name, points in counts.items()
        ]

    at = f"d = {middle['d']}, one sequence"
    n = "n, positions"
    return {
        "table1-time": Chart(f"One layer, forward and backward: {at}", n, "seconds", lines("both"), True, True),
        "table1-memory": Chart(f"Kept for the backward pass: {at}", n, "bytes", lines("bytes"), True, True),
        "table1-operations": Chart("Operations in a row", n, "operations", ways("operations"), True, True),
        "table1-path": Chart("From the first position to the last", n, "operations", ways("path"), True, True),
        "table1-crossover": Chart(
            "Self-attention is the faster layer below", "d, width", n, _meeting(runs), True, True
        ),
    }


def _meeting(runs: Sequence[Result]) -> list[Series]:
    """Crossovers that were seen, for each rival and batch; and the line n = d."""
    widths = sorted({run["d"] for run in runs})
    series = []
    for rival in RIVALS:
        for batch in sorted({run["batch"] for run in runs}):
            seen = [(run["d"], crossings(run, rival)["both"]) for run in runs if run["batch"] == batch]
            seen = [each for each in seen if 0 < each[1] < math.inf]
            if seen:
                d, n = zip(*seen, strict=True)
                series.append(Series(f"{LAYERS[rival].label}, batch {batch}", d, n))
    counts = [crossover_of_flops("lstm", d) for d in widths]
    return [
        *series,
        Series("LSTM, by FLOPs", widths, counts, style="dashes"),
        Series("n = d", widths, widths, style="dashes"),
    ]


EXPERIMENT = Experiment("table1", "Table 1: what a layer costs", trials, report)
