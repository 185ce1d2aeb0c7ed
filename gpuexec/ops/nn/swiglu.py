"""SwiGLU: a gated activation of two inputs, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, apply, require_inputs, require_same_dtype
from gpuexec.ops.lib.broadcast import launch_broadcast

_SOURCE = "swiglu.cu"
instantiate(_SOURCE, [f"swiglu<{dtype_row(dtype).cuda}>" for dtype in FLOATS])


@operator("SwiGLU")
@dataclass(frozen=True, slots=True)
class SwiGLU(Operator):
    """``a * sigmoid(alpha * a) * b``; the inputs have one shape."""

    alpha: float = 1.0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the inputs' spec.

        Raises:
            InputError: Types or shapes differ, or the type is no float.
        """
        a, b = require_inputs("SwiGLU", (a, b), 2)
        require_same_dtype("SwiGLU", (a, b), FLOATS)
        if a.shape != b.shape:
            raise InputError(f"SwiGLU expects inputs of one shape, got {a} and {b}.")
        return (a.with_shape(a.shape),)

    def compute(self, a: Array, b: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Gate with NumPy."""
        return (apply(_gate, (a, b), a.dtype, out, (float(np.float32(self.alpha)),)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once."""
        (a, b), y = inputs, outputs[0]
        assert a is not None and b is not None and y is not None
        kernel = Kernel(_SOURCE, f"swiglu<{dtype_row(y.dtype).cuda}>")
        launch_broadcast(emit, kernel, (a, b), y, (np.float64(np.float32(self.alpha)),))


def _gate(a: Array, b: Array, alpha: float, out: Array) -> None:
    slope = alpha * a
    small = np.exp(-np.abs(slope))
    sigmoid = np.where(slope < 0, small, 1) / (1 + small)
    np.multiply(a * sigmoid, b, out=out)
