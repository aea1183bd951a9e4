"""What tells how good an answer is: a function, or the model of a directory."""

from regard.api import load
from regard.recipes.recipe import Recipe
from regard.tasks.reinforce import Reinforce, judged_by
from regard.tasks.reinforce import Worth as Worth


def worth(recipe: Recipe, given: Worth | None) -> Worth | None:
    """As a recipe says it, or as it is given; None: its task asks for none."""
    task = recipe.purpose()
    if not isinstance(task, Reinforce):
        if given is not None:
            raise ValueError(f"reward: task.name = {task.name} asks for none; leave it out")
        return None
    if (given is None) == (task.how.reward is None):
        raise ValueError(
            "task.reward: name the directory of a classifier or a reward model, or give a function from Python, by "
            "train(..., reward=...); one of the two"
        )
    return given or judged_by(load(task.how.reward), task.how, bool(task.chat))
