"""Many LoRAs of one base: a mixed batch beside the base alone, and beside merged models one after the other; memory.

    python bench/loras.py [encoder] [decoder] [--loras 8] [--rank 8] [--where query value] [--rounds 7] [--keep 20]

Random models of the shapes of MiniLM (texts of 32 tokens are read) and of a Llama of 15 million parameters (16 tokens
are written after 16, greedily), fp32, in the C engine with one thread. The mixed batch has as many rows as that of the
base, and the LoRAs take turns in it; merged models have the same rows among them. Contestants alternate. Then a process
loads a base and `--keep` LoRAs of it, as the server does, and says what they add to its memory.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import resident
from rich.console import Console
from rich.table import Table
from torch import nn

import regard
from regard.core.added import added
from regard.core.outputs import HeadConfig
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.decoding.pool import search
from regard.decoding.protocol import SearchConfig
from regard.models import storage
from regard.models.family import build, configure
from regard.native import Addressed, Native, NativeReader

SHAPES = {
    "encoder": ("bert-tiny", "layers=6 d_model=384 heads=12 d_ff=1536 max_length=512", 8_000),
    "decoder": ("llama-tiny", "layers=6 d_model=288 heads=6 kv_heads=6 d_ff=768", 32_000),
}
GREEDY = SearchConfig(beam=1, limit=16)


def base_in(folder: Path, kind: str) -> Path:
    """A model that has learnt nothing, with tokens that it will not be asked for."""
    preset, settings, vocabulary = SHAPES[kind]
    torch.manual_seed(0)
    head = HeadConfig("classes", 3, pool="mean") if kind == "encoder" else None
    task = {"name": "classify", "labels": ["a", "b", "c"]} if kind == "encoder" else {"name": "generate", "block": 64}
    model = build(configure(preset, settings.split(), vocabulary=vocabulary), head)
    storage.save(model, folder / kind, storage.Purpose(task, {}))
    Tokenizer.learn(TokensConfig("char", 0), ["a good film"]).save(folder / kind / "tokenizer.json")
    return folder / kind


def loras_of(base: Path, count: int, change: dict[str, Any]) -> list[Path]:
    """So many directories, of the same numbers: it makes no difference here."""
    paths = [base.parent / f"{base.name}-{n}" for n in range(count)]
    head = HeadConfig("classes", 3, pool="mean") if base.name == "encoder" else None
    model = storage.begin(base, storage.config(base), head, [{"lora": change}])
    for part in added(model):
        for p in part.parameters():
            p.data += 0.05 * torch.randn_like(p)
    storage.save(model, paths[0], storage.purpose(base))
    shutil.copy(base / "tokenizer.json", paths[0])
    for path in paths[1:]:
        shutil.copytree(paths[0], path)
    return paths


def contestants(kind: str, base: nn.Module, models: list[nn.Module]) -> dict[str, Callable[[], Any]]:
    """What each does, by name."""
    n, draw = len(models), torch.Generator().manual_seed(1)
    if kind == "encoder":
        reader = NativeReader(base)
        texts = torch.randint(5, 8_000, (4 * n, 32), generator=draw).tolist()
        loras, merged = [reader.adapted(model, base) for model in models], list(map(NativeReader, models))
        return {
            "base": lambda: reader.outputs(texts),
            "mixed": lambda: reader.outputs(texts, of=[loras[i % n] for i in range(len(texts))]),
            "merged": lambda: [merged[i].outputs(texts[i::n]) for i in range(n)],
        }
    engine = Native(base)
    prompts = torch.randint(5, 30_000, (2 * n, 16), generator=draw).tolist()
    asked = [GREEDY.request(prompt, first=1) for prompt in prompts]
    added_to, whole = [engine.adapted(model, base) for model in models], list(map(Native, models))
    mixed = [replace(each, source=Addressed(each.source, added_to[i % n])) for i, each in enumerate(asked)]
    return {
        "base": lambda: search(engine, asked, GREEDY, 2),
        "mixed": lambda: search(engine, mixed, GREEDY, 2),
        "merged": lambda: [search(whole[i], asked[i::n], GREEDY, 2) for i in range(n)],
    }


def measured(kind: str, base: nn.Module, models: list[nn.Module], rounds: int) -> dict[str, float]:
    """Seconds of the processor for each, the median."""
    works, times = contestants(kind, base, models), dict[str, list[float]]()
    for _ in range(rounds + 1):
        for name, work in works.items():
            begin = time.process_time()
            work()
            times.setdefault(name, []).append(time.process_time() - begin)
    return {name: statistics.median(each[1:]) for name, each in times.items()}  # the first is to get warm


def memory(base: Path, loras: list[Path]) -> None:
    """Print what a base takes, and what all the LoRAs add to it."""
    before, first = resident(), regard.load(base)
    assert first.engines
    alone, others = resident(), [regard.load(path, beside=first) for path in loras]
    assert all(other.engines for other in others)
    print(f"{alone - before:.1f} {resident() - alone:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(SHAPES), metavar="encoder|decoder")
    parser.add_argument("--loras", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--where", nargs="+", default=["query", "value"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", type=int, default=20)
    parser.add_argument("--memory", nargs="+", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        memory(args.memory[0], args.memory[1:])
        return
    table = Table(
        "model", "base alone, s", "mixed, s", "merged, s", "mixed / base", "merged / mixed", "base, MiB", "LoRAs, MiB"
    )
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            place, change = base_in(Path(folder), kind), {"rank": args.rank, "where": args.where}
            paths = loras_of(place, max(args.loras, args.keep), change)
            base = storage.load(place)
            took = measured(kind, base, [storage.beside(path, base) for path in paths[: args.loras]], args.rounds)
            command = [sys.executable, __file__, "--memory", str(place), *map(str, paths[: args.keep])]
            kept = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        ratios = took["mixed"] / took["base"], took["merged"] / took["mixed"]
        table.add_row(kind, *(f"{x:.3f}" for x in took.values()), *(f"{x:.2f}" for x in ratios), *kept)
    Console().print(table)


if __name__ == "__main__":
    main()
