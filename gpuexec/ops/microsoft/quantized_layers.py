"""Quantised layers computed as DequantizeLinear, an operator, QuantizeLinear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Operator, Tolerance
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.channels import ChannelsFirst, ChannelsLast
from gpuexec.ops.nn.pool import AveragePool
from gpuexec.ops.nn.softmax import Softmax

_EACH_AXIS = 13  # the opset since which Softmax works along its axis alone


class _Between(Composite):
    """Base: inputs are x, its scale and zero point, and the result's; ``draw_between`` draws what is between them."""

    __slots__ = ()
    inputs: ClassVar[int] = 5
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    channels_last: int = 0

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Widen, compute, round."""
        x, scale, zero, y_scale, y_zero = inputs
        wide = sketch.add("DequantizeLinear", x, scale, zero)
        if self.channels_last:
            wide = sketch.add(ChannelsFirst(), wide)
        made = self.draw_between(sketch, wide)
        if self.channels_last:
            made = sketch.add(ChannelsLast(), made)
        if y_zero is None:  # 0 of the type of x
            y_zero = sketch.add("CastLike", sketch.add("Sub", y_scale, y_scale), x)
        return (sketch.add("QuantizeLinear", made, y_scale, y_zero),)

    def draw_between(self, sketch: Sketch, wide: Value) -> Value:
        """Draw the operator on dequantised values."""
        raise TypeError(f"{type(self).__name__} lacks draw_between")


@composite("QLinearSoftmax", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearSoftmax(_Between):
    """Softmax; below ``opset`` 13 of the tensor flattened at ``axis``."""

    opset: int
    axis: int = -1
    channels_last: ClassVar[int] = 0  # type: ignore[misc]
    example = "uint8[2,3,5] float32[] uint8[] float32[] uint8[] opset=13"

    def draw_between(self, sketch: Sketch, wide: Value) -> Value:
        """Draw Softmax."""
        return sketch.add(Softmax(self.axis, flatten=int(self.opset < _EACH_AXIS)), wide)


@composite("QLinearAveragePool", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearAveragePool(_Between):
    """AveragePool."""

    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    channels_last: int = 0
    count_include_pad: int = 0
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    example = "uint8[2,3,6,7] float32[] uint8[] float32[] uint8[] kernel_shape=(3,2)"

    def draw_between(self, sketch: Sketch, wide: Value) -> Value:
        """Draw AveragePool."""
        pool: Operator = AveragePool(
            self.kernel_shape, self.auto_pad, self.ceil_mode, self.count_include_pad, (), self.pads, self.strides
        )
        return sketch.add(pool, wide)


@composite("QLinearGlobalAveragePool", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearGlobalAveragePool(_Between):
    """GlobalAveragePool."""

    channels_last: int = 0
    example = "uint8[2,3,6,7] float32[] uint8[] float32[] uint8[]"

    def draw_between(self, sketch: Sketch, wide: Value) -> Value:
        """Draw GlobalAveragePool."""
        return sketch.add("GlobalAveragePool", wide)


@composite("QLinearReduceMean", DOMAIN)
@dataclass(frozen=True, slots=True)
class QLinearReduceMean(_Between):
    """ReduceMean along ``axes``; along all where the list is empty."""

    axes: tuple[int, ...]
    keepdims: int
    channels_last: ClassVar[int] = 0  # type: ignore[misc]
    example = "int8[2,3,4] float32[] int8[] float32[] int8[] axes=(0,2) keepdims=1"

    def draw_between(self, sketch: Sketch, wide: Value) -> Value:
        """Draw ReduceMean."""
        axes = (sketch.ints(*self.axes),) if self.axes else ()
        return sketch.add("ReduceMean", wide, *axes, keepdims=self.keepdims)
