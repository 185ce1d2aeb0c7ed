"""GridSample: interpolation of a tensor at given positions."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator, upgrade
from gpuexec.ir.spec import BFLOAT16, COMPUTED, STRING, TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.elementwise_cast import Cast, convert
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64

SOURCE = "grid_sample.cu"
FEW_AXES, MAX_AXES = 3, 6  # what a kernel keeps in registers; the latter is kAxes of grid_sample.cu
FLOATS = dtypes_of("float")
_MODE_OFFSET = 8 + 2 * 24 + 3 * 8 + 4  # of a launch's struct: behind its count, two divisors, three sizes and the axes
_CHANNELS, _THREADS = 8, 256  # kChannels and kThreads of grid_sample.cu
_MODES = ("nearest", "linear", "cubic")  # SampleMode of grid_sample.cu
_PADDINGS = ("zeros", "border", "reflection")  # SamplePadding
_GRID_TYPES = (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64))  # GridType
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_LIMIT = 2**30

instantiate(SOURCE, [f"sample_nearest<{bits}>" for bits in _BITS.values()])
instantiate(
    SOURCE, [f"sample_blend<{dtype_row(dtype).cuda}, {axes}>" for dtype in FLOATS for axes in (FEW_AXES, MAX_AXES)]
)

# Along one axis: for each tap the elements read (clamped), a mask of those inside (None: all), and the weights.
_Taps = list[tuple[Array, Array | None, Array]]


@operator("GridSample")
@dataclass(frozen=True, slots=True)
class GridSample(Operator):
    """Samples of ``x[n, c]`` at the positions ``grid[n]``, from -1 to 1, which name the innermost axis first.

    Beyond the tensor there are zeros, its border, or its reflection: a position that lies outside is moved to where it
    shows, then its neighbours are. One that is no number counts as outside, or as the first element where padding
    has no outside. Blends and their positions are computed in float or, of integers and double, in double; the nearest
    is found in float, in double for a double grid. Integers are truncated at the end, as Cast does it.
    """

    align_corners: int = 0
    mode: str = "linear"
    padding_mode: str = "zeros"
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[1,1,2,2] float32[1,2,2,2] mode='nearest'"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec, grid: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[batch, channels, positions...]``.

        Raises:
            InputError: Modes, types or shapes do not fit.
        """
        if self.mode not in _MODES or self.padding_mode not in _PADDINGS:
            raise InputError(
                f"GridSample expects mode among {', '.join(_MODES)} and padding_mode among {', '.join(_PADDINGS)}, "
                f"got {self.mode!r} and {self.padding_mode!r}."
            )
        check_dtype(self.name, x, [*(row.numpy for row in COMPUTED), *((STRING,) if self.mode == "nearest" else ())])
        check_dtype(self.name, grid, FLOATS, "grid")
        axes = x.rank - 2
        if axes < 1 or grid.rank != x.rank or (grid.shape[0], grid.shape[-1]) != (x.shape[0], axes):
            raise InputError(
                f"GridSample expects an input [batch, channels, spatial...] and a grid [batch, positions..., "
                f"{max(axes, 1)}] of the same rank, got {x} and {grid}."
            )
        y = x.with_shape((*x.shape[:2], *grid.shape[1:-1]))
        if y.size and not prod(x.shape[2:]):
            raise InputError(f"GridSample expects elements to sample, got {x}.")
        return (y,)

    def compute(self, x: Array, grid: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Gather and weigh, axis by axis, the innermost first; half and bfloat16 in float, rounded once."""
        (y,) = self.infer(TensorSpec(x.shape, x.dtype), TensorSpec(grid.shape, grid.dtype))
        if y.size == 0:
            return (np.empty(y.shape, x.dtype),)
        axes, extents = x.ndim - 2, x.shape[2:]
        positions = grid.reshape(grid.shape[0], -1, axes)
        is_nearest = self.mode == "nearest"
        blended = x.dtype if is_nearest else accumulator(x.dtype) if x.dtype in FLOATS else np.dtype(np.float64)
        with np.errstate(over="ignore"):
            positions = positions.astype(accumulator(grid.dtype) if is_nearest else blended, copy=False)
        rows = np.moveaxis(x, 1, -1).reshape(x.shape[0], prod(extents), x.shape[1]).astype(blended, copy=False)
        with np.errstate(all="ignore"):
            taps = [self._find_taps(positions[..., axes - 1 - k], extents[k]) for k in range(axes)]
            sampled = _blend(rows, taps, contiguous_strides(extents), is_nearest)  # [batch, positions, channels]
            sampled = convert(sampled, x.dtype)
        return (np.moveaxis(sampled, -1, 1).reshape(y.shape),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per position and 8 channels; integers are blended as doubles, between two casts."""
        x, grid, y = inputs[0], inputs[1], outputs[0]
        assert x is not None and grid is not None and y is not None
        if self.mode == "nearest":
            self._launch(emit, f"sample_nearest<{_BITS[x.dtype.itemsize]}>", x, grid, y)
        elif x.dtype in FLOATS:
            self._launch(emit, _name_blend(x), x, grid, y)
        else:
            wide, sampled = emit.temp(x.shape, np.float64), emit.temp(y.shape, np.float64)
            Cast(dtype_row("float64").code).lower(emit, (x,), (wide,))
            self._launch(emit, _name_blend(wide), wide, grid, sampled)
            Cast(dtype_row(x.dtype).code).lower(emit, (sampled,), (y,))

    def _launch(self, emit: Emitter, kernel: str, x: Slot, grid: Slot, y: Slot) -> None:
        axes = x.spec.rank - 2
        if axes > MAX_AXES or max(x.shape[2:]) >= _LIMIT:
            raise InputError(
                f"GridSample expects at most {MAX_AXES} spatial axes of less than 2**30 elements on a device, "
                f"got {x.spec}."
            )
        positions, blocks = prod(y.shape[2:]), ceil_div(y.shape[1], _CHANNELS)
        count = y.shape[0] * blocks * positions
        filler = (0,) * (MAX_AXES - axes)
        settings = (
            axes,
            _MODES.index(self.mode),
            _PADDINGS.index(self.padding_mode),
            int(self.align_corners != 0),
            _GRID_TYPES.index(grid.dtype),
            0,
        )
        walk = join_bytes(
            (
                pack_struct("<q", count),
                pack_fast_div64(max(1, positions)),
                pack_fast_div64(max(1, blocks)),
                pack_struct("<3q", x.shape[1], *x.strides[:2]),
                pack_struct(f"<6i{MAX_AXES}i{MAX_AXES}q", *settings, *x.shape[2:], *filler, *x.strides[2:], *filler),
            )
        )
        grid_size = (max(1, ceil_div(count, _THREADS)), 1, 1)
        arguments: list[Argument] = [x, emit.contiguous(grid), y, walk]
        emit.launch(Kernel(SOURCE, kernel), grid_size, (_THREADS, 1, 1), arguments, writes=[2])

    def _find_taps(self, given: Array, extent: int) -> _Taps:
        """Return the taps along an axis."""
        x = self._find_coordinates(given, extent)
        before = np.floor(x)
        base, fraction = before.astype(np.int64), x - before
        if self.mode == "nearest":
            return [(*self._find_elements(base, extent), fraction)]
        count = 4 if self.mode == "cubic" else 2
        return [
            (*self._find_elements(base + tap - (count - 2) // 2, extent), _tap_weight(fraction, tap, count))
            for tap in range(count)
        ]

    def _find_coordinates(self, given: Array, extent: int) -> Array:
        """Return coordinates in elements, moved to where they show."""
        kind = given.dtype.type
        one, two, size = kind(1), kind(2), kind(extent)
        low, high = (kind(0), kind(extent - 1)) if self.align_corners else (kind(-0.5), size - kind(0.5))
        x = (given + one) / two * kind(extent - 1) if self.align_corners else ((given + one) * size - one) / two
        if self.mode == "nearest":
            x = np.rint(x)
        if self.padding_mode == "zeros":  # so far outside that no tap is inside
            return np.asarray(np.where(x > kind(-4), np.minimum(x, kind(extent + 4)), kind(-4)))
        if self.padding_mode == "border":
            x = np.where(x < low, kind(0), np.where(x > high, kind(extent - 1), x))
        else:
            is_below = x < low
            beyond = np.where(is_below, low - x, x - high)
            times = np.floor(beyond / (high - low))
            rest = beyond - times * (high - low)
            is_even = times == two * np.floor(times / two)
            x = np.where(is_below | (x > high), np.where(is_even == is_below, low + rest, high - rest), x)
        return np.asarray(np.where((x >= low) & (x <= high), x, kind(0)))

    def _find_elements(self, at: Array, extent: int) -> tuple[Array, Array | None]:
        """Return the elements that taps read, and a mask of those within the input."""
        if self.padding_mode == "zeros":
            return np.clip(at, 0, extent - 1), (at >= 0) & (at < extent)
        if self.padding_mode == "border":
            return np.clip(at, 0, extent - 1), None
        period = 2 * (extent - 1) if self.align_corners else 2 * extent
        at = at % period if period else np.zeros_like(at)
        return np.where(at < extent, at, (period if self.align_corners else period - 1) - at), None


@upgrade("GridSample", below=20)
def _name_modes(node: RawNode) -> RawNode:
    """Rename the modes, which were named after images until opset 19."""
    mode = node.attributes.get("mode", "bilinear")
    return node.with_attributes(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _name_blend(x: Slot) -> str:
    axes = FEW_AXES if x.spec.rank - 2 <= FEW_AXES else MAX_AXES
    return f"sample_blend<{dtype_row(x.dtype).cuda}, {axes}>"


def _tap_weight(fraction: Array, tap: int, count: int) -> Array:
    """Return the weight of a tap of 2 (linear) or 4 (Keys' cubic, -0.75), by the fraction behind the element before."""
    one, two = fraction.dtype.type(1), fraction.dtype.type(2)
    if count == 2:
        return one - fraction if tap == 0 else fraction
    a, three, four, five, eight = (fraction.dtype.type(each) for each in (-0.75, 3, 4, 5, 8))
    x = (fraction + one, fraction, one - fraction, two - fraction)[tap]
    if tap in (1, 2):
        return np.asarray(((a + two) * x - (a + three)) * x * x + one)
    return np.asarray(((a * x - five * a) * x + eight * a) * x - four * a)


def _blend(rows: Array, taps: list[_Taps], strides: tuple[int, ...], is_nearest: bool) -> Array:
    """Return the blend of ``rows`` [batch, elements, channels] at all positions: [batch, positions, channels]."""
    batch = np.arange(rows.shape[0])[:, None]

    def along(axis: int, offset: Array | int, inside: Array | None) -> Array:
        if axis == len(taps):
            values: Array = rows[batch, offset]
            nothing = "" if rows.dtype == STRING else rows.dtype.type(0)
            return values if inside is None else np.where(inside[..., None], values, nothing)
        total: Array | None = None
        for elements, own, weights in taps[axis]:
            both = own if inside is None else inside if own is None else inside & own
            part = along(axis + 1, offset + elements * strides[axis], both)
            if is_nearest:
                return part
            part = part * weights[..., None]
            total = part if total is None else total + part
        assert total is not None
        return total

    return along(0, 0, None)


# Instructions of a thread: to find its place along an axis, for a tap, and for a tap of a channel.
_EACH_AXIS, _EACH_TAP, _EACH_VALUE = 60, 30, 20


@work_of(SOURCE, "sample_blend", "sample_nearest")
def _count_samples(launch: Launch) -> Work:
    x, grid, y, packed = launch.arguments
    assert isinstance(x, Slot) and isinstance(grid, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    axes, mode = x.spec.rank - 2, struct.unpack_from("<i", packed, _MODE_OFFSET)[0]
    taps = (1, 2, 4)[mode] ** axes
    each = axes * _EACH_AXIS + taps * (_EACH_TAP + min(_CHANNELS, y.shape[1]) * _EACH_VALUE)
    return Work(
        flops=2 * taps * y.spec.size if taps > 1 else 0,
        instructions=count_warps(launch) * each,
        # Neighbouring positions sample much the same places, as far as the grid is smooth: L1 has them then.
        l2_nbytes=sum(map(count_slot_bytes, (x, y))) + grid.spec.nbytes * ceil_div(y.shape[1], _CHANNELS),
        rounds=2 + ceil_div(taps, 2),
        registers=55,
    )
