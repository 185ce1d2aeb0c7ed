"""Reductions such as ReduceSum and ReduceMax, and the launch that other reductions share.

A reduction is a row of a table: name, types, NumPy function, CUDA functor. All share the kernels of
``reduce.cu``: the kept axes are walked as rows, the reduced ones as the terms of a row, in whatever layout the
input has.

Where all axes are reduced there is one row, so it is cut into chunks and folded in a second launch. Otherwise one block
at most works on a row: few rows of very many terms leave a large device idle.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, normalize_axes
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
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
from gpuexec.ir.row_form import RowForm, RowLine
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, work_of
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.epilogue import allow_for_floats
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import MAX_RANK, join
from gpuexec.ops.lib.team import BLOCK_THREADS, RowLoop, choose_walking_team, count_rows, walk_rows
from gpuexec.ops.reduce import reduce_host as host

SOURCE = "reduce.cu"
CHUNK_TERMS = 16384
_FLOATS, _INTEGERS = dtypes_of("float"), dtypes_of("int", "uint")
_WHOLE = tuple(np.dtype(t) for t in (np.uint32, np.uint64, np.int32, np.int64))
_NUMBERS = (*_WHOLE, *_FLOATS)
_ORDERED = (*_NUMBERS, *(np.dtype(t) for t in (np.uint8, np.int8, np.bool_)))


class Finish(IntEnum):
    """Final function of the folded terms; the codes of ``Finish`` in reduce.cu."""

    AS_IS = 0
    MEAN = 1
    ROOT = 2
    LOG = 3


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """Table row of a reduction: ONNX name, CUDA functor and finish, NumPy function, element types.

    ``axes_input_since`` is the opset that made axes an input; ``keeps_single`` says that reducing over no axes gives
    the input; ``widened`` are integers that are reduced as double.
    """

    name: str
    functor: str
    fold: host.Fold
    dtypes: tuple[np.dtype[Any], ...]
    tolerance: Tolerance = Tolerance.REDUCTION
    finish: Finish = Finish.AS_IS
    axes_input_since: int = 18
    keeps_single: bool = False
    widened: tuple[np.dtype[Any], ...] = ()
    derivative: Derivative = Derivative.RULE


@dataclass(frozen=True, slots=True)
class Reduction(Operator):
    """Reduction along axes; along all of them where none are given, unless ``noop_with_empty_axes``.

    A scalar may be reduced along axis 0 or -1, as torch has it and exporters write it: its one element is the one term.
    """

    row: ClassVar[ReductionRow]
    keepdims: int = 1
    noop_with_empty_axes: int = 0
    flops_per_input = 1
    keeps_dtype = True
    has_blits = True
    takes_epilogue = True
    example = "float32[2,3] int64[1]=1"
    format_use = FormatUse.ANY

    def infer(self, x: TensorSpec, axes: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the spec with the reduced axes gone, or of extent 1.

        Raises:
            InputError: A type the operator does not have, or axes out of range.
            NeedsHostValue: The axes are not known.
        """
        x = check_dtype(self.name, x, (*self.row.dtypes, *self.row.widened))
        reduced = self._axes(x.rank, _known_axes(self.name, axes))
        return (x.with_shape(host.reduced_shape(x.shape, reduced, self.keepdims)),)

    def compute(self, x: Array, axes: Array | None = None, *, out: Out = None) -> tuple[Array | None, ...]:
        """Reduce; half and bfloat16 in float, rounded once."""
        reduced = self._axes(x.ndim, axes)
        is_kept = not reduced and self.row.keeps_single  # to the bit: a sum of -0 alone would be 0
        return (x if is_kept else host.fold(self.row.fold, x, reduced, self.keepdims),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what becomes of the elements before they are folded, where it is not they."""
        x, y = inputs[0], outputs[0]
        return [] if x is None or y is None else host.count_scratch(self.row.fold, x, y)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Fold into the output's memory, where the axes never change."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1,))
        if by_content is not None:
            return by_content
        (x, axes), y = (*inputs, None)[:2], out[0]
        if x is None or y is None or not y.size or not y.flags.c_contiguous or (axes is not None and not constant[1]):
            return None
        reduced = self._axes(x.ndim, axes)
        if not reduced and self.row.keeps_single:
            return [functools.partial(np.copyto, y, x)]
        return host.prepare_fold(
            self.row.fold, x, y.reshape(host.reduced_shape(x.shape, reduced, True)), reduced, scratch
        )

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input where nothing happens, else reduce."""
        x, given = (*inputs, None)[:2]
        y = outputs[0]
        assert x is not None and y is not None
        axes = self._axes(x.spec.rank, _known_axes(self.name, None if given is None else given.spec))
        if not axes and self.row.keeps_single:
            emit.alias(y, x)
        else:
            lower_reduction(emit, self.row, x, y, axes)

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel ``reduce`` along the last axes, which are not all."""
        x, given = (*inputs, None)[:2]
        is_known = given is None or given.size == 0 or given.value is not None
        if x is None or x.dtype not in self.row.dtypes or not is_known:
            return None
        axes = self._axes(x.rank, _known_axes(self.name, given))
        first = x.rank - len(axes)
        if not 0 < first < x.rank or axes != tuple(range(first, x.rank)):
            return None
        work = dtype_row(accumulator(x.dtype)).cuda
        fold = f"{self.row.functor}<{work}>"
        line = RowLine(f"{fold}::lift({{0}})", fold, f"{fold}::finish({{p}}, {int(self.row.finish)}, {{columns}})")
        return RowForm(first, (line,), work, x.dtype, read=(1,), is_strided=True)

    def _axes(self, rank: int, given: Array | None) -> tuple[int, ...]:
        if given is None or given.size == 0:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        axes = [int(axis) for axis in given.reshape(-1)]
        if rank == 0 and all(axis in (0, -1) for axis in axes):
            return ()
        return tuple(sorted(normalize_axes(axes, rank)))


ROWS = (
    ReductionRow("ReduceSum", "Sum", host.fold_sum, _NUMBERS, axes_input_since=13, keeps_single=True),
    ReductionRow("ReduceMean", "Sum", host.fold_mean, _NUMBERS, finish=Finish.MEAN, keeps_single=True),
    ReductionRow("ReduceMax", "Max", host.fold_max, _ORDERED, Tolerance.EXACT, keeps_single=True),
    ReductionRow("ReduceMin", "Min", host.fold_min, _ORDERED, Tolerance.EXACT, keeps_single=True),
    ReductionRow("ReduceProd", "Prod", host.fold_prod, _NUMBERS, keeps_single=True, derivative=Derivative.REFUSED),
    ReductionRow("ReduceL1", "SumMagnitude", host.fold_l1, _NUMBERS, derivative=Derivative.PARTS),
    ReductionRow("ReduceL2", "SumSquare", host.fold_l2, _NUMBERS, finish=Finish.ROOT),
    ReductionRow("ReduceSumSquare", "SumSquare", host.fold_sum_square, _NUMBERS, derivative=Derivative.PARTS),
    # Until opset 27 these two took integers.
    ReductionRow("ReduceLogSum", "Sum", host.fold_log_sum, _NUMBERS, finish=Finish.LOG, derivative=Derivative.PARTS),
    ReductionRow("ReduceLogSumExp", "LogSumExp", host.fold_log_sum_exp, _FLOATS, widened=_WHOLE),
)


def _register(row: ReductionRow) -> type[Reduction]:
    body = {
        "__slots__": (),
        "__doc__": f"{row.name}: see `Reduction`.",
        "row": row,
        "tolerance": row.tolerance,
        "derivative": row.derivative,
        "__module__": __name__,
    }
    cls = operator(row.name)(type(row.name, (Reduction,), body))
    upgrade(row.name, below=row.axes_input_since)(_axes_to_input)
    instantiate(SOURCE, [f"{kernel}<{row.functor}<{t}>, {t}>" for t in _cuda_types(row.dtypes) for kernel in _KERNELS])
    return cls


def _axes_to_input(node: RawNode) -> RawNode:
    """Turn the attribute ``axes`` into the second input."""
    if "axes" not in node.attributes:
        return node
    return node.with_input(1, np.array(node.attributes["axes"], np.int64)).without("axes")


def _cuda_types(dtypes: Sequence[np.dtype[Any]]) -> list[str]:
    return [dtype_row(dtype).cuda for dtype in dtypes]


_KERNELS = ("reduce", "reduce_chunks", "reduce_partials")
_FINISHING = ("reduce", "reduce_partials")
allow_for_floats(SOURCE, *[f"{kernel}<{row.functor}<{{t}}>, {{t}}>" for row in ROWS for kernel in _FINISHING])
REDUCTIONS = {row.name: _register(row) for row in ROWS}
globals().update(REDUCTIONS)  # so that each class is found where its __module__ says


def _known_axes(name: str, axes: TensorSpec | None) -> Array | None:
    """Return the content of the axes input; nothing is read where it is absent or empty."""
    if axes is not None:
        check_dtype(name, axes, _INTEGERS, "axes")
    if axes is None or axes.size == 0:
        return None
    return require_const(axes, "axes", 1)


def lower_reduction(emit: Emitter, row: ReductionRow, x: Slot, y: Slot, axes: tuple[int, ...]) -> None:
    """Launch a reduction of ``x`` along ``axes``: in chunks where all are reduced, else a team of threads per row."""
    if x.dtype in row.widened:
        wide, result = emit.temp(x.shape, np.float64), emit.temp(y.shape, np.float64)
        convert_commands(emit, wide, x)
        lower_reduction(emit, row, wide, result, axes)
        convert_commands(emit, y, result)
        return
    cuda = dtype_row(x.dtype).cuda
    instance = f"<{row.functor}<{cuda}>, {cuda}>"
    finish = int32(row.finish)
    if not axes or len(axes) < x.spec.rank:
        launch_rows(emit, f"reduce{instance}", x, y, axes, (finish,))
        return
    terms = join(x.shape, (x.strides,))
    chunks = max(1, ceil_div(terms.count, CHUNK_TERMS))
    fields = 2 if row.functor == "LogSumExp" else 1  # SoftmaxState is a pair
    partials = emit.temp((chunks, fields), accumulator(x.dtype))
    arguments: list[Argument] = [x, partials, terms.pack(), int64(CHUNK_TERMS)]
    emit.launch(
        Kernel(SOURCE, f"reduce_chunks{instance}"), (chunks, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=[1]
    )
    arguments = [partials, y, int64(chunks), int64(terms.count), finish]
    emit.launch(Kernel(SOURCE, f"reduce_partials{instance}"), (1, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


def launch_rows(
    emit: Emitter, kernel: str, x: Slot, y: Slot, axes: tuple[int, ...], scalars: Sequence[Argument]
) -> None:
    """Launch a kernel that gives each row of kept axes to a team of threads."""
    kept, reduced = walk_rows(x, axes)
    if len(kept.shape) > MAX_RANK:
        x = emit.contiguous(x)
        kept, reduced = walk_rows(x, axes)
    team = choose_walking_team(kept, reduced)
    arguments: list[Argument] = [x, y, kept.pack(), reduced.pack(), *team.arguments(), *scalars]
    emit.launch(Kernel(SOURCE, kernel), team.grid(kept.count), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


_LOOP = RowLoop(around=150, each=7, held=0, flops=1)


@work_of(SOURCE, "reduce", "find_extremum", "lp_norm")
def _count_reduce(launch: Launch) -> Work:
    x, reduced, lanes = launch.arguments[0], launch.arguments[3], launch.arguments[4]
    assert isinstance(x, Slot) and isinstance(reduced, bytes) and isinstance(lanes, np.integer)
    (terms,) = struct.unpack_from("<q", reduced)
    return count_rows(launch, terms, int(lanes), _LOOP, flops=x.spec.size)


@work_of(SOURCE, "reduce_chunks", "reduce_partials")
def _count_chunks(launch: Launch) -> Work:
    x = launch.arguments[0]
    assert isinstance(x, Slot)
    terms = ceil_div(x.spec.size, launch.grid[0])
    return count_rows(launch, terms, BLOCK_THREADS, _LOOP, flops=x.spec.size)
