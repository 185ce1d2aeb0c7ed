"""ArrayFeatureExtractor: elements picked along the last axis, by the kernel of Gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.ml.table_operator import INT64, NUMBERS
from gpuexec.ops.tensor.gather import Gather
from gpuexec.ops.tensor.layout import reshaped


@operator("ArrayFeatureExtractor", "ai.onnx.ml")
@dataclass(frozen=True, slots=True)
class ArrayFeatureExtractor(Operator):
    """Elements of the last axis at all indices, one after the other; of an input of one axis, as one row.

    An index out of range is an error on the host; on a device it reads as zero.
    """

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec, indices: TensorSpec) -> tuple[TensorSpec, ...]:
        """Replace the last axis by the indices.

        Raises:
            InputError: There is no axis, or there are no indices.
        """
        check_dtype(self.name, x, (*NUMBERS, STRING))
        check_dtype(self.name, indices, (INT64,), "Y")
        if not x.rank:
            raise InputError(f"{self.name} expects an input of one axis or more, got {x}.")
        return (x.with_shape((*(x.shape[:-1] or (1,)), indices.size)),)

    def compute(self, x: Array, indices: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Take elements along the last axis."""
        picked = Gather(-1).compute(x, indices.reshape(-1))[0]
        return (np.asarray(picked.reshape(*(x.shape[:-1] or (1,)), indices.size)),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Call what Gather calls."""
        (x, indices), (y,) = inputs, out
        if x is None or indices is None or y is None or not (indices.flags.c_contiguous and y.flags.c_contiguous):
            return None
        target = y.reshape(*x.shape[:-1], indices.size)
        return Gather(-1).prepare((x, indices.reshape(-1)), (target,), constant, scratch)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the kernel of Gather."""
        x, indices, y = inputs[0], inputs[1], outputs[0]
        assert x is not None and indices is not None and y is not None
        flat = reshaped(emit, indices, (indices.spec.size,))
        Gather(-1).lower(emit, (x, flat), (reshaped(emit, y, (*x.shape[:-1], indices.spec.size)),))
