"""Time and peak memory of a training step on videos over the number of frames: joint, factorised, divided attention.

    python bench/video.py [--frames 4 8 ...] [--rounds N] [--backend math]

One video of 112 x 112 in patches of 16, 49 a frame; 4 layers of width 192, and 1 over the times in a factorised model;
forward and backward. The three alternate within one run; printed are medians, and their ratio to joint attention. Peak
memory is the growth of the resident set, each in a process of its own. The last line fits the growth: t ~ frames^slope
over the longest videos.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from attention import slope
from measure import PeakMemory, in_fresh_process
from rich.console import Console
from rich.table import Table

from regard.core.outputs import HeadConfig
from regard.models.video import WAYS, Video, VideoConfig

SIZES = {"size": 112, "tokens": 1, "layers": 4, "time_layers": 1, "d_model": 192, "d_ff": 768, "heads": 3}


def step(way: str, frames: int, backend: str) -> Callable[[], None]:
    torch.manual_seed(0)
    config = VideoConfig(**SIZES, frames=frames, space_time=way, backend=backend)  # type: ignore[arg-type]
    model = Video(config, HeadConfig("classes", 10))
    pixels = torch.randn(1, frames, 3, 112, 112)

    def run() -> None:
        model.zero_grad()
        model(pixels).sum().backward()

    return run


def seconds(frames: int, rounds: int, backend: str) -> dict[str, float]:
    steps = {way: step(way, frames, backend) for way in WAYS}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for run in steps.values():
        run()
    for _ in range(rounds):
        for way, run in steps.items():
            start = time.perf_counter()
            run()
            taken[way].append(time.perf_counter() - start)
    return {way: statistics.median(values) for way, values in taken.items()}


def peak(way: str, frames: int, backend: str) -> float:
    step(way, 2, backend)()  # libraries are loaded, threads started
    run = step(way, frames, backend)
    with PeakMemory() as memory:
        run()
    return memory.mib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="auto", help="of attention: math holds all its weights")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(peak(args.memory_of[0], int(args.memory_of[1]), args.backend))
        return
    table = Table(title="a training step on one video of 112 x 112")
    table.add_column("frames", justify="right")
    for way in WAYS:
        table.add_column(f"{way}, ms", justify="right")
        table.add_column("MiB", justify="right")
    times: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    memory: dict[str, dict[int, float]] = {way: {} for way in WAYS}
    for n in args.frames:
        for way, taken in seconds(n, args.rounds, args.backend).items():
            times[way][n] = taken * 1e3
            memory[way][n] = in_fresh_process("--memory-of", way, str(n), "--backend", args.backend)
        row = [f"{n:,}"]
        for way in WAYS:
            for each in (times, memory):
                row.append(f"{each[way][n]:,.0f} ({each[way][n] / each['joint'][n]:.2f})")
        table.add_row(*row)
    table.add_section()
    table.add_row("slope", *(f"n^{slope(each[way]):.2f}" for way in WAYS for each in (times, memory)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
