"""Longer than anything in training: which kind of positions carries on, up to four times the length.

Everything is said of what a model was not taught: lengths beyond its limit L. The trials are in `lengths`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from regard.experiments.charts import Chart, Series
from regard.experiments.lab import Experiment, Findings, Result, Results, Trial, table
from regard.experiments.lengths import KINDS, RIVALS, algorithm, commands, translation

MARGIN = 1.0  # points, of percent or BLEU: less is no difference
LONGEST = 48  # actions in SCAN
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


LETTERS = [Lesson(name, name.capitalize(), "letters", "tokens", "labels foretold right (%)") for name in
           ("copy", "reverse", "sort")]  # fmt: skip
WORDS = Lesson("words", "Translation", "sub-words of the longer side", "bleu", "BLEU", points=1.0)
ACTIONS = Lesson("length", "SCAN, split by length", "actions", "exact", "right from end to end (%)")
SIMPLE = Lesson("simple", "SCAN, split at random", "actions", "exact", "right from end to end (%)")
RANKED = (*LETTERS, WORDS, ACTIONS)

SMOKE = {"d_model": 16, "layers": 1, "heads": 2, "dropout": 0.0}
SMALL = {"d_model": 64, "layers": 2, "heads": 4, "dropout": 0.0}
FULL = {"d_model": 512, "layers": 6, "heads": 8, "dropout": 0.1}  # the paper's base model
EXACT = {**FULL, "dropout": 0.0}  # where data never repeats
Settings = Mapping[str, Any]
SCALES: Mapping[str, Mapping[str, Settings]] = {
    "smoke": {
        "letters": {"size": SMOKE, "limit": 4, "tested": 4, "steps": 2, "batch": 8},
        "scan": {"size": SMOKE, "tested": 40, "steps": 2, "batch": 8},
        "words": {
            "size": SMOKE,
            "recipe": "multi30k-en-de-raw",
            "changes": ["data.limit=2000", "tokens.size=300"],
            "limit": 24,
            "tested": 4,
            "steps": 2,
            "batch": 8,
        },
    },
    "small": {
        "letters": {"size": SMALL, "limit": 16, "tested": 100, "steps": 500, "batch": 64},
        "scan": {"size": SMALL, "tested": None, "steps": 700, "batch": 64},
        "words": {
            "size": {**SMALL, "dropout": 0.1},
            "recipe": "multi30k-en-de-raw",
            "changes": ["tokens.size=4000"],
            "limit": 14,
            "tested": 200,
            "steps": 600,
            "batch": 64,
        },
    },
    "full": {
        "letters": {"size": EXACT, "limit": 64, "tested": 1000, "steps": 50_000, "batch": 256, "peak": 5e-4},
        "scan": {"size": FULL, "tested": None, "steps": 50_000, "batch": 256, "peak": 5e-4},
        "words": {
            "size": FULL,
            "recipe": "wmt14-en-de-base",
            "changes": [],
            "limit": 32,
            "tested": 2000,
            "steps": 100_000,
            "batch": 1024,  # sentences: 25,000 tokens at a mean of 24
            "peak": 7e-4,  # d_model^-0.5 · 4000^-0.5
        },
    },
}  # fmt: skip
SEEDS = {"smoke": 1, "small": 1, "full": 5}
NAMES = {"smoke": ("sinusoidal", "learned", "alibi", "lstm"), "small": (*KINDS, *RIVALS), "full": (*KINDS, *RIVALS)}
TASKS = {"smoke": ("copy",), "small": ("copy", "reverse", "sort"), "full": ("copy", "reverse", "sort")}


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
    found = []
    settings = SCALES[scale]
    for seed in range(SEEDS[scale]):
        for name in NAMES[scale]:
            own = {"name": name, "seed": seed}
            for task in TASKS[scale]:
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


def ranks(scores: Mapping[str, float | None]) -> dict[str, float]:
    """From 1, the best; equals share the mean of their ranks, and who cannot at all comes after all who can.

    >>> ranks({"a": 3.0, "b": 9.0, "c": None, "d": 3.0})
    {'a': 2.5, 'b': 1.0, 'c': 4.0, 'd': 2.5}
    """
    value = {name: float("-inf") if score is None else score for name, score in scores.items()}
    return {
        name: 1 + sum(other > own for other in value.values()) + (sum(other == own for other in value.values()) - 1) / 2
        for name, own in value.items()
    }


def verdict(claim: Claim, scores: Mapping[str, float | None]) -> str:
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
    parts = [_asked(results, scale)]
    scores: dict[str, dict[str, float | None]] = {}
    able: dict[str, set[str]] = {}
    simple = merged(results, SIMPLE)
    for task in RANKED:
        found = merged(results, task)
        if not found:  # which this scale leaves out
            continue
        scores[task.title] = {name: beyond(result, task) for name, result in found.items()}
        able[task.title] = learnt(simple if task is ACTIONS else found, task)
        keys = {"exact": "right from end to end (%)", "tokens": "labels foretold right (%)"}
        if task is WORDS:
            keys, shown = {"bleu": "BLEU", "perplexity": "perplexity"}, _words(found)
        else:
            shown = _scan(found, simple) if task is ACTIONS else _letters(found)
        parts += [f"## {task.title}", shown, _best(scores[task.title], task)]
        for key, label in keys.items():
            name = f"extrapolation-{task.name}-{key}"
            charts[name] = _chart(found, task, key, label)
            parts.append(f"![{task.title}: {label} over length]({name}.svg)")
    parts += ["## Ranking", _ranking(scores, able), "## What has been claimed", _claimed(scores, able)]
    return Findings("\n\n".join(parts), charts)


def _asked(results: Results, scale: str) -> str:
    letters, scan, words = (SCALES[scale][key] for key in ("letters", "scan", "words"))
    one = next(result for key, result in results.items() if key.startswith(WORDS.name))
    size, seeds, threads = letters["size"], SEEDS[scale], round(one["threads"])
    where = "" if scale == "full" else f", on {threads} thread{'s' if threads > 1 else ''}"  # full: on a GPU
    corpus = "Multi30k" if scale != "full" else "WMT 2014"
    text = (
        "Trained on sequences of up to L tokens, what does a model do with longer ones, up to four times L? Every "
        f"kind of positions stands in the same Transformer, pre-norm, {size['layers']}+{size['layers']} layers of "
        f"width {size['d_model']}, {size['heads']} heads; beside it stand recurrent models of as many "
        "layers and the same width, which need no positions. All learn with Adam, in batches of "
        f"{letters['batch']} (letters), {scan['batch']} (SCAN) and {words['batch']} pairs (translation), for "
        f"{letters['steps']:,}, {scan['steps']:,} and {words['steps']:,} steps{where}, "
        f"with {seeds} seed{'s, shown as means' if seeds > 1 else ''}.\n\n"
        f"Letters are drawn without end, of 26, with L = {letters['limit']}. SCAN is split by its authors: up to 22 "
        f"actions to learn from, 24 to 48 to test. For translation, {round(one['taught']):,} of the "
        f"{round(one['corpus']):,} training pairs of {corpus}, English to German, have no side over L = "
        f"{words['limit']} of {round(one['vocabulary']):,} sub-words and are learnt from; the longer ones are test "
        "sentences too. Labels are foretold with the right ones before them; an answer is right from end to end if "
        "all its labels are, the end included, and so a greedy search would write it. BLEU is of greedy search.\n\n"
        "Learned positions have a table for L tokens and an end: what is longer they cannot read (n/a). Distances are "
        "clipped at 16 by shaw, and put into buckets up to 128 by t5: buckets beyond L are as untaught as a learned "
        "position beyond it. Only self-attention has relative positions; attention from the target to the source has "
        "none but what the states bring along."
    )
    if scale != "full":
        text += (
            " The published models are larger and were trained far longer; what does not learn its task within L here "
            "tells nothing about what lies beyond. One seed tells nothing of chance: small differences are none."
        )
    return text


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}" if value < 1e4 else f"{value:.0e}"


def _letters(found: Mapping[str, Result]) -> str:
    L = round(next(iter(found.values()))["limit"])
    spans = {f"≤ {L}": (0, L), f"{L + 1}–{2 * L}": (L, 2 * L), f"{2 * L + 1}–{4 * L}": (2 * L, 4 * L)}
    rows = [
        [
            name,
            f"{round(result['parameters']):,}",
            *(_percent(between(result, key, *span)) for key in ("exact", "tokens") for span in spans.values()),
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
    rows: list[list[object]] = [
        [name, _percent(between(simple[name], "exact", 0, LONGEST)), _percent(between(result, "exact", 0, LONGEST)),
         _percent(between(result, "tokens", 0, LONGEST))]
        for name, result in found.items()
    ]  # fmt: skip
    rows += [[name, *both, None] for name, both in PUBLISHED.items()]
    head = ["positions", "simple: whole (%)", "length: whole (%)", "length: labels (%)"]
    return f"{table(head, rows)}\n\nLearnt where SCAN is split at random, {_learnt(simple, LONGEST)}"


def _best(scores: Mapping[str, float | None], task: Lesson) -> str:
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


def _ranking(scores: Mapping[str, Mapping[str, float | None]], able: Mapping[str, set[str]]) -> str:
    """Kinds of positions by their mean rank; the rivals, who did not do everything, below."""
    kinds = [kind for kind in KINDS if all(kind in found for found in scores.values())]
    by_task = [ranks({kind: found[kind] for kind in kinds}) for found in scores.values()]
    mean = {kind: fmean(found[kind] for found in by_task) for kind in kinds}
    order = sorted(kinds, key=lambda kind: mean[kind])
    rows: list[list[object]] = [
        [kind, f"{mean[kind]:.2f}", *(_number(found[kind]) for found in scores.values())] for kind in order
    ]
    rivals = [rival for rival in RIVALS if any(rival in found for found in scores.values())]
    for rival in rivals:
        rows.append([rival, None, *(_number(found[rival]) if rival in found else None for found in scores.values())])
    scored = "; ".join(f"{task.title}: {task.scored}" for task in RANKED if task.title in scores)
    lead = f"All lengths beyond L ({scored}), and the mean of the ranks among the kinds of positions."
    words = f"Best on the mean is {order[0]} ({mean[order[0]]:.2f}), last {order[-1]} ({mean[order[-1]]:.2f})."
    for rival in rivals:
        won = [title for title, found in scores.items() if _beats(rival, found, kinds)]
        words += f" {rival}, without positions, is ahead of all of them at: {', '.join(won) or 'nothing'}."
    unable = {title: [kind for kind in kinds if kind not in able[title]] for title in scores}
    if any(unable.values()):
        listed = "; ".join(f"{title}: {', '.join(names)}" for title, names in unable.items() if names)
        words += f" Not learnt within L, so that a rank says little: {listed}."
    return f"{lead}\n\n{table(['positions', 'mean rank', *scores], rows)}\n\n{words}"


def _beats(rival: str, scores: Mapping[str, float | None], kinds: Sequence[str]) -> bool:
    own = scores.get(rival)
    return own is not None and all(own >= (scores[kind] or 0.0) + MARGIN for kind in kinds)


def _claimed(scores: Mapping[str, Mapping[str, float | None]], able: Mapping[str, set[str]]) -> str:
    compared = [{name: each[name] for name in each if name in able[title]} for title, each in scores.items()]
    found = [[verdict(claim, each) for each in compared] for claim in CLAIMS]
    rows = [
        [f"{claim.better} beyond {claim.worse}", claim.source, *verdicts]
        for claim, verdicts in zip(CLAIMS, found, strict=True)
    ]
    every = [word for verdicts in found for word in verdicts if word != "–"]
    said = f"{every.count('yes')} of {len(every)} comparisons go as claimed, {every.count('no')} the other way, and "
    return (
        "Of two kinds, which one carries on better beyond L; claims were made for other models, mostly for language "
        f"models of decoders alone. Less than {MARGIN:g} point is level; who cannot read on is worse; where one of the "
        "two has not learnt its task within L (half of the answers right, or half of the best BLEU), nothing is "
        "compared (–).\n\n"
        f"{table(['claim', 'by', *scores], rows)}\n\n{said}{every.count('level')} are level. {_by_length(scores)}"
    )


def _by_length(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    """SCAN's length split beside what was published."""
    known = {name: score for name, score in scores[ACTIONS.title].items() if score is not None}
    low, high = min(own for _, own in PUBLISHED.values()), max(own for _, own in PUBLISHED.values())
    within = [name for name, score in known.items() if low <= score <= high]
    above = [name for name, score in known.items() if score > high]
    return (
        f"SCAN's length split, {low} to {high} % as published for recurrent models: ours are "
        f"{min(known.values()):.1f} to {max(known.values()):.1f} %; within that range: {', '.join(within) or 'none'}; "
        f"above it: {', '.join(above) or 'none'}."
    )


def _chart(found: Mapping[str, Result], task: Lesson, key: str, label: str) -> Chart:
    times = 100.0 if "%" in label else 1.0
    series = []
    for name, result in found.items():
        seen = [(x, y) for x, y in zip(result["lengths"], result[key], strict=True) if y is not None]
        if seen:
            series.append(Series(name, [x for x, _ in seen], [times * y for _, y in seen]))
    limit = next(iter(found.values()))["limit"]
    lines = {f"L = {limit:g}": limit}
    return Chart(task.title, f"length, {task.unit}", label, series, log_y=key == "perplexity", lines=lines)


EXPERIMENT = Experiment(
    "extrapolation",
    "Extrapolation: longer than anything in training",
    trials,
    report,
    ("scan-in-out-length", "scan-in-out-simple"),
)
