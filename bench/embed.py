"""Vectors of sentences beside Sentence Transformers and ONNX Runtime: the same weights, the same texts, one run.

    python bench/embed.py [MODEL] [--only NAME ...] [--limit N] [--rounds N] [--words N]

MODEL is a model directory that embeds; without one it is all-MiniLM-L6-v2, as `regard import minilm` fetches it. The
texts are those of STS-B's test set, or as many stretches of `--words` words of it. Each contestant has a process of its
own and begins with text; they take turns. `batched` is all texts at once, in sentences a second; `single` is a hundred
of them one at a time, in milliseconds (median and 95th percentile). What a contestant can be told (texts in a batch,
threads, for ONNX Runtime whether its own optimiser goes over the graph) is what was quickest for its first texts.
Printed are medians over the rounds; a ratio is the median of the rounds' ratios. Beside them: Spearman's correlation of
cosines with what people say, what a number of a vector differs from Sentence Transformers' at most, and what a
process's memory grows by in a thousand calls after the first hundred.
"""

import argparse
import csv
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import resident
from rich.console import Console
from rich.table import Table

import regard
from regard.convert import export, import_
from regard.evaluation.classes import correlation

DATA = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data")) / "stsb"
CORES = 2
SINGLE = 100  # sentences that are read one at a time
TRIED = 128  # sentences by which settings are chosen
CALLS = 1_000  # over which memory is watched
FLOAT = 1  # as ONNX numbers types
BATCHES = (16, 32, 64, 128)
LONGEST = 256  # tokens, as all-MiniLM-L6-v2 has it
Embed = Callable[[list[str]], Any]  # -> (N, d)


def ours(directory: Path, how: str) -> Iterator[Embed]:
    """regard."""
    engine, _, precision = how.partition(" ")
    for threads in (CORES, 1):
        if engine == "torch":
            torch.set_num_threads(threads)
        embedder = regard.load(directory / "model", engine=engine, precision=precision or None, workers=threads)
        yield embedder.embed


def sentence_transformers(directory: Path, how: str) -> Iterator[Embed]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(directory / "hf"), device="cpu", local_files_only=True)
    model.max_seq_length = LONGEST

    def embed(threads: int, batch: int, texts: list[str]) -> Any:
        torch.set_num_threads(threads)
        return model.encode(texts, batch_size=batch, show_progress_bar=False)

    for threads in (CORES, 1):
        for batch in BATCHES:
            yield lambda texts, threads=threads, batch=batch: embed(threads, batch, texts)


def onnxruntime(directory: Path, how: str) -> Iterator[Embed]:
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "hf" / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]"))

    def embed(session: Any, batch: int, texts: list[str]) -> Any:
        order, found = sorted(range(len(texts)), key=lambda i: -len(texts[i])), None
        wanted = [each.name for each in session.get_inputs()]
        for first in range(0, len(order), batch):
            some = order[first : first + batch]
            read = tokenizer.encode_batch([texts[i] for i in some])
            keep = np.array([each.attention_mask for each in read], np.int64)
            given = {"input_ids": np.array([each.ids for each in read], np.int64), "attention_mask": keep}
            given["token_type_ids"] = np.zeros_like(keep)
            (x,) = session.run(None, {name: given[name] for name in wanted})
            mean = (x * keep[:, :, None]).sum(1) / keep.sum(1, keepdims=True)
            if found is None:
                found = np.empty((len(texts), x.shape[2]), np.float32)
            found[some] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return found

    for threads in (CORES, 1):
        for graph in sorted(directory.glob(f"{how}*.onnx")):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
            for batch in BATCHES:
                yield lambda texts, session=session, batch=batch: embed(session, batch, texts)


# Name, what builds it, and what that needs to know.
CONTESTANTS: dict[str, tuple[Callable[[Path, str], Iterator[Embed]], str]] = {
    "regard": (ours, "native"),
    "regard int8": (ours, "native int8"),
    "regard torch": (ours, "torch"),
    "Sentence Transformers": (sentence_transformers, ""),
    "ONNX Runtime": (onnxruntime, "fp32"),
    "ONNX Runtime int8": (onnxruntime, "int8"),
}
NEEDS = {"Sentence Transformers": "sentence_transformers"}
PEER = {"ONNX Runtime int8": "regard int8"}  # whom a ratio compares with; the others: regard


def graphs(directory: Path) -> None:
    """The model for ONNX Runtime: as PyTorch writes it, and as its own optimiser for such models leaves it."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory / "hf", attn_implementation="eager").eval()
    ids, axes = torch.ones(2, 7, dtype=torch.int64), {0: "batch", 1: "length"}
    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(names, given, strict=True))).last_hidden_state

    torch.onnx.export(
        Features(),
        (ids, ids, ids),
        directory / "fp32.onnx",
        input_names=names,
        output_names=["features"],
        dynamic_axes=dict.fromkeys((*names, "features"), axes),
        dynamo=False,
    )
    c = model.config
    better = optimize_model(
        str(directory / "fp32.onnx"), "bert", num_heads=c.num_attention_heads, hidden_size=c.hidden_size, opt_level=1
    )
    better.save_model_to_file(str(directory / "fp32-optimised.onnx"))
    for name in ("", "-optimised"):
        own, made = directory / f"fp32{name}.onnx", directory / f"int8{name}.onnx"
        quantize_dynamic(own, made, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": FLOAT})


def read(limit: int, words: int | None) -> tuple[list[str], list[tuple[str, str, float]]]:
    """Texts to be quick with, and pairs to be right about."""
    with open(DATA / "stsb-en-test.csv", encoding="utf-8") as file:
        pairs = [(a, b, float(score)) for a, b, score in csv.reader(file)]
    texts = [text for a, b, _ in pairs for text in (a, b)]
    if words is not None:
        spoken = " ".join(texts).split()
        texts = [" ".join(spoken[i * 7 : i * 7 + words]) for i in range(len(texts))]
    return texts[:limit], pairs


def timed(embed: Embed, texts: list[str]) -> float:
    start = time.perf_counter()
    embed(texts)
    return time.perf_counter() - start


def work(name: str, directory: Path, limit: int, words: int | None) -> None:
    """A contestant in its own process: for each line, `batched` or `single`, a round, answered with figures."""
    build, how = CONTESTANTS[name]
    texts, pairs = read(limit, words)
    choices = list(build(directory, how))
    for embed in choices:
        embed(texts[:8])
    many = min(choices, key=lambda embed: min(timed(embed, texts[:TRIED]) for _ in range(3)))
    few = min(choices, key=lambda embed: statistics.median(timed(embed, [text]) for text in texts[:40]))
    a, b = (many([pair[side] for pair in pairs]) for side in (0, 1))
    near = correlation([score for *_, score in pairs], (a * b).sum(1).tolist())["spearman"]
    np.save(directory / f"{name}.npy", a)
    print(json.dumps({"spearman": near}), flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            for call in range(CALLS + CALLS // 10):
                if call == CALLS // 10:
                    before = resident()
                few(texts[call % len(texts) :][:1])
            print(json.dumps(resident() - before), flush=True)
            continue
        together = line.strip() == "batched"
        taken = [timed(many, texts)] if together else [timed(few, [text]) for text in texts[:SINGLE]]
        print(json.dumps(taken), flush=True)


def compete(directory: Path, names: list[str], options: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {"batched": [], "single": []} for name in names}
    workers = {}
    for name in names:
        command = [sys.executable, __file__, str(directory), "--work-as", name, *options]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        line = workers[name].stdout.readline()
        if not line:
            raise SystemExit(f"{name} did not start")
        found[name] |= json.loads(line)
    for mode in ("batched", "single") * rounds + ("memory",):
        for name, worker in workers.items():  # the others wait for their turn
            print(mode, file=worker.stdin, flush=True)
            said = json.loads(worker.stdout.readline())
            found[name].setdefault(mode, []).append(said)
    for worker in workers.values():
        worker.communicate()
    return found


def table(title: str, directory: Path, found: dict[str, dict[str, Any]], texts: int) -> Table:
    result = Table(title=title)
    columns = ("", "sentences/s", "regard: speed", "ms p50", "ms p95", "regard: single", "Spearman", "differs", "MiB")
    for column in columns:
        result.add_column(column, justify="right" if column else "left", no_wrap=True)
    truth = directory / "Sentence Transformers.npy"
    for name, figures in found.items():
        peer = found.get(PEER.get(name, "regard"), figures)
        ratios = {
            mode: statistics.median(sum(b) / sum(a) for a, b in zip(peer[mode], figures[mode], strict=True))
            for mode in ("batched", "single")
        }
        shares = [statistics.quantiles(taken, n=20) for taken in figures["single"]]  # 5 %, 10 %, ...
        apart = np.abs(np.load(directory / f"{name}.npy") - np.load(truth)).max() if truth.exists() else np.nan
        result.add_row(
            name,
            f"{texts / statistics.median(taken[0] for taken in figures['batched']):,.0f}",
            f"{ratios['batched']:.2f}x",
            f"{1000 * statistics.median(share[9] for share in shares):.2f}",
            f"{1000 * statistics.median(share[18] for share in shares):.2f}",
            f"{ratios['single']:.2f}x",
            f"{figures['spearman']:.4f}",
            f"{apart:.0e}",
            f"{figures['memory'][0]:+.1f}",
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a model directory")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[*CONTESTANTS], help="these contestants")
    parser.add_argument("--limit", type=int, default=1000, help="sentences")
    parser.add_argument("--words", type=int, help="of a text; left out: as they are")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work-as", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work_as:
        work(args.work_as, args.model, args.limit, args.words)
        return
    names = [name for name in args.only if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    for name in set(args.only) - {*names}:
        print(f"{name} is not installed here, and left out")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if args.model is None:
            import_("minilm", directory / "model")
        else:
            (directory / "model").symlink_to(args.model.resolve())
        export(directory / "model", directory / "hf", "hf")
        if any(name.startswith("ONNX") for name in names):
            graphs(directory)
        options = ["--limit", str(args.limit), *(["--words", str(args.words)] if args.words else [])]
        found = compete(directory, names, options, args.rounds)
        texts = len(read(args.limit, args.words)[0])
        what = f"{texts:,} texts of STS-B" + (f", {args.words} words each" if args.words else "")
        Console(width=140).print(table(what, directory, found, texts))


if __name__ == "__main__":
    main()
