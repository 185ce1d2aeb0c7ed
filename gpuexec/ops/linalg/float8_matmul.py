"""QLinearMatMul with 8-bit floating-point operands: widened, multiplied as floats, and rounded.

A scale of each row or column is one of a block as long as what it scales, so the quantisers' own kernels do it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.linalg.matmul import MatMul
from gpuexec.ops.quant.integer import BYTES, FLOAT, SCALES, Quantized
from gpuexec.ops.quant.integer_quants import add_axes, align_quant, check_quant, quant_strides, view_quant
from gpuexec.ops.quant.quantize import DequantizeLinear, QuantizeLinear
from gpuexec.ops.tensor.layout import reshaped, window

FLOAT8 = tuple(dtype_row(f"float8{kind}").numpy for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))
_CODE = dtype_row(FLOAT).code


def has_float8(a: Quantized, b: Quantized, y: Quantized) -> bool:
    """Return whether an operand or the result is an 8-bit float."""
    given = (a.values, b.values, y.zero)
    return any(each is not None and each.dtype in FLOAT8 for each in given)


def infer_float8(name: str, a: Quantized, b: Quantized, y: Quantized) -> TensorSpec:
    """Return the product's spec.

    Raises:
        InputError: Types, extents, scales or zero points do not fit.
    """
    types: Any = (*BYTES, *FLOAT8)
    for role, given in (("a", a), ("b", b), ("y", y)):
        spec = check_dtype(name, given.zero if role == "y" else given.values, types, role)
        check_dtype(name, given.scale, SCALES if role == "a" else (a.scale.dtype,), f"{role}_scale")
        check_dtype(name, given.zero, (spec.dtype,), f"{role}_zero_point")
    (product,) = MatMul().infer(TensorSpec(a.values.shape, FLOAT), TensorSpec(b.values.shape, FLOAT))
    made = add_axes(product.shape, a.values.rank, b.values.rank)
    check_quant(name, "a", (a.scale, a.zero), _as_matrix(a.values.shape, is_row=True), is_row=True)
    check_quant(name, "b", (b.scale, b.zero), _as_matrix(b.values.shape, is_row=False), is_row=False)
    check_quant(name, "y", (y.scale, y.zero), made, is_row=True)
    return TensorSpec(product.shape, y.zero.dtype)


def multiply_float8(a: Quantized, b: Quantized, y: Quantized) -> Array:
    """Widen, multiply, round."""
    wide = []
    for x, is_row in ((a, True), (b, False)):
        matrix = x.values.reshape(_as_matrix(x.values.shape, is_row=is_row))
        scale, zero, blocks = _spread(x, matrix.shape, is_row=is_row)
        (made,) = DequantizeLinear(**blocks, output_dtype=_CODE).compute(matrix, scale, zero)
        wide.append(made.reshape(x.values.shape))
    product = np.asarray(MatMul().compute(*wide)[0])
    matrix = product.reshape(add_axes(product.shape, a.values.ndim, b.values.ndim))
    scale, zero, blocks = _spread(y, matrix.shape, is_row=True)
    return QuantizeLinear(**blocks, precision=_CODE).compute(matrix, scale, zero)[0].reshape(product.shape)


def launch_float8(emit: Emitter, a: Quantized, b: Quantized, y: Quantized) -> None:
    """Launch the widening of both, the product, and the rounding."""
    wide = []
    for x, is_row in ((a, True), (b, False)):
        shape = _as_matrix(x.values.shape, is_row=is_row)
        scale, zero, blocks = _walk(emit, x, shape, is_row=is_row)
        made = emit.temp(shape, FLOAT)
        DequantizeLinear(**blocks, output_dtype=_CODE).lower(
            emit, (reshaped(emit, x.values, shape), scale, zero), (made,)
        )
        wide.append(reshaped(emit, made, x.values.shape))
    product = emit.temp(y.values.shape, FLOAT)
    MatMul().lower(emit, tuple(wide), (product,))
    shape = add_axes(product.shape, a.values.spec.rank, b.values.spec.rank)
    scale, zero, blocks = _walk(emit, y, shape, is_row=True)
    given, result = (reshaped(emit, each, shape) for each in (product, y.values))
    QuantizeLinear(**blocks, precision=_CODE).lower(emit, (given, scale, zero), (result,))


def _as_matrix(shape: tuple[int, ...], *, is_row: bool) -> tuple[int, ...]:
    """Return the shape of an operand with the axis that 1-D leaves out."""
    if len(shape) > 1:
        return shape
    return (1, *shape) if is_row else (*shape, 1)


def _find_blocks(matrix: tuple[int, ...], *, is_one: bool, is_row: bool) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the shape that scales of a matrix need, and the quantisers' attributes that make them do what they say."""
    if is_one or not prod(matrix):
        return (), {}
    axis = -1 if is_row else -2
    shape = list(matrix)
    shape[axis] = 1
    return tuple(shape), {"axis": axis, "block_size": matrix[axis]}


def _spread(x: Quantized, matrix: tuple[int, ...], *, is_row: bool) -> tuple[Array, Array, dict[str, int]]:
    """Return scale and zero point of a matrix, and attributes, for `DequantizeLinear` and `QuantizeLinear`."""
    shape, blocks = _find_blocks(matrix, is_one=x.scale.size == x.zero.size == 1, is_row=is_row)
    views = (view_quant(each, is_row=is_row) for each in (x.scale, x.zero))
    # An empty matrix may have no scales: any number will do.
    scale, zero = (np.broadcast_to(each, shape) if shape else np.resize(each, ()) for each in views)
    return scale, zero, blocks


def _walk(emit: Emitter, x: Quantized, matrix: tuple[int, ...], *, is_row: bool) -> tuple[Slot, Slot, dict[str, int]]:
    """Return the result of `_spread` as slots."""
    x = align_quant(emit, x)
    shape, blocks = _find_blocks(matrix, is_one=x.scale.spec.size == 1, is_row=is_row)
    strides = quant_strides(x, matrix, is_row=is_row) if shape else ()
    scale, zero = (window(each, shape, strides) for each in (x.scale, x.zero))
    return scale, zero, blocks
