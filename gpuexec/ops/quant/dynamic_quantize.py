"""DynamicQuantizeLinear: 8-bit quantisation by a scale and zero point from the tensor's own range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.quant.integer import BYTES, FLOAT, Quantized, prepare_rounding, round_to_bytes

_SOURCE = "dynamic_quantize.cu"
_THREADS = 256
_PER_THREAD = 8  # kPerThread of dynamic_quantize.cu
_MAX_PARTS = 256
UINT8 = BYTES[0]

instantiate(_SOURCE, ["find_range", "quantize_by_range"])


@operator("DynamicQuantizeLinear")
@dataclass(frozen=True, slots=True)
class DynamicQuantizeLinear(Operator):
    """``saturate(round(x / y_scale) + y_zero_point)`` in uint8; scale and zero point are outputs too.

    The scale is what spreads the range of x, widened to hold 0, over 256 steps, and 1 where that range is 0 alone.
    """

    tolerance = Tolerance.EXACT
    flops_per_output = None
    has_blits = False

    def infer(self, x: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of bytes, scale and zero point.

        Raises:
            InputError: x is not float32.
        """
        x = check_dtype(self.name, x, (FLOAT,), "x")
        return TensorSpec(x.shape, UINT8), TensorSpec((), FLOAT), TensorSpec((), UINT8)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Find the range, then quantise."""
        made = quantize_by_range(x)
        return made.values, made.scale, made.zero

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the quotients, and which of them are no numbers."""
        x = inputs[0]
        return () if x is None else (x.nbytes, x.size)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Find the range in numbers that stay, then divide, round and saturate in scratch."""
        x, (y, scale, zero) = inputs[0], (*out, None, None)[:3]
        if x is None or y is None or scale is None or zero is None or not has_scratch(scratch, (x.nbytes, x.size)):
            return None
        shift = np.empty((), FLOAT)
        quotients = view_bytes(scratch[0], x.shape, FLOAT)
        is_nan = view_bytes(scratch[1], x.shape, np.dtype(np.bool_))
        return [
            *prepare_range(x, scale, shift),
            partial(np.copyto, zero, shift, casting="unsafe"),
            partial(np.divide, x, scale, out=quotients),
            *prepare_rounding(quotients, shift, y, is_nan),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the search of the range, and the rounding."""
        x = inputs[0]
        assert x is not None
        y, scale, zero = (
            slot if slot is not None else emit.temp(shape, dtype)
            for slot, shape, dtype in zip(outputs, (x.shape, (), ()), (UINT8, FLOAT, UINT8), strict=True)
        )
        launch_dynamic_quantize(emit, x, Quantized(y, scale, zero))


def quantize_by_range(x: Array, axis: int | None = None) -> Quantized:
    """Return a float array as bytes, with the scale and zero point that follow from its range.

    With an axis, what lies along it has a range of its own; scales and zero points then have extent 1 there.
    """
    with np.errstate(all="ignore"):
        lowest, highest = (
            np.asarray(function.reduce(x, axis=axis, initial=np.float32(0), keepdims=True)) + FLOAT.type(0)
            for function in (np.fmin, np.fmax)
        )
        if axis is None:
            lowest, highest = lowest.reshape(()), highest.reshape(())
        scale = np.where(highest == lowest, FLOAT.type(1), (highest - lowest) / FLOAT.type(255))
        shift = np.rint((FLOAT.type(0) - lowest) / scale)
        zero = np.where(shift >= 0, np.minimum(shift, 255), 0).astype(UINT8)
        return Quantized(round_to_bytes(x / scale, zero, UINT8), scale, zero)


def prepare_range(x: Array, scale: Array, shift: Array, axis: int | None = None) -> list[Callable[[], object]]:
    """Return calls that find scales and zero points as `quantize_by_range` does, the zero points as whole floats.

    Args:
        x: Floats.
        scale: Where the scales go.
        shift: Where the zero points go.
        axis: Of what has a range of its own, with extent 1 in ``scale`` and ``shift``; None: all is one.
    """
    none, one, most = (np.array(number, FLOAT) for number in (0, 1, 255))
    lowest, highest = (np.empty(scale.shape, FLOAT) for _ in range(2))
    is_flat, keepdims = np.empty(scale.shape, np.bool_), axis is not None
    return [
        partial(np.fmin.reduce, x, axis=axis, out=lowest, keepdims=keepdims, initial=FLOAT.type(0)),
        partial(np.fmax.reduce, x, axis=axis, out=highest, keepdims=keepdims, initial=FLOAT.type(0)),
        partial(np.add, lowest, none, out=lowest),
        partial(np.add, highest, none, out=highest),
        partial(np.equal, highest, lowest, out=is_flat),
        partial(np.subtract, highest, lowest, out=scale),
        partial(np.divide, scale, most, out=scale),
        partial(np.copyto, scale, one, where=is_flat),
        partial(np.subtract, none, lowest, out=shift),
        partial(np.divide, shift, scale, out=shift),
        partial(np.rint, shift, out=shift),
        partial(np.fmax, shift, none, out=shift),
        partial(np.minimum, shift, most, out=shift),
    ]


def launch_dynamic_quantize(emit: Emitter, x: Slot, y: Quantized) -> None:
    """Launch the quantisation of a float slot: bytes, scale and zero point."""
    x, count = emit.contiguous(x), x.spec.size
    parts = max(1, min(_MAX_PARTS, ceil_div(count, _THREADS * _PER_THREAD)))
    ranges = emit.temp((_MAX_PARTS, 2), FLOAT)
    emit.launch(Kernel(_SOURCE, "find_range"), (parts, 1, 1), (_THREADS, 1, 1), [x, ranges, int64(count)], writes=[1])
    emit.launch(
        Kernel(_SOURCE, "quantize_by_range"),
        (max(1, ceil_div(count, _THREADS * _PER_THREAD)), 1, 1),
        (_THREADS, 1, 1),
        [x, ranges, y.values, y.scale, y.zero, int64(count), int32(parts)],
        writes=[2, 3, 4],
    )
