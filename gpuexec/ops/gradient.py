"""Gradient, which a pass replaces by what computes it, and SumTo, which undoes a broadcast there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.geometry import broadcast_strides, contiguous_strides
from gpuexec.operator import Array, Emitter, Operator, Tolerance, operator
from gpuexec.ops import reduce_host as host
from gpuexec.ops.checks import check_dtype
from gpuexec.ops.layout import Slots, reshaped
from gpuexec.ops.reduce import REDUCTIONS, lower_reduction
from gpuexec.ops.training import DOMAIN
from gpuexec.spec import TensorSpec, dtypes_of

_SUM = REDUCTIONS["ReduceSum"].row


@operator("Gradient", DOMAIN)
@dataclass(frozen=True, slots=True)
class Gradient(Operator):
    """The derivatives of the sum of value ``y`` by values ``xs``, at the inputs, which stand for ``xs`` and ``zs``.

    All three are names of values. The pass `gpuexec.passes.differentiate` makes other operators of it at load.
    """

    xs: tuple[str, ...]
    y: str
    zs: tuple[str, ...] = ()

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of what is differentiated by.

        Raises:
            InputError: There are not as many inputs as names.
        """
        given = [spec for spec in inputs if spec is not None]
        if len(given) != len(self.xs) + len(self.zs):
            raise InputError(f"{self.name} expects an input for each of xs and zs, got {len(given)}.")
        return tuple(given[: len(self.xs)])

    def compute(self, *inputs: Any, out: Any = None) -> tuple[Array, ...]:
        """Refuse: one node alone does not know what it differentiates.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"{self.name} is computed by what the pass 'differentiate' makes of it; don't disable it."
        )


@operator("SumTo", "gpuexec")
@dataclass(frozen=True, slots=True)
class SumTo(Operator):
    """Sum over the axes that the shape of the second input, which is not read, would be stretched along."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION

    def infer(self, x: TensorSpec | None, like: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the input's type in the other's shape.

        Raises:
            InputError: The other does not stretch to the input, or the type has no sums.
        """
        x = check_dtype(self.name, x, dtypes_of("float"))
        assert like is not None
        _find_axes(x.shape, like.shape)
        return (x.with_shape(like.shape),)

    def compute(self, x: Array, like: Array, out: Any = None) -> tuple[Array, ...]:
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


def _find_axes(shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of ``shape`` that ``to`` is stretched along.

    Raises:
        InputError: It does not stretch so.
    """
    broadcast_strides(to, contiguous_strides(to), shape)
    lead = len(shape) - len(to)
    return tuple(axis for axis, extent in enumerate(shape) if axis < lead or to[axis - lead] != extent)
