"""The `regard` command. A verb reads its arguments, calls a room of the package, and shows what comes back.

torch takes a second to load, so each verb imports what it needs when it runs: help is instant.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import regard

if TYPE_CHECKING:
    from regard.models.accounting import Footprint, PaperRun, Part

app = typer.Typer(help=regard.__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command. A person's mistake ends it with one line and exit code 2, Ctrl-C with 130.

    REGARD_TRACEBACK=1 shows where the mistake was noticed.
    """
    try:
        app(prog_name="regard")
    except (ValueError, OSError) as mistake:
        if os.environ.get("REGARD_TRACEBACK"):
            raise
        reason = str(mistake)
        if isinstance(mistake, OSError) and mistake.strerror and mistake.filename is not None:
            reason = f"{mistake.filename}: {mistake.strerror}"
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), reason), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit()


@app.callback()
def _regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def info(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="tiny, small, base or big")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings to change, as heads=16 positions=rope")
    ] = None,
    vocabulary: Annotated[int, typer.Option(min=1, help="Entries of the vocabulary.")] = 37_000,
    source: Annotated[int, typer.Option(min=1, help="Tokens of a source sentence.")] = 25,
    target: Annotated[int, typer.Option(min=1, help="Tokens of a target sentence.")] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model costs: parameters, FLOPs and memory."""
    from regard.models.accounting import PAPER_RUNS, breakdown, footprint
    from regard.models.catalogue import configure

    config = configure(preset, changes or (), vocabulary=vocabulary)
    parts = breakdown(config, 1, source, target)
    memory = footprint(config, 1, source, target)
    runs = PAPER_RUNS if any(config == run.config for run in PAPER_RUNS.values()) else {}
    if as_json:
        account = {
            "preset": preset,
            "config": asdict(config),
            "batch": {"sentences": 1, "source": source, "target": target},
            "parameters": sum(part.parameters for part in parts),
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
    console = Console(highlight=False)
    title = f"{' '.join([preset, *(changes or ())])}, vocabulary {config.vocabulary:,}"
    console.print(_parts_table(title, parts, f"{source} source and {target} target tokens"))
    console.print(_memory_table(memory, f"{source} + {target} tokens"))
    if runs:
        console.print(_paper_table(runs))


@app.command()
def demo(
    directory: Annotated[Path, typer.Option(help="Where the attention page goes.")] = Path("runs/dates"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 800,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0,
) -> None:
    """Train a small model to read dates in sixty languages, and see where it looks."""
    from regard.experiments.dates import demo

    demo(directory, steps=steps, seed=seed)


def _table(title: str, caption: str, *columns: str) -> Table:
    """A table whose first column holds names and whose others hold figures."""
    table = Table(title=Text(title, "bold"), title_justify="left", caption=caption, caption_justify="left")
    table.box = SIMPLE_HEAD
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", style="" if i else "cyan", no_wrap=True)
    return table


def _parts_table(title: str, parts: "list[Part]", tokens: str) -> Table:
    caption = f"FLOPs of the matrix products of a forward pass over {tokens}; training takes three times as many.\n"
    table = _table(title, caption, "part", "parameters", "share", "FLOPs", "share")
    total = sum(part.parameters for part in parts), sum(part.flops for part in parts)
    for part in parts:
        counts = zip((part.parameters, part.flops), total, strict=True)
        cells = [cell for n, whole in counts for cell in ((f"{n:,}", f"{n / whole:.1%}") if n else ("", ""))]
        table.add_row(part.name, *cells)
    table.add_section()
    table.add_row("total", f"{total[0]:,}", "", f"{total[1]:,}", "", style="bold")
    return table


def _memory_table(memory: "Footprint", tokens: str) -> Table:
    table = _table("memory", "In fp32 unless said otherwise.\n", "", "", "")
    table.show_header, table.columns[2].justify = False, "left"
    for kind, size in memory.weights.items():
        table.add_row("weights", _bytes(size), kind)
    table.add_row("training state", _bytes(memory.training_state), "weight, gradient and Adam's two moments")
    table.add_row("activations", _bytes(memory.activations), f"kept for the backward pass of {tokens}")
    table.add_row("cache", _bytes(memory.cache_per_target_token), "for each target token decoded")
    table.add_row("", _bytes(memory.cache_per_source_token), "for each source token attended to")
    if memory.cache_per_sentence:
        table.add_row("", _bytes(memory.cache_per_sentence), "for each sentence, by the convolutions")
    return table


def _paper_table(runs: "dict[str, PaperRun]") -> Table:
    caption = (
        "All steps, of 25,000 source and 25,000 target tokens in sentences of 25 or 50. Stated is time x GPUs x "
        "9.5e12 FLOP/s (Table 2); utilisation is the model's share of it, in sentences of 25."
    )
    table = _table("the paper's runs", caption, "run", "steps", "FLOPs (25)", "FLOPs (50)", "stated", "utilisation")
    for name, run in runs.items():
        counts = [f"{run.model_flops(length):.2e}" for length in (25, 50)]
        table.add_row(name, f"{run.steps:,}", *counts, f"{run.stated:.1e}", f"{run.utilisation():.0%}")
    return table


def _bytes(n: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    power = next((i for i in range(len(units)) if n < 1000 ** (i + 1)), len(units) - 1)
    return f"{n / 1000**power:.4g} {units[power]}"
