"""Tables for a terminal, and for a pipe: there they are not broken."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 1_000  # characters


def show(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", total: Sequence[str] = ()
) -> None:
    """Print a table. Its first column holds names, and others figures, or prose if their names begin with `<`.

    Where no terminal says how wide it is, it is as wide as what it holds.
    """
    table = Table(title=Text(title, "bold"), title_justify="left", caption=Text(caption), caption_justify="left")
    table.box, table.show_header = SIMPLE_HEAD, any(column.lstrip("<") for column in columns)
    for i, column in enumerate(columns):
        if column.startswith("<"):
            table.add_column(column[1:], overflow="fold")
        else:
            table.add_column(column, justify="right" if i else "left", style="" if i else "cyan", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if total:
        table.add_section()
        table.add_row(*total, style="bold")
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(highlight=False, width=None if known else WIDE).print(table)


def in_bytes(n: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    power = next((i for i in range(len(units)) if n < 1000 ** (i + 1)), len(units) - 1)
    return f"{n / 1000**power:.4g} {units[power]}"
