"""NumberLike: a scalar constant of the element type of another tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.shape import store_commands


@operator("NumberLike", "gpuexec")
@dataclass(frozen=True, slots=True)
class NumberLike(Operator):
    """Scalar ``value`` of the input's element type; nothing else of the input counts."""

    value: float
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.ZERO
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec with its content."""
        number = self._make(x.dtype)
        return (TensorSpec((), x.dtype).with_value(number),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Convert the number."""
        return (self._make(x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Store the number."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        store_commands(emit, y, self._make(x.dtype))

    def _make(self, dtype: np.dtype[Any]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.float64(self.value)).astype(dtype)
