"""Tables for a terminal, and for a pipe: there they are not broken."""

import os
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 1_000  # characters


def make_table(title: str, caption: str, *columns: str) -> Table:
    """A table whose first column holds names and whose others hold figures."""
    table = Table(title=Text(title, "bold"), title_justify="left", caption=Text(caption), caption_justify="left")
    table.box = SIMPLE_HEAD
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", style="" if i else "cyan", no_wrap=True)
    return table


def show(table: Table) -> None:
    """Where no terminal says how wide it is, a table is as wide as what it holds."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(highlight=False, width=None if known else WIDE).print(table)


def in_bytes(n: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    power = next((i for i in range(len(units)) if n < 1000 ** (i + 1)), len(units) - 1)
    return f"{n / 1000**power:.4g} {units[power]}"
