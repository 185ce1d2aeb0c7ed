"""Exporter script for ``models/ndonnx_statistics.onnx``: a standard array API program, by ndonnx.

Needs ndonnx: ``pip install ndonnx``. Run it as ``python examples/exporters/ndonnx_statistics.py``.
"""

from __future__ import annotations

from typing import Any

import ndonnx as ndx
import numpy as np
from keeping import keep


def summarize(xp: Any, readings: Any, limits: Any) -> tuple[Any, Any, Any]:
    """Clean readings [n, channels] and tell of each channel: values standardized, outliers counted, a running mean.

    Readings that are not finite, or below their channel's limit, count as the mean of the others.
    """
    good = xp.isfinite(readings) & (readings >= limits)
    kept = xp.where(good, readings, xp.asarray(0.0, dtype=readings.dtype))
    count = xp.astype(xp.sum(xp.astype(good, xp.int64), axis=0), readings.dtype)
    mean = xp.sum(kept, axis=0) / count
    filled = xp.where(good, readings, mean)
    deviation = xp.sqrt(xp.sum((filled - mean) ** 2, axis=0) / count)
    standard = (filled - mean) / deviation
    outliers = xp.sum(xp.astype(xp.abs(standard) > 1.5, xp.int64), axis=0)
    total = xp.cumulative_sum(filled, axis=0)
    return standard, outliers, total[1:, :] - total[:-1, :] * 0.5


def main() -> None:
    """Build, and keep the model with what NumPy gives for the same function."""
    readings = ndx.argument(shape=("n", 4), dtype=ndx.float32)
    limits = ndx.argument(shape=(4,), dtype=ndx.float32)
    standard, outliers, running = summarize(ndx, readings, limits)
    model = ndx.build(
        {"readings": readings, "limits": limits}, {"standard": standard, "outliers": outliers, "running": running}
    )
    rng = np.random.default_rng(0)
    cases = []
    for rows in (12, 5):
        case = rng.normal(size=(rows, 4)).astype(np.float32)
        case[1, 2], case[3, 0] = np.nan, np.inf
        cases.append([case, np.array([-1.0, -9.0, -0.5, -9.0], np.float32)])
    keep("ndonnx_statistics", model, cases, [summarize(np, *case) for case in cases])


if __name__ == "__main__":
    main()
