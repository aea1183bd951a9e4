"""Encoders of pictures beside Hugging Face's and ONNX Runtime's: the same weights, the same pictures, one run.

    python bench/see.py [SHAPE ...] [--only NAME ...] [--batch N] [--rounds N]

Shapes are vit-tiny, vit-small, vit-base, and clip-pictures and clip-texts, the two towers of clip-base. Weights are
random, and exported to Hugging Face. Everybody begins with the same pixels, or tokens (of 8 to 30 in a text), and ends
with logits, or vectors. Each contestant has a process of its own, and they take turns. `batched` is `--batch` of them
at once, in so many a second; `single` is one at a time, in milliseconds. What a contestant can be told (threads, for
Hugging Face the way through attention, for ONNX Runtime whether its own optimiser goes over the graph) is what was
quickest before the first round. Printed are medians over the rounds; a ratio is the median of the rounds' ratios.
`differs` is how far its numbers are from Hugging Face's at most, as a share of the largest.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from regard.convert import export
from regard.core.outputs import HeadConfig
from regard.core.quantised import quantise
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.pair import Pair, clip_base
from regard.models.vision import FAMILY, Vision
from regard.native import NativeReader
from regard.tasks.match import Tower

CORES = 2
PAUSE = 0.2  # seconds between turns: threads of ONNX Runtime's stay awake for 30 ms, on the cores of the next
SHAPES = ("vit-tiny", "vit-small", "vit-base", "clip-pictures", "clip-texts")
See = Callable[[Any], Any]  # pixels (B, C, H, W) or texts -> (B, C)


def make(shape: str, directory: Path) -> None:
    """A model of ours, and the same of theirs."""
    torch.manual_seed(0)
    if shape.startswith("vit"):
        storage.save(Vision(FAMILY.presets[shape](), HeadConfig("classes", 1000)), directory / "model")
    else:
        words = Tokenizer.learn(TokensConfig("char", size=0), ["a dog in the snow"])
        storage.save(Pair(clip_base(len(words))), directory / "model", storage.Purpose({"name": "match"}, {}))
        words.save(directory / "model" / "tokenizer.json")
    export(directory / "model", directory / "hf", "hf")


def given(shape: str, batch: int) -> Any:
    """What is seen or read."""
    draw = torch.Generator().manual_seed(1)
    if shape == "clip-texts":
        lengths = torch.randint(8, 31, (batch,), generator=draw).tolist()
        return [torch.randint(4, 12, (length,), generator=draw).tolist() for length in lengths]
    return torch.randn(batch, 3, 224, 224, generator=draw)


def ours(directory: Path, shape: str, how: str) -> Iterator[See]:
    """regard."""
    model: Any = storage.load(directory / "model").eval()
    model = model if shape.startswith("vit") else Tower(model, sees=shape == "clip-pictures")
    if how == "int8":
        quantise(model)
    for threads in (CORES, 1):
        reader = NativeReader(model, threads=threads)

        @torch.inference_mode()
        def see(x: Any, reader: NativeReader = reader, threads: int = threads) -> Any:
            torch.set_num_threads(threads)
            if shape == "clip-texts":
                return np.stack(reader.outputs(x))
            return torch.cat([model.output(torch.from_numpy(each)[None]) for each in reader.looked(x)]).numpy()

        yield see


def padded(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and which of them count; behind each text all is its last token."""
    most = max(map(len, texts))
    keep = torch.arange(most) < torch.tensor([len(text) for text in texts])[:, None]
    return torch.tensor([text + text[-1:] * (most - len(text)) for text in texts]), keep.long()


class Theirs(torch.nn.Module):
    """Hugging Face's, from pixels or tokens to logits or vectors of length 1."""

    def __init__(self, directory: Path, shape: str, attention: str) -> None:
        import transformers

        super().__init__()
        transformers.logging.set_verbosity_error()  # that a tower alone leaves the other out
        name = {"clip-pictures": "CLIPVisionModelWithProjection", "clip-texts": "CLIPTextModelWithProjection"}
        kind = getattr(transformers, name.get(shape, "ViTForImageClassification"))
        self.model, self.shape = kind.from_pretrained(directory / "hf", attn_implementation=attention).eval(), shape

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        if keep is None:
            found = self.model(pixel_values=x)
            return found.logits if self.shape.startswith("vit") else _unit(found.image_embeds)
        features = self.model.text_model(input_ids=x, attention_mask=keep).last_hidden_state
        last = (keep.sum(1) - 1)[:, None, None].expand(-1, 1, features.shape[2])  # whatever their config calls the end
        return _unit(self.model.text_projection(features.gather(1, last)[:, 0]))


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def hugging_face(directory: Path, shape: str, how: str) -> Iterator[See]:
    for attention in ("sdpa", "eager"):
        model = Theirs(directory, shape, attention)
        for threads in (CORES, 1):

            @torch.inference_mode()
            def see(x: Any, model: Any = model, threads: int = threads) -> Any:
                torch.set_num_threads(threads)
                return model(*(padded(x) if shape == "clip-texts" else (x,))).numpy()

            yield see


def onnxruntime(directory: Path, shape: str, how: str) -> Iterator[See]:
    import onnxruntime

    def see(session: Any, x: Any) -> Any:
        parts = padded(x) if shape == "clip-texts" else (x,)
        names = (each.name for each in session.get_inputs())
        return session.run(None, {name: part.numpy() for name, part in zip(names, parts, strict=True)})[0]

    for threads in (CORES, 1):
        for graph in sorted(directory.glob("*.onnx")):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
            yield partial(see, session)


def graphs(directory: Path, shape: str) -> None:
    """Theirs for ONNX Runtime: as PyTorch writes it, and as its own optimiser for such models leaves it."""
    from onnxruntime.transformers.optimizer import optimize_model

    model = Theirs(directory, shape, "eager")
    parts = padded(given(shape, 2)) if shape == "clip-texts" else (given(shape, 2),)
    names = ["x", "keep"][: len(parts)]
    axes = {name: {0: "batch"} | ({1: "length"} if len(parts) > 1 else {}) for name in names} | {"y": {0: "batch"}}
    how = {"input_names": names, "output_names": ["y"], "dynamic_axes": axes, "dynamo": False}
    torch.onnx.export(model, parts, directory / "plain.onnx", **how)
    c = model.model.config
    sizes = {"num_heads": c.num_attention_heads, "hidden_size": c.hidden_size, "opt_level": 1}
    better = optimize_model(str(directory / "plain.onnx"), "vit" if shape.startswith("vit") else "clip", **sizes)
    better.save_model_to_file(str(directory / "optimised.onnx"))


CONTESTANTS: dict[str, tuple[Callable[[Path, str, str], Iterator[See]], str]] = {
    "regard": (ours, ""),
    "Hugging Face": (hugging_face, ""),
    "ONNX Runtime": (onnxruntime, ""),
    "regard int8": (ours, "int8"),
}


def timed(see: See, x: Any) -> float:
    start = time.perf_counter()
    see(x)
    return time.perf_counter() - start


def work(name: str, directory: Path, shape: str, batch: int) -> None:
    """A contestant in its own process: for each line, `batched` or `single`, a round, answered with seconds."""
    build, how = CONTESTANTS[name]
    many, choices = given(shape, batch), list(build(directory, shape, how))
    asked = {"batched": many, "single": many[:1]}
    best = {}
    for mode, x in asked.items():
        for see in choices:
            see(x)
        best[mode] = min(choices, key=lambda see, x=x: min(timed(see, x) for _ in range(3)))
    np.save(directory / f"{name}.npy", best["batched"](many))
    print("ready", flush=True)
    for line in sys.stdin:
        mode = line.strip()
        runs = 1 if mode == "batched" else 5
        print(json.dumps(statistics.median(timed(best[mode], asked[mode]) for _ in range(runs))), flush=True)


def compete(
    directory: Path, names: list[str], shape: str, batch: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    workers = {}
    for name in names:
        command = [sys.executable, __file__, shape, "--batch", str(batch), "--work-as", name, str(directory)]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if workers[name].stdout.readline() != "ready\n":
            raise SystemExit(f"{name} did not start")
    found: dict[str, dict[str, list[float]]] = {name: {"batched": [], "single": []} for name in names}
    for mode in ("batched", "single") * rounds:
        for name, worker in workers.items():  # the others wait for their turn
            time.sleep(PAUSE)
            print(mode, file=worker.stdin, flush=True)
            found[name][mode].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    return found


def table(shape: str, directory: Path, found: dict[str, dict[str, list[float]]], batch: int) -> Table:
    result = Table(title=f"{shape}, batches of {batch}")
    for column in ("", "a second", "regard: batched", "ms, single", "regard: single", "differs"):
        result.add_column(column, justify="right" if column else "left", no_wrap=True)
    truth = directory / "Hugging Face.npy"
    for name, taken in found.items():
        ratios = [
            statistics.median(b / a for a, b in zip(found.get("regard", taken)[mode], taken[mode], strict=True))
            for mode in ("batched", "single")
        ]
        own, its = (np.load(directory / f"{each}.npy") for each in (name, "Hugging Face" if truth.exists() else name))
        result.add_row(
            name,
            f"{batch / statistics.median(taken['batched']):,.1f}",
            f"{ratios[0]:.2f}x",
            f"{1000 * statistics.median(taken['single']):.1f}",
            f"{ratios[1]:.2f}x",
            f"{np.abs(own - its).max() / np.abs(its).max():.0e}",
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=SHAPES, choices=[*SHAPES, []])
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[*CONTESTANTS], help="these contestants")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work-as", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for shape in args.shapes:
        if args.work_as:
            work(args.work_as[0], Path(args.work_as[1]), shape, args.batch)
            continue
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            make(shape, directory)
            if "ONNX Runtime" in args.only:
                graphs(directory, shape)
            found = compete(directory, args.only, shape, args.batch, args.rounds)
            Console(width=110).print(table(shape, directory, found, args.batch))


if __name__ == "__main__":
    main()
