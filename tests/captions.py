"""Pictures that are easily described, and their captions."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.pictures import KINDS, picture


def captioned(place: Path, name: str, count: int, seed: int) -> None:
    """Pictures of one colour, with two captions each that say which."""
    draw, rows = np.random.default_rng(seed), []
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        Image.fromarray(picture(kind, draw)).save(place / f"{name}{i}.png")
        rows.append((f"{name}{i}.png", [f"it is all {kind} .", f"a photo of {kind} things"]))
    with open(place / f"{name}.jsonl", "w") as file:
        file.writelines(json.dumps({"image": image, "caption": said}) + "\n" for image, said in rows)
    with open(place / f"{name}.tsv", "w") as file:
        file.writelines(f"{image}\t{each}\n" for image, said in rows for each in said)
