"""ArgMax and ArgMin: the index of the extremum along an axis, one row per team of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.row_form import RowForm, RowLine
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.reduce.reduce import SOURCE, launch_rows
from gpuexec.ops.reduce.reduce_host import reduced_shape

_INDEX = np.dtype(np.int64)
ARG_DTYPES = dtypes_of("float", "int", "uint")


@dataclass(frozen=True, slots=True)
class ArgExtremum(Operator):
    """Index of the extremum along an axis: the first one, or the last. NaN wins over numbers."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    is_minimum: ClassVar[bool]
    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0
    flops_per_input = 1
    derivative = Derivative.ZERO
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the int64 spec with the axis gone, or of extent 1.

        Raises:
            InputError: A type without order, an axis out of range, or an axis without elements.
        """
        x = check_dtype(self.name, x, ARG_DTYPES)
        shape = reduced_shape(x.shape, self._axes(x.rank), self.keepdims)
        if x.size == 0 and prod(shape) != 0:
            raise InputError(f"{self.name} over axis {self.axis} needs at least one element, got {x}.")
        return (TensorSpec(shape, _INDEX),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Search with NumPy, backwards where the last index is wanted."""
        shape = reduced_shape(x.shape, self._axes(x.ndim), self.keepdims)
        if x.size == 0 or x.ndim == 0:
            return (np.zeros(shape, _INDEX),)
        (axis,) = self._axes(x.ndim)
        x = x.astype(accumulator(x.dtype), copy=False)
        find = np.argmin if self.is_minimum else np.argmax
        place = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis) if self.select_last_index else find(x, axis=axis)
        return (np.asarray(place, _INDEX).reshape(shape),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Search each row as it lies."""
        x, y = inputs[0], out[0]
        if x is None or y is None or not x.size or not x.ndim or not y.flags.c_contiguous:
            return None
        (axis,) = self._axes(x.ndim)
        if accumulator(x.dtype) != x.dtype:
            return None
        places = y.reshape((*x.shape[:axis], *x.shape[axis + 1 :]))
        rows = np.flip(x, axis) if self.select_last_index else x
        calls: list[Callable[[], object]] = [partial(rows.argmin if self.is_minimum else rows.argmax, axis, places)]
        if self.select_last_index:
            calls.append(partial(np.subtract, np.array(x.shape[axis] - 1), places, out=places))
        return calls

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Search each row by a team of threads."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        flags = (int32(self.is_minimum), int32(self.select_last_index))
        launch_rows(emit, f"find_extremum<{dtype_row(x.dtype).cuda}>", x, y, self._axes(x.spec.rank), flags)

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel along the last axis."""
        x = inputs[0]
        if x is None or x.rank == 0 or self._axes(x.rank) != (x.rank - 1,):
            return None
        work = dtype_row(accumulator(x.dtype)).cuda
        flags = ", ".join(str(bool(flag)).lower() for flag in (self.is_minimum, self.select_last_index))
        line = RowLine(f"Placed<{work}>{{{{{{0}}, {{column}}}}}}", f"Extremum<{work}, {flags}>", "{p}.place")
        return RowForm(x.rank - 1, (line,), work, _INDEX, is_strided=True)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return (normalize_axis(self.axis, rank),) if rank else ()


instantiate(SOURCE, [f"find_extremum<{dtype_row(dtype).cuda}>" for dtype in ARG_DTYPES])


@operator("ArgMax")
@dataclass(frozen=True, slots=True)
class ArgMax(ArgExtremum):
    """Index of the greatest element."""

    is_minimum: ClassVar[bool] = False


@operator("ArgMin")
@dataclass(frozen=True, slots=True)
class ArgMin(ArgExtremum):
    """Index of the least element."""

    is_minimum: ClassVar[bool] = True
