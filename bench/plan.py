"""A run that is too large to be tried here, planned by the arithmetic of `regard info` (assumptions: docs/hosts.md).

    python bench/plan.py big --tokens 7.5e9 --batch 25000 --devices 8 --flops 9.5e12 --share 0.42 --gbit 10

Each row is a number of hosts: seconds of a step at work and on the cable, days if the one waits for the other and days
if the cable is hidden behind the work, and what a process holds. Of an encoder-decoder, tokens are those of the target,
and the source has as many.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from regard.core.blocks import layers_of
from regard.models.costs import footprint, parameters, training_flops
from regard.models.family import blank, configure

DAY = 86_400


class Row(NamedTuple):
    """What a run asks of so many hosts."""

    hosts: int
    work: float  # seconds of a step
    cable: float  # seconds of a step
    days: tuple[float, float]  # the least, and the most
    ddp: float  # GB of a process
    fsdp: float


def plan(config: Any, hosts: Sequence[int], a: argparse.Namespace) -> Iterator[Row]:
    """A row for each number of hosts."""
    n, steps, sentences = parameters(config), math.ceil(a.tokens / a.batch), a.batch / a.length
    flops = sentences * training_flops(config, 1, a.length, a.length)
    kept = footprint(config, 1, a.length, a.length)
    layers = [sum(p.numel() for p in layer.parameters()) for layer in layers_of(blank(config))]
    at_hand = 8 * (n - sum(layers) + 2 * max(layers))  # weights and gradients: what is in no layer, and two of these
    for count in hosts:
        world = count * a.devices
        work = flops / (world * a.flops * a.share)
        # A ring: all but its own part of the gradients passes the cable of a host, once to be added, once to be told.
        cable = 2 * (world - 1) / world * 4 * n * 8 / (a.gbit * 1e9) if count > 1 else 0.0
        days = steps * max(work, cable) / DAY, steps * (work + cable) / DAY
        beside = kept.activations * math.ceil(sentences / world)
        shared = kept.training_state / world + at_hand + beside
        yield Row(count, work, cable, days, (kept.training_state + beside) / 1e9, shared / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("preset")
    parser.add_argument("changes", nargs="*", help="KEY=VALUE, as in regard info")
    parser.add_argument("--vocabulary", type=int, default=None)
    parser.add_argument("--length", type=int, default=25, help="tokens of a sentence")
    parser.add_argument("--tokens", type=float, required=True, help="of the whole run")
    parser.add_argument("--batch", type=float, required=True, help="tokens of a step, over all hosts")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--devices", type=int, required=True, help="of a host: a process each")
    parser.add_argument("--flops", type=float, required=True, help="that a device could do in a second")
    parser.add_argument("--share", type=float, required=True, help="of these, what a model gets")
    parser.add_argument("--gbit", type=float, required=True, help="in a second, through the cable of a host")
    a = parser.parse_args()
    config = configure(a.preset, a.changes, vocabulary=a.vocabulary)
    heads = ("hosts", "work, s", "cable, s", "days", "ddp, GB", "fsdp, GB")
    table = Table(
        *heads, title=f"{a.preset}, {parameters(config):,} parameters, {math.ceil(a.tokens / a.batch):,} steps"
    )
    for row in plan(config, a.hosts, a):
        days = f"{row.days[0]:.2f}-{row.days[1]:.2f}"
        cells = (str(row.hosts), f"{row.work:.3f}", f"{row.cable:.3f}", days)
        table.add_row(*cells, *(f"{x:.2f}" for x in (row.ddp, row.fsdp)))
    Console().print(table)


if __name__ == "__main__":
    main()
