"""Summaries of layers or operators over runs: totals and percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuexec.errors import InputError
from gpuexec.execution.profiling.rows import LayerRow, Summary

_KEYS: dict[str, Callable[[LayerRow], tuple[str, str]]] = {
    "layer": lambda row: (row.node, row.operator),
    "operator": lambda row: (row.operator, row.operator),
}


@dataclass(slots=True)
class _Sum:
    """Times of a layer or operator: by run, and in all."""

    by_run: dict[int, float] = field(default_factory=dict)
    times: int = 0
    flops: int | None = 0
    nbytes: int = 0

    def add(self, row: LayerRow) -> None:
        assert row.duration_ms is not None
        self.by_run[row.run] = self.by_run.get(row.run, 0.0) + row.duration_ms
        self.times += 1
        self.flops = None if self.flops is None or row.flops is None else self.flops + row.flops
        self.nbytes += row.bytes_read + row.bytes_written


def summarise(rows: Iterable[LayerRow], by: str, skip: int = 0) -> tuple[Summary, ...]:
    """Return a summary by ``"layer"`` or ``"operator"``, the longest first; ``skip`` runs are left out.

    Layers that failed, or are not done, are left out.

    Raises:
        InputError: ``by`` is something else.
    """
    if by not in _KEYS:
        raise InputError(f"by takes {' or '.join(map(repr, _KEYS))}, got {by!r}.")
    key = _KEYS[by]
    sums: dict[tuple[str, str], _Sum] = {}
    for row in _done(rows, skip):
        sums.setdefault(key(row), _Sum()).add(row)
    whole = sum(sum(each.by_run.values()) for each in sums.values())
    found = [_summarise(name, operator, each, whole) for (name, operator), each in sums.items()]
    return tuple(sorted(found, key=lambda summary: -summary.total_ms))


def find_total(rows: Sequence[LayerRow], prefix: str, skip: int = 0) -> Summary | None:
    """Return one summary of all layers whose names begin with a prefix; None where there are none."""
    total, whole = _Sum(), 0.0
    for row in _done(rows, skip):
        assert row.duration_ms is not None
        whole += row.duration_ms
        if row.node.startswith(prefix):
            total.add(row)
    return _summarise(prefix, "", total, whole) if total.times else None


def _done(rows: Iterable[LayerRow], skip: int) -> list[LayerRow]:
    return [row for row in rows if row.duration_ms is not None and row.run >= skip]


def _summarise(name: str, operator: str, total: _Sum, whole_ms: float) -> Summary:
    taken = np.array(list(total.by_run.values()))
    p10, p50, p90 = (float(each) for each in np.percentile(taken, (10, 50, 90)))
    runs, total_ms = len(taken), float(taken.sum())
    return Summary(
        name,
        operator,
        runs,
        total.times,
        total_ms,
        total_ms / whole_ms if whole_ms else 0.0,
        total_ms / runs,
        float(taken.min()),
        p10,
        p50,
        p90,
        float(taken.max()),
        None if total.flops is None else total.flops // runs,
        total.nbytes // runs,
    )
