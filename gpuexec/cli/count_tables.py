"""Tables of memory requests by source line or launch, as count mode of the simulator counted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuexec.devices.simulator.counts import SPACES, LaunchCounts, LineCounts, RequestCounts, Space
from gpuexec.execution.profiling.terminal import make_table, print_table

if TYPE_CHECKING:
    from rich.console import Console

_TITLES: dict[Space, tuple[str, str]] = {"global": ("sectors", "ideal"), "shared": ("wavefronts", "least")}


def print_counts(console: Console, counts: LaunchCounts, files: Mapping[str, Path]) -> None:
    """Print a table for each kind of memory that a launch accesses, and its bytes through L2.

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
    if counts.missing_rows:
        console.print(f"{counts.missing_rows} more instructions are in no line and no total.")
    console.print(
        f"\nL2 of {counts.l2_nbytes >> 20} MiB, empty at first: {counts.l2_read_nbytes:,} bytes read from it,"
        f" {counts.l2_written_nbytes:,} written; {counts.dram_read_nbytes:,} from device memory,"
        f" {counts.dram_written_nbytes:,} to it",
        markup=False,
    )


def print_launches(console: Console, launches: Sequence[LaunchCounts]) -> None:
    """Print a table with a row for each launch, and the total."""
    numbers = ("requests", "lanes off", "sectors", "of ideal", "wavefronts", "of least", "L2 bytes", "device bytes")
    table = make_table(("launch", "node"), numbers)
    for launch in launches:
        table.add_row(_escape(launch.kernel), _escape(launch.origin), *_spell_sum([launch]))
    table.add_row("total", "", *_spell_sum(launches))
    print_table(console, table, spare=("node",))
    if launches:
        console.print(f"L2 of {launches[0].l2_nbytes >> 20} MiB, empty before each launch", markup=False)


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


def _spell_places(line: LineCounts) -> str:
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


def _read_line(line: LineCounts, files: Mapping[str, Path]) -> str:
    if not line.places or line.places[0][0] not in files:
        return ""
    file, number = line.places[0]
    text = files[file].read_text(encoding="utf-8").splitlines()
    return text[number - 1].strip() if 0 < number <= len(text) else ""


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
