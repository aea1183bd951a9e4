"""The verbs that train a model, and list what there is to train it by and on.

torch takes a second to load: what needs it is imported when a verb runs.
"""

import sys
from pathlib import Path

import typer
from rich.console import Console

from regard.cli.options import Count
from regard.cli.tables import show
from regard.cli.telling import telling


def train(
    recipe: str,  # a shipped name, a .yaml file, or a run's directory to go on with
    overrides: list[str] | None = None,  # `SECTION.KEY=VALUE` settings to change, as train.steps=100
    *,
    out: Path | None = None,  # the model directory (default: runs/RECIPE)
    resume: bool = False,  # go on with a run that is there already, and begin one that is not: what torchrun may repeat
    overwrite: bool = False,  # replace a run that is there already
    dump: bool = False,  # print the whole recipe and stop
) -> None:
    """Train a model on your own data: one recipe in, one model directory out."""
    from regard.recipes import reading as recipes

    if resume and overwrite:
        raise ValueError("--resume goes on with a run and --overwrite replaces it: choose one")
    directory = out or Path("runs") / Path(recipe).stem
    begun = resume and (directory / "recipe.yaml").exists()
    if Path(recipe).is_dir() and recipe not in recipes.shipped():
        directory, begun = Path(recipe), True
        if not (directory / "recipe.yaml").exists():
            raise ValueError(f"{recipe} is not a run to go on with: it has no recipe.yaml")
        if out is not None or overwrite:
            raise ValueError(f"{recipe} is a run to go on with, in its place: leave out --out and --overwrite")
    loaded = recipes.load(str(directory / "recipe.yaml") if begun else recipe, overrides or ())
    if dump:
        typer.echo(recipes.dump(loaded), nl=False)
        return
    from regard.recipes.train import train

    name = directory.name if begun else Path(recipe).stem
    if not train(loaded, directory, name=name, resume=begun, overwrite=overwrite):
        sys.exit(130)


def recipes() -> None:
    """List the recipes that come with regard."""
    from regard.recipes.reading import shipped

    show("recipes", ["", "<"], shipped().items(), "Train one: regard train NAME [section.key=value ...]")


def data(
    corpus: str | None = None,  # fetch this one (default: list them all)
) -> None:
    """List the corpora that regard knows, or fetch one."""
    from regard.data.corpora import CORPORA, fetched, located
    from regard.training.display import fetching

    if corpus is None:
        rows = [
            (
                name,
                f"{each.pairs:,}",
                " → ".join(filter(None, each.languages)),
                each.licence,
                "yes" * bool(located(name)),
            )
            for name, each in CORPORA.items()
        ]
        show("corpora", ["name", "lines", "languages", "terms", "here"], rows, "Fetch one: regard data NAME")
        return
    console = Console(highlight=False)
    with fetching(console) as progress:
        files = fetched(corpus, progress=progress)
    for split, paths in files.items():
        console.print(f"  {split:6} {'  '.join(map(str, paths))}", soft_wrap=True)


def demo(
    *,
    directory: Path | None = None,  # where everything goes (default: runs/quickstart)
    dates: bool = False,  # learn to read dates instead: needs no corpus
    steps: Count | None = None,  # training steps (default: about five minutes)
    seed: int = 1,  # the same seed and steps give the same run
) -> None:
    """Train a translator in about five minutes, and see where it looks."""
    from regard.experiments.demo import demo

    demo(directory, dates=dates, steps=steps, seed=seed)


def distill(
    teacher: Path,  # the model directory of the teacher
    recipe: str,  # the student: a shipped name, or a .yaml file
    overrides: list[str] | None = None,  # `SECTION.KEY=VALUE` settings to change, as train.steps=100
    *,
    out: Path | None = None,  # the student's directory (default: runs/RECIPE)
    beam: Count = 5,  # width of the search of a teacher that translates
    mix: bool = False,  # learn from people's translations, too
) -> None:
    """Train a student on a teacher's translations, or, of other tasks, by how likely it holds each class or token.

    The same command again goes on where it was stopped.
    """
    from regard.recipes import reading as recipes
    from regard.recipes.distil import distil

    name = Path(recipe).stem
    loaded = recipes.load(recipe, overrides or ())
    if not distil(teacher, loaded, out or Path("runs") / name, name=name, beam=beam, mix=mix, telling=telling):
        sys.exit(130)
