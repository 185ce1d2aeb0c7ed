"""Multinomial: classes sampled by their log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.random.philox import Draw
from gpuexec.ops.random.random import FLOATS
from gpuexec.ops.random.random_key import check_key, take_key

_INDICES = (np.dtype(np.int32), np.dtype(np.int64))
_PARTS = 256  # kThreads of multinomial.cu
_FLOAT64 = np.dtype(np.float64)

instantiate(
    "multinomial.cu",
    [f"multinomial<{dtype_row(dtype).cuda}, {dtype_row(index).cuda}>" for dtype in FLOATS for index in _INDICES],
)


@operator("Multinomial")
@dataclass(frozen=True, slots=True)
class Multinomial(Operator):
    """Sample of ``sample_size`` classes for each row of unnormalised log-probabilities, with replacement."""

    dtype: int = 6
    sample_size: int = 1
    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = None
    is_random = True
    has_blits = False

    def infer(self, x: TensorSpec, key: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return rows of ``sample_size`` classes.

        Raises:
            InputError: There are no rows of classes, or the type of the result is none for classes.
        """
        check_dtype("Multinomial", x, FLOATS)
        check_key(key)
        dtype = dtype_row(self.dtype).numpy
        if x.rank != 2 or x.shape[1] < 1:
            raise InputError(f"Multinomial expects [batch, classes] with at least one class, got {x}.")
        if dtype not in _INDICES or self.sample_size < 0:
            raise InputError(
                f"Multinomial expects dtype int32 or int64 and a sample_size of 0 or more, got {dtype.name} and "
                f"{self.sample_size}."
            )
        return (TensorSpec((x.shape[0], self.sample_size), dtype),)

    def compute(self, x: Array, key: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Sum each row in parts, as the kernel does, and look up where a number of [0, sum) falls."""
        spec = self.infer(TensorSpec(x.shape, x.dtype))[0]
        rows, classes = x.shape
        if not spec.size:
            return (np.zeros(spec.shape, spec.dtype),)
        width = ceil_div(classes, _PARTS)
        used = ceil_div(classes, width)  # of the parts; those behind add nothing
        logs = x.astype(np.float64)
        with np.errstate(invalid="ignore"):
            weights = exp_below(logs - np.fmax.reduce(logs, axis=1, keepdims=True))
        padded = np.zeros((rows, used * width))
        padded[:, :classes] = weights
        inner = np.cumsum(padded.reshape(rows, used, width), axis=2)
        parts = np.cumsum(inner[:, :, -1], axis=1)
        drawn = Draw.of(self.seed, self.stream).uniform(key, spec.size, _FLOAT64).reshape(spec.shape)
        wanted = drawn * parts[:, -1:]
        part = np.count_nonzero(~(parts[:, None, :] > wanted[:, :, None]), axis=2)
        found = np.minimum(part, used - 1)
        row = np.arange(rows)[:, None]
        before = np.where(found > 0, parts[row, np.maximum(found - 1, 0)], 0.0)
        within = before[:, :, None] + inner[row, found] > wanted[:, :, None]
        chosen = np.where(within.any(axis=2), found * width + within.argmax(axis=2), classes - 1)
        return (np.where(part < used, np.minimum(chosen, classes - 1), classes - 1).astype(spec.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one block per row."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        if not y.spec.size:
            return
        key, draw = take_key(emit, inputs, 1), Draw.of(self.seed, self.stream).pack()
        emit.launch(
            Kernel("multinomial.cu", f"multinomial<{dtype_row(x.dtype).cuda}, {dtype_row(y.dtype).cuda}>"),
            (x.shape[0], 1, 1),
            (_PARTS, 1, 1),
            [emit.contiguous(x), y, int64(x.shape[1]), int64(self.sample_size), key, draw],
            writes=[1],
        )


def exp_below(x: Array) -> Array:
    """Return e**x in double for x of (-708, 0], else 0, to the same bits as multinomial.cu."""
    is_inside = x > -708.0
    x = np.where(is_inside, x, 0.0)
    power = np.floor(x * 1.4426950408889634 + 0.5)
    rest = (x - power * 0.693147180369123816490) - power * 1.90821492927058770002e-10
    p = np.ones_like(x)
    for n in range(13, 0, -1):
        p = 1.0 + rest * p * (1.0 / n)
    return np.where(is_inside, np.ldexp(p, power.astype(np.int64)), 0.0)
