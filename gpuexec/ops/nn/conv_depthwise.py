"""Depthwise convolution on a device: its tiles, and the launch of ``conv_depthwise``.

A block makes the outputs of a tile from inputs that it keeps in shared memory with their padding: whole channels where
these are small, else rows of one channel. Tiles decide how many bytes are read again, and no sum: so they are found for
the sizes at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuexec.ir.command import BUFFER_ALIGNMENT, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import dtype_row, dtypes_of
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.elementwise.epilogue import instantiate_finished
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import Windows

# Constants of conv_depthwise.cu.
_THREADS, _PATCH, _OUTPUTS, _WEIGHTS, _ALIGNED_COLUMNS = 256, 4096, 2112, 512, 8
_ROWS_AT_ONCE = 4
# Outputs of a tile: enough for few bytes to be read again, but blocks for all multiprocessors before.
_MOST_OUTPUTS, _LEAST_OUTPUTS, _WANTED_TILES = 2048, 512, 512
_VECTOR = 4
_LIMIT = 2**31
# Extent and stride of the kernels that have an instance of their own; (0, 1): any.
FORMS = ((0, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
DTYPES = tuple(dtype for dtype in dtypes_of("float") if dtype.itemsize <= 4)


def name_instance(form: tuple[int, int], types: str) -> str:
    """Return the name expression of the instance for a form, by the type as kernels spell it."""
    return f"conv_depthwise<{types}, {form[0]}, {form[1]}>"


for _dtype in DTYPES:
    _types = dtype_row(_dtype).cuda
    instantiate_finished(_dtype, [Kernel("conv_depthwise.cu", name_instance(form, _types)) for form in FORMS])


@dataclass(frozen=True, slots=True)
class _Tile:
    """Outputs of a tile, and its inputs in shared memory."""

    channels: int
    rows: int
    columns: int
    planes: int
    patch_rows: int
    patch_columns: int
    pitch: int


@dataclass(frozen=True, slots=True)
class _Plane:
    """Windows over two axes: those of a channel."""

    extents: tuple[int, int]
    counts: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begins: tuple[int, int]

    @staticmethod
    def of(windows: Windows) -> _Plane | None:
        """Return the windows with an axis of 1 in front if there is one axis; None where there are three."""
        if len(windows.kernel) > 2:
            return None
        lead = 2 - len(windows.kernel)
        fill = (
            (windows.extents, 1), (windows.counts, 1), (windows.kernel, 1), (windows.strides, 1),
            (windows.dilations, 1), (windows.begins, 0),
        )  # fmt: skip
        return _Plane(*[(*(filler,) * lead, *values) for values, filler in fill])  # type: ignore[arg-type]

    @property
    def form(self) -> tuple[int, int]:
        """The form of `FORMS` for these windows."""
        form = (self.kernel[0], self.strides[0])
        is_square = self.kernel[0] == self.kernel[1] and self.strides[0] == self.strides[1]
        return form if is_square and self.dilations == (1, 1) and form in FORMS else FORMS[0]

    @property
    def spans(self) -> tuple[int, int]:
        """Positions that a window spans along each axis."""
        first, second = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(self.kernel, self.dilations)]
        return first, second


def launch_depthwise(
    emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, multiplier: int
) -> bool:
    """Launch the convolution of groups of one input channel; False where the kernel can't: other types, large windows.

    Args:
        emit: Emitter of the launch.
        slots: x, w, bias (or None), y.
        windows: Those over x.
        multiplier: Output channels of a group.
    """
    x, w, bias, y = slots
    plane = _Plane.of(windows)
    if plane is None or y.dtype not in DTYPES:
        return False
    tile = find_tile(plane, y.shape[1], multiplier, y.spec.size)
    choice = emit.choose(0 if tile is None else 1 + FORMS.index(plane.form))
    if not choice or tile is None:
        return False
    form = FORMS[choice - 1]
    if form != FORMS[0]:
        form = plane.form  # where it is another, the size is planned by itself
    tiles = (
        ceil_div(plane.counts[1], tile.columns), ceil_div(plane.counts[0], tile.rows),
        ceil_div(y.shape[1], tile.channels),
    )  # fmt: skip
    lead = 4 - x.spec.rank
    strides = (*x.strides[:2], *(x.shape[-1],) * lead, *x.strides[2:])
    has_ranges = (
        tile.columns == plane.counts[1]
        and strides[2:] == (plane.extents[1], 1)
        and (tile.planes == 1 or strides[1] == prod(plane.extents))
        and x.offset_bytes % min(BUFFER_ALIGNMENT, _VECTOR * x.dtype.itemsize) == 0
    )
    packed = _pack(plane, tile, form, (y.shape[1], multiplier), tiles, strides, has_ranges)
    arguments = [x, emit.contiguous(w), None if bias is None else emit.contiguous(bias), y, packed]
    blocks = x.shape[0] * tiles[0] * tiles[1] * tiles[2]
    kernel = Kernel("conv_depthwise.cu", name_instance(form, dtype_row(y.dtype).cuda))
    emit.launch(kernel, (max(blocks, 1), 1, 1), (_THREADS, 1, 1), arguments, writes=[3])
    return True


def _pack(
    plane: _Plane,
    tile: _Tile,
    form: tuple[int, int],
    channels: tuple[int, int],
    tiles: tuple[int, int, int],
    strides: tuple[int, ...],
    has_ranges: bool,
) -> bytes:
    """Return the bytes of ``Depthwise``; ``channels`` are those of the output and of a group's output."""
    at_once = _ROWS_AT_ONCE if form[0] else 1
    is_narrow = tile.columns < plane.counts[1]
    length = tile.columns if is_narrow else tile.channels * tile.rows * tile.columns
    quads = ceil_div(length + 3, 4)
    loads = (_count_loads(plane, tile), tile.patch_rows, plane.extents[1], plane.extents[0])
    divisors = (*tiles, tile.columns, ceil_div(tile.rows, at_once), *loads, quads)
    numbers = (plane.extents, plane.counts, plane.kernel, plane.strides, plane.dilations, plane.begins)
    return join_bytes(
        (
            pack_struct("<i", channels[0]),
            pack_fast_div32(channels[1]),
            pack_struct("<12i", *(entry for pair in numbers for entry in pair)),
            pack_struct("<3i", tile.channels, tile.rows, tile.columns),
            pack_struct("<4i", tile.patch_rows, tile.patch_columns, tile.pitch, tile.pitch // 2),
            pack_struct("<3i", is_narrow, 4 * quads, has_ranges),
            *(pack_fast_div32(max(divisor, 1)) for divisor in divisors),
            pack_struct("<4q", *strides),
        )
    )


@memoize(1024)
def find_tile(plane: _Plane, channels: int, multiplier: int, outputs: int) -> _Tile | None:
    """Return the tile of which the fewest bytes are read again; None where no tile fits into shared memory."""
    at_once = _ROWS_AT_ONCE if plane.form[0] else 1
    wanted = min(max(ceil_div(outputs, _WANTED_TILES), _LEAST_OUTPUTS), _MOST_OUTPUTS)
    best, best_reads = None, 0
    columns = max(plane.counts[1], 1)
    while True:
        # Rows read again are to be a fifth of all at most.
        least = round_up(max(4 * ceil_div(plane.spans[0] - plane.strides[0], plane.strides[0]), 1), at_once)
        rows = min(max(least, round_up(ceil_div(wanted, columns), at_once)), round_up(max(plane.counts[0], 1), at_once))
        while rows > 0 and (tile := _fit(plane, 1, min(rows, max(plane.counts[0], 1)), columns, multiplier)) is None:
            rows -= at_once
        if rows > 0 and tile is not None:
            reads = _count_reads(plane, tile)
            if best is None or reads < best_reads:
                best, best_reads = tile, reads
        if columns <= _VECTOR:
            break
        columns = round_up(ceil_div(columns, 2), _VECTOR)
    if best is None or best.rows < plane.counts[0] or best.columns < plane.counts[1]:
        return best
    whole = max(1, best.rows * best.columns)
    for several in range(min(channels, max(1, wanted // whole)), 1, -1):
        tile = _fit(plane, several, best.rows, best.columns, multiplier)
        if tile is not None:
            return tile
    return best


def _fit(plane: _Plane, channels: int, rows: int, columns: int, multiplier: int) -> _Tile | None:
    """Return the tile of these outputs, or None where it is too large."""
    at_once = _ROWS_AT_ONCE if plane.form[0] else 1
    spans, strides = plane.spans, plane.strides
    patch_rows = (round_up(rows, at_once) - 1) * strides[0] + spans[0]
    patch_columns = (columns - 1) * strides[1] + spans[1]
    pitch = round_up(patch_columns, 2)
    planes = 1 if multiplier % channels == 0 else min(channels, (channels - 1) // multiplier + 2)
    if columns < plane.counts[1]:
        outputs = rows * 4 * ceil_div(columns + 3, 4)
    else:
        outputs = 4 * ceil_div(channels * rows * columns + 3, 4)
    is_small = (
        planes * patch_rows * pitch <= _PATCH
        and outputs <= _OUTPUTS
        and channels * plane.kernel[0] * plane.kernel[1] <= _WEIGHTS
    )
    return _Tile(channels, rows, columns, planes, patch_rows, patch_columns, pitch) if is_small else None


def _count_loads(plane: _Plane, tile: _Tile) -> int:
    """Return how many elements of a row are read for a tile: from an aligned one on."""
    return min(plane.extents[1], round_up(tile.patch_columns + _ALIGNED_COLUMNS - 1, _ALIGNED_COLUMNS))


def _count_reads(plane: _Plane, tile: _Tile) -> int:
    """Return how many elements are read for all tiles of a channel."""
    rows = ceil_div(plane.counts[0], tile.rows) * min(tile.patch_rows, plane.extents[0])
    tiles = ceil_div(plane.counts[1], tile.columns)
    # Parts of rows begin and end within a sector of outputs, too.
    return rows * (plane.extents[1] if tiles == 1 else tiles * (_count_loads(plane, tile) + _ALIGNED_COLUMNS))
