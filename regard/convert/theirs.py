"""A model of another program, as it was read: nothing of it is ours yet, and all readers give the same."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard.files import read_whole

CONFIG, GENERATION = "config.json", "generation_config.json"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"


class Theirs(NamedTuple):
    """What `foreign.read` makes a model of: in the words of Hugging Face, whatever file it comes from."""

    path: Path  # the directory, or the file that has everything
    weights: Path  # the file with the tensors
    about: dict[str, Any]  # what config.json and generation_config.json say
    tensors: dict[str, Tensor]
    content: dict[str, Any]  # of a tokenizer.json
    told: dict[str, Any]  # what tokenizer_config.json says
    template: str | None = None  # how a chat is written down: a template of Jinja's

    def at(self, name: str) -> Path:
        """Where something was said, for errors."""
        return self.path / name if self.path.is_dir() else self.path


def halved(x: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys for rotation by halves, as Hugging Face has them: others turn neighbours together.

    >>> import torch
    >>> halved(torch.arange(8), heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return x.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def told_by(directory: Path, name: str) -> dict[str, Any]:
    """What a JSON file of a directory says; nothing if it is not there."""
    path = directory / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_whole(path).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content
