"""Models of other programs, by what their files are: each reader gives `Theirs`. Nothing in a file is run.

A directory of Hugging Face's has config.json, a tokenizer, and weights as safetensors, as a file of PyTorch's with
nothing but tensors, or as an ONNX graph; a .gguf has everything; llama2.c's .bin has its tokenizer.bin beside it.
"""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.convert import gguf, graphs, llama2c, tokenizers
from regard.convert.theirs import CONFIG, GENERATION, SETTINGS, TEMPLATE, Theirs, told_by

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"


def read(source: Path) -> Theirs:
    """The model in a directory, or in a file."""
    if not source.exists():
        raise ValueError(f"{source} is not there: name a directory of Hugging Face's, a .gguf, .onnx or .bin file")
    if source.is_dir():
        own = [*sorted(source.glob("*.gguf")), *(path for path in [source / "model.bin"] if path.is_file())]
        if (source / CONFIG).is_file() or not own:
            return _directory(source)
        if len(own) > 1:
            raise ValueError(f"{source} holds several models: name one, such as {own[0]}")
        source = own[0]
    if source.suffix == ".gguf":
        return gguf.read(source)
    if source.suffix == ".bin" and source.name != PICKLED:
        return llama2c.read(source)
    if source.suffix in (".onnx", ".safetensors", ".bin"):
        folder = next((path for path in (source.parent, source.parent.parent) if (path / CONFIG).is_file()), None)
        if folder is None:
            raise ValueError(f"{source} needs a {CONFIG} beside it, which says what model it is")
        return _directory(folder, source)
    raise ValueError(f"{source} cannot be imported: name a directory of Hugging Face's, a .gguf, .onnx or .bin file")


def _directory(directory: Path, weights: Path | None = None) -> Theirs:
    """A directory of Hugging Face's; its weights in this file, or in the first that there is."""
    if not (config := told_by(directory, CONFIG)):
        raise ValueError(f"{directory} is not a directory of a Hugging Face model: it has no {CONFIG}")
    generation = {key: value for key, value in told_by(directory, GENERATION).items() if value is not None}
    content, told = tokenizers.read(directory), told_by(directory, SETTINGS)
    found = [weights] if weights else _weights(directory)
    tensors: dict[str, Tensor] = {}
    for path in found:
        tensors |= _load(path)
    template = directory / TEMPLATE
    chat = template.read_text("utf-8") if template.is_file() else told.get("chat_template")
    return Theirs(
        directory, found[0], config | generation, tensors, content, told, chat if isinstance(chat, str) else None
    )


def _weights(directory: Path) -> list[Path]:
    """The files with the tensors."""
    ways = [[SAFE], [PICKLED], *graphs.FILES]
    found = next((names for names in ways if all((directory / name).is_file() for name in names)), None)
    if found is None:
        parts = sorted(directory.glob("*.index.json"))
        other = f" but {parts[0].name}" if parts else ""
        raise ValueError(
            f"{directory} has no {SAFE}{other}: load it with transformers in a place you trust, and call "
            f"save_pretrained, which writes one {SAFE}"
        )
    return [directory / name for name in found]


def _load(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".onnx":
        return graphs.read(path)
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}): copy it again") from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        if not (isinstance(tensors, dict) and all(isinstance(x, Tensor) for x in tensors.values())):
            raise TypeError("not a tensor for each name")
    except Exception as error:  # of an unpickler anything may come
        code = re.search(r"GLOBAL (\S+)", str(error))
        raise ValueError(
            f"{path} is damaged, or holds more than tensors{f', such as {code[1]}' if code else ''}: that may be code, "
            "which regard does not run. Load it with transformers in a place you trust and call save_pretrained, which "
            f"writes one {SAFE}"
        ) from None
    return tensors
