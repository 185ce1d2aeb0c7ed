"""Tensors made of shapes, attributes or scalars: Shape, Size, Constant, ConstantOfShape, Range.

`store_commands` is how content that the host knows gets to the device: by value in the arguments of a launch, so that
no staging memory and no copy is needed, and another content is only another argument.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import array_of, int32, int64, scalar, to_bytes
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.spec import STRING, SymbolicValue, TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.symbolic_int import SymbolicInt
from gpuexec.ops.lib.checks import require_ints, require_scalar
from gpuexec.ops.tensor.layout import read_ints

# Bytes of content per launch, out of 4096 that arguments may have. Two will do: each is a kernel of its own, and a
# model whose sizes grow should not need a new one.
CAPACITIES = (64, 1024)
RANGE_DTYPES = (*dtypes_of("float"), *(np.dtype(name) for name in ("int16", "int32", "int64")))

instantiate("generate.cu", [f"store<{capacity}>" for capacity in CAPACITIES])
instantiate("generate.cu", [f"range<{dtype_row(dtype).cuda}>" for dtype in RANGE_DTYPES])

INT64 = np.dtype(np.int64)
_THREADS = 256  # kThreads of generate.cu
_TABLE = 2048  # elements of a table that is made once for arrays that stay, at most

Literal = tuple[str, tuple[int, ...], str]


def to_literal(array: Array) -> Literal:
    """Return an array as plain data: dtype, shape, bytes in hexadecimal (strings: as a list in JSON).

    Equal content gives equal literals.
    """
    if array.dtype == STRING:
        return dtype_row(STRING).name, array.shape, json.dumps(array.reshape(-1).tolist())
    return dtype_row(array.dtype).name, array.shape, np.ascontiguousarray(array).tobytes().hex()


def from_literal(literal: Literal) -> Array:
    """Return the array a literal was made of."""
    dtype, shape, content = literal
    if dtype_row(dtype).numpy == STRING:
        return np.array(json.loads(content), STRING).reshape(shape)
    return np.frombuffer(bytes.fromhex(content), dtype_row(dtype).numpy).reshape(shape)


def store_commands(emit: Emitter, destination: Slot, array: Array, capacity: int | None = None) -> None:
    """Launch the store of host content into a contiguous slot.

    Args:
        emit: Emitter of the launches.
        destination: Destination slot, of the array's shape and dtype.
        array: The content.
        capacity: Number of bytes that the same commands must be able to store when the extents grow; the kernels and
            the number of launches follow from it alone.
    """
    content = to_bytes(array, destination.dtype)
    assert destination.is_contiguous and destination.spec.nbytes == len(content), (destination, array.shape)
    room = max(len(content), capacity or 0)
    size = next((size for size in CAPACITIES if size >= room), CAPACITIES[-1])
    for first in range(0, max(room, 1), size):
        piece = content[first : first + size]
        emit.launch(
            Kernel("generate.cu", f"store<{size}>"),
            (ceil_div(size, _THREADS), 1, 1),
            (_THREADS, 1, 1),
            [destination, piece.ljust(size, b"\0"), int64(first), int32(len(piece))],
            writes=[0],
        )


@operator("Shape")
@dataclass(frozen=True, slots=True)
class Shape(Operator):
    """Extents of axes ``start`` to before ``end`` (clamped; negative ones count from the back) as int64."""

    start: int = 0
    end: int | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    derivative = Derivative.ZERO
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec with its content."""
        extents = self._extents(x.shape)
        return (TensorSpec(extents.shape, INT64).with_value(extents),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Read the array's shape."""
        return (self._extents(x.shape),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Store the extents."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        store_commands(emit, y, self._extents(x.shape))

    def _extents(self, shape: tuple[int, ...]) -> Array:
        return array_of(shape[self.start : self.end])


@operator("Size")
@dataclass(frozen=True, slots=True)
class Size(Operator):
    """Number of elements as int64."""

    tolerance = Tolerance.EXACT
    flops_per_output = 0
    derivative = Derivative.ZERO
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec with its content."""
        return (TensorSpec((), INT64).with_value(array_of([x.size]).reshape(())),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Read the array's size."""
        return (np.array(x.size, np.int64),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Store the number."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        store_commands(emit, y, array_of([x.spec.size]).reshape(()))


@operator("Constant")
@dataclass(frozen=True, slots=True)
class Constant(Operator):
    """Tensor that stands in the model. Exactly one attribute is set; ``value`` may be given as an array."""

    value: Literal | None = None
    value_float: float | None = None
    value_floats: tuple[float, ...] | None = None
    value_int: int | None = None
    value_ints: tuple[int, ...] | None = None
    tolerance = Tolerance.EXACT
    example = "value=('float32',(1,),'00000000')"
    flops_per_output = 0
    has_blits = True

    def __post_init__(self) -> None:
        freeze_value(self)
        plain = (self.value_float, self.value_floats, self.value_int, self.value_ints)
        count = sum(given is not None for given in (self.value, *plain))
        if count != 1:
            raise InputError(
                f"Constant takes exactly one of value, value_float, value_floats, value_int, value_ints, got {count}."
            )

    def infer(self) -> tuple[TensorSpec, ...]:
        """Return the spec with its content."""
        array = self._array()
        return (TensorSpec(array.shape, array.dtype).with_value(array),)

    def compute(self, *, out: Out = None) -> tuple[Array, ...]:
        """Return the array, read-only."""
        return (self._array(),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy the value."""
        y = out[0]
        return None if y is None else [partial(np.copyto, y, self._array())]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias a table in device memory."""
        assert outputs[0] is not None
        emit.alias(outputs[0], emit.constant(self._array()))

    def _array(self) -> Array:
        if self.value is not None:
            return from_literal(self.value)
        floats = self.value_float if self.value_floats is None else self.value_floats
        if floats is not None:
            return np.array(floats, np.float32)
        return np.array(self.value_int if self.value_ints is None else self.value_ints, np.int64)


@operator("ConstantOfShape")
@dataclass(frozen=True, slots=True)
class ConstantOfShape(Operator):
    """Tensor of the given shape filled with the element of ``value`` (an array of one); by default float32 zero."""

    value: Literal | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    derivative = Derivative.ZERO
    has_blits = True

    def __post_init__(self) -> None:
        freeze_value(self)
        if self._element().size != 1:
            raise InputError(f"value must hold one element, got shape {list(self._element().shape)}.")

    def infer(self, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the shape that is the input's content."""
        return (TensorSpec(_check_extents(require_ints(shape, "input", 0)), self._element().dtype),)

    def compute(self, shape: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Fill."""
        element = self._element()
        return (np.full(_check_extents(read_ints(shape)), element.reshape(()), element.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Fill."""
        assert outputs[0] is not None
        emit.fill(outputs[0], self._element().reshape(()))

    def _element(self) -> Array:
        return np.zeros(1, np.float32) if self.value is None else from_literal(self.value)


@operator("Range")
@dataclass(frozen=True, slots=True)
class Range(Operator):
    """Numbers from ``start`` to before ``limit`` by ``delta``: element i is start + i * delta."""

    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, start: TensorSpec, limit: TensorSpec, delta: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count the elements; all three scalars must be known."""
        specs = (start, limit, delta)
        for index, (spec, role) in enumerate(zip(specs, ("start", "limit", "delta"), strict=True)):
            if spec.size != 1 or spec.dtype != start.dtype or spec.dtype not in RANGE_DTYPES:
                known = ", ".join(dtype.name for dtype in RANGE_DTYPES)
                given = f"got input {index} ({role}) {spec}"
                raise InputError(f"Range expects three scalars of one type among {known}, {given}.")
        return (TensorSpec((_count(*_read_bounds(specs)),), start.dtype),)

    def compute(self, start: Array, limit: Array, delta: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Multiply and add in the accumulator type, as the kernel does."""
        scalars = [bound.reshape(()) for bound in (start, limit, delta)]
        acc = accumulator(start.dtype)
        with np.errstate(all="ignore"):
            steps = np.arange(_count(*scalars)).astype(acc)
            return ((scalars[0].astype(acc) + steps * scalars[2].astype(acc)).astype(start.dtype),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply and add in the output's memory; how many numbers there are was known when it was made."""
        (start, _, delta), (y,) = inputs, out
        if start is None or delta is None or y is None or accumulator(y.dtype) != y.dtype or y.size > _TABLE:
            return None
        steps = np.arange(len(y)).astype(y.dtype)
        return [
            partial(np.multiply, steps, delta.reshape(()), out=y),
            partial(np.add, start.reshape(()), y, out=y),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per element, with start and delta by value."""
        y = outputs[0]
        assert y is not None
        start, _, delta = _read_bounds([None if slot is None else slot.spec for slot in inputs])
        acc = accumulator(y.dtype).type
        emit.launch(
            Kernel("generate.cu", f"range<{dtype_row(y.dtype).cuda}>"),
            (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
            (_THREADS, 1, 1),
            [y, int64(y.spec.size), *(scalar(acc, each) for each in (start, delta))],
            writes=[0],
        )


def freeze_value(op: Any) -> None:
    """Convert the attribute ``value`` of a frozen operator, where it was given as an array, into a literal."""
    if isinstance(op.value, np.ndarray):
        object.__setattr__(op, "value", to_literal(op.value))


def _read_bounds(specs: Any) -> list[Any]:
    """Return start, limit and delta: arrays of rank 0, or symbolic numbers."""
    roles = ("start", "limit", "delta")
    return [
        spec.value.symbols.reshape(-1)[0]
        if isinstance(spec.value, SymbolicValue)
        else require_scalar(spec, role, index)
        for index, (spec, role) in enumerate(zip(specs, roles, strict=True))
    ]


def _count(start: Any, limit: Any, delta: Any) -> int:
    """Return max(ceil((limit - start) / delta), 0): exact for integers, in double for floats."""
    if delta == 0:
        raise InputError("Range expects a delta that is not 0, got 0.")
    if any(isinstance(each, SymbolicInt) for each in (start, limit, delta)) or start.dtype.kind == "i":
        first, last, step = (_as_int(each) for each in (start, limit, delta))
        return max(0, ceil_div(last - first, step))
    quotient = (float(limit) - float(start)) / float(delta)
    if not np.isfinite(quotient):
        raise InputError(f"Range expects a countable number of elements, got {start} to {limit} by {delta}.")
    return max(0, ceil(quotient))


def _as_int(bound: Any) -> Any:
    return bound if isinstance(bound, SymbolicInt) else int(bound)


def _check_extents(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(extent < 0 for extent in shape):
        raise InputError(f"a shape must hold extents of 0 or more, got {list(shape)}.")
    return shape
