"""Matrix products: MatMul, Gemm.

One launch serves both (`gpuexec.ops.linalg.matmul_launch`). Operands go by strides, so that a transposed or broadcast
view costs no copy. Rows that share one right operand are one long axis, however many batch axes they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import broadcast, broadcast_strides, contiguous_strides
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    count_elements,
    operator,
    upgrade,
)
from gpuexec.ir.precision import STORED
from gpuexec.ir.prepared_calls import has_scratch, prepare_elementwise
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import truncate
from gpuexec.ops.lib.shared_products import matmul, prepare_matmul
from gpuexec.ops.linalg.exact_product import multiply_exactly
from gpuexec.ops.linalg.matmul_launch import DTYPES, launch_gemm, take_operands
from gpuexec.ops.linalg.product import join_rows
from gpuexec.ops.quant.narrow_weight import NarrowWeight

_FLOAT: np.dtype[Any] = np.dtype(np.float32)
# Of an operand in float that prepared calls keep from run to run, and of one that they make in scratch in each run.
KEPT_NBYTES, _WIDENED_NBYTES = 1 << 16, 4 << 20


@operator("MatMul")
@dataclass(frozen=True, slots=True)
class MatMul(Operator):
    """Matrix product as NumPy's matmul: batch axes broadcast, a 1-D operand is a row (left) or a column (right)."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)
    takes_narrow = True
    precision: str = ""  # of `ir.precision`: what operands come rounded to, "reference", or "": any order of sums

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: A 0-d operand, different or unsupported types, or extents that do not fit.
        """
        a, b = _check_operands("MatMul", a, b)
        if not a.shape or not b.shape:
            raise InputError(f"MatMul expects operands of rank 1 or more, got {a} and {b}.")
        rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
        if a.shape[-1] != b.shape[max(b.rank - 2, 0)]:
            raise InputError(f"MatMul expects as many columns on the left as rows on the right, got {a} and {b}.")
        shape = (*broadcast(a.shape[:-2], b.shape[:-2]), *rows, *columns)
        return (TensorSpec(shape, find_result(a.dtype, self.precision)),)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the operands' type, or float where a precision says that they are narrow."""
        return _FLOAT if self.precision in STORED else dtypes[0] if dtypes else None

    @property
    def scaled_product(self) -> Mapping[str, Any]:
        """Attributes of the product of operands with scales: none."""
        return {}

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the rows of the left operand, the columns of the right one."""
        return rank - 2 + factor if rank > 1 else None

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count a product and a sum for each element of the output and of the axis summed over."""
        a = inputs[0]
        return 0 if a is None else 2 * count_elements(outputs, 0) * a.shape[-1]

    def compute(self, a: Array, b: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Multiply; half and bfloat16 in float, rounded once."""
        a, b = widen_operands(self.precision, a, b)
        return (multiply(a, b, out[0] if out else None),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count operands and result as floats, where they are narrower."""
        return count_widened(inputs[0], inputs[1], outputs[0])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Call NumPy's product of views that BLAS can walk; half and bfloat16 are widened, constants perhaps once."""
        (a, b), (y,) = inputs, out
        made = prepare_widened_product(a, b, y, constant, scratch)
        return None if made is None else made.finish()

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once, over all batches."""
        if emit.leaves_to_host():
            return
        self.lower_with(emit, inputs, outputs)

    def lower_with(
        self,
        emit: Emitter,
        inputs: Slots,
        outputs: Slots,
        narrow: NarrowWeight | None = None,
        alpha: float = 1.0,
    ) -> None:
        """Lower, the right operand perhaps narrow, the product perhaps times a number.

        The result may be a window whose axes stand in another order, where both operands have two axes at least.
        """
        (a, b, *_), y = inputs, outputs[0]
        assert a is not None and b is not None and y is not None
        if narrow is not None and a.dtype != y.dtype and self._launch(emit, (a, b, y), narrow, alpha):
            return
        self._launch(emit, (*take_operands(emit, y, a, b, is_narrow=narrow is not None), y), narrow, alpha)

    def _launch(self, emit: Emitter, slots: tuple[Slot, Slot, Slot], narrow: NarrowWeight | None, alpha: float) -> bool:
        """Launch once, as `launch_gemm` does."""
        a, b, y = slots
        a_shape, a_strides = (a.shape, a.strides) if a.spec.rank > 1 else ((1, *a.shape), (0, *a.strides))
        b_shape, b_strides = (b.shape, b.strides) if b.spec.rank > 1 else ((*b.shape, 1), (*b.strides, 0))
        rows, columns, rank = a_shape[-2], b_shape[-1], b.spec.rank
        batch = broadcast(a_shape[:-2], b_shape[:-2])
        y_shape = (*batch, rows, columns)
        y_strides = y.strides if y.shape == y_shape else contiguous_strides(y_shape)
        walks = (
            (*broadcast_strides(a_shape[:-2], a_strides[:-2], batch), a_strides[-2]),
            (*broadcast_strides(b_shape[:-2], b_strides[:-2], batch), 0),
            y_strides[:-1],
        )
        row_extent, (a_row, _, y_row), batches = join_rows((*batch, rows), walks)
        return launch_gemm(
            emit,
            (a, b, None, y),
            (row_extent, columns, a_shape[-1]),
            (a_row, a_strides[-1], b_strides[-2], b_strides[-1], 0, 0, y_row),
            scale=(alpha, 1.0),
            batch=batches,
            y_column=y_strides[-1],
            narrow=narrow,
            scale_steps=(0, 0) if narrow is None else narrow.steps(*((rank - 2, rank - 1) if rank > 1 else (0, None))),
            precision=self.precision,
        )


@operator("Gemm")
@dataclass(frozen=True, slots=True)
class Gemm(Operator):
    """``alpha * A' @ B' + beta * C``; C broadcasts to the product and is not read where ``beta`` is 0."""

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815 (ONNX spelling)
    transB: int = 0  # noqa: N815
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)
    takes_narrow = True
    precision: str = ""  # as of MatMul; C is of the result's type

    def infer(self, a: TensorSpec, b: TensorSpec, c: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: A or B is not a matrix, types differ, extents do not fit, or C does not broadcast.
        """
        a, b = _check_operands("Gemm", a, b)
        if a.rank != 2 or b.rank != 2:
            raise InputError(f"Gemm expects two matrices, got {a} and {b}.")
        rows, inner = a.shape[::-1] if self.transA else a.shape
        inner_b, columns = b.shape[::-1] if self.transB else b.shape
        if inner != inner_b:
            raise InputError(
                f"Gemm expects equal inner extents, got {inner} of {a} (transA={self.transA}) "
                f"and {inner_b} of {b} (transB={self.transB})."
            )
        if c is not None:
            if c.dtype != find_result(a.dtype, self.precision):
                raise InputError(f"Gemm expects C of type {find_result(a.dtype, self.precision).name}, got {c}.")
            broadcast_strides(c.shape, (0,) * c.rank, (rows, columns))
        return (TensorSpec((rows, columns), find_result(a.dtype, self.precision)),)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the operands' type, or float where a precision says that they are narrow."""
        return _FLOAT if self.precision in STORED else dtypes[0] if dtypes else None

    @property
    def scaled_product(self) -> Mapping[str, Any]:
        """Attributes of the product of operands with scales: its own."""
        return {"alpha": self.alpha, "beta": self.beta, "transA": self.transA, "transB": self.transB}

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the rows of A', the columns of B'."""
        return (self.transA, 1 - self.transB)[factor]

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the product as MatMul does, and a sum with C where there is one."""
        a = inputs[0]
        depth = 0 if a is None else a.shape[0 if self.transA else 1]
        return count_elements(outputs, 0) * (2 * depth + (len(inputs) > 2 and inputs[2] is not None))

    def compute(self, a: Array, b: Array, c: Array | None = None, *, out: Out = None) -> tuple[Array | None, ...]:
        """Multiply in the accumulator's type, scale, add, round once."""
        a, b = widen_operands(self.precision, a, b)
        a, b = a.T if self.transA else a, b.T if self.transB else b
        target = out[0] if out else None
        reads_c = c is not None and self.beta != 0
        if self.alpha == 1 and not reads_c:
            return (multiply(a, b, target),)
        dtype, acc = a.dtype, accumulator(a.dtype)
        with np.errstate(all="ignore"):
            result = multiply(a.astype(acc, copy=False), b.astype(acc, copy=False), target if dtype == acc else None)
            if dtype.kind in "iu" and (self.alpha != 1 or (reads_c and self.beta != 1)):
                scaled = result * np.float64(self.alpha)
                if c is not None and reads_c:
                    scaled += c * np.float64(self.beta)
                return (truncate(scaled, dtype),)
            if self.alpha != 1:
                result *= acc.type(self.alpha)
            if c is not None and reads_c:
                result += c if self.beta == 1 else c.astype(acc) * acc.type(self.beta)
            return (result.astype(dtype, copy=False),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count operands and result as floats, where they are narrower."""
        return count_widened(inputs[0], inputs[1], outputs[0])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply, scale and add in the output's memory, or in float; C is widened as it is added."""
        (a, b, c), (y,) = (*inputs, None)[:3], out
        assert a is not None and b is not None
        a, b = a.T if self.transA else a, b.T if self.transB else b
        made = prepare_widened_product(a, b, y, constant, scratch)
        if made is None or (c is not None and self.beta not in (0, 1)):
            return None
        steps: list[Callable[[], object]] = []
        if self.alpha != 1:
            steps.append(
                prepare_elementwise(np.multiply, (made.result, np.array(self.alpha, made.result.dtype)), made.result)
            )
        if c is not None and self.beta != 0:
            steps.append(prepare_elementwise(np.add, (made.result, c), made.result))
        return made.finish(steps)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once; transposes are strides."""
        if emit.leaves_to_host():
            return
        self.lower_with(emit, inputs, outputs)

    def lower_with(self, emit: Emitter, inputs: Slots, outputs: Slots, narrow: NarrowWeight | None = None) -> None:
        """Lower, B perhaps narrow."""
        a, b, c = (*inputs, None)[:3]
        (y,) = outputs
        assert a is not None and b is not None and y is not None
        if narrow is not None and a.dtype != y.dtype and self._launch(emit, (a, b, c, y), narrow):
            return
        a, b = take_operands(emit, y, a, b, is_narrow=narrow is not None)
        self._launch(emit, (a, b, c, y), narrow)

    def _launch(self, emit: Emitter, slots: tuple[Slot, Slot, Slot | None, Slot], narrow: NarrowWeight | None) -> bool:
        """Launch once, as `launch_gemm` does."""
        a, b, c, y = slots
        (rows, inner), (a_row, a_k) = (a.shape[::-1], a.strides[::-1]) if self.transA else (a.shape, a.strides)
        b_k, b_column = b.strides[::-1] if self.transB else b.strides
        columns = y.shape[1]
        c = None if self.beta == 0 else c
        c_row, c_column = broadcast_strides(c.shape, c.strides, y.shape) if c is not None else (0, 0)
        return launch_gemm(
            emit,
            (a, b, c, y),
            (rows, columns, inner),
            (a_row, a_k, b_k, b_column, c_row, c_column, columns),
            scale=(self.alpha, self.beta),
            narrow=narrow,
            scale_steps=(0, 0) if narrow is None else narrow.steps(*((1, 0) if self.transB else (0, 1))),
            precision=self.precision,
        )


def find_result(dtype: np.dtype[Any], precision: str) -> np.dtype[Any]:
    """Return the type of a product of operands of a type: float where a precision says that they are stored in it."""
    return _FLOAT if precision in STORED else dtype


def find_narrow(precision: str) -> np.dtype[Any] | None:
    """Return the type of 16 bits that operands of products have in a precision; None where they are as they come."""
    return dtype_row(STORED[precision]).numpy if precision in STORED else None


def widen_operands(precision: str, *arrays: Array) -> tuple[Array, ...]:
    """Return operands as floats where a precision says that they are stored in it."""
    return tuple([each.astype(_FLOAT, copy=False) for each in arrays]) if precision in STORED else arrays


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b``, into ``out`` where it is dense (the bits must not depend on where they go).

    Half and bfloat16 are multiplied in float. Operands that BLAS can't walk are copied first: NumPy's own loop is slow.
    """
    if a.dtype.kind in "iu":
        return multiply_exactly(a, b, a.dtype)
    acc = accumulator(a.dtype)
    if acc != a.dtype:
        with np.errstate(all="ignore"):
            return np.asarray(multiply(a.astype(acc), b.astype(acc))).astype(a.dtype)
    a, b = _walkable(a), _walkable(b)
    if out is not None and not out.flags.c_contiguous:
        out = None
    with np.errstate(all="ignore"):
        if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous:  # one tall product instead of one per batch
            shape = (*a.shape[:-1], b.shape[1])
            target = None if out is None else out.reshape(-1, b.shape[1])
            return matmul(a.reshape(-1, a.shape[-1]), b, target).reshape(shape) if a.size else np.zeros(shape, a.dtype)
        return matmul(a, b, out)


def prepare_product(a: Array | None, b: Array | None, y: Array | None) -> PreparedCalls | None:
    """Return the call that `multiply` makes to write a product of floats to ``y``; None where it does more."""
    if a is None or b is None or y is None or not y.size or not a.size:
        return None
    dtype = y.dtype
    if dtype.kind != "f" or not a.dtype == b.dtype == dtype == accumulator(dtype):
        return None
    if not (y.flags.c_contiguous and _walkable(a) is a and _walkable(b) is b):
        return None
    if min(a.ndim, b.ndim) < 2:
        return [partial(np.matmul, a, b, out=y)]
    if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous:
        a, y = a.reshape(-1, a.shape[-1]), y.reshape(-1, b.shape[1])
    return [prepare_matmul(a, b, y)]


@dataclass(frozen=True, slots=True)
class WidenedProduct:
    """Calls of a product in float.

    Attributes:
        calls: They make ``result``.
        result: The product in float: the output itself, or scratch.
        out: The output.
    """

    calls: list[Callable[[], object]]
    result: Array
    out: Array

    def finish(self, steps: Sequence[Callable[[], object]] = ()) -> PreparedCalls:
        """Return the calls with steps that change the result behind them, which is rounded once then."""
        rounding = [] if self.result is self.out else [partial(np.copyto, self.out, self.result, "unsafe")]
        return [*self.calls, *steps, *rounding]


def count_widened(*specs: TensorSpec | None) -> list[int]:
    """Return the bytes of an operator's operands and result in float, 0 of a float; none where none is to be widened.

    That is so where all are floats, and where one would be large.
    """
    narrow = [spec is not None and accumulator(spec.dtype) != spec.dtype for spec in specs]
    sizes = [spec.size * _FLOAT.itemsize if spec and is_narrow else 0 for spec, is_narrow in zip(specs, narrow)]
    return sizes if any(narrow) and max(sizes) <= _WIDENED_NBYTES else []


def prepare_widened_product(
    a: Array | None,
    b: Array | None,
    y: Array | None,
    constant: Sequence[bool],
    scratch: Sequence[Array],
) -> WidenedProduct | None:
    """Return the calls that `multiply` makes of operands in float, half or bfloat16; None where it does more.

    Args:
        a: The left operand.
        b: The right operand.
        y: Where the product goes.
        constant: Whether each operand never changes; it is widened once then, where it is small.
        scratch: Arrays of what `count_widened` returned, or more.
    """
    if a is None or b is None or y is None:
        return None
    sizes = count_widened(TensorSpec.of(a), TensorSpec.of(b), TensorSpec.of(y))
    if not has_scratch(scratch, sizes):
        return None
    calls: list[Callable[[], object]] = []
    wide = [a, b, y]
    for place, nbytes in enumerate(sizes):
        x = wide[place]
        if not nbytes:
            continue
        # As `multiply` widens and copies operands: bits of a product may depend on how they lie.
        laid = _walkable(np.empty_like(x, _FLOAT)) if x is not y else np.empty(x.shape, _FLOAT)
        if x is not y and constant[place] and nbytes <= KEPT_NBYTES:
            np.copyto(laid, x)
        else:
            laid = np.ndarray(x.shape, _FLOAT, scratch[place], 0, laid.strides)
            if x is not y:
                calls.append(partial(np.copyto, laid, x))
        wide[place] = laid
    product = prepare_product(*wide)
    return None if product is None else WidenedProduct([*calls, *product], wide[2], y)


@upgrade("Gemm", below=7)
def _drop_broadcast(node: RawNode) -> RawNode:
    """Remove the attribute that until opset 6 said that C may broadcast, as it always may since."""
    return node.without("broadcast")


def _walkable(x: Array) -> Array:
    """Return the array, copied if neither of its last two axes is dense."""
    if x.ndim < 2:
        return x
    row, column = x.strides[-2:]
    if row > 0 < column and x.itemsize in (row, column):
        return x
    return np.ascontiguousarray(x)


def _check_operands(name: str, a: TensorSpec | None, b: TensorSpec | None) -> tuple[TensorSpec, TensorSpec]:
    if a is None or b is None:
        raise InputError(f"{name} expects two operands.")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        names = ", ".join(dtype.name for dtype in DTYPES)
        raise InputError(f"{name} expects operands of one type among {names}, got {a} and {b}.")
    return a, b
