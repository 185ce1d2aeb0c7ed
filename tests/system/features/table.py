"""Feature table: each row with its tests, by device, and the rows that are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pytest

from tests.system.features.marks import DEVICES, device_of
from tests.system.features.rows import Row

COLUMNS = (*DEVICES, "other")


class Status(Enum):
    """State of a row after a run."""

    TESTED = "tested"
    FAILED = "FAILED"
    NOT_RUN = "not run"
    NOT = "deliberately not"
    MISSING = "missing"
    LATER = "not there"


@dataclass(slots=True, eq=False)  # plugins of pytest are hashed
class Outcomes:
    """A pytest plugin that counts, for each row and device, how many of its tests ended how."""

    counts: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    _cells: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note the rows of a test, though it may be deselected later."""
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        rows = tuple(row for mark in item.iter_markers("feature") for row in mark.args)
        self._cells[item.nodeid] = (rows, device_of(params))
        for row in rows:
            self.counts.setdefault(row, Counter())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: when it was called, or where it failed before or after, or was skipped."""
        if report.when != "call" and not (report.failed or report.skipped):
            return
        rows, device = self._cells[report.nodeid]
        for row in rows:
            self.counts[row][device, report.outcome] += 1

    def status(self, row: Row) -> Status:
        """Return what is known of a row."""
        counts = self.counts.get(row.number)
        if counts is None:
            return Status.NOT if row.judgement in "N-" else Status.LATER if row.judgement == "S" else Status.MISSING
        ends = {end for (_, end), count in counts.items() if count}
        return Status.FAILED if "failed" in ends else Status.TESTED if "passed" in ends else Status.NOT_RUN

    def cell(self, row: Row, device: str) -> str:
        """Return what a row's tests did on a device, in a few characters."""
        counts = self.counts.get(row.number, Counter())
        passed, failed, skipped = (counts[device, end] for end in ("passed", "failed", "skipped"))
        parts = [str(passed)] if passed else []
        parts += [f"{failed} FAILED"] if failed else []
        parts += [f"{skipped} skipped"] if skipped else []
        return ", ".join(parts) or "-"


def format_table(rows: Mapping[str, Row], outcomes: Outcomes, *, only_missing: bool = False) -> list[str]:
    """Return the table's lines; with ``only_missing`` those rows that must be there and have no passing test."""
    lines = [("row", "", *COLUMNS, "status", "what")]
    for row in rows.values():
        status = outcomes.status(row)
        if only_missing and (row.judgement not in "MT" or status is Status.TESTED):
            continue
        why = f" ({row.reason})" if row.reason else ""
        cells = (outcomes.cell(row, device) for device in COLUMNS)
        lines.append((row.number, row.judgement, *cells, status.value, row.name + why))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def format_totals(rows: Mapping[str, Row], outcomes: Outcomes) -> list[str]:
    """Return how many rows of each judgement have which status."""
    labels = {"M": "must", "S": "should", "N": "deliberately not", "T": "traps"}
    lines = []
    for judgement, label in labels.items():
        chosen = [row for row in rows.values() if row.judgement == judgement]
        statuses = Counter(outcomes.status(row) for row in chosen)
        counts = ", ".join(f"{statuses[status]} {status.value}" for status in Status if statuses[status])
        lines.append(f"{label + ':':18} {len(chosen):3} rows: {counts}")
    missing = [row.number for row in rows.values() if outcomes.status(row) is Status.MISSING]
    if missing:
        lines.append(f"{'missing:':18} {' '.join(missing)}")
    return lines
