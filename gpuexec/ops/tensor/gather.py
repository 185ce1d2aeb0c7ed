"""Gather, GatherND and GatherElements.

Negative indices count from the back. An index out of range is an error on the host; on a device, which does not report
it, it reads as zero. The kernels know the width of what they move, not the type; slices travel in units of up
to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import BUFFER_ALIGNMENT, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, contiguous_strides, normalize_axis
from gpuexec.ir.index_map import IndexMap, Picked
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64, join_bytes, pack_struct
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.strided import MAX_RANK, join, pack_fast_div64
from gpuexec.ops.quant.narrow_weight import NARROW_TYPES, NarrowWeight, name_types

INDEX_TYPES = {np.dtype(np.int32): "i32", np.dtype(np.int64): "i64"}
_KERNELS = ("gather_slices", "gather_elements")
instantiate("gather.cu", [f"{kernel}<{index}>" for kernel in _KERNELS for index in INDEX_TYPES.values()])
instantiate("gather.cu", [f"gather_narrow<{t}, {index}>" for t in NARROW_TYPES for index in INDEX_TYPES.values()])

_THREADS = 256  # kThreads of gather.cu
_TABLE_BYTES = 1 << 14  # of a table that is made once for arrays that stay, at most


@operator("Gather")
@dataclass(frozen=True, slots=True)
class Gather(Operator):
    """Slices of an axis picked by indices, whose axes take the place of that axis."""

    axis: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, data: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        """Replace the axis by the shape of the indices."""
        _check_index_type(indices)
        axis = normalize_axis(self.axis, data.rank)
        return (data.with_shape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])),)

    def compute(self, data: Array, indices: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Take along the axis."""
        axis = normalize_axis(self.axis, data.ndim)
        picked = resolve_indices(indices, data.shape[axis], axis)
        # In mode "raise" NumPy would buffer the output; the indices are checked already.
        return (np.asarray(np.take(data, picked, axis, out=out[0] if out else None, mode="clip"), data.dtype),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Take along the axis; where indices never change, they are resolved once."""
        (data, indices), (y,) = inputs, out
        if data is None or indices is None or y is None or not y.size or not data.flags.c_contiguous:
            return None
        axis = normalize_axis(self.axis, data.ndim)
        if not constant[1]:
            return [partial(_take_resolved, data, indices, axis, y)]
        picked = resolve_indices(indices, data.shape[axis], axis)
        if picked.size > 1:
            return [partial(data.take, picked, axis, y, "clip")]
        (place,) = picked.reshape(-1)
        slab = data[(*(slice(None),) * axis, slice(place, place + 1))]
        return [partial(np.copyto, y.reshape(slab.shape), slab)] if y.flags.c_contiguous else None

    def moved_inputs(self, count: int) -> tuple[int, ...]:
        """Return the position of what is gathered."""
        return (0,)

    def as_index_map(self, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
        """Return the axis that is picked along."""
        data, indices = inputs
        assert data is not None and indices is not None
        return Picked(normalize_axis(self.axis, data.rank), indices.rank)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Treat the axes before as batches that share the indices, the axes behind as the slice."""
        data, indices, y = inputs[0], inputs[1], outputs[0]
        assert data is not None and indices is not None and y is not None
        axis = normalize_axis(self.axis, data.spec.rank)
        inner = prod(data.shape[axis + 1 :])
        _pick_slices(emit, data, indices, y, indices.spec.size, 0, data.shape[axis : axis + 1], inner)

    def lower_with(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None = None) -> None:
        """Lower with narrow data: a thread per element, which is widened as it is picked."""
        data, indices, y = inputs[0], inputs[1], outputs[0]
        assert narrow is not None, "what is wide is moved as bits"
        assert data is not None and indices is not None and y is not None
        axis = normalize_axis(self.axis, data.spec.rank)
        inner = prod(data.shape[axis + 1 :])
        scaled = narrow.axis
        # Divisor, then modulus, of a position along the side with the scales' axis.
        beside = [(1, 1), (1, 1)]
        if scaled is not None and scaled != axis:
            last = axis if scaled < axis else data.spec.rank
            beside[scaled > axis] = prod(data.shape[scaled + 1 : last]), data.shape[scaled]
        steps = [int(scaled is not None and at) for at in (scaled is not None and scaled < axis, scaled == axis)]
        steps.append(int(scaled is not None and scaled > axis))
        count = y.spec.size
        pick = join_bytes(
            (
                pack_struct("<q", count),
                pack_fast_div64(max(1, inner)),
                pack_fast_div64(max(1, indices.spec.size)),
                pack_struct("<4q", data.shape[axis], *steps),
                *(pack_fast_div64(max(1, block)) for block, _ in beside),
                *(pack_fast_div64(max(1, wrap)) for _, wrap in beside),
            )
        )
        types = f"{name_types(y.dtype, data.dtype)}, {INDEX_TYPES[indices.dtype]}"
        emit.launch(
            Kernel("gather.cu", f"gather_narrow<{types}>"),
            (max(1, ceil_div(count, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [emit.contiguous(data), emit.contiguous(indices), y, *narrow.dense(emit), pick],
            writes=[2],
        )


@operator("GatherND")
@dataclass(frozen=True, slots=True)
class GatherND(Operator):
    """Slices picked by tuples along the indices' last axis; ``batch_dims`` leading axes run together."""

    batch_dims: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, data: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        """Join the outer shape of the indices and the shape of a slice."""
        _check_index_type(indices)
        _, last = self._picked_axes(data.shape, indices.shape)
        return (data.with_shape((*indices.shape[:-1], *data.shape[last:])),)

    def compute(self, data: Array, indices: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Convert each tuple into a row number of the flattened data, and take rows."""
        first, last = self._picked_axes(data.shape, indices.shape)
        batches = prod(data.shape[:first])
        rows = np.arange(batches, dtype=np.int64).reshape(-1, 1)  # [batches, slices]
        tuples = indices.reshape(batches, prod(indices.shape[first:-1]), last - first)
        for place, axis in enumerate(range(first, last)):
            rows = rows * data.shape[axis] + resolve_indices(tuples[..., place], data.shape[axis], axis)
        rows = np.broadcast_to(rows, tuples.shape[:2])
        flat = data.reshape((prod(data.shape[:last]), *data.shape[last:]))
        return (np.asarray(flat[rows.reshape(indices.shape[:-1])], data.dtype),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Take rows of the flattened data; where indices never change, these are found once."""
        (data, indices), (y,) = inputs, out
        if data is None or indices is None or y is None or not y.size or not data.flags.c_contiguous:
            return None
        first, last = self._picked_axes(data.shape, indices.shape)
        flat = data.reshape((prod(data.shape[:last]), *data.shape[last:]))
        batches = np.arange(prod(data.shape[:first]), dtype=np.int64).reshape(-1, 1)
        tuples = indices.reshape(len(batches), prod(indices.shape[first:-1]), last - first)
        if not np.may_share_memory(tuples, indices) or not tuples.size or not y.flags.c_contiguous:
            return None
        target = y.reshape((*tuples.shape[:2], *data.shape[last:]))

        def find_rows() -> Array:
            rows = batches
            for place, axis in enumerate(range(first, last)):
                extent = data.shape[axis]
                rows = rows * extent + resolve_indices(tuples[..., place], extent, axis)
            return rows

        if constant[1]:
            return [partial(flat.take, find_rows(), 0, target, "clip")]
        return [lambda: flat.take(find_rows(), 0, target, "clip")]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Pick slices, each batch with indices of its own."""
        data, indices, y = inputs[0], inputs[1], outputs[0]
        assert data is not None and indices is not None and y is not None
        first, last = self._picked_axes(data.shape, indices.shape)
        if last - first > MAX_RANK:
            raise InputError(f"GatherND picks along at most {MAX_RANK} axes on a device, got {last - first}.")
        slices = prod(indices.shape[first:-1])
        entries = slices * (last - first)
        _pick_slices(emit, data, indices, y, slices, entries, data.shape[first:last], prod(data.shape[last:]))

    def _picked_axes(self, data: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, int]:
        """Return the half-open range of data's axes that index tuples pick along."""
        first = self.batch_dims
        if not indices or not 0 <= first < min(len(data), len(indices)) or data[:first] != indices[:first]:
            raise InputError(
                f"GatherND expects data and indices to agree in their first batch_dims = {first} axes and to have more "
                f"than these, got data {list(data)} and indices {list(indices)}."
            )
        if first + indices[-1] > len(data):
            raise InputError(
                f"GatherND picks along {indices[-1]} axes (the last extent of the indices), but data {list(data)} has "
                f"only {len(data) - first} after batch_dims = {first}."
            )
        return first, first + indices[-1]


@operator("GatherElements")
@dataclass(frozen=True, slots=True)
class GatherElements(Operator):
    """Single elements picked along an axis by indices; the other coordinates stay."""

    axis: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, data: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the shape of the indices."""
        _check_index_type(indices)
        self._check(data.shape, indices.shape)
        return (data.with_shape(indices.shape),)

    def compute(self, data: Array, indices: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Take along the axis, within the extents of the indices."""
        axis = self._check(data.shape, indices.shape)
        beside = tuple(slice(None) if i == axis else slice(extent) for i, extent in enumerate(indices.shape))
        return (np.take_along_axis(data[beside], resolve_indices(indices, data.shape[axis], axis), axis),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Take from the flattened data; where indices never change, their places are found once."""
        (data, indices), (y,) = inputs, out
        if data is None or indices is None or y is None or not y.size or not data.flags.c_contiguous:
            return None
        axis = self._check(data.shape, indices.shape)
        strides = contiguous_strides(data.shape)
        places: Sequence[Array] = np.indices(indices.shape, sparse=True)
        beside: Array = np.zeros((), np.int64)
        for each, at in enumerate(places):
            beside = beside if each == axis else beside + at * strides[each]
        if beside.nbytes > _TABLE_BYTES:
            return None
        flat, extent, stride = data.reshape(-1), data.shape[axis], strides[axis]

        def find_places() -> Array:
            picked = resolve_indices(indices, extent, axis)
            return np.asarray((picked if stride == 1 else picked * stride) + beside)

        if constant[1]:
            return [partial(flat.take, find_places(), None, y, "clip")]
        return [lambda: flat.take(find_places(), None, y, "clip")]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per element; data and indices may have any strides."""
        data, indices, y = inputs[0], inputs[1], outputs[0]
        assert data is not None and indices is not None and y is not None
        axis = self._check(data.shape, indices.shape)
        beside = tuple(0 if i == axis else stride for i, stride in enumerate(data.strides))
        walk = join(y.shape, (beside, indices.strides, y.strides))
        scalars = (int64(data.shape[axis]), int64(data.strides[axis]), int32(data.dtype.itemsize))
        emit.launch(
            Kernel("gather.cu", f"gather_elements<{INDEX_TYPES[indices.dtype]}>"),
            (max(1, ceil_div(walk.count, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [data, indices, y, walk.pack(), *scalars],
            writes=[2],
        )

    def _check(self, data: tuple[int, ...], indices: tuple[int, ...]) -> int:
        axis = normalize_axis(self.axis, len(data))
        fits = len(data) == len(indices) and all(
            i == axis or want <= have for i, (want, have) in enumerate(zip(indices, data, strict=True))
        )
        if not fits:
            raise InputError(
                f"GatherElements expects indices of the rank of data and, beside axis {axis}, no larger than data "
                f"{list(data)}, got {list(indices)}."
            )
        return axis


def _pick_slices(
    emit: Emitter,
    data: Slot,
    indices: Slot,
    y: Slot,
    slices: int,
    entries_per_batch: int,
    picked: Sequence[int],
    inner: int,
) -> None:
    """Launch the copy of ``slices`` slices of ``inner`` elements for each batch, picked along the axes ``picked``."""
    data, indices = emit.contiguous(data), emit.contiguous(indices)
    slice_bytes = inner * y.dtype.itemsize
    unit = BUFFER_ALIGNMENT
    while slice_bytes % unit or data.offset_bytes % unit or y.offset_bytes % unit:
        unit //= 2
    units = max(1, slice_bytes // unit)
    count = y.spec.nbytes // unit
    filler = (0,) * (MAX_RANK - len(picked))
    strides = [stride * units for stride in contiguous_strides(picked)]
    walk = join_bytes(
        (
            pack_struct("<q", count),
            pack_fast_div64(units),
            pack_fast_div64(max(1, slices)),
            pack_struct("<2q2i", prod(picked) * units, entries_per_batch, len(picked), unit),
            pack_struct(f"<{MAX_RANK}q{MAX_RANK}q", *picked, *filler, *strides, *filler),
        )
    )
    emit.launch(
        Kernel("gather.cu", f"gather_slices<{INDEX_TYPES[indices.dtype]}>"),
        (max(1, ceil_div(count, _THREADS)), 1, 1),
        (_THREADS, 1, 1),
        [data, indices, y, walk],
        writes=[2],
    )


def _check_index_type(indices: TensorSpec) -> None:
    if indices.dtype not in INDEX_TYPES:
        raise InputError(f"indices must be int32 or int64, got {indices}.")


def resolve_indices(indices: Array, extent: int, axis: int) -> Array:
    """Return the indices as int64, counted from the front.

    Raises:
        InputError: One is out of range.
    """
    indices = indices.astype(np.int64, copy=False)
    if not indices.size:
        return indices
    least, most = (indices.item(),) * 2 if indices.size == 1 else (indices.min(), indices.max())
    if least < -extent or most >= extent:
        worst = int(indices[(indices < -extent) | (indices >= extent)].flat[0])
        raise InputError(f"index {worst} is out of range for axis {axis} of extent {extent}.")
    return indices if least >= 0 else np.where(indices < 0, indices + extent, indices)


def _take_resolved(data: Array, indices: Array, axis: int, y: Array) -> None:
    """Take along an axis into an output, by indices that are resolved now."""
    data.take(resolve_indices(indices, data.shape[axis], axis), axis, y, "clip")


_INSTRUCTIONS = 90  # of a thread, which moves one element or word


@work_of("gather.cu", "gather_slices", "gather_elements", "gather_narrow")
def _count_gather(launch: Launch) -> Work:
    data, indices, y = launch.arguments[:3]
    assert isinstance(data, Slot) and isinstance(indices, Slot) and isinstance(y, Slot)
    read = min(count_slot_bytes(data), y.spec.size * data.dtype.itemsize)
    return Work(
        instructions=count_warps(launch) * _INSTRUCTIONS,
        l2_nbytes=read + count_slot_bytes(indices) + y.spec.nbytes,
        rounds=2,  # the index, then the element
        operand_nbytes={0: read},
    )
