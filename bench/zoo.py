"""The attention zoo: time and peak memory of every kind over the length n, and what it can still find far away.

    python bench/zoo.py [--limit 32768] [--kinds fused window:64 ...] [--rounds N] [--patience S] [--steps N]

Cost: self-attention of one sequence, 8 heads of width 64, forward and backward, causal where there is such a form.
Contestants alternate within one run; printed are medians. Peak memory is the growth of the resident set, each in a
process of its own. What would take longer than `--patience` seconds, judging by its last length and its claim, or hold
more than 2 GiB of weights, is left out: `-`. The slope is the least-squares line through log n and log t over the
longest lengths, beside the exponent that is claimed.

Quality: associative recall. 8 keys stand somewhere among noise, each together with one of 8 values; the last position
asks for one of them. A model of two layers reads 256 positions; printed is how often it is right where the key was
among the nearest quarter of positions, and among the other three. To guess is 12 %.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import PeakMemory, in_fresh_process
from rich.console import Console
from rich.table import Table
from torch import Tensor

from regard.core.attention import attend
from regard.core.backends import BACKENDS
from regard.core.efficient import FORMS, Kind, check_kind
from regard.core.masks import causal
from regard.models.transformer import Transformer, TransformerConfig

HEADS, WIDTH = 8, 64
SHORTEST = 256
KINDS = [*BACKENDS, *(text for name, text in FORMS.items() if name != "full"), "performer:256:relu"]
LENGTH, KEYS, VALUES, NOISE = 256, 8, 8, 32  # of the recall task


def inputs(n: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3)]


def step(text: str, x: list[Tensor]) -> Callable[[], None]:
    """One forward and backward pass of a kind, or of full attention by a backend."""
    q, k, v = x
    if text in BACKENDS:

        def run() -> None:
            torch.autograd.grad(attend(q, k, v, mask=causal(), backend=text).sum(), x)

        return run
    kind = Kind.read(text)
    module = kind.make(d_k=WIDTH, max_length=q.shape[2], heads=HEADS)
    assert module is not None

    def run_kind() -> None:
        out = module(q, k, v, is_causal=kind.causal, keep=None, scale=WIDTH**-0.5, dropout=0.0)
        torch.autograd.grad(out.sum(), x)

    return run_kind


def claims(text: str) -> tuple[int, int]:
    """The exponents of n that are claimed for time and memory."""
    return 2 if text in BACKENDS else 1, 2 if text == "math" else 1


def seconds(kinds: list[str], n: int, rounds: int) -> dict[str, float]:
    x = inputs(n)
    steps = {kind: step(kind, x) for kind in kinds}
    taken: dict[str, list[float]] = {kind: [] for kind in steps}
    if n == SHORTEST:  # libraries are loaded, threads started
        for run in steps.values():
            run()
    for _ in range(rounds):
        for kind, run in steps.items():
            start = time.perf_counter()
            run()
            taken[kind].append(time.perf_counter() - start)
    return {kind: statistics.median(values) for kind, values in taken.items()}


def peak(kind: str, n: int) -> float:
    step(kind, inputs(SHORTEST))()
    x = inputs(n)
    with PeakMemory() as memory:
        step(kind, x)()
    return memory.mib


def fits(kind: str, n: int, times: dict[int, float], patience: float) -> bool:
    if kind == "math" and HEADS * n * n * 4 > 2**31:
        return False
    return not times or times[max(times)] * (n / max(times)) ** claims(kind)[0] <= patience


def slope(values: dict[int, float]) -> float:
    """The least-squares exponent over the longest lengths, an eighth of the longest at least."""
    points = [(math.log(n), math.log(y)) for n, y in values.items() if 8 * n >= max(values) and y > 0]
    if len(points) < 2:
        return math.nan
    x, y = (statistics.fmean(column) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def cost(kinds: list[str], limit: int, rounds: int, patience: float) -> list[Table]:
    times: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    memory: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    lengths = [2**i for i in range(SHORTEST.bit_length() - 1, limit.bit_length())]
    for n in lengths:
        able = [kind for kind in kinds if fits(kind, n, times[kind], patience)]
        for kind, taken in seconds(able, n, rounds if n < 8192 else 1).items():
            times[kind][n] = taken
            memory[kind][n] = in_fresh_process("--memory-of", kind, str(n))
    title, exponents = f"{HEADS} heads of {WIDTH}, forward + backward", {kind: claims(kind) for kind in kinds}
    in_ms = {kind: {n: 1e3 * taken for n, taken in found.items()} for kind, found in times.items()}
    return [
        over_lengths(f"{title}: ms", lengths, in_ms, {kind: of_time for kind, (of_time, _) in exponents.items()}),
        over_lengths(f"{title}: MiB", lengths, memory, {kind: of_memory for kind, (_, of_memory) in exponents.items()}),
    ]


def over_lengths(title: str, lengths: list[int], found: dict[str, dict[int, float]], claimed: dict[str, int]) -> Table:
    table = Table(title=title)
    for name in ("kind", *(f"{n:,}" for n in lengths), "slope", "claimed"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind, values in found.items():
        cells = [f"{values[n]:,.0f}" if n in values else "-" for n in lengths]
        table.add_row(kind, *cells, f"{slope(values):.2f}", str(claimed[kind]))
    return table


def recall(batch: int, make: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Texts (B, LENGTH), the value that each asks for (B,), and how far back it stands (B,).

    Ids: 0 is padding, then the noise, then key · VALUES + value, then the questions, one for each key.
    """
    text = torch.randint(1, 1 + NOISE, (batch, LENGTH), generator=make)
    places = torch.rand(batch, LENGTH - 1, generator=make).argsort(1)[:, :KEYS]
    values = torch.randint(VALUES, (batch, KEYS), generator=make)
    text.scatter_(1, places, 1 + NOISE + torch.arange(KEYS) * VALUES + values)
    asked = torch.randint(KEYS, (batch, 1), generator=make)
    text[:, -1:] = 1 + NOISE + KEYS * VALUES + asked
    return text, values.gather(1, asked)[:, 0], LENGTH - 1 - places.gather(1, asked)[:, 0]


def quality(kind: str, steps: int) -> tuple[float, float]:
    """How often a trained model answers rightly where the key is near, and where it is far."""
    torch.manual_seed(0)
    make = torch.Generator().manual_seed(0)
    config = TransformerConfig.tiny(
        1 + NOISE + KEYS * VALUES + KEYS,
        d_model=32,
        d_ff=64,
        heads=2,
        encoder_layers=2,
        decoder_layers=1,
        norm="pre",
        dropout=0.0,
        max_length=LENGTH,
        self_attention=kind,
        decoder_self_attention="full",
    )
    model = Transformer(config)
    optimiser = torch.optim.Adam(model.parameters())

    def logits(text: Tensor) -> Tensor:
        return model.output(model.encode(text).states[:, -1])[:, :VALUES]  # the first ids serve as values

    for i in range(steps):
        text, value, _ = recall(32, make)
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1.0, i / 50) * (1 - i / steps)
        loss = F.cross_entropy(logits(text), value)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        text, value, away = recall(1000, torch.Generator().manual_seed(1))
        right = torch.cat([logits(part) for part in text.split(100)]).argmax(1) == value
    near = away <= LENGTH // 4
    return right[near].float().mean().item(), right[~near].float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=32768, help="the longest n")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that one pass may take")
    parser.add_argument("--steps", type=int, default=800, help="of training in the recall task; 0: leave it out")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(peak(args.memory_of[0], int(args.memory_of[1])))
        return
    for kind in set(args.kinds) - BACKENDS.keys():
        try:
            check_kind(kind, dropout=0.0, scale=None, plain=True, backend="auto", max_length=min(SHORTEST, LENGTH))
        except ValueError as error:
            parser.error(str(error))
        if kind == "full":
            parser.error(f"full attention is measured by its backends: {', '.join(BACKENDS)}")
    console = Console(width=120)
    if args.limit >= SHORTEST:
        for table in cost(args.kinds, args.limit, args.rounds, args.patience):
            console.print(table)
    if not args.steps:
        return
    table = Table(title=f"recall among {LENGTH} positions after {args.steps} steps, % right")
    for name in ("kind", "near", "far", "minutes"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind in ["full", *(kind for kind in args.kinds if kind not in BACKENDS)]:
        start = time.perf_counter()
        near, far = quality(kind, args.steps)
        table.add_row(kind, f"{near:.0%}", f"{far:.0%}", f"{(time.perf_counter() - start) / 60:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
