"""Depthwise convolution of images that lie channels last: its tiles, packed weights, launch and work.

A thread of ``conv_depthwise_last`` makes 16 outputs: 16 bytes of channels by two or four columns. It adds in the order
of `conv_depthwise`, so results don't depend on how images lie. Types that a precision stores go in as they are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import numpy as np

from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, round_up
from gpuexec.ir.kernel_values import join_bytes, pack_struct, unpack_struct
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ir.work import LAUNCH_NBYTES, WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps, instantiate_finished
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import Windows
from gpuexec.ops.nn.conv_mma import has_channels_last

_SOURCE, _FLOAT = "conv_depthwise_last.cu", np.dtype(np.float32)
# Constants of conv_depthwise_last.cu.
_THREADS, _OWN, _VECTOR_NBYTES = 128, 16, 16  # threads of a block, outputs of a thread, bytes of a load
_VECTORS = 8  # of channels in a tile: a line of memory
_WANTED_TILES = 264  # two for each multiprocessor of a large GPU
_MAX_TAPS, _LIMIT = 64, 2**31
_WINDOWS = "<13i4x3q"  # of DepthwiseWindows
# Columns and stride of the kernels that have an instance of their own; (0, 1): any.
LAST_FORMS = ((0, 1), (3, 1), (3, 2))
# Types of operands and result.
LAST_TYPES = tuple(
    (dtype, result) for dtype in (_FLOAT, np.dtype(np.float16), BFLOAT16) for result in dict.fromkeys((dtype, _FLOAT))
)


def name_last(dtypes: tuple[np.dtype[Any], np.dtype[Any]], form: tuple[int, int]) -> Kernel:
    """Return the kernel of a depthwise convolution channels last.

    Args:
        dtypes: Of operands and result.
        form: Of `LAST_FORMS`.
    """
    types = ", ".join([dtype_row(dtype).cuda for dtype in dtypes])
    return Kernel(_SOURCE, f"conv_depthwise_last<{types}, {form[0]}, {form[1]}>")


for _dtype, _result in LAST_TYPES:
    _stored = [] if _dtype == _result else [_dtype]
    instantiate_finished(_result, [name_last((_dtype, _result), form) for form in LAST_FORMS], stored=_stored)


@weight_form("depthwise_taps")
@dataclass(frozen=True, slots=True)
class DepthwiseTaps(WeightForm):
    """Weights ``[channels, 1, taps...]`` as ``[taps, channels]``."""

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec."""
        return source.with_shape((prod(source.shape[2:]), source.shape[0]))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are no more than any part has rows."""
        packed[:, at[0] : at[0] + block.shape[0]] = block.reshape(block.shape[0], -1).T


def takes_depthwise_last(dtypes: tuple[np.dtype[Any], ...], channels: int, kernel: tuple[int, ...]) -> bool:
    """Return whether there is a kernel for a convolution with one input and one output channel in a group.

    Args:
        dtypes: Of x, w and y.
        channels: Of the images.
        kernel: Its taps along each axis.
    """
    x, w, y = dtypes
    return (
        x == w
        and (x, y) in LAST_TYPES
        and len(kernel) <= 2
        and prod(kernel) <= _MAX_TAPS
        and channels % (_VECTOR_NBYTES // x.itemsize) == 0
    )


def count_widened(x: TensorSpec) -> int:
    """Return the bytes that widening an image of 16 bits to float moves, and what reading it so takes more.

    Its launch is the bytes that could be moved in that time.
    """
    return 4 * x.nbytes + LAUNCH_NBYTES


def launch_depthwise_last(
    emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], windows: Windows, groups: int
) -> bool:
    """Launch a depthwise convolution whose images lie channels last; False where they don't, or there is no kernel.

    Args:
        emit: Emitter of the launch.
        slots: x, w, bias (or None), y.
        windows: Those over x.
        groups: Groups of channels.
    """
    x, w, bias, y = slots
    is_depthwise = w.shape[0] == groups == x.shape[1]
    if not (is_depthwise and takes_depthwise_last((x.dtype, w.dtype, y.dtype), groups, windows.kernel)):
        return False
    plane = LastPlane.of(windows)
    able = _lies_last(x) and _lies_last(y) and has_channels_last(y) and max(x.spec.size, y.spec.size) < _LIMIT
    able = able and (bias is None or bias.offset_bytes % _VECTOR_NBYTES == 0)
    choice = emit.choose(1 + LAST_FORMS.index(plane.form) if able else 0)
    if not (choice and able):
        return False
    form = LAST_FORMS[choice - 1]
    if form != LAST_FORMS[0]:
        form = plane.form  # where it is another, the size is planned by itself
    vectors = y.shape[1] * x.dtype.itemsize // _VECTOR_NBYTES
    tile = find_last_tile(plane, vectors, _OWN * x.dtype.itemsize // _VECTOR_NBYTES, x.shape[0])
    bias = None if bias is None else emit.contiguous(bias)
    axes = (0,) * (4 - x.spec.rank) + x.strides[2:]
    emit.launch(
        name_last((x.dtype, y.dtype), form),
        (max(x.shape[0] * prod(tile.count(plane, vectors)), 1), 1, 1),
        (tile.threads, 1, 1),
        [x, _pack_weights(emit, w), bias, y, _pack(plane, tile, vectors, y.shape[1], (x.strides[0], *axes))],
        writes=[3],
    )
    return True


@dataclass(frozen=True, slots=True)
class LastPlane:
    """Windows over two axes; of one axis there is another of extent 1 in front."""

    extents: tuple[int, ...]
    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]

    @staticmethod
    def of(windows: Windows) -> LastPlane:
        """Return those of a convolution over one or two axes."""
        lead = 2 - len(windows.kernel)
        ones, zeros = (1,) * lead, (0,) * lead
        return LastPlane(
            ones + windows.extents, ones + windows.counts, ones + windows.kernel, ones + windows.strides,
            ones + windows.dilations, zeros + windows.begins,
        )  # fmt: skip

    @property
    def form(self) -> tuple[int, int]:
        """The form of `LAST_FORMS` for these windows."""
        form = (self.kernel[1], self.strides[1])
        return form if self.dilations[1] == 1 and form in LAST_FORMS else LAST_FORMS[0]


@dataclass(frozen=True, slots=True)
class LastTile:
    """What a block makes: vectors of channels, groups of so many columns, rows."""

    vectors: int
    columns: int
    groups: int
    rows: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return round_up(self.vectors * self.groups * self.rows, WARP)

    def count(self, plane: LastPlane, vectors: int) -> tuple[int, int, int]:
        """Return the tiles of an image along channels, columns and rows."""
        groups = ceil_div(plane.counts[1], self.columns)
        return ceil_div(vectors, self.vectors), ceil_div(groups, self.groups), ceil_div(plane.counts[0], self.rows)


@memoize(1024)
def find_last_tile(plane: LastPlane, vectors: int, columns: int, batch: int) -> LastTile:
    """Return tiles about as high as wide, but of fewer rows where they would be few.

    Args:
        plane: The windows.
        vectors: Of channels.
        columns: That a thread makes.
        batch: Images.
    """
    groups, height = max(1, ceil_div(plane.counts[1], columns)), max(1, plane.counts[0])
    own = min(_VECTORS, max(1, vectors))
    places = _THREADS // own
    wide = min(groups, max(1, isqrt(places // columns)))
    rows = min(height, places // wide)
    wide = min(groups, places // rows)
    while True:
        rows = ceil_div(height, ceil_div(height, rows))
        tile = LastTile(own, columns, wide, rows)
        if tile.threads <= WARP or rows == 1 or batch * prod(tile.count(plane, vectors)) >= _WANTED_TILES:
            return tile
        rows = ceil_div(rows, 2)


def _lies_last(slot: Slot) -> bool:
    """Return whether channels lie next to each other, and all else begins at a multiple of 16 bytes."""
    lanes = _VECTOR_NBYTES // min(slot.dtype.itemsize, 4)
    others = [stride for axis, stride in enumerate(slot.strides) if axis != 1 and slot.shape[axis] > 1]
    is_aligned = slot.offset_bytes % _VECTOR_NBYTES == 0 and not any(stride % lanes for stride in others)
    return slot.strides[1] == 1 and slot.shape[1] > 1 and is_aligned


def _pack(plane: LastPlane, tile: LastTile, vectors: int, channels: int, strides: tuple[int, ...]) -> bytes:
    """Return the bytes of ``DepthwiseLast``."""
    numbers = (plane.extents, plane.counts, plane.kernel, plane.strides, plane.dilations, plane.begins)
    divisors = (tile.vectors, tile.groups, *tile.count(plane, vectors))
    return join_bytes(
        (
            pack_struct(_WINDOWS, channels, *[entry for pair in numbers for entry in pair], *strides),
            pack_struct("<i", tile.rows),
            *[pack_fast_div32(max(divisor, 1)) for divisor in divisors],
        )
    )


@dataclass(frozen=True, slots=True)
class PackedWindows:
    """The bytes of ``DepthwiseWindows`` at the front of a struct, and pairs of numbers in them, of rows and columns."""

    packed: bytes
    extents: tuple[int, ...]
    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @staticmethod
    def read(packed: Any) -> PackedWindows:
        """Return those of an argument of a launch."""
        numbers = unpack_struct(_WINDOWS, packed)[1:]
        extents, counts, kernel, strides, dilations = (numbers[first : first + 2] for first in range(0, 10, 2))
        return PackedWindows(packed[: struct.calcsize(_WINDOWS)], extents, counts, kernel, strides, dilations)

    @property
    def taps(self) -> int:
        """Taps of the kernel."""
        return prod(self.kernel)

    def count_seen(self, rows: int, columns: int) -> int:
        """Return the positions of the image that a rectangle of windows sees."""
        sides = zip((rows, columns), self.strides, self.kernel, self.dilations, self.extents, strict=True)
        return prod(
            min((count - 1) * stride + (taps - 1) * dilation + 1, extent)
            for count, stride, taps, dilation, extent in sides
        )


def _pack_weights(emit: Emitter, w: Slot) -> Slot:
    """Return the weights as the kernel reads them: packed once where they are a weight of the model, else now."""
    packed = emit.packed(w, DepthwiseTaps())
    if packed is not None:
        return packed
    channels, _, *kernel = w.shape
    made = emit.temp((prod(kernel), channels), w.dtype)
    taps = [step * channels for step in contiguous_strides(kernel)]
    emit.copy(Slot(made.buffer, made.offset_bytes, w.spec.with_shape(w.shape), (1, 1, *taps)), w)
    return made


# Instructions of a thread: around, for a place of the input or a weight to be read, and for each of its elements.
_AROUND, _EACH_READ, _EACH_LANE = 150, 6, 1


@work_of(_SOURCE, "conv_depthwise_last")
def _count_depthwise_last(launch: Launch) -> Work:
    x, y, packed = launch.arguments[0], launch.arguments[3], launch.arguments[4]
    assert isinstance(x, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    windows = PackedWindows.read(packed)
    rows, vectors, groups = struct.unpack_from("<iI8xI", packed, len(windows.packed))
    kernel, strides, taps = windows.kernel, windows.strides, windows.taps
    lanes, steps = _VECTOR_NBYTES // x.dtype.itemsize, count_epilogue_steps(launch)
    outputs, own_columns = y.spec.size, _OWN // lanes
    form = int(launch.kernel.expression.split(",")[2])
    # Columns that a thread reads of a row, and weights.
    reads = kernel[1] * (own_columns + 1)
    if form:
        reads = (own_columns - 1) * strides[1] + 2 * kernel[1]
    each = kernel[0] * reads * (_EACH_READ + lanes * _EACH_LANE) + _OWN * (taps + steps * STEP_INSTRUCTIONS + 3)
    warps, bias = count_warps(launch), outputs if launch.arguments[2] is not None else 0
    # What a block sees: L1 has a place after the first time.
    seen = prod(launch.grid) * vectors * _VECTOR_NBYTES * (windows.count_seen(rows, own_columns * groups) + taps)
    beside = [slot for slot in launch.reads_from() if slot not in (x, launch.arguments[1])]
    return Work(
        flops=2 * taps * outputs + bias + steps * outputs,
        instructions=warps * (_AROUND + each),
        multiply_adds=warps * _OWN * taps,
        needed_multiply_adds=taps * outputs,
        l2_nbytes=seen + count_slot_bytes(y) + sum(count_slot_bytes(slot) for slot in beside),
        rounds=2 + kernel[0],
        registers=128,
    )
