"""A model directory in another number format: int8, int4, bf16, or fp32 again."""

from pathlib import Path
from typing import NamedTuple

import torch

from regard.adaptation.change import Change, Int4, Int8, apply
from regard.core.quantised import bits_of
from regard.data.recordings import SPELLING
from regard.files import new_directory, read_whole, write_whole
from regard.models import storage

WHOLE: dict[str, Change] = {"int8": Int8(), "int4": Int4()}
DTYPES = dict.fromkeys(WHOLE, torch.float32) | {"bf16": torch.bfloat16, "fp32": torch.float32}  # of all floats
USED = (
    "tokenizer.json",
    storage.TEMPLATE,
    SPELLING,
    "recipe.yaml",
    "shortlist.safetensors",
)  # what goes with a model into use


class Sizes(NamedTuple):
    """Bytes of the weights on disk."""

    before: int
    after: int


def quantize_directory(model_dir: str | Path, out_dir: str | Path, precision: str = "int8") -> Sizes:
    """Write a whole new model directory beside the old one, its weights in `precision`: int8, int4, bf16 or fp32.

    int8 has whole numbers in every product and embedding (`regard.core.quantised`) and fp32 around them; int4 has
    groups of four bits between embedding and head; bf16 is every weight rounded; fp32 from any of them is the same
    model in larger numbers. What is there is never overwritten.
    """
    model_dir, out_dir = Path(model_dir), Path(out_dir)
    if precision not in DTYPES:
        raise ValueError(f"unknown precision {precision!r}: choose one of {', '.join(DTYPES)}")
    with new_directory(out_dir) as made:
        if precision in WHOLE and (bits := bits_of(storage.load(model_dir))) is not None:
            raise ValueError(f"{model_dir} is int{bits} already")
        model = storage.load(model_dir, dtype=DTYPES[precision])
        model = apply(WHOLE[precision], model) if precision in WHOLE else model
        storage.save(model, made, storage.purpose(model_dir), place=out_dir)
        for name in USED:
            if (model_dir / name).exists():
                write_whole(made / name, read_whole(model_dir / name))
        return Sizes(*((folder / storage.WEIGHTS).stat().st_size for folder in (model_dir, made)))
