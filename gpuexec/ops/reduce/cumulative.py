"""CumSum and CumProd: running sums and products along one axis of a dense tensor, one row per team of threads.

The team walks its row in tiles: each lane folds its ``items`` neighbours, the lanes are scanned, and what the tile
comes to is carried into the next. A row is worked on by one block at most, so one very long row leaves a large device
idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team
from gpuexec.ops.tensor.layout import read_ints

# Integers wrap, so their unsigned type serves both.
_INTEGERS = {"int32": "u32", "uint32": "u32", "int64": "u64", "uint64": "u64"}
_TYPES = {dtype_row(name).numpy: cuda for name, cuda in _INTEGERS.items()}
_TYPES |= {dtype: dtype_row(dtype).cuda for dtype in dtypes_of("float")}
_MAX_ITEMS = 16  # kMaxItems of cumulative.cu
instantiate(
    "cumulative.cu",
    [f"cumulative<{functor}, {cuda}>" for functor in ("Sum", "Product") for cuda in dict.fromkeys(_TYPES.values())],
)


@dataclass(frozen=True, slots=True)
class Cumulative(Operator):
    """Base of CumSum and CumProd; each names its functor, NumPy's function and the result of an empty row."""

    exclusive: int = 0
    reverse: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    functor: ClassVar[str]
    function: ClassVar[np.ufunc]
    identity: ClassVar[int]
    flops_per_input = 1
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec, axis: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        check_dtype(self.name, x, tuple(_TYPES))
        self._choose_axis(require_ints(axis, "axis", 1), x.rank)
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, axis: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Accumulate with NumPy; half and bfloat16 in float, rounded once."""
        along = self._choose_axis(read_ints(axis), x.ndim)
        wide = x.astype(accumulator(x.dtype), copy=False)
        wide = np.flip(wide, along) if self.reverse else wide
        with np.errstate(all="ignore"):
            folds = self.function.accumulate(wide, along, dtype=wide.dtype)
            if self.exclusive:
                inclusive, folds = folds, np.full_like(folds, self.identity)
                np.moveaxis(folds, along, 0)[1:] = np.moveaxis(inclusive, along, 0)[:-1]
            return ((np.flip(folds, along) if self.reverse else folds).astype(x.dtype, copy=False),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Accumulate into the output, where the axis never changes."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1,))
        if by_content is not None:
            return by_content
        (x, axis), (y,) = inputs, out
        if x is None or axis is None or y is None or not x.size or not constant[1] or accumulator(x.dtype) != x.dtype:
            return None
        along = self._choose_axis(read_ints(axis), x.ndim)
        terms, folds = (np.flip(each, along) if self.reverse else each for each in (x, y))
        calls: list[Callable[[], object]] = []
        if self.exclusive:
            first, folds = np.moveaxis(folds, along, 0)[:1], np.moveaxis(np.moveaxis(folds, along, 0)[1:], 0, along)
            terms = np.moveaxis(np.moveaxis(terms, along, 0)[:-1], 0, along)
            calls.append(partial(first.fill, self.identity))
        calls.append(partial(self.function.accumulate, terms, along, x.dtype, folds))
        return calls

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, axis, y = inputs[0], inputs[1], outputs[0]
        assert x is not None and axis is not None and y is not None
        along = self._choose_axis(require_ints(axis.spec, "axis", 1), x.spec.rank)
        columns, inner = x.shape[along], prod(x.shape[along + 1 :])
        rows = prod(x.shape[:along]) * inner
        team = choose_team(columns, rows, inner)
        items = min(_MAX_ITEMS, max(1, ceil_div(columns, team.lanes)))
        arguments: list[Argument] = [emit.contiguous(x), y, int64(rows), int64(columns), int64(inner)]
        arguments += [*team.arguments(), int32(items), int32(self.exclusive), int32(self.reverse)]
        kernel = Kernel("cumulative.cu", f"cumulative<{self.functor}, {_TYPES[x.dtype]}>")
        emit.launch(kernel, team.grid(rows), (BLOCK_THREADS, 1, 1), arguments, writes=[1])

    def _choose_axis(self, given: tuple[int, ...], rank: int) -> int:
        if len(given) != 1:
            raise InputError(f"{self.name} expects one axis, got {list(given)}.")
        return normalize_axis(given[0], rank)


@operator("CumSum")
@dataclass(frozen=True, slots=True)
class CumSum(Cumulative):
    """``y[i] = x[0] + ... + x[i]`` along ``axis``; without ``x[i]`` if ``exclusive``, from the end if ``reverse``."""

    functor: ClassVar[str] = "Sum"
    function: ClassVar[np.ufunc] = np.add
    identity: ClassVar[int] = 0
    derivative = Derivative.RULE


@operator("CumProd")
@dataclass(frozen=True, slots=True)
class CumProd(Cumulative):
    """``y[i] = x[0] * ... * x[i]`` along ``axis``; without ``x[i]`` if ``exclusive``, from the end if ``reverse``."""

    functor: ClassVar[str] = "Product"
    function: ClassVar[np.ufunc] = np.multiply
    identity: ClassVar[int] = 1
