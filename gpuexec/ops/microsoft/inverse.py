"""Inverse of square matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.command import Argument, Kernel
from gpuexec.errors import InputError
from gpuexec.instances import instantiate
from gpuexec.operator import Array, Emitter, Operator, Tolerance, operator
from gpuexec.ops.checks import check_dtype
from gpuexec.ops.layout import Slots
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.spec import TensorSpec, accumulator, dtype_row

_SOURCE = "inverse.cu"
_THREADS = 256  # kThreads of inverse.cu
_FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float16, np.float64))
instantiate(_SOURCE, [f"invert<{dtype_row(t).cuda}>" for t in _FLOATS])


@operator("Inverse", DOMAIN)
@dataclass(frozen=True, slots=True)
class Inverse(Operator):
    """Inverse of the matrices in the last two axes; one that has none gives infinities and NaN."""

    tolerance = Tolerance.REDUCTION

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Matrices are not square, or not of floats.
        """
        x = check_dtype(self.name, inputs[0], _FLOATS)
        if x.rank < 2 or x.shape[-1] != x.shape[-2]:
            raise InputError(f"{self.name} expects square matrices, got {x}.")
        return (x.with_shape(x.shape),)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        """Eliminate with NumPy, all matrices at a time, in the order of the kernel; half in float, rounded once."""
        x = inputs[0]
        assert x is not None
        n, acc = x.shape[-1], accumulator(x.dtype)
        count = prod(x.shape[:-2])
        work = np.zeros((count, n, 2 * n), acc)
        work[:, :, :n] = x.reshape(count, n, n)
        work[:, np.arange(n), n + np.arange(n)] = 1
        every = np.arange(count)
        with np.errstate(all="ignore"):
            for step in range(n):
                sizes = np.abs(work[:, step:, step])
                pivot = step + np.argmax(np.where(np.isnan(sizes), acc.type(-1), sizes), axis=1)
                row = work[every, pivot] / work[every, pivot, step][:, np.newaxis]
                work[every, pivot] = work[:, step]
                work[:, step] = row
                factors = work[:, :, step].copy()
                factors[:, step] = 0
                change = factors[:, :, np.newaxis] * row[:, np.newaxis, step + 1 :]
                change[:, step] = 0
                work[:, :, step + 1 :] -= change
            return (work[:, :, n:].reshape(x.shape).astype(x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a block per matrix."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        n, count = x.shape[-1], prod(x.shape[:-2])
        work = emit.temp((count, n, 2 * n), accumulator(x.dtype))
        arguments: list[Argument] = [emit.contiguous(x), work, y, np.int64(n)]
        kernel = Kernel(_SOURCE, f"invert<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, (max(1, count), 1, 1), (_THREADS, 1, 1), arguments, writes=[1, 2])
