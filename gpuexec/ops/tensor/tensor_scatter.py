"""TensorScatter: rows of a cache replaced, at a position per batch entry."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import Work, count_warps, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64

SOURCE = "tensor_scatter.cu"
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_THREADS = 256  # kThreads of tensor_scatter.cu
_INDEX = np.dtype(np.int64)
_MODES = ("linear", "circular")

instantiate(SOURCE, [f"tensor_scatter<{bits}>" for bits in _BITS.values()])


@operator("TensorScatter")
@dataclass(frozen=True, slots=True)
class TensorScatter(Operator):
    """Cache with the rows of ``update`` written from row ``write_indices[b]`` on; circular: modulo its rows.

    Rows lie along ``axis``. One beyond the cache is an error on the host; on a device, which does not report it,
    it is left out. A cache without later readers is written in place.
    """

    axis: int = -2
    mode: str = "linear"
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = False

    def infer(
        self, past: TensorSpec, update: TensorSpec, write_indices: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the spec of the cache.

        Raises:
            InputError: Mode, axis, types or shapes do not fit.
        """
        if self.mode not in _MODES:
            raise InputError(f"TensorScatter expects mode among {', '.join(_MODES)}, got {self.mode!r}.")
        if update.dtype != past.dtype:
            raise InputError(f"TensorScatter expects an update of the type of the cache {past}, got {update}.")
        axis = self._find_axis(past.rank)
        expected = (*past.shape[:axis], *update.shape[axis : axis + 1], *past.shape[axis + 1 :])
        if update.shape != expected or update.shape[axis] > past.shape[axis]:
            raise InputError(
                f"TensorScatter expects an update as large as the cache {past}, but for at most {past.shape[axis]} "
                f"rows along axis {axis}, got {update}."
            )
        if write_indices is not None:
            check_dtype(self.name, write_indices, (_INDEX,), "write_indices")
            if write_indices.shape != past.shape[:1]:
                raise InputError(f"TensorScatter expects a write index per batch entry of {past}, got {write_indices}.")
        return (past.with_shape(past.shape),)

    def compute(
        self, past: Array, update: Array, write_indices: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Copy, and write entry by entry."""
        axis = self._find_axis(past.ndim)
        rows, new_rows = past.shape[axis], update.shape[axis]
        y = past.copy()
        for entry in range(past.shape[0]):
            first = 0 if write_indices is None else int(write_indices[entry])
            if self.mode == "circular":
                places = (first % max(1, rows) + np.arange(new_rows)) % max(1, rows)
            elif first < 0 or first + new_rows > rows:
                raise InputError(
                    f"TensorScatter expects {new_rows} rows within the {rows} of the cache, got write index {first}."
                )
            else:
                places = first + np.arange(new_rows)
            np.moveaxis(y[entry], axis - 1, 0)[places] = np.moveaxis(update[entry], axis - 1, 0)
        return (y,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element of the cache; in place only those of new rows write."""
        past, update, write_indices = (*inputs, None)[:3]
        y = outputs[0]
        assert past is not None and update is not None and y is not None
        axis = self._find_axis(past.spec.rank)
        extents = [prod(past.shape[axis + 1 :]), past.shape[axis], prod(past.shape[1:axis])]
        packed = join_bytes(pack_fast_div64(max(1, extent)) for extent in extents)
        shape = pack_struct("<q", y.spec.size) + packed
        if past.buffer != update.buffer:
            emit.in_place(y, past)
        first = None if write_indices is None else emit.contiguous(write_indices)
        emit.launch(
            Kernel(SOURCE, f"tensor_scatter<{_BITS[y.dtype.itemsize]}>"),
            (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [
                emit.contiguous(past),
                emit.contiguous(update),
                first,
                y,
                shape + pack_struct("<2q", update.shape[axis], self.mode == "circular"),
            ],
            writes=[3],
        )

    def _find_axis(self, rank: int) -> int:
        axis = normalize_axis(self.axis, rank)
        if axis == 0:
            raise InputError(f"TensorScatter expects axis to be any but the first, got {self.axis} of {rank} axes.")
        return axis


_INSTRUCTIONS = 75  # of a thread


@work_of(SOURCE, "tensor_scatter")
def _count_tensor_scatter(launch: Launch) -> Work:
    past, update, _, y = launch.arguments[:4]
    assert isinstance(past, Slot) and isinstance(update, Slot) and isinstance(y, Slot)
    moved, kept = update.spec.nbytes, y.spec.nbytes - update.spec.nbytes
    is_in_place = (past.buffer, past.offset_bytes) == (y.buffer, y.offset_bytes)
    touched = {0: 0, 3: moved} if is_in_place else {0: max(0, kept)}
    return Work(
        instructions=count_warps(launch) * _INSTRUCTIONS,
        l2_nbytes=2 * moved + (0 if is_in_place else 2 * max(0, kept)),
        rounds=2,
        operand_nbytes=touched,
    )
