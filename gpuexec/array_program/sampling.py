"""Reading an image between its pixels. ONNX's GridSample is not an operator here, so it is made of gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.array_program.elementwise import choose, clip, floor, rint
from gpuexec.array_program.nodes import add_node
from gpuexec.array_program.promotion import INT64, as_symbolic, cast
from gpuexec.array_program.shaping import broadcast_to, expand_dims, extent, reshape
from gpuexec.array_program.symbolic import SymbolicArray
from gpuexec.errors import InputError

__all__ = ["grid_sample"]

_MODES, _PADDINGS = ("bilinear", "nearest"), ("zeros", "border", "reflection")


def grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> SymbolicArray:
    """Read an image at places between -1 and 1.

    Args:
        x: [batch, channels, height, width].
        grid: [batch, rows, columns, 2]: x and y of each place; -1 and 1 are the edges of the image.
        mode: ``"bilinear"`` between four pixels, or the ``"nearest"``.
        padding_mode: What lies outside: ``"zeros"``, the pixel at the ``"border"``, or the image's ``"reflection"``.
        align_corners: Whether -1 and 1 are the middles of the outer pixels, not their edges.

    Returns:
        [batch, channels, rows, columns].
    """
    image = as_symbolic(x)
    places = as_symbolic(grid, image.dtype, image._tracer)
    if image.ndim != 4 or places.ndim != 4 or mode not in _MODES or padding_mode not in _PADDINGS:
        raise InputError(
            f"grid_sample takes an image of 4 axes and places of 4, modes {', '.join(_MODES)} and paddings "
            f"{', '.join(_PADDINGS)}; got {image!r}, {places!r}, {mode!r}, {padding_mode!r}."
        )
    lengths = [as_symbolic(extent(image, axis), image.dtype, image._tracer) for axis in (3, 2)]
    points = []
    for index, length in enumerate(lengths):
        unit = (places[..., index] + 1) / 2
        point = unit * (length - 1) if align_corners else unit * length - 0.5
        points.append(_bring_inside(point, length, padding_mode, align_corners))
    column, row = points
    if mode == "nearest":
        return _read(image, rint(row), rint(column), lengths)
    left, top = floor(column), floor(row)
    across, down = expand_dims(column - left, 1), expand_dims(row - top, 1)
    corners = [_read(image, top + i, left + j, lengths) for i in (0, 1) for j in (0, 1)]
    above = corners[0] * (1 - across) + corners[1] * across
    below = corners[2] * (1 - across) + corners[3] * across
    return above * (1 - down) + below * down


def _bring_inside(point: SymbolicArray, length: SymbolicArray, padding_mode: str, align_corners: bool) -> SymbolicArray:
    if padding_mode == "reflection":
        low, span = (0.0, length - 1) if align_corners else (-0.5, length)
        away = add_node("Mod", abs(point - low), span * 2, fmod=1)
        point = choose(away > span, span * 2 - away, away) + low
    return point if padding_mode == "zeros" else clip(point, 0, length - 1)


def _read(
    image: SymbolicArray, row: SymbolicArray, column: SymbolicArray, lengths: list[SymbolicArray]
) -> SymbolicArray:
    """Return the pixels at whole places; 0 outside."""
    width, height = lengths
    is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    batch, channels = extent(image, 0), extent(image, 1)
    position = cast(clip(row, 0, height - 1) * width + clip(column, 0, width - 1), np.float64)
    rows, columns = extent(row, 1), extent(row, 2)
    flat = reshape(cast(position, INT64), (batch, 1, rows * columns))
    pixels = reshape(image, (batch, channels, extent(image, 2) * extent(image, 3)))
    spread = broadcast_to(flat, (batch, channels, rows * columns))
    (read,) = image._tracer.apply("GatherElements", [pixels, spread], attributes={"axis": 2})
    read = reshape(read, (batch, channels, rows, columns))
    return choose(expand_dims(is_inside, 1), read, 0)
