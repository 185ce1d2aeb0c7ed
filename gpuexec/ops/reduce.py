"""Reductions: Reduce*, ArgMax and ArgMin, GlobalAveragePool, GlobalMaxPool, GlobalLpPool.

A reduction is a row of a table: name, types, NumPy function, CUDA functor. All share the kernels of
``kernels/reduce.cu``: the kept axes are walked as rows, the reduced ones as the terms of a row, in whatever layout the
input has.

Where all axes are reduced there is one row, so it is cut into chunks and folded in a second launch. Otherwise one block
at most works on a row: few rows of very many terms leave a large device idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.command import Argument, Kernel, Slot
from gpuexec.errors import InputError
from gpuexec.geometry import ceil_div, coalesce, normalize_axes, normalize_axis
from gpuexec.graph import RawNode
from gpuexec.operator import Array, Emitter, Operator, Tolerance, instantiate, operator, require_const, upgrade
from gpuexec.ops.strided import MAX_RANK, Walk, join
from gpuexec.ops.team import BLOCK_THREADS, choose_team
from gpuexec.spec import TensorSpec, accumulator, dtype_row, dtypes_of

CHUNK_TERMS = 16384
_SOURCE = "reduce.cu"
_FLOATS = dtypes_of("float")
_NUMBERS = (*(np.dtype(t) for t in (np.uint32, np.uint64, np.int32, np.int64)), *_FLOATS)
_ORDERED = (*_NUMBERS, *(np.dtype(t) for t in (np.uint8, np.int8, np.bool_)))
_INDEX = np.dtype(np.int64)

Fold = Callable[[Array, tuple[int, ...]], Array]


# ---------------------------------------------------------------- NumPy: (x in its accumulator, axes), axes kept as 1


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.add.reduce(x, axis=axes, dtype=x.dtype, keepdims=True))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    total, terms = _sum(x, axes), prod(x.shape[axis] for axis in axes)
    return (
        _truncate(total.astype(np.float64) / np.float64(terms), x.dtype)
        if x.dtype.kind in "iu"
        else total / x.dtype.type(terms)
    )


def _prod(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.multiply.reduce(x, axis=axes, dtype=x.dtype, keepdims=True))


def _l1(x: Array, axes: tuple[int, ...]) -> Array:
    return _sum(np.abs(x), axes)


def _l2(x: Array, axes: tuple[int, ...]) -> Array:
    total = _sum_square(x, axes)
    return _truncate(np.sqrt(total.astype(np.float64)), x.dtype) if x.dtype.kind in "iu" else np.sqrt(total)


def _sum_square(x: Array, axes: tuple[int, ...]) -> Array:
    return _sum(np.multiply(x, x), axes)


def _log_sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.log(_sum(x, axes)))


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    largest = np.maximum.reduce(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    return np.asarray(np.log(_sum(np.exp(x - shift), axes)) + shift)


def _max(x: Array, axes: tuple[int, ...]) -> Array:
    result = np.asarray(np.maximum.reduce(x, axis=axes, keepdims=True, initial=_bound(x.dtype, lowest=True)))
    return _settle_zeros(x, result, axes, greater=True)


def _min(x: Array, axes: tuple[int, ...]) -> Array:
    result = np.asarray(np.minimum.reduce(x, axis=axes, keepdims=True, initial=_bound(x.dtype, lowest=False)))
    return _settle_zeros(x, result, axes, greater=False)


def _bound(dtype: np.dtype[Any], lowest: bool) -> Any:
    """Return the identity of Max (``lowest``) or Min: an infinity, or the bound of an integer type."""
    if dtype.kind == "f":
        return dtype.type(-np.inf if lowest else np.inf)
    if dtype.kind == "b":
        return not lowest
    return np.iinfo(dtype).min if lowest else np.iinfo(dtype).max


def _settle_zeros(x: Array, result: Array, axes: tuple[int, ...], greater: bool) -> Array:
    """Give zeros the sign IEEE 754-2019 maximum and minimum give them; NumPy's depends on the order it read them in."""
    if x.dtype.kind != "f" or not (is_zero := result == 0).any():
        return result
    is_positive = (x == 0) & ~np.signbit(x)
    chosen = np.logical_or.reduce(is_positive, axis=axes, keepdims=True)
    if not greater:
        chosen = ~np.logical_or.reduce((x == 0) & np.signbit(x), axis=axes, keepdims=True)
    return np.where(is_zero, np.where(chosen, x.dtype.type(0.0), x.dtype.type(-0.0)), result)


def _truncate(x: Array, dtype: np.dtype[Any]) -> Array:
    """Convert double to integer as the kernels' cast does: toward zero, NaN gives 0."""
    return np.asarray(np.where(np.isnan(x), 0, x)).astype(dtype)


# ---------------------------------------------------------------- the table


class Finish(IntEnum):
    """What becomes of the folded terms; the codes of ``Finish`` in reduce.cu."""

    AS_IS = 0
    MEAN = 1
    ROOT = 2
    LOG = 3


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """One way to reduce: ONNX name, CUDA functor and finish, NumPy function, element types.

    ``axes_input_since`` is the opset that made axes an input; ``keeps_single`` says that reducing over no axes gives
    the input.
    """

    name: str
    functor: str
    fold: Fold
    dtypes: tuple[np.dtype[Any], ...]
    tolerance: Tolerance = Tolerance.REDUCTION
    finish: Finish = Finish.AS_IS
    axes_input_since: int = 18
    keeps_single: bool = False


@dataclass(frozen=True, slots=True)
class Reduction(Operator):
    """Reduce along axes; all of them where none are given, unless ``noop_with_empty_axes``."""

    row: ClassVar[ReductionRow]
    keepdims: int = 1
    noop_with_empty_axes: int = 0

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the spec with the reduced axes gone, or of extent 1.

        Raises:
            InputError: A type the operator does not have, or axes out of range.
            NeedsHostValue: The axes are not known.
        """
        x = check_dtype(self.name, inputs[0], self.row.dtypes)
        return (x.with_shape(reduced_shape(x.shape, self._axes(x.rank, _known_axes(inputs)), self.keepdims)),)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Reduce; half and bfloat16 in float, rounded once."""
        x = inputs[0]
        assert x is not None
        axes = self._axes(x.ndim, inputs[1] if len(inputs) > 1 else None)
        return (fold(self.row.fold, x, axes, self.keepdims),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Alias the input where nothing happens, else reduce."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        axes = self._axes(x.spec.rank, _known_axes([None if slot is None else slot.spec for slot in inputs]))
        if not axes and self.row.keeps_single:
            emit.alias(y, x)
        else:
            lower_reduction(emit, self.row, x, y, axes)

    def _axes(self, rank: int, given: Array | None) -> tuple[int, ...]:
        if given is None or given.size == 0:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted(normalize_axes([int(axis) for axis in given.reshape(-1)], rank)))


ROWS = (
    ReductionRow("ReduceSum", "Sum", _sum, _NUMBERS, axes_input_since=13, keeps_single=True),
    ReductionRow("ReduceMean", "Sum", _mean, _NUMBERS, finish=Finish.MEAN, keeps_single=True),
    ReductionRow("ReduceMax", "Max", _max, _ORDERED, Tolerance.EXACT, keeps_single=True),
    ReductionRow("ReduceMin", "Min", _min, _ORDERED, Tolerance.EXACT, keeps_single=True),
    ReductionRow("ReduceProd", "Prod", _prod, _NUMBERS, keeps_single=True),
    ReductionRow("ReduceL1", "SumMagnitude", _l1, _NUMBERS),
    ReductionRow("ReduceL2", "SumSquare", _l2, _NUMBERS, finish=Finish.ROOT),
    ReductionRow("ReduceSumSquare", "SumSquare", _sum_square, _NUMBERS),
    ReductionRow("ReduceLogSum", "Sum", _log_sum, _FLOATS, finish=Finish.LOG),
    ReductionRow("ReduceLogSumExp", "LogSumExp", _log_sum_exp, _FLOATS),
)


def _register(row: ReductionRow) -> type[Reduction]:
    body = {
        "__slots__": (),
        "__doc__": f"{row.name}: see `Reduction`.",
        "row": row,
        "tolerance": row.tolerance,
        "__module__": __name__,
    }
    cls = operator(row.name)(type(row.name, (Reduction,), body))
    upgrade(row.name, below=row.axes_input_since)(_axes_to_input)
    instantiate(_SOURCE, [f"{kernel}<{row.functor}<{t}>, {t}>" for t in _cuda_types(row.dtypes) for kernel in _KERNELS])
    return cls


def _axes_to_input(node: RawNode) -> RawNode:
    """Turn the attribute ``axes`` into the second input."""
    if "axes" not in node.attributes:
        return node
    return node.with_input(1, np.array(node.attributes["axes"], np.int64)).without("axes")


def _cuda_types(dtypes: Sequence[np.dtype[Any]]) -> list[str]:
    return [dtype_row(dtype).cuda for dtype in dtypes]


_KERNELS = ("reduce", "reduce_chunks", "reduce_partials")
REDUCTIONS = {row.name: _register(row) for row in ROWS}
globals().update(REDUCTIONS)  # so that each class is found where its __module__ says


# ---------------------------------------------------------------- pools over all of space


@dataclass(frozen=True, slots=True)
class GlobalPool(Operator):
    """Reduce everything after batch and channel to extent 1."""

    _fold: ClassVar[Callable[..., Array]]
    _kernel: ClassVar[Callable[..., tuple[Any, ...]]]  # CUDA type -> name expression, then the scalars after the team's

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return ``[n, channels, 1, ...]``.

        Raises:
            InputError: Not a float type, or a rank below 2.
        """
        x = check_dtype(self.name, inputs[0], _FLOATS)
        if x.rank < 2:
            raise InputError(f"{self.name} expects an input of rank 2 or more, [n, channels, ...], got {x}.")
        return (x.with_shape(reduced_shape(x.shape, _spatial(x.rank), True)),)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Reduce the spatial axes; half and bfloat16 in float, rounded once."""
        x = inputs[0]
        assert x is not None
        return (fold(self._fold, x, _spatial(x.ndim), True),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Reduce the spatial axes by a team of threads per channel."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        kernel, *scalars = self._kernel(dtype_row(x.dtype).cuda)
        _launch_rows(emit, kernel, x, y, _spatial(x.spec.rank), scalars)


@operator("GlobalAveragePool")
@dataclass(frozen=True, slots=True)
class GlobalAveragePool(GlobalPool):
    """Mean over space."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION

    def _fold(self, x: Array, axes: tuple[int, ...]) -> Array:
        return _mean(x, axes)

    def _kernel(self, cuda: str) -> tuple[Any, ...]:
        return f"reduce<Sum<{cuda}>, {cuda}>", np.int32(Finish.MEAN)


@operator("GlobalMaxPool")
@dataclass(frozen=True, slots=True)
class GlobalMaxPool(GlobalPool):
    """Maximum over space; NaN wins."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT

    def _fold(self, x: Array, axes: tuple[int, ...]) -> Array:
        return _max(x, axes)

    def _kernel(self, cuda: str) -> tuple[Any, ...]:
        return f"reduce<Max<{cuda}>, {cuda}>", np.int32(Finish.AS_IS)


@operator("GlobalLpPool")
@dataclass(frozen=True, slots=True)
class GlobalLpPool(GlobalPool):
    """p-norm over space."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    p: int = 2

    def _fold(self, x: Array, axes: tuple[int, ...]) -> Array:
        p = x.dtype.type(self.p)
        return np.asarray(_sum(np.abs(x) ** p, axes) ** (x.dtype.type(1) / p))

    def _kernel(self, cuda: str) -> tuple[Any, ...]:
        return f"lp_norm<{cuda}>", np.float32(self.p)


def _spatial(rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank))


instantiate(_SOURCE, [f"lp_norm<{t}>" for t in _cuda_types(_FLOATS)])


# ---------------------------------------------------------------- places of extrema


@dataclass(frozen=True, slots=True)
class ArgExtremum(Operator):
    """Index of the extremum along an axis: the first one, or the last. NaN wins over numbers."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    is_minimum: ClassVar[bool]
    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the int64 spec with the axis gone, or of extent 1.

        Raises:
            InputError: A type without order, an axis out of range, or an axis without elements.
        """
        x = check_dtype(self.name, inputs[0], ARG_DTYPES)
        shape = reduced_shape(x.shape, self._axes(x.rank), self.keepdims)
        if x.size == 0 and prod(shape) != 0:
            raise InputError(f"{self.name} over axis {self.axis} needs at least one element, got {x}.")
        return (TensorSpec(shape, _INDEX),)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Search with NumPy, backwards where the last index is wanted."""
        x = inputs[0]
        assert x is not None
        shape = reduced_shape(x.shape, self._axes(x.ndim), self.keepdims)
        if x.size == 0 or x.ndim == 0:
            return (np.zeros(shape, _INDEX),)
        (axis,) = self._axes(x.ndim)
        x = x.astype(accumulator(x.dtype), copy=False)
        find = np.argmin if self.is_minimum else np.argmax
        place = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis) if self.select_last_index else find(x, axis=axis)
        return (np.asarray(place, _INDEX).reshape(shape),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Search each row by a team of threads."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        flags = (np.int32(self.is_minimum), np.int32(self.select_last_index))
        _launch_rows(emit, f"find_extremum<{dtype_row(x.dtype).cuda}>", x, y, self._axes(x.spec.rank), flags)

    def _axes(self, rank: int) -> tuple[int, ...]:
        return (normalize_axis(self.axis, rank),) if rank else ()


ARG_DTYPES = dtypes_of("float", "int", "uint")
instantiate(_SOURCE, [f"find_extremum<{t}>" for t in _cuda_types(ARG_DTYPES)])


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


# ---------------------------------------------------------------- shared parts


def _known_axes(inputs: Sequence[TensorSpec | None]) -> Array | None:
    """Return the content of the axes input; nothing is read where it is absent or empty."""
    axes = inputs[1] if len(inputs) > 1 else None
    if axes is None or axes.size == 0:
        return None
    return require_const(axes, "axes", 1)


def check_dtype(name: str, spec: TensorSpec | None, dtypes: Sequence[np.dtype[Any]], role: str = "input") -> TensorSpec:
    """Return the spec, which is there and of one of the types.

    Raises:
        InputError: It is absent, or of another type.
    """
    if spec is None:
        raise InputError(f"{name} lacks its {role}.")
    if spec.dtype not in dtypes:
        raise InputError(f"{name} expects {role} of type {', '.join(dtype_row(d).name for d in dtypes)}, got {spec}.")
    return spec


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int | bool) -> tuple[int, ...]:
    """Return the shape after a reduction."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def fold(function: Fold, x: Array, axes: tuple[int, ...], keepdims: int | bool) -> Array:
    """Reduce with NumPy; half and bfloat16 in float, rounded once."""
    with np.errstate(all="ignore"):
        result = np.asarray(function(x.astype(accumulator(x.dtype), copy=False), axes))
        return result.astype(x.dtype, copy=False).reshape(reduced_shape(x.shape, axes, keepdims))


def lower_reduction(emit: Emitter, row: ReductionRow, x: Slot, y: Slot, axes: tuple[int, ...]) -> None:
    """Launch a reduction of ``x`` along ``axes``: in chunks where all axes go, else a team of threads per row."""
    cuda = dtype_row(x.dtype).cuda
    instance = f"<{row.functor}<{cuda}>, {cuda}>"
    finish = np.int32(row.finish)
    if not axes or len(axes) < x.spec.rank:
        _launch_rows(emit, f"reduce{instance}", x, y, axes, (finish,))
        return
    terms = join(x.shape, (x.strides,))
    chunks = max(1, ceil_div(terms.count, CHUNK_TERMS))
    fields = 2 if row.functor == "LogSumExp" else 1  # SoftmaxState is a pair
    partials = emit.temp((chunks, fields), accumulator(x.dtype))
    arguments: list[Argument] = [x, partials, terms.pack(), np.int64(CHUNK_TERMS)]
    emit.launch(
        Kernel(_SOURCE, f"reduce_chunks{instance}"), (chunks, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=[1]
    )
    arguments = [partials, y, np.int64(chunks), np.int64(terms.count), finish]
    emit.launch(Kernel(_SOURCE, f"reduce_partials{instance}"), (1, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


def _launch_rows(
    emit: Emitter, kernel: str, x: Slot, y: Slot, axes: tuple[int, ...], scalars: Sequence[Argument]
) -> None:
    """Launch a kernel that gives each row of kept axes to a team of threads."""
    others = tuple(axis for axis in range(x.spec.rank) if axis not in axes)
    kept = _walk(x, others)
    if len(kept.shape) > MAX_RANK:
        x = emit.contiguous(x)
        kept = _walk(x, others)
    reduced = join([x.shape[axis] for axis in axes], ([x.strides[axis] for axis in axes],))
    team = choose_team(reduced.count, kept.count, _neighbours(kept, reduced))
    arguments: list[Argument] = [x, y, kept.pack(), reduced.pack(), *team.arguments(), *scalars]
    emit.launch(Kernel(_SOURCE, kernel), team.grid(kept.count), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


def _walk(x: Slot, axes: tuple[int, ...]) -> Walk:
    """Return the walk over some axes in their own order."""
    shape, strides = coalesce([x.shape[axis] for axis in axes], ([x.strides[axis] for axis in axes],))
    return Walk(shape, strides)


def _neighbours(kept: Walk, reduced: Walk) -> int:
    """Return how many rows lie side by side in memory: 1 where the terms of a row lie closer."""
    if not kept.shape:
        return 1
    near = abs(kept.inner_strides[0])
    return kept.shape[-1] if not reduced.shape or 0 < near < abs(reduced.inner_strides[0]) else 1
