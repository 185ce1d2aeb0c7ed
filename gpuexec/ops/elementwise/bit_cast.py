"""BitCast: a view of the same bits as elements of another type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row, is_host_object
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.elementwise_engine import BOOL, require_inputs


@operator("BitCast")
@dataclass(frozen=True, slots=True)
class BitCast(Operator):
    """The bits of x as elements of another type of as many bits, as a view; to bool, every byte but 0 is True."""

    to: int
    tolerance = Tolerance.EXACT
    example = "bool[2] to=2 | int16[2] to=5 | float32[2] to=6 | int64[2] to=11"
    flops_per_output = 0
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's shape in the type asked for.

        Raises:
            InputError: The types differ in width.
        """
        (x,) = require_inputs("BitCast", (x,), 1)
        to, given = dtype_row(self.to), dtype_row(x.dtype)
        if is_host_object(to.numpy) or is_host_object(x.dtype):
            raise InputError(f"BitCast from {given.name} to {to.name} is not supported; neither may be an object.")
        if given.width != to.width:
            got = f"{given.name} of {given.width} bits and {to.name} of {to.width}"
            raise InputError(f"BitCast expects types of one width, got {got}.")
        return (TensorSpec(x.shape, to.numpy),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """View."""
        to = dtype_row(self.to).numpy
        return (np.not_equal(x.view(np.uint8), 0) if to == BOOL else x.view(to),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias under another type; conversion to bool compares, since other bytes than 0 and 1 are not valid bools."""
        (x,), (y,) = inputs, outputs
        if x is None or y is None:
            return
        is_compared = y.dtype == BOOL and x.dtype != BOOL
        bits = np.dtype(np.uint8) if is_compared else y.dtype
        same = Slot(x.buffer, x.offset_bytes, TensorSpec(x.shape, bits), x.strides)
        if is_compared:
            convert_commands(emit, y, same)
        else:
            emit.alias(y, same)
