"""Launch of elementwise kernels: inputs that broadcast to an output, read and written by vectors where strides allow.

The one way to launch a kernel whose output elements each follow from one element of each input. Its counterpart is
``Unit`` of ``elementwise.cuh``: a thread takes 16 bytes of neighbours where every operand has them side by side and
aligned, or one element that all of them share, else one element. Which of these is a scalar of the launch, so one
kernel serves every extent, stride and alignment. Kernels that need the place of an element beside its bytes (gather,
copies, triangles) take a `gpuexec.ops.lib.strided.Walk` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuexec.ir.command import BUFFER_ALIGNMENT, Kernel, Slot
from gpuexec.ir.geometry import broadcast_strides, ceil_div
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Emitter
from gpuexec.ir.symbolic_int import distinct, memoize
from gpuexec.ops.lib.strided import Walk, join

THREADS = 256  # kThreads of elementwise.cuh
VECTOR_BYTES, VECTOR_LANES = BUFFER_ALIGNMENT, 8  # kWidth of elementwise.cuh
# Shape, strides, bytes of an element, bytes of misalignment.
OperandLayout = tuple[tuple[int, ...], tuple[int, ...], int, int]


def launch_broadcast(
    emit: Emitter,
    kernel: Kernel,
    inputs: Sequence[Slot],
    output: Slot,
    scalars: Sequence[np.generic] = (),
    *,
    between: Sequence[Slot] = (),
    width: int | None = None,
    in_place: bool = True,
) -> None:
    """Launch a kernel built on ``Unit`` of ``elementwise.cuh``.

    Its parameters are the inputs, what stands ``between``, the output, the walk, size, is_vector, and ``scalars``.

    Args:
        emit: Emitter of the launch.
        kernel: The instance.
        inputs: Slots that broadcast to the output.
        output: A slot that is dense in the order of some permutation of its axes.
        scalars: Further parameters, in their exact types.
        between: Slots read as they are, not walked.
        width: Lanes of a unit where it isn't what the element types allow.
        in_place: Whether the output may take the bytes of an input of its shape and type.
    """
    slots = (*inputs, output)
    lanes = vector_width(slots) if width is None else width
    layouts = tuple([(x.shape, x.strides, x.spec.dtype.itemsize, x.offset_bytes % VECTOR_BYTES) for x in slots])
    blocks, packed, count, is_vector = _divide_work(layouts, lanes)
    if in_place:
        for x in distinct(inputs):
            if x.shape == output.shape and x.dtype == output.dtype and (x.is_contiguous or x.strides == output.strides):
                emit.in_place(output, x)
    emit.launch(
        kernel,
        (blocks, 1, 1),
        (THREADS, 1, 1),
        [*inputs, *between, output, packed, count, is_vector, *scalars],
        writes=[len(inputs) + len(between)],
    )


@memoize(4096)
def _divide_work(layouts: tuple[OperandLayout, ...], lanes: int) -> tuple[int, bytes, np.int64, np.int32]:
    """Return blocks, packed walk, size and is_vector; the output's layout is the last.

    Kept, because a model repeats few combinations in many nodes, and is lowered again for each size.
    """
    shape = layouts[-1][0]
    walk = join(shape, [broadcast_strides(own, strides, shape) for own, strides, _, _ in layouts])
    is_vector = lanes > 1 and can_vectorize(walk, [(itemsize, offset) for _, _, itemsize, offset in layouts], lanes)
    units = walk.in_units(lanes) if is_vector else walk
    return max(1, ceil_div(units.count, THREADS)), units.pack(), int64(walk.count), int32(is_vector)


def vector_width(slots: Sequence[Slot]) -> int:
    """Return kWidth of ``elementwise.cuh`` for the element types of the operands."""
    return min(VECTOR_LANES, VECTOR_BYTES // max(slot.dtype.itemsize for slot in slots))


def can_vectorize(walk: Walk, operands: Sequence[tuple[int, int]], width: int) -> bool:
    """Return whether each operand can be read ``width`` neighbours at a time, or is one element along the inner axis.

    Only a walk of one axis may end with a short unit.

    Args:
        walk: Of all operands.
        operands: Bytes of an element, and offset in bytes, of each.
        width: Lanes of a unit.
    """
    if not walk.shape or (len(walk.shape) > 1 and walk.shape[-1] % width):
        return False
    for (itemsize, offset_bytes), strides in zip(operands, walk.strides, strict=True):
        if strides[-1] == 0:
            continue
        if strides[-1] != 1 or offset_bytes % (width * itemsize) or any(stride % width for stride in strides[:-1]):
            return False
    return True
