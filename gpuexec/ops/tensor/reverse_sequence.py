"""ReverseSequence: the first elements of each sequence of a batch in reverse order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64

_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_THREADS = 256  # kThreads of reverse_sequence.cu
instantiate("reverse_sequence.cu", [f"reverse_sequence<{bits}>" for bits in _BITS.values()])


@operator("ReverseSequence")
@dataclass(frozen=True, slots=True)
class ReverseSequence(Operator):
    """Batch whose first ``sequence_lens[b]`` steps of the time axis are reversed for each ``b``.

    No shape depends on the lengths, so the kernel reads them on the device without a wait. One beyond the
    extents counts as the nearest within them.
    """

    batch_axis: int = 1
    time_axis: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec, lengths: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        check_dtype(self.name, lengths, (np.dtype(np.int64),), "sequence_lens")
        if {self.batch_axis, self.time_axis} != {0, 1}:
            given = f"batch_axis {self.batch_axis}, time_axis {self.time_axis}"
            raise InputError(f"ReverseSequence expects batch_axis and time_axis to be 0 and 1 or 1 and 0, got {given}.")
        if x.rank < 2 or lengths.shape != x.shape[self.batch_axis : self.batch_axis + 1]:
            raise InputError(
                f"ReverseSequence expects an input of rank 2 or more and a length per entry of axis {self.batch_axis}, "
                f"got {x} and {lengths}."
            )
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, lengths: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Gather each step from its source."""
        times = np.arange(x.shape[self.time_axis])[:, None]
        places = np.where(times < lengths, np.minimum(lengths, len(times)) - 1 - times, times)  # [time, batch]
        batches = np.arange(x.shape[self.batch_axis])
        picked = x[places, batches] if self.time_axis == 0 else x[batches[:, None], places.T]
        return (picked,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per element."""
        x, lengths, y = inputs[0], inputs[1], outputs[0]
        assert x is not None and lengths is not None and y is not None
        rows, columns, inner = *y.shape[:2], prod(y.shape[2:])
        divisors = [pack_fast_div64(max(1, divisor)) for divisor in (columns, inner)]
        scalars: list[Argument] = [int64(y.spec.size), int64(rows), *divisors, int32(self.time_axis == 0)]
        emit.launch(
            Kernel("reverse_sequence.cu", f"reverse_sequence<{_BITS[y.dtype.itemsize]}>"),
            (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [emit.contiguous(x), emit.contiguous(lengths), y, *scalars],
            writes=[2],
        )
