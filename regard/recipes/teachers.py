"""What teaches a student beside its labels: the model of another directory, which must know the same."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data.tokenizers import Tokenizer
from regard.models import storage
from regard.recipes.prepare import Prepared
from regard.recipes.recipe import Recipe
from regard.training.distillation import Distilled
from regard.training.objectives import Objective

TOLD = ("kind", "labels", "sight", "ear")  # of a task: what is told, and of what


def check_teacher(recipe: Recipe, task: Any = None) -> None:
    """Refuse a teacher that is for something else; with the task that the data has made, one of other labels."""
    place = recipe.distil.teacher
    if place is None:
        return
    known, own = storage.purpose(place), (task or recipe.purpose()).noted()
    theirs: dict[str, Any] = {} if known is None else known.task
    if theirs.get("name") != own["name"]:
        does = f"is to {theirs['name']}" if theirs else "does not say what it is for"
        raise ValueError(f"distil.teacher = {place}: it {does}, and this recipe is to {own['name']}")
    for key in TOLD:
        one, other = (json.dumps(facts.get(key)) for facts in (theirs, own))
        if one != other and (task is not None or key != "labels"):
            raise ValueError(f"distil.teacher = {place}: its {key} = {one:.80}, and the student's {other:.80}")
    longest = storage.config(place).longest
    if longest is not None and longest < (needed := recipe.purpose().length(recipe)):
        raise ValueError(f"distil.teacher = {place}: it reads {longest} tokens, and a text may have {needed}")


def taught(objective: Objective, recipe: Recipe, data: Prepared, device: torch.device) -> tuple[Objective, nn.Module]:
    """An objective, shared with the teacher of a recipe; and that teacher."""
    place = recipe.distil.teacher
    assert place is not None
    check_teacher(recipe, data.task)
    if data.task.worded:
        theirs = Tokenizer.load(Path(place) / "tokenizer.json").rust.get_vocab()
        if theirs != data.tokenizer.rust.get_vocab():
            raise ValueError(
                f"distil.teacher = {place}: its vocabulary of {len(theirs):,} tokens is another than the student's of "
                f"{len(data.tokenizer):,}: let the student begin with a model that has the same"
            )
    teacher = storage.load(place, dtype=torch.float32).to(device)
    return Distilled(objective, teacher, recipe.distil, len(data.tokenizer) if data.task.worded else None), teacher
