"""One model directory of two: a model, and what was added to it."""

from pathlib import Path
from typing import Any

from regard.adaptation.change import BESIDE
from regard.convert.precision import USED
from regard.core.added import added, merged
from regard.files import new_directory, read_whole, write_whole
from regard.models import storage


def merge_directory(model_dir: str | Path, out_dir: str | Path, base: str | Path | None = None) -> None:
    """Write a whole new model directory, plain and alone, that does what one does which adds to another.

    `base` is where that one is, if not where the directory says. What is there is never overwritten.
    """
    model_dir, out_dir = Path(model_dir), Path(out_dir)
    with new_directory(out_dir) as made:
        model: Any = storage.load(model_dir, base=base)
        if not added(model) and getattr(model, "base", None) is None:
            raise ValueError(f"{model_dir} adds to no other model: there is nothing to merge")
        try:
            model = merged(model)
        except ValueError as error:
            raise ValueError(f"{model_dir} cannot be merged: {error}") from None
        model.changes = [change for change in model.changes if not isinstance(change, BESIDE)]
        model.base = None
        storage.save(model, made, storage.purpose(model_dir))
        for name in USED:
            if (model_dir / name).exists() and name != "recipe.yaml":  # which says how to teach, not what this is
                write_whole(made / name, read_whole(model_dir / name))
