"""ScatterElements, ScatterND and Scatter.

Where several updates meet in one place the last one stays; with a reduction they are folded in one after the other, in
the order of the updates, half and bfloat16 in float. On a device that order comes from the greatest number of an update
at a place (an atomic maximum, which has no order), or from sorting the updates by their place. A negative index counts
from the back; one out of range is an error on the host, and writes nothing on a device, which does not
report it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, normalize_axis
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64, pack_struct
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.spec import COMPUTED, TensorSpec, accumulator, dtype_row
from gpuexec.ir.work import SECTOR_BYTES, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.checks import check_computed
from gpuexec.ops.lib.strided import MAX_RANK, join, pack_fast_div64
from gpuexec.ops.reduce.sort import sort_rows
from gpuexec.ops.tensor.gather import INDEX_TYPES, resolve_indices

SOURCE = "scatter.cu"
_THREADS = 256  # kThreads of scatter.cu
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_INDEX = np.dtype(np.int64)
_REDUCTIONS = {"add": 0, "mul": 1, "min": 2, "max": 3}  # Reduction of scatter.cu
_FOLDS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
instantiate(
    SOURCE, [f"{name}<{index}>" for name in ("locate_elements", "locate_slices") for index in INDEX_TYPES.values()]
)
instantiate(SOURCE, [f"write_latest<{bits}>" for bits in _BITS.values()])
instantiate(SOURCE, [f"fold_updates<{row.cuda}>" for row in COMPUTED])

# Launches the search for the places of updates: (targets, latest update of each place or None).
Locate = Callable[[Slot, Slot | None], None]


@operator("ScatterElements")
@dataclass(frozen=True, slots=True)
class ScatterElements(Operator):
    """Copy of data with each update written at its index along ``axis``; the other coordinates stay."""

    axis: int = 0
    reduction: str = "none"
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[8] int64[8] float32[8]"
    flops_per_output = None
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = False

    def infer(self, data: TensorSpec, indices: TensorSpec, updates: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of data."""
        _check(self, self.reduction, data, indices, updates)
        axis = self._find_axis(data.shape, indices.shape)
        if updates.shape != indices.shape:
            raise InputError(f"ScatterElements expects an update per index, got updates {updates}, indices {indices}.")
        if any(want > have for i, (want, have) in enumerate(zip(indices.shape, data.shape, strict=True)) if i != axis):
            raise InputError(
                f"ScatterElements expects indices beside axis {axis} no larger than data {data}, got {indices}."
            )
        return (data.with_shape(data.shape),)

    def compute(self, data: Array, indices: Array, updates: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Write with NumPy, in order."""
        axis = self._find_axis(data.shape, indices.shape)
        places = np.indices(indices.shape, sparse=True)
        coordinates = [*places[:axis], resolve_indices(indices, data.shape[axis], axis), *places[axis + 1 :]]
        targets = sum(each * stride for each, stride in zip(coordinates, contiguous_strides(data.shape), strict=True))
        return (_write(self.reduction, data, np.asarray(targets).reshape(-1), updates, data.size),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy, and write where indices say that never change."""
        (data, indices, updates), (y,) = inputs, out
        if data is None or indices is None or updates is None or not constant[1] or self.reduction != "none":
            return None
        axis = self._find_axis(data.shape, indices.shape)
        places = np.indices(indices.shape, sparse=True)
        coordinates = [*places[:axis], resolve_indices(indices, data.shape[axis], axis), *places[axis + 1 :]]
        targets = sum(each * stride for each, stride in zip(coordinates, contiguous_strides(data.shape), strict=True))
        return _prepare_write(data, np.asarray(targets).reshape(-1), updates, data.size, y)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Locate each update, then write."""
        data, indices, updates = inputs
        y = outputs[0]
        assert data is not None and indices is not None and updates is not None and y is not None
        axis = self._find_axis(data.shape, indices.shape)
        indices = emit.contiguous(indices)
        strides = contiguous_strides(y.shape)
        beside = tuple(0 if i == axis else stride for i, stride in enumerate(strides))
        walk = join(indices.shape, (beside, contiguous_strides(indices.shape)))

        def locate(targets: Slot, latest: Slot | None) -> None:
            scalars = (walk.pack(), int64(y.shape[axis]), int64(strides[axis]))
            launch_locate(emit, "locate_elements", indices, targets, latest, walk.count, scalars)

        emit.copy(y, data)
        write_updates(emit, self.reduction, locate, updates, y, y.spec.size, 1)

    def _find_axis(self, data: tuple[int, ...], indices: tuple[int, ...]) -> int:
        axis = normalize_axis(self.axis, len(data))
        if len(data) != len(indices):
            raise InputError(f"ScatterElements expects indices of the rank of data {list(data)}, got {list(indices)}.")
        return axis


@operator("ScatterND")
@dataclass(frozen=True, slots=True)
class ScatterND(Operator):
    """Copy of data with slices of the updates written at the tuples along the indices' last axis."""

    reduction: str = "none"
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[3,4] int64[2] float32[]"
    flops_per_output = None
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = False

    def infer(self, data: TensorSpec, indices: TensorSpec, updates: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of data."""
        _check(self, self.reduction, data, indices, updates)
        if not indices.rank or indices.shape[-1] > data.rank:
            raise InputError(
                f"ScatterND expects tuples of up to {data.rank} indices along the last axis, got {indices}."
            )
        expected = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
        if updates.shape != expected:
            raise InputError(f"ScatterND expects updates {list(expected)}, a slice of data per tuple, got {updates}.")
        return (data.with_shape(data.shape),)

    def compute(self, data: Array, indices: Array, updates: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Write with NumPy, in order."""
        length = indices.shape[-1]
        tuples = indices.reshape(prod(indices.shape[:-1]), length)
        targets = np.zeros(len(tuples), _INDEX)
        for axis in range(length):
            targets = targets * data.shape[axis] + resolve_indices(tuples[:, axis], data.shape[axis], axis)
        return (_write(self.reduction, data, targets, updates, prod(data.shape[:length])),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy, and write where indices say that never change."""
        (data, indices, updates), (y,) = inputs, out
        if data is None or indices is None or updates is None or not constant[1] or self.reduction != "none":
            return None
        length = indices.shape[-1]
        tuples = indices.reshape(prod(indices.shape[:-1]), length)
        targets = np.zeros(len(tuples), _INDEX)
        for axis in range(length):
            targets = targets * data.shape[axis] + resolve_indices(tuples[:, axis], data.shape[axis], axis)
        return _prepare_write(data, targets, updates, prod(data.shape[:length]), y)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Locate each slice, then write."""
        data, indices, updates = inputs
        y = outputs[0]
        assert data is not None and indices is not None and updates is not None and y is not None
        length = indices.shape[-1]
        if length > MAX_RANK:
            raise InputError(f"ScatterND picks along at most {MAX_RANK} axes on a device, got {length}.")
        indices = emit.contiguous(indices)
        picked, count = y.shape[:length], prod(indices.shape[:-1])
        filler = (0,) * (MAX_RANK - length)
        extents = (*picked, *filler, *contiguous_strides(picked), *filler)
        axes = pack_struct(f"<2q{2 * MAX_RANK}q", count, length, *extents)

        def locate(targets: Slot, latest: Slot | None) -> None:
            launch_locate(emit, "locate_slices", indices, targets, latest, count, (axes,))

        emit.copy(y, data)
        write_updates(emit, self.reduction, locate, updates, y, prod(picked), prod(y.shape[length:]))


@upgrade("Scatter", below=11)
def rename_scatter(node: RawNode) -> RawNode:
    """Rename Scatter, as ScatterElements was called until opset 10."""
    return replace(node, op_type="ScatterElements")


def _check(op: Operator, reduction: str, data: TensorSpec, indices: TensorSpec, updates: TensorSpec) -> None:
    if reduction != "none" and reduction not in _REDUCTIONS:
        raise InputError(f"reduction must be none, {', '.join(_REDUCTIONS)}, got {reduction!r}.")
    if reduction != "none":
        check_computed(f"{op.name} with reduction={reduction!r}", data, "data")
    if indices.dtype not in INDEX_TYPES:
        raise InputError(f"indices must be int32 or int64, got {indices}.")
    if updates.dtype != data.dtype:
        raise InputError(f"{op.name} expects updates of the type of data {data}, got {updates}.")


def _prepare_write(data: Array, targets: Array, updates: Array, places: int, y: Array | None) -> PreparedCalls | None:
    """Return calls that copy data, and write the last update of each place; None where the output is not dense."""
    if y is None or not y.size or not updates.size or not y.flags.c_contiguous:
        return None
    width = y.size // places
    last, numbers = np.unique(targets[::-1], return_index=True)
    copy = partial(np.copyto, y, data)
    if len(last) == len(targets):
        window = _find_window(y, targets * width, updates.shape, width)
        if window is not None:
            return [copy, partial(np.copyto, window, updates)]
    slices, order = y.reshape(places, width), len(targets) - 1 - numbers
    return [copy, lambda: slices.__setitem__(last, updates.reshape(len(targets), width)[order])]


def _find_window(y: Array, places: Array, shape: tuple[int, ...], width: int) -> Array | None:
    """Return a view of the elements at places, and so many behind each; None where they do not lie in steps."""
    rank = len(shape)
    while prod(shape[rank:]) < width:
        rank -= 1
    at = places.reshape(shape[:rank])
    steps = []
    for axis in range(rank):
        step = int(np.take(at, 1, axis).flat[0] - at.flat[0]) if shape[axis] > 1 else 0
        if step < 0 or (shape[axis] > 1 and (np.diff(at, axis=axis) != step).any()):
            return None
        steps.append(step)
    strides = [step * y.itemsize for step in (*steps, *contiguous_strides(shape[rank:]))]
    flat = y.reshape(-1)[int(at.flat[0]) :]
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


def _write(reduction: str, data: Array, targets: Array, updates: Array, places: int) -> Array:
    """Return data with the updates written, each at its place among ``places`` slices."""
    result = data.astype(data.dtype if reduction == "none" else accumulator(data.dtype), order="C", copy=True)
    slices = result.reshape(places, data.size // places if places else 0)
    values = updates.reshape(len(targets), slices.shape[1] if places else 0).astype(result.dtype, copy=False)
    if reduction == "none":
        # The last of each place, so that NumPy has no choice.
        last, numbers = np.unique(targets[::-1], return_index=True)
        slices[last] = values[len(targets) - 1 - numbers]
        return result
    before = slices.copy()
    with np.errstate(all="ignore"):
        _FOLDS[reduction].at(slices, targets, values)
        if reduction in ("min", "max") and result.dtype.kind not in "biu":
            _settle_zeros(slices, before, targets, values, reduction == "max")
        return result.astype(data.dtype, copy=False)


def _settle_zeros(slices: Array, before: Array, targets: Array, values: Array, is_max: bool) -> None:
    """Make an extremum of zeros the positive one if one of them is (max), the negative one (min)."""

    def is_wanted(x: Array) -> Array:
        return np.asarray((x == 0) & (np.signbit(x) != is_max))

    wanted = is_wanted(before)
    np.logical_or.at(wanted, targets, is_wanted(values))
    zero = slices.dtype.type(0)
    slices[...] = np.where(slices == 0, np.where(wanted == is_max, zero, -zero), slices)


def launch_locate(
    emit: Emitter,
    name: str,
    indices: Slot,
    targets: Slot,
    latest: Slot | None,
    count: int,
    scalars: tuple[Argument, ...],
) -> None:
    """Launch the search for the places of ``count`` updates, by a kernel that finds them from ``indices``."""
    emit.launch(
        Kernel(SOURCE, f"{name}<{INDEX_TYPES[indices.dtype]}>"),
        (max(1, ceil_div(count, _THREADS)), 1, 1),
        (_THREADS, 1, 1),
        [indices, targets, latest, *scalars],
        writes=[1] if latest is None else [1, 2],
    )


def write_updates(
    emit: Emitter, reduction: str, locate: Locate, updates: Slot, y: Slot, places: int, inner: int
) -> None:
    """Launch the write of ``inner`` elements for each update into one of ``places`` slices of ``y``."""
    count = updates.spec.size // inner if inner else 0
    updates, targets = emit.contiguous(updates), emit.temp((count,), _INDEX)
    grid, block = (max(1, ceil_div(updates.spec.size, _THREADS)), 1, 1), (_THREADS, 1, 1)
    scalars = (int64(updates.spec.size), pack_fast_div64(max(1, inner)))
    if reduction == "none":
        latest = emit.temp((places,), np.uint64)
        emit.fill(latest, 0)
        locate(targets, latest)
        kernel = Kernel(SOURCE, f"write_latest<{_BITS[y.dtype.itemsize]}>")
        emit.launch(kernel, grid, block, [updates, targets, latest, y, *scalars], writes=[3])
        return
    locate(targets, None)
    keys = Slot(targets.buffer, targets.offset_bytes, TensorSpec(targets.shape, np.dtype(np.uint64)), targets.strides)
    order = sort_rows(emit, keys, count, 1)
    kernel = Kernel(SOURCE, f"fold_updates<{dtype_row(y.dtype).cuda}>")
    code = int32(_REDUCTIONS[reduction])
    emit.launch(kernel, grid, block, [updates, targets, order, y, *scalars, code], writes=[3])


# Instructions of a thread: of the search for a place, for each index of a tuple, to write an element, and to fold one.
_LOCATE, _EACH_INDEX, _WRITE, _FOLD = 130, 30, 54, 110


@work_of(SOURCE, "locate_elements", "locate_slices")
def _count_locate(launch: Launch) -> Work:
    indices, targets, latest = launch.arguments[:3]
    assert isinstance(indices, Slot) and isinstance(targets, Slot)
    is_sliced = launch.kernel.expression.startswith("locate_slices")
    length = indices.spec.size // max(1, targets.spec.size) if is_sliced else 1
    # Slices are marked anywhere; elements beside each other mostly where they lie beside each other, too.
    marked = 2 * (SECTOR_BYTES if is_sliced else 8) * targets.spec.size if isinstance(latest, Slot) else 0
    return Work(
        instructions=count_warps(launch) * (_LOCATE + length * _EACH_INDEX),
        l2_nbytes=count_slot_bytes(indices) + targets.spec.nbytes + marked,
        rounds=1 + ceil_div(length, 4),
    )


@work_of(SOURCE, "write_latest")
def _count_write(launch: Launch) -> Work:
    targets = launch.arguments[1]
    assert isinstance(targets, Slot)
    return _count_moved(launch, _WRITE, SECTOR_BYTES * targets.spec.size, rounds=2, touched={2: 8 * targets.spec.size})


@work_of(SOURCE, "fold_updates")
def _count_fold(launch: Launch) -> Work:
    # As if no two updates met: where they do, one thread folds all of a place, one after the other.
    updates, targets = launch.arguments[:2]
    assert isinstance(updates, Slot) and isinstance(targets, Slot)
    more = updates.spec.nbytes + SECTOR_BYTES * 2 * targets.spec.size
    return replace(_count_moved(launch, _FOLD, more, rounds=4, touched={}), flops=updates.spec.size)


def _count_moved(launch: Launch, each: int, more: int, rounds: int, touched: dict[int, int]) -> Work:
    """Return the work of a thread for each element of the updates; ``more`` bytes go beside these and the output's."""
    updates, targets, _, y = launch.arguments[:4]
    assert isinstance(updates, Slot) and isinstance(targets, Slot) and isinstance(y, Slot)
    moved = min(updates.spec.nbytes, y.spec.nbytes)
    return Work(
        instructions=count_warps(launch) * each,
        l2_nbytes=count_slot_bytes(updates) + targets.spec.nbytes + moved + more,
        rounds=rounds,
        operand_nbytes={**touched, 3: moved},
    )
