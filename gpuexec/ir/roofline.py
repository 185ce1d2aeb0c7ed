"""Roofline: operations a second over operations for a byte, of commands or layers, below what a GPU could do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuexec.ir.gpus import Gpu
from gpuexec.system.html import Markup, draw_text, escape_text, make_drawing

WIDTH, HEIGHT = 1100.0, 420.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 80.0, 24.0, 20.0, 40.0
_MIN_INTENSITY, _MAX_INTENSITY = 1e-2, 1e3  # operations for a byte
_DECADES = 5  # of operations a second, below the roof
_MIN_RADIUS, _MAX_RADIUS = 2.5, 14.0


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A command or layer: its operations, the bytes of its operands, each once, and its time in microseconds.

    ``kind`` is the class of its circle: what bounds it, where that is known.
    """

    about: str
    flops: int
    nbytes: int
    us: float
    kind: str = ""
    is_on_matrices: bool = False


def draw_roofline(points: Sequence[RooflinePoint], gpu: Gpu | None, whole_us: float) -> Markup:
    """Return a drawing of points below the roofs of a GPU; empty where none has operations, bytes and time.

    Both axes are logarithmic. A circle's area is the share of the whole time that it takes.

    Args:
        points: What is drawn; those without operations, bytes or time are left out.
        gpu: Whose roofs; None: they are not known, and the points stand alone.
        whole_us: Time of all commands or layers, in microseconds.
    """
    drawn = [point for point in points if point.flops and point.nbytes and point.us]
    if not drawn:
        return Markup("")
    if gpu is None:
        scale = _RooflineScale(max(point.flops / point.us * 1e6 for point in drawn))
        roofs: list[str] = []
    else:
        is_on_matrices = any(point.is_on_matrices for point in drawn)
        roof, units = (gpu.matrix_rate, "halves on tensor cores") if is_on_matrices else (gpu.float_rate, "float32")
        scale = _RooflineScale(roof)
        ridge, corner = roof / gpu.dram_bytes_per_second, _MIN_INTENSITY * gpu.dram_bytes_per_second
        roofs = [
            f'<path class="roof" d="M{scale.x(_MIN_INTENSITY):.1f} {scale.y(corner):.1f}L{scale.x(ridge):.1f}'
            f' {scale.y(roof):.1f}H{WIDTH - _RIGHT:g}"/>',
            draw_text(
                WIDTH - _RIGHT,
                scale.y(roof) - 6,
                f"{gpu.name}: {roof / 1e12:.1f} TFLOP/s of {units}, {gpu.dram_bytes_per_second / 1e12:.2f} TB/s",
                anchor="end",
            ),
        ]
    circles = [_draw_point(point, point.us / (whole_us or 1.0), scale) for point in drawn]
    return make_drawing("roofline", WIDTH, HEIGHT, [*_draw_axes(scale), *roofs, *circles], kind="roofline")


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
        yield draw_text(scale.x(10.0**power), HEIGHT - 22, f"{10.0**power:g}", anchor="middle")
    for decade in range(_DECADES + 1):
        rate = scale.least * 10**decade
        yield draw_text(_LEFT - 6, scale.y(rate) + 4, f"{rate / 1e9:g}", anchor="end")
    yield draw_text(WIDTH / 2, HEIGHT - 6, "operations for a byte", anchor="middle")
    yield f"{draw_text(_LEFT, 14, 'GFLOP/s')}</g>"


def _draw_point(point: RooflinePoint, share: float, scale: _RooflineScale) -> str:
    x, y = scale.x(point.flops / point.nbytes), scale.y(point.flops / point.us * 1e6)
    radius = max(_MIN_RADIUS, min(_MAX_RADIUS, 60 * math.sqrt(share)))
    return (
        f'<circle class="box command {point.kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
        f"<title>{escape_text(point.about)}</title></circle>"
    )
