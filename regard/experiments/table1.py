"""Table 1 (§4): what a layer costs. The paper's formulas beside measurements of one layer of each kind.

Time is measured, contestants in turn; bytes, operations in a row and layers on the way are counted on real layers
(`regard.experiments.layers`), exactly. Letters: n positions, d width.
"""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, page, several, table
from regard.experiments.layers import HEAD, LAYERS, flops, kept_bytes, layers_on_the_way, operations_in_a_row, through

TIMED = [name for name in LAYERS if name != "dilated"]  # which costs what the other convolution does
RIVALS = ("lstm", "gru", "linear")  # of self-attention, in the question of the crossover
EXPONENTS = {"n²·d": 2, "r·n·d": 1, "n·d²": 1, "k·n·d²": 1, "–": 1}  # of n
LARGE = 2**25  # weights that are written out, at most
ROUNDS = 3, 25  # at least, at most
WAY = ("operations", "layers")  # from the first position to the last: operations in each of so many layers
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
    found: Result = {name: [] for name in LAYERS}
    for name, layer in LAYERS.items():
        for n in lengths:
            inside = operations_in_a_row(layer.make(d, 0), torch.randn(1, n, d))
            way = layers_on_the_way(lambda i, make=layer.make: make(d, i), n, d)  # type: ignore[misc]
            found[name].append({"n": n, "operations": inside, "layers": way})
    return found


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
    middle, widths = single[len(single) // 2], sorted({run["d"] for run in runs})
    measured, fitted = [p["n"] for run in runs for p in run["points"]], column(middle, "lstm", "both")[0][-LAST:]
    near, far = _claims(middle)
    text = page(
        "table1",
        d=middle["d"],
        narrowest=widths[0],
        widest=widths[-1],
        shortest=min(measured),
        longest=max(measured),
        batches=several(runs, "batch", " and "),
        threads=several(runs, "threads"),
        rounds=ROUNDS,
        head=HEAD,
        table=_table(single, middle, counts),
        fitted=(fitted[0], fitted[-1]),
        near=", ".join(near) or "none",
        far=f"Farther from it: {', '.join(far)}." if far else "None is farther from it.",
        last=LAST,
        lengths=several(counts["attention"], "n"),
        counted=_counted(counts),
        crossovers=_crossovers(runs),
        answers="\n".join(f"- {LAYERS[rival].label}: {_answer(runs, rival)}" for rival in RIVALS),
        seconds=_seconds_table(runs),
    )
    return Findings(text, _charts(runs, middle, counts))


def column(run: Result, layer: str, key: str) -> tuple[list[int], list[float]]:
    """Lengths at which a layer was measured, and what was measured: forward, both, bytes or flops."""
    points = [point for point in run["points"] if point["layer"] == layer]
    return [p["n"] for p in points], [flops(layer, p["n"], run["d"]) if key == "flops" else p[key] for p in points]


def over_widths(runs: Sequence[Result], layer: str, key: str) -> tuple[list[int], list[float]]:
    """The same over widths, at the longest length that was measured at all of them."""
    columns = {run["d"]: dict(zip(*column(run, layer, key), strict=True)) for run in runs}
    n = max(set.intersection(*(set(each) for each in columns.values())))
    return list(columns), [each[n] for each in columns.values()]


def over_lengths(points: Sequence[Result], *keys: str) -> tuple[list[int], list[int]]:
    """Lengths at which a layer was counted, and the product of what was counted: operations, layers or both."""
    return [p["n"] for p in points], [math.prod(p[key] for key in keys) for p in points]


def _table(runs: Sequence[Result], middle: Result, counts: Result) -> str:
    """The paper's three columns, each with what was found."""
    rows, spans = [], f"n = {counts['attention'][0]['n']} → {counts['attention'][-1]['n']}"
    for name, layer in LAYERS.items():
        cost: list[object] = [None] * 5
        if name in TIMED:
            of_n = [column(middle, name, key) for key in ("flops", "both")]
            of_d = [over_widths(runs, name, key) for key in ("flops", "both")]
            cost = [f"{exponent(*each):.2f}" for each in (*of_n, *of_d, column(middle, name, "bytes"))]
        inside, way = (
            f"{steps[0]} → {steps[-1]}"
            for _, steps in (over_lengths(counts[name], *keys) for keys in (("operations",), WAY))
        )
        rows.append([layer.label, layer.complexity, *cost, layer.sequential, inside, layer.path, way])
    head = ["layer", "complexity, O(·)", "FLOPs ∝ n^", "time ∝ n^", "FLOPs ∝ d^", "time ∝ d^", "bytes ∝ n^"]
    return table([*head, "sequential, O(·)", f"in a row, {spans}", "path, O(·)", f"on the way, {spans}"], rows)


def _claims(run: Result) -> tuple[list[str], list[str]]:
    """The layers whose time grows with n as is claimed, within a half of the exponent; and the others."""
    near, far = list[str](), list[str]()
    for name in TIMED:
        found, claim = exponent(*column(run, name, "both")), EXPONENTS[LAYERS[name].complexity]
        group = near if abs(found - claim) < 0.5 else far
        group.append(f"{LAYERS[name].label} (n^{found:.2f}, claimed n^{claim})")
    return near, far


def _counted(counts: Result) -> str:
    rows = []
    for name, points in counts.items():
        cells = [", ".join(map(str, over_lengths(points, *keys)[1])) for keys in (("operations",), ("layers",), WAY)]
        rows.append([LAYERS[name].label, *cells, f"{abs(exponent(*over_lengths(points, *WAY))):.2f}"])  # no -0.00
    return table(["layer", "in a row", "layers", "on the way", "way ∝ n^"], rows)


def crossing(run: Result, rival: str, key: str = "both") -> float:
    """Where self-attention becomes slower than a rival: forward, or forward and backward."""
    return crossover(*column(run, "attention", key), column(run, rival, key)[1])


def _crossovers(runs: Sequence[Result]) -> str:
    rows: list[list[object]] = []
    for run in runs:
        row, longest = [f"{run['batch']} × n × {run['d']}", run["d"]], run["points"][-1]["n"]
        for rival in RIVALS:
            row.append(_place(crossover_of_flops(rival, run["d"]), longest, at_once="none"))
            row += [_place(crossing(run, rival, key), longest) for key in ("forward", "both")]
        rows.append(row)
    head = [f"{LAYERS[rival].label}: {what}" for rival in RIVALS for what in ("FLOPs", "forward", "and backward")]
    return table(["layer's input", "n = d", *head], rows)


def _place(n: float, longest: int, at_once: str = "from the start") -> str:
    return at_once if n == 0 else f"over {longest}" if n == math.inf else f"{n:.0f}"


def _answer(runs: Sequence[Result], rival: str) -> str:
    """Which layer is faster at n = d, and how many times as long as d the crossover is."""
    ours, theirs = (
        [dict(zip(*column(run, name, "both"), strict=True)) for run in runs] for name in ("attention", rival)
    )
    at = [b[run["d"]] / a[run["d"]] for run, a, b in zip(runs, ours, theirs, strict=True) if run["d"] in a]
    ratios = [found / run["d"] for run in runs if 0 < (found := crossing(run, rival)) < math.inf]
    text = "the crossover lay at no length that was measured."
    if ratios:
        span = f"{min(ratios):.2g} to {max(ratios):.2g} times d"
        text = f"the crossover lay at {span} where it was seen ({len(ratios)} settings)."
    if not at:
        return text
    return (
        f"at n = d self-attention was the faster layer in {sum(each > 1 for each in at)} of {len(at)} settings "
        f"({min(at):.2g} to {max(at):.2g} times as fast, forward and backward); {text}"
    )


def _seconds_table(runs: Sequence[Result]) -> str:
    """Milliseconds forward and backward at the shortest, a middle and the longest length of each width."""
    rows = []
    for run in runs:
        times = [dict(zip(*column(run, name, "both"), strict=True)) for name in TIMED]
        n = list(times[0])
        for each in sorted({n[0], n[len(n) // 2], n[-1]}):
            cells = [1000 * seconds[each] if each in seconds else None for seconds in times]
            rows.append([f"{run['batch']} × {each} × {run['d']}", *cells])
    return table(["input", *(LAYERS[name].label for name in TIMED)], rows)


def _charts(runs: Sequence[Result], middle: Result, counts: Result) -> dict[str, Chart]:
    def chart(title: str, x: str, y: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Chart:
        return Chart(title, x, y, [Series(LAYERS[name].label, *each) for name, each in series.items()], True, True)

    n, at = "n, positions", f"d = {middle['d']}, one sequence"
    seconds, kept = ({name: column(middle, name, key) for name in TIMED} for key in ("both", "bytes"))
    inside, way = (
        {name: over_lengths(points, *keys) for name, points in counts.items()} for keys in (("operations",), WAY)
    )
    return {
        "table1-time": chart(f"One layer, forward and backward: {at}", n, "seconds", seconds),
        "table1-memory": chart(f"Kept for the backward pass: {at}", n, "bytes", kept),
        "table1-operations": chart("Operations in a row", n, "operations", inside),
        "table1-path": chart("From the first position to the last", n, "operations", way),
        "table1-crossover": Chart(
            "Self-attention is the faster layer below", "d, width", n, _meeting(runs), True, True
        ),
    }


def _meeting(runs: Sequence[Result]) -> list[Series]:
    """Crossovers that were seen, for each rival and batch; and the line n = d."""
    widths = sorted({run["d"] for run in runs})
    series = []
    for rival, batch in product(RIVALS, sorted({run["batch"] for run in runs})):
        found = {run["d"]: crossing(run, rival) for run in runs if run["batch"] == batch}
        seen = {d: n for d, n in found.items() if 0 < n < math.inf}
        if seen:
            series.append(Series(f"{LAYERS[rival].label}, batch {batch}", [*seen], [*seen.values()]))
    counts = [crossover_of_flops("lstm", d) for d in widths]
    series.append(Series("LSTM, by FLOPs", widths, counts, style="dashes"))
    return [*series, Series("n = d", widths, widths, style="dashes")]


EXPERIMENT = Experiment("table1", "Table 1: what a layer costs", trials, report)
