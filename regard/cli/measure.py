"""The verbs that measure: what a model costs, how good it is, and the experiments.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Count
from regard.cli.tables import in_bytes, show
from regard.cli.telling import telling
from regard.tasks.uses import Prompting

if TYPE_CHECKING:
    from regard.models.costs import Cost, Footprint, PaperRun

TABLE = re.compile(r"\.(tsv|csv|json|jsonl)(\.gz)?$")  # a file of rows: a language model is judged by their answers
SENTENCE = 25  # tokens of a sentence, if nobody says


def info(
    preset: str,  # `PRESET|MODEL` tiny, base, lstm, convs2s, ..., or a directory
    changes: list[str] | None = None,  # `KEY=VALUE` settings to change, as heads=16 positions=rope
    *,
    vocabulary: Count | None = None,  # entries of a preset's vocabulary (default: its own, or 37000)
    source: Count | None = None,  # tokens of a source sentence (default: 25, or as many as the model has places)
    target: Count | None = None,  # tokens of a target sentence (default: the same)
    as_json: bool = False,  # print one JSON object
) -> None:
    """Show what a model costs: parameters, FLOPs and memory."""
    from regard.adaptation.change import Addition, additions
    from regard.models import storage
    from regard.models.costs import PAPER_RUNS, breakdown, footprint
    from regard.models.family import configure
    from regard.shipped import located

    began, taught = None, list[Addition]()
    if located(preset).is_dir():
        if changes:
            raise ValueError(f"{preset} is a trained model: {changes[0]} cannot be changed in it")
        found = storage.shape(located(preset))
        config, began = storage.config(located(preset)), storage.base_of(located(preset))
        taught = additions(found)
        if began and (rest := began[1] - sum(each.parameters for each in taught)):
            alike = type(config) is type(storage.config(began[0]))
            taught.append(Addition("head", "a head of its own" if alike else "parts of its own", rest))
    else:
        config = found = configure(preset, changes or (), vocabulary=vocabulary)
    usual = min(SENTENCE, config.longest or SENTENCE)
    source, target = source or usual, target or usual
    parts = breakdown(found, 1, source, target)
    memory = footprint(found, 1, source, target)
    runs = PAPER_RUNS if any(config == run.config for run in PAPER_RUNS.values()) else {}
    if as_json:
        account = {
            "preset": preset,
            "config": asdict(config),
            "batch": {"sentences": 1, "source": source, "target": target},
            "parameters": sum(part.parameters for part in parts),
            "base": None if began is None else {"path": str(began[0]), "taught": began[1]},
            "changes": [each._asdict() for each in taught],
            "forward_flops": sum(part.flops for part in parts),
            "parts": [asdict(part) for part in parts],
            "memory": asdict(memory),
            "paper": {
                name: {
                    "steps": run.steps,
                    "model_flops": run.model_flops(),
                    "stated_flops": run.stated,
                    "utilisation": run.utilisation(),
                }
                for name, run in runs.items()
            },
        }
        typer.echo(json.dumps(account, indent=2))
        return
    words = hasattr(config, "vocabulary")
    frames = getattr(config, "frames", None)
    seen = f"videos of {frames} frames" if frames else "pictures"
    what = f"vocabulary {config.vocabulary:,}" if words else f"{seen} of {config.size} x {config.size}"
    title = f"{' '.join([preset, *(changes or ())])}, {what}"
    if began is not None:
        whole = sum(part.parameters for part in parts)
        typer.echo(f"{preset} adds to {began[0]}: {began[1]:,} of {whole:,} parameters were taught")
    for each in taught:
        typer.echo(f"  {each.says}: {each.parameters:,} parameters")
    both = memory.cache_per_source_token > 0
    one = (
        f"{target} {'nodes' if hasattr(config, 'reach') else 'tokens'}"
        if words
        else "1 video"
        if frames
        else "1 picture"
    )
    _show_parts(title, parts, f"{source} source and {target} target tokens" if both else one)
    _show_memory(memory, f"{source} + {target} tokens" if both else one)
    if runs:
        _show_paper(runs)


@dataclass(frozen=True)
class Judged:
    """How translations are judged, as `regard.studies.evaluate` is told."""

    beam: Count | None = None  # width of the search; 1 is greedy
    alpha: Annotated[float, typer.Option(min=0.0)] | None = None  # length penalty
    split: bool | None = None  # read a line sentence by sentence (default: as the model learnt)
    tokenize: str | None = None  # sacreBLEU's tokeniser (default: the recipe's)
    lowercase: bool | None = None  # compare in lower case (default: the recipe's)
    picture: Path | None = None  # draw the reliability diagram here (.svg, .png)
    output: Path | None = None  # write the translations here


def evaluate(
    model: Path,  # a model directory
    data: Path | None = None,  # rows to judge by (.tsv, .csv, .jsonl, ...); a text; a BEIR folder, or one of stories
    *,
    source: Path | None = None,  # of a translator: what to translate, a sentence a line
    reference: Path | None = None,  # what a person made of it, line by line
    text: Path | None = None,  # of a language model: a file of plain text, or a folder
    stride: Count | None = None,  # tokens from one of its windows to the next (default: half a block)
    block: Count | None = None,  # tokens of a window: how far back it may look (default: as in training)
    column: list[str] | None = None,  # `PART=PLACE` where in the rows a part stands, as text=sentence or label=1
    against: Path | None = None,  # `MODEL` compare with this model, on the same rows or text
    calibrate: bool = False,  # of a classifier: fit its temperature on these rows, and keep it
    reward: Path | None = None,  # `MODEL` of a language model that answers: what this one thinks of its answers
    asked: Prompting,
    judged: Judged,
    as_json: bool = False,  # print one JSON object
) -> None:
    """Score a model: what it says or tells of rows, what a translator says, what a language model foretells."""
    from regard.api import told
    from regard.shipped import located
    from regard.studies.evaluate import evaluate, foretell

    if data is not None:
        if source is not None or reference is not None or text is not None:
            raise ValueError(f"{data} is what is judged by: leave out --source, --reference and --text")
        if asked.prompt is not None or TABLE.search(data.name) or told(located(model)).task.name != "generate":
            more = {"asked": asked, "against": against, "calibrate": calibrate, "reward": reward}
            _judge(model, data, judged, as_json, columns=column or [], **more)
            return
        text = data
    if column or calibrate or reward is not None:
        raise ValueError("--column, --calibrate and --reward are for rows to judge by: name these")
    if text is not None:
        if source is not None or reference is not None:
            raise ValueError("--text is for a language model, --source and --reference are for a translator: choose")
        with telling("evaluating"):
            figures = foretell(model, text, stride, block, against)
        if as_json:
            typer.echo(json.dumps(figures, indent=2))
            return
        caption, known = f"{text}, in windows of {figures.pop('window')}", figures.pop("figures", {})
        other = figures.pop("against", None)
        cells = [
            (name, f"{x:,.4f}" if isinstance(x, float) else f"{x:,}", _between(known, name))
            for name, x in figures.items()
        ]
        show(str(model), ["", "", "95 %"], cells, caption)
        _show_against(against, other)
        return
    if source is None or reference is None:
        task = told(located(model)).task
        remedy = {
            "translate": "name what to translate and what a person made of it: --source, --reference",
            "generate": "name a --text",
        }
        raise ValueError(remedy.get(task.verb or task.name, f"name rows to judge by: regard evaluate {model} FILE"))
    with telling("evaluating"):
        result = evaluate(model, source, reference, **vars(judged), against=against)
    if as_json:
        numbers = {key: None if x == math.inf else x for key, x in result.items()}  # JSON has no Infinity
        typer.echo(json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False))
        return
    known, other = result.pop("figures", {}), result.pop("against", None)
    scores = {key: each for key, each in result.items() if isinstance(each, dict)}
    heading = f"{result['sentences']:,} lines, read {result['read']}; {result['tokens']:,} tokens"
    if result["left_out"]:
        named = " and ".join(each["name"].removesuffix("2") for each in scores.values())
        heading += f"; {named} alone count {result['left_out']:,} pairs that are longer than the model reads"
    rows = [
        (each["name"], f"{each['score']:.2f}", _between(known, key, ".2f"), each["signature"])
        for key, each in scores.items()
    ]
    others = {
        "perplexity": ("perplexity", ",.6g", f"{result['perplexity']:.3f}", "of a token, given those before it"),
        "accuracy": ("accuracy", ".2%", f"{result['accuracy']:.2%}", "of tokens foretold right"),
        "ece": ("calibration", ".2%", f"{result['ece']:.2%}", "expected error of the confidence (ECE)"),
    }
    rows += [(name, x, _between(known, key, form), what) for key, (name, form, x, what) in others.items()]
    show(str(model), ["", "", "95 %", "<"], rows, heading)
    _show_against(against, other)


def _between(known: dict[str, Any], name: str, form: str = ",.4f") -> str:
    """The interval of a figure, if there is one."""
    return f"{known[name]['low']:{form}} to {known[name]['high']:{form}}" if name in known else ""


def _show_against(other: Path | None, found: dict[str, Any] | None, wins: float | None = None) -> None:
    """How another model does on the same, if there is one."""
    if found is None:
        return
    rows = [
        (name, f"{x['theirs']:.4f}", f"{x['score']:+.4f}", f"{x['low']:+.4f} to {x['high']:+.4f}", f"{x['p']:.3f}")
        for name, x in found.items()
    ]
    caption = "ours less its; p of a paired bootstrap, two-sided"
    if wins is not None:
        caption = f"{wins:.1%} of answers are thought better than its; {caption}"
    show(f"against {other}", ["", "its figure", "difference", "95 %", "p"], rows, caption)


def _judge(model: Path, data: Path, judged: Judged, as_json: bool, **how: Any) -> None:
    """The same by rows."""
    from regard.studies.judging import judge

    search = {name: x for name in ("beam", "alpha") if (x := getattr(judged, name)) is not None}
    wrong = [name for name, x in vars(judged).items() if x is not None and name not in ("picture", *search)]
    if wrong:
        raise ValueError(f"--{wrong[0]} is for a translator, and {model} is judged by {data}: leave it out")
    with telling("evaluating") as progress:
        found = judge(model, data, picture=judged.picture, search=search, progress=progress, **how)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if found["skipped"]:
        typer.echo(f"note: {found['skipped']}", err=True)
    known = found["figures"]
    rows = [(name, f"{x['score']:.4f}", _between(known, name), x["signature"]) for name, x in known.items()]
    caption = f"{found['rows']:,} {found['counted']} of {data}" + (f", read {found['read']}" if "read" in found else "")
    show(str(model), ["", "", "95 %", "<"], rows, caption)
    _show_against(how["against"], found.get("against"), found.get("wins"))
    if "calibrated" in found:
        changed = [(name, f"{x['before']:.4f}", f"{x['after']:.4f}") for name, x in found["calibrated"].items()]
        show("calibrated", ["", "before", "after"], changed, f"kept as use.temperature in {model}/config.json")


def experiment(
    name: str | None = None,  # which one; without a name, they are listed
    *,
    scale: str = "small",  # of what is measured: smoke (a minute), small (two cores), full (the paper's)
    out: Path | None = None,  # where to (default: runs/experiments/NAME-SCALE)
    again: bool = False,  # measure anew what is known already
    ray: str | None = None,  # address of a Ray cluster for the trials; local: one here
) -> None:
    """Measure a table of the paper, or one of its open questions; the same command again goes on."""
    from regard.experiments import lab

    if name is not None:
        lab.experiment(name, scale=scale, out=out, again=again, ray=ray)
        return
    show("experiments", ["name", "<what it measures"], lab.NAMES.items())


def _show_parts(title: str, parts: "list[Cost]", tokens: str) -> None:
    totals = sum(part.parameters for part in parts), sum(part.flops for part in parts)
    rows = []
    for part in parts:
        counts = zip((part.parameters, part.flops), totals, strict=True)
        cells = [cell for n, whole in counts for cell in ((f"{n:,}", f"{n / whole:.1%}") if n else ("", ""))]
        rows.append((part.name, *cells))
    caption = f"FLOPs of the matrix products of a forward pass over {tokens}; training takes three times as many.\n"
    total = ("total", f"{totals[0]:,}", "", f"{totals[1]:,}", "")
    show(title, ["part", "parameters", "share", "FLOPs", "share"], rows, caption, total)


def _show_memory(memory: "Footprint", tokens: str) -> None:
    sizes = [
        *(("weights", size, kind) for kind, size in memory.weights.items()),
        ("training state", memory.training_state, "weight, gradient and Adam's two moments"),
        ("activations", memory.activations, f"kept for the backward pass of {tokens}"),
        ("cache", memory.cache_per_target_token, "for each target token decoded"),
        ("", memory.cache_per_source_token, "for each source token attended to"),
    ]
    if memory.cache_per_sentence:
        sizes.append(("", memory.cache_per_sentence, "for each sentence, however long"))
    rows = [(name, in_bytes(size), what) for name, size, what in sizes]
    show("memory", ["", "", "<"], rows, "In fp32 unless said otherwise.\n")


def _show_paper(runs: "dict[str, PaperRun]") -> None:
    caption = (
        "All steps, of 25,000 source and 25,000 target tokens in sentences of 25 or 50. Stated is time x GPUs x "
        "9.5e12 FLOP/s (Table 2); utilisation is the model's share of it, in sentences of 25."
    )
    rows = []
    for name, run in runs.items():
        counts = [f"{run.model_flops(length):.2e}" for length in (25, 50)]
        rows.append((name, f"{run.steps:,}", *counts, f"{run.stated:.1e}", f"{run.utilisation():.0%}"))
    show("the paper's runs", ["run", "steps", "FLOPs (25)", "FLOPs (50)", "stated", "utilisation"], rows, caption)
