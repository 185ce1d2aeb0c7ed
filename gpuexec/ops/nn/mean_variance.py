"""MeanVarianceNormalization over any axes, in any layout of the input."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch
from gpuexec.ir.geometry import coalesce, normalize_axes
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, read_int, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import Walk
from gpuexec.ops.lib.team import BLOCK_THREADS, RowLoop, choose_team, count_rows

_SOURCE = "mean_variance.cu"
_FLOATS = dtypes_of("float")
_EPSILON = 1e-9

instantiate(_SOURCE, [f"normalize_mean_variance<{dtype_row(dtype).cuda}>" for dtype in _FLOATS])


@operator("MeanVarianceNormalization")
@dataclass(frozen=True, slots=True)
class MeanVarianceNormalization(Operator):
    """``(x - mean) / (sqrt(variance) + 1e-9)`` over ``axes``; over all of them where none are given."""

    axes: tuple[int, ...] = (0, 2, 3)
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Not a float type, or axes out of range.
        """
        x = check_dtype(self.name, x, _FLOATS)
        self._axes(x.rank)
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Normalise with NumPy; half and bfloat16 in float, rounded once."""
        axes = self._axes(x.ndim)
        wide = x.astype(accumulator(x.dtype), copy=False)
        if not x.size:
            return (wide.astype(x.dtype),)
        with np.errstate(all="ignore"):
            y = wide - wide.mean(axis=axes, keepdims=True)
            y /= np.sqrt(np.square(y).mean(axis=axes, keepdims=True)) + wide.dtype.type(_EPSILON)
            return (np.asarray(y).astype(x.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        axes = self._axes(x.spec.rank)

        def walk(chosen: list[int]) -> Walk:
            shape, strides = coalesce([y.shape[a] for a in chosen], [[s.strides[a] for a in chosen] for s in (x, y)])
            return Walk(shape, strides)

        kept, reduced = walk([axis for axis in range(x.spec.rank) if axis not in axes]), walk(list(axes))
        near, far = abs(kept.inner_strides[0]), abs(reduced.inner_strides[0])
        team = choose_team(reduced.count, kept.count, kept.shape[-1] if kept.shape and 0 < near < far else 1)
        arguments: list[Argument] = [x, y, kept.pack(), reduced.pack(), *team.arguments()]
        kernel = Kernel(_SOURCE, f"normalize_mean_variance<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, team.grid(kept.count), (BLOCK_THREADS, 1, 1), arguments, writes=[1])

    def _axes(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted(normalize_axes(self.axes, rank))) if self.axes else tuple(range(rank))


_LOOP = RowLoop(around=250, each=90, held=0, flops=6, folds=3)


@work_of(_SOURCE, "normalize_mean_variance")
def _count_normalization(launch: Launch) -> Work:
    reduced = launch.arguments[3]
    assert isinstance(reduced, bytes)
    return count_rows(launch, struct.unpack_from("<q", reduced)[0], read_int(launch.arguments[4]), _LOOP)
