"""LRN: local response normalization over neighbouring channels, one thread per element."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64

_FLOATS = dtypes_of("float")
_THREADS = 256  # kThreads of elementwise.cuh
instantiate("lrn.cu", [f"normalize_neighbours<{dtype_row(dtype).cuda}>" for dtype in _FLOATS])


@operator("LRN")
@dataclass(frozen=True, slots=True)
class LRN(Operator):
    """``x / (bias + alpha / size * sum of squares) ** beta``, the sum over ``size`` channels around each element's own.

    Of an even number one more lies behind than before.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    tolerance = Tolerance.REDUCTION
    example = "float32[2,3,4] size=3"
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Not a float type, a rank below 2, or a size below 1.
        """
        check_dtype(self.name, x, _FLOATS)
        if x.rank < 2:
            raise InputError(f"LRN expects an input of rank 2 or more, [n, channels, ...], got {x}.")
        if self.size < 1:
            raise InputError(f"LRN expects a size of at least 1, got {self.size}.")
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Add squares channel by channel; half and bfloat16 in float, rounded once."""
        wide = x.astype(accumulator(x.dtype), copy=False)
        number, channels = wide.dtype.type, x.shape[1]
        before, after = self._reach(channels)
        with np.errstate(all="ignore"):
            squares = np.square(wide)
            sums = np.zeros_like(squares)
            for offset in range(-before, after + 1):
                target = slice(max(0, -offset), channels - max(0, offset))
                sums[:, target] += squares[:, max(0, offset) : channels + min(0, offset)]
            divisor = (number(self.bias) + number(self.alpha / self.size) * sums) ** number(self.beta)
            return ((wide / divisor).astype(x.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        channels, inner = x.shape[1], prod(x.shape[2:])
        divisors = (pack_fast_div64(max(1, channels)), pack_fast_div64(max(1, inner)))
        before, after = self._reach(channels)
        number = accumulator(x.dtype).type
        scalars = (number(self.alpha / self.size), number(self.beta), number(self.bias))
        emit.launch(
            Kernel("lrn.cu", f"normalize_neighbours<{dtype_row(x.dtype).cuda}>"),
            (ceil_div(x.spec.size, _THREADS), 1, 1),
            (_THREADS, 1, 1),
            [emit.contiguous(x), y, int64(x.spec.size), *divisors, int64(before), int64(after), *scalars],
            writes=[1],
        )

    def _reach(self, channels: int) -> tuple[int, int]:
        """Return how many channels before and behind its own an element looks at, at most all there can be."""
        before = (self.size - 1) // 2
        others = max(0, channels - 1)
        return min(before, others), min(self.size - 1 - before, others)
