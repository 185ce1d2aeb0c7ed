"""Normalisation of rows: LayerNormalization and RMSNormalization.

All normalise rows of a dense tensor, a team of threads per row; they differ in what a row is and in which element of
scale and bias goes with an element. A row is worked on by one block at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, prod, sqrt
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import Shape, broadcast_strides, normalize_axis
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
)
from gpuexec.ir.prepared_calls import has_scratch, prepare_elementwise, view_bytes
from gpuexec.ir.row_form import RowForm, RowLine
from gpuexec.ir.spec import BFLOAT16, TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, allow_for_floats, count_epilogue_steps
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import count_widened, is_plain, make_dense, prepare_widened
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.lib.team import BLOCK_THREADS, RowLoop, choose_team, count_rows

_SOURCE = "norm.cu"
_BLOCK = (BLOCK_THREADS, 1, 1)
_FLOATS = dtypes_of("float")
_CUDA = tuple(dtype_row(dtype).cuda for dtype in _FLOATS)
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_STASH = {1: _FLOAT, 16: BFLOAT16}  # stash_type: the type of Mean and InvStdDev

_ROWS, _SHORT_ROWS = "normalize_rows", "normalize_short_rows"
_HELD_SHORT = 4  # kHeldShort of norm.cu

instantiate(_SOURCE, [f"{rows}<{t}, {v}>" for rows in (_ROWS, _SHORT_ROWS) for t in _CUDA for v in _CUDA])
allow_for_floats(_SOURCE, f"{_ROWS}<{{t}}, {{t}}>", f"{_SHORT_ROWS}<{{t}}, {{t}}>")
instantiate(_SOURCE, [f"normalize_and_measure_rows<{t}, {u}>" for t in _CUDA for u in ("float", "bf16")])


@dataclass(frozen=True, slots=True)
class Affine:
    """Struct ``Affine`` of norm.cu, without the flag of a bias.

    An element's scale stands at ``(row % row_period) * scale_stride + column // column_group``, its bias likewise.
    """

    row_period: int
    scale_stride: int
    bias_stride: int
    column_group: int

    def pack(self, has_bias: bool) -> bytes:
        """Return the bytes of the struct."""
        divisors = pack_fast_div64(max(1, self.row_period)) + pack_fast_div64(max(1, self.column_group))
        return divisors + pack_struct("<3q", self.scale_stride, self.bias_stride, has_bias)


@dataclass(frozen=True, slots=True)
class NormalizedRows:
    """Normalisation of the rows of a dense tensor: their number and length, parameters and two constants."""

    count: int
    columns: int
    affine: Affine
    epsilon: float
    is_centered: bool = True

    def launch(
        self,
        emit: Emitter,
        x: Slot,
        scale: Slot,
        bias: Slot | None,
        outputs: Sequence[Slot | None],
    ) -> None:
        """Launch the kernel for y alone, or for y, mean and inverse deviation."""
        count = self.count
        team = choose_team(self.columns, count)
        sizes = (int64(count), int64(self.columns), int32(team.lanes))
        constants = (self.affine.pack(bias is not None), np.float64(self.epsilon))
        y, *statistics = outputs
        types = [dtype_row(slot.dtype).cuda for slot in (x, scale)]
        tensors: list[Argument] = [emit.contiguous(x), scale, scale if bias is None else bias]
        if not any(statistics):
            assert y is not None
            arguments = [*tensors, y, *sizes, *constants, int32(self.is_centered)]
            # Rows are short at all sizes of a class where they are at its upper end.
            rows = _SHORT_ROWS if emit.choose(self.columns <= _HELD_SHORT * team.lanes) else _ROWS
            kernel = Kernel(_SOURCE, f"{rows}<{', '.join(types)}>")
            emit.launch(kernel, team.grid(count), _BLOCK, arguments, writes=[3])
            return
        stash = next(slot.dtype for slot in statistics if slot is not None)
        wanted = [emit.temp(x.shape, x.dtype) if y is None else y]
        wanted += [emit.temp((count,), stash) if slot is None else slot for slot in statistics]
        kernel = Kernel(_SOURCE, f"normalize_and_measure_rows<{types[0]}, {dtype_row(stash).cuda}>")
        emit.launch(kernel, team.grid(count), _BLOCK, [*tensors, *wanted, *sizes, *constants], writes=[3, 4, 5])


def _standardize(
    x: Array, axes: tuple[int, ...], epsilon: float, buffer: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return ``(x - mean) / sqrt(variance + epsilon)`` over axes kept as 1, the mean and the inverse deviation."""
    mean = mean_over(x, axes)
    centered = np.asarray(np.subtract(x, mean, out=buffer))
    inverse = inverse_deviation(centered, axes, epsilon)
    centered *= inverse
    return centered, mean, inverse


def inverse_deviation(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Return ``1 / sqrt(mean of squares + epsilon)`` over the last axes, which stay with extent 1.

    Squares are summed by BLAS; what follows is worked out in double and rounded once.
    """
    rows = _find_rows(x, axes)
    mean = np.vecdot(rows, rows).astype(_DOUBLE) / rows.shape[-1]
    return np.asarray(1 / np.sqrt(mean + epsilon)).astype(x.dtype).reshape(_keep_axes(x, axes))


def mean_over(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the mean over the last axes, which stay with extent 1. Unlike ``np.mean`` it does not warn of empty ones.

    BLAS sums, which is faster than NumPy's reduction and as exact.
    """
    rows = _find_rows(x, axes)
    total = np.vecdot(rows, _make_ones(rows.shape[-1], x.dtype))
    return np.asarray(total / x.dtype.type(rows.shape[-1])).reshape(_keep_axes(x, axes))


def count_statistics(x: TensorSpec | None, rows: int) -> list[int]:
    """Return scratch of a normalisation: a mean and a deviation of each row, and a double."""
    if x is None:
        return []
    return [rows * x.dtype.itemsize, rows * x.dtype.itemsize, rows * _DOUBLE.itemsize]


def has_statistics(scratch: Sequence[Array], x: Array, rows: int) -> bool:
    """Return whether scratch has the room of `count_statistics`: a plan that was stored may have counted otherwise."""
    return has_scratch(scratch, count_statistics(TensorSpec(x.shape, x.dtype), rows))


def prepare_mean(x: Array, axes: tuple[int, ...], mean: Array) -> list[Callable[[], object]]:
    """Return the calls of `mean_over` of a dense array; the mean has the axes with extent 1."""
    rows = _find_rows(x, axes)
    ones = _make_ones(rows.shape[-1], x.dtype)
    if mean.size > 1:
        terms = np.array(rows.shape[-1], x.dtype)
        return [partial(np.vecdot, rows, ones, mean.reshape(rows.shape[:-1])), partial(np.divide, mean, terms, mean)]
    row, number, count = rows.reshape(-1), mean.reshape(()), rows.shape[-1]

    def find_mean() -> None:
        number[()] = float(row.dot(ones)) / count

    return [find_mean]


def prepare_inverse_deviation(
    x: Array, axes: tuple[int, ...], epsilon: float, inverse: Array, scratch: Array
) -> list[Callable[[], object]]:
    """Return the calls of `inverse_deviation` of a dense array; ``scratch`` has room for a double of each row."""
    rows = _find_rows(x, axes)
    if inverse.size > 1:
        total, wide = inverse.reshape(rows.shape[:-1]), view_bytes(scratch, rows.shape[:-1], _DOUBLE)
        count, least, one = (np.array(number, _DOUBLE) for number in (rows.shape[-1], epsilon, 1))
        return [
            partial(np.vecdot, rows, rows, total),
            partial(np.divide, total, count, wide),
            partial(np.add, wide, least, wide),
            partial(np.sqrt, wide, wide),
            partial(np.divide, one, wide, total, casting="same_kind"),
        ]
    row, number, columns = rows.reshape(-1), inverse.reshape(()), rows.shape[-1]

    def find_inverse() -> None:
        root = sqrt(float(row.dot(row)) / columns + epsilon)
        number[()] = 1 / root if root else inf

    return [find_inverse]


def _find_rows(x: Array, axes: tuple[int, ...]) -> Array:
    """Return an array with its last axes as one, dense: the bits of a sum must not depend on where its terms lie."""
    kept = x.shape[: x.ndim - len(axes)]
    return np.ascontiguousarray(x).reshape(*kept, prod(x.shape[len(kept) :]))


def _keep_axes(x: Array, axes: tuple[int, ...]) -> Shape:
    return (*x.shape[: x.ndim - len(axes)], *(1,) * len(axes))


@cache
def _make_ones(count: int, dtype: np.dtype[Any]) -> Array:
    """Return ones, which nobody writes."""
    ones = np.ones(count, dtype)
    ones.flags.writeable = False
    return ones


def _buffer(out: Sequence[Array | None] | None, dtype: np.dtype[Any], accumulator_dtype: np.dtype[Any]) -> Array | None:
    """Return the first output's memory where the result can be worked out in it."""
    return out[0] if out and dtype == accumulator_dtype else None


@dataclass(frozen=True, slots=True)
class _TrailingNormalization(Operator):
    """Normalisation over the axes from ``axis`` on, scale broadcast to the input."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1
    flops_per_output = 7  # sum, difference, square, sum, product, scale, shift
    derivative = Derivative.PARTS
    has_blits = True
    takes_epilogue: ClassVar[bool] = True

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count statistics of the rows."""
        widened = count_widened(self, inputs, outputs[0])
        if widened is not None:
            return widened
        x = inputs[0]
        return [] if x is None else count_statistics(x, self._count_rows(x))

    def _count_rows(self, x: TensorSpec | Array) -> int:
        return prod(x.shape[: normalize_axis(self.axis, len(x.shape))])

    def _take_rows(self, x: Array, scratch: Sequence[Array]) -> tuple[tuple[int, ...], Array, Array]:
        """Return the axes of a row, and scratch: mean, deviation."""
        axis = normalize_axis(self.axis, x.ndim)
        rows = (*x.shape[:axis], *(1,) * (x.ndim - axis))
        mean, inverse = (view_bytes(each, rows, x.dtype) for each in scratch[:2])
        return tuple(range(axis, x.ndim)), mean, inverse

    def _check(self, x: TensorSpec, *parameters: tuple[str, TensorSpec | None]) -> int:
        axis = normalize_axis(self.axis, x.rank)
        if self.stash_type not in _STASH:
            raise InputError(f"{self.name} expects stash_type 1 (float32) or 16 (bfloat16), got {self.stash_type}.")
        for role, spec in parameters:
            if spec is not None:
                _check_broadcast(self.name, role, spec, x)
        return axis

    def _lower(
        self,
        emit: Emitter,
        x: Slot,
        scale: Slot,
        bias: Slot | None,
        outputs: Sequence[Slot | None],
        centered: bool,
    ) -> None:
        axis = normalize_axis(self.axis, x.spec.rank)
        columns, count = prod(x.shape[axis:]), prod(x.shape[:axis])
        if scale.spec.size == 1 and bias is None:
            affine = Affine(count, 0, 0, columns)  # one for all
        else:
            scale, scale_stride = _spread(emit, scale, x.shape, axis)
            bias_stride = 0
            if bias is not None:
                bias, bias_stride = _spread(emit, bias, x.shape, axis)
            affine = Affine(count, scale_stride, bias_stride, 1)
        NormalizedRows(count, columns, affine, self.epsilon, centered).launch(emit, x, scale, bias, outputs)


def write_row_form(
    x: TensorSpec,
    dtype: np.dtype[Any],
    axis: int,
    epsilon: float,
    *,
    has_bias: bool = False,
    is_centered: bool = True,
    of_rows: tuple[int, ...] = (),
) -> RowForm:
    """Return the form of ``normalize_row`` in norm.cu.

    Args:
        x: What is normalised over the axes from ``axis`` on.
        dtype: Of scale, bias and the result.
        axis: The first axis of a row.
        epsilon: What is added to the variance.
        has_bias: Whether there is a third input.
        is_centered: Whether the mean is subtracted.
        of_rows: See `RowForm`.
    """
    work = "double" if _DOUBLE in (x.dtype, dtype) else "float"
    given, center = f"{work}({{0}})", "{t0}" if is_centered else f"{work}(0)"
    sums = f"Sum<{work}>"
    inverse = f"{work}(1) / root_of({{p}} / {work}({{columns}}) + {work}({{n0}}))"
    means = (RowLine(given, sums, f"{{p}} / {work}({{columns}})"),) if is_centered else ()
    squares = RowLine(f"({given} - {center}) * ({given} - {center})", sums, inverse)
    result = f"({given} - {center}) * {{t{len(means)}}} * {work}({{1}})" + (f" + {work}({{2}})" if has_bias else "")
    return RowForm(axis, (*means, squares, RowLine(result)), work, dtype, (epsilon,), of_rows=of_rows)


def _check_broadcast(name: str, role: str, spec: TensorSpec, x: TensorSpec) -> None:
    padded = (1,) * (x.rank - spec.rank) + spec.shape
    if len(padded) != x.rank or any(have not in (1, want) for have, want in zip(padded, x.shape, strict=True)):
        raise InputError(f"{name} expects {role} to broadcast to the input {x}, got {spec}.")


def _spread(emit: Emitter, parameter: Slot, shape: Shape, axis: int) -> tuple[Slot, int]:
    """Return a parameter as a dense row with row stride 0; where it differs between rows, as all its rows."""
    strides = broadcast_strides(parameter.shape, parameter.strides, shape)
    first = (
        0 if any(stride and extent != 1 for stride, extent in zip(strides[:axis], shape[:axis], strict=True)) else axis
    )
    spec = parameter.spec.with_shape(shape[first:])
    dense = emit.contiguous(Slot(parameter.buffer, parameter.offset_bytes, spec, strides[first:]))
    return dense, 0 if first == axis else prod(shape[axis:])


@operator("LayerNormalization")
@dataclass(frozen=True, slots=True)
class LayerNormalization(_TrailingNormalization):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from ``axis`` on.

    Mean and InvStdDev come in the type ``stash_type`` names; the work is done in float, or double for doubles.
    """

    keeps_dtype = True

    def infer(self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the specs of y, mean and inverse deviation.

        Raises:
            InputError: Types differ or are not float, or scale or bias don't broadcast to the input.
        """
        x = check_dtype(self.name, x, _FLOATS)
        scale = check_dtype(self.name, scale, (x.dtype,), "scale")
        bias = None if bias is None else check_dtype(self.name, bias, (x.dtype,), "bias")
        axis = self._check(x, ("scale", scale), ("bias", bias))
        stats = TensorSpec((*x.shape[:axis], *(1,) * (x.rank - axis)), _STASH[self.stash_type])
        return x.with_shape(x.shape), stats, stats

    def compute(
        self, x: Array, scale: Array, bias: Array | None = None, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Normalise with NumPy; half and bfloat16 in float, rounded once."""
        wide = x.astype(accumulator(x.dtype), order="C", copy=False)
        axes = tuple(range(normalize_axis(self.axis, x.ndim), x.ndim))
        with np.errstate(all="ignore"):
            y, mean, inverse = _standardize(wide, axes, self.epsilon, _buffer(out, x.dtype, wide.dtype))
            y *= scale
            if bias is not None:
                y += bias
            stash = _STASH[self.stash_type]
            return y.astype(x.dtype, copy=False), np.asarray(mean).astype(stash), inverse.astype(stash)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Normalise in the output's memory."""
        (x, scale, bias), (y, *statistics) = (*inputs, None)[:3], out
        if x is None or not is_plain(y, x.dtype) or scale is None or not scratch:
            return prepare_widened(self, inputs, out, constant, scratch)
        if not has_statistics(scratch, x, self._count_rows(x)):
            return None
        axes, mean, inverse = self._take_rows(x, scratch)
        x, calls = make_dense(x, y)
        calls += [
            *prepare_mean(x, axes, mean),
            prepare_elementwise(np.subtract, (x, mean), y),
            *prepare_inverse_deviation(y, axes, self.epsilon, inverse, scratch[2]),
            prepare_elementwise(np.multiply, (y, inverse), y),
            prepare_elementwise(np.multiply, (y, scale), y),
        ]
        if bias is not None:
            calls.append(prepare_elementwise(np.add, (y, bias), y))
        for made, given in zip((mean, inverse), statistics):
            if given is not None:
                calls.append(partial(np.copyto, given, made, "unsafe"))
        return calls

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel."""
        x, scale, bias = (*inputs, None, None)[:3]
        if x is None or scale is None:
            return None
        axis = normalize_axis(self.axis, x.rank)
        return write_row_form(x, scale.dtype, axis, self.epsilon, has_bias=bias is not None)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, scale, bias = (*inputs, None)[:3]
        assert x is not None and scale is not None
        self._lower(emit, x, scale, bias, (*outputs, None, None)[:3], True)


@operator("RMSNormalization")
@dataclass(frozen=True, slots=True)
class RMSNormalization(_TrailingNormalization):
    """``x / sqrt(mean(x * x) + epsilon) * scale`` over the axes from ``axis`` on; the result has the type of scale."""

    def infer(self, x: TensorSpec, scale: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's shape with the scale's type.

        Raises:
            InputError: Types are not float, or scale doesn't broadcast to the input.
        """
        x = check_dtype(self.name, x, _FLOATS)
        scale = check_dtype(self.name, scale, _FLOATS, "scale")
        self._check(x, ("scale", scale))
        return (TensorSpec(x.shape, scale.dtype),)

    def compute(self, x: Array, scale: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Normalise with NumPy, in float or double; rounded once."""
        wide = x.astype(_DOUBLE if _DOUBLE in (x.dtype, scale.dtype) else _FLOAT, copy=False)
        axes = tuple(range(normalize_axis(self.axis, x.ndim), x.ndim))
        with np.errstate(all="ignore"):
            inverse = inverse_deviation(wide, axes, self.epsilon)
            y = np.asarray(np.multiply(wide, inverse, out=_buffer(out, scale.dtype, wide.dtype)))
            y *= scale
            return (y.astype(scale.dtype, copy=False),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Normalise in the output's memory, where input and scale have one type."""
        (x, scale), (y,) = inputs, out
        if scale is None or not scratch:
            return None
        if not is_plain(x) or not is_plain(y, x.dtype) or accumulator(scale.dtype) != x.dtype:
            return prepare_widened(self, inputs, out, constant, scratch)
        if not has_statistics(scratch, x, self._count_rows(x)):
            return None
        axes, _, inverse = self._take_rows(x, scratch)
        calls = prepare_inverse_deviation(x, axes, self.epsilon, inverse, scratch[2])
        return [
            *calls,
            prepare_elementwise(np.multiply, (x, inverse), y),
            prepare_elementwise(np.multiply, (y, scale), y),
        ]

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel."""
        x, scale = (*inputs, None)[:2]
        if x is None or scale is None:
            return None
        axis = normalize_axis(self.axis, x.rank)
        return write_row_form(x, scale.dtype, axis, self.epsilon, is_centered=False)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, scale = inputs
        assert x is not None and scale is not None
        self._lower(emit, x, scale, None, (outputs[0], None, None), False)


_LOOP = RowLoop(around=350, each=36, held=16, flops=7, folds=2)


@work_of(_SOURCE, _ROWS, _SHORT_ROWS, "normalize_and_measure_rows", "normalize_summed_rows")
def _count_rows(launch: Launch) -> Work:
    sizes = [int(argument) for argument in launch.arguments if isinstance(argument, np.integer)]
    _, columns, lanes = sizes[:3]
    steps = count_epilogue_steps(launch)
    loop = replace(_LOOP, each=_LOOP.each + steps * STEP_INSTRUCTIONS, flops=_LOOP.flops + steps)
    work = count_rows(launch, columns, lanes, loop)
    # Every block reads scale and bias.
    parameters = 2 * columns * launch.reads_from()[1].dtype.itemsize
    return replace(work, l2_nbytes=work.l2_nbytes + (launch.grid[0] - 1) * parameters)
