"""Convolutions of floats as products by tiles on a device: tables of taps, packed weights, tiles and slices.

``conv_simt.cu`` multiplies weights by patches of the input. A convolution is one product; its transpose is one for each
phase, which is the outputs of equal remainders by the strides: these see the input through the same taps. Where a
product has few tiles its inner extent is divided into slices, whose sums the last block of a tile adds up. Narrow
weights are packed as those of float are, in their own type, and widened on the way to shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from gpuexec.ir.command import BUFFER_ALIGNMENT, Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64, join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ir.weight_forms import WeightForm, weight_form
from gpuexec.ops.elementwise.epilogue import instantiate_finished
from gpuexec.ops.lib.slices import LARGE_TILE, ONE_SLICE, SLAB_DEPTH, SMALL_TILE, TILES, Tile, choose_tile, slice_tiles
from gpuexec.ops.lib.strided import pack_fast_div32
from gpuexec.ops.lib.windows import MAX_AXES, Windows
from gpuexec.ops.quant.narrow_weight import STORED, NarrowWeight, name_stored

FLOAT: np.dtype[Any] = np.dtype(np.float32)
_SOURCE = "conv_simt.cu"
MAX_TAPS, _MAX_PHASES, _MAX_TAP_BITS = 128, 16, 31  # of conv_simt.cu
_PADDING = 1 << 31  # bits of a tap that only pads
_PACK_THREADS = 256
_PHASE_NBYTES = 104  # sizeof(ConvPhase)
_LIMIT = 2**31
# Channels of a tap that lie together; 1: there is one tap, whose weights are read as they lie.
BLOCKS = (16, 4, 1)


def _name_kernel(tile: Tile, block: int, weight: np.dtype[Any], *, is_transposed: bool) -> Kernel:
    """Return the kernel for a tile, channels that lie together, and the type of the weights."""
    name = "simt_conv_transpose" if is_transposed else "simt_conv"
    if weight == FLOAT:
        return Kernel(_SOURCE, f"{name}<{tile.name}, {block}>")
    return Kernel(_SOURCE, f"{name}_narrow<{tile.name}, {block}, {name_stored(weight)}>")


def _has_tile(tile: Tile, block: int, weight: np.dtype[Any]) -> bool:
    """Return whether there is a kernel: large tiles that gather leave registers for int8 by 16 channels alone."""
    return tile is SMALL_TILE or weight == FLOAT or block == 1 or (block == 16 and weight.itemsize == 1)


for _weight in (FLOAT, *STORED):
    _shapes = [(tile, block) for tile in TILES for block in BLOCKS if _has_tile(tile, block, _weight)]
    instantiate_finished(FLOAT, [_name_kernel(*shape, _weight, is_transposed=False) for shape in _shapes])
    # Phases are many, and small: the large tile would hardly be chosen.
    instantiate_finished(FLOAT, [_name_kernel(SMALL_TILE, block, _weight, is_transposed=True) for block in (16, 4)])
    instantiate(_SOURCE, [f"pack_conv_weights<{name_stored(_weight)}>"])


@dataclass(frozen=True, slots=True)
class AxisPhase:
    """Taps that the windows of a phase see the input through, along one axis.

    Window ``u`` sees ``start + u * step + i * dilation`` through tap ``taps[i]``.
    """

    start: int
    taps: tuple[int, ...]
    dilation: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Taps of a phase along three axes, and the remainders of its outputs by the strides."""

    remainders: tuple[int, ...]
    axes: tuple[AxisPhase, ...]

    def list_taps(self, kernel: Sequence[int]) -> list[int]:
        """Return the numbers of its taps in the kernel, row-major."""
        axes = [axis.taps for axis in self.axes]
        return [(a * kernel[1] + b) * kernel[2] + c for a, b, c in itertools.product(*axes)]


def _list_axis(kernel: int, stride: int, dilation: int, begin: int) -> list[AxisPhase]:
    """Return the phases of a transposed convolution along an axis."""
    common = gcd(stride, dilation)
    phases = []
    for remainder in range(stride):
        taps = tuple(tap for tap in range(kernel) if (remainder + begin - tap * dilation) % stride == 0)
        start = (remainder + begin - taps[0] * dilation) // stride if taps else 0
        phases.append(AxisPhase(start, taps, -(dilation // common)))
    return phases


@memoize(1024)
def list_phases(
    kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], begins: tuple[int, ...]
) -> tuple[Phase, ...]:
    """Return the phases of a transposed convolution over three axes."""
    axes = [_list_axis(*each) for each in zip(kernel, strides, dilations, begins, strict=True)]
    return tuple(
        Phase(remainders, tuple(phases[remainder] for phases, remainder in zip(axes, remainders, strict=True)))
        for remainders in itertools.product(*map(range, strides))
    )


def _pad_taps(taps: int, block: int) -> int:
    """Return the taps of a table, of which some only pad: they fill slabs, and there is one at least."""
    return round_up(max(taps, 1), SLAB_DEPTH // block)


def _count_inner(channels: int, taps: int, block: int) -> int:
    """Return the inner extent of packed weights: taps that only pad and channels that only pad included."""
    return ceil_div(channels, block) * _pad_taps(taps, block) * block if taps else 0


def _write(packed: Array, weights: Array, out: int, channel: int) -> None:
    """Write weights ``[outs, channels, taps]``, from an output channel and a channel on, to their places.

    Args:
        packed: ``[outs, blocks of channels, taps, channels of a block]``, perhaps with more taps.
        weights: A part of them.
        out: The output channel where it begins.
        channel: The channel where it begins.
    """
    block, end = packed.shape[-1], channel + weights.shape[1]
    outs, taps, first = slice(out, out + weights.shape[0]), slice(0, weights.shape[2]), channel
    while first < end:
        number = first // block
        last = min((number + 1) * block, end)
        part = weights[:, first - channel : last - channel]
        packed[outs, number, taps, first - number * block : last - number * block] = part.swapaxes(1, 2)
        first = last


@weight_form("conv_taps")
@dataclass(frozen=True, slots=True)
class ConvTaps(WeightForm):
    """Weights ``[outs, channels, taps...]`` as ``[outs, blocks of channels, taps, channels of a block]``."""

    block: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec, with the channels and taps that only pad."""
        outs, channels, *kernel = source.shape
        taps = _pad_taps(prod(kernel), self.block)
        return source.with_shape((outs, ceil_div(channels, self.block), taps, self.block))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are fewer than any part has rows."""
        _write(packed, block.reshape(*block.shape[:2], -1), at[0], at[1])


@weight_form("conv_phases")
@dataclass(frozen=True, slots=True)
class ConvPhases(WeightForm):
    """Weights ``[channels, outs of a group, taps...]`` of a transposed convolution, phase by phase as `ConvTaps`.

    ``channels`` are those of a group and ``outs`` those of all groups. Strides, dilations and begins are of three axes.
    """

    block: int
    groups: int
    channels: int
    outs: int
    stride_0: int
    stride_1: int
    stride_2: int
    dilation_0: int
    dilation_1: int
    dilation_2: int
    begin_0: int
    begin_1: int
    begin_2: int

    @staticmethod
    def of(block: int, groups: int, channels: int, outs: int, windows: Windows) -> ConvPhases:
        """Return the form for the windows of a transposed convolution."""
        _, _, _, strides, dilations, begins = _spread(windows)
        return ConvPhases(block, groups, channels, outs, *strides, *dilations, *begins)

    def list_phases(self, kernel: Sequence[int]) -> tuple[Phase, ...]:
        """Return the phases of a kernel."""
        return list_phases(
            _fill(kernel, 1),
            (self.stride_0, self.stride_1, self.stride_2),
            (self.dilation_0, self.dilation_1, self.dilation_2),
            (self.begin_0, self.begin_1, self.begin_2),
        )

    def list_shapes(self, kernel: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Return the shapes of the phases' weights: out channels, blocks, taps, channels of a block."""
        counts = [len(phase.list_taps(_fill(kernel, 1))) for phase in self.list_phases(kernel)]
        blocks = ceil_div(self.channels, self.block)
        return [(self.outs, blocks, _pad_taps(count, self.block) if count else 0, self.block) for count in counts]

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec: all phases in one axis."""
        return source.with_shape((sum(prod(shape) for shape in self.list_shapes(source.shape[2:])),))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Write a part of the weights, whose taps are all there: they are fewer than any part has rows."""
        kernel = block.shape[2:]
        weights = block.reshape(*block.shape[:2], -1).swapaxes(0, 1)  # [outs, channels, taps]
        first, outs = 0, self.outs // self.groups
        for phase, shape in zip(self.list_phases(kernel), self.list_shapes(kernel), strict=True):
            own = packed[first : first + prod(shape)].reshape(shape)
            first += prod(shape)
            chosen = weights[:, :, phase.list_taps(_fill(kernel, 1))]
            for group in range(self.groups):
                low = max(group * self.channels, at[0])
                high = min((group + 1) * self.channels, at[0] + block.shape[0])
                if low < high and own.size:
                    part = chosen[:, low - at[0] : high - at[0]]
                    _write(own, part, group * outs + at[1], low - group * self.channels)


def _fill(values: Sequence[int], filler: int) -> tuple[int, ...]:
    """Return numbers along three axes, of which those in front may not be there."""
    return (*(filler,) * (MAX_AXES - len(values)), *values)


def _spread(windows: Windows) -> tuple[tuple[int, ...], ...]:
    """Return extents, counts, kernel, strides, dilations and begins along three axes."""
    rows = (
        (windows.extents, 1), (windows.counts, 1), (windows.kernel, 1), (windows.strides, 1), (windows.dilations, 1),
        (windows.begins, 0),
    )  # fmt: skip
    return tuple([_fill(values, filler) for values, filler in rows])


@dataclass(frozen=True, slots=True)
class ConvSum:
    """What a convolution or its transpose sums: extents, phases, and how it lies in memory.

    Attributes:
        batch: Images.
        groups: Groups of channels.
        channels: Of the input, in a group.
        outs: Output channels of a group.
        kernel: Along three axes, as all below.
        extents: Of the input.
        outputs: Extents of the output.
        steps: From a window of a phase to the next, in the input.
        output_steps: The same in the output.
        phases: All phases; some may have no outputs.
        is_transposed: Whether it is a transposed convolution.
        x_strides: By batch, channel and three axes.
    """

    batch: int
    groups: int
    channels: int
    outs: int
    kernel: tuple[int, ...]
    extents: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[int, ...]
    output_steps: tuple[int, ...]
    dilations: tuple[int, ...]
    phases: tuple[Phase, ...]
    is_transposed: bool
    x_strides: tuple[int, ...]

    @staticmethod
    def of(x: Slot, windows: Windows, groups: int, channels: int, outs: int, *, is_transposed: bool) -> ConvSum:
        """Return the sum of a convolution over these windows of x, or of the transpose over those of its output."""
        extents, counts, kernel, strides, dilations, begins = _spread(windows)
        x_strides = (*x.strides[:2], *_fill(x.strides[2:], 0))
        ones = (1,) * MAX_AXES
        if is_transposed:
            phases = list_phases(kernel, strides, dilations, begins)
            common = tuple(-(d // gcd(s, d)) for s, d in zip(strides, dilations, strict=True))
            return ConvSum(
                x.shape[0], groups, channels, outs, kernel, counts, extents, ones, strides, common, phases, True,
                x_strides,
            )  # fmt: skip
        axes = zip(begins, kernel, dilations, strict=True)
        whole = Phase((0,) * MAX_AXES, tuple(AxisPhase(-begin, tuple(range(taps)), d) for begin, taps, d in axes))
        return ConvSum(
            x.shape[0], groups, channels, outs, kernel, extents, counts, strides, ones, dilations, (whole,), False,
            x_strides,
        )  # fmt: skip

    def count_windows(self, phase: Phase) -> tuple[int, ...]:
        """Return the windows of a phase along each axis."""
        axes = zip(self.outputs, phase.remainders, self.output_steps, strict=True)
        return tuple(max(ceil_div(extent - first, step), 0) for extent, first, step in axes)

    def count_inners(self, block: int) -> list[int]:
        """Return the inner extent of each phase."""
        if block == 1:
            return [self.channels]
        return [_count_inner(self.channels, len(phase.list_taps(self.kernel)), block) for phase in self.phases]

    def count_tiles(self, tile: Tile) -> list[int]:
        """Return the tiles of each phase."""
        rows = self.groups * ceil_div(self.outs, tile.rows)
        return [rows * ceil_div(self.batch * prod(self.count_windows(phase)), tile.columns) for phase in self.phases]

    def choose_block(self) -> int:
        """Return the channels that lie together in a tap, so that as little as possible only pads."""
        if self.channels % 8:
            return 4
        return 16 if sum(self.count_inners(16)) <= sum(self.count_inners(4)) else 4

    def has_tables(self) -> bool:
        """Return whether the kernels' tables and 32-bit numbers hold it."""
        taps = sum(_pad_taps(len(phase.list_taps(self.kernel)), 4) for phase in self.phases)
        bits = sum(max([len(phase.axes[axis].taps) for phase in self.phases], default=0) for axis in range(MAX_AXES))
        reach = [abs(d) * k * abs(s) for d, k, s in zip(self.dilations, self.kernel, self.x_strides[2:], strict=True)]
        tiles = sum(self.count_tiles(SMALL_TILE))
        starts = [abs(axis.start) for phase in self.phases for axis in phase.axes]
        return (
            taps <= MAX_TAPS
            and max(self.batch, self.channels, self.groups * self.outs) < _LIMIT
            and len(self.phases) <= _MAX_PHASES
            and bits <= _MAX_TAP_BITS
            and max(sum(reach), 4 * abs(self.x_strides[1]), 4 * max(self.count_inners(4)), tiles) < _LIMIT
            and max(*starts, *self.outputs) < _LIMIT
            and (self.batch + 1) * prod(self.outputs) + LARGE_TILE.columns < _LIMIT
            and max([e + s * o for e, s, o in zip(self.extents, self.steps, self.outputs)]) < _LIMIT
        )

    def has_points(self, w: Slot) -> bool:
        """Return whether there is one tap, whose weights can be copied by 16 bytes as they lie."""
        is_single = not self.is_transposed and self.kernel == (1,) * MAX_AXES
        return is_single and self.channels % 4 == 0 and w.offset_bytes % BUFFER_ALIGNMENT == 0

    def has_positions(self, x: Slot) -> bool:
        """Return whether the windows of one tap are the positions of an image, which can be copied four at a time."""
        return (
            self.steps == (1,) * MAX_AXES
            and self.extents == self.outputs
            and all(axis.start == 0 for axis in self.phases[0].axes)
            and not any(place % 4 for place in (*self.x_strides[:2], prod(self.outputs)))
            and x.strides[2:] == contiguous_strides(x.shape[2:])
            and x.offset_bytes % BUFFER_ALIGNMENT == 0
        )

    def pack(self, tile: Tile, block: int, *, has_positions: bool) -> bytes:
        """Return the bytes of ``SimtConv``."""
        most = [max([len(phase.axes[axis].taps) for phase in self.phases], default=0) for axis in range(MAX_AXES)]
        first_bits = (0, most[0], most[0] + most[1])
        y_axes, y_channel = contiguous_strides(self.outputs), prod(self.outputs)
        table: list[tuple[int, int]] = []
        phases: list[bytes] = []
        first_tile = first_weight = 0
        for phase, tiles, inner in zip(self.phases, self.count_tiles(tile), self.count_inners(block), strict=True):
            counts = self.count_windows(phase)
            if prod(counts):
                taps = self._list_taps(phase, first_bits)
                padding = _pad_taps(len(taps), block) - len(taps) if block > 1 else 0
                numbers = (first_tile, len(table), len(taps) + padding, inner)
                places = (*[axis.start for axis in phase.axes], *[len(axis.taps) for axis in phase.axes])
                first = sum(remainder * axis for remainder, axis in zip(phase.remainders, y_axes, strict=True))
                divisors = join_bytes(map(pack_fast_div32, (prod(counts), *counts)))
                phases.append(
                    pack_struct("<10i", *numbers, *places) + divisors + pack_struct("<2q", first_weight, first)
                )
                table += taps + [(0, _PADDING)] * padding
            first_tile += tiles
            first_weight += self.groups * self.outs * inner
        table += [(0, _PADDING)] * (MAX_TAPS - len(table))
        steps = [axis * step for axis, step in zip(y_axes, self.output_steps, strict=True)]
        return join_bytes((
            pack_struct("<4i", self.batch, self.groups, self.channels, self.outs),
            pack_struct("<12i", *self.extents, *self.steps, *self.dilations, *first_bits),
            pack_struct("<6q", *self.x_strides[:2], y_channel, *steps),
            pack_struct("<4i", len(phases), 4 * self.x_strides[1], has_positions, 0),
            *phases, bytes(_PHASE_NBYTES * (_MAX_PHASES - len(phases))),
            *[pack_struct("<iI", *tap) for tap in table],
            pack_struct("<3q", *self.x_strides[2:]),
        ))  # fmt: skip

    def _list_taps(self, phase: Phase, first_bits: Sequence[int]) -> list[tuple[int, int]]:
        """Return offset and bits of each tap of a phase."""
        steps = [d * stride for d, stride in zip(self.dilations, self.x_strides[2:], strict=True)]
        counts = [range(len(axis.taps)) for axis in phase.axes]
        return [
            (
                sum(tap * step for tap, step in zip(taps, steps, strict=True)),
                sum(1 << first + tap for first, tap in zip(first_bits, taps, strict=True)),
            )
            for taps in itertools.product(*counts)
        ]


def launch_simt_conv(
    emit: Emitter,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    windows: Windows,
    groups: int,
    *,
    is_transposed: bool = False,
    narrow: NarrowWeight | None = None,
    keeps_order: bool = False,
) -> bool:
    """Launch a convolution or its transpose as a product of float tiles; False where the kernels can't.

    Args:
        emit: Emitter of the launch.
        slots: x, w, bias (or None), y.
        windows: Those over x, or over y where the convolution is transposed.
        groups: Groups of channels.
        is_transposed: Whether it is.
        narrow: The scales of w, where it is narrow.
        keeps_order: Whether sums are taken in the order of their terms, by one thread each.
    """
    x, w, bias, y = slots
    if y.dtype != FLOAT:
        return False
    outs, channels = (w.shape[1], w.shape[0] // groups) if is_transposed else (w.shape[0] // groups, w.shape[1])
    total = ConvSum.of(x, windows, groups, channels, outs, is_transposed=is_transposed)
    able = total.has_tables()
    block = 1 if total.has_points(w) else total.choose_block()
    choice = emit.choose(1 + BLOCKS.index(block) if able else 0)
    if not (able and choice):
        return False
    chosen = BLOCKS[choice - 1]
    # Where weights have other extents, and the chosen kernel can't serve them, the size is planned by itself.
    block = chosen if {16: channels % 8 == 0, 4: True, 1: block == 1}[chosen] else block
    inner, tile = max(total.count_inners(block), default=0), SMALL_TILE
    if not is_transposed and _has_tile(LARGE_TILE, block, w.dtype):
        tile = choose_tile(emit, outs, x.shape[0] * prod(windows.counts), inner, groups)
    tiles = sum(total.count_tiles(tile))
    slices = ONE_SLICE if keeps_order else slice_tiles(emit, tiles, ceil_div(inner, SLAB_DEPTH), tile.size)
    weights = _pack_weights(emit, w, windows, total, block)
    bias = None if bias is None else emit.contiguous(bias)
    sizes = total.pack(tile, block, has_positions=block == 1 and total.has_positions(x))
    arguments: list[Argument] = [x, weights, bias, y, sizes, slices.scratch, slices.counters]
    if narrow is not None:
        arguments += [*narrow.dense(emit), int64(0 if narrow.axis is None else 1)]
    emit.launch(
        _name_kernel(tile, block, w.dtype, is_transposed=is_transposed),
        (max(tiles, 1), slices.count, 1),
        (tile.threads, 1, 1),
        arguments,
        slices.writes(3, 5, tiles),
    )
    return True


def _pack_weights(emit: Emitter, w: Slot, windows: Windows, total: ConvSum, block: int) -> Slot:
    """Return the weights as the kernel reads them: packed once where they are a weight of the model, else now."""
    taps = prod(total.kernel)
    if block == 1:
        return emit.contiguous(w)
    form: WeightForm = ConvTaps(block)
    outs = total.groups * total.outs
    if total.is_transposed:
        form = ConvPhases.of(block, total.groups, total.channels, outs, windows)
    packed = emit.packed(w, form)
    if packed is not None:
        return packed
    w = emit.contiguous(w)
    packed = emit.temp(form.infer(w.spec).shape, w.dtype)
    strides = (total.channels * taps, outs // max(total.groups, 1) * total.channels * taps, taps)
    if total.is_transposed:
        strides = (taps, total.channels * total.outs * taps, total.outs * taps)
    first = 0
    for phase, inner in zip(total.phases, total.count_inners(block), strict=True):
        sources = phase.list_taps(total.kernel)
        padded = _pad_taps(len(sources), block)
        sources += [-1] * (MAX_TAPS - len(sources))
        size = outs * inner
        parameters = pack_struct(
            f"<6i4q{MAX_TAPS}i", outs, total.channels, padded, block, max(total.outs, 1), 0, *strides, first, *sources
        )
        if size:
            emit.launch(
                Kernel(_SOURCE, f"pack_conv_weights<{name_stored(w.dtype)}>"),
                (ceil_div(size, _PACK_THREADS), 1, 1),
                (_PACK_THREADS, 1, 1),
                [w, packed, parameters],
                writes=[1],
            )
        first += size
    return packed
