"""Broadcasting before opset 7, by an `axis` attribute: a view of the second input in front of the operator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuexec.errors import InputError
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Array, Out, operator, upgrade
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.tensor.layout import View

_BROADCAST_BY_AXIS = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")


@operator("AlignAxes", "gpuexec")
@dataclass(frozen=True, slots=True)
class AlignAxes(View):
    """View of the first input with extents of 1 appended, which aligns its first axis with ``axis`` of the second.

    Where the second input has no axes to spare behind them, nothing is added.
    """

    axis: int

    def infer(self, x: TensorSpec, like: TensorSpec) -> tuple[TensorSpec, ...]:
        """Append the axes."""
        return (x.with_shape(self._align(x.shape, like.rank)),)

    def compute(self, x: Array, like: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; always a view."""
        return (x.reshape(self._align(x.shape, like.ndim)),)

    def _align(self, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        axis = self.axis + rank if self.axis < 0 else self.axis
        if axis < 0:
            raise InputError(f"axis expects {-rank} to {rank}, got {self.axis}.")
        return (*shape, *(1,) * (rank - axis - len(shape)))


def _broadcast_by_axis(node: RawNode) -> RawNode:
    """Align the second input at ``axis``, or at the last axes, as opset 6 broadcasts it."""
    axis = node.attributes.get("axis")
    node = node.without("axis", "broadcast")
    return node if axis is None else _align_second(node, axis)


for _name in _BROADCAST_BY_AXIS:
    upgrade(_name, below=7)(_broadcast_by_axis)


@upgrade("PRelu", below=7)
def _slope_by_channel(node: RawNode) -> RawNode:
    """Align the slope with axis 1: until opset 6 it was one number, or one for each channel."""
    return _align_second(node, 1)


def _align_second(node: RawNode, axis: int) -> RawNode:
    """Return the node with a view of its second input, aligned to ``axis`` of the first."""
    first, second = node.inputs
    aligned = f"{second}.aligned"
    view = RawNode("AlignAxes", "gpuexec", f"{node.name}.align", (second, first), (aligned,), {"axis": axis}, 1)
    return replace(node, inputs=(first, aligned), before=(*node.before, view))
