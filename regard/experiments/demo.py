"""`make demo`: English to Spanish in about five minutes, from raw text; dates where no corpus can be had."""

import os
import sys
from pathlib import Path
from shutil import which

from rich.console import Console
from rich.text import Text

from regard.api import load
from regard.data.corpora import obtain
from regard.experiments import dates as generated
from regard.inspection.page import write_page
from regard.recipes import reading as recipes
from regard.recipes.recipe import Recipe
from regard.recipes.train import begun, check_place, train
from regard.training.display import fetching

SENTENCE = "She forgot her keys because she was tired."


def demo(
    directory: Path | None = None,
    *,
    dates: bool = False,
    steps: int | None = None,
    seed: int = 1,
    console: Console | None = None,
) -> None:
    """Train the `quickstart` recipe, show what it can do, and write an attention page."""
    console = console or Console()
    recipe = recipes.load("quickstart", [f"train.seed={seed}", *([f"train.steps={steps}"] if steps else [])])
    if not dates:
        assert recipe.data.corpus is not None
        try:
            with fetching(console) as progress:
                obtain(recipe.data.corpus, progress=progress)
        except (OSError, ValueError) as error:
            console.print(Text.assemble("  ", ("no corpus", "yellow"), f"  {error}"), soft_wrap=True)
            console.print("             so here is a task that needs none: dates in sixty languages", highlight=False)
            dates = True
    if dates:
        generated.demo(directory or Path("runs/dates"), steps=steps or 800, seed=seed, console=console)
        return
    directory = directory or Path("runs/quickstart")
    own = begun(directory, recipe)
    resume = own and not (directory / "model.safetensors").exists()
    if not resume:
        check_place(directory, overwrite=own)
        if steps is None:
            _say_how_long(recipe, console)
    if not train(recipe, directory, name="quickstart", resume=resume, overwrite=own, console=console):
        raise KeyboardInterrupt
    translator = load(directory)
    write_page(directory / "attention.html", translator.attention_page(SENTENCE))
    console.print(Text(f"  look     {directory / 'attention.html'}"), soft_wrap=True)
    here = Path(sys.argv[0])
    program = os.path.relpath(here) if here.name == "regard" and not which("regard") else "regard"  # as `make demo` has
    console.print(Text(f"  try it   {program} translate {directory}"), soft_wrap=True)
    console.print(Text(f"  explore  {program} explore {directory}"), soft_wrap=True)


def _say_how_long(recipe: Recipe, console: Console) -> None:
    """Only steps count as minutes of a recipe; and how many there are hangs on how busy the machine is."""
    text = f"{recipe.train.minutes:g} minutes of learning; preparing before and testing after take one more, or two"
    console.print(Text.assemble(("  time     ", "dim"), text), soft_wrap=True)
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load > 0.75 * cores:
        text = f"this machine is busy (load {load:.1f} on {cores} cores): fewer steps fit, and the model will be weaker"
        console.print(Text.assemble(("  note     ", "dim"), text), soft_wrap=True)
