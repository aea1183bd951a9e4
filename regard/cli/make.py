"""The verbs that make another model directory of one, or files of another program.

torch takes a second to load: what needs it is imported when a verb runs.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli.options import Count
from regard.cli.tables import in_bytes, show
from regard.cli.telling import telling


def quantize(
    model: Path,  # a model directory
    out: Path,  # the new one
    *,
    precision: str = "int8",  # of its numbers: int8, int4, bf16 or fp32
) -> None:
    """Write a model in smaller numbers: a quarter of the size in int8, less in int4."""
    from regard.convert.precision import quantize_directory

    with telling("quantizing"):
        sizes = quantize_directory(model, out, precision)
    typer.echo(f"{out}: {in_bytes(sizes.after)} of weights in {precision}, {in_bytes(sizes.before)} in {model}")


def merge(
    model: Path,  # a model directory that adds to another
    out: Path,  # the new one
    *,
    base: Path | None = None,  # the model that it adds to (default: where it says)
) -> None:
    """Make one plain model of a model and what was added to it: LoRA, (IA)3, biases."""
    from regard.convert.merge import merge_directory

    with telling("merging"):
        merge_directory(model, out, base)
    typer.echo(f"{out}: a model by itself, which does what {model} does")


def shortlist(
    model: Path,  # a model directory
    *,
    source: Path | None = None,  # text to learn from (default: what it was trained on)
    target: Path | None = None,  # its translation, line by line
    size: Count = 100,  # candidates for each source token
    common: Annotated[int, typer.Option(min=0)] = 200,  # frequent tokens that every sentence has
) -> None:
    """Learn which target tokens go with which source tokens, for a quicker output layer."""
    from regard.api import check_task
    from regard.recipes.shortlist import make_shortlist

    check_task(model, "translate")
    with telling("learning a shortlist"):
        made = make_shortlist(model, source, target, size=size, common=common)
    few = f"{made.coverage.size:,.0f} of {made.vocabulary:,} tokens for a sentence"
    typer.echo(f"{made.pairs:,} pairs: {few}, {made.coverage.covered:.1%} covered")


def export(
    model: Path,  # a model directory
    out: Path,  # where the other program's files go; a file, if it ends in .gguf
    *,
    to: str | None = None,  # which program: ctranslate2, onnx, hf, peft or gguf (default: as OUT ends)
    quantization: str | None = None,  # `--type` of numbers: int8, float16, ...; in a .gguf f16, q8_0, q4_0, q4_1
    past: bool = True,  # onnx: a language model goes on from its past, token by token
) -> None:
    """Write a model for another program: llama.cpp, ONNX Runtime, CTranslate2, Hugging Face's transformers."""
    from regard.convert import export

    with telling("exporting"):
        export(model, out, to, quantization=quantization, past=past)
    typer.echo(f"{out}: {model} for {to or 'gguf'}")


def import_(
    source: str,  # weights by name (regard models), a directory of Hugging Face's, hf:ORG/NAME, a .gguf or .onnx file
    out: Path,  # the new model directory
    *,
    base: Path | None = None,  # of a directory of peft's, the model directory that it adds to
) -> None:
    """Make a model directory of weights that others have trained, by name, or from a file or a directory."""
    from regard.convert import import_
    from regard.convert.weights import WEIGHTS
    from regard.models import storage
    from regard.tasks.task import task
    from regard.training.display import fetching

    if source in WEIGHTS:
        with fetching(Console(stderr=True)) as progress:
            left = import_(source, out, progress=progress)
    else:
        with telling("importing"):
            left = import_(source, out, base=base)
    if left:
        typer.echo(f"note: not carried over: {'; '.join(left)}", err=True)
    known = storage.purpose(out)
    assert known is not None
    kind = task(known.task["name"])
    verb = "chat" if kind.name == "generate" and (out / storage.TEMPLATE).is_file() else kind.verb or kind.name
    verb = "embed" if kind.name == "graph" and "labels" not in known.task else verb
    typer.echo(f"{out}: try `regard {verb} {out}`")


def models() -> None:
    """List the weights that regard knows by name."""
    from regard.convert.weights import WEIGHTS

    rows = [
        (name, f"{each.parameters / 1e6:.1f} M", in_bytes(each.bytes), "yes" * each.here, each.licence, each.title)
        for name, each in WEIGHTS.items()
    ]
    columns = ["name", "parameters", "package", "here", "<terms", "<what for"]
    show("weights", columns, rows, "Make a model directory of one: regard import NAME DIRECTORY")
