"""ONNX functions for operators of gpuexec's own domain, so that any engine runs an exported model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import parser

from gpuexec.importer.order import list_nodes

DOMAIN = "gpuexec"
_BODIES = {
    "AlignAxes": """AlignAxes <axis> (x, like) => (y) {
        first = Constant <value_int: int = @axis> ()
        zero = Constant <value_int: int = 0> ()
        last = Constant <value_ints: ints = [-1]> ()
        one = Constant <value_ints: ints = [1]> ()
        shape = Shape (x)
        rank = Size (shape)
        other_shape = Shape (like)
        other_rank = Size (other_shape)
        from_end = Add (first, other_rank)
        is_negative = Less (first, zero)
        start = Where (is_negative, from_end, first)
        behind = Sub (other_rank, start)
        spare = Sub (behind, rank)
        added = Max (spare, zero)
        count = Reshape (added, last)
        ones = Expand (one, count)
        target = Concat <axis: int = 0> (shape, ones)
        y = Reshape <allowzero: int = 1> (x, target)
    }""",
    "Append": """Append <axis, capacity, memory> (held, rows) => (y) {
        y = Concat <axis: int = @axis> (held, rows)
    }""",
}


def find_functions(nodes: Sequence[onnx.NodeProto], opset: int) -> list[onnx.FunctionProto]:
    """Return the functions that nodes call, in bodies too, written for an opset."""
    called = sorted({node.op_type for node in list_nodes(nodes) if node.domain == DOMAIN})
    return [_make(name, opset) for name in called if name in _BODIES]


def _make(name: str, opset: int) -> onnx.FunctionProto:
    text = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {_BODIES[name]}'
    function = parser.parse_function(text)
    assert isinstance(function, onnx.FunctionProto)
    return function
