"""Models in the formats of other programs: CTranslate2, ONNX and Hugging Face out, Hugging Face in."""

import json
from pathlib import Path

from regard.convert import ctranslate2, foreign, huggingface, onnx
from regard.convert.source import TOKENIZER, Source
from regard.files import new_directory, write_whole
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
    with new_directory(out_dir) as directory:
        if to == "ctranslate2":
            ctranslate2.write(source, directory, quantization)
        elif to == "hf":
            huggingface.write(source, directory)
        else:
            onnx.write(source, directory)


def import_(hf_dir: str | Path, out_dir: str | Path) -> list[str]:
    """Write a Marian, BART, Pegasus or mBART of Hugging Face's as a model directory of regard's.

    Of how it generates, the beam is kept, in decode.json; the rest is returned in words.
    """
    model, tokenizer = huggingface.read(Path(hf_dir))
    decode, left = foreign.generation(foreign.about_model(Path(hf_dir)))
    with new_directory(out_dir) as directory:
        storage.save(model, directory)
        tokenizer.save(directory / TOKENIZER)
        if decode:
            write_whole(directory / "decode.json", json.dumps(decode) + "\n")
    return left
