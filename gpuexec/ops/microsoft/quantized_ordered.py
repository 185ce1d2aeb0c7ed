"""QOrderedMatMul, QOrderedGelu, QOrderedLayerNormalization, QOrderedAttention.

The transformer optimizer makes them of operators between DequantizeLinear and QuantizeLinear, with zero points of 0. An
order is how a matrix lies in memory, as cuBLASLt counts them; those that the optimizer writes are taken: rows for what
flows, columns for weights. Each operator is what it was made of, its products as products of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.expected import OfType
from gpuexec.ops.microsoft.mask import MaskBias
from gpuexec.ops.tensor.layout import window
from gpuexec.ops.tensor.shape import Constant

_COLUMNS, _ROWS = 0, 1
_BYTES, _FLOAT = dtype_row("int8").code, dtype_row("float32").code
_SIGNED, _SINGLE, _WIDE = ("int8",), ("float32",), ("float32", "float16")


@operator("ColumnMajor", "gpuexec")
@dataclass(frozen=True, slots=True)
class ColumnMajor(Operator):
    """View of matrices stored column by column; the shape stays."""

    tolerance = Tolerance.EXACT
    example = "int8[3,4]"
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the spec.

        Raises:
            InputError: It has no rows and columns.
        """
        if x.rank < 2:
            raise InputError(f"{self.name} expects matrices [..., rows, columns], got {x}.")
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Swap the last two axes of the same bytes."""
        *outer, rows, columns = x.shape
        return (x.reshape(*outer, columns, rows).swapaxes(-1, -2),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, window(emit.contiguous(x), x.shape, (*contiguous_strides(x.shape)[:-2], 1, x.shape[-2])))


@composite("QOrderedMatMul", DOMAIN)
@dataclass(frozen=True, slots=True)
class QOrderedMatMul(Composite):
    """``A @ B + bias + C``, with a scale for each but the bias and, if it is a vector, for each column of B."""

    inputs: ClassVar[int] = 8
    order_A: int  # noqa: N815 (ONNX Runtime's spelling)
    order_B: int  # noqa: N815
    order_Y: int  # noqa: N815
    example = (
        "int8[2,4,8] float32[] int8[8,6] float32[] float32[] float32[6] int8[2,4,6] float32[] "
        "order_A=1 order_B=0 order_Y=1"
    )

    def __post_init__(self) -> None:
        """Check the orders."""
        _check_orders(self, order_A=_ROWS, order_B=_COLUMNS, order_Y=_ROWS)

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Multiply, add, quantise."""
        a, a_scale, b, b_scale, y_scale, bias, c, c_scale = inputs
        if (c is None) != (c_scale is None):
            raise InputError(f"{self.name} expects C and scale_C together.")
        y = _multiply(sketch, (a, a_scale), (b, b_scale), bias)
        if c is not None:
            y = sketch.add("Add", y, _widen(sketch, c, c_scale))
        return (_quantize(sketch, y, y_scale),)


@composite("QOrderedGelu", DOMAIN)
@dataclass(frozen=True, slots=True)
class QOrderedGelu(Composite):
    """Gelu of bytes; the order is any, since it stays."""

    inputs: ClassVar[int] = 3
    order_X: int = _ROWS  # noqa: N815
    order_Y: int = _ROWS  # noqa: N815
    example = "int8[2,8] float32[] float32[]"

    def __post_init__(self) -> None:
        """Check that the order stays."""
        _check_orders(self, order_Y=self.order_X)

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Widen, Gelu, quantise."""
        x, x_scale, y_scale = inputs
        return (_quantize(sketch, sketch.add("Gelu", _widen(sketch, x, x_scale)), y_scale),)


@composite("QOrderedLayerNormalization", DOMAIN)
@dataclass(frozen=True, slots=True)
class QOrderedLayerNormalization(Composite):
    """LayerNormalization of bytes; factors and offsets may be half."""

    inputs: ClassVar[int] = 5
    axis: int = -1
    epsilon: float = 9.999999747378752e-06
    order_X: int = _ROWS  # noqa: N815
    order_Y: int = _ROWS  # noqa: N815
    example = "int8[2,8] float32[] float32[8] float32[8] float32[]"

    def __post_init__(self) -> None:
        """Check the orders."""
        _check_orders(self, order_X=_ROWS, order_Y=_ROWS)

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Widen, normalise, quantise."""
        x, x_scale, *affine, y_scale = inputs
        scale, bias = (
            None if each is None else sketch.add(Cast(to=_FLOAT), sketch.add(OfType(role, _WIDE), each))
            for role, each in zip(("scale", "B"), affine, strict=True)
        )
        wide = _widen(sketch, x, x_scale)
        y = sketch.add("LayerNormalization", wide, scale, bias, axis=self.axis, epsilon=self.epsilon)
        return (_quantize(sketch, y, y_scale),)


@composite("QOrderedAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class QOrderedAttention(Composite):
    """Self-attention in which queries, keys, values, scores, probabilities and result are rounded to bytes each.

    A mask takes keys out, in the forms that Attention has. Scores and probabilities without a scale are not rounded.
    """

    inputs: ClassVar[int] = 20
    num_heads: int
    order_input: int
    order_output: int
    order_weight: int
    qkv_hidden_sizes: tuple[int, ...] = ()
    unidirectional: int = 0
    example = (
        "int8[2,4,8] float32[] float32[] float32[] float32[] int8[8,6] int8[8,6] int8[8,6] float32[] float32[] "
        "float32[] float32[6] float32[6] float32[6] float32[] float32[] float32[] int32[2,4] num_heads=2 "
        "order_input=1 order_output=1 order_weight=0 qkv_hidden_sizes=(6,6,6)"
    )

    def __post_init__(self) -> None:
        """Check orders and sizes, and for unsupported attributes."""
        _check_orders(self, order_input=_ROWS, order_output=_ROWS, order_weight=_COLUMNS, unidirectional=0)
        sizes = self.qkv_hidden_sizes
        if len(sizes) != 3 or len(set(sizes)) != 1 or self.num_heads < 1 or sizes[0] % self.num_heads or sizes[0] < 1:
            raise InputError(
                f"{self.name} expects qkv_hidden_sizes of three equal numbers that num_heads divides, "
                f"got {list(sizes)} and {self.num_heads}."
            )

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Project, score, mask, weigh, each rounded to bytes."""
        x, x_scale = inputs[:2]
        scales, weights, weight_scales, biases = (inputs[first : first + 3] for first in (2, 5, 8, 11))
        score_scale, probability_scale, y_scale, mask, past, attention_bias = inputs[14:]
        if past is not None or attention_bias is not None:
            raise InputError(f"{self.name} expects neither past nor attention_bias.")
        queries, keys, values = (
            _round(sketch, _multiply(sketch, (x, x_scale), (weight, weight_scale), bias), scale)
            for scale, weight, weight_scale, bias in zip(scales, weights, weight_scales, biases, strict=True)
        )
        q, k, v = (sketch.add("gpuexec.SplitHeads", each, heads=self.num_heads) for each in (queries, keys, values))
        scores = _round(sketch, sketch.add("MatMul", q, sketch.add("Transpose", k, perm=(0, 1, 3, 2))), score_scale)
        size = self.qkv_hidden_sizes[0] // self.num_heads
        scores = sketch.add("Mul", scores, sketch.add(Constant(value_float=1 / sqrt(size))))
        if mask is not None:
            scores = sketch.add("Add", scores, sketch.add(MaskBias(-np.inf), queries, k, mask))
        probabilities = _round(sketch, sketch.add("Softmax", scores, axis=-1), probability_scale)
        y = sketch.add("Transpose", sketch.add("MatMul", probabilities, v), perm=(0, 2, 1, 3))
        return (_quantize(sketch, sketch.reshape(y, 0, 0, -1), y_scale),)


def _check_orders(op: Composite, **wanted: int) -> None:
    for role, number in wanted.items():
        if getattr(op, role) != number:
            raise InputError(f"{op.name} expects {role} {number}, got {getattr(op, role)}.")


def _multiply(
    sketch: Sketch, a: tuple[Value | None, Value | None], b: tuple[Value | None, Value | None], bias: Value | None
) -> Value:
    """Return the product of bytes, each with its scale, and of a weight by columns, in float."""
    left, right = (sketch.add(OfType("a matrix", _SIGNED), each) for each in (a[0], b[0]))
    left_scale, right_scale = (sketch.add(OfType("a scale", _SINGLE), each) for each in (a[1], b[1]))
    weight = sketch.add(ColumnMajor(), right)
    return sketch.add(f"{DOMAIN}.MatMulIntegerToFloat", left, weight, left_scale, right_scale, None, None, bias)


def _widen(sketch: Sketch, x: Value | None, scale: Value | None) -> Value:
    x, scale = sketch.add(OfType("a matrix", _SIGNED), x), sketch.add(OfType("a scale", _SINGLE), scale)
    return sketch.add("DequantizeLinear", x, scale)


def _quantize(sketch: Sketch, x: Value, scale: Value | None) -> Value:
    return sketch.add("QuantizeLinear", x, sketch.add(OfType("a scale", _SINGLE), scale), output_dtype=_BYTES)


def _round(sketch: Sketch, x: Value, scale: Value | None) -> Value:
    """Round to bytes and widen again."""
    return x if scale is None else _widen(sketch, _quantize(sketch, x, scale), scale)
