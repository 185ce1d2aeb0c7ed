"""Tables of benchmark figures beside their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Figures:
    """A titled table; ``notes`` stand below it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: Any) -> None:
        """Add a row."""
        self.rows.append(cells)

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values, numbers unrounded."""
        rows = [dict(zip(self.columns, row)) for row in self.rows]
        return {"title": self.title, "columns": self.columns, "rows": rows, "notes": self.notes}

    @staticmethod
    def from_json(table: dict[str, Any]) -> Figures:
        """Return the table of such values."""
        columns = tuple(table["columns"])
        rows = [tuple(row[column] for column in columns) for row in table["rows"]]
        return Figures(table["title"], columns, rows, list(table["notes"]))

    def show(self, console: Console) -> None:
        """Print the table."""
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*map(_spell, row))
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", markup=False)
        console.print()


def show_rows(console: Console, rows: list[tuple[str, str]]) -> None:
    """Print names beside values."""
    for name, value in rows:
        console.print(f"{name + ':':14} {value}", markup=False, soft_wrap=True)
    console.print()


def beside(value: float, bound: float) -> str:
    """Return whether a figure keeps its bound, in a word."""
    return "kept" if value <= bound else "MISSED"


def _spell(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1 else f"{cell:.2f}" if abs(cell) < 100 else f"{cell:.0f}"
    return str(cell)
