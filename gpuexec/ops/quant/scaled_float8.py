"""ScaleToFloat8: a tensor in float8e4m3fn, by a scale found from its largest magnitude.

What rounds the activations that products and convolutions read in fp8 (`gpuexec.passes.lower_precision`); no file has
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, build, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.quant.narrow_types import to_narrow_float
from gpuexec.ops.quant.rounded_weight import DOMAIN, FLOAT8, LARGEST_FP8, SMALLEST_SCALE, find_scales

_SOURCE = "scaled_float8.cu"
_THREADS = 256
_PER_THREAD = 8  # kPerThread of scaled_float8.cu
_MAX_PARTS = 256
_FLOAT = np.dtype(np.float32)

instantiate(_SOURCE, ["find_largest", "round_by_largest"])


@operator("ScaleToFloat8", DOMAIN)
@dataclass(frozen=True, slots=True)
class ScaleToFloat8(Operator):
    """``x / scale`` in float8e4m3fn, and the scale, by which the largest magnitude becomes that type's largest number.

    The scale of zeros is 2^-100, that of NaN is NaN.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[2,3]"
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of what is rounded and of the scale.

        Raises:
            InputError: x is not float32.
        """
        x = check_dtype(self.name, x, (_FLOAT,), "x")
        return TensorSpec(x.shape, FLOAT8), TensorSpec((), _FLOAT)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Find the scale, then round."""
        scale = find_scales(x).reshape(())
        with np.errstate(all="ignore"):
            return to_narrow_float(x / scale, FLOAT8), scale

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the search of the largest magnitude, and the rounding."""
        (x,) = inputs
        assert x is not None
        y, scale = (
            slot if slot is not None else emit.temp(shape, dtype)
            for slot, shape, dtype in zip(outputs, (x.shape, ()), (FLOAT8, _FLOAT), strict=True)
        )
        if emit.target.has_textures:
            _draw(emit, x, y, scale)
            return
        x, count = emit.contiguous(x), x.spec.size
        parts = max(1, min(_MAX_PARTS, ceil_div(count, _THREADS * _PER_THREAD)))
        largest = emit.temp((_MAX_PARTS,), np.dtype(np.uint32))
        emit.launch(
            Kernel(_SOURCE, "find_largest"), (parts, 1, 1), (_THREADS, 1, 1), [x, largest, int64(count)], writes=[1]
        )
        emit.launch(
            Kernel(_SOURCE, "round_by_largest"),
            (max(1, ceil_div(count, _THREADS * _PER_THREAD)), 1, 1),
            (_THREADS, 1, 1),
            [x, largest, y, scale, int64(count), int32(parts)],
            writes=[2, 3],
        )


def _draw(emit: Emitter, x: Slot, y: Slot, scale: Slot) -> None:
    """Lower the operators that find the scale and round, one by one."""

    def add(name: str, inputs: Slots, target: Slot, **attributes: int) -> Slot:
        lower = build(name, attributes).lower
        assert lower is not None
        lower(emit, inputs, (target,))
        return target

    magnitude = add("Abs", (x,), emit.temp(x.shape, _FLOAT))
    largest = magnitude
    if x.spec.rank:
        largest = add("ReduceMax", (magnitude, None), emit.temp((), _FLOAT), keepdims=0)
    quotient = add("Div", (largest, emit.constant(np.array(LARGEST_FP8))), emit.temp((), _FLOAT))
    add("Max", (quotient, emit.constant(np.array(SMALLEST_SCALE))), scale)
    scaled = add("Div", (x, scale), emit.temp(x.shape, _FLOAT))
    add("Cast", (scaled,), y, to=dtype_row(FLOAT8).code)
