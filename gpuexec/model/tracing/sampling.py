"""Grid sampling of images."""

from __future__ import annotations

from typing import Any

from gpuexec.errors import InputError
from gpuexec.model.tracing.promotion import as_symbolic
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["grid_sample"]

# As torch names them, and as ONNX does.
_MODES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> SymbolicArray:
    """Read an image at places between -1 and 1.

    Args:
        x: [batch, channels, height, width].
        grid: [batch, rows, columns, 2]: x and y of each place; -1 and 1 are the edges of the image.
        mode: ``"bilinear"`` between four pixels, ``"bicubic"`` between sixteen, or the ``"nearest"``.
        padding_mode: Values outside: ``"zeros"``, the pixel at the ``"border"``, or the image's ``"reflection"``.
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
    attributes = {"mode": _MODES[mode], "padding_mode": padding_mode, "align_corners": int(align_corners)}
    return image._tracer.apply("GridSample", [image, places], attributes=attributes)[0]
