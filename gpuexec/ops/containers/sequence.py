"""Sequence operators: construction, insertion, erasure, access; every change makes a new sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.containers import find_held, hold, make_sequence, read_sequence
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import SEQUENCE, TensorSpec, dtype_row, is_container, name_dtype

SEQUENCE_SPEC = TensorSpec((), SEQUENCE)
HOST_REASON = "sequences and optionals are containers on the host"
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


@operator("SequenceConstruct")
@dataclass(frozen=True, slots=True)
class SequenceConstruct(Operator):
    """A sequence of the inputs, which are of one element type."""

    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a sequence."""
        if not inputs:
            raise InputError("SequenceConstruct expects at least one input.")
        for spec in inputs:
            check_alike(inputs[0].dtype, spec.dtype)
        return (SEQUENCE_SPEC,)

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Collect the inputs, or copies where they may be overwritten."""
        return (make_sequence([hold(array) for array in inputs]),)


@operator("SequenceEmpty")
@dataclass(frozen=True, slots=True)
class SequenceEmpty(Operator):
    """An empty sequence for elements of a type (ONNX's default: float)."""

    dtype: int = 1
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = None

    def infer(self) -> tuple[TensorSpec, ...]:
        """Return a sequence."""
        dtype_row(self.dtype)
        return (SEQUENCE_SPEC,)

    def compute(self, *, out: Out = None) -> tuple[Array, ...]:
        """Make an empty sequence."""
        return (make_sequence([], dtype_row(self.dtype).numpy),)


@operator("SequenceAt")
@dataclass(frozen=True, slots=True)
class SequenceAt(Operator):
    """The element at a position; negative ones count from the back."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    example = "sequence int64[]=0"
    flops_per_output = None

    def infer(self, sequence: TensorSpec, position: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the element's spec: no two elements need be alike, so sequence and position must be known."""
        check_sequence(self.name, sequence)
        check_position(self.name, position)
        items = read_sequence(require_const(sequence, "sequence", 0))
        item = items[_find_place(self.name, require_const(position, "position", 1), len(items))]
        return (TensorSpec(item.shape, item.dtype),)

    def compute(self, sequence: Array, position: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Return the element."""
        items = read_sequence(sequence)
        return (items[_find_place(self.name, position, len(items))],)


@operator("SequenceInsert")
@dataclass(frozen=True, slots=True)
class SequenceInsert(Operator):
    """The sequence with a tensor inserted before a position, from -n to n; without one, at the end."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    example = "sequence float32[2]"
    flops_per_output = None
    keeps_dtype = True

    def infer(
        self, sequence: TensorSpec, tensor: TensorSpec, position: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return a sequence."""
        check_sequence(self.name, sequence)
        check_position(self.name, position)
        if is_container(tensor.dtype):
            raise InputError(f"SequenceInsert expects a tensor to put in, got {tensor}.")
        return (SEQUENCE_SPEC,)

    def compute(
        self, sequence: Array, tensor: Array, position: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Insert the tensor."""
        items, held = read_sequence(sequence), find_held(sequence)
        if held is not None:
            check_alike(held, tensor.dtype)
        place = len(items)
        if position is not None:
            place = _find_place(self.name, position, len(items), beyond=1)
        items.insert(place, hold(tensor))
        return (make_sequence(items),)


@operator("SequenceErase")
@dataclass(frozen=True, slots=True)
class SequenceErase(Operator):
    """The sequence without the element at a position; negative ones count from the back; without one, the last."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    example = "sequence int64[]=0"
    flops_per_output = None
    keeps_dtype = True

    def infer(self, sequence: TensorSpec, position: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return a sequence."""
        check_sequence(self.name, sequence)
        check_position(self.name, position)
        return (SEQUENCE_SPEC,)

    def compute(self, sequence: Array, position: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Erase the element."""
        items = read_sequence(sequence)
        last = np.asarray(-1) if position is None else position
        del items[_find_place(self.name, last, len(items))]
        return (make_sequence(items, find_held(sequence)),)


@operator("SequenceLength")
@dataclass(frozen=True, slots=True)
class SequenceLength(Operator):
    """Number of elements, as one int64."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    flops_per_output = None

    def infer(self, sequence: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of one int64."""
        check_sequence(self.name, sequence)
        return (TensorSpec((), np.dtype(np.int64)),)

    def compute(self, sequence: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Count them."""
        return (np.asarray(len(read_sequence(sequence)), np.int64),)


def check_sequence(name: str, spec: TensorSpec) -> None:
    """Check that an input is a sequence.

    Raises:
        InputError: It is not.
    """
    if spec.dtype != SEQUENCE:
        raise InputError(f"{name} expects a sequence, got {spec}.")


def check_alike(first: np.dtype[Any], other: np.dtype[Any]) -> None:
    """Check that an element is of the type of the first.

    Raises:
        InputError: It is not.
    """
    if first != other:
        raise InputError(
            f"the elements of a sequence are of one type, expected {name_dtype(first)}, got {name_dtype(other)}."
        )


def check_position(name: str, spec: TensorSpec | None) -> None:
    """Check that a position, if given, is one int32 or int64.

    Raises:
        InputError: It is not.
    """
    if spec is not None and (spec.size != 1 or spec.dtype not in _INTEGERS):
        raise InputError(f"{name} expects a position of one int32 or int64, got {spec}.")


def _find_place(name: str, position: Array, count: int, beyond: int = 0) -> int:
    """Return a position from 0 up, in a sequence of ``count`` and so many places behind it."""
    place, places = int(position.reshape(())), count + beyond
    if not -count <= place < places:
        span = f"from {-count} to {places - 1}" if places else "none, for it is empty"
        raise InputError(f"{name}: position {place} is outside the sequence of {count}; expected {span}.")
    return place + count if place < 0 else place
