"""Quantised matrix products: MatMulIntegerToFloat, DynamicQuantizeMatMul, QGemm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import broadcast_strides
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.quant.integer import (
    BYTES,
    FLOAT,
    INT32,
    Quantized,
    check_bytes,
    check_one,
    multiply_scales,
    requantize,
)
from gpuexec.ops.quant.integer_matmul import HALF, check_product, launch_integer_gemm, multiply_integers, scale_product
from gpuexec.ops.quant.integer_quants import view_quant
from gpuexec.ops.tensor.layout import window

_WIDE = (FLOAT, HALF)


@operator("MatMulIntegerToFloat", DOMAIN)
@dataclass(frozen=True, slots=True)
class MatMulIntegerToFloat(Operator):
    """``(A - a_zero_point) @ (B - b_zero_point) * (a_scale * b_scale) + bias``, of the type of the scales."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    uses_all_cores: ClassVar[bool] = True
    example = "uint8[5,7] int8[7,9] float32[] float32[]"
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: Types, extents, scales, zero points or bias do not fit.
        """
        a, b, bias = _split(inputs)
        shape = check_product(self.name, a, b, needs_scales=True)
        dtype = check_dtype(self.name, a.scale, _WIDE, "a_scale").dtype
        for role, spec in (("b_scale", b.scale), ("bias", bias)):
            if spec is not None and spec.dtype != dtype:
                raise InputError(f"{self.name} expects {role} of the type of a_scale {a.scale}, got {spec}.")
        if bias is not None and (b.values.rank < 2 or bias.shape != shape[-1:]):
            raise InputError(f"{self.name} expects a bias of one number for each column of B {b.values}, got {bias}.")
        return (TensorSpec(shape, dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Multiply exactly, scale, add; half rounded once."""
        a, b, bias = _split(inputs)
        with np.errstate(all="ignore"):
            scaled = multiply_integers(a, b).astype(FLOAT) * scale_product(a, b)
            if bias is not None:
                scaled = scaled + bias.astype(FLOAT)
            return (np.asarray(scaled, a.scale.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel once, over all batches."""
        a, b, bias = _split(inputs)
        launch_integer_gemm(emit, a, b, Quantized(outputs[0]), bias=bias)


@composite("DynamicQuantizeMatMul", DOMAIN)
@dataclass(frozen=True, slots=True)
class DynamicQuantizeMatMul(Composite):
    """A product whose left operand is quantised by its range first."""

    inputs: ClassVar[int] = 5
    example = "float32[5,7] int8[7,9] float32[]"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Quantise, multiply."""
        a, b, b_scale, b_zero, bias = inputs
        values, scale, zero = sketch.add_all("DynamicQuantizeLinear", 3, a)
        name = f"{DOMAIN}.MatMulIntegerToFloat"
        return (sketch.add(name, values, b, scale, b_scale, zero, b_zero, bias),)


@operator("QGemm", DOMAIN)
@dataclass(frozen=True, slots=True)
class QGemm(Operator):
    """``alpha * a_scale * b_scale * (A' @ B' + C)`` as floats, or quantised again where y_scale is given.

    A' and B' are A and B without their zero points, transposed where asked for; C is int32 and broadcasts.
    """

    alpha: float = 1.0
    transA: int = 0  # noqa: N815 (ONNX spelling)
    transB: int = 0  # noqa: N815
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    uses_all_cores: ClassVar[bool] = True
    example = "uint8[5,7] float32[] uint8[] int8[7,9] float32[] int8[] int32[9]"
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the product's spec: float, or of the type of y_zero_point.

        Raises:
            InputError: Types, extents, scales or zero points do not fit.
        """
        a, b, c, y = self._split(inputs)
        for role, spec in (("A", a.values), ("B", b.values)):
            if check_bytes(self.name, spec, role).rank != 2:
                raise InputError(f"{self.name} expects {role} to be a matrix, got {spec}.")
        a, b = (
            Quantized(given.values.with_shape(given.values.shape[::-1]) if is_turned else given.values, *rest)
            for given, is_turned, *rest in ((a, self.transA, a.scale, a.zero), (b, self.transB, b.scale, b.zero))
        )
        check_one(self.name, a.scale, (FLOAT,), "a_scale")
        check_one(self.name, a.zero, BYTES, "a_zero_point")
        check_dtype(self.name, b.scale, (FLOAT,), "b_scale")
        shape = check_product(self.name, a, b, needs_scales=True)
        if c is not None:
            check_dtype(self.name, c, (INT32,), "C")
            broadcast_strides(c.shape, (0,) * c.rank, shape)
        if y.scale is None:
            return (TensorSpec(shape, FLOAT),)
        check_one(self.name, y.scale, (FLOAT,), "y_scale")
        zero = check_bytes(self.name, y.zero, "y_zero_point")
        check_one(self.name, zero, BYTES, "y_zero_point")
        return (TensorSpec(shape, zero.dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Multiply exactly, scale, maybe round."""
        a, b, c, y = self._split(inputs)
        left = Quantized(a.values.T if self.transA else a.values, None, a.zero)
        right = Quantized(b.values.T if self.transB else b.values, None, b.zero)
        sums = multiply_integers(left, right)
        with np.errstate(all="ignore"):
            if c is not None:
                sums = sums + c
            scale = multiply_scales(self.alpha, a.scale.reshape(()), view_quant(b.scale, is_row=False))
            if y.scale is None:
                return (sums.astype(FLOAT) * scale,)
        return (requantize(sums, scale, y.scale.reshape(()), y.zero.reshape(()), y.zero.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel once; transposes are strides."""
        a, b, c, y = self._split(inputs)
        a, b = (
            Quantized(window(x.values, x.values.shape[::-1], x.values.strides[::-1]), x.scale, x.zero) if turned else x
            for x, turned in ((a, self.transA), (b, self.transB))
        )
        launch_integer_gemm(emit, a, b, Quantized(outputs[0], y.scale, y.zero), alpha=self.alpha, addend=c)

    def _split(self, inputs: Sequence[Any]) -> tuple[Quantized, Quantized, Any, Quantized]:
        a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*inputs, None, None, None)[:9]
        return Quantized(a, a_scale, a_zero), Quantized(b, b_scale, b_zero), c, Quantized(None, y_scale, y_zero)


def _split(inputs: Sequence[Any]) -> tuple[Quantized, Quantized, Any]:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*inputs, None, None, None)[:7]
    return Quantized(a, a_scale, a_zero), Quantized(b, b_scale, b_zero), bias
