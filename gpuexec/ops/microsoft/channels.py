"""Views between channels-last and channels-first layouts."""

from __future__ import annotations

from dataclasses import dataclass

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.layout import window


class _Order(Operator):
    """Base of both: a view with another order of axes, of any rank from 2 on."""

    __slots__ = ()
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Reorder the extents.

        Raises:
            InputError: There are no channels.
        """
        if x.rank < 2:
            raise InputError(f"{self.name} expects a batch, channels and space, got {x}.")
        return (x.with_shape(tuple(x.shape[axis] for axis in self._order(x.rank))),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reorder the strides; always a view."""
        return (x.transpose(self._order(x.ndim)),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes with reordered strides."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, window(x, y.shape, [x.strides[axis] for axis in self._order(x.spec.rank)]))

    def _order(self, rank: int) -> tuple[int, ...]:
        raise TypeError(f"{type(self).__name__} lacks _order")


@operator("ChannelsFirst", "gpuexec")
@dataclass(frozen=True, slots=True)
class ChannelsFirst(_Order):
    """View of ``[batch, space..., channels]`` as ``[batch, channels, space...]``."""

    def _order(self, rank: int) -> tuple[int, ...]:
        return (0, rank - 1, *range(1, rank - 1))


@operator("ChannelsLast", "gpuexec")
@dataclass(frozen=True, slots=True)
class ChannelsLast(_Order):
    """View of ``[batch, channels, space...]`` as ``[batch, space..., channels]``."""

    def _order(self, rank: int) -> tuple[int, ...]:
        return (0, *range(2, rank), 1)
