"""The frame of an experiment: trials, each a function of its settings, and a report of what they gave.

A trial's result is kept in a file as soon as it is there, so that an interrupted experiment goes on with the trials
that are missing; and since a trial hangs on nothing but its settings, the trials of one experiment may as well run side
by side on a cluster. What comes out is a folder with Markdown, JSON and charts under the experiment's name, ready for
`docs/experiments`.
"""

import json
import os
import platform
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from regard.checks import choose, need
from regard.cluster import connected
from regard.experiments.charts import Bars, Chart
from regard.files import write_whole

PAGES = files("regard") / "experiments" / "pages"
SCALES = {"smoke": "a minute, to see that it runs", "small": "our scale: two cores", "full": "the paper's scale"}
# Modules of this room, each with an `EXPERIMENT`; what each is about, to be listed without importing it.
NAMES = {
    "table1": "the cost of a layer: attention, recurrence, convolution, over length and width",
    "table2": "quality against training cost: Transformer, recurrent and convolutional translators",
    "table3": "what matters in the Transformer: heads, widths, depth, dropout, positions",
    "table4": "constituency parsing: trees written by a sequence model",
    "extrapolation": "sentences longer than any in training, for every kind of positions",
    "questions": "the open questions about attention, one measured answer each",
    "scaling": "loss against parameters and data, with the power laws that fit",
}

Result = dict[str, Any]  # of a trial: anything that JSON can hold
Results = Mapping[str, Result]  # by the trials' names


@dataclass(frozen=True)
class Trial:
    """One measurement: `run(folder, console, **settings)`, a function of a module, returns a result for JSON.

    The folder is the trial's own; what it leaves there (a model that is half trained) is there when it runs again.
    """

    name: str  # unique in its experiment, fit for a file: heads-16
    run: Callable[..., Result]
    # JSON; the same settings, the same result. Text under `corpus`, or `recipe` and `changes`, is seen to beforehand.
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """What an experiment found, in Markdown, where a chart stands as ![what it shows](name.svg)."""

    text: str
    charts: Mapping[str, Chart | Bars] = field(default_factory=dict)  # name -> chart


@dataclass(frozen=True)
class Experiment:
    """Trials for each scale, and what to make of their results."""

    name: str
    title: str
    trials: Callable[[str], Sequence[Trial]]  # of a scale
    report: Callable[[Results, str], Findings]  # of the results, at a scale
    corpora: tuple[str, ...] = ()  # fetched before the first trial, as are those in the settings of trials


def find(name: str) -> Experiment:
    """The experiment of that name.

    >>> find("tabel3")
    Traceback (most recent call last):
    ValueError: unknown experiment 'tabel3': did you mean 'table3'?
    """
    choose("experiment", name, NAMES)
    found: Experiment = import_module(f"regard.experiments.{name}").EXPERIMENT
    return found


def experiment(
    name: str,
    *,
    scale: str = "small",
    out: Path | None = None,
    again: bool = False,
    ray: str | None = None,
    console: Console | None = None,
) -> Path:
    """Run an experiment and write its report; returns the folder, by default runs/experiments/NAME-SCALE.

    Trials whose results are there already, of the same settings, are not run `again` unless asked for. `ray` is the
    address of a cluster ("local" starts one here) on which the trials run side by side.
    """
    choose("scale", scale, SCALES)
    this, console = find(name), console or Console()
    need("matplotlib", "plot")  # for the report: which is to be known now, and not after hours of work
    folder = out or Path("runs/experiments") / f"{name}-{scale}"
    trials = list(this.trials(scale))
    assert len({trial.name for trial in trials}) == len(trials), "trials of one experiment have different names"
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    known = {trial.name: kept for trial in trials if not again and (kept := _kept(trial, folder)) is not None}
    missing = [trial for trial in trials if trial.name not in known]
    if missing:
        corpora, files = _texts(missing)
        if ray is None:  # the machines of a cluster have files of their own
            _check(files)
        _fetch(dict.fromkeys([*this.corpora, *corpora]), console)
    if again:
        for trial in trials:
            _file(trial, folder).unlink(missing_ok=True)
            shutil.rmtree(folder / "trials" / trial.name, ignore_errors=True)
    _say(console, this.title, f"{scale}, {len(trials)} trials, {len(known)} of them known already")
    try:
        perform = _here(missing, folder, console) if ray is None else _on_ray(ray, missing, folder)
        for count, (trial, record) in enumerate(perform, len(known) + 1):
            write_whole(_file(trial, folder), json.dumps(record, indent=1) + "\n")
            known[trial.name] = record
            _say(console, f"{count}/{len(trials)}", f"{trial.name}, {_duration(record['seconds'])}")
    except KeyboardInterrupt:
        _say(console, "stopped", f"{len(known)} of {len(trials)} trials are kept; the same command goes on")
        raise
    records = {trial.name: known[trial.name] for trial in trials}
    report = this.report({name: record["result"] for name, record in records.items()}, scale)
    _write(this, scale, records, report, folder)
    console.print(Markdown(report.text))
    _say(console, "report", str(folder / f"{name}.md"))
    return folder


def _texts(trials: Iterable[Trial]) -> tuple[list[str], dict[str, str]]:
    """The corpora that trials learn from by name, and the files, each with the recipe that names it."""
    from regard.recipes import reading as recipes

    corpora: list[str] = []
    files: dict[str, str] = {}
    for settings in (trial.settings for trial in trials):
        if "corpus" in settings:
            corpora.append(settings["corpus"])
        if "recipe" in settings:
            data = recipes.load(settings["recipe"], settings["changes"]).data
            if data.corpus is not None:
                corpora.append(data.corpus)
                continue
            for split in filter(None, (data.train, data.valid, data.test)):
                for path in filter(None, (getattr(split, key, None) for key in recipes.PATHS)):
                    files.setdefault(path, settings["recipe"])
    return corpora, files


def _check(files: Mapping[str, str]) -> None:
    absent = [path for path in files if not Path(path).exists()]
    if absent:
        first, *others = absent
        nor = f" (nor {', '.join(Path(path).name for path in others)})" if others else ""
        raise ValueError(
            f"there is no {first}{nor}, which the recipe {files[first]} reads: put the text there, a sentence a line "
            "(WMT 2014: https://www.statmt.org/wmt14), or choose another --scale"
        )


def _fetch(corpora: Iterable[str], console: Console) -> None:
    from regard.data.corpora import obtain
    from regard.training.display import fetching

    for corpus in corpora:
        try:
            with fetching(console) as progress:
                obtain(corpus, progress=progress)
        except OSError as error:
            if error.errno is not None or "REGARD_DATA" in str(error):  # of a file; or advice enough
                raise
            raise OSError(f"{error}; or set REGARD_DATA to a folder that holds {corpus}") from None


def _file(trial: Trial, folder: Path) -> Path:
    return folder / "trials" / f"{trial.name}.json"


def _identity(trial: Trial) -> Result:
    run = f"{trial.run.__module__}.{trial.run.__qualname__}"
    return {"run": run, "settings": json.loads(json.dumps(dict(trial.settings)))}


def _written(trial: Trial, folder: Path) -> Result | None:
    """What a trial of this name, perhaps of other settings, has left: its identity, and its result if it ended."""
    try:
        record = json.loads(_file(trial, folder).read_text("utf-8"))
    except (FileNotFoundError, ValueError):  # half written by hand, say: measured again
        return None
    return record if isinstance(record, dict) else None


def _kept(trial: Trial, folder: Path) -> Result | None:
    """What is known of a trial, if it is of the same settings."""
    record = _written(trial, folder) or {}
    whole = {"result", "seconds", "machine"} <= record.keys()
    return record if whole and _identity(trial).items() <= record.items() else None


def _here(trials: Iterable[Trial], folder: Path, console: Console) -> Iterator[tuple[Trial, Result]]:
    for trial in trials:
        yield trial, _perform(trial, folder, console)


def _perform(trial: Trial, folder: Path, console: Console) -> Result:
    place, identity = folder / "trials" / trial.name, _identity(trial)
    before = _written(trial, folder)
    if before is not None and not identity.items() <= before.items():
        shutil.rmtree(place, ignore_errors=True)  # half a model of other settings, say
    place.mkdir(parents=True, exist_ok=True)
    write_whole(_file(trial, folder), json.dumps(identity, indent=1) + "\n")  # so that it is known whose folder it is
    start = time.perf_counter()
    result = trial.run(place, console, **trial.settings)
    seconds = time.perf_counter() - start
    if not any(place.iterdir()):
        place.rmdir()
    return {**identity, "result": result, "seconds": seconds, "machine": machine(), "regard": version("regard")}


def _on_ray(address: str, trials: Sequence[Trial], folder: Path) -> Iterator[tuple[Trial, Result]]:
    """Each trial as a task of a Ray cluster, whose machines have regard; each result as soon as it is there."""
    with connected(address) as ray:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # A trial works with all cores and GPUs of its machine: one at a time on each, however large it is.
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        free = [node for node, has in nodes.items() if has.get("CPU")]
        if not free:
            raise ValueError(f"no machine of the Ray cluster at {address!r} has a CPU for trials: add one")
        task: Any = ray.remote(_elsewhere)
        todo, at_work = deque(trials), dict[Any, tuple[Trial, str]]()
        while todo or at_work:
            while todo and free:
                trial, node = todo.popleft(), free.pop()
                whole = {"num_cpus": nodes[node]["CPU"], "num_gpus": nodes[node].get("GPU", 0)}
                there = task.options(**whole, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
                at_work[there.remote({"name": trial.name, **_identity(trial)}, str(folder.absolute()))] = trial, node
            (done, *_), _ = ray.wait(list(at_work), num_returns=1)
            trial, node = at_work.pop(done)
            free.append(node)
            yield trial, ray.get(done)


def _elsewhere(trial: Result, folder: str) -> Result:
    """A trial that arrived as plain values, on whatever machine this is, with all its cores."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)  # Ray allows a task one thread unless told otherwise
    module, _, function = trial["run"].rpartition(".")
    run = getattr(import_module(module), function)
    return _perform(Trial(trial["name"], run, trial["settings"]), Path(folder), Console(quiet=True))


def _write(this: Experiment, scale: str, records: Mapping[str, Result], report: Findings, folder: Path) -> None:
    seconds = sum(record["seconds"] for record in records.values())
    machines = sorted({record["machine"] for record in records.values()})
    command = f"regard experiment {this.name} --scale {scale}"
    now, versions = version("regard"), {record["regard"]: None for record in records.values() if "regard" in record}
    older = f" (trials with {', '.join(versions)})" if versions.keys() - {now} else ""
    made = f"`{command}` with regard {now}{older}: {_duration(seconds)} on {'; '.join(machines)}."
    for name, chart in report.charts.items():
        write_whole(folder / f"{name}.svg", chart.svg())
    text = f"# {this.title}\n\n{made}\n\n{report.text.strip()}\n"
    write_whole(folder / f"{this.name}.md", text)
    about = {"experiment": this.name, "scale": scale, "command": command, "regard": now}
    write_whole(folder / f"{this.name}.json", json.dumps({**about, "trials": records}, indent=1) + "\n")


def machine() -> str:
    """This machine in a line: cores, processor, PyTorch."""
    import torch

    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # not Linux
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{os.cpu_count()} cores of {name}{gpu}, PyTorch {torch.__version__.split('+')[0]}"


def _duration(seconds: float) -> str:
    """
    >>> _duration(4.21), _duration(754)
    ('4.2 s', '12 min 34 s')
    """
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def _say(console: Console, label: str, text: str) -> None:
    console.print(Text.assemble("  ", (label, "bold"), "  ", text), soft_wrap=True)


def page(name: str, /, **values: object) -> str:
    """A page of this room, where values stand in its holes: {steps:,}, {base[loss]:.3f}."""
    return (PAGES / f"{name}.md").read_text("utf-8").rstrip("\n").format(**values)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column holds names, the others figures.

    >>> print(table(["model", "BLEU"], [["tiny", 34.0], ["base", None]]))
    | model | BLEU |
    |:--|--:|
    | tiny | 34 |
    | base | – |
    """
    lines = ["| " + " | ".join(head) + " |", "|:--|" + "--:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def several(results: Iterable[Result], key: str, between: str = ", ") -> str:
    """What there is under a key, from the least on.

    >>> several([{"threads": 2}, {"threads": 1}, {"threads": 2}], "threads")
    '1, 2'
    """
    return between.join(map(str, sorted({result[key] for result in results})))


def counted(n: int, what: str) -> str:
    """
    >>> counted(1, "thread"), counted(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"]), listed([])
    ('a', 'a, b and c', 'none')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "none"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
