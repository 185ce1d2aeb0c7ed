"""Predictions of plans as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.planner.prediction import PlanPrediction

if TYPE_CHECKING:
    from rich.console import Console

_TEXTS = ("kernel", "origin", "bound by")
_NUMBERS = ("us", "blocks", "waves", "bytes", "from DRAM", "flops")
_SPARE = ("flops", "from DRAM", "waves")  # left out first where a terminal is narrow


def print_prediction(console: Console, prediction: PlanPrediction) -> None:
    """Print totals and a row for each command."""
    ratio = prediction.moved_nbytes / max(1, prediction.minimum_nbytes)
    console.print(
        f"predicted for {prediction.target} ({prediction.gpu.name}): {prediction.predicted_us:,.1f} us,"
        f" at least {prediction.floor_us:,.1f} us; {prediction.launches} launches, {prediction.early} of them early,"
        f" {prediction.transposes} transposes of images with {prediction.transposed_nbytes:,} bytes;"
        f" {prediction.flops:,} operations,"
        f" {prediction.moved_nbytes:,} bytes moved, {ratio:.2f} of the least {prediction.minimum_nbytes:,}",
        markup=False,
    )
    table = make_table(_TEXTS, _NUMBERS)
    for row in prediction.commands:
        table.add_row(
            escape(row.kernel),
            escape(row.origin),
            row.bound_by,
            f"{row.predicted_us:,.1f}",
            str(row.blocks),
            f"{row.waves:.2f}",
            f"{row.nbytes:,}",
            f"{row.dram_nbytes:,}",
            f"{row.flops:,}",
        )
    print_table(console, table, _SPARE)
