"""Test operators: small, exact, and with every form of lowering (launch, view, in place, by offset, none)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.host_values import require_at_least, require_const
from gpuexec.ir.operator import Array, Emitter, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)
Slots = tuple[Slot | None, ...]


@operator("Scale", "test")
@dataclass(frozen=True, slots=True)
class Scale(Operator):
    """Multiply by ``factor`` and add ``offset``; may work in place."""

    factor: float = 2.0
    offset: float = 1.0
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        target = None if out is None else out[0]
        result = np.multiply(x, x.dtype.type(self.factor), out=target)
        return (np.add(result, x.dtype.type(self.offset), out=result if isinstance(result, np.ndarray) else None),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        if x.is_contiguous:
            emit.in_place(y, x)
        launch(emit, "scale", [x, y, np.int64(y.spec.size), np.float32(self.factor)], [1])


@operator("Sum", "test")
@dataclass(frozen=True, slots=True)
class Sum(Operator):
    """Add any number of tensors, broadcasting; may work in place on any."""

    tolerance = Tolerance.EXACT

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        try:
            shape = np.broadcast_shapes(*(x.shape for x in inputs))
        except ValueError as error:
            raise InputError(f"shapes {[x.shape for x in inputs]} don't broadcast.") from error
        return (inputs[0].with_shape(shape),)

    def compute(self, *inputs: Array, out: Any = None) -> tuple[Array, ...]:
        total = inputs[0]
        for x in inputs[1:]:
            total = total + x
        return (np.asarray(total),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        y = outputs[0]
        assert y is not None
        given = [x for x in inputs if x is not None]
        for x in given:
            if x.shape == y.shape and x.is_contiguous:
                emit.in_place(y, x)
        launch(emit, f"sum<{len(given)}>", [*given, y, np.int64(y.spec.size)], [len(given)])


@operator("Flip", "test")
@dataclass(frozen=True, slots=True)
class Flip(Operator):
    """Reverse the first axis: a view with a negative stride."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (x[::-1],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        last = max(x.shape[0] - 1, 0) * x.strides[0] * x.dtype.itemsize
        emit.alias(y, Slot(x.buffer, x.offset_bytes + last, x.spec, (-x.strides[0], *x.strides[1:])))


@operator("Halves", "test")
@dataclass(frozen=True, slots=True)
class Halves(Operator):
    """Split the first axis in two: views."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        half = x.shape[0] // 2
        return x.with_shape((half, *x.shape[1:])), x.with_shape((x.shape[0] - half, *x.shape[1:]))

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return x[: x.shape[0] // 2], x[x.shape[0] // 2 :]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x = inputs[0]
        assert x is not None
        start = 0
        for y in outputs:
            extent = x.shape[0] // 2 if start == 0 else x.shape[0] - x.shape[0] // 2
            if y is not None:
                offset = x.offset_bytes + start * x.strides[0] * x.dtype.itemsize
                emit.alias(y, Slot(x.buffer, offset, y.spec, x.strides))
            start += extent


@operator("Join", "test")
@dataclass(frozen=True, slots=True)
class Join(Operator):
    """Concatenate along the first axis, by offset where possible."""

    tolerance = Tolerance.EXACT

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if len({x.shape[1:] for x in inputs}) != 1:
            raise InputError(f"shapes {[x.shape for x in inputs]} don't join.")
        return (inputs[0].with_shape((sum(x.shape[0] for x in inputs), *inputs[0].shape[1:])),)

    def compute(self, *inputs: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.concatenate(inputs),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        y = outputs[0]
        assert y is not None
        start = 0
        for x in inputs:
            assert x is not None
            part = Slot(y.buffer, y.offset_bytes + start, TensorSpec(x.shape, x.dtype), contiguous_strides(x.shape))
            if not emit.place(x, part):
                emit.copy(part, x)
            start += x.spec.nbytes


@operator("Reshaped", "test")
@dataclass(frozen=True, slots=True)
class Reshaped(Operator):
    """View under the shape of the second input, which the host must know."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec, shape: TensorSpec) -> tuple[TensorSpec, ...]:
        extents = tuple(require_const(shape, "shape", 1).tolist())
        if int(np.prod(extents)) != x.size:
            raise InputError(f"{x} does not reshape to {extents}.")
        return (x.with_shape(extents),)

    def compute(self, x: Array, shape: Array, out: Any = None) -> tuple[Array, ...]:
        return (x.reshape(shape.tolist()),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        dense = emit.contiguous(x)
        emit.alias(y, Slot(dense.buffer, dense.offset_bytes, y.spec, contiguous_strides(y.shape)))


@operator("Room", "test")
@dataclass(frozen=True, slots=True)
class Room(Operator):
    """Zeros behind the rows of an input, as many as make a number of rows, if it has fewer."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec, total: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape((require_at_least(total, "total", 1, x.shape[0]), *x.shape[1:])),)

    def compute(self, x: Array, total: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.concatenate((x, np.zeros((max(0, int(total) - len(x)), *x.shape[1:]), x.dtype))),)


@operator("Extents", "test")
@dataclass(frozen=True, slots=True)
class Extents(Operator):
    """Give the shape as int64."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((x.rank,), INT).with_value(np.array(x.shape, INT)),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.array(x.shape, INT),)


@operator("NoKernel", "test")
@dataclass(frozen=True, slots=True)
class NoKernel(Operator):
    """Negate; has no lowering."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.negative(x),)


# What `Call` runs, by key: how a test looks into, holds up or breaks a command while it runs.
CALLED: dict[str, Callable[[Array], Array]] = {}


@operator("Call", "test")
@dataclass(frozen=True, slots=True)
class Call(Operator):
    """Run a function a test has put into ``CALLED``."""

    key: str
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (CALLED[self.key](x),)


@operator("CallOnAllCores", "test")
@dataclass(frozen=True, slots=True)
class CallOnAllCores(Call):
    """As `Call`, and taken to keep all cores busy."""

    uses_all_cores = True


def launch(emit: Emitter, name: str, arguments: Sequence[Any], writes: Sequence[int]) -> None:
    """Launch a kernel of the test's own file, one thread per element."""
    size = max(1, arguments[writes[0]].spec.size)
    emit.launch(Kernel("test.cu", name), (-(-size // 128), 1, 1), (128, 1, 1), arguments, writes)


# Called by `Watched.infer`: how a test looks into planning.
WATCHING: list[Callable[[], None]] = []


@operator("Watched", "test")
@dataclass(frozen=True, slots=True)
class Watched(Operator):
    """Copy, and be no size class: another kernel, scratch memory and a read of ``y`` for some numbers of rows."""

    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec, y: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        for call in WATCHING:
            call()
        if x.shape[0] == 5 and y is not None:
            require_const(y, "y", 1)
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, y: Array | None = None, out: Any = None) -> tuple[Array, ...]:
        return (x.copy(),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        kind = "large"
        if x.shape[0] < 4:
            kind = "small"
        if x.shape[0] < 3:
            emit.temp((4,), FLOAT)
        launch(emit, f"watched<{kind}>", [x, y], [1])


def meet(barrier: threading.Barrier) -> Callable[[Array], Array]:
    """Return a function for `CALLED` that returns only once all parties of the barrier have called theirs."""

    def call(x: Array) -> Array:
        barrier.wait(timeout=60)
        return x + 1

    return call
