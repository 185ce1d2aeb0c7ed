"""Softmax, LogSoftmax, Hardmax: one row of a dense tensor per team of threads.

Rows lie along ``axis``. Where other axes follow it, rows lie side by side in memory and neighbouring threads take
neighbouring rows; the kernel is the same. A row is worked on by one block at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
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
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.row_form import RowForm, RowLine
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, work_of
from gpuexec.ops.elementwise.epilogue import allow_for_floats
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import count_widened, is_plain, make_dense, prepare_widened
from gpuexec.ops.lib.team import BLOCK_THREADS, RowLoop, choose_team, count_rows

_SOURCE = "softmax.cu"
_PLAIN, _LOG, _GUARDED = range(3)  # SoftmaxForm of softmax.cu
_HELD, _HELD_SHORT = 16, 4  # kHeld and kHeldShort
SOFTMAX_FLOPS = 5  # of each element: maximum, difference, exponential, sum, quotient
_FLOATS = dtypes_of("float")
_KERNELS = ("softmax", "softmax_short", "hardmax")
instantiate(_SOURCE, [f"{kernel}<{dtype_row(t).cuda}>" for kernel in _KERNELS for t in _FLOATS])
allow_for_floats(_SOURCE, "softmax<{t}>", "softmax_short<{t}>")


@dataclass(frozen=True, slots=True)
class RowMap(Operator):
    """A map of each row along ``axis`` to a row.

    ``flatten`` is the form before opset 13: axes before ``axis`` are joined to one, so are the others, and rows lie
    along the second. It comes from the upgrade; a file of opset 13 or later never has it.
    """

    _along: ClassVar[Any]  # (x in its accumulator, axis, a buffer or None) -> result
    _form: ClassVar[int | None]  # SoftmaxForm; None: that of Hardmax, which has none
    axis: int = -1
    flatten: int = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Not a float type, or an axis out of range.
        """
        x = check_dtype(self.name, x, _FLOATS)
        normalize_axis(self.axis, x.rank)
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Map the rows; half and bfloat16 in float, rounded once."""
        wide = x.astype(accumulator(x.dtype), copy=False)
        y = out[0] if out else None
        with np.errstate(all="ignore"):
            if self.flatten:
                outer, columns, _ = self._split(x.shape)
                result = self._along(wide.reshape(outer, columns), 1, None).reshape(x.shape)
            else:
                result = self._along(wide, self.axis, y if y is not None and y.dtype == wide.dtype else None)
            return (result.astype(x.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        if emit.leaves_to_host():
            return
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        _launch_rows(emit, x, y, self._split(x.shape), self._form)

    def _write_row(self, inputs: Sequence[TensorSpec | None], is_log: bool) -> RowForm | None:
        """Return the form of ``softmax`` in softmax.cu, by running sums where its lanes can't hold a row."""
        x = inputs[0]
        if x is None or x.rank == 0:
            return None
        axis = normalize_axis(self.axis, x.rank)
        if axis != x.rank - 1 and not self.flatten:
            return None
        columns, work = prod(x.shape[axis:]), dtype_row(accumulator(x.dtype)).cuda
        if columns <= _HELD * choose_team(columns, 1).lanes:
            shifted, power = RowLine("{0} - {t0}"), RowLine("exp_of({0} - {t0})")
            lines = (
                RowLine("{0}", f"Largest<{work}>"),
                shifted if is_log else power,
                RowLine("exp_of({t1})" if is_log else "{t1}", f"Sum<{work}>", "log_of({p})" if is_log else "{p}"),
                RowLine("{t1} - {t2}" if is_log else "{t1} / {t2}"),
            )
            return RowForm(axis, lines, work, x.dtype)
        total = "{t0}.strict_sum()"
        lines = (
            RowLine(f"SoftmaxState<{work}>::of({{0}})", f"LogSumExp<{work}>"),
            RowLine(f"log_of({total})" if is_log else total, is_of_row=True),
            RowLine("{0} - {t0}.largest"),
            RowLine("{t2} - {t1}" if is_log else "exp_of({t2}) / {t1}"),
        )
        return RowForm(axis, lines, work, x.dtype, variant=1, has_blit=False)

    def _split(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the tensor as ``[outer, columns, inner]``."""
        axis = normalize_axis(self.axis, len(shape))
        last = len(shape) if self.flatten else axis + 1
        return prod(shape[:axis]), prod(shape[axis:last]), prod(shape[last:])


@operator("Softmax")
@dataclass(frozen=True, slots=True)
class Softmax(RowMap):
    """``exp(x) / sum(exp(x))`` along an axis. A row whose maximum is not finite gives NaN."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = SOFTMAX_FLOPS
    _form = _PLAIN
    takes_epilogue = True
    derivative = Derivative.RULE

    def _along(self, x: Array, axis: int, buffer: Array | None) -> Array:
        powers = _subtract_largest(x, axis, buffer)
        np.exp(powers, out=powers)
        powers /= np.add.reduce(powers, axis=axis, keepdims=True)
        return powers

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count a number for each row."""
        widened = count_widened(self, inputs, outputs[0])
        if widened is not None:
            return widened
        return [_count_row_bytes(self, inputs[0])]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Work out the rows in the output's memory."""
        x, y, calls = _split_rows(self, inputs[0], out[0])
        if x is None or y is None or not scratch:
            return prepare_widened(self, inputs, out, constant, scratch)
        return calls + prepare_softmax(x, y, view_bytes(scratch[0], (*x.shape[:1], 1, *x.shape[2:]), x.dtype))

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel along the last axis."""
        return self._write_row(inputs, False)


@operator("LogSoftmax")
@dataclass(frozen=True, slots=True)
class LogSoftmax(RowMap):
    """``x - log(sum(exp(x)))`` along an axis."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = SOFTMAX_FLOPS
    _form = _LOG
    takes_epilogue = True
    derivative = Derivative.RULE

    def _along(self, x: Array, axis: int, buffer: Array | None) -> Array:
        shifted = _subtract_largest(x, axis, buffer)
        shifted -= np.log(np.add.reduce(np.exp(shifted), axis=axis, keepdims=True))
        return shifted

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count a number for each row, and the exponentials."""
        widened = count_widened(self, inputs, outputs[0])
        if widened is not None:
            return widened
        x = inputs[0]
        return [_count_row_bytes(self, x), 0 if x is None else x.nbytes]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Work out the rows in the output's memory."""
        x, y, calls = _split_rows(self, inputs[0], out[0])
        if x is None or y is None or len(scratch) < 2:
            return prepare_widened(self, inputs, out, constant, scratch)
        rows = view_bytes(scratch[0], (*x.shape[:1], 1, *x.shape[2:]), x.dtype)
        powers = view_bytes(scratch[1], x.shape, x.dtype)
        return [
            *calls,
            partial(np.maximum.reduce, x, 1, None, rows, True, -np.inf),
            partial(np.subtract, x, rows, out=y),
            partial(np.exp, y, out=powers),
            partial(np.add.reduce, powers, 1, None, rows, True),
            partial(np.log, rows, out=rows),
            partial(np.subtract, y, rows, out=y),
        ]

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel along the last axis."""
        return self._write_row(inputs, True)


@operator("Hardmax")
@dataclass(frozen=True, slots=True)
class Hardmax(RowMap):
    """1 at the first maximum along an axis, 0 elsewhere."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    _form = None
    flops_per_output = None

    def _along(self, x: Array, axis: int, buffer: Array | None) -> Array:
        result = np.zeros_like(x)
        if x.size:
            np.put_along_axis(result, np.expand_dims(np.argmax(x, axis=axis), axis), 1, axis)
        return result


def launch_guarded(emit: Emitter, x: Slot, y: Slot) -> None:
    """Launch a softmax over the last axis that is 0 in rows where Softmax gives NaN."""
    _launch_rows(emit, x, y, (prod(x.shape[:-1]), x.shape[-1], 1), _GUARDED)


def _launch_rows(emit: Emitter, x: Slot, y: Slot, extents: tuple[int, int, int], form: int | None) -> None:
    """Launch a team of threads per row of ``[outer, columns, inner]``."""
    outer, columns, inner = extents
    team = choose_team(columns, outer * inner, inner)
    name, scalars = "hardmax", []
    if form is not None:
        # Rows are short at all sizes of a class where they are at its upper end.
        name = "softmax_short" if emit.choose(columns <= _HELD_SHORT * team.lanes) else "softmax"
        scalars = [int32(form)]
    kernel = Kernel(_SOURCE, f"{name}<{dtype_row(x.dtype).cuda}>")
    sizes = (int64(outer * inner), int64(columns), int64(inner))
    arguments: list[Argument] = [emit.contiguous(x), y, *sizes, *team.arguments(), *scalars]
    emit.launch(kernel, team.grid(outer * inner), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


@upgrade("Softmax", below=13)
@upgrade("LogSoftmax", below=13)
@upgrade("Hardmax", below=13)
def _keep_flattening(node: RawNode) -> RawNode:
    """Upgrade the old form: rows of the tensor flattened at ``axis``, which is 1 unless given."""
    return node.with_attributes(axis=node.attributes.get("axis", 1), flatten=1)


def prepare_softmax(x: Array, y: Array, rows: Array) -> list[Callable[[], object]]:
    """Return the calls of a softmax along the second of three axes, of floats.

    Args:
        x: What it is taken of.
        y: Where it goes, which may be the memory of ``x``.
        rows: Scratch of extent 1 along the axis.
    """
    return [
        partial(np.maximum.reduce, x, 1, None, rows, True, -np.inf),
        partial(np.subtract, x, rows, out=y),
        partial(np.exp, y, out=y),
        partial(np.add.reduce, y, 1, None, rows, True),
        partial(np.divide, y, rows, out=y),
    ]


def _split_rows(
    rows: RowMap, x: Array | None, y: Array | None
) -> tuple[Array | None, Array | None, list[Callable[[], object]]]:
    """Return dense arrays as ``[outer, columns, inner]``, and the calls that make them so; None: not of floats."""
    if x is None or not is_plain(y, x.dtype):
        return None, None, []
    extents = rows._split(x.shape)
    dense, calls = make_dense(x, y)
    return dense.reshape(extents), y.reshape(extents), calls


def _count_row_bytes(rows: RowMap, x: TensorSpec | None) -> int:
    if x is None:
        return 0
    outer, _, inner = rows._split(x.shape)
    return outer * inner * x.dtype.itemsize


def _subtract_largest(x: Array, axis: int, buffer: Array | None) -> Array:
    largest = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(np.subtract(x, largest, out=buffer))


_LOOP = RowLoop(around=250, each=33, held=16, flops=5, folds=2)


@work_of(_SOURCE, *_KERNELS)
def _count_rows(launch: Launch) -> Work:
    columns, lanes = launch.arguments[3], launch.arguments[5]
    assert isinstance(columns, np.integer) and isinstance(lanes, np.integer)
    return count_rows(launch, int(columns), int(lanes), _LOOP)
