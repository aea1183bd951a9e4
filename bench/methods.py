"""Ways to teach a model that is already trained, beside each other: parameters, memory, time, quality.

    python bench/methods.py sst2 [KEY=VALUE ...] [--only lora,biases] [--out runs/methods]
    python bench/methods.py instruct [KEY=VALUE ...] --rate 2e-5

Each way is a run of `regard train RECIPE` from the same model on the same batches, in a process of its own, with the
rate that its paper or common practice gives it; other settings are those of the recipe, or are said here. Memory is
the most that the process held, seconds those of its threads on a processor, quality what the recipe's own test says at
the end: of a classifier its accuracy, of a language model the perplexity of held-out answers. Beside it, what a paper
claims. A way that a model cannot be taught by, as one without biases by its biases, says so and is left out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Way(NamedTuple):
    """A way to teach."""

    changes: str  # as a recipe has them; nothing: everything learns
    times: float  # its rate, as a multiple of that of training everything
    claim: str  # of a paper, where texts are read
    writing: str  # and where they are written


LORA = "RoBERTa-base, SST-2: 95.1, 0.3 M parameters (2106.09685)"
ADAPTERS = "BERT, GLUE: within 0.4 points, 3.6 % of the parameters (1902.00751)"
E2E = "GPT-2 medium, E2E: BLEU {} (2106.09685)"
IA3 = "T0 of 3 B, few examples: better (2205.05638)"
PROMPT = "T5: as good only from billions on (2104.08691)"
WAYS = {
    "everything": Way("", 1, "RoBERTa-base, SST-2: 94.8 (2106.09685)", E2E.format("68.2")),
    "lora": Way("[{lora: {rank: 8, where: [all]}}]", 10, LORA, E2E.format("70.4, 0.35 M parameters")),
    "lora of query and value": Way("[{lora: {rank: 8}}]", 20, LORA, E2E.format("70.4, 0.35 M parameters")),
    "adapters (pfeiffer)": Way("[{adapter: {kind: pfeiffer}}]", 20, ADAPTERS, E2E.format("68.9, 11 M parameters")),
    "adapters (houlsby)": Way("[{adapter: {kind: houlsby}}]", 20, ADAPTERS, E2E.format("67.3, 11 M parameters")),
    "ia3": Way("[{ia3: {}}]", 100, IA3, IA3),
    "biases": Way(
        "[{biases: {}}]", 20, "BERT, little data: as good (2106.10199)", "GPT-3, SAMSum: 0.7 behind (2106.09685)"
    ),
    "prefix": Way(
        "[{prefix: {length: 20}}]",
        100,
        "GPT-2, tables to text: as good, 0.1 % (2101.00190)",
        E2E.format("69.7, 0.35 M parameters"),
    ),
    "prompt": Way("[{prompt: {length: 20}}]", 400, PROMPT, PROMPT),
}


class Found(NamedTuple):
    """What came of it."""

    taught: int
    kilobytes: float
    megabytes: float
    seconds: float
    figures: dict[str, float]


def run(recipe: str, settings: list[str], rate: float, way: Way, out: Path) -> Found | str:
    """Train so, and read what the run has left; or why it cannot be."""
    changes = [f"changes={way.changes}"] if way.changes else []
    command = [sys.executable, "-m", "regard", "train", recipe, *settings, *changes]
    command += [f"train.schedule.peak={rate * way.times:g}", "--out", str(out), "--overwrite"]
    with (out.parent / f"{out.name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    lines = Path(log.name).read_text().splitlines()
    if os.waitstatus_to_exitcode(status) == 2 and "finds nothing to change" in lines[-1]:
        return lines[-1].removeprefix("error: ")
    if status:
        raise SystemExit(f"{' '.join(command)}: exit {os.waitstatus_to_exitcode(status)}, see {log.name}")
    asked = [sys.executable, "-m", "regard", "info", str(out), "--json"]
    account = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    taught = account["parameters"] if account["base"] is None else account["base"]["taught"]
    said = [found.groups() for line in lines if (found := re.match(r"  held out (.+?) ([\d.]+)", line))]
    size = sum(file.stat().st_size for file in out.glob("model.*safetensors"))
    seconds = usage.ru_utime + usage.ru_stime
    return Found(taught, size / 1e3, usage.ru_maxrss / 1e3, seconds, {name: float(x) for name, x in said})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--rate", type=float, default=5e-5, help="of training everything")
    parser.add_argument("--only", help="these ways, by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(WAYS)
    if unknown := set(names) - WAYS.keys():
        parser.error(f"--only {min(unknown)}: there are {', '.join(WAYS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    table, first = Table(title=" ".join([arguments.recipe, *arguments.settings])), True
    for name in names:
        out = arguments.out / re.sub(r"\W+", "-", name).strip("-")
        found = run(arguments.recipe, arguments.settings, arguments.rate, WAYS[name], out)
        if isinstance(found, str):
            print(name, found, flush=True)
            continue
        if first:
            for column in ("", "rate", "parameters", "kB kept", "peak MB", "seconds", *found.figures, "a paper says"):
                table.add_column(column, justify="left" if column in ("", "a paper says") else "right")
            first = False
        cells = [f"{arguments.rate * WAYS[name].times:g}", f"{found.taught:,}", f"{found.kilobytes:,.0f}"]
        cells += [f"{found.megabytes:,.0f}", f"{found.seconds:,.0f}", *(f"{x:g}" for x in found.figures.values())]
        cells.append(WAYS[name].writing if "perplexity" in found.figures else WAYS[name].claim)
        table.add_row(name, *cells)
        print(name, *cells, flush=True)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
