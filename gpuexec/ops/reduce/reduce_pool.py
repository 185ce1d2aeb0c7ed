"""GlobalAveragePool, GlobalMaxPool, GlobalLpPool: reductions over the spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
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
)
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.elementwise.epilogue import allow_for_floats
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.reduce import reduce_host as host
from gpuexec.ops.reduce.reduce import SOURCE, Finish, launch_rows

_FLOATS = dtypes_of("float")


@dataclass(frozen=True, slots=True)
class GlobalPool(Operator):
    """Reduction of everything after batch and channel to extent 1."""

    _fold: ClassVar[Callable[..., Array]]
    _kernel: ClassVar[Callable[..., tuple[Any, ...]]]  # CUDA type -> name expression, then the scalars after the team's
    flops_per_input = 1
    keeps_dtype = True
    has_blits = True
    takes_epilogue = True
    format_use = FormatUse.ANY

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[n, channels, 1, ...]``.

        Raises:
            InputError: Not a float type, or a rank below 2.
        """
        x = check_dtype(self.name, x, _FLOATS)
        if x.rank < 2:
            raise InputError(f"{self.name} expects an input of rank 2 or more, [n, channels, ...], got {x}.")
        return (x.with_shape(host.reduced_shape(x.shape, _spatial(x.rank), True)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Reduce the spatial axes; half and bfloat16 in float, rounded once."""
        return (host.fold(self._fold, x, _spatial(x.ndim), True),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Reduce the spatial axes by a team of threads per channel."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        kernel, *scalars = self._kernel(dtype_row(x.dtype).cuda)
        launch_rows(emit, kernel, x, y, _spatial(x.spec.rank), scalars)


@operator("GlobalAveragePool")
@dataclass(frozen=True, slots=True)
class GlobalAveragePool(GlobalPool):
    """Mean over space."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    derivative = Derivative.PARTS

    def _fold(self, x: Array, axes: tuple[int, ...]) -> Array:
        return host.fold_mean(x, axes)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Add up in the output, and divide there, where it is of the type of the sums."""
        x, y = inputs[0], out[0]
        if x is None or y is None or not y.size or accumulator(y.dtype) != y.dtype or not x.flags.c_contiguous:
            return None  # sums of other layouts depend on where they go
        axes = _spatial(x.ndim)
        add = partial(np.add.reduce, x, axis=axes, dtype=x.dtype, out=y, keepdims=True)
        return [add, partial(np.divide, y, y.dtype.type(prod(x.shape[2:])), out=y)]

    def _kernel(self, cuda: str) -> tuple[Any, ...]:
        return f"reduce<Sum<{cuda}>, {cuda}>", int32(Finish.MEAN)


@operator("GlobalMaxPool")
@dataclass(frozen=True, slots=True)
class GlobalMaxPool(GlobalPool):
    """Maximum over space; NaN wins."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    derivative = Derivative.PARTS

    def _fold(self, x: Array, axes: tuple[int, ...]) -> Array:
        return host.fold_max(x, axes)

    def _kernel(self, cuda: str) -> tuple[Any, ...]:
        return f"reduce<Max<{cuda}>, {cuda}>", int32(Finish.AS_IS)


@operator("GlobalLpPool")
@dataclass(frozen=True, slots=True)
class GlobalLpPool(GlobalPool):
    """p-norm over space."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    p: int = 2

    def _fold(self, x: Array, axes: tuple[int, ...]) -> Array:
        p = x.dtype.type(self.p)
        return np.asarray(host.fold_sum(np.abs(x) ** p, axes) ** (x.dtype.type(1) / p))

    def _kernel(self, cuda: str) -> tuple[Any, ...]:
        return f"lp_norm<{cuda}>", np.float32(self.p)


def _spatial(rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank))


instantiate(SOURCE, [f"lp_norm<{dtype_row(dtype).cuda}>" for dtype in _FLOATS])
allow_for_floats(SOURCE, "lp_norm<{t}>")
