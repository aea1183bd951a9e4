"""Longer than anything in training: which kind of positions carries on, up to four times the length.

Everything is said of what a model was not taught: lengths beyond its limit L. The trials are in `lengths`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean
from typing import Any, NamedTuple

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, counted, page, table
from regard.experiments.lengths import KINDS, RIVALS, algorithm, commands, translation
from regard.experiments.table3 import midranks

MARGIN = 1.0  # points, of percent or BLEU: less is no difference
LONGEST = 48  # actions in SCAN
Scores = Mapping[str, float | None]  # by contestant; None for who cannot
HALF = 0.5  # of the answers right: as far as that, a model reaches


@dataclass(frozen=True)
class Lesson:
    """What is learnt, and what of it is ranked."""

    name: str  # with which the names of its trials begin
    title: str
    unit: str  # of a length
    score: str  # under which results have what is ranked, more being better
    scored: str  # that, in words
    points: float = 100.0  # what a score of 1 is in points


WHOLE, LABELS = "right from end to end (%)", "labels foretold right (%)"
LETTERS = [Lesson(name, name.capitalize(), "letters", "tokens", LABELS) for name in ("copy", "reverse", "sort")]
WORDS = Lesson("words", "Translation", "sub-words of the longer side", "bleu", "BLEU", points=1.0)
ACTIONS = Lesson("length", "SCAN, split by length", "actions", "exact", WHOLE)
SIMPLE = Lesson("simple", "SCAN, split at random", "actions", "exact", WHOLE)
RANKED = (*LETTERS, WORDS, ACTIONS)

SMOKE = {"size": {"d_model": 16, "layers": 1, "heads": 2, "dropout": 0.0}, "steps": 2, "batch": 8}
SMALL = {"size": {"d_model": 64, "layers": 2, "heads": 4, "dropout": 0.0}, "batch": 64}
BASE = {"d_model": 512, "layers": 6, "heads": 8, "dropout": 0.1}  # the paper's
FULL = {"size": BASE, "steps": 50_000, "batch": 256, "peak": 5e-4}
LONG = {"size": BASE, "steps": 100_000, "batch": 1024, "peak": 7e-4}  # 25,000 tokens; d_model^-0.5 · 4000^-0.5
TEXT = {"recipe": "multi30k-en-de-raw"}
SCALES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {
        "letters": {**SMOKE, "limit": 4, "tested": 4},
        "scan": {**SMOKE, "tested": 40},
        "words": {**SMOKE, **TEXT, "changes": ["data.limit=2000", "tokens.size=300"], "limit": 24, "tested": 4},
    },
    "small": {
        "letters": {**SMALL, "limit": 16, "tested": 100, "steps": 500},
        "scan": {**SMALL, "tested": None, "steps": 700},
        "words": {
            **TEXT,
            "changes": ["tokens.size=4000"],
            "size": {"d_model": 64, "layers": 2, "heads": 4, "dropout": 0.1},
            "limit": 14,
            "tested": 200,
            "steps": 600,
            "batch": 64,
        },
    },
    "full": {
        "letters": {**FULL, "size": {**BASE, "dropout": 0.0}, "limit": 64, "tested": 1000},  # data never repeats
        "scan": {**FULL, "tested": None},
        "words": {**LONG, "recipe": "wmt14-en-de-base", "changes": [], "limit": 32, "tested": 2000},
    },
}
SEEDS = {"smoke": 1, "small": 1, "full": 5}
CHOSEN = {"smoke": ("sinusoidal", "learned", "alibi", "lstm")}  # of all contestants


class Claim(NamedTuple):
    """What has been said of two kinds: the first carries on better than the second."""

    better: str
    worse: str
    source: str


CLAIMS = (
    Claim("sinusoidal", "learned", "Vaswani et al., 2017, as a hope (§3.5)"),
    Claim("shaw", "sinusoidal", "Shaw et al., 2018, as a hope: distances are clipped"),
    Claim("rope", "sinusoidal", "Press et al., 2022, language models"),
    Claim("t5", "rope", "Press et al., 2022, language models"),
    Claim("alibi", "sinusoidal", "Press et al., 2022, language models"),
    Claim("alibi", "t5", "Press et al., 2022, language models"),
    Claim("none", "alibi", "Kazemnejad et al., 2023, decoders alone"),
    Claim("none", "rope", "Kazemnejad et al., 2023, decoders alone"),
)
# Percent right from end to end, simple and length (Lake and Baroni, 2018).
PUBLISHED: Mapping[str, tuple[float | None, float]] = {
    "Lake and Baroni (2018): LSTM, best over all splits": (99.7, 13.8),
    "Lake and Baroni (2018): GRU with attention, best by length": (None, 20.8),
}


def trials(scale: str) -> list[Trial]:
    """Every task with every kind of positions; the rivals have none, and do not translate here."""
    found, settings = [], SCALES[scale]
    tasks = LETTERS[:1] if scale == "smoke" else LETTERS
    for seed, name in product(range(SEEDS[scale]), CHOSEN.get(scale, (*KINDS, *RIVALS))):
        own = {"name": name, "seed": seed}
        for task in (task.name for task in tasks):
            found.append(Trial(f"{task}-{name}-{seed}", algorithm, {**settings["letters"], **own, "task": task}))
        for split in (ACTIONS.name, SIMPLE.name):
            found.append(Trial(f"{split}-{name}-{seed}", commands, {**settings["scan"], **own, "split": split}))
        if name in KINDS:
            found.append(Trial(f"{WORDS.name}-{name}-{seed}", translation, {**settings["words"], **own}))
    return found


def merged(results: Results, task: Lesson) -> dict[str, Result]:
    """The results of a task by contestant, each number the mean over seeds; None where a model cannot."""
    found: dict[str, Result] = {}
    for name in (*KINDS, *RIVALS):
        each = [result for key, result in results.items() if key.rpartition("-")[0] == f"{task.name}-{name}"]
        if each:
            found[name] = {key: _mean([result[key] for result in each]) for key in each[0]}
    return found


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return [_mean(column) for column in zip(*values, strict=True)]
    return None if None in values else fmean(values)


def between(result: Result, key: str, low: float, high: float) -> float | None:
    """The mean over tested sequences of a length in (low, high]; None if there are none or the model cannot.

    >>> found = {"lengths": [4, 8, 16], "counts": [10, 10, 30], "exact": [1.0, 0.5, 0.25]}
    >>> between(found, "exact", 4, 16)
    0.3125
    """
    inside = [i for i, length in enumerate(result["lengths"]) if low < length <= high and result["counts"][i]]
    weights, values = ([result[k][i] for i in inside] for k in ("counts", key))
    if not inside or None in values:
        return None
    return float(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))


def beyond(result: Result, task: Lesson) -> float | None:
    """What is ranked: the score in points over all lengths beyond the limit."""
    mean = between(result, task.score, result["limit"], float("inf"))
    return None if mean is None else task.points * mean


def learnt(found: Mapping[str, Result], task: Lesson) -> set[str]:
    """Who can do a task up to the limit: half of the answers right, or half of the best BLEU.

    SCAN's test by length has nothing up to the limit: there it is the split at random that tells.
    """
    key = "bleu" if task is WORDS else "exact"
    inside = {name: between(result, key, 0, result["limit"]) or 0.0 for name, result in found.items()}
    least = max(MARGIN, max(inside.values()) / 2) if task is WORDS else HALF
    return {name for name, score in inside.items() if score >= least}


def reach(result: Result) -> int | None:
    """The longest length up to which half of the answers are right; None if not even the shortest's."""
    far = None
    for length, share in zip(result["lengths"], result["exact"], strict=True):
        if share is None or share < HALF:
            break
        far = round(length)
    return far


def ranks(scores: Scores) -> dict[str, float]:
    """From 1, the best; equals share the mean of their ranks, and who cannot at all comes after all who can.

    >>> ranks({"a": 3.0, "b": 9.0, "c": None, "d": 3.0})
    {'a': 2.5, 'b': 1.0, 'c': 4.0, 'd': 2.5}
    """
    places = midranks([float("inf") if score is None else -score for score in scores.values()])
    return dict(zip(scores, places.tolist(), strict=True))


def verdict(claim: Claim, scores: Scores) -> str:
    """Whether scores go as claimed: yes, no, level, or that there is nothing to compare.

    >>> claim = Claim("alibi", "rope", "somebody")
    >>> [verdict(claim, {"alibi": 20.0, "rope": other}) for other in (10.0, 20.4, 30.0, None)]
    ['yes', 'level', 'no', 'yes']
    """
    if not {claim.better, claim.worse} <= scores.keys() or scores[claim.better] is scores[claim.worse] is None:
        return "–"
    better, worse = scores[claim.better], scores[claim.worse]
    if better is None or worse is None:
        return "yes" if worse is None else "no"
    return "level" if abs(better - worse) < MARGIN else "yes" if better > worse else "no"


def report(results: Results, scale: str) -> Findings:
    """Each task by length, the ranking over all of them, and what was claimed beside it."""
    charts: dict[str, Chart] = {}
    lessons: list[str] = []
    scores: dict[str, Scores] = {}
    able: dict[str, set[str]] = {}
    simple = merged(results, SIMPLE)
    for task in RANKED:
        found = merged(results, task)
        if not found:  # which this scale leaves out
            continue
        scores[task.title] = {name: beyond(result, task) for name, result in found.items()}
        able[task.title] = learnt(simple if task is ACTIONS else found, task)
        shown = _words(found) if task is WORDS else _scan(found, simple) if task is ACTIONS else _letters(found)
        lessons += [f"## {task.title}", shown, _best(scores[task.title], task)]
        keys = {"bleu": "BLEU", "perplexity": "perplexity"} if task is WORDS else {"exact": WHOLE, "tokens": LABELS}
        for key, label in keys.items():
            name = f"extrapolation-{task.name}-{key}"
            charts[name] = _chart(found, task, key, label)
            lessons.append(f"![{task.title}: {label} over length]({name}.svg)")
    compared = [{name: each[name] for name in each if name in able[title]} for title, each in scores.items()]
    verdicts = {claim: [verdict(claim, each) for each in compared] for claim in CLAIMS}
    claims = [[f"{claim.better} beyond {claim.worse}", claim.source, *said] for claim, said in verdicts.items()]
    every = [word for said in verdicts.values() for word in said if word != "–"]
    ranking, ranked = _ranking(scores, able)
    one = next(result for key, result in results.items() if key.startswith(WORDS.name))
    text = page(
        "extrapolation",
        **SCALES[scale],
        size=SCALES[scale]["letters"]["size"],
        one=one,
        where="" if scale == "full" else f", on {counted(one['threads'], 'thread')}",  # full: on a GPU
        seeds=f"{SEEDS[scale]} seed{'s, shown as means' if SEEDS[scale] > 1 else ''}",
        corpus="WMT 2014" if scale == "full" else "Multi30k",
        small="" if scale == "full" else f" {page('extrapolation-small')}",
        lessons="\n\n".join(lessons),
        scored="; ".join(f"{task.title}: {task.scored}" for task in RANKED if task.title in scores),
        ranking=ranking,
        ranked=ranked,
        margin=MARGIN,
        claims=table(["claim", "by", *scores], claims),
        compared=len(every),
        **{word: every.count(word) for word in ("yes", "no", "level")},
        by_length=_by_length(scores[ACTIONS.title]),
    )
    return Findings(text, charts)


def _number(value: float | None, times: float = 1.0) -> str:
    if value is None:
        return "n/a"
    return f"{times * value:.1f}" if times * value < 1e4 else f"{times * value:.0e}"


def _percent(result: Result, key: str, low: float, high: float) -> str:
    return _number(between(result, key, low, high), 100.0)


def _letters(found: Mapping[str, Result]) -> str:
    L = round(next(iter(found.values()))["limit"])
    spans = {f"≤ {L}": (0, L), f"{L + 1}–{2 * L}": (L, 2 * L), f"{2 * L + 1}–{4 * L}": (2 * L, 4 * L)}
    rows = [
        [
            name,
            f"{round(result['parameters']):,}",
            *(_percent(result, key, *span) for key in ("exact", "tokens") for span in spans.values()),
            reach(result),
        ]
        for name, result in found.items()
    ]
    head = [f"{what}, {span} (%)" for what in ("whole", "labels") for span in spans]
    return table(["positions", "parameters", *head, "half are whole up to"], rows) + f"\n\nLearnt, {_learnt(found, L)}"


def _words(found: Mapping[str, Result]) -> str:
    first = next(iter(found.values()))
    edges = [0, *map(round, first["lengths"])]
    spans = [f"{low + 1}–{high}" for low, high in pairwise(edges)]
    rows = [
        [name, *(_number(result[key][i]) for key in ("bleu", "perplexity") for i in range(len(spans)))]
        for name, result in found.items()
    ]
    rows.append(["sentences", *map(round, first["counts"]), *[""] * len(spans)])
    said = [[name, *("n/a" if r is None else f"{r:.2f}" for r in result["ratio"])] for name, result in found.items()]
    return (
        table(["positions", *(f"BLEU, {span}" for span in spans), *(f"perplexity, {span}" for span in spans)], rows)
        + "\n\nHow long the translations are, over how long the references are:\n\n"
        + table(["positions", *spans], said)
    )


def _scan(found: Mapping[str, Result], simple: Mapping[str, Result]) -> str:
    rows: list[list[object]] = []
    for name, result in found.items():
        exact = [_percent(each, "exact", 0, LONGEST) for each in (simple[name], result)]
        rows.append([name, *exact, _percent(result, "tokens", 0, LONGEST)])
    rows += [[name, *both, None] for name, both in PUBLISHED.items()]
    head = ["positions", "simple: whole (%)", "length: whole (%)", "length: labels (%)"]
    return f"{table(head, rows)}\n\nLearnt where SCAN is split at random, {_learnt(simple, LONGEST)}"


def _best(scores: Scores, task: Lesson) -> str:
    """Who is best beyond the limit, in words."""
    known = {name: score for name, score in scores.items() if score is not None}
    if not known:
        return "There is nothing beyond the limit to compare."
    best, least = max(known.values()), min(known.values())
    names = [name for name, score in known.items() if best - score < MARGIN]
    text = f"Beyond the limit, by {task.scored}: "
    if len(names) == len(known):
        text += f"no difference, from {least:.1f} to {best:.1f}."
    else:
        text += f"best {', '.join(names)} ({best:.1f}), worst {min(known, key=lambda n: known[n])} ({least:.1f})."
    cannot = [name for name in scores if name not in known]
    return text + (f" Not at all: {', '.join(cannot)}." if cannot else "")


def _learnt(found: Mapping[str, Result], limit: float) -> str:
    """Who can do a task at all."""
    able = learnt(found, SIMPLE)
    some = [name for name in found if name in able]
    return f"at least half of the answers up to {limit:g} whole: {', '.join(some) or 'nobody'}."


def _ranking(scores: Mapping[str, Scores], able: Mapping[str, set[str]]) -> tuple[str, str]:
    """Kinds of positions by their mean rank; the rivals, who did not do everything, below. And that in words."""
    kinds = [kind for kind in KINDS if all(kind in found for found in scores.values())]
    by_task = [ranks({kind: found[kind] for kind in kinds}) for found in scores.values()]
    mean = {kind: fmean(found[kind] for found in by_task) for kind in kinds}
    order = sorted(kinds, key=lambda kind: mean[kind])
    rivals = [rival for rival in RIVALS if any(rival in found for found in scores.values())]
    rows = [
        [name, f"{mean[name]:.2f}" if name in mean else None]
        + [_number(found[name]) if name in found else None for found in scores.values()]
        for name in (*order, *rivals)
    ]
    words = f"Best on the mean is {order[0]} ({mean[order[0]]:.2f}), last {order[-1]} ({mean[order[-1]]:.2f})."
    for rival in rivals:
        won = [title for title, found in scores.items() if _beats(rival, found, kinds)]
        words += f" {rival}, without positions, is ahead of all of them at: {', '.join(won) or 'nothing'}."
    unable = {title: [kind for kind in kinds if kind not in able[title]] for title in scores}
    if any(unable.values()):
        listed = "; ".join(f"{title}: {', '.join(names)}" for title, names in unable.items() if names)
        words += f" Not learnt within L, so that a rank says little: {listed}."
    return table(["positions", "mean rank", *scores], rows), words


def _beats(rival: str, scores: Scores, kinds: Sequence[str]) -> bool:
    own = scores.get(rival)
    return own is not None and all(own >= (scores[kind] or 0.0) + MARGIN for kind in kinds)


def _by_length(scores: Scores) -> str:
    """SCAN's length split beside what was published."""
    known = {name: score for name, score in scores.items() if score is not None}
    low, high = min(own for _, own in PUBLISHED.values()), max(own for _, own in PUBLISHED.values())
    within = [name for name, score in known.items() if low <= score <= high]
    above = [name for name, score in known.items() if score > high]
    return (
        f"{low} to {high} % as published for recurrent models: ours are {min(known.values()):.1f} to "
        f"{max(known.values()):.1f} %; within that range: {', '.join(within) or 'none'}; above it: "
        f"{', '.join(above) or 'none'}."
    )


def _chart(found: Mapping[str, Result], task: Lesson, key: str, label: str) -> Chart:
    times = 100.0 if "%" in label else 1.0
    series = []
    for name, result in found.items():
        seen = {x: times * y for x, y in zip(result["lengths"], result[key], strict=True) if y is not None}
        if seen:
            series.append(Series(name, [*seen], [*seen.values()]))
    limit = next(iter(found.values()))["limit"]
    lines = {f"L = {limit:g}": limit}
    return Chart(task.title, f"length, {task.unit}", label, series, log_y=key == "perplexity", lines=lines)


TITLE, SCAN = "Extrapolation: longer than anything in training", ("scan-in-out-length", "scan-in-out-simple")
EXPERIMENT = Experiment("extrapolation", TITLE, trials, report, SCAN)
