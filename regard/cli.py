"""The `regard` command. A verb reads its arguments, calls a room of the package, and shows what comes back.

torch takes a second to load, so each verb imports what it needs when it runs: help is instant.
"""

import json
import os
import sys
from collections.abc import Iterator
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
    except BrokenPipeError:  # who reads has had enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ValueError, OSError) as mistake:
        if os.environ.get("REGARD_TRACEBACK"):
            raise
        reason = " ".join(str(mistake).split("\n"))
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
    preset: Annotated[str, typer.Argument(metavar="PRESET|MODEL", help="tiny, small, base, big; or a model directory")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings to change, as heads=16 positions=rope")
    ] = None,
    vocabulary: Annotated[int, typer.Option(min=1, help="Entries of a preset's vocabulary.")] = 37_000,
    source: Annotated[int, typer.Option(min=1, help="Tokens of a source sentence.")] = 25,
    target: Annotated[int, typer.Option(min=1, help="Tokens of a target sentence.")] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model costs: parameters, FLOPs and memory."""
    from regard.models import storage
    from regard.models.accounting import PAPER_RUNS, breakdown, footprint
    from regard.models.catalogue import configure

    if Path(preset).is_dir():
        if changes:
            raise ValueError(f"{preset} is a trained model: {changes[0]} cannot be changed in it")
        config = storage.config(preset)
    else:
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
def train(
    recipe: Annotated[str, typer.Argument(help="A shipped name, a .yaml file, or a run's directory to go on with.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="settings to change, as train.steps=100")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The model directory.  [default: runs/RECIPE]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Print the whole recipe and stop.")] = False,
) -> None:
    """Train a translator from raw text: one recipe in, one model directory out."""
    from regard import recipe as recipes

    directory, resume = out or Path("runs") / Path(recipe).stem, False
    if Path(recipe).is_dir() and recipe not in recipes.shipped():
        directory, resume = Path(recipe), True
        if not (directory / "recipe.yaml").exists():
            raise ValueError(f"{recipe} is not a run to go on with: it has no recipe.yaml")
        if out is not None or overwrite:
            raise ValueError(f"{recipe} is a run to go on with, in its place: leave out --out and --overwrite")
    loaded = recipes.load(str(directory / "recipe.yaml") if resume else recipe, overrides or ())
    if dump:
        typer.echo(recipes.dump(loaded), nl=False)
        return
    if not resume and directory.exists() and any(directory.iterdir()):
        if not (directory / "recipe.yaml").exists():
            raise ValueError(f"{directory} is not empty, and not a run of regard: choose another place by --out")
        if not overwrite:
            raise ValueError(
                f"{directory} is not empty: go on with it by `regard train {directory}`, replace it by --overwrite, "
                "or choose another place by --out"
            )
    from regard.pipeline import train

    if not train(loaded, directory, name=directory.name if resume else Path(recipe).stem, resume=resume):
        sys.exit(130)


@app.command()
def recipes() -> None:
    """List the recipes that come with regard."""
    from regard.recipe import shipped

    table = _table("recipes", "Train one: regard train NAME [section.key=value ...]", "name", "")
    table.show_header, table.columns[1].justify, table.columns[1].no_wrap = False, "left", False
    for name, description in shipped().items():
        table.add_row(name, description)
    Console(highlight=False).print(table)


@app.command()
def data(
    corpus: Annotated[str | None, typer.Argument(help="Fetch this one.  [default: list them all]")] = None,
) -> None:
    """List the corpora that regard knows, or fetch one."""
    from regard.data.corpora import CORPORA, located, obtain
    from regard.training.display import fetching

    console = Console(highlight=False)
    if corpus is None:
        table = _table("corpora", "Fetch one: regard data NAME", "name", "pairs", "languages", "terms", "here")
        for name, each in CORPORA.items():
            place = located(name)
            table.add_row(name, f"{each.pairs:,}", " → ".join(each.languages), each.licence, "yes" if place else "")
        console.print(table)
        return
    with fetching(console) as progress:
        files = obtain(corpus, progress=progress)
    for split, pairs in files.items():
        console.print(f"  {split:6} {pairs.source}  {pairs.target}", soft_wrap=True)


@app.command()
def translate(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    files: Annotated[list[Path] | None, typer.Argument(help="Text files, a sentence a line.  [default: stdin]")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the search; 1 is greedy.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0.0, help="Length penalty.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps")] = "cpu",
) -> None:
    """Translate text, a sentence a line, to standard output."""
    from regard.api import load
    from regard.data.text import Skipped, read_lines

    translator = load(model, device=device)
    skipped = Skipped()
    for file in files or [Path("-")]:
        if str(file) == "-" and sys.stdin.isatty():
            for line in _typed():
                typer.echo(translator.translate(line, beam=beam, alpha=alpha))
            continue
        for said in translator.translate_lines(read_lines(file, skipped=skipped), beam=beam, alpha=alpha):
            typer.echo(said)
    if skipped.report():
        typer.echo(skipped.report(), err=True)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    source: Annotated[Path, typer.Option(help="What to translate, a sentence a line.")],
    reference: Annotated[Path, typer.Option(help="What a person made of it, line by line.")],
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the search; 1 is greedy.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0.0, help="Length penalty.")] = None,
    tokenize: Annotated[str | None, typer.Option(help="sacreBLEU's tokeniser.  [default: the recipe's]")] = None,
    lowercase: Annotated[bool | None, typer.Option(help="Compare in lower case.  [default: the recipe's]")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the reliability diagram here (.svg, .png).")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a model on a text: BLEU, chrF, perplexity, accuracy, calibration."""
    from regard.evaluate import evaluate

    result = evaluate(
        model,
        source,
        reference,
        beam=beam,
        alpha=alpha,
        tokenize=tokenize,
        lowercase=lowercase,
        picture=picture,
        output=output,
    )
    if as_json:
        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        return
    table = _table(str(model), f"{result['sentences']:,} sentences, {result['tokens']:,} tokens", "", "", "")
    table.show_header, note = False, table.columns[2]
    note.justify, note.no_wrap, note.overflow = "left", False, "fold"  # a signature is cut nowhere, a figure never
    for name in ("bleu", "chrf"):
        table.add_row(result[name]["name"], f"{result[name]['score']:.2f}", result[name]["signature"])
    table.add_row("perplexity", f"{result['perplexity']:.3f}", "of a token, given those before it")
    table.add_row("accuracy", f"{result['accuracy']:.2%}", "of tokens foretold right")
    table.add_row("calibration", f"{result['ece']:.2%}", "expected error of the confidence (ECE)")
    Console(highlight=False).print(table)


@app.command()
def demo(
    directory: Annotated[Path | None, typer.Option(help="Where everything goes.  [default: runs/quickstart]")] = None,
    dates: Annotated[bool, typer.Option("--dates", help="Learn to read dates instead: needs no corpus.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.  [default: about five minutes]")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and steps give the same run.")] = 1,
) -> None:
    """Train a translator in about five minutes, and see where it looks."""
    from regard.experiments.demo import demo

    demo(directory, dates=dates, steps=steps, seed=seed)


def _typed() -> Iterator[str]:
    """Lines that a person types, until end of file."""
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def _table(title: str, caption: str, *columns: str) -> Table:
    """A table whose first column holds names and whose others hold figures."""
    table = Table(title=Text(title, "bold"), title_justify="left", caption=Text(caption), caption_justify="left")
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
