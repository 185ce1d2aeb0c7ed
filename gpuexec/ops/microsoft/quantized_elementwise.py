"""Elementwise operators on quantised tensors, and QLinearConcat.

Each widens bytes by their scales, computes in float and rounds to bytes, in one launch. Scales and zero points are of
whole tensors; an absent zero point is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import broadcast, contiguous_strides, normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_engine import BOOL
from gpuexec.ops.lib.broadcast import launch_broadcast
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.rational import rational_sigmoid
from gpuexec.ops.quant.integer import (
    FLOAT,
    Quantized,
    check_bytes,
    check_one,
    offset_of,
    prepare_rounding,
    round_to_bytes,
)
from gpuexec.ops.tensor.layout import window

_SOURCE = "quantized_elementwise.cu"
_COPY, _LEAKY_RELU, _SIGMOID = range(3)  # kinds of quantized_unary
instantiate(_SOURCE, ["quantized_unary", "quantized_binary", "quantized_where"])


@dataclass(frozen=True, slots=True)
class QuantizedUnary(Operator):
    """Base of quantised unary operators: a function of the dequantised input. Inputs are x, y's scale and zero."""

    kind: ClassVar[int]
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "int8[9] float32[] - float32[]"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Keep the spec of x.

        Raises:
            InputError: Types or sizes do not fit.
        """
        x, y = _split_unary(inputs)
        spec = _check_quantized(self.name, "X", x)
        _check_scale(self.name, "Y", y, spec.dtype)
        return (spec.with_shape(spec.shape),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Widen, compute, round."""
        x, y = _split_unary(inputs)
        with np.errstate(all="ignore"):
            return (_narrow_numbers(self._apply(_widen_bytes(x)), y, x.values.dtype),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Look bytes up in a table of all results, where scales and zero points never change."""
        x, y = inputs[0], out[0]
        others = [position for position, given in enumerate(inputs[1:], 1) if given is not None]
        if x is None or y is None or not x.size or not all(constant[position] for position in others):
            return None
        table = self.compute(np.arange(256, dtype=np.uint8).view(x.dtype), *inputs[1:])[0]
        return [partial(table.take, x.view(np.uint8), None, y, "clip")]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per 8 elements."""
        x, y = _split_unary(inputs)
        launch_unary(emit, x, Quantized(outputs[0], y.scale, y.zero), self.kind, self._alpha())

    def _apply(self, numbers: Array) -> Array:
        raise TypeError(f"{type(self).__name__} lacks _apply")

    def _alpha(self) -> float:
        return 0.0


@operator("QLinearLeakyRelu", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearLeakyRelu(QuantizedUnary):
    """x, or ``alpha * x`` where x < 0."""

    alpha: float = 0.01
    kind: ClassVar[int] = _LEAKY_RELU

    def _apply(self, numbers: Array) -> Array:
        return np.where(numbers < 0, numbers * FLOAT.type(self.alpha), numbers)

    def _alpha(self) -> float:
        return self.alpha


@operator("QLinearSigmoid", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearSigmoid(QuantizedUnary):
    """``1 / (1 + exp(-x))``, as a rational function: the same bytes on every device."""

    kind: ClassVar[int] = _SIGMOID

    def _apply(self, numbers: Array) -> Array:
        return rational_sigmoid(numbers)


@dataclass(frozen=True, slots=True)
class QuantizedBinary(Operator):
    """Base of quantised binary operators on inputs that broadcast."""

    kind: ClassVar[int]
    function: ClassVar[Callable[..., Array]]
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "int8[9] float32[] - int8[9] float32[] - float32[]"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Broadcast.

        Raises:
            InputError: Types, sizes or shapes do not fit.
        """
        a, b, c = _split_binary(inputs)
        left = _check_quantized(self.name, "A", a)
        right = _check_quantized(self.name, "B", b, left.dtype)
        _check_scale(self.name, "C", c, left.dtype)
        return (TensorSpec(broadcast(left.shape, right.shape), left.dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Widen, compute, round."""
        a, b, c = _split_binary(inputs)
        with np.errstate(all="ignore"):
            numbers = type(self).function(_widen_bytes(a), _widen_bytes(b))
        return (_narrow_numbers(numbers, c, a.values.dtype),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count both inputs and the result in float, and which of its numbers are none."""
        a, b, _ = _split_binary(inputs)
        y = outputs[0]
        return () if y is None else (*[FLOAT.itemsize * each.size for each in (a.values, b.values, y)], y.size)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Widen, compute and round in scratch."""
        (a, b, c), y = _split_binary(inputs), out[0]
        if y is None or not y.size:
            return None
        shapes = (a.values.shape, b.values.shape, y.shape)
        if not has_scratch(scratch, (*[FLOAT.itemsize * prod(shape) for shape in shapes], y.size)):
            return None
        left, right, numbers = (view_bytes(*given, FLOAT) for given in zip(scratch[:3], shapes))
        zero = None if c.zero is None else c.zero.reshape(())
        return [
            *_prepare_widening(a, left),
            *_prepare_widening(b, right),
            partial(type(self).function, left, right, out=numbers),
            partial(np.divide, numbers, c.scale.reshape(()), out=numbers),
            *prepare_rounding(numbers, zero, y, view_bytes(scratch[3], y.shape, BOOL)),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per 8 elements."""
        a, b, c = _split_binary(inputs)
        made = outputs[0]
        assert made is not None
        scales = [slot for each in (a, b, c) for slot in _scale_slots(emit, each, made.dtype)]
        scalars = (int32(self.kind), int32(offset_of(made.dtype)))
        launch_broadcast(
            emit, Kernel(_SOURCE, "quantized_binary"), (a.values, b.values), made, scalars, between=scales, width=8
        )


@operator("QLinearAdd", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearAdd(QuantizedBinary):
    """a + b."""

    kind: ClassVar[int] = 0
    function: ClassVar[Callable[..., Array]] = np.add


@operator("QLinearMul", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearMul(QuantizedBinary):
    """a * b."""

    kind: ClassVar[int] = 1
    function: ClassVar[Callable[..., Array]] = np.multiply


@operator("QLinearWhere", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearWhere(Operator):
    """condition ? x : y, all three broadcast."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "bool[2] uint8[2] float32[] uint8[] uint8[2] float32[] uint8[] float32[] uint8[]"
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Broadcast.

        Raises:
            InputError: Types, sizes or shapes do not fit.
        """
        condition, (x, y, z) = check_dtype(self.name, inputs[0], (BOOL,), "condition"), _split_binary(inputs[1:])
        left = _check_quantized(self.name, "x", x)
        right = _check_quantized(self.name, "y", y, left.dtype)
        _check_scale(self.name, "z", z, left.dtype)
        return (TensorSpec(broadcast(condition.shape, left.shape, right.shape), left.dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Requantise both to the scale of z, and choose."""
        condition, (x, y, z) = inputs[0], _split_binary(inputs[1:])
        assert condition is not None
        left, right = (_narrow_numbers(_widen_bytes(each), z, each.values.dtype) for each in (x, y))
        return (np.asarray(np.where(condition, left, right)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per 8 elements."""
        condition, (x, y, z) = inputs[0], _split_binary(inputs[1:])
        made = outputs[0]
        assert made is not None and condition is not None
        scales = [slot for each in (x, y, z) for slot in _scale_slots(emit, each, made.dtype)]
        walked = (condition, x.values, y.values)
        scalars = (int32(offset_of(made.dtype)),)
        launch_broadcast(emit, Kernel(_SOURCE, "quantized_where"), walked, made, scalars, between=scales, width=8)


@operator("QLinearConcat", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearConcat(Operator):
    """Concatenation along an axis, each input requantised to the result's scale and zero point, which come first."""

    axis: int
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[] uint8[] uint8[7] float32[] uint8[] axis=0"
    flops_per_output = None
    has_blits = False

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Add the extents along the axis.

        Raises:
            InputError: Types, sizes or shapes do not fit.
        """
        y, parts = self._split(inputs)
        dtype = check_bytes(self.name, y.zero, "Y_zero_point").dtype
        _check_scale(self.name, "Y", y, dtype)
        specs = [_check_quantized(self.name, f"input {i}", part, dtype) for i, part in enumerate(parts)]
        axis = normalize_axis(self.axis, specs[0].rank)
        rest = [(*spec.shape[:axis], *spec.shape[axis + 1 :]) for spec in specs]
        if any(shape != rest[0] or spec.rank != specs[0].rank for shape, spec in zip(rest, specs, strict=True)):
            listed = ", ".join(map(str, specs))
            raise InputError(f"{self.name} expects inputs that differ along axis {axis} alone, got {listed}.")
        extent = sum(spec.shape[axis] for spec in specs)
        return (TensorSpec((*rest[0][:axis], extent, *rest[0][axis:]), dtype),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """Requantise each to the scale of the result, and join."""
        y, parts = self._split(inputs)
        return (np.concatenate([_narrow_numbers(_widen_bytes(part), y, y.zero.dtype) for part in parts], self.axis),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one kernel for each input, which writes its part of the result."""
        y, parts = self._split(inputs)
        made = outputs[0]
        assert made is not None
        axis, strides, first = normalize_axis(self.axis, made.spec.rank), contiguous_strides(made.shape), 0
        for part in parts:
            place = window(made, part.values.shape, strides, first * strides[axis])
            launch_unary(emit, part, Quantized(place, y.scale, y.zero), _COPY)
            first += part.values.shape[axis]

    def _split(self, inputs: Sequence[Any]) -> tuple[Quantized, list[Quantized]]:
        scale, zero, *rest = inputs
        if not rest or len(rest) % 3 == 1:
            raise InputError(f"{self.name} expects three inputs for each tensor behind the first two, got {len(rest)}.")
        padded = [*rest, None] if len(rest) % 3 else rest
        parts = [Quantized(*padded[i : i + 3]) for i in range(0, len(padded), 3)]
        return Quantized(None, scale, zero), parts


def launch_unary(emit: Emitter, x: Quantized, y: Quantized, kind: int, alpha: float = 0.0) -> None:
    """Launch a requantisation by a function of the dequantised values."""
    scales = [slot for each in (x, y) for slot in _scale_slots(emit, each, x.values.dtype)]
    scalars = (int32(kind), np.float32(alpha), int32(offset_of(x.values.dtype)))
    kernel = Kernel(_SOURCE, "quantized_unary")
    launch_broadcast(emit, kernel, (x.values,), y.values, scalars, between=scales, width=8, in_place=kind != _COPY)


def _split_unary(inputs: Sequence[Any]) -> tuple[Quantized, Quantized]:
    x, x_scale, x_zero, y_scale, y_zero = (*inputs, None)[:5]
    return Quantized(x, x_scale, x_zero), Quantized(None, y_scale, y_zero)


def _split_binary(inputs: Sequence[Any]) -> tuple[Quantized, Quantized, Quantized]:
    a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero = (*inputs, None)[:8]
    return Quantized(a, a_scale, a_zero), Quantized(b, b_scale, b_zero), Quantized(None, c_scale, c_zero)


def _widen_bytes(x: Quantized) -> Array:
    """Return bytes dequantised by one scale and zero point."""
    zero = 0 if x.zero is None else x.zero.astype(np.int32).reshape(())
    with np.errstate(all="ignore"):
        return np.asarray((x.values.astype(np.int32) - zero).astype(FLOAT) * x.scale.reshape(()))


def _prepare_widening(x: Quantized, wide: Array) -> list[Callable[[], object]]:
    """Return calls that do what `_widen_bytes` does; differences of bytes are exact in float."""
    calls: list[Callable[[], object]] = [partial(np.copyto, wide, x.values)]
    if x.zero is not None:
        calls.append(partial(np.subtract, wide, x.zero.reshape(()), out=wide))
    return [*calls, partial(np.multiply, wide, x.scale.reshape(()), out=wide)]


def _narrow_numbers(numbers: Array, y: Quantized, dtype: np.dtype[Any]) -> Array:
    """Return the nearest bytes by one scale and zero point."""
    with np.errstate(all="ignore"):
        return round_to_bytes(numbers / y.scale.reshape(()), None if y.zero is None else y.zero.reshape(()), dtype)


def _check_quantized(name: str, role: str, given: Quantized, dtype: np.dtype[Any] | None = None) -> TensorSpec:
    """Return the spec of bytes with one scale and zero point; ``dtype`` is of another's, which it must share.

    Raises:
        InputError: Types or sizes do not fit.
    """
    spec = check_bytes(name, given.values, role) if dtype is None else check_dtype(name, given.values, (dtype,), role)
    _check_scale(name, role, given, spec.dtype)
    return spec


def _check_scale(name: str, role: str, given: Quantized, dtype: np.dtype[Any]) -> None:
    """Check the scale and zero point of bytes of a type.

    Raises:
        InputError: Types or sizes do not fit.
    """
    check_dtype(name, given.scale, (FLOAT,), f"{role}_scale")
    check_one(name, given.scale, (FLOAT,), f"{role}_scale")
    check_one(name, given.zero, (dtype,), f"{role}_zero_point")


def _scale_slots(emit: Emitter, given: Quantized, dtype: np.dtype[Any]) -> tuple[Slot, Slot]:
    """Return scale and zero point of bytes of a type; an absent zero point is 0."""
    return given.scale, emit.constant(np.zeros((), dtype)) if given.zero is None else given.zero
