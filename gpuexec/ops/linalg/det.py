"""Det: determinants by Gaussian elimination in double, one block per matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, coalesce
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, read_int, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import Walk
from gpuexec.ops.lib.team import BLOCK_THREADS

_SOURCE = "det.cu"
_FLOATS = dtypes_of("float")
SHARED_SIDE = 64  # kSharedSide of det.cu
_MAX_BLOCKS, _MAX_BLOCKS_IN_SCRATCH = 1024, 512

instantiate(_SOURCE, [f"det<{dtype_row(dtype).cuda}>" for dtype in _FLOATS])


@operator("Det")
@dataclass(frozen=True, slots=True)
class Det(Operator):
    """The determinant of each matrix of ``[..., n, n]``; 1 where n is 0.

    With an infinity or a NaN in a matrix it depends on the order of elimination, of which LAPACK has another than the
    kernel.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return a number for each matrix.

        Raises:
            InputError: Not a float type, or the last two axes are no square.
        """
        x = check_dtype("Det", x, _FLOATS)
        if x.rank < 2 or x.shape[-1] != x.shape[-2]:
            raise InputError(f"Det expects square matrices, [..., n, n], got {x}.")
        return (x.with_shape(x.shape[:-2]),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compute with NumPy, in double."""
        with np.errstate(all="ignore"):
            return (np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once, a block per matrix."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        shape, (strides,) = coalesce(x.shape[:-2], (x.strides[:-2],))
        matrices, n = Walk(shape, (strides,)), x.shape[-1]
        is_shared = n <= SHARED_SIDE
        blocks = max(1, min(matrices.count, _MAX_BLOCKS if is_shared else _MAX_BLOCKS_IN_SCRATCH))
        scratch = None if is_shared else emit.temp((blocks, n, n), np.float64)
        arguments: list[Argument] = [x, y, scratch, matrices.pack(), *map(np.int64, (n, *x.strides[-2:]))]
        writes = [1] if scratch is None else [1, 2]
        kernel = Kernel(_SOURCE, f"det<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, (blocks, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=writes)


# Instructions of a thread: of a step, and for an element that it changes; threads along a side; waits of a step.
_EACH_STEP, _EACH_ELEMENT, _BLOCK_SIDE, _STEP_BARRIERS = 180, 12, 16, 5


@work_of(_SOURCE, "det")
def _count_det(launch: Launch) -> Work:
    x, y, scratch = launch.arguments[:3]
    assert isinstance(x, Slot) and isinstance(y, Slot)
    side, matrices, blocks = read_int(launch.arguments[4]), y.spec.size, launch.grid[0]
    changed = sum((side - step - 1) ** 2 for step in range(side))  # elements of a matrix, over all steps
    own = sum(ceil_div(side - step - 1, _BLOCK_SIDE) ** 2 for step in range(side))
    of_matrix = side * _EACH_STEP + own * _EACH_ELEMENT
    doubles, in_turn = 2 * matrices * changed, ceil_div(matrices, blocks)
    is_shared = not isinstance(scratch, Slot)
    return Work(
        flops=doubles,
        instructions=matrices * (BLOCK_THREADS // 32) * of_matrix,
        doubles=doubles / 32,
        wavefronts=matrices * changed * 6 / 32 if is_shared else 0,
        l2_nbytes=count_slot_bytes(x) + y.spec.nbytes + (0 if is_shared else 16 * matrices * changed),
        rounds=in_turn * (1 if is_shared else side * 3 + own),
        barriers=in_turn * side * _STEP_BARRIERS,
        shared_nbytes=32896,
    )
