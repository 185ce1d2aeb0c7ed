"""Integer matrix products: MatMulInteger, QLinearMatMul.

One kernel serves both, signed and unsigned bytes alike, and what is built on them in other domains: tiles of four
products an instruction, operands by strides. Scales and zero points are of a whole operand, or of each row of the left
and each column of the right one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import broadcast, broadcast_strides, ceil_div, coalesce, contiguous_strides
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import Work, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.linalg.exact_product import drop_axes, multiply_exactly
from gpuexec.ops.linalg.float8_matmul import has_float8, infer_float8, launch_float8, multiply_float8
from gpuexec.ops.linalg.matmul_launch import TILE
from gpuexec.ops.linalg.matmul_work import describe_byte_product
from gpuexec.ops.quant.integer import (
    FLOAT,
    INT32,
    SCALES,
    Quantized,
    check_bytes,
    multiply_scales,
    offset_of,
    pack_finish,
    requantize,
)
from gpuexec.ops.quant.integer_quants import add_axes, align_quant, check_quant, quant_strides, view_quant

FEW_ROWS, FEW_COLUMNS = 4, 8  # kFewRows and kFewColumns of integer_matmul.cu
MAX_BATCH_AXES = 8  # kMaxBatchAxes of integer_matmul.cu
HALF: np.dtype[Any] = np.dtype(np.float16)
_STORED = {np.dtype(np.int8): "u8", np.dtype(np.uint8): "u8", INT32: "i32", FLOAT: "float", HALF: "half"}

instantiate("integer_matmul.cu", [f"integer_gemm<{cuda}>" for cuda in dict.fromkeys(_STORED.values())])


@operator("MatMulInteger")
@dataclass(frozen=True, slots=True)
class MatMulInteger(Operator):
    """``(A - a_zero_point) @ (B - b_zero_point)`` in int32; batches and 1-D operands as in MatMul."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    uses_all_cores: ClassVar[bool] = True
    flops_per_output = None
    has_blits = False

    def infer(
        self,
        a: TensorSpec | None,
        b: TensorSpec | None,
        a_zero: TensorSpec | None = None,
        b_zero: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: Types, extents or zero points do not fit.
        """
        return (TensorSpec(check_product(self.name, Quantized(a, None, a_zero), Quantized(b, None, b_zero)), INT32),)

    def compute(
        self, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Multiply exactly; sums wrap."""
        return (multiply_integers(Quantized(a, None, a_zero), Quantized(b, None, b_zero)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel once, over all batches."""
        a, b, a_zero, b_zero = (*inputs, None, None)[:4]
        launch_integer_gemm(emit, Quantized(a, None, a_zero), Quantized(b, None, b_zero), Quantized(outputs[0]))


@operator("QLinearMatMul")
@dataclass(frozen=True, slots=True)
class QLinearMatMul(Operator):
    """A product of quantised matrices, quantised again: ``round(sum * (a_scale * b_scale / y_scale)) + y_zero_point``.

    The sum is of ``(a - a_zero_point) * (b - b_zero_point)``; halves are rounded to even, the result saturates. With
    floats of 8 bits among the three it is DequantizeLinear, MatMul and QuantizeLinear.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION  # of 8-bit floats; integers are exact anyway
    uses_all_cores: ClassVar[bool] = True
    example = (
        "uint8[9] float32[] uint8[] int8[9] float32[] int8[] float32[] uint8[] | float8e5m2[9] float32[] float8e5m2[] "
        "float8e5m2[9] float32[] float8e5m2[] float32[] float8e5m2[]"
    )
    flops_per_output = None
    has_blits = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the product's spec, of the type of y_zero_point.

        Raises:
            InputError: Types, extents, scales or zero points do not fit.
        """
        a, b, y = _split(inputs)
        if has_float8(a, b, y):
            return (infer_float8(self.name, a, b, y),)
        shape = check_product(self.name, a, b, needs_scales=True)
        zero = check_bytes(self.name, y.zero, "y_zero_point")
        check_dtype(self.name, y.scale, SCALES, "y_scale")
        check_quant(self.name, "y", (y.scale, zero), add_axes(shape, a.values.rank, b.values.rank), is_row=True)
        for role, spec in (("b_scale", b.scale), ("y_scale", y.scale)):
            if spec.dtype != a.scale.dtype:
                raise InputError(f"{self.name} expects {role} of the type of a_scale {a.scale}, got {spec}.")
        return (TensorSpec(shape, zero.dtype),)

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Multiply exactly, scale, round."""
        a, b, y = _split(inputs)
        if has_float8(a, b, y):
            return (multiply_float8(a, b, y),)
        rows, columns = a.values.ndim > 1, b.values.ndim > 1
        y_scale, y_zero = (drop_axes(view_quant(each, is_row=True), rows, columns) for each in (y.scale, y.zero))
        return (requantize(multiply_integers(a, b), scale_product(a, b), y_scale, y_zero, y.zero.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel once, over all batches."""
        a, b, y = _split(inputs)
        if has_float8(a, b, y):
            launch_float8(emit, a, b, Quantized(outputs[0], y.scale, y.zero))
        else:
            launch_integer_gemm(emit, a, b, Quantized(outputs[0], y.scale, y.zero))


def launch_integer_gemm(
    emit: Emitter,
    a: Quantized,
    b: Quantized,
    y: Quantized,
    *,
    alpha: float = 1.0,
    addend: Slot | None = None,
    bias: Slot | None = None,
) -> None:
    """Launch the product of two tensors of matrices.

    Args:
        emit: Emitter of the launch.
        a: The left operand; scale and zero point of it all, or of each row.
        b: The right operand; scale and zero point of it all, or of each column.
        y: The result: int32 without a scale, a float type, or bytes.
        alpha: A factor of the scales.
        addend: int32 that is added to the sums; broadcasts to the last two axes of y.
        bias: Of a float y: added to each row of what was scaled.

    Raises:
        InputError: More batch axes than the kernel's table holds.
    """
    a, b, y = (align_quant(emit, given) for given in (a, b, y))
    a_shape, a_strides = _as_matrix(a.values, is_row=True)
    b_shape, b_strides = _as_matrix(b.values, is_row=False)
    batch = broadcast(a_shape[:-2], b_shape[:-2])
    rows, columns, inner = a_shape[-2], b_shape[-1], a_shape[-1]
    a_quant = quant_strides(a, (*batch, rows, 1), is_row=True)
    b_quant = quant_strides(b, (*batch, 1, columns), is_row=False)
    y_quant = quant_strides(y, (*batch, rows, 1), is_row=True)
    extents, walks = coalesce(
        (*batch, rows),
        (
            (*broadcast_strides(a_shape[:-2], a_strides[:-2], batch), a_strides[-2]),
            (*broadcast_strides(b_shape[:-2], b_strides[:-2], batch), 0),
            contiguous_strides((*batch, rows, columns))[:-1],
            a_quant[:-1],
            (*b_quant[:-2], 0),
            y_quant[:-1],
        ),
    )
    # The last axis is the rows if the right operand does not walk it; batch axes may have joined it.
    is_row_axis = bool(extents) and walks[1][-1] == 0 and walks[4][-1] == 0
    split = len(extents) - 1 if is_row_axis else len(extents)
    row_extent = extents[split] if is_row_axis else 1
    a_row, _, y_row, a_step, _, y_step = (walk[split] if is_row_axis else 0 for walk in walks)
    if split > MAX_BATCH_AXES:
        raise InputError(f"batch axes must join to at most {MAX_BATCH_AXES}, got {split}.")
    added = (0, 0) if addend is None else broadcast_strides(addend.shape, addend.strides, (rows, columns))
    fields = [row_extent, columns, inner, a_row, a_strides[-1], b_strides[-2], b_strides[-1], y_row]
    fields += [a_step, b_quant[-1], y_step, *added, 0 if bias is None else bias.strides[-1]]
    pad = (0,) * (MAX_BATCH_AXES - split)
    tables = [entry for row in (extents, *walks) for entry in (*row[:split], *pad)]
    offsets = (offset_of(a.values.dtype), offset_of(b.values.dtype))
    packed = struct.pack(f"<14q2iq{7 * MAX_BATCH_AXES}q", *fields, *offsets, split, *tables)
    tiles = ceil_div(row_extent, TILE) * ceil_div(columns, FEW_COLUMNS if row_extent <= FEW_ROWS else TILE)
    scale = next((slot.dtype for slot in (a.scale, b.scale) if slot is not None), None)
    arguments: list[Argument] = [a.values, b.values, a.zero, b.zero, y.values, packed, a.scale, b.scale]
    arguments += [y.scale, y.zero, addend, bias, pack_finish(alpha, y.values.dtype, scale)]
    kernel = Kernel("integer_matmul.cu", f"integer_gemm<{_STORED[y.values.dtype]}>")
    emit.launch(kernel, (tiles * prod(extents[:split]), 1, 1), (256, 1, 1), arguments, writes=[4])


def multiply_integers(a: Quantized, b: Quantized) -> Array:
    """Return the product in int32, 1-D operands as in matmul."""
    zeros = (view_quant(a.zero, is_row=True), view_quant(b.zero, is_row=False))
    return multiply_exactly(a.values, b.values, INT32, *zeros)


def scale_product(a: Quantized, b: Quantized) -> Array:
    """Return ``a_scale * b_scale`` in float so that it broadcasts with the product."""
    scale = multiply_scales(1.0, view_quant(a.scale, is_row=True), view_quant(b.scale, is_row=False))
    return drop_axes(scale, a.values.ndim > 1, b.values.ndim > 1)


def check_product(name: str, a: Quantized, b: Quantized, *, needs_scales: bool = False) -> tuple[int, ...]:
    """Return the shape of a product.

    Raises:
        InputError: Types, extents, scales or zero points do not fit.
    """
    left, right = check_bytes(name, a.values, "A"), check_bytes(name, b.values, "B")
    if not left.shape or not right.shape or left.shape[-1] != right.shape[max(right.rank - 2, 0)]:
        raise InputError(f"{name} expects as many columns on the left as rows on the right, got {left} and {right}.")
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    shape = (*batch, *left.shape[-2:-1], *(right.shape[-1:] if right.rank > 1 else ()))
    for role, given, spec, is_row in (("a", a, left, True), ("b", b, right, False)):
        if needs_scales:
            check_dtype(name, given.scale, SCALES, f"{role}_scale")
        if given.zero is not None:
            check_dtype(name, given.zero, (spec.dtype,), f"{role}_zero_point")
        check_quant(name, role, (given.scale, given.zero), add_axes(shape, left.rank, right.rank), is_row=is_row)
    return shape


def _split(inputs: Sequence[Any]) -> tuple[Quantized, Quantized, Quantized]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    return Quantized(a, a_scale, a_zero), Quantized(b, b_scale, b_zero), Quantized(None, y_scale, y_zero)


def _as_matrix(slot: Slot, *, is_row: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if slot.spec.rank > 1:
        return slot.shape, slot.strides
    return ((1, *slot.shape), (0, *slot.strides)) if is_row else ((*slot.shape, 1), (*slot.strides, 0))


@work_of("integer_matmul.cu", "integer_gemm")
def _count_integer_gemm(launch: Launch) -> Work:
    packed = launch.arguments[5]
    assert isinstance(packed, bytes)
    rows, columns, inner = struct.unpack_from("<3q", packed)
    tiles = ceil_div(rows, TILE) * ceil_div(columns, FEW_COLUMNS if rows <= FEW_ROWS else TILE)
    return describe_byte_product(launch, launch.grid[0] // max(1, tiles), rows, columns, inner)
