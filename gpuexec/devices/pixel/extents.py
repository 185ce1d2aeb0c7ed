"""Layout of bytes in a texture of four 32-bit channels: texel after texel, rows of 4096 texels.

A copy between a texture and bytes in a row moves rectangles of whole texels. A texel of which only some bytes are
meant, at either end, is a rectangle of its own, which goes by way of 16 bytes of ordinary memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuexec.errors import OutOfMemoryError
from gpuexec.ir.geometry import ceil_div

TEXEL_BYTES = 16
TEXELS_PER_ROW = 4096  # kTexelsPerRow of kernels/pixel/texture.cuh
ROW_BYTES = TEXEL_BYTES * TEXELS_PER_ROW
# CUDA C++ programming guide, technical specifications: a 2D surface on an array has up to 131072 x 65536 elements.
MAX_ROWS = 65536


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Texels ``[column, column + columns) x [row, row + rows)`` and the bytes within them.

    Those are ``nbytes`` from ``start`` on of what is copied. Where they are fewer than the texel has, they begin at its
    byte ``skipped``.
    """

    column: int
    row: int
    columns: int
    rows: int
    start: int
    nbytes: int
    skipped: int = 0

    @property
    def is_whole(self) -> bool:
        """True if all bytes of its texels belong to the range."""
        return self.nbytes == self.columns * self.rows * TEXEL_BYTES


def find_extents(nbytes: int, name: str) -> tuple[int, int]:
    """Return width and height in texels of a texture of at least ``nbytes``.

    Raises:
        OutOfMemoryError: No texture is that large; names the device and the limit.
    """
    texels = max(1, ceil_div(nbytes, TEXEL_BYTES))
    rows = ceil_div(texels, TEXELS_PER_ROW)
    if rows > MAX_ROWS:
        raise OutOfMemoryError(
            f"{name}: {nbytes} bytes exceed what one texture holds, {MAX_ROWS * ROW_BYTES}; use GPU_COMPUTE."
        )
    return min(texels, TEXELS_PER_ROW), rows


def split_range(offset: int, nbytes: int) -> Iterator[Rectangle]:
    """Yield the rectangles that cover the bytes ``[offset, offset + nbytes)`` of a texture, in order."""
    at, end = offset, offset + nbytes
    while at < end:
        row, within = divmod(at, ROW_BYTES)
        column, skipped = divmod(within, TEXEL_BYTES)
        whole = (end - at) // TEXEL_BYTES
        if skipped or not whole:
            taken, columns, rows = min(TEXEL_BYTES - skipped, end - at), 1, 1
        elif column or whole < TEXELS_PER_ROW:
            columns, rows = min(whole, TEXELS_PER_ROW - column), 1
            taken = columns * TEXEL_BYTES
        else:
            columns, rows = TEXELS_PER_ROW, whole // TEXELS_PER_ROW
            taken = rows * ROW_BYTES
        yield Rectangle(column, row, columns, rows, at - offset, taken, skipped)
        at += taken
