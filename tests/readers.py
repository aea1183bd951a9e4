"""Models that read, in directories: they have learned nothing, but are not all of one mind."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.encoder import Encoder, bert_tiny
from regard.models.family import build
from regard.tasks.task import task

TEXTS = ["a good film", "the film is awful, and long", "fine", "two men sit on a bench", "a dog runs in the park"]
LONGEST = 24  # tokens that are read at once
TASKS: dict[str, dict[str, Any]] = {
    "classify": {"labels": ("down", "even", "up"), "longest": LONGEST},
    "embed": {"longest": LONGEST},
    "mask": {"block": LONGEST},
    "tag": {"labels": ("O", "B-PER", "I-PER", "B-ORG"), "longest": LONGEST},
    "answer": {"longest": LONGEST},
}


def directory(path: Path, name: str, seed: int = 3, **changes: Any) -> Path:
    """A model for a task, in a directory."""
    purpose = task(name)(**{**TASKS[name], **changes})
    tokens = Tokenizer.learn(TokensConfig("wordpiece", 80), TEXTS * 3, ("mask",))
    torch.manual_seed(seed)
    shape = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2, "max_length": LONGEST}
    model = build(bert_tiny(len(tokens), **shape), purpose.head(Encoder))
    for matrix in model.parameters():
        matrix.data += 0.3 * torch.randn_like(matrix)
    use = asdict(purpose.sections.decode())
    storage.save(model, path, storage.Purpose(purpose.noted(), use))
    tokens.save(path / "tokenizer.json")
    return path
