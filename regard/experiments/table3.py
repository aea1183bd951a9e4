"""Table 3 (§6.2): what matters in the Transformer. Each row changes the base model in one thing.

The paper's rows are written down once, at the paper's scale, with its figures; ours are the same rows with every width
and depth divided (`SHRINK`), so that a difference to base can be held against the paper's difference to its base.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Results, Trial, counted, page, table
from regard.experiments.runs import SMOKE, changed, recipe_trained

Changes = Mapping[str, int | float | str]
GROUPS = {
    "A": "(A) heads",
    "B": "(B) width of keys",
    "C": "(C) depth and width",
    "D": "(D) dropout, smoothing",
    "E": "(E) positions",
    "big": "big",
}


@dataclass(frozen=True)
class Row:
    """A row of the paper's Table 3: what it changes of base, and the figures on newstest2013."""

    group: str  # A to E; base; big
    label: str  # as our table shows it; {} is the changed value at our scale
    changes: Changes  # of base: settings of a recipe
    perplexity: float  # of a sub-word
    bleu: float
    millions: int | None = None  # parameters, where the paper states them

    @property
    def value(self) -> int | float | str:
        """What its (first) change sets, at the paper's scale."""
        return next(iter(self.changes.values()), "")

    @property
    def name(self) -> str:
        """For a trial: h-16, learned-positions."""
        return self.label.format(self.value).replace(" = ", "-").replace(" ", "-")


def _layers(n: int) -> Changes:
    return {"model.encoder_layers": n, "model.decoder_layers": n}


def _width(d_model: int, d_k: int) -> Changes:
    return {"model.d_model": d_model, "model.d_k": d_k, "model.d_v": d_k}


ROWS = (
    Row("base", "base", {}, 4.92, 25.8, 65),
    *(
        Row("A", "h = {}", {"model.heads": h}, perplexity, bleu)
        for h, perplexity, bleu in ((1, 5.29, 24.9), (4, 5.00, 25.5), (16, 4.91, 25.8), (32, 5.01, 25.4))
    ),
    Row("B", "d_k = {}", {"model.d_k": 16}, 5.16, 25.1, 58),
    Row("B", "d_k = {}", {"model.d_k": 32}, 5.01, 25.4, 60),
    Row("C", "N = {}", _layers(2), 6.11, 23.7, 36),
    Row("C", "N = {}", _layers(4), 5.19, 25.3, 50),
    Row("C", "N = {}", _layers(8), 4.88, 25.5, 80),
    Row("C", "d_model = {}", _width(256, 32), 5.75, 24.5, 28),
    Row("C", "d_model = {}", _width(1024, 128), 4.66, 26.0, 168),
    Row("C", "d_ff = {}", {"model.d_ff": 1024}, 5.12, 25.4, 53),
    Row("C", "d_ff = {}", {"model.d_ff": 4096}, 4.75, 26.2, 90),
    Row("D", "dropout = {}", {"model.dropout": 0.0}, 5.77, 24.6),
    Row("D", "dropout = {}", {"model.dropout": 0.2}, 4.95, 25.5),
    Row("D", "smoothing = {}", {"train.smoothing": 0.0}, 4.67, 25.3),
    Row("D", "smoothing = {}", {"train.smoothing": 0.2}, 5.47, 25.7),
    Row("E", "learned positions", {"model.positions": "learned"}, 4.92, 25.7),
    Row(
        "big",
        "big",
        {"model.d_model": 1024, "model.d_ff": 4096, "model.heads": 16, "model.dropout": 0.3, "train.steps": 300_000},
        4.33,
        26.4,
        213,
    ),
)
PAPER_BASE: Changes = {
    "model.d_model": 512,
    "model.d_ff": 2048,
    "model.heads": 8,
    "model.dropout": 0.1,
    "train.smoothing": 0.1,
    **_layers(6),
}
WIDTHS, DEPTHS = ("model.d_model", "model.d_ff", "model.d_k", "model.d_v"), tuple(_layers(1))
SHRINK = {"smoke": (16, 3), "small": (4, 2), "full": (1, 1)}  # widths and depths are divided by these
SEEDS = {"smoke": (1, 2), "small": (1, 2, 3), "full": (1,)}  # of base: they tell the noise
STEPS = {"smoke": 12, "small": 400}
FEW = ("base", "h-1", "d_k-16", "N-2", "dropout-0.0", "learned-positions", "big")
COMMON = {
    "small": (
        "tokens.size=4000 train.batch_tokens=1536 train.schedule.warmup=50 train.average=0 train.snapshot_every=null "
        f"train.validate_every={STEPS['small']} train.validate_sentences=1014 decode.beam=4"
    ),
    "full": (  # §6.2: newstest2013, without averaging
        "data.test.source=wmt14/newstest2013.en data.test.target=wmt14/newstest2013.de train.average=0 "
        "train.validate_sentences=3000"
    ),
}
COMMON["smoke"] = f"{COMMON['small']} {SMOKE} train.validate_every={STEPS['smoke']}"


def trials(scale: str) -> list[Trial]:
    """A training for each row; base several times."""
    rows = [row for row in ROWS if scale != "smoke" or row.name in FEW]
    chosen = [(row, row.name, 1) for row in rows]
    chosen[1:1] = [(rows[0], f"base-seed-{seed}", seed) for seed in SEEDS[scale][1:]]
    return [Trial(name, recipe_trained, _settings(row, seed, scale)) for row, name, seed in chosen]


def shrunk(changes: Changes, scale: str) -> dict[str, int | float | str]:
    """Changes of the paper's model at a scale.

    >>> shrunk({"model.d_ff": 1024, "model.encoder_layers": 2, "model.heads": 16}, "small")
    {'model.d_ff': 256, 'model.encoder_layers': 1, 'model.heads': 16}
    """
    width, depth = SHRINK[scale]
    by = {**dict.fromkeys(WIDTHS, width), **dict.fromkeys(DEPTHS, depth)}
    return {key: max(1, int(value) // by[key]) if key in by else value for key, value in changes.items()}


def _settings(row: Row, seed: int, scale: str) -> dict[str, str | list[str]]:
    """What the row is of a shipped recipe: settings for all rows, the base at this scale, and its own change."""
    changes = COMMON[scale], shrunk(PAPER_BASE, scale), shrunk(row.changes, scale), {"train.seed": seed}
    if scale == "full":
        return changed("wmt14-en-de-base", *changes)
    return changed("multi30k-en-de-raw", *changes, {"train.steps": STEPS[scale]})  # of big as well


@dataclass(frozen=True)
class Differences:
    """A measure of each row, held against base; the noise is what the seeds of base tell."""

    base: list[float]  # of each seed
    rows: dict[str, float]

    def of(self, row: Row) -> float:
        """The row less the mean of base."""
        return self.rows[row.name] - mean(self.base)

    @property
    def noise(self) -> float | None:
        """What a difference must exceed: twice its standard deviation, s √(1 + 1/n), with s from n seeds of base."""
        n = len(self.base)
        return 2 * stdev(self.base) * math.sqrt(1 + 1 / n) if n > 1 else None

    def beyond(self, row: Row) -> bool:
        """Whether the difference is more than noise."""
        return self.noise is not None and abs(self.of(row)) > self.noise

    def cell(self, row: Row, digits: int) -> str | None:
        """The difference as a table shows it: in bold beyond the noise."""
        text = f"{self.of(row):+.{digits}f}"
        return None if row is ROWS[0] else f"**{text}**" if self.beyond(row) else text


def differences(results: Results, measure: str) -> Differences:
    """A measure of all trials; base has the mean of its seeds."""
    base = [result[measure] for name, result in results.items() if name.startswith("base")]
    return Differences(base, {**{name: result[measure] for name, result in results.items()}, "base": mean(base)})


PAPER = {row.name: {"loss": math.log(row.perplexity / ROWS[0].perplexity), "bleu": row.bleu} for row in ROWS}
THEIRS = {measure: differences(PAPER, measure) for measure in ("loss", "bleu")}


def spearman(x: Sequence[float], y: Sequence[float], shuffles: int = 10_000) -> tuple[float, float]:
    """Spearman's rank correlation, and the share of random orders that correlate as strongly in either direction.

    >>> spearman([1, 2, 3, 4, 5, 6], [2, 4, 4, 8, 9, 20])[0]
    0.98...
    """
    a, b = (ranks - ranks.mean() for ranks in (midranks(x), midranks(y)))
    length = math.sqrt((a @ a) * (b @ b)) or 1.0  # without any order, 0 of 1
    rho = float(a @ b) / length
    orders = np.random.default_rng(0).permuted(np.tile(b, (shuffles, 1)), axis=1)
    return rho, float((abs(orders @ a) / length >= abs(rho) - 1e-12).mean())


def midranks(x: Sequence[float]) -> np.ndarray:
    """From 1, the least; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def report(results: Results, scale: str) -> Findings:
    """The rows beside the paper's, the noise, and how far the two orders agree."""
    rows, base, (width, depth) = [row for row in ROWS if row.name in results], results["base"], SHRINK[scale]
    loss, bleu = differences(results, "loss"), differences(results, "bleu")
    lead = "table3-full" if scale == "full" else "table3-small"
    threads = counted(base["threads"], "thread")
    text = page(
        "table3",
        asked=page(lead, c=shrunk(PAPER_BASE, scale), width=width, depth=depth, base=base, threads=threads),
        table=_table(rows, results, loss, bleu, scale),
        noise=_noise(loss, bleu),
        groups=_groups(rows, loss, bleu, scale),
        agreement=_agreement(rows, loss, bleu, scale),
    )
    return Findings(text, _charts(rows, results, loss, bleu))


def _table(rows: Sequence[Row], results: Results, loss: Differences, bleu: Differences, scale: str) -> str:
    head = ["row", "parameters, 10⁶", "PPL", "Δ ln PPL", "valid", "BLEU", "Δ BLEU"]
    head += [f"paper: {name}" for name in ("10⁶", "PPL", "Δ ln PPL", "BLEU", "Δ BLEU")]
    lines = []
    for row in rows:
        r = results[row.name]
        ours = [f"{math.exp(loss.rows[row.name]):.2f}", loss.cell(row, 3), f"{r['validations'][-1][2]:.1f}"]
        ours += [f"{bleu.rows[row.name]:.1f}", bleu.cell(row, 1)]
        theirs = [row.millions, f"{row.perplexity:.2f}", THEIRS["loss"].cell(row, 3)]
        theirs += [f"{row.bleu:.1f}", THEIRS["bleu"].cell(row, 1)]
        lines.append([_label(row, scale), f"{r['parameters'] / 1e6:.2f}", *ours, *theirs])
    return table(head, lines)


def _label(row: Row, scale: str) -> str:
    """(C) d_ff = 256 (1024): at our scale, and the paper's where it is another."""
    if not row.changes or row.group == "big":
        return row.label
    ours = next(iter(shrunk(row.changes, scale).values()))
    return f"({row.group}) {row.label.format(ours)}" + (f" ({row.value})" if ours != row.value else "")


def _noise(loss: Differences, bleu: Differences) -> str:
    if loss.noise is None or bleu.noise is None:
        return "Base was trained once, so nothing is known of the noise."
    return (
        f"Base is the mean of {len(loss.base)} seeds, whose standard deviations s are {stdev(loss.base):.3f} in ln PPL "
        f"and {stdev(bleu.base):.2f} in BLEU; *valid* and the other rows are of one seed. Differences in bold exceed "
        f"twice their own standard deviation, s √(1 + 1/n): {loss.noise:.3f} in ln PPL, {bleu.noise:.2f} in BLEU. So "
        "few seeds tell s roughly."
    )


def _groups(rows: Sequence[Row], loss: Differences, bleu: Differences, scale: str) -> str:
    """What each group of rows says here, and what it says in the paper."""
    lines = []
    for group, title in GROUPS.items():
        members = [row for row in rows if row.group == group]
        beyond = [row for row in members if loss.beyond(row)]
        same = [row for row in beyond if loss.of(row) * THEIRS["loss"].of(row) > 0]
        best = [min([rows[0], *members], key=each.of) for each in (loss, THEIRS["loss"])]
        best += [max([rows[0], *members], key=each.of) for each in (bleu, THEIRS["bleu"])]
        lines.append([title, len(members), len(beyond), len(same), *(_label(row, scale) for row in best)])
    head = ["group", "rows", "beyond noise (PPL)", "of these, as in the paper"]
    return table([*head, "best PPL", "paper: best PPL", "best BLEU", "paper: best BLEU"], lines)


def _agreement(rows: Sequence[Row], loss: Differences, bleu: Differences, scale: str) -> str:
    """Whether the order of the rows is the paper's."""
    said = []
    for name, ours, theirs in (("perplexity", loss, THEIRS["loss"]), ("BLEU", bleu, THEIRS["bleu"])):
        rho, chance = spearman([theirs.of(row) for row in rows[1:]], [ours.of(row) for row in rows[1:]])
        verdict = "the order of the paper holds in the main" if rho > 0 else "the order is the paper's turned around"
        if chance >= 0.05:
            verdict = "the two orders cannot be told from unrelated ones"
        said.append(
            f"By {name}, {verdict}: Spearman's ρ = {rho:.2f} over {len(rows) - 1} rows; of random orders {chance:.1%} "
            "correlate as strongly."
        )
    by_loss, by_bleu = _label(min(rows, key=loss.of), scale), _label(max(rows, key=bleu.of), scale)
    return " ".join([*said, f"Best of all is {by_loss} by perplexity and {by_bleu} by BLEU (the paper: big)."])


def _charts(rows: Sequence[Row], results: Results, loss: Differences, bleu: Differences) -> dict[str, Chart]:
    base, y, noise = rows[0], "BLEU less base's", bleu.noise or 0.0

    def pair(start: str, at_base: float, label: str = "") -> list[Series]:
        """Ours with its noise and the paper's, over the paper's value: rows whose label starts so, and base."""
        places = [(float(row.value), row) for row in rows if row.label.startswith(start)] + [(at_base, base)]
        x, chosen = zip(*sorted(places, key=lambda place: place[0]), strict=True)
        ours, theirs = ([each.of(row) for row in chosen] for each in (bleu, THEIRS["bleu"]))
        low, high = [value - noise for value in ours], [value + noise for value in ours]
        return [Series(f"ours{label}", x, ours, low, high), Series(f"the paper's{label}", x, theirs)]

    def points(label: str, some: Sequence[Row], x: Callable[[Row], float], y: Differences) -> Series:
        """Of no order: models of one size may differ in much."""
        return Series(label, [x(row) for row in some], [y.of(row) for row in some], style="points")

    sized = [row for row in rows if row.millions]
    sizes = [
        points("ours", sized, lambda row: results[row.name]["parameters"] / results["base"]["parameters"], bleu),
        points("the paper's", sized, lambda row: (row.millions or 0) / 65, THEIRS["bleu"]),
    ]
    beside = [
        points(title, [row for row in rows if row.group == group], THEIRS["loss"].of, loss)
        for group, title in GROUPS.items()
    ]
    rates = [*pair("dropout =", 0.1, ", dropout"), *pair("smoothing =", 0.1, ", smoothing")]
    return {
        "table3-heads": Chart("Heads at constant cost", "heads h", y, pair("h =", 8), log_x=True),
        "table3-d-k": Chart("The width of a key", "d_k at the paper's scale", y, pair("d_k =", 64), log_x=True),
        "table3-size": Chart("Size", "parameters, base = 1", y, sizes, log_x=True),
        "table3-regularisation": Chart("Dropout and label smoothing", "rate", y, rates),
        "table3-agreement": Chart("Perplexity beside the paper's", "the paper's ln PPL less base's", "ours", beside),
    }


EXPERIMENT = Experiment("table3", "Table 3: what matters in the Transformer", trials, report)
