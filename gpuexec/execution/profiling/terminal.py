"""Table layout for a terminal or a file.

Numbers are never cut: columns that do not fit are left out. In files a row is a line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Wider than any row: files and pipes have no edge.
_FILE_COLUMNS = 100_000
# Text columns may be shortened down to this, if they are no shorter.
_TEXT_COLUMNS = 12


def open_console() -> Console:
    """Return the console on standard output: as wide as a terminal (or COLUMNS), unbounded in files and pipes."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_COLUMNS)


def make_table(texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return a table with these titles: columns of text, then columns of numbers."""
    from rich.table import Table

    table = Table(*texts, box=None)
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def print_table(console: Console, table: Table, spare: Sequence[str] = ()) -> None:
    """Print a table without the columns that don't fit; a line below names those.

    Columns justified to the right hold numbers: they are printed whole or not at all. Others are shortened.

    Args:
        console: Where.
        table: With its rows.
        spare: Titles of the columns to leave out, the first to go first; after them the columns of numbers from the
            right.
    """
    numbers = [column for column in table.columns if column.justify == "right"]
    for column in table.columns:
        width = max(console.measure(each).maximum for each in (column.header, *column.cells))
        column.min_width = width if column in numbers else min(width, _TEXT_COLUMNS)
        column.no_wrap = column.no_wrap or column in numbers
    titles = [str(column.header) for column in numbers]
    order = [*spare, *(title for title in reversed(titles) if title not in spare)]
    left_out = []
    while order and _measure_minimum(console, table) > console.width:
        title = order.pop(0)
        table.columns = [column for column in table.columns if column.header != title]
        left_out.append(title)
    console.print(table, crop=False)
    if left_out:
        console.print(
            f"left out to fit the width: {', '.join(left_out)}; a wider terminal or a file has them",
            style="dim",
            markup=False,
        )


def _measure_minimum(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=_FILE_COLUMNS)).minimum
