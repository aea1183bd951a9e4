"""Models that see, in directories: they have learned nothing, but are not all of one mind; and pictures for them."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from regard.core.outputs import HeadConfig
from regard.data.pictures import Sight
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.models.video import Video, vivit_tiny
from regard.models.vision import Vision
from regard.tasks.task import task

SIZE, SIDE = 24, 3  # pixels, and patches, along a side
LONGEST = 24  # tokens of a text
TEXTS = ["it is all red .", "a photo of green things", "a photo of a blue dog", "two men sit on a bench"]
LAYERS = ["d_model=16", "d_ff=32", "heads=2", f"size={SIZE}", "patch=8"]
MODELS: dict[str, tuple[str, str, list[str]]] = {  # what it is for, its preset, and what is changed in that
    "vit": ("recognise", "vit-tiny", ["layers=2"]),
    "deit": ("recognise", "deit-tiny", ["layers=2"]),
    "cct": ("recognise", "cct-2", ["convolutions=3"]),
    "clip": ("match", "clip-tiny", ["layers=2", "picture_layers=2", "picture_d_model=16", "picture_heads=2"]),
    "captions": ("caption", "caption-tiny", ["encoder_layers=2", "decoder_layers=2"]),
}


def directory(path: Path, name: str, seed: int = 3) -> Path:
    """A model for a task, in a directory."""
    kind, preset, own = MODELS[name]
    own = [*LAYERS, *own, *(["convolutions=0", "d_vector=8", "picture_d_ff=32"] if name == "clip" else [])]
    own += ["convolutions=0"] if name == "captions" else []
    asked: dict[str, Any] = {"sight": Sight(size=SIZE)}
    if kind == "recognise":
        asked |= {"labels": ("cat", "dog", "bird"), "pool": {"vit": "first", "deit": "both", "cct": "attention"}[name]}
    else:
        asked |= {"longest": LONGEST}
    purpose = task(kind)(**asked)
    marks = purpose.marks if kind == "match" else ()
    tokens = Tokenizer.learn(TokensConfig("bpe", 300), TEXTS * 3, marks)
    torch.manual_seed(seed)
    config = configure(preset, own, vocabulary=None if kind == "recognise" else len(tokens))
    model = build(config, purpose.head(Vision)) if kind == "recognise" else build(config)
    for matrix in model.parameters():
        matrix.data += 0.2 * torch.randn_like(matrix)
    use = asdict(purpose.sections.decode())
    storage.save(model, path, storage.Purpose(purpose.noted(), use))
    if kind != "recognise":
        tokens.save(path / "tokenizer.json")
    return path


def png(seed: int = 0, size: int = 30) -> bytes:
    """A picture, as a file."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def filming(path: Path) -> Path:
    """A model that classifies videos of 6 grey frames, in a directory."""
    torch.manual_seed(0)
    small: dict[str, Any] = {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2, "size": 16, "convolutions": 2}
    model = Video(vivit_tiny(**small, frames=6), HeadConfig("classes", 3, pool="first"))
    for p in model.parameters():
        p.data.add_(torch.randn_like(p))
    told = {"name": "recognise", "labels": ["a", "b", "c"], "pool": "first"}
    storage.save(model, path, storage.Purpose({**told, "sight": {"size": 16, "channels": 1, "frames": 6}}, {}))
    return path


def gif() -> bytes:
    """A video of 6 frames, as a file."""
    shots = [Image.fromarray(np.full((16, 16), 40 * i, np.uint8)) for i in range(6)]
    out = io.BytesIO()
    shots[0].save(out, "GIF", save_all=True, append_images=shots[1:], duration=100)
    return out.getvalue()
