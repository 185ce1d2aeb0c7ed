"""Launches of matrix products: strided and batched operands, alpha, beta and an addend.

A product of float takes tiles of ``simt_gemm.cu``, or up to eight rows at once of ``gemv.cu``; which, is decided for a
size class (`gpuexec.ops.lib.slices`); so does one of float with narrow weights. One of half or bf16 takes tiles of
``mma_gemm.cu``, on tensor cores, from sm_80 on, be its result of that type or float; so does one of float whose
operands are rounded to tf32, where they lie along the inner extent or can be packed so, and one of half or bf16 with
weights of int8 (``mma_narrow.cu``), be its result of that type or float. Other types, older architectures, extents that
32 bits don't hold, and narrow weights with scales along the inner extent take ``matmul.cu``, where a block makes a tile
of 64 x 64, or of 4 x 8 where there are few rows. A product with few columns is made as that of the transposed, but for
narrow weights, which are always the right operand.
"""

from __future__ import annotations

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Emitter
from gpuexec.ir.precision import REFERENCE, TF32
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import dtype_row, dtypes_of
from gpuexec.ir.weight_forms import Converted
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.epilogue import allow_epilogue, allow_for_floats
from gpuexec.ops.lib.posing import pose_product
from gpuexec.ops.linalg.mma_launch import has_mma, launch_mma, launch_mma_narrow, multiplies, take_lines, take_tf32
from gpuexec.ops.linalg.product import MAX_BATCH_AXES, Product, fits_extents, turn_few
from gpuexec.ops.linalg.simt_launch import launch_simt
from gpuexec.ops.quant.narrow_weight import NARROW_TYPES, PAIRS, NarrowWeight, name_types

DTYPES = (*dtypes_of("float"), *(np.dtype(t) for t in (np.int32, np.int64, np.uint32, np.uint64)))
TILE = 64  # rows and columns of a block; kTile of tile.cuh
FEW_ROWS, FEW_COLUMNS = 4, 8  # kFewRows and kFewColumns of matmul.cu
_FLOAT = np.dtype(np.float32)

instantiate("matmul.cu", [f"gemm<{dtype_row(dtype).cuda}>" for dtype in DTYPES])
instantiate("matmul.cu", [f"gemm_narrow<{types}>" for types in NARROW_TYPES])
allow_for_floats("matmul.cu", "gemm<{t}>", stores_others=False)
for _wide, _narrow in PAIRS:
    allow_epilogue(_wide, [Kernel("matmul.cu", f"gemm_narrow<{name_types(_wide, _narrow)}>")])


def launch_gemm(
    emit: Emitter,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    extents: tuple[int, int, int],
    strides: tuple[int, ...],
    *,
    scale: tuple[float, float] = (1.0, 1.0),
    batch: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] = ((), ((), (), ())),
    y_column: int = 1,
    narrow: NarrowWeight | None = None,
    scale_steps: tuple[int, int] = (0, 0),
    precision: str = "",
) -> bool:
    """Launch ``y = alpha * a @ b + beta * c`` over batches.

    Args:
        emit: Emitter of the launch.
        slots: a, b, c (or None), y; only their first elements and types count.
        extents: Rows, columns and the inner extent of one product.
        strides: a by row and inner, b by inner and column, c by row and column, y by row.
        scale: alpha, beta.
        batch: Extents of the batch axes, and the strides of a, b and y along them.
        y_column: The stride of y by column.
        narrow: The scales of b, where it is narrow.
        scale_steps: Their strides along the inner extent and the columns.
        precision: Of products of float: ``"reference"``, added in the order of the inner extent, by one thread each;
            ``"tf32"``, whose operands are rounded to that; any other.

    Returns:
        Whether it was launched: not where a is of 16 bits, b narrow and y float, and tensor cores don't take them.

    Raises:
        InputError: More batch axes than the kernel's table holds.
    """
    batch_extents, walks = batch
    if len(batch_extents) > MAX_BATCH_AXES:
        raise InputError(f"MatMul expects batch axes that join to at most {MAX_BATCH_AXES}, got {len(batch_extents)}.")
    a_row, a_inner, b_inner, b_column, c_row, c_column, y_row = strides
    product = Product(
        slots, extents, (a_row, a_inner), (b_inner, b_column), (c_row, c_column), (y_row, y_column), scale,
        batch_extents, walks,
    )  # fmt: skip
    if narrow is not None:
        is_mixed = emit.target.has_kernels and slots[0].dtype != slots[3].dtype
        lines = take_lines(emit, product, scale_steps[0]) if is_mixed else None
        if lines is not None:
            launch_mma_narrow(emit, lines, narrow, scale_steps[1])
        elif not is_mixed:
            _launch_kernels(emit, product, narrow, scale_steps, precision)
        return lines is not None or not is_mixed
    emit.provide(
        lambda: _pose(emit, product, precision),
        lambda: _launch_kernels(emit, product, None, scale_steps, precision),
        keeps_order=precision == REFERENCE,
    )
    return True


def _pose(emit: Emitter, product: Product, precision: str) -> Posed:
    """Return the problem that a product is to a library."""
    is_bias = bool(emit.choose(product.slots[2] is not None and product.c[0] == 0))
    strides = (product.a, product.b, product.c, product.y)
    return pose_product(
        product.slots, product.extents, strides, product.scale, product.batch, product.walks, precision, is_bias=is_bias
    )


def _launch_kernels(
    emit: Emitter, product: Product, narrow: NarrowWeight | None, scale_steps: tuple[int, int], precision: str
) -> None:
    """Launch a product by our kernels."""
    has_kernels = emit.target.has_kernels and not emit.target.has_textures
    if narrow is None and has_mma(emit, product):
        launch_mma(emit, product)
    elif narrow is None and precision == TF32 and (along_k := take_tf32(emit, product)) is not None:
        launch_mma(emit, along_k)
    elif has_kernels and product.slots[3].dtype == _FLOAT and not scale_steps[0]:
        left = launch_simt(emit, product, narrow, scale_steps[1], keeps_order=precision == REFERENCE)
        if left is not None:
            _launch_any(emit, left, narrow, scale_steps)
    elif narrow is not None and (lines := take_lines(emit, product, scale_steps[0])) is not None:
        launch_mma_narrow(emit, lines, narrow, scale_steps[1])
    elif narrow is not None:
        _launch_any(emit, product, narrow, scale_steps)
    else:
        _launch_any(emit, turn_few(product, FEW_ROWS))


def take_operands(emit: Emitter, y: Slot, a: Slot, b: Slot, *, is_narrow: bool = False) -> tuple[Slot, Slot]:
    """Return operands in a type that a kernel multiplies into ``y``: narrower ones are widened, a weight once for all.

    Tensor cores multiply what is narrow as it is.

    Args:
        emit: Emitter of the launches.
        y: The product.
        a: Left operand.
        b: Right operand.
        is_narrow: Whether b is widened while it is read.
    """
    if not emit.target.has_kernels:
        return a, b
    if multiplies(emit.target, y.dtype, a.dtype, b.dtype) and emit.choose(
        fits_extents(*[each.spec.size for each in (a, b, y)])
    ):
        return a, b
    return widen_operand(emit, a, y), b if is_narrow else widen_operand(emit, b, y)


def widen_operand(emit: Emitter, slot: Slot, y: Slot) -> Slot:
    """Return an operand in the type of ``y``: a weight is converted once for all, others by a launch."""
    if slot.dtype == y.dtype:
        return slot
    packed = emit.packed(slot, Converted(dtype_row(y.dtype).code))
    if packed is not None:
        return packed
    wide = emit.temp(slot.shape, y.dtype)
    convert_commands(emit, wide, slot)
    return wide


def _launch_any(
    emit: Emitter, product: Product, narrow: NarrowWeight | None = None, scale_steps: tuple[int, int] = (0, 0)
) -> None:
    """Launch a product of any type and strides, b perhaps narrow."""
    b, y = product.slots[1], product.slots[3]
    kernel = Kernel("matmul.cu", f"gemm<{dtype_row(y.dtype).cuda}>")
    arguments: list[Argument] = [*product.slots, product.pack()]
    if narrow is not None:
        kernel = Kernel("matmul.cu", f"gemm_narrow<{name_types(y.dtype, b.dtype)}>")
        arguments += [*narrow.dense(emit), pack_struct("<2q", *scale_steps)]
    grid = (count_tiles(*product.extents[:2]) * product.count, 1, 1)
    emit.launch(kernel, grid, (256, 1, 1), arguments, writes=[3])


def count_tiles(rows: int, columns: int) -> int:
    """Return the number of blocks of one product."""
    return ceil_div(rows, TILE) * ceil_div(columns, FEW_COLUMNS if rows <= FEW_ROWS else TILE)
