"""Table 3 (§6.2): what matters in the Transformer. Each row changes the base model in one thing.

The paper's rows are written down once, at the paper's scale, with its figures; ours are the same rows with every width
and depth divided (`SHRINK`), so that a difference to base can be held against the paper's difference to its base.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

import numpy as np

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, counted, table
from regard.experiments.runs import recipe_trained

Changes = Mapping[str, int | float | str]
GROUPS = {
    "A": "(A) heads",
    "B": "(B) width of keys",
    "C": "(C) depth and width",
    "D": "(D) dropout, smoothing",
    "E": "(E) positions",
    "big": "big",
}
PICTURES = (
    "![BLEU over the number of heads](table3-heads.svg)",
    "![BLEU over the width of a key](table3-d-k.svg)",
    "![BLEU over the number of parameters](table3-size.svg)",
    "![BLEU over dropout and label smoothing](table3-regularisation.svg)",
    "![Perplexity of each row beside the paper's](table3-agreement.svg)",
)


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
SMOKE = ("base", "h-1", "d_k-16", "N-2", "dropout-0.0", "learned-positions", "big")
COMMON: dict[str, Changes] = {
    "small": {
        "tokens.size": 4000,
        "train.batch_tokens": 1536,
        "train.schedule.warmup": 50,
        "train.average": 0,
        "train.snapshot_every": "null",
        "train.validate_every": STEPS["small"],
        "train.validate_sentences": 1014,
        "decode.beam": 4,
    },
    "full": {  # §6.2: newstest2013, without averaging
        "data.test.source": "wmt14/newstest2013.en",
        "data.test.target": "wmt14/newstest2013.de",
        "train.average": 0,
        "train.validate_sentences": 3000,
    },
}
COMMON["smoke"] = {
    **COMMON["small"],
    "data.limit": 1000,
    "tokens.size": 300,
    "train.batch_tokens": 256,
    "train.validate_every": STEPS["smoke"],
    "train.validate_sentences": 20,
    "decode.beam": 1,
    "decode.extra": 1,
}


def trials(scale: str) -> list[Trial]:
    """A training for each row; base several times."""
    rows = [row for row in ROWS if scale != "smoke" or row.name in SMOKE]
    chosen = [(row, row.name, 1) for row in rows]
    chosen[1:1] = [(rows[0], f"base-seed-{seed}", seed) for seed in SEEDS[scale][1:]]
    recipe = "wmt14-en-de-base" if scale == "full" else "multi30k-en-de-raw"
    return [
        Trial(name, recipe_trained, {"recipe": recipe, "changes": _changes(row, seed, scale)})
        for row, name, seed in chosen
    ]


def shrunk(changes: Changes, scale: str) -> dict[str, int | float | str]:
    """Changes of the paper's model at a scale.

    >>> shrunk({"model.d_ff": 1024, "model.encoder_layers": 2, "model.heads": 16}, "small")
    {'model.d_ff': 256, 'model.encoder_layers': 1, 'model.heads': 16}
    """
    width, depth = SHRINK[scale]
    by = {**dict.fromkeys(WIDTHS, width), **dict.fromkeys(DEPTHS, depth)}
    return {key: max(1, int(value) // by[key]) if key in by else value for key, value in changes.items()}


def _changes(row: Row, seed: int, scale: str) -> list[str]:
    """What the row is of a shipped recipe: settings for all rows, the base at this scale, and its own change."""
    settings = {**COMMON[scale], **shrunk(PAPER_BASE, scale), **shrunk(row.changes, scale), "train.seed": seed}
    if scale != "full":
        settings["train.steps"] = STEPS[scale]  # of big as well
    return [f"{key}={value}" for key, value in settings.items()]


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


def differences(results: Results, measure: Callable[[Result], float]) -> Differences:
    """A measure of all trials; base has the mean of its seeds."""
    base = [measure(result) for name, result in results.items() if name.startswith("base")]
    return Differences(base, {**{name: measure(result) for name, result in results.items()}, "base": mean(base)})


def spearman(x: Sequence[float], y: Sequence[float], shuffles: int = 10_000) -> tuple[float, float]:
    """Spearman's rank correlation, and the share of random orders that correlate as strongly in either direction.

    >>> spearman([1, 2, 3, 4, 5, 6], [2, 4, 4, 8, 9, 20])[0]
    0.98...
    """
    a, b = (ranks - ranks.mean() for ranks in (_ranks(x), _ranks(y)))
    length = math.sqrt((a @ a) * (b @ b)) or 1.0  # without any order, 0 of 1
    rho = float(a @ b) / length
    orders = np.random.default_rng(0).permuted(np.tile(b, (shuffles, 1)), axis=1)
    return rho, float((abs(orders @ a) / length >= abs(rho) - 1e-12).mean())


def _ranks(x: Sequence[float]) -> np.ndarray:
    """Equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def report(results: Results, scale: str) -> Findings:
    """The rows beside the paper's, the noise, and how far the two orders agree."""
    rows = [row for row in ROWS if row.name in results]
    loss, bleu = differences(results, lambda r: r["loss"]), differences(results, lambda r: r["bleu"])
    parts = [
        _asked(results["base"], scale),
        _table(rows, results, loss, bleu, scale),
        _noise(loss, bleu),
        _groups(rows, loss, bleu, scale),
        _agreement(rows, loss, bleu, scale),
        *PICTURES,
    ]
    return Findings("\n\n".join(parts), _charts(rows, results, loss, bleu, scale))


def _asked(base: Result, scale: str) -> str:
    width, depth = SHRINK[scale]
    c = shrunk(PAPER_BASE, scale)
    shape = (
        f"N = {c['model.encoder_layers']}, d_model = {c['model.d_model']}, d_ff = {c['model.d_ff']}, "
        f"h = {c['model.heads']}, dropout {c['model.dropout']}, label smoothing {c['train.smoothing']}"
    )
    measured = (
        "Perplexity is of a sub-word, over the validation sentences; *valid* is greedy BLEU of validation sentences, "
        "*BLEU* that of the test sentences by beam search."
    )
    asked = f"Which parts of the Transformer matter? Every row changes base ({shape}) in one thing"
    if scale == "full":
        return (
            f"{asked} and is trained as the paper's rows were (§6.2): WMT 2014 English to German, newstest2013, no "
            f"averaging. {measured}"
        )
    return (
        f"{asked}. It is the paper's table with widths divided by {width} and depths by {depth}; heads, dropout and "
        f"smoothing are the paper's. All else is the same for all rows: Multi30k English to German, "
        f"{base['vocabulary']:,} joint sub-words, {base['steps']} steps ({base['epochs']:.1f} epochs; the paper's base "
        f"made 100,000 steps, big 300,000), pre-norm, Muon, one learning rate, one seed, "
        f"{counted(base['threads'], 'thread')}. {measured}"
    )


def _table(rows: Sequence[Row], results: Results, loss: Differences, bleu: Differences, scale: str) -> str:
    paper = rows[0]
    head = ["row", "parameters, 10⁶", "PPL", "Δ ln PPL", "valid", "BLEU", "Δ BLEU"]
    head += [f"paper: {name}" for name in ("10⁶", "PPL", "Δ ln PPL", "BLEU", "Δ BLEU")]
    lines = []
    for row in rows:
        r = results[row.name]
        # The first row is the mean of its seeds, from which all differences are taken.
        ours = [
            f"{math.exp(mean(loss.base)) if row is paper else r['perplexity']:.2f}",
            _signed(loss.of(row), 3, loss.beyond(row)) if row is not paper else None,
            f"{r['validations'][-1][2]:.1f}",
            f"{mean(bleu.base) if row is paper else r['bleu']:.1f}",
            _signed(bleu.of(row), 1, bleu.beyond(row)) if row is not paper else None,
        ]
        theirs = [
            row.millions,
            f"{row.perplexity:.2f}",
            _signed(math.log(row.perplexity / paper.perplexity), 3) if row is not paper else None,
            f"{row.bleu:.1f}",
            _signed(row.bleu - paper.bleu, 1) if row is not paper else None,
        ]
        lines.append([_label(row, scale), f"{r['parameters'] / 1e6:.2f}", *ours, *theirs])
    return table(head, lines)


def _label(row: Row, scale: str) -> str:
    """(C) d_ff = 256 (1024): at our scale, and the paper's where it is another."""
    if not row.changes or row.group == "big":
        return row.label
    ours = next(iter(shrunk(row.changes, scale).values()))
    return f"({row.group}) {row.label.format(ours)}" + (f" ({row.value})" if ours != row.value else "")


def _signed(x: float, digits: int, strong: bool = False) -> str:
    return f"**{x:+.{digits}f}**" if strong else f"{x:+.{digits}f}"


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
    base, lines = rows[0], []
    for group, title in GROUPS.items():
        members = [row for row in rows if row.group == group]
        beyond = [row for row in members if loss.beyond(row)]
        same = [row for row in beyond if loss.of(row) * (row.perplexity - base.perplexity) > 0]
        best = [
            _label(min([base, *members], key=key), scale)
            for key in (loss.of, lambda row: row.perplexity, lambda row: -bleu.of(row), lambda row: -row.bleu)
        ]
        lines.append([title, len(members), len(beyond), len(same), *best])
    head = ["group", "rows", "beyond noise (PPL)", "of these, as in the paper"]
    return table([*head, "best PPL", "paper: best PPL", "best BLEU", "paper: best BLEU"], lines)


def _agreement(rows: Sequence[Row], loss: Differences, bleu: Differences, scale: str) -> str:
    """Whether the order of the rows is the paper's."""
    base, others = rows[0], rows[1:]
    said = []
    for name, ours, theirs in (
        ("perplexity", [loss.of(row) for row in others], [row.perplexity - base.perplexity for row in others]),
        ("BLEU", [bleu.of(row) for row in others], [row.bleu - base.bleu for row in others]),
    ):
        rho, chance = spearman(theirs, ours)
        if chance >= 0.05:
            verdict = "the two orders cannot be told from unrelated ones"
        else:
            verdict = (
                "the order of the paper holds in the main" if rho > 0 else "the order is the paper's turned around"
            )
        said.append(
            f"By {name}, {verdict}: Spearman's ρ = {rho:.2f} over {len(others)} rows; of random orders {chance:.1%} "
            "correlate as strongly."
        )
    by_loss, by_bleu = _label(min(rows, key=loss.of), scale), _label(max(rows, key=bleu.of), scale)
    return " ".join([*said, f"Best of all is {by_loss} by perplexity and {by_bleu} by BLEU (the paper: big)."])


def _charts(
    rows: Sequence[Row], results: Results, loss: Differences, bleu: Differences, scale: str
) -> dict[str, Chart]:
    base = rows[0]

    def pair(label: str, chosen: Sequence[tuple[Row, float, float]]) -> list[Series]:
        """Ours with its noise and the paper's, as BLEU less base's, over a place for each."""
        y, noise = [bleu.of(row) for row, _, _ in chosen], bleu.noise or 0.0
        low, high = [value - noise for value in y], [value + noise for value in y]
        ours = Series(f"ours{label}", [x for _, x, _ in chosen], y, low, high)
        return [
            ours,
            Series(f"the paper's{label}", [x for *_, x in chosen], [row.bleu - base.bleu for row, *_ in chosen]),
        ]

    def over(start: str, at_base: float) -> list[tuple[Row, float, float]]:
        """Rows whose label starts so, and base, by the paper's value."""
        values = [(float(row.value), row) for row in rows if row.label.startswith(start)] + [(at_base, base)]
        return [(row, value, value) for value, row in sorted(values, key=lambda pair: pair[0])]

    sizes = [
        (row, results[row.name]["parameters"] / results["base"]["parameters"], row.millions / 65)
        for row in rows
        if row.millions
    ]
    y = "BLEU less base's"
    charts = {
        "heads": Chart("Heads at constant cost", "heads h", y, pair("", over("h =", 8)), log_x=True),
        "d-k": Chart("The width of a key", "d_k at the paper's scale", y, pair("", over("d_k =", 64)), log_x=True),
        "size": Chart("Size", "parameters, base = 1", y, _scattered(pair("", sizes)), log_x=True),
        "regularisation": Chart(
            "Dropout and label smoothing",
            "rate",
            y,
            [*pair(", dropout", over("dropout =", 0.1)), *pair(", smoothing", over("smoothing =", 0.1))],
        ),
        "agreement": Chart(
            "Perplexity beside the paper's",
            "the paper's ln PPL less base's",
            "ours",
            [
                Series(
                    title,
                    [math.log(row.perplexity / base.perplexity) for row in rows if row.group == group],
                    [loss.of(row) for row in rows if row.group == group],
                    style="points",
                )
                for group, title in GROUPS.items()
            ],
        ),
    }
    return {f"table3-{name}": chart for name, chart in charts.items()}


def _scattered(series: Sequence[Series]) -> list[Series]:
    """Points of no order: models of one size may differ in much."""
    return [replace(each, low=None, high=None, style="points") for each in series]


EXPERIMENT = Experiment("table3", "Table 3: what matters in the Transformer", trials, report)
