"""StridedView: a strided window on dense memory, for inputs that are not dense."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import element_count
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.layout import window


@operator("StridedView", "gpuexec")
@dataclass(frozen=True, slots=True)
class StridedView(Operator):
    """Elements ``start + sum(index * stride)`` of a tensor in row-major order; no copy of a dense one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the window's spec.

        Raises:
            InputError: Extents and strides don't fit each other, or the window reaches outside the tensor.
        """
        if len(self.shape) != len(self.strides) or min(self.shape, default=0) < 0:
            raise InputError(
                f"StridedView expects a stride for each extent, got {list(self.shape)} and {list(self.strides)}."
            )
        steps = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        first = self.start + sum(min(step, 0) for step in steps)
        last = self.start + sum(max(step, 0) for step in steps)
        if element_count(self.shape) and not 0 <= first <= last < x.size:
            raise InputError(f"{self} reaches from element {first} to {last}, got {x}, which has {x.size}.")
        return (x.with_shape(self.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Return a read-only view, of a dense copy where the tensor is not dense."""
        if not element_count(self.shape):
            return (np.empty(self.shape, x.dtype),)
        strides = [stride * x.itemsize for stride in self.strides]
        flat = np.ascontiguousarray(x).reshape(-1)[self.start :]
        # NOTE: by bytes where an element is one, since as_strided knows float8e5m2 by no name.
        given = flat.view(np.uint8) if x.itemsize == 1 else flat
        return (np.lib.stride_tricks.as_strided(given, self.shape, strides, writeable=False).view(x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the tensor's bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, window(emit.contiguous(x), self.shape, self.strides, self.start))
