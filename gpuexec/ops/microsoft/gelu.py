"""Gelu and its fused variants: BiasGelu, FastGelu, BiasSplitGelu, BiasAdd and others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.ir.graphs import RawNode, Value
from gpuexec.ir.operator import upgrade
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.renamed import EVERY_VERSION, rename

_QUICK = 1.7020000219345093


@upgrade(f"{DOMAIN}.QuickGelu", below=EVERY_VERSION)
def _take_as_swish(node: RawNode) -> RawNode:
    """Rewrite as Swish, which has another default."""
    return rename(node, "Swish").with_attributes(alpha=node.attributes.get("alpha", _QUICK))


@composite("BiasGelu", DOMAIN)
@dataclass(frozen=True, slots=True)
class BiasGelu(Composite):
    """``Gelu(a + b)``."""

    inputs: ClassVar[int] = 2

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add, then Gelu."""
        return (sketch.add("Gelu", sketch.add("Add", *inputs)),)


@composite("FastGelu", DOMAIN)
@dataclass(frozen=True, slots=True)
class FastGelu(Composite):
    """Gelu by way of tanh, of ``x`` or of ``x + bias``."""

    inputs: ClassVar[int] = 2

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add the optional bias, then Gelu."""
        x, bias = inputs
        x = x if bias is None else sketch.add("Add", x, bias)
        return (sketch.add("Gelu", x, approximate="tanh"),)


@composite("GemmFastGelu", DOMAIN)
@dataclass(frozen=True, slots=True)
class GemmFastGelu(Composite):
    """``FastGelu(x @ w + bias)``."""

    inputs: ClassVar[int] = 3

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Multiply, then FastGelu."""
        x, w, bias = inputs
        return (sketch.add(FastGelu(), sketch.add("MatMul", x, w), bias),)


@composite("BiasSplitGelu", DOMAIN)
@dataclass(frozen=True, slots=True)
class BiasSplitGelu(Composite):
    """``left * Gelu(right)`` of the two halves of ``x + bias`` along the last axis."""

    inputs: ClassVar[int] = 2

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add, cut in two, and multiply."""
        left, right = sketch.add_all("Split", 2, sketch.add("Add", *inputs), axis=-1, num_outputs=2)
        return (sketch.add("Mul", left, sketch.add("Gelu", right)),)


@composite("BiasAdd", DOMAIN)
@dataclass(frozen=True, slots=True)
class BiasAdd(Composite):
    """``x + bias + skip``."""

    inputs: ClassVar[int] = 3

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add twice."""
        x, bias, skip = inputs
        return (sketch.add("Add", sketch.add("Add", x, bias), skip),)


@composite("BiasDropout", DOMAIN)
@dataclass(frozen=True, slots=True)
class BiasDropout(Composite):
    """``Dropout(x + bias) + residual``, and the mask."""

    inputs: ClassVar[int] = 5
    is_random = True
    seed: int | None = None

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add, drop, add."""
        x, bias, residual, ratio, mode = inputs
        total = sketch.add("Add", x, bias)
        kept, mask = sketch.add_all("Dropout", 2, total, ratio, mode, seed=self.seed)
        return (kept if residual is None else sketch.add("Add", kept, residual)), mask


@composite("BiasSoftmax", DOMAIN)
@dataclass(frozen=True, slots=True)
class BiasSoftmax(Composite):
    """``Softmax(x + bias)`` over the axes from ``axis`` on, taken as one.

    ``is_inner_broadcast`` says which axes of the bias stretch; their extents say so too.
    """

    inputs: ClassVar[int] = 2
    is_inner_broadcast: int
    axis: int = 1
    example = "float32[2,3,4,5] float32[2,1,1,5] is_inner_broadcast=1 axis=3"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Add, then Softmax."""
        return (sketch.add("Softmax", sketch.add("Add", *inputs), axis=self.axis, flatten=1),)
