"""The `regard` command. A verb reads its arguments, calls a room of the package, and shows what comes back.

torch takes a second to load, so each verb imports what it needs when it runs: help is instant.
"""

import atexit
import gc
import json
import math
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
from regard.cli.see import explore, heads, inspect, prune, serve
from regard.cli.telling import telling
from regard.cli.use import generate, score, translate

if TYPE_CHECKING:
    from regard.models.costs import Footprint, PaperRun, Part

USE, SEE, TRAIN, MEASURE, SMALLER, OTHERS = (
    "Use a model",
    "See inside it",
    "Train your own",
    "Measure it",
    "Make it smaller",
    "Exchange it with other programs",
)
EXAMPLES = """Try it, with the small English-Spanish model that comes along:

  regard translate "Where is the library?"

  regard explore

Then train your own, and use it by its directory:

  regard train quickstart

  regard translate runs/quickstart book.txt -o book.es
"""
TRANSLATE = """For example:

  regard translate "Where is the library?"

  regard translate runs/my < new.en > new.de

  regard translate runs/my book.txt -o book.de --resume

An argument that is no directory and no file is the text, unless it looks like the name of a file: without a space, but
with a slash or a suffix.
"""
GENERATE = """For example:

  regard generate runs/shakespeare "ROMEO:" --limit 300 --seed 1

  regard generate runs/shakespeare --file prompts.txt --json -o written.jsonl
"""
WIDE = 1_000  # characters
# What PyTorch says of memory, on an accelerator, on a CPU, and where none could have as much.
SCARCE = ("out of memory", "tried to allocate", "Storage size calculation overflowed")
LONGEST = 1000  # characters of an error: a message may quote a whole file

app = typer.Typer(help=regard.__doc__, epilog=EXAMPLES, no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command. A person's mistake ends it with one line and exit code 2, Ctrl-C with 130.

    REGARD_TRACEBACK=1 shows where the mistake was noticed.
    """
    atexit.register(gc.freeze)  # a process that ends need not look once more through all that torch has made
    try:
        app(prog_name="regard")
    except (ValueError, OSError, MemoryError, RuntimeError) as mistake:
        scarce = isinstance(mistake, MemoryError) or any(words in str(mistake) for words in SCARCE)
        if os.environ.get("REGARD_TRACEBACK") or (isinstance(mistake, RuntimeError) and not scarce):
            raise
        reason = str(mistake)
        if isinstance(mistake, OSError) and mistake.strerror and mistake.filename is not None:
            reason = f"{mistake.filename}: {mistake.strerror}"
        if scarce:
            reason = "not enough memory: to train, lower train.batch_tokens or raise train.accumulate"
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), _readable(reason)), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _readable(reason: str) -> str:
    """One line of a bearable length, beginning and end, in which nothing commands the terminal.

    >>> _readable("no file \\x1b[2J\\nby that name")
    'no file \\\\x1b[2J by that name'
    """
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in reason.replace("\n", " "))
    return line if len(line) <= LONGEST else f"{line[: LONGEST * 3 // 4]} … {line[-LONGEST // 4 :]}"


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


app.command(rich_help_panel=USE, epilog=TRANSLATE)(translate)
app.command(rich_help_panel=USE, epilog=GENERATE)(generate)
for verb, panel in ((score, USE), (serve, USE), (explore, SEE), (inspect, SEE), (heads, SEE)):
    app.command(rich_help_panel=panel)(verb)


@app.command(rich_help_panel=TRAIN)
def train(
    recipe: Annotated[str, typer.Argument(help="A shipped name, a .yaml file, or a run's directory to go on with.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="settings to change, as train.steps=100")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The model directory. (default: runs/RECIPE)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Print the whole recipe and stop.")] = False,
) -> None:
    """Train a translator from raw text: one recipe in, one model directory out."""
    from regard.recipes import reading as recipes

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
    from regard.recipes.train import train

    name = directory.name if resume else Path(recipe).stem
    if not train(loaded, directory, name=name, resume=resume, overwrite=overwrite):
        sys.exit(130)


@app.command(rich_help_panel=TRAIN)
def recipes() -> None:
    """List the recipes that come with regard."""
    from regard.recipes.reading import shipped

    table = _table("recipes", "Train one: regard train NAME [section.key=value ...]", "name", "")
    table.show_header, table.columns[1].justify, table.columns[1].no_wrap = False, "left", False
    for name, description in shipped().items():
        table.add_row(name, description)
    _print(table)


@app.command(rich_help_panel=TRAIN)
def data(
    corpus: Annotated[str | None, typer.Argument(help="Fetch this one. (default: list them all)")] = None,
) -> None:
    """List the corpora that regard knows, or fetch one."""
    from regard.data.corpora import CORPORA, fetched, located
    from regard.training.display import fetching

    if corpus is None:
        table = _table("corpora", "Fetch one: regard data NAME", "name", "lines", "languages", "terms", "here")
        for name, each in CORPORA.items():
            place = located(name)
            table.add_row(
                name, f"{each.pairs:,}", " → ".join(filter(None, each.languages)), each.licence, "yes" if place else ""
            )
        _print(table)
        return
    console = Console(highlight=False)
    with fetching(console) as progress:
        files = fetched(corpus, progress=progress)
    for split, paths in files.items():
        console.print(f"  {split:6} {'  '.join(map(str, paths))}", soft_wrap=True)


@app.command(rich_help_panel=MEASURE)
def info(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET|MODEL", help="tiny, base, lstm, convs2s, ..., or a directory")
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings to change, as heads=16 positions=rope")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="Entries of a preset's vocabulary. (default: its own, or 37000)")
    ] = None,
    source: Annotated[int, typer.Option(min=1, help="Tokens of a source sentence.")] = 25,
    target: Annotated[int, typer.Option(min=1, help="Tokens of a target sentence.")] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a model costs: parameters, FLOPs and memory."""
    from regard.models import storage
    from regard.models.costs import PAPER_RUNS, breakdown, footprint
    from regard.models.family import configure
    from regard.shipped import located

    if located(preset).is_dir():
        if changes:
            raise ValueError(f"{preset} is a trained model: {changes[0]} cannot be changed in it")
        found = storage.shape(located(preset))
        config = storage.config(located(preset))
    else:
        config = found = configure(preset, changes or (), vocabulary=vocabulary)
    parts = breakdown(found, 1, source, target)
    memory = footprint(found, 1, source, target)
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
    title = f"{' '.join([preset, *(changes or ())])}, vocabulary {config.vocabulary:,}"
    both = memory.cache_per_source_token > 0
    _print(_parts_table(title, parts, f"{source} source and {target} target tokens" if both else f"{target} tokens"))
    _print(_memory_table(memory, f"{source} + {target} tokens" if both else f"{target} tokens"))
    if runs:
        _print(_paper_table(runs))


@app.command(rich_help_panel=MEASURE)
def evaluate(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    source: Annotated[Path | None, typer.Option(help="What to translate, a sentence a line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="What a person made of it, line by line.")] = None,
    text: Annotated[Path | None, typer.Option(help="For a language model: a file of plain text, or a folder.")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens from one of its windows to the next. (default: half a block)")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Width of the search; 1 is greedy.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0.0, help="Length penalty.")] = None,
    split: Annotated[
        bool | None, typer.Option(help="Read a line sentence by sentence. (default: as the model learnt)")
    ] = None,
    tokenize: Annotated[str | None, typer.Option(help="sacreBLEU's tokeniser. (default: the recipe's)")] = None,
    lowercase: Annotated[bool | None, typer.Option(help="Compare in lower case. (default: the recipe's)")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the reliability diagram here (.svg, .png).")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a model on a text: BLEU, chrF, perplexity, accuracy, calibration; of a language model, bits a byte."""
    from regard.studies.evaluate import evaluate, foretell

    if text is not None:
        if source is not None or reference is not None:
            raise ValueError("--text is for a language model, --source and --reference are for a translator: choose")
        with telling("evaluating"):
            figures = foretell(model, text, stride)
        if as_json:
            typer.echo(json.dumps(figures, indent=2))
            return
        table = _table(str(model), f"{text}, in windows of {figures.pop('window')}", "", "")
        table.show_header = False
        for name, value in figures.items():
            table.add_row(name, f"{value:,.4f}" if isinstance(value, float) else f"{value:,}")
        _print(table)
        return
    if source is None or reference is None:
        raise ValueError("name what to translate and what a person made of it (--source, --reference), or a --text")
    with telling("evaluating"):
        result = evaluate(
            model,
            source,
            reference,
            beam=beam,
            alpha=alpha,
            split=split,
            tokenize=tokenize,
            lowercase=lowercase,
            picture=picture,
            output=output,
        )
    if as_json:
        numbers = {key: None if x == math.inf else x for key, x in result.items()}  # JSON has no Infinity
        typer.echo(json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False))
        return
    heading = f"{result['sentences']:,} lines, read {result['read']}; {result['tokens']:,} tokens"
    if result["left_out"]:
        heading += f"; BLEU and chrF alone count {result['left_out']:,} pairs that are longer than the model reads"
    table = _table(str(model), heading, "", "", "")
    table.show_header, note = False, table.columns[2]
    note.justify, note.no_wrap, note.overflow = "left", False, "fold"  # a signature is cut nowhere, a figure never
    for name in ("bleu", "chrf"):
        table.add_row(result[name]["name"], f"{result[name]['score']:.2f}", result[name]["signature"])
    table.add_row("perplexity", f"{result['perplexity']:.3f}", "of a token, given those before it")
    table.add_row("accuracy", f"{result['accuracy']:.2%}", "of tokens foretold right")
    table.add_row("calibration", f"{result['ece']:.2%}", "expected error of the confidence (ECE)")
    _print(table)


app.command(rich_help_panel=SMALLER)(prune)


@app.command(rich_help_panel=SMALLER)
def quantize(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    out: Annotated[Path, typer.Argument(help="The new one.")],
    precision: Annotated[str, typer.Option(help="int8, bf16 or fp32")] = "int8",
) -> None:
    """Write a model in smaller numbers: a quarter of the size in int8."""
    from regard.convert.precision import quantize_directory

    with telling("quantizing"):
        sizes = quantize_directory(model, out, precision)
    typer.echo(f"{out}: {_bytes(sizes.after)} of weights in {precision}, {_bytes(sizes.before)} in {model}")


@app.command(rich_help_panel=SMALLER)
def shortlist(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    source: Annotated[Path | None, typer.Option(help="Text to learn from. (default: what it was trained on)")] = None,
    target: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Candidates for each source token.")] = 100,
    common: Annotated[int, typer.Option(min=0, help="Frequent tokens that every sentence has.")] = 200,
) -> None:
    """Learn which target tokens go with which source tokens, for a quicker output layer."""
    from regard.recipes.shortlist import make_shortlist

    with telling("learning a shortlist"):
        made = make_shortlist(model, source, target, size=size, common=common)
    few = f"{made.coverage.size:,.0f} of {made.vocabulary:,} tokens for a sentence"
    typer.echo(f"{made.pairs:,} pairs: {few}, {made.coverage.covered:.1%} covered")


@app.command(rich_help_panel=SMALLER)
def distill(
    teacher: Annotated[Path, typer.Argument(help="The model directory of the teacher.")],
    recipe: Annotated[str, typer.Argument(help="The student: a shipped name, or a .yaml file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="settings to change, as train.steps=100")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The student's directory. (default: runs/RECIPE)")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Width of the teacher's search.")] = 5,
    mix: Annotated[bool, typer.Option("--mix", help="Learn from people's translations, too.")] = False,
) -> None:
    """Train a student on a teacher's translations; the same command again goes on where it was stopped."""
    from regard.recipes import reading as recipes
    from regard.recipes.distil import distil

    name = Path(recipe).stem
    loaded = recipes.load(recipe, overrides or ())
    if not distil(teacher, loaded, out or Path("runs") / name, name=name, beam=beam, mix=mix, telling=telling):
        sys.exit(130)


@app.command(rich_help_panel=OTHERS)
def export(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    out: Annotated[Path, typer.Argument(help="Where the other program's files go.")],
    to: Annotated[str, typer.Option(help="ctranslate2, onnx or hf")],
    quantization: Annotated[str | None, typer.Option(help="For ctranslate2: int8, float16, ...")] = None,
) -> None:
    """Write a model for another program: CTranslate2, ONNX Runtime, Hugging Face's transformers."""
    from regard.convert import export

    with telling("exporting"):
        export(model, out, to, quantization=quantization)
    typer.echo(f"{out}: {model} for {to}")


@app.command("import", rich_help_panel=OTHERS)
def import_(
    source: Annotated[Path, typer.Argument(help="A directory of Hugging Face's: Marian, BART, GPT-2, Llama, ...")],
    out: Annotated[Path, typer.Argument(help="The new model directory.")],
) -> None:
    """Make a model directory of one of Hugging Face's."""
    from regard.convert import import_

    with telling("importing"):
        left = import_(source, out)
    if left:
        typer.echo(f"note: not carried over from its way to generate: {'; '.join(left)}", err=True)
    typer.echo(f"{out}: try `regard translate {out}`")


@app.command(rich_help_panel=MEASURE)
def experiment(
    name: Annotated[str | None, typer.Argument(help="Which one; without a name, they are listed.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (a minute), small (two cores), full (the paper's).")] = "small",
    out: Annotated[Path | None, typer.Option(help="(default: runs/experiments/NAME-SCALE)")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is known already.")] = False,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster for the trials; local: one here.")] = None,
) -> None:
    """Measure a table of the paper, or one of its open questions; the same command again goes on."""
    from regard.experiments import lab

    if name is not None:
        lab.experiment(name, scale=scale, out=out, again=again, ray=ray)
        return
    table = _table("experiments", "", "name", "what it measures")
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    for each, about in lab.NAMES.items():
        table.add_row(each, about)
    _print(table)


@app.command(rich_help_panel=TRAIN)
def demo(
    directory: Annotated[Path | None, typer.Option(help="Where everything goes. (default: runs/quickstart)")] = None,
    dates: Annotated[bool, typer.Option("--dates", help="Learn to read dates instead: needs no corpus.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps. (default: about five minutes)")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and steps give the same run.")] = 1,
) -> None:
    """Train a translator in about five minutes, and see where it looks."""
    from regard.experiments.demo import demo

    demo(directory, dates=dates, steps=steps, seed=seed)


def _table(title: str, caption: str, *columns: str) -> Table:
    """A table whose first column holds names and whose others hold figures."""
    table = Table(title=Text(title, "bold"), title_justify="left", caption=Text(caption), caption_justify="left")
    table.box = SIMPLE_HEAD
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", style="" if i else "cyan", no_wrap=True)
    return table


def _print(table: Table) -> None:
    """Where no terminal says how wide it is, a table is as wide as what it holds."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(highlight=False, width=None if known else WIDE).print(table)


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
        table.add_row("", _bytes(memory.cache_per_sentence), "for each sentence, however long")
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
