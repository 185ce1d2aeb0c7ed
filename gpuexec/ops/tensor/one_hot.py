"""OneHot: one value at the index along a new axis, another one elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64

_NUMBERS = dtypes_of("float", "int", "uint")
_THREADS = 256  # kThreads of one_hot.cu
instantiate("one_hot.cu", [f"one_hot<{dtype_row(dtype).cuda}>" for dtype in _NUMBERS])


@operator("OneHot")
@dataclass(frozen=True, slots=True)
class OneHot(Operator):
    """Tensor with ``values[1]`` where the place along the new ``axis`` is the index, ``values[0]`` elsewhere.

    Indices are truncated to integers; a negative one counts from ``depth``, one out of range matches nowhere.
    """

    axis: int = -1
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    has_blits = True

    def infer(self, indices: TensorSpec, depth: TensorSpec, values: TensorSpec) -> tuple[TensorSpec, ...]:
        """Insert the depth at the axis."""
        check_dtype(self.name, indices, _NUMBERS, "indices")
        if values.shape != (2,):
            raise InputError(f"OneHot expects two values, off and on, got {values}.")
        extent = self._require_depth(depth)
        axis = normalize_axis(self.axis, indices.rank + 1)
        return (values.with_shape((*indices.shape[:axis], extent, *indices.shape[axis:])),)

    def compute(self, indices: Array, depth: Array, values: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compare places with the indices."""
        extent = _read_depth(depth)
        axis = normalize_axis(self.axis, indices.ndim + 1)
        wanted = np.expand_dims(_truncate(indices), axis)
        places = np.arange(extent).reshape(-1, *(1,) * (indices.ndim - axis))
        return (np.where((wanted == places) | (wanted == places - extent), values[1:], values[:1]),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count whether each place is the index, counted from the front and from the back."""
        y = outputs[0]
        return () if y is None else (y.size, y.size)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Compare places with integers, of which int64 has all, and write both values."""
        (indices, _, values), (y,) = inputs, out
        if indices is None or values is None or y is None or not has_scratch(scratch, (y.size, y.size)):
            return None
        if indices.dtype.kind not in "iu" or not np.can_cast(indices.dtype, np.int64):
            return None
        axis = normalize_axis(self.axis, y.ndim)
        wanted, extent = np.expand_dims(indices, axis), y.shape[axis]
        places = np.arange(extent).reshape(-1, *(1,) * (indices.ndim - axis))
        is_on, is_on_from_back = (view_bytes(each, y.shape, np.dtype(np.bool_)) for each in scratch[:2])
        return [
            partial(np.equal, wanted, places, out=is_on),
            partial(np.equal, wanted, places - extent, out=is_on_from_back),
            partial(np.logical_or, is_on, is_on_from_back, out=is_on),
            partial(np.copyto, y, values[:1]),
            partial(np.copyto, y, values[1:], where=is_on),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        indices, depth, values = inputs
        y = outputs[0]
        assert indices is not None and depth is not None and values is not None and y is not None
        axis = normalize_axis(self.axis, y.spec.rank)
        inner, extent = prod(y.shape[axis + 1 :]), self._require_depth(depth.spec)
        divisors = [pack_fast_div64(max(1, divisor)) for divisor in (extent, inner)]
        emit.launch(
            Kernel("one_hot.cu", f"one_hot<{dtype_row(indices.dtype).cuda}>"),
            (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [
                emit.contiguous(indices),
                emit.contiguous(values),
                y,
                int64(y.spec.size),
                *divisors,
                int32(y.dtype.itemsize),
            ],
            writes=[2],
        )

    def _require_depth(self, depth: TensorSpec) -> int:
        check_dtype(self.name, depth, _NUMBERS, "depth")
        if depth.size != 1:
            raise InputError(f"OneHot expects depth to be one number, got {depth}.")
        return _read_depth(require_const(depth, "depth", 1))


def _read_depth(depth: Array) -> int:
    number = float(depth.reshape(())) if depth.dtype.kind not in "iu" else int(depth.reshape(()))
    if not 0 <= number < 2**62:
        raise InputError(f"OneHot expects a depth of 0 or more, got {number}.")
    return int(number)


def _truncate(indices: Array) -> Array:
    """Return indices as int64: NaN as 0, too large ones as out of any range."""
    if indices.dtype.kind in "iu":
        return indices.astype(np.int64)
    wide = indices.astype(np.float64)
    return np.where(wide != wide, 0, np.clip(wide, -(2.0**62), 2.0**62)).astype(np.int64)
