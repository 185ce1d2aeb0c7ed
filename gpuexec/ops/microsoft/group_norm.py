"""GroupNorm and SkipGroupNorm: channels-last GroupNormalization with an activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Array, Out, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.channels import ChannelsFirst, ChannelsLast
from gpuexec.ops.tensor.layout import View

_NONE, _SILU = 0, 1


@operator("SpreadOverSpace", "gpuexec")
@dataclass(frozen=True, slots=True)
class SpreadOverSpace(View):
    """View of ``[batch, channels]`` as ``[batch, 1, 1, channels]``; four axes stay as they are."""

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Insert axes of extent 1.

        Raises:
            InputError: There are neither two axes nor four.
        """
        if x.rank not in (2, 4):
            raise InputError(f"skip must be [batch, channels] or have four axes, got {x}.")
        return (x.with_shape(self._spread(x.shape)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Reshape; always a view."""
        return (x.reshape(self._spread(x.shape)),)

    def _spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if len(shape) == 4 else (shape[0], 1, 1, shape[1])


@composite("GroupNorm", DOMAIN)
@dataclass(frozen=True, slots=True)
class GroupNorm(Composite):
    """``activation(GroupNormalization(x) * gamma + beta)``; activation 1 is SiLU."""

    inputs: ClassVar[int] = 3
    activation: int
    groups: int
    channels_last: int = 1
    epsilon: float = 9.999999747378752e-06
    example = "float32[2,3,4,8] float32[8] float32[8] activation=1 groups=2"

    def __post_init__(self) -> None:
        """Check the activation."""
        if self.activation not in (_NONE, _SILU):
            raise InputError(f"{self.name} expects activation 0 or 1 (SiLU), got {self.activation}.")

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Move channels to the front, normalise, move them back, and activate."""
        x, gamma, beta = inputs[:3]
        shown = sketch.add(ChannelsFirst(), x) if self.channels_last else x
        parameters = (sketch.add("CastLike", each, x) for each in (gamma, beta))
        y = sketch.add("GroupNormalization", shown, *parameters, num_groups=self.groups, epsilon=self.epsilon)
        y = sketch.add("Swish", y) if self.activation == _SILU else y
        return (sketch.add(ChannelsLast(), y) if self.channels_last else y,)


@composite("SkipGroupNorm", DOMAIN)
@dataclass(frozen=True, slots=True)
class SkipGroupNorm(GroupNorm):
    """GroupNorm of ``x + skip + bias``, and that sum."""

    inputs: ClassVar[int] = 5
    example = "float32[2,3,4,8] float32[8] float32[8] float32[2,8] float32[8] activation=0 groups=2"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add, then do as GroupNorm."""
        x, gamma, beta, skip, bias = inputs
        if not self.channels_last:
            raise InputError(f"{self.name} expects channels_last 1, got {self.channels_last}.")
        total = sketch.add("Add", x, sketch.add(SpreadOverSpace(), skip))
        total = total if bias is None else sketch.add("Add", total, bias)
        # Not super(): a class with slots is another than the one its methods were written in.
        return (*GroupNorm.draw(self, sketch, total, gamma, beta), total)
