"""Resize, and Upsample, its old name.

Coordinates are tables made while planning (`gpuexec.ops.vision.resize_tables`) and lie on the device as constants.
They belong
to one pair of extents: for other extents the operator is planned anew, with tables of their own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, memory_axes, normalize_axes
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import BFLOAT16, TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.epilogue import (
    STEP_INSTRUCTIONS,
    STORED,
    allow_for_floats,
    count_epilogue_steps,
    instantiate_finished,
)
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.checks import require_floats, require_ints
from gpuexec.ops.lib.plain import is_plain
from gpuexec.ops.lib.strided import MAX_RANK, pack_fast_div32, pack_fast_div64
from gpuexec.ops.vision.resize_tables import AxisTable, ResizedAxis, Sampling, make_table

MAX_LEVELS = 4  # axes the kernels interpolate along; kLevels of resize.cu
BLENDED = dtypes_of("float", "int", "uint")
_SOURCE, _THREADS = "resize.cu", 256
_LIMIT = 2**29  # entries of a table, so that all of them fit 31 bits
_MODES = ("nearest", "linear", "cubic")
_POLICIES = ("stretch", "not_larger", "not_smaller")

_UNIT, _UNIT_LEVELS = 8, 3  # kUnit and kImageLevels of resize.cu
_UNIT_TYPES = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)

instantiate(_SOURCE, [f"resize_nearest<{bits}>" for bits in ("u8", "u16", "u32", "u64")])
instantiate(_SOURCE, [f"resize_blend<{dtype_row(dtype).cuda}>" for dtype in BLENDED])
allow_for_floats(_SOURCE, "resize_blend<{t}>", vector=1)


def _name_units(dtype: np.dtype[Any], *, is_blended: bool) -> Kernel:
    return Kernel(_SOURCE, f"resize_units<{dtype_row(dtype).cuda}, {'true' if is_blended else 'false'}>")


for _dtype in _UNIT_TYPES:
    _kernels = [_name_units(_dtype, is_blended=is_blended) for is_blended in (False, True)]
    _stored = STORED if _dtype == np.float32 else ()
    instantiate_finished(_dtype, _kernels, stored=_stored, vector=16 // _dtype.itemsize)


@operator("Resize")
@dataclass(frozen=True, slots=True)
class Resize(Operator):
    """Tensor sampled at other positions: the nearest element, or a linear or cubic blend of its neighbours.

    Axes are blended one after the other, the last one first, in float (half, bfloat16, float) or double (double,
    integers); integers are rounded to nearest even and saturate.

    Where scale * extent is no whole number, ``align_corners`` takes that number for the length of the result, as two of
    ONNX's own cases have it (test_resize_downsample_scales_linear_align_corners and
    test_resize_downsample_scales_cubic_align_corners), so the last element is not met. onnxruntime and torch take the
    length of the resized tensor; ``sizes`` in place of ``scales`` gives the same here. ``tf_crop_and_resize`` and
    ``pytorch_half_pixel``, on which ONNX's cases say nothing, go by the length of the resized tensor.
    """

    antialias: int = 0
    axes: tuple[int, ...] = ()
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    keeps_dtype = True
    derivative = Derivative.RULE
    fixed_inputs = (1, 2, 3)
    has_blits = True
    takes_epilogue = True
    finishes_windows = True
    format_use = FormatUse.FOLLOWS

    def infer(
        self,
        x: TensorSpec,
        roi: TensorSpec | None = None,
        scales: TensorSpec | None = None,
        sizes: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the resized spec.

        Raises:
            InputError: Modes, axes, scales or sizes do not fit, or the type can't be blended.
            NeedsHostValue: Scales, sizes or the region of interest are not known.
        """
        if x is None:
            raise InputError("Resize expects an input.")
        if self.mode not in _MODES or self.keep_aspect_ratio_policy not in _POLICIES:
            raise InputError(
                f"Resize expects mode among {', '.join(_MODES)} and keep_aspect_ratio_policy among "
                f"{', '.join(_POLICIES)}, got {self.mode!r} and {self.keep_aspect_ratio_policy!r}."
            )
        if self.mode == "nearest" and self.antialias:
            raise InputError("Resize expects mode linear or cubic with antialias=1, got 'nearest'.")
        if self.mode != "nearest" and x.dtype not in BLENDED:
            raise InputError(f"Resize expects a number type with mode={self.mode!r}, got {x}.")
        shape = list(x.shape)
        for resized in self._resolve(x.shape, roi, scales, sizes):
            shape[resized.axis] = resized.count
        return (TensorSpec(tuple(shape), x.dtype),)

    def compute(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Sample axis by axis, the last one first."""
        given = [None if array is None else TensorSpec.of(array) for array in (roi, scales, sizes)]
        tables = self._tables(x.shape, *given)
        fill = _to_dtype(np.array(self.extrapolation_value, np.float64), x.dtype)
        y = x if self.mode == "nearest" else x.astype(_blend_dtype(x.dtype), copy=False)
        with np.errstate(all="ignore"):
            for table in reversed(tables):
                y = _sample(y, table)
            y = (
                y.astype(x.dtype, copy=False)
                if x.dtype.kind not in "iu" or self.mode == "nearest"
                else _to_dtype(y, x.dtype)
            )
        for table in tables:
            outside = table.positions[:, 0] < 0
            if outside.any():
                y = y.copy() if y is x else y
                y[(slice(None),) * table.axis + (outside,)] = fill
        return (y,)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what is sampled along some axes, twice, and one tap of all."""
        x, y = inputs[0], outputs[0]
        if x is None or y is None:
            return []
        between = max([math.prod((*x.shape[:axis], *y.shape[axis:])) for axis in range(x.rank)], default=0)
        nbytes = between * y.dtype.itemsize
        return [nbytes, nbytes, 0 if self.mode == "nearest" else nbytes]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Sample axis by axis into scratch, where sizes never change and nothing lies outside."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1, 2, 3))
        if by_content is not None:
            return by_content
        x, y = inputs[0], out[0]
        is_blended = self.mode != "nearest"
        if x is None or y is None or not y.size or len(scratch) < 3 or y.dtype.hasobject:
            return None
        if not y.flags.c_contiguous or (is_blended and not is_plain(y, x.dtype)):
            return None
        if any(each is not None and not known for each, known in zip(inputs[1:], constant[1:], strict=True)):
            return None
        given = [None if each is None else TensorSpec.of(each) for each in (*inputs[1:], None, None, None)[:3]]
        tables = self._tables(x.shape, *given)
        if not tables or any((table.positions < 0).any() for table in tables):
            return None
        calls: list[Callable[[], object]] = []
        for number, table in enumerate(reversed(tables)):
            shape = (*x.shape[: table.axis], len(table.positions), *x.shape[table.axis + 1 :])
            is_last = number == len(tables) - 1
            target = y if is_last else view_bytes(scratch[number % 2], shape, x.dtype)
            calls += _prepare_sample(x, table, target, scratch[2])
            x = target
        return calls

    def moved_inputs(self, count: int) -> tuple[int, ...]:
        """Return the position of the image where the nearest elements are taken, and no other number."""
        is_inside = self.coordinate_transformation_mode != "tf_crop_and_resize"
        return (0,) if self.mode == "nearest" and is_inside else ()

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per output element, or per eight neighbours, such as channels that lie last."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        if y.spec.size == 0:
            return
        tables = self._tables(x.shape, *(None if slot is None else slot.spec for slot in inputs[1:]))
        if len(tables) > MAX_LEVELS or any(table.positions.size >= _LIMIT for table in tables):
            raise InputError(
                f"Resize expects at most {MAX_LEVELS} axes to change on a device, with tables below 2**29, "
                f"got {self} for {x}."
            )
        taps = [table.taps for table in tables] + [1] * (MAX_LEVELS - len(tables))
        starts = _find_starts(tables) + [0] * (MAX_LEVELS - len(tables))
        positions = emit.constant(
            np.concatenate([table.positions.ravel() for table in tables] or [np.zeros(1, np.int32)])
        )
        strides = [x.strides[table.axis] for table in tables] + [0] * (MAX_LEVELS - len(tables))
        is_blended, merged = self.mode != "nearest", _merge_axes(x, y, tables)
        weights = None
        if is_blended:
            whole = np.concatenate(
                [each.weights.ravel() for each in tables if each.weights is not None] or [np.ones(1)]
            )
            weights = emit.constant(whole.astype(_blend_dtype(x.dtype)))
        fill = _to_dtype(np.array(self.extrapolation_value, np.float64), x.dtype)
        packed = _pack_units(emit, x, y, merged, tables)
        if emit.choose(packed is not None) and packed is not None:
            kernel = _name_units(x.dtype, is_blended=is_blended)
            arguments: list[Argument] = [x, positions, weights, y, packed, np.float64(fill)]
            blocks = ceil_div(y.spec.size, _UNIT * _THREADS)
            emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[3])
            return
        if len(merged) > MAX_RANK:
            raise InputError(
                f"Resize expects at most {MAX_RANK} axes that can't be joined on a device, got {len(merged)} of {x}."
            )
        walk = _pack_axes(merged, y.spec.size, len(tables))
        walk += pack_struct(f"<{MAX_LEVELS}q{2 * MAX_LEVELS}i", *strides, *taps, *starts)
        if is_blended:
            kernel = Kernel(_SOURCE, f"resize_blend<{dtype_row(x.dtype).cuda}>")
            arguments = [x, positions, weights, y, walk, np.float64(self.extrapolation_value)]
        else:
            kernel = Kernel(_SOURCE, f"resize_nearest<u{8 * x.dtype.itemsize}>")
            arguments = [x, positions, y, walk, fill.reshape(1).view(f"u{x.dtype.itemsize}")[0]]
        blocks = ceil_div(y.spec.size, _THREADS)
        emit.launch(kernel, (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes=[3 if is_blended else 2])

    def _tables(self, shape: Sequence[int], *given: TensorSpec | None) -> list[AxisTable]:
        """Return the tables of the axes that change, by ascending axis."""
        sampling = Sampling(
            self.mode,
            self.coordinate_transformation_mode,
            self.nearest_mode,
            self.cubic_coeff_a,
            bool(self.antialias),
            bool(self.exclude_outside) and self.mode != "nearest",
        )
        changed = [r for r in self._resolve(shape, *given) if not _is_identity(r)]
        return [make_table(sampling, resized) for resized in sorted(changed, key=lambda r: r.axis)]

    def _resolve(
        self,
        shape: Sequence[int],
        roi: TensorSpec | None = None,
        scales: TensorSpec | None = None,
        sizes: TensorSpec | None = None,
    ) -> list[ResizedAxis]:
        """Return the axes named, with their output extents."""
        axes = normalize_axes(self.axes, len(shape)) if self.axes else tuple(range(len(shape)))
        # Opset 11 wants scales even where sizes are given: empty ones don't count.
        wanted = () if sizes is None else require_ints(sizes, "sizes", 3)
        if wanted:
            _check_length("sizes", wanted, axes)
            resized = self._resolve_sizes(shape, axes, wanted)
        else:
            factors = () if scales is None else require_floats(scales, "scales", 2)
            _check_length("scales", factors, axes)
            if any(factor <= 0 for factor in factors):
                raise InputError(f"Resize expects scales above 0, got {list(factors)}.")
            counts = [math.floor(scale * shape[axis]) for axis, scale in zip(axes, factors)]
            resized = [ResizedAxis(a, shape[a], count, scale) for a, count, scale in zip(axes, counts, factors)]
        if self.coordinate_transformation_mode != "tf_crop_and_resize":
            return resized
        region = require_floats(roi, "roi", 1)
        if len(region) != 2 * len(axes):
            raise InputError(f"Resize expects a roi of {2 * len(axes)} entries (starts, then ends), got {len(region)}.")
        return [replace(r, roi=(region[i], region[i + len(axes)])) for i, r in enumerate(resized)]

    def _resolve_sizes(self, shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> list[ResizedAxis]:
        if any(size < 0 or (size > 0 and shape[axis] == 0) for axis, size in zip(axes, sizes)):
            raise InputError(
                f"Resize expects sizes of 0 or more, and 0 where the input is empty, "
                f"got {list(sizes)} for {list(shape)}."
            )
        ratios = [size / shape[axis] if shape[axis] else 1.0 for axis, size in zip(axes, sizes)]
        if self.keep_aspect_ratio_policy == "stretch":
            return [ResizedAxis(axis, shape[axis], size, ratio) for axis, size, ratio in zip(axes, sizes, ratios)]
        scale = min(ratios) if self.keep_aspect_ratio_policy == "not_larger" else max(ratios)
        return [ResizedAxis(axis, shape[axis], int(scale * shape[axis] + 0.5), scale) for axis in axes]


def _check_length(role: str, entries: Sequence[object], axes: Sequence[int]) -> None:
    if len(entries) != len(axes):
        raise InputError(f"Resize expects {role} with one entry for each of {len(axes)} axes, got {list(entries)}.")


def _is_identity(r: ResizedAxis) -> bool:
    return r.extent == r.count and math.isclose(r.scale, 1.0) and r.roi == (0.0, 1.0)


def _blend_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64) if dtype.kind in "iu" else accumulator(dtype)


def _to_dtype(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert from double; integers round to nearest even and saturate, NaN gives 0."""
    with np.errstate(all="ignore"):
        if dtype.kind not in "iu":
            return values.astype(dtype)
        bounds = np.iinfo(dtype)
        rounded = np.where(values == values, np.rint(values), 0.0)
        inside = (rounded > bounds.min) & (rounded < float(bounds.max))
        clipped = np.where(rounded > 0, np.array(bounds.max, dtype), np.array(bounds.min, dtype))
        return np.where(inside, np.where(inside, rounded, 0.0).astype(dtype), clipped)


def _prepare_sample(x: Array, table: AxisTable, y: Array, memory: Array) -> list[Callable[[], object]]:
    """Return the calls of `_sample`; memory holds the taps behind the first."""
    places = np.ascontiguousarray(table.positions.T, np.intp)
    calls: list[Callable[[], object]] = [partial(x.take, places[0], table.axis, y, "clip")]
    if table.weights is None:
        return calls
    weights = table.weights.astype(x.dtype).reshape(*table.weights.shape, *(1,) * (x.ndim - 1 - table.axis))
    part = view_bytes(memory, y.shape, y.dtype)
    calls.append(partial(np.multiply, y, weights[:, 0], out=y))
    for tap in range(1, table.taps):
        calls += [
            partial(x.take, places[tap], table.axis, part, "clip"),
            partial(np.multiply, part, weights[:, tap], out=part),
            partial(np.add, y, part, out=y),
        ]
    return calls


def _sample(x: Array, table: AxisTable) -> Array:
    positions = np.maximum(table.positions, 0)  # what lies outside is overwritten at the end
    if table.weights is None:
        return np.take(x, positions[:, 0], axis=table.axis)
    weights = table.weights.astype(x.dtype).reshape(*table.weights.shape, *(1,) * (x.ndim - 1 - table.axis))
    y = np.take(x, positions[:, 0], axis=table.axis)
    y *= weights[:, 0]
    for tap in range(1, table.taps):
        part = np.take(x, positions[:, tap], axis=table.axis)
        part *= weights[:, tap]
        y += part
    return y


def _merge_axes(x: Slot, y: Slot, tables: Sequence[AxisTable]) -> list[tuple[int, int, int]]:
    """Return (extent, stride, level) of axes to walk, outermost first; level is -1 for axes that don't change.

    They are in the order in which the output's elements lie. Neighbours that do not change and are walked as one are
    joined, by strides of the input.
    """
    levels = {table.axis: level for level, table in enumerate(tables)}
    merged: list[tuple[int, int, int]] = []
    order = range(y.spec.rank) if y.is_contiguous else memory_axes(y.shape, y.strides)
    for axis in sorted(order, key=lambda axis: y.shape[axis] != 1):  # one of a single element stands anywhere
        extent, stride, level = y.shape[axis], x.strides[axis], levels.get(axis, -1)
        if level < 0 and extent == 1:
            continue
        if merged and level < 0 and merged[-1][2] < 0 and merged[-1][1] == stride * extent:
            merged[-1] = (merged[-1][0] * extent, stride, -1)
        else:
            merged.append((extent, stride, level))
    return merged


def _pack_units(
    emit: Emitter, x: Slot, y: Slot, merged: Sequence[tuple[int, int, int]], tables: Sequence[AxisTable]
) -> bytes | None:
    """Return the bytes of the struct ``ResizedUnits``; None where the elements are not such that it describes them.

    What changes must lie in front of neighbours that don't, which can be read and written by eights.
    """
    if x.dtype not in _UNIT_TYPES or not emit.target.has_kernels or emit.target.has_textures or not merged:
        return None
    *outer, (inner, stride, level) = merged
    levels = [each for extent, _, each in outer if extent != 1]
    low, high = x.byte_range()
    able = (
        (stride, level, inner % _UNIT) == (1, -1, 0)
        and 0 < len(tables) <= _UNIT_LEVELS
        and levels == sorted(levels)
        and levels.count(-1) <= 1
        and all(step % _UNIT == 0 for _, step, _ in outer)
        and not any(slot.offset_bytes % (_UNIT * slot.dtype.itemsize) for slot in (x, y))
        and max(y.spec.size, (high - low) // x.dtype.itemsize) < 2**31 - _UNIT * _THREADS
    )
    if not able:
        return None
    units, absent = inner // _UNIT, [0] * (_UNIT_LEVELS - len(tables))
    span = next(each for each in (8, 4, 2, 1) if units % each == 0)
    outer_stride = sum(step for _, step, each in outer if each < 0)
    rows = [[x.strides[table.axis] for table in tables], [table.taps for table in tables], _find_starts(tables)]
    return (
        pack_struct("<4i", y.spec.size // _UNIT, len(tables), span, outer_stride)
        + join_bytes(map(pack_fast_div32, (units, *(y.shape[table.axis] for table in tables), *(1 for _ in absent))))
        + join_bytes(pack_struct(f"<{_UNIT_LEVELS}i", *row, *absent) for row in rows)
    )


def _find_starts(tables: Sequence[AxisTable]) -> list[int]:
    """Return where each table begins, one after the other."""
    return [sum(table.positions.size for table in tables[:level]) for level in range(len(tables))]


def _pack_axes(merged: Sequence[tuple[int, int, int]], size: int, levels: int) -> bytes:
    """Return the bytes of the struct ``ResizeWalk`` in front of what is said of levels."""
    padded = [*reversed(merged), *[(1, 0, -1)] * (MAX_RANK - len(merged))]
    return (
        pack_struct("<q2i", size, len(merged), levels)
        + join_bytes(pack_fast_div64(extent) for extent, _, _ in padded)
        + pack_struct(f"<{MAX_RANK}q", *(stride for _, stride, _ in padded))
        + pack_struct(f"<{MAX_RANK}i", *(level for _, _, level in padded))
    )


# Instructions of a thread of eight neighbours around, of a level with one tap, and of a tap of others.
_AROUND, _EACH_PICKED, _EACH_LINEAR, _EACH_TAP = 75, 12, 18, 40


@work_of(_SOURCE, "resize_units")
def _count_units(launch: Launch) -> Work:
    x, y, packed, steps = launch.arguments[0], launch.arguments[3], launch.arguments[4], count_epilogue_steps(launch)
    assert isinstance(x, Slot) and isinstance(y, Slot) and isinstance(packed, bytes)
    units, levels, _, _, places = struct.unpack_from("<5i", packed)
    taps = list(struct.unpack_from(f"<{levels}i", packed, 4 * 4 + 12 * (1 + _UNIT_LEVELS) + 4 * _UNIT_LEVELS))
    is_picked, is_linear = ", false" in launch.kernel.expression, taps == [2, 2]
    read = [math.prod(taps[: level + 1]) for level in range(levels)]  # in the loop of each level
    own = levels * _EACH_PICKED if is_picked else sum(read) * (_EACH_LINEAR if is_linear else _EACH_TAP)
    # A block reads so many neighbours along the innermost axis that changes, at each tap of the outer ones.
    across = max(1.0, _THREADS / places)
    ratio = (x.spec.size / y.spec.size) ** (1 / levels)
    sides = min(across * taps[-1], across * ratio + taps[-1] - 1) * math.prod(taps[:-1])
    nbytes = launch.grid[0] * sides * min(places, _THREADS) * _UNIT * x.dtype.itemsize
    return Work(
        flops=units * _UNIT * (steps + (0 if is_picked else 2 * sum(read))),
        instructions=count_warps(launch) * (_AROUND + own + _UNIT * steps * STEP_INSTRUCTIONS),
        l2_nbytes=max(nbytes, min(count_slot_bytes(x), launch.grid[0] * _THREADS * _UNIT * x.dtype.itemsize))
        + sum(count_slot_bytes(slot) for slot in launch.writes_to()),
        rounds=2 if is_picked or is_linear else 2 * sum(read),
        registers=64,
    )


@upgrade("Resize", below=11)
def _resize_10(node: RawNode) -> RawNode:
    """Upgrade from opset 10, which has inputs X, scales; coordinates are divided by the scale."""
    return replace(node, inputs=(node.inputs[0], "", node.inputs[1])).with_attributes(
        coordinate_transformation_mode="asymmetric", nearest_mode="simple"
    )


@upgrade("Upsample", below=7)
def _upsample_1(node: RawNode) -> RawNode:
    """Upgrade from opset 6, which scales the plane of ``[n, c, h, w]`` alone, and calls linear bilinear."""
    scales = (1.0, 1.0, node.attributes["height_scale"], node.attributes["width_scale"])
    mode = node.attributes.get("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    return node.without("height_scale", "width_scale").with_attributes(scales=scales, mode=mode)


@upgrade("Upsample", below=9)
def _upsample_7(node: RawNode) -> RawNode:
    """Move the scales, an attribute in opset 7, to an input."""
    return node.without("scales").with_input(1, np.array(node.attributes["scales"], np.float32))


@upgrade("Upsample", below=10)
def _upsample_9(node: RawNode) -> RawNode:
    """Rewrite Upsample as Resize of opset 10."""
    resize: RawNode = _resize_10(replace(node, op_type="Resize"))
    return resize
