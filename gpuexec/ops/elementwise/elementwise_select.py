"""Clip and Where."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import broadcast
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import COMPUTED, TensorSpec, dtype_row, dtypes_of
from gpuexec.ops.elementwise.elementwise_engine import (
    BOOL,
    NUMBERS,
    UNSIGNED_BY_SIZE,
    DType,
    apply,
    choose_greater,
    choose_less,
    require_inputs,
)
from gpuexec.ops.lib.broadcast import launch_broadcast

SOURCE = "elementwise_select.cu"
_SINGLE = np.dtype(np.float32)
_SELECTED = frozenset(row.numpy for row in COMPUTED)
instantiate(SOURCE, (f"where<{name}>" for name in UNSIGNED_BY_SIZE.values()))
instantiate(SOURCE, (f"clip<{dtype_row(dtype).cuda}>" for dtype in NUMBERS))
_FEW = 512  # elements


@operator("Where")
@dataclass(frozen=True, slots=True)
class Where(Operator):
    """condition ? a : b, all three broadcast; moves bits."""

    tolerance = Tolerance.EXACT
    example = "bool[2] float32[2] float32[2]"
    flops_per_output = 1
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, condition: TensorSpec, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Broadcast; a and b agree in dtype."""
        condition, a, b = require_inputs("Where", (condition, a, b), 3)
        if condition.dtype != BOOL:
            raise InputError(f"Where expects a condition of bool, got {condition}.")
        if a.dtype != b.dtype:
            raise InputError(f"Where expects both values of one type, got {a} and {b}.")
        dtype_row(a.dtype)
        return (TensorSpec(broadcast(condition.shape, a.shape, b.shape), a.dtype),)

    def find_dtype(self, dtypes: Sequence[DType | None]) -> DType | None:
        """Return the type of one of the values, as they agree."""
        return next((dtype for dtype in dtypes[1:] if dtype is not None), None)

    def compute(self, condition: Array, a: Array, b: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Select."""
        result = np.asarray(np.where(condition, a, b))
        wanted = out[0] if out else None
        if wanted is None:
            return (result,)
        np.copyto(wanted, result)
        return (wanted,)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what is not chosen."""
        condition, y = inputs[0], outputs[0]
        return [] if condition is None or y is None or y.size > _FEW else [condition.size]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy the one, then the other where it is chosen; of many elements that takes longer than a selection."""
        (condition, a, b), (y,) = inputs, out
        if condition is None or a is None or b is None or y is None or not 0 < y.size <= _FEW:
            return None
        if np.may_share_memory(y, condition):
            return None
        if not np.may_share_memory(y, a):
            return [functools.partial(np.copyto, y, b), functools.partial(np.copyto, y, a, "no", condition)]
        if not scratch or np.may_share_memory(y, b):
            return None
        others = view_bytes(scratch[0], condition.shape, BOOL)
        return [
            functools.partial(np.logical_not, condition, out=others),
            functools.partial(np.copyto, y, a),
            functools.partial(np.copyto, y, b, "no", others),
        ]

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return a selection, of types that kernels compute with."""
        values = inputs[1]
        if values is None or values.dtype not in _SELECTED:
            return None
        return Pointwise(_select, "({0} ? {1} : {2})", values.dtype)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once."""
        slots, (y,) = [x for x in inputs if x is not None], outputs
        if y is not None:
            launch_broadcast(emit, Kernel(SOURCE, f"where<{UNSIGNED_BY_SIZE[y.dtype.itemsize]}>"), slots, y)


@operator("Clip")
@dataclass(frozen=True, slots=True)
class Clip(Operator):
    """min(max(x, low), high): NaN stays, and where the bounds cross, high wins. Bounds are tensors of one element."""

    tolerance = Tolerance.EXACT
    flops_per_output = 1
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(
        self, x: TensorSpec, low: TensorSpec | None = None, high: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        if x.dtype not in NUMBERS:
            raise InputError(f"Clip expects {', '.join(d.name for d in NUMBERS)}, got {x}.")
        for role, bound in (("min", low), ("max", high)):
            if bound is None:
                continue
            if bound.size != 1:
                raise InputError(f"Clip expects {role} to hold one element, got {bound}.")
            # NOTE: old opsets have bounds as attributes, which are float32 whatever x is.
            if bound.dtype != x.dtype and not (
                bound.dtype == _SINGLE and bound.value is not None and x.dtype in dtypes_of("float")
            ):
                raise InputError(f"Clip expects {role} of type {x.dtype.name}, got {bound}.")
        return (TensorSpec(x.shape, x.dtype),)

    def compute(
        self, x: Array, low: Array | None = None, high: Array | None = None, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Clip; between 0 and -0 the result is the bound."""
        low, high = (None if bound is None else _cast_bound(bound, x.dtype) for bound in (low, high))

        return (apply(functools.partial(_clip, low=low, high=high), (x,), x.dtype, out),)

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return the two comparisons, where the bounds are of the input's type."""
        (x, low, high) = (*inputs, None, None)[:3]
        if x is None or any(bound is not None and bound.dtype != x.dtype for bound in (low, high)):
            return None
        code = "{0}"
        if low is not None:
            code = f"max_keeping_nan({code}, {{1}})"
        if high is not None:
            code = f"min_keeping_nan({code}, {{2}})"
        return Pointwise(_clip, code, x.dtype)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once; the bounds are read on the device."""
        (x, low, high), (y,) = (*inputs, None, None)[:3], outputs
        if x is None or y is None:
            return
        bounds = []
        for index, (role, bound) in enumerate((("min", low), ("max", high)), 1):
            if bound is not None and bound.dtype != x.dtype:
                bound = emit.constant(_round_bound(require_const(bound.spec, role, index), x.dtype))
            bounds.append(bound)
        launch_broadcast(
            emit,
            Kernel(SOURCE, f"clip<{dtype_row(x.dtype).cuda}>"),
            (x,),
            y,
            [int32(bound is not None) for bound in bounds],
            between=[x if bound is None else bound for bound in bounds],
        )


@upgrade("Clip", below=11)
def _bounds_to_inputs(node: RawNode) -> RawNode:
    """Move the bounds of Clip-6, float attributes with the limits of float as defaults, to inputs."""
    limit = np.finfo(np.float32).max
    for index, (name, default) in enumerate((("min", -limit), ("max", limit)), 1):
        node = node.with_input(index, np.array(node.attributes.get(name, default), np.float32)).without(name)
    return node


def _select(condition: Array, a: Array, b: Array, *, out: Array) -> None:
    np.copyto(out, np.where(condition, a, b))


class _Clip:
    """Clips arrays of the type that clipping is computed in; a bound is an array of one number."""

    __slots__ = ()

    def __call__(self, values: Array, low: Array | None = None, high: Array | None = None, *, out: Array) -> None:
        for call in self.bind((values, low, high), out, (False, True, True)):
            call()

    def bind(self, operands: Sequence[Any], out: Array, constant: Sequence[bool]) -> PreparedCalls:
        values, low, high = (*operands, None, None)[:3]
        _, is_low_constant, is_high_constant = (*constant, False, False, False)[:3]
        calls: list[Callable[[], object]] = []
        if low is not None:
            calls += choose_greater.bind(values, low, out, is_constant=is_low_constant)
            values = out
        if high is not None:
            calls += choose_less.bind(values, high, out, is_constant=is_high_constant)
        return calls or [functools.partial(np.copyto, out, values)]


_clip = _Clip()


def _round_bound(bound: Array, dtype: DType) -> Array:
    """Return a bound as a 0-d array of the type that is clipped; beyond its limits it is infinite."""
    with np.errstate(over="ignore"):
        return bound.reshape(()).astype(dtype)


def _cast_bound(bound: Array, dtype: DType) -> Array:
    """Return a bound as a 0-d array of the type clipping is computed in."""
    rounded = _round_bound(bound, dtype)
    return rounded.astype(np.float32) if dtype.itemsize == 2 and dtype in dtypes_of("float") else rounded
