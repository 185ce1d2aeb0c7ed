"""Optional, OptionalHasElement and OptionalGetElement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.containers import hold, make_optional, read_optional
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import OPTIONAL, DeclaredSpec, TensorSpec
from gpuexec.ops.containers.sequence import HOST_REASON

_BOOL = np.dtype(np.bool_)


@operator("Optional")
@dataclass(frozen=True, slots=True)
class Optional(Operator):
    """Optional of the input, or an empty one; ``type`` is the type of its content."""

    type: DeclaredSpec | None = None
    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    example = "sequence"
    flops_per_output = None

    def infer(self, x: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return an optional."""
        if x is None and self.type is None:
            raise InputError("Optional without an input expects the attribute 'type'.")
        if x is not None and x.dtype == OPTIONAL:
            raise InputError("Optional expects a tensor or a sequence, got an optional.")
        return (TensorSpec((), OPTIONAL),)

    def compute(self, x: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Wrap the input, or a copy where it may be overwritten."""
        return (make_optional(None if x is None else hold(x)),)


@operator("OptionalGetElement")
@dataclass(frozen=True, slots=True)
class OptionalGetElement(Operator):
    """Content of an optional; a tensor or a sequence is taken for an optional of it."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of the content: an optional must be known for that.

        Raises:
            InputError: It is empty.
        """
        if x.dtype != OPTIONAL:
            return (TensorSpec(x.shape, x.dtype),)
        item = _take(require_const(x, "optional", 0))
        return (TensorSpec(item.shape, item.dtype),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Return the content."""
        return (_take(x) if x.dtype == OPTIONAL else x,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input, which is a tensor here."""
        (x,), (y,) = inputs, outputs
        assert x is not None and y is not None
        emit.alias(y, x)


@operator("OptionalHasElement")
@dataclass(frozen=True, slots=True)
class OptionalHasElement(Operator):
    """Test of an optional for content: true for a tensor or a sequence, false for no input."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    example = "optional"
    flops_per_output = None
    has_blits = True

    def infer(self, x: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the spec of one bool, with its content unless the input is an optional."""
        spec = TensorSpec((), _BOOL)
        if x is not None and x.dtype == OPTIONAL:
            return (spec,)
        return (spec.with_value(np.asarray(x is not None)),)

    def compute(self, x: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Test for content."""
        is_there = x is not None and (x.dtype != OPTIONAL or read_optional(x) is not None)
        return (np.asarray(is_there, _BOOL),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Write true, since a tensor is always there."""
        if outputs[0] is not None:
            emit.fill(outputs[0], any(slot is not None for slot in inputs))


def _take(array: Array) -> Array:
    item = read_optional(array)
    if item is None:
        raise InputError("OptionalGetElement: the optional is empty; ask OptionalHasElement first.")
    return item
