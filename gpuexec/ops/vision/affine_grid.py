"""AffineGrid: a grid of sampling positions for GridSample, from an affine matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.tensor.layout import read_ints

SOURCE = "affine_grid.cu"
FLOATS = dtypes_of("float")
_THREADS = 256  # kThreads of affine_grid.cu
_LIMIT = 2**53  # so that twice an extent is exact in double

instantiate(SOURCE, [f"affine_grid<{dtype_row(dtype).cuda}>" for dtype in FLOATS])


@operator("AffineGrid")
@dataclass(frozen=True, slots=True)
class AffineGrid(Operator):
    """Positions of the elements of a plane or volume, from -1 to 1, each transformed by ``theta[n]``.

    With ``align_corners`` -1 and 1 are the middles of the outermost elements, else their edges; an axis of one element
    has it at 0. Positions are named from the innermost axis.
    """

    align_corners: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[2,2,3] int64[4]=2,3,4,5"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, theta: TensorSpec, size: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[batch, extents..., axes]``.

        Raises:
            InputError: Type, rank or sizes do not fit.
            NeedsHostValue: The size is not known.
        """
        check_dtype(self.name, theta, FLOATS, "theta")
        return (theta.with_shape(_grid_shape(theta.shape, require_ints(size, "size", 1))),)

    def compute(self, theta: Array, size: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Multiply and add, axis by axis; half and bfloat16 in float, rounded once."""
        shape = _grid_shape(theta.shape, read_ints(size))
        axes, acc = shape[-1], accumulator(theta.dtype)
        matrix = theta.astype(acc).reshape(shape[0], *(1,) * axes, axes, axes + 1)
        with np.errstate(all="ignore"):
            total: Array | None = None
            for k in range(axes):
                positions = self._find_positions(shape[axes - k], acc).reshape(-1, *(1,) * (k + 1))
                part = matrix[..., k] * positions
                total = part if total is None else total + part
            assert total is not None
            return (np.broadcast_to(total + matrix[..., axes], shape).astype(theta.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element of the grid."""
        theta, y = inputs[0], outputs[0]
        assert theta is not None and y is not None
        axes, extents = y.shape[-1], y.shape[1:-1]
        divisors = [max(1, extent) for extent in (axes, *extents[::-1], *(1,) * (3 - axes))]
        packed = pack_struct("<q", y.spec.size) + join_bytes(map(pack_fast_div64, divisors))
        emit.launch(
            Kernel(SOURCE, f"affine_grid<{dtype_row(theta.dtype).cuda}>"),
            (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [emit.contiguous(theta), y, packed + pack_struct("<2i", axes, int(self.align_corners != 0))],
            writes=[1],
        )

    def _find_positions(self, extent: int, acc: np.dtype[Any]) -> Array:
        """Return where the elements of an axis lie."""
        last = extent - 1 if self.align_corners else extent
        twice = 2 * np.arange(extent, dtype=np.int64) - (extent - 1)
        return np.zeros(extent, acc) if last == 0 else twice.astype(acc) / acc.type(last)


def _grid_shape(theta: tuple[int, ...], size: tuple[int, ...]) -> tuple[int, ...]:
    axes = len(size) - 2
    if axes not in (2, 3) or theta != (size[0], axes, axes + 1):
        raise InputError(
            f"AffineGrid expects a size [batch, channels, height, width] and theta [batch, 2, 3], or one more of each "
            f"with a depth, got size {list(size)} and theta {list(theta)}."
        )
    if min(size) < 0 or max(size) >= _LIMIT:
        raise InputError(f"AffineGrid expects sizes of 0 or more, got {list(size)}.")
    return (size[0], *size[2:], axes)
