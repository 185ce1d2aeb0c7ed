"""Operators of com.microsoft that ONNX has too: by the same name, another name or in another form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gpuexec.ir.graphs import RawNode, Value
from gpuexec.ir.operator import upgrade
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN

EVERY_VERSION = 1 << 31  # below which every version of the domain is
# By name, the operator of ai.onnx with the same inputs, outputs and attributes.
SAME = {
    # Older than ONNX's: these took 16-bit and 4-bit types, and channels that stand last, before ONNX did.
    "DequantizeLinear": "DequantizeLinear",
    "QLinearConv": "QLinearConv",
    "QuantizeLinear": "QuantizeLinear",
    "Gelu": "Gelu",
    "GatherND": "GatherND",
    "QLinearMatMul": "QLinearMatMul",  # which the quantizer writes for floats of 8 bits
    "SampleOp": "Identity",
    "Trilu": "Trilu",
}
_INT64 = 7  # ONNX's code
_SAMPLING_MODES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


def rename(node: RawNode, name: str) -> RawNode:
    """Return the node as one of another operator, of ai.onnx."""
    return replace(node, op_type=name, domain="")


def _rename_by_table(node: RawNode) -> RawNode:
    return rename(node, SAME[node.op_type])


for _name in SAME:
    upgrade(f"{DOMAIN}.{_name}", below=EVERY_VERSION)(_rename_by_table)


@upgrade(f"{DOMAIN}.Unique", below=EVERY_VERSION)
def _take_unique(node: RawNode) -> RawNode:
    """Insert the output of ONNX's Unique between the values and the counts: the places of first occurrences."""
    values, *rest = node.outputs
    return replace(rename(node, "Unique"), outputs=(values, "", *rest)).with_attributes(sorted=0)


@upgrade(f"{DOMAIN}.GridSample", below=EVERY_VERSION)
def _take_grid_sample(node: RawNode) -> RawNode:
    """Rename the modes as ONNX has since opset 20."""
    mode = node.attributes.get("mode", "bilinear")
    return rename(node, "GridSample").with_attributes(mode=_SAMPLING_MODES.get(mode, mode))


@composite("ExpandDims", DOMAIN)
@dataclass(frozen=True, slots=True)
class ExpandDims(Composite):
    """Unsqueeze by one axis, given as an int32 scalar."""

    inputs: ClassVar[int] = 2

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Convert the axis to the form that Unsqueeze takes."""
        x, axis = inputs
        return (sketch.add("Unsqueeze", x, sketch.reshape(sketch.add("Cast", axis, to=_INT64), -1)),)


@composite("Pad", DOMAIN)
@dataclass(frozen=True, slots=True)
class Pad(Composite):
    """Pad, with pads that may have two axes and a value that may have one."""

    inputs: ClassVar[int] = 3
    mode: str = "constant"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Convert pads and value to the form that Pad takes."""
        x, pads, value = inputs
        assert pads is not None
        value = None if value is None else sketch.reshape(value)
        return (sketch.add("Pad", x, sketch.reshape(pads, -1), value, mode=self.mode),)


@composite("Range", DOMAIN)
@dataclass(frozen=True, slots=True)
class Range(Composite):
    """Range with a default step of 1."""

    inputs: ClassVar[int] = 3

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Set the step."""
        start, limit, delta = inputs
        delta = sketch.add("gpuexec.NumberLike", start, value=1.0) if delta is None else delta
        return (sketch.add("Range", start, limit, delta),)
