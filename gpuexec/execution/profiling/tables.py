"""Profiler tables: terminal text, DataFrame and tab-separated values."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gpuexec.errors import InputError
from gpuexec.execution.profiling.rows import LayerRow, Summary
from gpuexec.execution.profiling.terminal import make_table, open_console, print_table
from gpuexec.system.atomic_file import write_file

if TYPE_CHECKING:
    import pandas
    from rich.console import Console

# Columns are the rows' own fields; commands are one text, with kernels beside them.
_TEXTS = {"commands"}
# Columns left out on a narrow terminal, the least important first.
_SPARE = ("B/s", "runs", "p10", "max", "FLOP/s", "bytes", "p90", "operator", "FLOP", "times")
_UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def print_summary(rows: Sequence[Summary], by: str, limit: int | None, console: Console | None = None) -> None:
    """Print summaries as a table: milliseconds per run, and rates per second."""
    from rich.markup import escape

    titles = ("runs", "times", "share", "avg ms", "p10", "p50", "p90", "max", "FLOP", "FLOP/s", "bytes", "B/s")
    table = make_table([by, "operator"] if by == "layer" else [by], titles)
    for row in rows[:limit]:
        times = [f"{ms:.4f}" for ms in (row.avg_ms, row.p10_ms, row.p50_ms, row.p90_ms, row.max_ms)]
        flops = ["-", "-"] if row.flops is None else [spell(row.flops), _spell_rate(row.flops, row.avg_ms)]
        table.add_row(
            escape(_clean(row.name)),
            *([row.operator] if by == "layer" else []),
            str(row.runs),
            str(row.times),
            f"{100 * row.share:.1f}%",
            *times,
            *flops,
            spell(row.nbytes),
            _spell_rate(row.nbytes, row.avg_ms),
        )
    console = console or open_console()
    print_table(console, table, _SPARE)
    if limit is not None and len(rows) > limit:
        console.print(f"and {len(rows) - limit} more")


def _clean(name: str) -> str:
    """Return a name on one line, unprintable characters replaced."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)


def spell(count: float) -> str:
    """Format a count in the unit that keeps it short."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


def _spell_rate(count: int, ms: float) -> str:
    return spell(count / ms * 1e3) if ms > 0 else "-"


def make_records(rows: Sequence[LayerRow] | Sequence[Summary]) -> list[dict[str, Any]]:
    """Return rows as mappings of column to value."""
    records = []
    for row in rows:
        record: dict[str, Any] = {}
        for column in fields(row):
            value = getattr(row, column.name)
            record[column.name] = "; ".join(map(str, value)) if column.name in _TEXTS else value
        if isinstance(row, LayerRow):
            record["kernels"] = "; ".join(row.kernels)
        records.append(record)
    return records


def make_dataframe(rows: Sequence[LayerRow] | Sequence[Summary]) -> pandas.DataFrame:
    """Return rows as a DataFrame.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_dataframe needs pandas: pip install pandas. save_tsv and rows() do without.") from error
    return pandas.DataFrame(make_records(rows))


def write_tsv(path: str | os.PathLike[str], rows: Sequence[LayerRow] | Sequence[Summary]) -> None:
    """Write rows as tab-separated values under a line of titles; unknown values are empty.

    Raises:
        AccessError: The file can't be written.
    """
    records, text = make_records(rows), io.StringIO()
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    if records:
        writer.writerow(records[0])
    writer.writerows(list(record.values()) for record in records)
    write_file(path, text.getvalue())
