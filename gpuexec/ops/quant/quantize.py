"""QuantizeLinear and DequantizeLinear, to integers or narrow floats.

A scale is of the whole tensor, of each place along an axis, or of each block of places along it. Arithmetic is in
float, rounded once to the type of the result; in QuantizeLinear dividend, divisor and quotient are rounded to
``precision`` before, as ONNX says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.quant.integer import prepare_rounding
from gpuexec.ops.quant.narrow_types import is_narrow, limits, pack_mode, to_narrow_float, widen

_THREADS = 256  # kThreads of quantize.cu
_FLOAT, _HALF, _INT32 = (np.dtype(t) for t in (np.float32, np.float16, np.int32))
WIDE = (_FLOAT, _HALF, BFLOAT16)
POWER = dtype_row("float8e8m0").numpy  # a scale of this type is a power of two
_KINDS = {_FLOAT: 0, _HALF: 1, BFLOAT16: 2, _INT32: 3, POWER: 4}  # scale_kind of ScaleWalk
NARROW = tuple(np.dtype(t) for t in (np.int8, np.uint8, np.int16, np.uint16))
# Storage-only types, given to kernels as a scalar code.
NARROWER = tuple(t for t in dtypes_of("narrow float", "narrow int", "narrow uint") if t != POWER)
_LARGEST = 2.0**24  # what is beyond saturates, whatever zero is added


def _instances(kernel: str, froms: tuple[np.dtype[Any], ...], to: tuple[np.dtype[Any], ...]) -> list[str]:
    return [f"{kernel}<{dtype_row(x).cuda}, {dtype_row(y).cuda}>" for x in froms for y in to]


instantiate("quantize.cu", _instances("dequantize", (*NARROW, _INT32), WIDE))
instantiate("quantize.cu", _instances("quantize", (*WIDE, _INT32), NARROW))
instantiate("quantize.cu", [f"dequantize_narrow<{dtype_row(t).cuda}>" for t in WIDE])
instantiate("quantize.cu", [f"quantize_narrow<{dtype_row(t).cuda}>" for t in (*WIDE, _INT32)])


@operator("DequantizeLinear")
@dataclass(frozen=True, slots=True)
class DequantizeLinear(Operator):
    """``(x - zero_point) * scale``; ``output_dtype`` 0 stands for the type of the scale."""

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    tolerance = Tolerance.EXACT
    example = "int8[4,3] float32[3] output_dtype=1"
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec, scale: TensorSpec, zero: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Keep the shape.

        Raises:
            InputError: Types or shapes do not fit together.
        """
        check_dtype(self.name, x, (*NARROW, *NARROWER, _INT32), "x")
        check_dtype(self.name, scale, (*WIDE, POWER), "x_scale")
        _check_zero(self.name, zero, x.dtype, scale)
        find_places(self.name, x.shape, scale.shape, self.axis, self.block_size)
        dtype = dtype_row(self.output_dtype).numpy if self.output_dtype else scale.dtype
        if dtype not in WIDE:
            raise InputError(f"{self.name} expects output_dtype float32, float16 or bfloat16, got {dtype.name}.")
        return (TensorSpec(x.shape, dtype),)

    def compute(self, x: Array, scale: Array, zero: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Subtract, multiply, round once."""
        dtype = dtype_row(self.output_dtype).numpy if self.output_dtype else scale.dtype
        return (dequantize(x, scale, zero, self.axis, self.block_size, dtype),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Convert, subtract and multiply in the output: of integers whose differences floats hold, to float."""
        (x, scale, zero), y = (*inputs, None)[:3], out[0]
        if x is None or scale is None or y is None or x.dtype not in NARROW or not y.dtype == scale.dtype == _FLOAT:
            return None
        places = find_places(self.name, x.shape, scale.shape, self.axis, self.block_size)
        scales = places.view(scale)
        zeros = None if zero is None else places.view(zero)
        if scales is None or (zero is not None and zeros is None):
            return None
        calls: list[Callable[[], object]] = [partial(np.copyto, y, x)]
        if zeros is not None and not (constant[2] and not zeros.any()):
            zeros = zeros.astype(_FLOAT) if constant[2] else zeros
            calls.append(partial(np.subtract, y, zeros, out=y))
        return [*calls, partial(np.multiply, y, scales, out=y)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, scale, zero = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and scale is not None and y is not None
        _launch(emit, "dequantize", (x, scale, zero, y), (self.axis, self.block_size), _FLOAT, x.dtype)


@operator("QuantizeLinear")
@dataclass(frozen=True, slots=True)
class QuantizeLinear(Operator):
    """``saturate(round(x / scale) + zero_point)``, halves to even.

    The result is of the zero point's type, else ``output_dtype``, else uint8. For narrow floats the sum is rounded, not
    the quotient; ``saturate`` is for those of 8 bits alone.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: int = 0
    precision: int = 0
    saturate: int = 1
    tolerance = Tolerance.EXACT
    example = "float32[2] float32[] uint8[]"
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec, scale: TensorSpec, zero: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Keep the shape.

        Raises:
            InputError: Types or shapes do not fit together.
        """
        check_dtype(self.name, x, (*WIDE, _INT32), "x")
        check_dtype(self.name, scale, (*WIDE, _INT32, POWER), "y_scale")
        dtype = self._find_dtype(None if zero is None else zero.dtype)
        _check_zero(self.name, zero, dtype, scale)
        find_places(self.name, x.shape, scale.shape, self.axis, self.block_size)
        if dtype not in (*NARROW, *NARROWER):
            names = ", ".join(dtype_row(each).name for each in (*NARROW, *NARROWER))
            raise InputError(f"{self.name} gives {names}, got {dtype_row(dtype).name}.")
        if self._find_precision(scale.dtype) not in WIDE:
            raise InputError(f"{self.name} expects precision float32, float16 or bfloat16, got {self.precision}.")
        return (TensorSpec(x.shape, dtype),)

    def compute(self, x: Array, scale: Array, zero: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Divide, round, add, saturate."""
        dtype, precision = self._find_dtype(None if zero is None else zero.dtype), self._find_precision(scale.dtype)
        places = find_places(self.name, x.shape, scale.shape, self.axis, self.block_size)
        with np.errstate(all="ignore"):
            value = x.astype(np.float32).astype(precision).astype(np.float32)
            divisor = scale.astype(np.float32).astype(precision).astype(np.float32)
            quotient = (value / places.spread(divisor)).astype(precision).astype(np.float32)
            if dtype_row(dtype).kind == "narrow float":
                added = np.float32(0) if zero is None else places.spread(widen(zero))
                quotient = (quotient + added).astype(precision).astype(np.float32)
                return (to_narrow_float(np.asarray(quotient), dtype, self.saturate),)
            whole = np.nan_to_num(np.clip(np.rint(quotient), -_LARGEST, _LARGEST), nan=0.0).astype(np.int32)
        if zero is not None:
            whole += places.spread(zero.astype(np.int32))
        return (np.asarray(np.clip(whole, *limits(dtype))).astype(dtype),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the quotients, and which of them are no numbers."""
        x, y = inputs[0], outputs[0]
        if x is None or y is None or x.dtype != _FLOAT or y.dtype not in NARROW:
            return ()
        return x.nbytes, x.size

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Divide, round and saturate in scratch: of floats, by scales of float, to integers of 8 or 16 bits."""
        (x, scale, zero), y = (*inputs, None)[:3], out[0]
        if x is None or scale is None or y is None or not x.dtype == scale.dtype == _FLOAT or y.dtype not in NARROW:
            return None
        if self._find_precision(scale.dtype) != _FLOAT or not has_scratch(scratch, (x.nbytes, x.size)):
            return None
        places = find_places(self.name, x.shape, scale.shape, self.axis, self.block_size)
        scales = places.view(scale)
        zeros = None if zero is None else places.view(zero)
        if scales is None or (zero is not None and zeros is None):
            return None
        if zeros is not None and constant[2]:
            zeros = zeros.astype(_FLOAT) if zeros.any() else None
        quotients = view_bytes(scratch[0], x.shape, _FLOAT)
        is_nan = view_bytes(scratch[1], x.shape, np.dtype(np.bool_))
        return [partial(np.divide, x, scales, out=quotients), *prepare_rounding(quotients, zeros, y, is_nan)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, scale, zero = (*inputs, None)[:3]
        y = outputs[0]
        assert x is not None and scale is not None and y is not None
        divisor, mode = self._find_precision(scale.dtype), pack_mode(self.saturate, "up")
        _launch(emit, "quantize", (x, scale, zero, y), (self.axis, self.block_size), divisor, y.dtype, mode)

    def _find_dtype(self, zero: np.dtype[Any] | None) -> np.dtype[Any]:
        given = dtype_row(self.output_dtype).numpy if self.output_dtype else None
        if zero is not None and given is not None and zero != given:
            raise InputError(f"{self.name} expects y_zero_point of output_dtype {given.name}, got {zero.name}.")
        return zero or given or np.dtype(np.uint8)

    def _find_precision(self, scale: np.dtype[Any]) -> np.dtype[Any]:
        given = dtype_row(self.precision).numpy if self.precision else scale
        return _FLOAT if given in (_INT32, POWER) and not self.precision else given


@dataclass(frozen=True, slots=True)
class ScalePlaces:
    """Scale lookup of each element: elements ``[outer, extent, inner]``, scales by strides (0: all share one)."""

    shape: tuple[int, ...]
    axis: int
    outer: int
    extent: int
    inner: int
    block: int
    strides: tuple[int, int, int]

    def spread(self, scales: Array) -> Array:
        """Return scales that broadcast with the elements."""
        if not any(self.strides):
            return scales.reshape(())
        if not self.strides[2]:
            return scales.reshape(-1, *(1,) * (len(self.shape) - self.axis - 1))
        rows = scales.repeat(self.block, self.axis)
        return rows[(slice(None),) * self.axis + (slice(self.extent),)]

    def view(self, scales: Array) -> Array | None:
        """Return a view of scales that broadcasts with the elements; None where there is none, as of blocks."""
        return None if self.strides[2] or not scales.flags.c_contiguous else self.spread(scales)


def find_places(name: str, shape: tuple[int, ...], scales: tuple[int, ...], axis: int, block: int) -> ScalePlaces:
    """Return the scale lookup of elements.

    Raises:
        InputError: As many scales can't belong to such a tensor.
    """
    if prod(scales) == 1 and len(scales) <= 1 and not block:
        return ScalePlaces(shape, 0, 1, 1, prod(shape), 1, (0, 0, 0))
    where = normalize_axis(axis, len(shape))
    outer, extent, inner = prod(shape[:where]), shape[where], prod(shape[where + 1 :])
    if len(scales) == 1 and scales[0] == extent and not block:
        return ScalePlaces(shape, where, outer, extent, inner, 1, (0, 1, 0))
    blocks = ceil_div(extent, block) if block > 0 else 0
    if block > 0 and scales == (*shape[:where], blocks, *shape[where + 1 :]):
        return ScalePlaces(shape, where, outer, extent, inner, block, (blocks * inner, inner, 1))
    wanted = f"[{extent}] along axis {axis}" if not block else f"one for each {block} places along axis {axis}"
    raise InputError(f"{name} expects one scale, or {wanted} of {list(shape)}, got scales of {list(scales)}.")


def dequantize(x: Array, scale: Array, zero: Array | None, axis: int, block: int, dtype: np.dtype[Any]) -> Array:
    """Return ``(x - zero) * scale`` in float, rounded once to ``dtype``."""
    places = find_places("DequantizeLinear", x.shape, scale.shape, axis, block)
    exact = np.float32 if is_narrow(x.dtype) else np.int32
    with np.errstate(all="ignore"):
        difference = x.astype(exact) if zero is None else x.astype(exact) - places.spread(zero.astype(exact))
        product = difference.astype(np.float32)
        product *= places.spread(scale.astype(np.float32))
        return np.asarray(product.astype(dtype, copy=False))


def _launch(
    emit: Emitter,
    kernel: str,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    blocks: tuple[int, int],
    divisor: np.dtype[Any],
    quantized: np.dtype[Any],
    *mode: np.int32,
) -> None:
    x, scale, zero, y = slots
    places = find_places(kernel, x.shape, scale.shape, *blocks)
    walk = join_bytes(
        (
            pack_struct("<q", y.spec.size),
            *(pack_fast_div64(max(1, divisor)) for divisor in (places.inner, places.extent, places.block)),
            pack_struct("<3q2i", *places.strides, _KINDS[scale.dtype], _KINDS[divisor]),
        )
    )
    types, codes = f"{dtype_row(x.dtype).cuda}, {dtype_row(y.dtype).cuda}", tuple[np.int32, ...]()
    if is_narrow(quantized):
        types = dtype_row(x.dtype if quantized == y.dtype else y.dtype).cuda
        kernel, codes = f"{kernel}_narrow", (int32(dtype_row(quantized).code), *mode)
    emit.launch(
        Kernel("quantize.cu", f"{kernel}<{types}>"),
        (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
        (_THREADS, 1, 1),
        [emit.contiguous(x), emit.contiguous(scale), None if zero is None else emit.contiguous(zero), y, walk, *codes],
        writes=[3],
    )


def _check_zero(name: str, zero: TensorSpec | None, dtype: np.dtype[Any], scale: TensorSpec) -> None:
    if zero is not None and (zero.dtype != dtype or (zero.shape != scale.shape and (zero.size, scale.size) != (1, 1))):
        expected = f"{dtype_row(dtype).name} and of the scale's shape {scale}"
        raise InputError(f"{name} expects a zero point of {expected}, got {zero}.")
