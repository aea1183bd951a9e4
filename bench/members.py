"""Members made smaller: size, speed and quality of each form of a model, in one table.

    python bench/members.py MODEL DATA [MODEL DATA ...] [--limit N] [--rounds N]

A form is the model in fp32, bf16, int8 and int4, without the last quarter of the heads of each attention, without its
middle layer, and as ONNX, run by onnxruntime; what a member cannot be, the table says. DATA is what `regard evaluate`
takes: rows, pictures, sounds, or a text for a language model; of a file, the first `--limit` lines are read. Quality is
the first figure of that; speed is rows that are judged, or tokens that a language model writes, in a second of
processor time, for the machine may be shared. Forms take turns; printed are medians over the rounds.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.api import load, told
from regard.convert import export
from regard.convert.onnx import DECODER, MODEL, Onnx
from regard.convert.precision import DTYPES, quantize_directory
from regard.core.blocks import Stack
from regard.inspection.taps import attentions
from regard.models import storage
from regard.studies import judging
from regard.studies.evaluate import foretell
from regard.studies.pruning import prune_directory
from regard.tasks.reader import Reader
from regard.tasks.translator import Translator
from regard.tasks.viewer import Viewer

WRITTEN = 32  # tokens of a language model, one after the other
UNRUN = "not run by regard: other programs do"  # the graph of some members
NAMES = {"tokens": "input_ids", "keep": "attention_mask", "segments": "token_type_ids"}  # in a graph


class Graph(nn.Module):
    """One graph, run by onnxruntime in place of a model."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        self.session = onnxruntime.InferenceSession(path)
        self.kind = nn.Parameter(torch.zeros(()))

    def forward(self, *shown: Tensor, **read: Tensor) -> Tensor:
        names = [each.name for each in self.session.get_inputs()]
        given = dict(zip(names, shown, strict=False)) | {NAMES[name]: x.long() for name, x in read.items()}
        given |= {name: torch.zeros_like(given[names[0]]) for name in names if name not in given}
        return torch.from_numpy(self.session.run(None, {name: x.numpy() for name, x in given.items()})[-1])


def by_graph(predictor: Any, at: Path) -> Any:
    """A predictor whose engine is onnxruntime."""
    if isinstance(predictor, Translator) and (at / DECODER).exists():
        predictor.native = lambda model: Onnx(at)
    elif isinstance(predictor, Reader | Viewer):
        made = predictor.module(Graph(at / MODEL), "")
        predictor.native = lambda model: made
    else:
        raise ValueError(UNRUN)
    return predictor


def forms(model: Path, folder: Path) -> dict[str, Path | str]:
    """The forms of a model by name, each a directory, or why there is none."""
    found: dict[str, Path | str] = {}
    plain: Any = storage.load(model)
    heads = {name: range(a.heads - a.heads // 4, a.heads) for name, a in attentions(plain).items()}
    stacks = {path: len(module.layers) for path, module in plain.named_modules() if isinstance(module, Stack)}
    layers = [f"{path}.layers.{count // 2}" for path, count in stacks.items() if count > 1]
    ways: dict[str, Any] = {
        each: lambda at, each=each: quantize_directory(model, at, each) for each in ("fp32", "bf16", "int8", "int4")
    }
    ways["heads pruned"] = lambda at: prune_directory(model, at, heads=heads)
    ways["layers pruned"] = lambda at: prune_directory(model, at, layers=layers)
    ways["ONNX"] = lambda at: export(model, at, to="onnx")
    assert {*DTYPES} <= ways.keys()
    for name, make in ways.items():
        try:
            make(folder / name)
            found[name] = folder / name
        except ValueError as error:
            found[name] = str(error)
    return found


def measured(form: str, at: Path, model: Path, data: Path) -> tuple[str, float, float]:
    """What the first figure of a form is called, that, and rows or tokens a second."""
    writes = told(model).task.name == "generate"
    if form == "ONNX":
        if writes:
            raise ValueError(UNRUN)
        with patch.object(judging, "load", lambda *a, **k: by_graph(load(*a, **k), at)):
            return measured("", model, model, data)
    model = at
    if writes:
        writer = load(model)
        writer.generate(limit=1)  # engines are made when they are first asked
        start = time.process_time()
        writer.generate(limit=WRITTEN, shortest=WRITTEN, beam=1, sampling=None)
        speed = WRITTEN / (time.process_time() - start)
        return "perplexity", foretell(model, data)["perplexity"], speed
    start = time.process_time()
    found = judging.judge(model, data)
    name, figure = next(iter(found["figures"].items()))
    return name, figure["score"], found["rows"] / (time.process_time() - start)


def compared(model: Path, data: Path, folder: Path, rounds: int) -> Table:
    known, figures = forms(model, folder), defaultdict[str, list[tuple[str, float, float]]](list)
    for _ in range(rounds):
        for name, at in known.items():
            if isinstance(at, Path):
                try:
                    figures[name].append(measured(name, at, model, data))
                except ValueError as error:
                    if name != "ONNX":
                        raise
                    figures[name].append((str(error), math.nan, math.nan))
    result, what = Table(box=box.MARKDOWN), figures["fp32"][0][0]
    for column in (model.name, "weights", what, "a second"):
        result.add_column(column, justify="left" if column == model.name else "right", no_wrap=True)
    for name, at in known.items():
        if isinstance(at, str):
            result.add_row(name, "", at, "")
            continue
        files = [*at.glob("*.onnx*")] or [at / storage.WEIGHTS]
        size, (why, figure, _) = sum(file.stat().st_size for file in files), figures[name][0]
        speed = statistics.median(each for *_, each in figures[name])
        said = [why, ""] if math.isnan(speed) else [f"{figure:.4g}", f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"]
        result.add_row(name, f"{size / 1e6:.1f} MB", *said)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="+", type=Path, help="model directories, each with what it is judged by")
    parser.add_argument("--limit", type=int, help="lines of that")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if len(args.given) % 2:
        parser.error("each model directory has data after it: MODEL DATA")
    for model, data in zip(args.given[::2], args.given[1::2], strict=True):
        with tempfile.TemporaryDirectory() as folder:
            try:
                if args.limit is not None and data.is_file():
                    with open(data, encoding="utf-8") as file:
                        (Path(folder) / data.name).write_text("".join(islice(file, args.limit)), "utf-8")
                    data = Path(folder) / data.name
                Console(width=200).print(compared(model, data, Path(folder), args.rounds))
            except (ValueError, OSError) as error:
                parser.error(str(error))


if __name__ == "__main__":
    main()
