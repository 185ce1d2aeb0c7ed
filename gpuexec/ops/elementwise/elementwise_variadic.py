"""Max, Min, Sum and Mean of any number of inputs that broadcast, folded from left to right."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.geometry import broadcast
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    KnownInput,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    count_elements,
    operator,
)
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_engine import (
    FLOATS,
    NUMBERS,
    DType,
    apply,
    gains_from_blocks,
    require_same_dtype,
)
from gpuexec.ops.lib.broadcast import launch_broadcast

SOURCE = "elementwise_variadic.cu"
MAX_INPUTS = 8  # kMaxInputs of the kernel source


def fold_expression(functor: str, first: DType, dtype: DType, output: DType) -> str:
    """Return the kernel instance that folds inputs of ``dtype`` onto a ``first`` one."""
    return f"fold<{functor}, {dtype_row(first).cuda}, {dtype_row(dtype).cuda}, {dtype_row(output).cuda}>"


class _Fold(Operator):
    """A left fold; subclasses name the function."""

    __slots__ = ()
    function: ClassVar[Callable[..., Any]]
    functor: ClassVar[str]
    dtypes: ClassVar[tuple[DType, ...]]
    divides: ClassVar[bool] = False
    tolerance = Tolerance.EXACT
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Broadcast all inputs, of which there is at least one."""
        specs = [spec for spec in inputs if spec is not None]
        if not specs or len(specs) != len(inputs):
            raise InputError(
                f"{self.name} expects one input or more and all of them given, got {len(specs)} of {len(inputs)}."
            )
        dtype = require_same_dtype(self.name, specs, self.dtypes)
        return (TensorSpec(broadcast(*(spec.shape for spec in specs)), dtype),)

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count a step for each input behind the first."""
        return count_elements(outputs, 0) * max(1, len(inputs) - 1)

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether there is one input."""
        return len(inputs) == 1

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Fold; half and bfloat16 stay float32 until the end."""
        arrays = [x for x in inputs if x is not None]
        return (apply(self._fold, arrays, arrays[0].dtype, out),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Fold in the output's memory, where no input is there that is still to be read, and no blocks are made."""
        y, arrays = out[0], [x for x in inputs if x is not None]
        if y is None or accumulator(y.dtype) != y.dtype or len(arrays) < 2 or gains_from_blocks(self._fold, arrays, y):
            return None
        if any(np.may_share_memory(x, y) for x in arrays[2:]) or broadcast(*(x.shape for x in arrays[:2])) != y.shape:
            return None
        function = type(self).function
        calls = [functools.partial(function, arrays[0], arrays[1], out=y)]
        calls += [functools.partial(function, y, x, out=y) for x in arrays[2:]]
        if self.divides:
            calls.append(functools.partial(np.divide, y, np.array(len(arrays), y.dtype), out=y))
        return calls

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return the fold."""
        first = inputs[0]
        if first is None:
            return None
        code = "{0}"
        for position in range(1, len(inputs)):
            code = f"{self.functor}::apply({code}, {{{position}}})"
        if self.divides and len(inputs) > 1:
            code = f"{code} / {dtype_row(accumulator(first.dtype)).cuda}({len(inputs)})"
        is_one_call = len(inputs) == 2 and not self.divides
        return Pointwise(type(self).function if is_one_call else self._fold, code, first.dtype)

    def _fold(self, *values: Array, out: Array) -> None:
        function = type(self).function
        if len(values) == 2 and not self.divides:
            function(*values, out=out)
            return
        # Fresh memory: ``out`` may be that of an input still to be read.
        result = values[0]
        for value in values[1:]:
            result = function(result, value)
        np.divide(result, len(values), out=out) if self.divides and len(values) > 1 else np.copyto(out, result)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once for up to eight inputs, once more for each seven further ones."""
        slots, (y,) = [x for x in inputs if x is not None], outputs
        if y is None:
            return
        rest, first = slots[1:], slots[0]
        while True:
            taken, rest = rest[: MAX_INPUTS - 1], rest[MAX_INPUTS - 1 :]
            target = emit.temp(y.shape, accumulator(y.dtype)) if rest else y
            divisor = len(slots) if self.divides and not rest else 1
            kernel = Kernel(SOURCE, fold_expression(self.functor, first.dtype, y.dtype, target.dtype))
            filler = [taken[-1] if taken else first] * (MAX_INPUTS - 1 - len(taken))  # pointers that are not read
            scalars = [int32(1 + len(taken)), int32(divisor)]
            launch_broadcast(emit, kernel, (first, *taken, *filler), target, scalars, in_place=not rest)
            if not rest:
                return
            first = target


def _instances(functor: str, dtypes: tuple[DType, ...]) -> list[str]:
    triples = []
    for dtype in dtypes:
        wide = accumulator(dtype)
        triples += [(dtype, dtype, dtype), (dtype, dtype, wide), (wide, dtype, wide), (wide, dtype, dtype)]
    return [fold_expression(functor, *triple) for triple in triples]


@operator("Sum")
@dataclass(frozen=True, slots=True)
class Sum(_Fold):
    """x0 + x1 + ..."""

    function = np.add
    functor = "Add"
    dtypes = FLOATS


@operator("Mean")
@dataclass(frozen=True, slots=True)
class Mean(_Fold):
    """(x0 + x1 + ...) / count."""

    function = np.add
    functor = "Add"
    dtypes = FLOATS
    divides = True


@operator("Max")
@dataclass(frozen=True, slots=True)
class Max(_Fold):
    """Largest of the inputs; a NaN wins, and of 0 and -0 the later one."""

    function = np.maximum
    functor = "Maximum"
    dtypes = NUMBERS


@operator("Min")
@dataclass(frozen=True, slots=True)
class Min(_Fold):
    """Smallest of the inputs; a NaN wins, and of 0 and -0 the later one."""

    function = np.minimum
    functor = "Minimum"
    dtypes = NUMBERS


for _operator in (Sum, Max, Min):
    instantiate(SOURCE, _instances(_operator.functor, _operator.dtypes))
