"""The verbs that make another model directory of one, or files of another program.

torch takes a second to load: what needs it is imported when a verb runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.tables import in_bytes
from regard.cli.telling import telling


def quantize(
    model: Annotated[Path, typer.Argument(help="A model directory.")],
    out: Annotated[Path, typer.Argument(help="The new one.")],
    precision: Annotated[str, typer.Option(help="int8, bf16 or fp32")] = "int8",
) -> None:
    """Write a model in smaller numbers: a quarter of the size in int8."""
    from regard.convert.precision import quantize_directory

    with telling("quantizing"):
        sizes = quantize_directory(model, out, precision)
    typer.echo(f"{out}: {in_bytes(sizes.after)} of weights in {precision}, {in_bytes(sizes.before)} in {model}")


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
