"""Table 2 (§6.1): how good a translator becomes, and what its training costs, beside the models that came before.

All models of one language learn from the same sentences in the same batches for the same number of steps. Costs are
FLOPs of the models' own arithmetic (`regard.models.costs`); those of the paper are what its machines could have
done in the time, two to four times as much for the Transformer (docs/accounting.md).
"""

from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import NamedTuple

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, counted, page, table
from regard.experiments.runs import SMOKE, changed, recipe_trained


class Published(NamedTuple):
    """A row of the paper's Table 2: BLEU on newstest2014 and training FLOPs, for each language."""

    bleu: Mapping[str, float]
    flops: Mapping[str, float]


PAPER = {
    "ByteNet": Published({"de": 23.75}, {}),
    "Deep-Att + PosUnk": Published({"fr": 39.2}, {"fr": 1.0e20}),
    "GNMT + RL": Published({"de": 24.6, "fr": 39.92}, {"de": 2.3e19, "fr": 1.4e20}),
    "ConvS2S": Published({"de": 25.16, "fr": 40.46}, {"de": 9.6e18, "fr": 1.5e20}),
    "MoE": Published({"de": 26.03, "fr": 40.56}, {"de": 2.0e19, "fr": 1.2e20}),
    "Deep-Att + PosUnk, ensemble": Published({"fr": 40.4}, {"fr": 8.0e20}),
    "GNMT + RL, ensemble": Published({"de": 26.30, "fr": 41.16}, {"de": 1.8e20, "fr": 1.1e21}),
    "ConvS2S, ensemble": Published({"de": 26.36, "fr": 41.29}, {"de": 7.7e19, "fr": 1.2e21}),
    "Transformer (base model)": Published({"de": 27.3, "fr": 38.1}, {"de": 3.3e18, "fr": 3.3e18}),
    "Transformer (big)": Published({"de": 28.4, "fr": 41.8}, {"de": 2.3e19, "fr": 2.3e19}),
}


class Rival(NamedTuple):
    """A translator of ours, and the paper's that is most like it."""

    label: str
    small: str  # changes of the recipe at our scale
    full: str  # and at the paper's: the size that was published
    paper: str | None = None


LONG = "train.steps=300000 train.snapshot_every=600 train.average=20"  # §5.2, §6.1
CLIPPED = "train.clip=1.0"  # recurrence makes gradients explode (Pascanu et al., 2013)
MODELS = {
    "transformer": Rival(
        "Transformer", "model.preset=tiny model.norm=pre", "model.preset=base", "Transformer (base model)"
    ),
    "transformer-wide": Rival(
        "Transformer, twice as wide",
        "model.preset=tiny model.norm=pre model.d_model=256 model.d_ff=512 model.heads=8",
        f"model.preset=big {LONG}",
        "Transformer (big)",
    ),
    "lstm": Rival(
        "LSTM, Luong's attention",
        "model.preset=lstm",
        f"model.preset=lstm model.encoder_layers=8 model.decoder_layers=8 model.d_model=1024 {CLIPPED}",
        "GNMT + RL",
    ),
    "gru": Rival("GRU, Bahdanau's attention", "model.preset=gru", f"model.preset=gru model.d_model=1000 {CLIPPED}"),
    "linear-rnn": Rival(
        "linear RNN",
        "model.preset=linear-rnn",
        "model.preset=linear-rnn model.encoder_layers=6 model.decoder_layers=6 model.d_model=512 model.heads=8",
    ),
    "convs2s": Rival(
        "ConvS2S",
        "model.preset=convs2s",
        f"model.preset=convs2s model.encoder_layers=15 model.decoder_layers=15 model.d_model=512 {CLIPPED}",
        "ConvS2S",
    ),
    "bytenet": Rival(
        "ByteNet",
        "model.preset=bytenet",
        f"model.preset=bytenet model.encoder_layers=30 model.decoder_layers=30 model.d_model=1600 {CLIPPED}",
        "ByteNet",
    ),
}
LANGUAGES = {"de": "German", "fr": "French"}
FRENCH = ("transformer", "transformer-wide", "lstm", "convs2s")
ADAM = ("transformer", "lstm", "convs2s")  # trained once more with it, at our scale
PEAK = {"muon": 0.008, "adam": 0.003}  # of the learning rate
STEPS = {"smoke": 12, "small": 400}
SMALL = (
    f"tokens.size=4000 model.dropout=0.1 train.batch_tokens=1024 train.schedule.peak={PEAK['muon']} "
    f"train.schedule.warmup=50 train.average=0 train.snapshot_every=null train.validate_every={STEPS['small'] // 8} "
    "train.validate_sentences=200 decode.beam=4"
)
LEAST = 1.0  # BLEU of the best: with less, nobody has learnt to translate


def trials(scale: str) -> list[Trial]:
    """A training for each model and language."""
    if scale == "smoke":
        names = ["de-transformer", "de-transformer-adam", "de-lstm", "de-convs2s", "fr-transformer"]
    else:
        names = [f"de-{model}" for model in MODELS] + [f"fr-{model}" for model in FRENCH]
        names += [f"de-{model}-adam" for model in ADAM] if scale == "small" else []
    return [Trial(name, recipe_trained, _settings(name, scale)) for name in names]


def _settings(name: str, scale: str) -> dict[str, str | list[str]]:
    """The recipe of a trial, and its changes."""
    language, model, adam = split(name)
    if scale == "full":  # French has the recipe of the big model: here base, unless the model is big
        base = "" if language == "de" else "train.steps=100000 train.snapshot_every=1400 train.average=5"
        recipe = "wmt14-en-de-base" if language == "de" else "wmt14-en-fr-big"
        return changed(recipe, "train.validate_sentences=3000", base, MODELS[model].full)
    changes = [f"data.corpus=multi30k-en-{language}", MODELS[model].small, SMALL]
    if adam:
        changes.append(f"train.optimiser.name=adam train.schedule.peak={PEAK['adam']}")
    if scale == "smoke":
        changes += [SMOKE, f"train.validate_every={STEPS['smoke'] // 2}"]
        changes.append("model.encoder_layers=1 model.decoder_layers=1 model.d_model=16")
        changes.append("model.d_ff=32 model.heads=2" if model == "transformer" else "")
    return changed("multi30k-en-de-raw", *changes, f"train.steps={STEPS[scale]}")


def split(name: str) -> tuple[str, str, bool]:
    """Language, model and whether with Adam, of a trial.

    >>> split("de-linear-rnn"), split("fr-lstm-adam")
    (('de', 'linear-rnn', False), ('fr', 'lstm', True))
    """
    language, _, rest = name.partition("-")
    return language, rest.removesuffix("-adam"), rest.endswith("-adam")


def report(results: Results, scale: str) -> Findings:
    """The models of each language beside the paper's, and the curves on the way."""
    one, charts = next(iter(results.values())), {}
    lead = "table2-full" if scale == "full" else "table2-small"
    parts = [page(lead, one=one, threads=counted(one["threads"], "thread"), **PEAK)]
    for language, name in LANGUAGES.items():
        ours = {key: result for key, result in results.items() if split(key)[0] == language}
        mark = level(ours)
        parts += [f"## English to {name}", _table(ours, language, mark), _found(ours, language, mark)]
        for axis, unit in (("flops", "training FLOPs"), ("seconds", "seconds of training")):
            chart = f"table2-en-{language}-{axis}"
            charts[chart] = _curves(ours, f"English to {name}", axis, unit)
            parts.append(f"![Validation BLEU over {unit}, English to {name}]({chart}.svg)")
    charts["table2-paper"] = _published()
    parts += ["## The paper's table", _paper(), "![BLEU over training FLOPs in the paper](table2-paper.svg)"]
    return Findings("\n\n".join(parts), charts)


def level(results: Results) -> float:
    """The BLEU by which models are compared on their way: half of the best on any way."""
    return max(bleu for result in results.values() for _, _, bleu in result["validations"]) / 2


def cost_of(result: Result, bleu: float) -> float | None:
    """FLOPs after which a training first had so much validation BLEU, between its validations by a straight line.

    >>> cost_of({"steps": 10, "flops": 1000.0, "validations": [[2, 5.0, 4.0], [6, 4.0, 8.0], [10, 3.0, 9.0]]}, 6.0)
    400.0
    """
    way = [(0, 0.0), *((step, value) for step, _, value in result["validations"])]
    for (before, low), (after, high) in pairwise(way):
        if high >= bleu:
            share = (bleu - low) / (high - low) if high > low else 0.0
            return float((before + (after - before) * share) * result["flops"] / result["steps"])
    return None


def agreement(results: Results, language: str) -> tuple[int, int]:
    """Of the pairs of models that the paper has too, in how many the better one is the same; and how many there are."""
    both = [
        (result["bleu"], PAPER[paper].bleu[language])
        for key, result in results.items()
        if (paper := MODELS[split(key)[1]].paper) and not split(key)[2] and language in PAPER[paper].bleu
    ]
    pairs = list(combinations(both, 2))
    return sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs), len(pairs)


def _table(results: Results, language: str, mark: float) -> str:
    head = ["model", "parameters, 10⁶", "FLOPs", "seconds", "PPL", "BLEU", "chrF", f"FLOPs to {mark:.1f} BLEU"]
    lines: list[list[object]] = []
    for key, r in results.items():
        paper = MODELS[split(key)[1]].paper
        cost, theirs = cost_of(r, mark), PAPER[paper] if paper else Published({}, {})
        ours = [_label(key), f"{r['parameters'] / 1e6:.2f}", _short(r["flops"]), r["seconds"] and round(r["seconds"])]
        scores = [f"{r[measure]:.1f}" for measure in ("perplexity", "bleu", "chrf2")]
        published = [paper, theirs.bleu.get(language), _short(theirs.flops.get(language))]
        lines.append([*ours, *scores, _short(cost), *published])
    return table([*head, "in the paper", "paper: BLEU", "paper: FLOPs"], lines)


def _found(results: Results, language: str, mark: float) -> str:
    """What the figures say, in words."""
    best = max(results, key=lambda key: results[key]["bleu"])
    said = [f"The best BLEU is that of {_label(best)}: {results[best]['bleu']:.1f}."]
    if results[best]["bleu"] < LEAST:
        return f"{said[0]} Nobody has learnt to translate, so nothing follows."
    costs = {key: cost for key, result in results.items() if (cost := cost_of(result, mark)) is not None}
    cheapest = min(costs, key=lambda key: costs[key])
    said.append(f"{_label(cheapest)} reached {mark:.1f} BLEU of validation sentences with the fewest FLOPs.")
    others = [key for key in results if not split(key)[1].startswith("transformer")]
    plain = [key for key in results if split(key)[1] == "transformer"]  # with either optimiser, as the others
    if plain and others:
        first, rival = (max(keys, key=lambda key: results[key]["bleu"]) for keys in (plain, others))
        mine, theirs = results[first], results[rival]
        timed = mine["seconds"] and theirs["seconds"]
        said.append(
            f"The {_label(first)} has {mine['bleu'] - theirs['bleu']:+.1f} BLEU against the best of the others, "
            f"{_label(rival)}, with {mine['flops'] / theirs['flops']:.2f} times its FLOPs"
            + (f" and {mine['seconds'] / theirs['seconds']:.2f} times its time." if timed else ".")
        )
    same, pairs = agreement(results, language)
    if pairs:
        said.append(f"Of {pairs} pairs of models that the paper has too, {same} come in the paper's order.")
    return " ".join([*said, "One seed each: the experiment `table3` tells how far BLEU strays from seed to seed."])


def _label(key: str) -> str:
    _, model, adam = split(key)
    return MODELS[model].label + (", Adam" if adam else "")


def _short(flops: float | None) -> str | None:
    return f"{flops:.1e}" if flops else None


def _curves(results: Results, title: str, axis: str, unit: str) -> Chart:
    """Validation BLEU on the way, of each model with its own optimiser."""
    shown = {key: r for key, r in results.items() if not split(key)[2] and r[axis] is not None}
    series = [
        Series(
            _label(key),
            [step * r[axis] / r["steps"] for step, *_ in r["validations"]],
            [bleu for *_, bleu in r["validations"]],
        )
        for key, r in shown.items()
    ]
    return Chart(f"{title}: quality against cost", unit, "validation BLEU, greedy", series, log_x=True)


def _published() -> Chart:
    series = []
    for language, name in LANGUAGES.items():
        rows = [row for row in PAPER.values() if language in row.flops]
        x, y = [row.flops[language] for row in rows], [row.bleu[language] for row in rows]
        series.append(Series(f"English to {name}", x, y, style="points"))
    return Chart("The paper's Table 2", "training FLOPs", "BLEU, newstest2014", series, log_x=True)


def _paper() -> str:
    rows = [
        [name, *(row.bleu.get(key) for key in LANGUAGES), *(_short(row.flops.get(key)) for key in LANGUAGES)]
        for name, row in PAPER.items()
    ]
    return table(["model", "BLEU en-de", "BLEU en-fr", "FLOPs en-de", "FLOPs en-fr"], rows)


EXPERIMENT = Experiment("table2", "Table 2: quality against training cost", trials, report)
