"""Small models that see, with weights by chance, as directories."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from regard.data.chat import CHATML, MARKED, with_marks
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import build, configure

SIGHT = {"size": 16}
NARROW = ["d_model=16", "d_ff=16", "heads=2", "size=16", "convolutions=2"]
PICTURES = [f"picture_{each}" for each in ("d_model=16", "d_ff=16", "heads=2", "layers=1")]
MODELS: dict[str, tuple[str, list[str], dict[str, Any]]] = {  # preset, changes, task
    "match": ("clip-tiny", [*NARROW, *PICTURES, "layers=1", "d_vector=12"], {"longest": 30}),
    "caption": ("caption-tiny", [*NARROW, "encoder_layers=1", "decoder_layers=1"], {"longest": 30}),
    "look": ("seer-tiny", [*NARROW, *PICTURES, "layers=1", "tie=none"], {"longest": 30, "question": "What is it?"}),
}
USES: dict[str, dict[str, Any]] = {
    "caption": {"limit": 8, "beam": 2},
    "look": {"limit": 8, "beam": 1, "sampling": None},
}


def eyes(place: Path, task: str, seed: int = 1) -> Path:
    """A model for a task, which says what it says by chance."""
    preset, changes, about = MODELS[task]
    tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"], ("cls", "sep") if task == "match" else ())
    if task == "look":
        tokens = with_marks(tokens, MARKED[CHATML])
    torch.manual_seed(seed)
    model = build(configure(preset, changes, vocabulary=len(tokens)))
    for p in model.parameters():
        p.data.add_(torch.randn_like(p))
    storage.save(model, place, storage.Purpose({"name": task, "sight": SIGHT, **about}, USES.get(task, {})))
    tokens.save(place / "tokenizer.json")
    if task == "look":
        (place / storage.TEMPLATE).write_text(CHATML)
    return place


def png(seed: int = 0, size: int = 20) -> bytes:
    """A picture of noise."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()
