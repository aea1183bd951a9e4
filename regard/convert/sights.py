"""How a model sees pictures: Hugging Face's preprocessor_config.json, read and written."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.convert.hub import told_by
from regard.data.pictures import RESAMPLES, Sight
from regard.files import write_whole

PROCESSOR = "preprocessor_config.json"
FIXED = {"do_rescale": True, "rescale_factor": 1 / 255, "do_convert_rgb": True}  # which ours always are
HALF = 1 / 127.5  # ViViT's factor, after which 1 is taken away


def read_sight(directory: Path, size: int, channels: int, frames: int = 0) -> dict[str, Any]:
    """Our settings, as a directory of theirs has them; without such a file, those of ViT."""
    about, path = told_by(directory, PROCESSOR), directory / PROCESSOR
    lower = frames > 0 and about.get("rescale_factor") == HALF and about.get("offset", True) is True
    about |= {"rescale_factor": 1 / 255} if lower else {}
    for name, value in FIXED.items():
        if (its := about.get(name)) not in (None, value) and name != "do_convert_rgb":
            raise ValueError(f"{path}: {name} = {its!r} cannot be expressed, only {value!r}")
    cut, by_number = about.get("do_center_crop") is True, {number: name for name, number in RESAMPLES.items()}
    side, square = _side(about.get("size"), size)
    seen, exact = _side(about.get("crop_size"), size) if cut else (side, True)
    if not exact or (not cut and not square):
        raise ValueError(
            f"{path}: size = {about.get('size')}: pictures are not of one size, which regard cannot express"
        )
    if seen != size:
        raise ValueError(f"{path}: pictures of {seen} x {seen} pixels are not those of the model, {size} x {size}")
    normal = about.get("do_normalize", True) is not False
    given: dict[str, Any] = {
        "size": size,
        "channels": channels,
        "resize": side if cut else None,
        "square": square,
        "resample": by_number.get(about.get("resample", 2), "bilinear"),
        "mean": about.get("image_mean", [0.5]) if normal else [0.0],
        "std": about.get("image_std", [0.5]) if normal else [1.0],
        "frames": frames,
    }
    if lower:  # (2 x - 1 - mean) / std, of x from 0 to 1
        given |= {"mean": [(each + 1) / 2 for each in given["mean"]], "std": [each / 2 for each in given["std"]]}
    return asdict(Sight(**given))


def _side(said: Any, size: int) -> tuple[int, bool]:
    """Pixels along a side, and whether both have as many."""
    if said is None or isinstance(said, int):
        return said or size, True
    if isinstance(said, Mapping) and isinstance(short := said.get("shortest_edge"), int):
        return short, False
    if isinstance(said, Mapping) and isinstance(high := said.get("height"), int) and said.get("width") == high:
        return high, True
    raise ValueError(f"{PROCESSOR}: size = {said!r} is no square, which regard cannot express")


def write_sight(sight: Sight, directory: Path) -> None:
    """And back."""
    side = sight.resize or sight.size
    about: dict[str, Any] = {"image_processor_type": "DeiTImageProcessor" if sight.resize else "ViTImageProcessor"}
    if sight.frames:
        about["image_processor_type"] = "VideoMAEImageProcessor"
    about |= {"do_resize": True, "resample": RESAMPLES[sight.resample]}
    about["size"] = {"height": side, "width": side} if sight.square else {"shortest_edge": side}
    about["do_center_crop"] = sight.resize is not None
    if sight.resize is not None:
        about["crop_size"] = {"height": sight.size, "width": sight.size}
    about |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    for name, numbers in (("image_mean", sight.mean), ("image_std", sight.std)):
        about[name] = [*numbers] * (sight.channels // len(numbers))
    write_whole(directory / PROCESSOR, json.dumps(about, indent=2) + "\n")
