"""QLinearMatMul with floats of 8 bits among its operands: they are widened, multiplied as floats, and rounded.

Such a product has one scale for each operand and for the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.command import Slot
from gpuexec.errors import InputError
from gpuexec.operator import Array, Emitter
from gpuexec.ops.checks import check_dtype
from gpuexec.ops.integer import BYTES, FLOAT, SCALES, Quantized, check_one
from gpuexec.ops.layout import window
from gpuexec.ops.matmul import MatMul
from gpuexec.ops.quantize import DequantizeLinear, QuantizeLinear
from gpuexec.spec import TensorSpec, dtype_row

FLOAT8 = tuple(dtype_row(f"float8{kind}").numpy for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))
_CODE = dtype_row(FLOAT).code


def has_float8(a: Quantized, b: Quantized, y: Quantized) -> bool:
    """Return whether an operand or the result is of such a type."""
    given = (a.values, b.values, y.zero)
    return any(each is not None and each.dtype in FLOAT8 for each in given)


def infer_float8(name: str, a: Quantized, b: Quantized, y: Quantized) -> TensorSpec:
    """Return the product's spec.

    Raises:
        InputError: Types, extents, scales or zero points do not fit.
    """
    for role, given in (("a", a), ("b", b), ("y", y)):
        types: Any = (*BYTES, *FLOAT8)
        spec = check_dtype(name, given.zero if role == "y" else given.values, types, role)
        check_dtype(name, given.scale, SCALES, f"{role}_scale")
        for part, each, dtypes in (("scale", given.scale, (a.scale.dtype,)), ("zero_point", given.zero, (spec.dtype,))):
            try:
                check_one(name, each, dtypes, f"{role}_{part}")
            except InputError as error:
                raise InputError(f"{error} (floats of 8 bits have one scale of a type).") from error
    (product,) = MatMul().infer(TensorSpec(a.values.shape, FLOAT), TensorSpec(b.values.shape, FLOAT))
    return TensorSpec(product.shape, y.zero.dtype)


def multiply_float8(a: Quantized, b: Quantized, y: Quantized) -> Array:
    """Widen, multiply, round."""
    wide = [
        DequantizeLinear(output_dtype=_CODE).compute(x.values, _one(x.scale), None if x.zero is None else _one(x.zero))[
            0
        ]
        for x in (a, b)
    ]
    (product,) = MatMul().compute(*wide)
    assert product is not None
    return np.asarray(QuantizeLinear(precision=_CODE).compute(product, _one(y.scale), _one(y.zero))[0])


def launch_float8(emit: Emitter, a: Quantized, b: Quantized, y: Quantized) -> None:
    """Launch the widening of both, the product, and the rounding."""
    wide = []
    for x in (a, b):
        wide.append(emit.temp(x.values.shape, FLOAT))
        DequantizeLinear(output_dtype=_CODE).lower(
            emit, (x.values, _as_number(x.scale), _as_number(x.zero)), (wide[-1],)
        )
    product = emit.temp(y.values.shape, FLOAT)
    MatMul().lower(emit, tuple(wide), (product,))
    QuantizeLinear(precision=_CODE).lower(emit, (product, _as_number(y.scale), _as_number(y.zero)), (y.values,))


def _as_number(slot: Slot | None) -> Slot | None:
    return None if slot is None else window(slot, (), ())


def _one(number: Array) -> Array:
    return number.reshape(())
