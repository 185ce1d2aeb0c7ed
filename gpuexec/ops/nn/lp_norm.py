"""LpNormalization along one axis, one row per team of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, read_int, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import is_plain
from gpuexec.ops.lib.team import BLOCK_THREADS, RowLoop, choose_team, count_rows

_SOURCE = "lp_norm.cu"
_FLOATS = dtypes_of("float")
instantiate(_SOURCE, [f"normalize_lp<{dtype_row(dtype).cuda}>" for dtype in _FLOATS])


@operator("LpNormalization")
@dataclass(frozen=True, slots=True)
class LpNormalization(Operator):
    """Division by the 1-norm or the 2-norm along ``axis``; 0 where the norm is 0."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    axis: int = -1
    p: int = 2
    flops_per_output = 7  # sum, difference, square, sum, product, scale, shift
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Not a float type, an axis out of range, or ``p`` is neither 1 nor 2.
        """
        x = check_dtype(self.name, x, _FLOATS)
        normalize_axis(self.axis, x.rank)
        if self.p not in (1, 2):
            raise InputError(f"{self.name} expects p 1 or 2, got {self.p}.")
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Divide with NumPy; half and bfloat16 in float, rounded once."""
        wide = x.astype(accumulator(x.dtype), copy=False)
        with np.errstate(all="ignore"):
            powers = np.abs(wide) if self.p == 1 else np.square(wide)
            total = np.add.reduce(powers, axis=self.axis, keepdims=True)
            norm = total if self.p == 1 else np.sqrt(total)
            y = np.divide(wide, norm, out=powers)
            np.copyto(y, 0, where=norm == 0)
            return (y.astype(x.dtype, copy=False),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count a norm of each row, and whether it is 0."""
        x = inputs[0]
        rows = 0 if x is None else x.size // max(1, x.shape[normalize_axis(self.axis, x.rank)])
        return [] if x is None else [rows * x.dtype.itemsize, rows]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Work in the output's memory."""
        x, y = inputs[0], out[0]
        if not is_plain(x) or not is_plain(y, x.dtype) or not scratch:
            return None
        axis = normalize_axis(self.axis, x.ndim)
        rows = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        norm, is_zero = view_bytes(scratch[0], rows, x.dtype), view_bytes(scratch[1], rows, np.dtype(np.bool_))
        return [
            partial(np.abs if self.p == 1 else np.square, x, out=y),
            partial(np.add.reduce, y, axis, None, norm, True),
            *([] if self.p == 1 else [partial(np.sqrt, norm, out=norm)]),
            partial(np.divide, x, norm, out=y),
            partial(np.equal, norm, np.zeros((), x.dtype), out=is_zero),
            partial(np.copyto, y, np.zeros((), x.dtype), "same_kind", is_zero),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        axis = normalize_axis(self.axis, x.spec.rank)
        rows, inner = prod(x.shape[:axis]) * prod(x.shape[axis + 1 :]), prod(x.shape[axis + 1 :])
        team = choose_team(x.shape[axis], rows, inner)
        sizes = (int64(rows), int64(x.shape[axis]), int64(inner))
        arguments: list[Argument] = [emit.contiguous(x), y, *sizes, *team.arguments(), int32(self.p)]
        kernel = Kernel(_SOURCE, f"normalize_lp<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, team.grid(rows), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


_LOOP = RowLoop(around=180, each=31, held=0, flops=4, folds=2)


@work_of(_SOURCE, "normalize_lp")
def _count_normalization(launch: Launch) -> Work:
    return count_rows(launch, read_int(launch.arguments[3]), read_int(launch.arguments[5]), _LOOP)
