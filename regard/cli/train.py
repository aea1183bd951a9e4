"""The verbs that train a model, and list what there is to train it by and on.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard.cli.tables import make_table, show
from regard.cli.telling import telling


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped name, a .yaml file, or a run's directory to go on with.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="settings to change, as train.steps=100")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The model directory. (default: runs/RECIPE)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there already.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Print the whole recipe and stop.")] = False,
) -> None:
    """Train a model from raw text: one recipe in, one model directory out."""
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


def recipes() -> None:
    """List the recipes that come with regard."""
    from regard.recipes.reading import shipped

    table = make_table("recipes", "Train one: regard train NAME [section.key=value ...]", "name", "")
    table.show_header, table.columns[1].justify, table.columns[1].no_wrap = False, "left", False
    for name, description in shipped().items():
        table.add_row(name, description)
    show(table)


def data(
    corpus: Annotated[str | None, typer.Argument(help="Fetch this one. (default: list them all)")] = None,
) -> None:
    """List the corpora that regard knows, or fetch one."""
    from regard.data.corpora import CORPORA, fetched, located
    from regard.training.display import fetching

    if corpus is None:
        table = make_table("corpora", "Fetch one: regard data NAME", "name", "lines", "languages", "terms", "here")
        for name, each in CORPORA.items():
            place = located(name)
            table.add_row(
                name, f"{each.pairs:,}", " → ".join(filter(None, each.languages)), each.licence, "yes" if place else ""
            )
        show(table)
        return
    console = Console(highlight=False)
    with fetching(console) as progress:
        files = fetched(corpus, progress=progress)
    for split, paths in files.items():
        console.print(f"  {split:6} {'  '.join(map(str, paths))}", soft_wrap=True)


def demo(
    directory: Annotated[Path | None, typer.Option(help="Where everything goes. (default: runs/quickstart)")] = None,
    dates: Annotated[bool, typer.Option("--dates", help="Learn to read dates instead: needs no corpus.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps. (default: about five minutes)")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and steps give the same run.")] = 1,
) -> None:
    """Train a translator in about five minutes, and see where it looks."""
    from regard.experiments.demo import demo

    demo(directory, dates=dates, steps=steps, seed=seed)


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
