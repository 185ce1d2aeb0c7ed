"""Gradient, and the operators that derivatives need beside ONNX's.

SumTo undoes a broadcast; SwapAxes and MatrixOf are views that do not need known ranks; Widen makes half float.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.ir.geometry import broadcast_strides, contiguous_strides, normalize_axis, permute
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.nn.training import DOMAIN
from gpuexec.ops.reduce import reduce_host as host
from gpuexec.ops.reduce.reduce import REDUCTIONS, lower_reduction
from gpuexec.ops.tensor.layout import reshaped, window

_SUM = REDUCTIONS["ReduceSum"].row


@operator("Gradient", DOMAIN)
@dataclass(frozen=True, slots=True)
class Gradient(Operator):
    """The derivatives of the sum of value ``y`` by values ``xs``, where inputs stand for ``xs`` and ``zs``.

    All three are names in the file. The importer makes the values of these names inputs too, in the order xs, zs,
    y, behind those that ONNX knows: so a graph holds what belongs together, whatever its values are called later. The
    pass `gpuexec.passes.differentiate` makes other operators of it at load.
    """

    xs: tuple[str, ...]
    y: str
    zs: tuple[str, ...] = ()
    flops_per_output = None

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of the values differentiated by.

        Raises:
            InputError: There are not as many inputs as names, or one has a type without derivatives.
        """
        count = len(self.xs) + len(self.zs)
        if len(inputs) != 2 * count + 1:
            raise InputError(f"{self.name} expects inputs for xs and zs and those themselves and y, got {len(inputs)}.")
        return tuple(check_dtype(self.name, spec, dtypes_of("float")) for spec in inputs[: len(self.xs)])

    def compute(self, *inputs: Any, out: Out = None) -> tuple[Array, ...]:
        """Raise UnsupportedError: one node alone does not know the graph it differentiates.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"{self.name} is not computed itself: the pass 'differentiate' replaces it; don't disable the pass."
        )


@operator("SumTo", "gpuexec")
@dataclass(frozen=True, slots=True)
class SumTo(Operator):
    """Sum over the axes that the shape of the second input, which is not read, would be stretched along."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_input = 1
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True

    def infer(self, x: TensorSpec | None, like: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the input's type in the other's shape.

        Raises:
            InputError: The other does not stretch to the input, or the type has no sums.
        """
        x = check_dtype(self.name, x, dtypes_of("float"))
        like = check_dtype(self.name, like, (x.dtype,), "what it is summed to")
        _find_axes(x.shape, like.shape)
        return (x.with_shape(like.shape),)

    def compute(self, x: Array, like: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Sum with NumPy; half and bfloat16 in float, rounded once."""
        axes = _find_axes(x.shape, like.shape)
        return ((host.fold(_SUM.fold, x, axes, True) if axes else x).reshape(like.shape),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a reduction; a view where nothing is summed."""
        (x, like), y = inputs, outputs[0]
        assert x is not None and like is not None and y is not None
        axes = _find_axes(x.shape, like.shape)
        if axes:
            lower_reduction(emit, _SUM, x, y, axes)
        else:
            emit.alias(y, reshaped(emit, x, y.shape))


@operator("SwapAxes", "gpuexec")
@dataclass(frozen=True, slots=True)
class SwapAxes(Operator):
    """Exchange of two axes, as a view; negative ones count from the end."""

    first: int
    second: int
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec with two extents exchanged."""
        return (x.with_shape(tuple(x.shape[axis] for axis in self._order(x.rank))),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Return a view."""
        return (x.transpose(self._order(x.ndim)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Exchange strides: no launch."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        order = self._order(len(x.shape))
        emit.alias(y, window(x, permute(x.shape, order), permute(x.strides, order)))

    def _order(self, rank: int) -> tuple[int, ...]:
        first, second = normalize_axis(self.first, rank), normalize_axis(self.second, rank)
        order = list(range(rank))
        order[first], order[second] = second, first
        return tuple(order)


@operator("MatrixOf", "gpuexec")
@dataclass(frozen=True, slots=True)
class MatrixOf(Operator):
    """View of an operand of MatMul (``role`` "a" or "b") or its result ("y") with extents of 1 for axes a vector lacks.

    Of the other two inputs, the operands, ranks alone count.
    """

    role: str
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def __post_init__(self) -> None:
        """Check the role.

        Raises:
            InputError: There is not.
        """
        if self.role not in ("a", "b", "y"):
            raise InputError(f"{self.name} expects role a, b or y, got {self.role!r}.")

    def infer(self, x: TensorSpec, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of a matrix, or of a stack of them."""
        return (x.with_shape(self._shape(x.shape, a.rank, b.rank)),)

    def compute(self, x: Array, a: Array, b: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Return a view where there can be one."""
        return (x.reshape(self._shape(x.shape, a.ndim, b.ndim)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes, without a launch."""
        (x, a, b), y = inputs, outputs[0]
        assert x is not None and a is not None and b is not None and y is not None
        emit.alias(y, reshaped(emit, x, y.shape))

    def _shape(self, shape: tuple[int, ...], a_rank: int, b_rank: int) -> tuple[int, ...]:
        row = (1,) if self.role in "ay" and a_rank == 1 else ()
        column = (1,) if self.role in "by" and b_rank == 1 else ()
        last = len(shape) - (0 if column or self.role == "b" else 1)
        return (*shape[:last], *row, *shape[last:], *column)


@operator("Widen", "gpuexec")
@dataclass(frozen=True, slots=True)
class Widen(Operator):
    """Conversion of half and bfloat16 to float; float and double stay."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    flops_per_output = 0
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the shape in the type that sums are made in."""
        x = check_dtype(self.name, x, dtypes_of("float"))
        return (TensorSpec(x.shape, accumulator(x.dtype)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Convert."""
        return (x.astype(accumulator(x.dtype), copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a conversion; a view where the type stays."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        if x.dtype == y.dtype:
            emit.alias(y, x)
        else:
            convert_commands(emit, y, x)


def _find_axes(shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of ``shape`` that ``to`` is stretched along.

    Raises:
        InputError: It does not stretch so.
    """
    broadcast_strides(to, contiguous_strides(to), shape)
    lead = len(shape) - len(to)
    return tuple(axis for axis, extent in enumerate(shape) if axis < lead or to[axis - lead] != extent)
