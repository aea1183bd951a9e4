"""Files of Hugging Face's: fetched, found, opened. No code of theirs runs, whatever they hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.checks import need
from regard.files import read_whole

CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
PLAIN = ("*.json", "*.txt", "*.spm", "*.model", "*.jinja")  # all but weights
HUB = "hf:"


def fetched(source: str | Path) -> Path:
    """A directory as it is; of `hf:ORG/NAME`, or `hf:ORG/NAME@REVISION`, that which the hub has, kept in its cache."""
    name, _, revision = str(source).removeprefix(HUB).partition("@")
    if not str(source).startswith(HUB):
        return Path(source)
    hub = need("huggingface_hub", "convert")
    try:
        for weights in ("model*.safetensors", "pytorch_model*.bin"):  # the second kind only where there is no first
            found = Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=[*PLAIN, weights]))
            if any(found.glob(weights)):
                break
    except Exception as error:  # no connection, no such name, no leave: of many kinds
        why = " ".join(str(error).split())
        raise ValueError(f"{source} cannot be fetched ({type(error).__name__}: {why[:200]}): check the name") from None
    return found


def told_by(directory: Path, name: str) -> dict[str, Any]:
    """What a JSON file of a directory says; nothing if it is not there."""
    path = directory / name
    if not path.is_file():
        return {}
    content = parsed(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def parsed(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_whole(path).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def load(directory: Path) -> dict[str, Tensor]:
    """The tensors of a directory, from one file or the several that an index names."""
    readers: dict[str, Callable[[Path], Any]] = {WEIGHTS: load_file, PICKLED: _unpickled}
    for name, read in readers.items():
        index, files = told_by(directory, f"{name}.index.json"), [name]
        if not (directory / name).is_file():
            if not index:
                continue
            weights = index.get("weight_map")
            files = [*dict.fromkeys(weights.values())] if isinstance(weights, dict) else []
            if not files or not all(isinstance(file, str) and Path(file).name == file for file in files):
                raise ValueError(f"{directory / name}.index.json is damaged: its weight_map names files: copy it again")
        tensors: dict[str, Tensor] = {}
        for file in files:
            if not (directory / file).is_file():
                raise ValueError(f"{directory} has no {file}, which {name}.index.json names: copy it, too")
            try:
                tensors |= read(directory / file)
            except SafetensorError as error:
                raise ValueError(f"{directory / file} is damaged ({error}): copy it again") from error
        older = {".gamma": ".weight", ".beta": ".bias"}  # of a LayerNorm
        return {
            next((f"{key[: -len(a)]}{b}" for a, b in older.items() if key.endswith(a)), key): x
            for key, x in tensors.items()
        }
    raise ValueError(
        f"{directory} has no {WEIGHTS}, nor {PICKLED}: load it with transformers in a place you trust, and call "
        f"save_pretrained, which writes one {WEIGHTS}"
    )


def _unpickled(path: Path) -> dict[str, Tensor]:
    """A state dict and nothing else: what would run code is refused."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # of pickle, of zip, of many kinds
        found = None
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise ValueError(
            f"{path} is damaged, or holds more than tensors, which regard does not open: load it with transformers in "
            f"a place you trust, and call save_pretrained, which writes {WEIGHTS}"
        )
    return found
