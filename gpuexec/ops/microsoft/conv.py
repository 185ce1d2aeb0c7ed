"""FusedConv, NhwcFusedConv, NhwcConv and NhwcMaxPool: a fused activation, channels-last layouts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from gpuexec.ir.graphs import Value
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN, activate, check_activation
from gpuexec.ops.microsoft.channels import ChannelsFirst, ChannelsLast
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.convolution import Convolution
from gpuexec.ops.nn.pool import MaxPool


@dataclass(frozen=True, slots=True)
class _Convolution(Composite):
    """Base of all forms: the attributes of Conv."""

    inputs: ClassVar[int] = 4
    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def _convolve(self, sketch: Sketch, x: Value | None, w: Value | None, bias: Value | None) -> Value:
        attributes: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Convolution)}
        return sketch.add(Conv(**attributes), x, w, bias)


@composite("FusedConv", DOMAIN)
@dataclass(frozen=True, slots=True)
class FusedConv(_Convolution):
    """``activation(Conv(x, w, b) + z)``."""

    activation: str = ""
    activation_params: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check the activation."""
        check_activation(self.name, self.activation, self.activation_params)

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Convolve, add the optional addend, and activate."""
        x, w, bias, z = inputs
        assert w is not None
        y = self._convolve(sketch, x, w, bias)
        y = y if z is None else sketch.add("Add", y, z)
        return (activate(sketch, y, w, self.activation, self.activation_params),)


@composite("NhwcFusedConv", DOMAIN)
@dataclass(frozen=True, slots=True)
class NhwcFusedConv(FusedConv):
    """FusedConv of tensors whose channels come last; the weight is as Conv has it."""

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Move channels to the front, compute as FusedConv, and move them back."""
        x, w, bias, z = inputs
        shown = [None if value is None else sketch.add(ChannelsFirst(), value) for value in (x, z)]
        # Not super(): a class with slots is another than the one its methods were written in.
        made = FusedConv.draw(self, sketch, shown[0], w, bias, shown[1])
        return (sketch.add(ChannelsLast(), *made),)


@composite("NhwcConv", DOMAIN)
@dataclass(frozen=True, slots=True)
class NhwcConv(_Convolution):
    """Conv of tensors whose channels come last; the weight is as Conv has it."""

    inputs: ClassVar[int] = 3

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Move channels to the front, convolve, and move them back."""
        x, w, bias = inputs
        y = self._convolve(sketch, sketch.add(ChannelsFirst(), x), w, bias)
        return (sketch.add(ChannelsLast(), y),)


@composite("NhwcMaxPool", DOMAIN)
@dataclass(frozen=True, slots=True)
class NhwcMaxPool(Composite):
    """MaxPool of a tensor whose channels come last."""

    inputs: ClassVar[int] = 1
    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    example = "uint8[2,6,5,3] kernel_shape=(3,2)"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Move channels to the front, pool, and move them back."""
        pool = MaxPool(
            self.kernel_shape,
            auto_pad=self.auto_pad,
            ceil_mode=self.ceil_mode,
            dilations=self.dilations,
            pads=self.pads,
            strides=self.strides,
        )
        y = sketch.add(pool, sketch.add(ChannelsFirst(), inputs[0]))
        return (sketch.add(ChannelsLast(), y),)
