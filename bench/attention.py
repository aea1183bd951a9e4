"""Time and peak memory of the attention backends over the length n.

    python bench/attention.py [--lengths 128 512 ...] [--rounds N]

Causal self-attention of one sequence, 8 heads of width 64, forward and backward. Backends alternate within one run;
printed are medians. Peak memory is the growth of the resident set, each backend in a process of its own. `math` is
left out where its weights alone would pass 2 GiB. The last line fits the growth: t ~ n^slope over the longest lengths.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from measure import PeakMemory, in_fresh_process
from rich.console import Console
from rich.table import Table
from torch import Tensor

from regard.core.attention import attend
from regard.core.backends import BACKENDS
from regard.core.masks import causal

HEADS, WIDTH = 8, 64


def inputs(n: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3)]


def step(backend: str, n: int) -> Callable[[], None]:
    q, k, v = inputs(n)

    def run() -> None:
        torch.autograd.grad(attend(q, k, v, mask=causal(), backend=backend).sum(), (q, k, v))

    return run


def fits(backend: str, n: int) -> bool:
    return backend != "math" or HEADS * n * n * 4 <= 2**31


def seconds(n: int, rounds: int) -> dict[str, float]:
    steps = {backend: step(backend, n) for backend in BACKENDS if fits(backend, n)}
    taken: dict[str, list[float]] = {backend: [] for backend in steps}
    for run in steps.values():
        run()
    for _ in range(rounds):
        for backend, run in steps.items():
            start = time.perf_counter()
            run()
            taken[backend].append(time.perf_counter() - start)
    return {backend: statistics.median(values) for backend, values in taken.items()}


def peak(backend: str, n: int) -> float:
    step(backend, 64)()  # libraries are loaded, threads started
    with PeakMemory() as memory:
        step(backend, n)()
    return memory.mib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(peak(args.memory_of[0], int(args.memory_of[1])))
        return
    table = Table(title=f"causal attention, {HEADS} heads of {WIDTH}, forward + backward")
    table.add_column("n", justify="right")
    for backend in BACKENDS:
        table.add_column(f"{backend}, ms", justify="right")
        table.add_column("MiB", justify="right")
    times: dict[str, dict[int, float]] = {backend: {} for backend in BACKENDS}
    memory: dict[str, dict[int, float]] = {backend: {} for backend in BACKENDS}
    for n in args.lengths:
        row = [f"{n:,}"]
        measured = seconds(n, args.rounds if n < 8192 else 1)
        for backend in BACKENDS:
            if backend not in measured:
                row += ["-", "-"]
                continue
            times[backend][n] = measured[backend]
            memory[backend][n] = in_fresh_process("--memory-of", backend, str(n))
            row += [f"{measured[backend] * 1e3:,.1f}", f"{memory[backend][n]:,.0f}"]
        table.add_row(*row)
    table.add_section()
    slopes = ["slope"]
    for backend in BACKENDS:
        slopes += [f"n^{slope(times[backend]):.2f}", f"n^{slope(memory[backend]):.2f}"]
    table.add_row(*slopes)
    Console().print(table)


def slope(values: dict[int, float]) -> float:
    """The exponent between the longest length and a quarter of it."""
    last = max(values)
    first = min(values, key=lambda n: abs(n - last // 4))
    if first == last or values[first] <= 0:
        return math.nan
    return math.log(values[last] / values[first]) / math.log(last / first)


if __name__ == "__main__":
    main()
