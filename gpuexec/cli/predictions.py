"""Predictions of plans as a table, and as a roofline: operations a second over operations for a byte."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape as escape_markup
from typing import TYPE_CHECKING

from rich.markup import escape

from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.planner.prediction import CommandPrediction, PlanPrediction

if TYPE_CHECKING:
    from rich.console import Console

_TEXTS = ("kernel", "origin", "bound by")
_NUMBERS = ("us", "blocks", "waves", "bytes", "from DRAM", "flops")
_SPARE = ("flops", "from DRAM", "waves")  # left out first where a terminal is narrow
WIDTH, HEIGHT = 1100.0, 420.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 80.0, 24.0, 20.0, 40.0
_MIN_INTENSITY, _MAX_INTENSITY = 1e-2, 1e3  # operations for a byte
_DECADES = 5  # of operations a second, below the roof
_MIN_RADIUS, _MAX_RADIUS = 2.5, 14.0


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


def draw_roofline(prediction: PlanPrediction) -> str:
    """Return a drawing of a plan's commands below the roofs of its GPU, well-formed as XML.

    Both axes are logarithmic. A circle is a command with operations, its area the share of the plan's time that it
    takes. Bytes are those of its operands, each once.
    """
    drawn = [row for row in prediction.commands if row.flops and row.nbytes and row.predicted_us]
    gpu = prediction.gpu
    is_on_matrices = any(row.bounds.tensor for row in drawn)
    roof, units = (gpu.matrix_rate, "halves on tensor cores") if is_on_matrices else (gpu.float_rate, "float32")
    scale = _RooflineScale(roof)
    whole = sum(row.predicted_us for row in prediction.commands) or 1.0
    ridge = roof / gpu.dram_bytes_per_second
    corner = _MIN_INTENSITY * gpu.dram_bytes_per_second
    lines = [
        f'<svg class="roofline" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" xmlns="http://www.w3.org/2000/svg" role="img">',
        *_draw_axes(scale),
        f'<path class="roof" d="M{scale.x(_MIN_INTENSITY):.1f} {scale.y(corner):.1f}L{scale.x(ridge):.1f}'
        f' {scale.y(roof):.1f}H{WIDTH - _RIGHT:g}"/>',
        f'<text x="{WIDTH - _RIGHT:g}" y="{scale.y(roof) - 6:.1f}" text-anchor="end">{escape_markup(gpu.name)}:'
        f" {roof / 1e12:.1f} TFLOP/s of {units}, {gpu.dram_bytes_per_second / 1e12:.2f} TB/s</text>",
        *(_draw_command(row, row.predicted_us / whole, scale) for row in drawn),
        "</svg>",
    ]
    return "\n".join(lines)


class _RooflineScale:
    """Scale of the drawing: operations for a byte and a second to coordinates."""

    def __init__(self, roof: float) -> None:
        self.most = 10 ** math.ceil(math.log10(roof))
        self.least = self.most / 10**_DECADES

    def x(self, intensity: float) -> float:
        bounded = min(max(intensity, _MIN_INTENSITY), _MAX_INTENSITY)
        share = math.log(bounded / _MIN_INTENSITY) / math.log(_MAX_INTENSITY / _MIN_INTENSITY)
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * share

    def y(self, rate: float) -> float:
        share = math.log(min(max(rate, self.least), self.most) / self.least) / math.log(self.most / self.least)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share


def _draw_axes(scale: _RooflineScale) -> Iterator[str]:
    yield f'<g class="axis"><path d="M{_LEFT:g} {_TOP:g}V{HEIGHT - _BOTTOM:g}H{WIDTH - _RIGHT:g}"/>'
    for power in range(round(math.log10(_MIN_INTENSITY)), round(math.log10(_MAX_INTENSITY)) + 1):
        yield f'<text x="{scale.x(10.0**power):.1f}" y="{HEIGHT - 22:g}" text-anchor="middle">{10.0**power:g}</text>'
    for decade in range(_DECADES + 1):
        rate = scale.least * 10**decade
        yield (f'<text x="{_LEFT - 6:g}" y="{scale.y(rate) + 4:.1f}" text-anchor="end">{rate / 1e9:g}</text>')
    yield f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 6:g}" text-anchor="middle">operations for a byte</text>'
    yield f'<text x="{_LEFT:g}" y="14">GFLOP/s</text></g>'


def _draw_command(row: CommandPrediction, share: float, scale: _RooflineScale) -> str:
    x, y = scale.x(row.flops / row.nbytes), scale.y(row.flops / row.predicted_us * 1e6)
    radius = max(_MIN_RADIUS, min(_MAX_RADIUS, 60 * math.sqrt(share)))
    about = (
        f"{row.origin}: {row.kernel}, {row.predicted_us:,.1f} us, bound by {row.bound_by}, {row.blocks} blocks,"
        f" {row.flops:,} operations, {row.nbytes:,} bytes"
    )
    return (
        f'<circle class="command {row.bound_by}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
        f"<title>{escape_markup(_printable(about))}</title></circle>"
    )


def _printable(text: str) -> str:
    """Replace control characters, which XML does not allow."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
