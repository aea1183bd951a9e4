"""`make demo`: English to Spanish in about five minutes, from raw text; dates where no corpus can be had."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from regard import recipe as recipes
from regard.api import load
from regard.data.corpora import obtain
from regard.experiments import dates as generated
from regard.inspection.page import write_page
from regard.pipeline import check_place, train
from regard.recipe import Recipe
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
    own = _own(directory, recipe)
    resume = own and not (directory / "model.safetensors").exists()
    if not resume:
        check_place(directory, overwrite=own)
    if not train(recipe, directory, name="quickstart", resume=resume, overwrite=own, console=console):
        raise KeyboardInterrupt
    translator = load(directory)
    write_page(directory / "attention.html", translator.attention_page(SENTENCE))
    console.print(Text(f"  look     {directory / 'attention.html'}"), soft_wrap=True)
    console.print(Text(f"  try it   regard translate {directory}"), soft_wrap=True)
    console.print(Text(f"  explore  regard explore {directory}"), soft_wrap=True)


def _own(directory: Path, recipe: Recipe) -> bool:
    """Whether the directory holds a run of this recipe."""
    if not (directory / "recipe.yaml").exists():
        return False
    before = recipes.load(str(directory / "recipe.yaml"))
    return replace(before, train=replace(before.train, shards=recipe.train.shards)) == recipe
