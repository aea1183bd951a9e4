"""Models in the formats of other programs: CTranslate2, ONNX and Hugging Face out, Hugging Face in."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.convert import ctranslate2, huggingface, onnx
from regard.convert.source import TOKENIZER, Source
from regard.files import sync
from regard.models import storage

FORMATS = ("ctranslate2", "hf", "onnx")


def export(model_dir: str | Path, out_dir: str | Path, to: str, *, quantization: str | None = None) -> None:
    """Write the model of a directory in another format, one of FORMATS, into a new directory.

    `quantization`, such as int8, is for CTranslate2.
    """
    if to not in FORMATS:
        raise ValueError(f"unknown format {to!r}: choose one of {', '.join(FORMATS)}")
    if quantization is not None and to != "ctranslate2":
        raise ValueError(f"quantization = {quantization!r} is for ctranslate2: leave it out for {to}")
    source = Source.load(model_dir)
    with _new(out_dir) as directory:
        if to == "ctranslate2":
            ctranslate2.write(source, directory, quantization)
        elif to == "hf":
            huggingface.write(source, directory)
        else:
            onnx.write(source, directory)


def import_(hf_dir: str | Path, out_dir: str | Path) -> None:
    """Write a Marian, BART, Pegasus or mBART of Hugging Face's as a model directory of regard's."""
    model, tokenizer = huggingface.read(Path(hf_dir))
    with _new(out_dir) as directory:
        storage.save(model, directory)
        tokenizer.save(directory / TOKENIZER)


@contextmanager
def _new(path: str | Path) -> Iterator[Path]:
    """A directory to write into, which gets its name when all of it is on the disk."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} is already there: name a new directory, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.writing")
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
        staging.mkdir()
        yield staging
        for file in [*staging.rglob("*"), staging]:
            sync(file)
        os.replace(staging, path)
        sync(path.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
