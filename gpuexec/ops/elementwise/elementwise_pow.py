"""Pow with base and exponent of different element types; the result has the base's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import broadcast
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Operator,
    Out,
    Slots,
    Tolerance,
    operator,
)
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import truncate
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, NUMBERS, DType, apply, require_inputs
from gpuexec.ops.lib.broadcast import launch_broadcast

BASES = (*FLOATS, np.dtype(np.int32), np.dtype(np.int64))
SOURCE = "elementwise_pow.cu"
instantiate(SOURCE, (f"power<{dtype_row(dtype).cuda}>" for dtype in BASES))


@operator("Pow")
@dataclass(frozen=True, slots=True)
class Pow(Operator):
    """base ** exponent, in the type of the base.

    Integer powers of integers wrap; a negative one leaves 1, -1 or 0. A float base takes float arithmetic where float
    holds every value of the exponent's type, else double, as an integer base with a float exponent does.
    """

    tolerance = Tolerance.ROUNDING
    flops_per_output = 1
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, base: TensorSpec, exponent: TensorSpec) -> tuple[TensorSpec, ...]:
        """Broadcast; the dtype is the base's."""
        base, exponent = require_inputs("Pow", (base, exponent), 2)
        if base.dtype not in BASES:
            raise InputError(f"Pow expects a base of {', '.join(d.name for d in BASES)}, got {base}.")
        if exponent.dtype not in NUMBERS:
            raise InputError(f"Pow expects an exponent of {', '.join(d.name for d in NUMBERS)}, got {exponent}.")
        return (TensorSpec(broadcast(base.shape, exponent.shape), base.dtype),)

    def compute(self, base: Array, exponent: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Compute powers with NumPy."""
        are_integers = base.dtype.kind == "i" and exponent.dtype.kind in "iu"
        return (apply(_power_integers if are_integers else _power, (base, exponent), base.dtype, out),)

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return the power of floats by one exponent: by several, NumPy takes another way that rounds otherwise."""
        base, exponent = inputs
        if base is None or exponent is None or exponent.size != 1 or base.dtype not in FLOATS:
            return None
        wide = "float" if base.dtype != np.float64 and _fits_float(exponent.dtype) else "double"
        return Pointwise(_power, f"float_power(cast<{wide}>({{0}}), cast<{wide}>({{1}}))", base.dtype)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once."""
        (base, exponent), (y,) = inputs, outputs
        if base is None or exponent is None or y is None:
            return
        kernel = Kernel(SOURCE, f"power<{dtype_row(base.dtype).cuda}>")
        launch_broadcast(emit, kernel, (base, exponent), y, [np.int32(dtype_row(exponent.dtype).code)], width=1)


def _fits_float(exponent: DType) -> bool:
    """Return whether float holds every value of the exponent's type."""
    return exponent == np.float32 or exponent.itemsize <= np.dtype(np.int16).itemsize


def _power(base: Array, exponent: Array, out: Array) -> None:
    """Compute powers in float or double; ``out`` may be an integer array."""
    is_single = base.dtype == np.float32 and _fits_float(exponent.dtype)
    kind: DType = np.dtype(np.float32 if is_single else np.float64)
    a, b = base.astype(kind, copy=False), exponent.astype(kind, copy=False)
    # One exponent for all is the common case: squares and cubes are products, as they are in the kernel.
    single = float(b.reshape(-1)[0]) if b.size == 1 else None
    if single == 2:
        result = np.multiply(a, a)
    elif single == 3:
        result = np.multiply(a * a, a)
    elif single == 0.5:  # NumPy takes np.sqrt for this, which differs from pow at -0 and -inf
        result = np.where(a == -np.inf, kind.type(np.inf), np.sqrt(a) + kind.type(0))
    else:
        result = np.power(a, b)
    np.copyto(
        out,
        truncate(np.broadcast_to(result, out.shape), out.dtype) if out.dtype.kind == "i" else result,
        casting="unsafe",
    )


def _power_integers(base: Array, exponent: Array, out: Array) -> None:
    """Compute powers by repeated squaring modulo 2**64; the low bits are the result in any narrower type."""
    value = np.broadcast_to(base, out.shape).astype(np.int64).view(np.uint64)
    bits = exponent.astype(np.uint64)
    is_negative = np.broadcast_to(exponent < 0, out.shape)
    bits = np.where(is_negative, 0, np.broadcast_to(bits, out.shape))
    result = np.ones(out.shape, np.uint64)
    while bits.any():
        result = np.where(bits & 1, result * value, result)
        value = value * value
        bits = bits >> np.uint64(1)
    is_odd = np.broadcast_to(exponent & exponent.dtype.type(1), out.shape) != 0
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(is_odd, -1, 1), 0))
    np.copyto(out, np.where(is_negative, inverse, np.asarray(result).view(np.int64)), casting="unsafe")
