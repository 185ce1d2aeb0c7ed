"""Tables of memory requests and arithmetic by source line or launch, as count mode of the simulator counted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuexec.devices.simulator.counts import (
    SPACES,
    UNITS,
    LaunchCounts,
    LineCounts,
    LineOperations,
    OperationCounts,
    RequestCounts,
    Space,
    Unit,
)
from gpuexec.execution.profiling.terminal import make_table, print_table

if TYPE_CHECKING:
    from rich.console import Console

_TITLES: dict[Space, tuple[str, str]] = {"global": ("sectors", "ideal"), "shared": ("wavefronts", "least")}
_UNITS: dict[Unit, str] = {
    "ffma": "multiply-adds of float",
    "dfma": "multiply-adds of double",
    "hfma": "multiply-adds of half",
    "dp4a": "multiply-adds of bytes",
    "mma": "multiply-adds of matrices",
    "mufu": "special functions",
}


def print_counts(console: Console, counts: LaunchCounts, files: Mapping[str, Path]) -> None:
    """Print a table for each kind of memory that a launch accesses, one of its arithmetic, and its bytes through L2.

    Args:
        console: Where.
        counts: Of the launch.
        files: The source files by name, for the text of lines.
    """
    grid, block = (", ".join(map(str, each)) for each in (counts.grid, counts.block))
    console.print(f"{counts.kernel}, grid ({grid}), block ({block})", markup=False)
    for space, titles in _TITLES.items():
        lines = [line for line in counts.lines if line.space == space]
        if not lines:
            continue
        table = make_table(
            (f"{space} memory", "access", "source"), ("requests", *titles, "ratio", "bytes", "lanes off")
        )
        for line in lines:
            table.add_row(_escape(_spell_places(line)), _spell_access(line), _escape(_read_line(line, files)),
                          *_spell_counts(line.counts))  # fmt: skip
        table.add_row("total", "", "", *_spell_counts(counts.total(space)))
        console.print()
        print_table(console, table, spare=("source",))
    if counts.operations:
        console.print()
        _print_operations(console, counts, files)
    if counts.missing_rows:
        console.print(f"{counts.missing_rows} more instructions are in no line and no total.")
    console.print(
        f"\nL2 of {counts.l2_nbytes >> 20} MiB, empty at first: {counts.l2_read_nbytes:,} bytes read from it,"
        f" {counts.l2_written_nbytes:,} written; {counts.dram_read_nbytes:,} from device memory,"
        f" {counts.dram_written_nbytes:,} to it",
        markup=False,
    )


def print_launches(console: Console, launches: Sequence[LaunchCounts]) -> None:
    """Print a table of memory requests with a row for each launch and the total, and one of arithmetic."""
    numbers = ("requests", "lanes off", "sectors", "of ideal", "wavefronts", "of least", "L2 bytes", "device bytes")
    table = make_table(("launch", "node"), numbers)
    for launch in launches:
        table.add_row(_escape(launch.kernel), _escape(launch.origin), *_spell_sum([launch]))
    table.add_row("total", "", *_spell_sum(launches))
    print_table(console, table, spare=("node",))
    if launches:
        console.print(f"L2 of {launches[0].l2_nbytes >> 20} MiB, empty before each launch", markup=False)
    _print_arithmetic(console, launches)


def encode_counts(launch: LaunchCounts) -> dict[str, Any]:
    """Return what was counted of a launch as JSON data: totals, and rows by source line."""
    return {
        "kernel": launch.kernel,
        "origin": launch.origin,
        "grid": launch.grid,
        "block": launch.block,
        **{space: _encode_requests(launch.total(space)) for space in SPACES},
        **{unit: _encode_operations(launch.total_operations(unit)) for unit in UNITS},
        "issued_multiply_adds": launch.multiply_adds.issued,
        "needed_multiply_adds": launch.needed_multiply_adds,
        "issue_ratio": launch.issue_ratio,
        "l2_read_bytes": launch.l2_read_nbytes,
        "l2_written_bytes": launch.l2_written_nbytes,
        "dram_read_bytes": launch.dram_read_nbytes,
        "dram_written_bytes": launch.dram_written_nbytes,
        "missing_rows": launch.missing_rows,
        "lines": [
            {"places": line.places, "space": line.space, "access": line.access, "width": line.width}
            | _encode_requests(line.counts)
            for line in launch.lines
        ],
        "operations": [
            {"places": line.places, "unit": line.unit} | _encode_operations(line.counts) for line in launch.operations
        ],
    }


def _encode_requests(counts: RequestCounts) -> dict[str, int]:
    return {
        "requests": counts.requests,
        "lanes": counts.lanes,
        "bytes": counts.nbytes,
        "transactions": counts.transactions,
        "least": counts.least,
    }


def _encode_operations(counts: OperationCounts) -> dict[str, int]:
    return {"calls": counts.calls, "issued": counts.issued, "taken": counts.taken}


def _print_operations(console: Console, counts: LaunchCounts, files: Mapping[str, Path]) -> None:
    """Print the operations of each line, and of each unit."""
    table = make_table(("arithmetic", "unit", "source"), ("calls of warps", "issued", "of lanes", "lanes off"))
    for line in counts.operations:
        table.add_row(_escape(_spell_places(line)), _UNITS[line.unit], _escape(_read_line(line, files)),
                      *_spell_operations(line.counts))  # fmt: skip
    for unit in UNITS:
        total = counts.total_operations(unit)
        if total.calls:
            table.add_row("total", _UNITS[unit], "", *_spell_operations(total))
    print_table(console, table, spare=("source",))


def _print_arithmetic(console: Console, launches: Sequence[LaunchCounts]) -> None:
    """Print the multiply-adds that each launch issued beside those it needs; launches without any have no row."""
    numbers = ("multiply-adds", "needed", "ratio", "lanes off", "special functions")
    table = make_table(("arithmetic", "node"), numbers)
    rows = [each for each in launches if each.operations or each.needed_multiply_adds]
    for launch in rows:
        table.add_row(_escape(launch.kernel), _escape(launch.origin), *_spell_arithmetic([launch]))
    table.add_row("total of rows with a ratio", "",
                  *_spell_arithmetic([each for each in rows if each.issue_ratio is not None]))  # fmt: skip
    print_table(console, table, spare=("node",))
    console.print("issued, for 32 lanes of each warp; needed, by the closed form of the kernel's work", markup=False)


def _spell_arithmetic(launches: Sequence[LaunchCounts]) -> tuple[str, ...]:
    issued = sum((each.multiply_adds for each in launches), OperationCounts())
    special = sum((each.total_operations("mufu") for each in launches), OperationCounts())
    known = [each.needed_multiply_adds for each in launches if each.needed_multiply_adds is not None]
    needed = sum(known)
    return (
        f"{issued.issued:,}",
        f"{needed:,}" if known else "-",
        f"{issued.issued / needed:.2f}" if issued.issued and needed else "-",
        f"{issued.lanes_off:.0%}",
        f"{special.issued:,}",
    )


def _spell_operations(counts: OperationCounts) -> tuple[str, ...]:
    return f"{counts.calls:,}", f"{counts.issued:,}", f"{counts.taken:,}", f"{counts.lanes_off:.0%}"


def _spell_sum(launches: Sequence[LaunchCounts]) -> tuple[str, ...]:
    total = {space: sum((each.total(space) for each in launches), RequestCounts()) for space in SPACES}
    l2_nbytes = sum(each.l2_read_nbytes + each.l2_written_nbytes for each in launches)
    dram_nbytes = sum(each.dram_read_nbytes + each.dram_written_nbytes for each in launches)
    both = total["global"] + total["shared"]
    return (
        f"{both.requests:,}",
        f"{both.lanes_off:.0%}",
        *(text for each in total.values() for text in (f"{each.transactions:,}", f"{each.ratio:.2f}")),
        f"{l2_nbytes:,}",
        f"{dram_nbytes:,}",
    )


def _spell_places(line: LineCounts | LineOperations) -> str:
    places = [f"{file}:{number}" for file, number in line.places]
    return " in ".join(places) if places else "an unknown line"


def _spell_access(line: LineCounts) -> str:
    return f"{line.access} {line.width} B"


def _spell_counts(counts: RequestCounts) -> tuple[str, ...]:
    return (
        *(f"{number:,}" for number in (counts.requests, counts.transactions, counts.least)),
        f"{counts.ratio:.2f}",
        f"{counts.nbytes:,}",
        f"{counts.lanes_off:.0%}",
    )


def _read_line(line: LineCounts | LineOperations, files: Mapping[str, Path]) -> str:
    if not line.places or line.places[0][0] not in files:
        return ""
    file, number = line.places[0]
    text = files[file].read_text(encoding="utf-8").splitlines()
    return text[number - 1].strip() if 0 < number <= len(text) else ""


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
