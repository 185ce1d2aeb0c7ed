"""Bodies of If, Loop, Scan and SequenceMap as closed graphs, whose captures are inputs.

A name is looked up in the body first, then in the graph around it, and so on outwards; so a body may use a name anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import onnx

from gpuexec.errors import ModelError, locate
from gpuexec.importer.entries import read_constants, read_inputs
from gpuexec.importer.order import describe_node, sort_nodes
from gpuexec.ir.graphs import Graph, Value, take_free

if TYPE_CHECKING:
    from gpuexec.importer.node_reader import NodeReader

# Names of the graph attributes by operator; no other operator has any.
BODIES: Mapping[str, tuple[str, ...]] = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
    "SequenceMap": ("body",),
}
# Before this opset the first input of a Scan is the length of each sequence of a batch.
_SCAN_WITHOUT_LENGTHS = 9


@dataclass(frozen=True, slots=True)
class _Body:
    """A body as read: captures are its inputs by the name they have outside."""

    inputs: tuple[Value, ...]
    graph: Graph
    captures: Mapping[str, Value]


def has_bodies(node: onnx.NodeProto) -> bool:
    """Return whether a node is of an operator with bodies."""
    return node.domain in ("", "ai.onnx") and node.op_type in BODIES


def read_control(
    reader: NodeReader, node: onnx.NodeProto, name: str, opset: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read a node's bodies.

    Returns:
        The attributes the operator has besides the plain ones of the file, and the node's inputs, captures included.

    Raises:
        ModelError: A body lacks, contradicts itself, or takes or gives another number of values than the node.
    """
    protos = {attribute.name: attribute.g for attribute in node.attribute if attribute.name in BODIES[node.op_type]}
    lacking = [each for each in BODIES[node.op_type] if each not in protos]
    if lacking:
        raise ModelError(f"{describe_node(node)} lacks its body {', '.join(lacking)}.", node=node.name)
    read = {key: _read_body(reader, node, key, f"{name}/{key}", protos[key]) for key in BODIES[node.op_type]}
    if node.op_type == "If":
        counts = _read_if(node, read)
        own = tuple(node.input[:1])
    elif node.op_type == "Loop":
        counts = _read_loop(node, read["body"])
        own = (*node.input, "", "")[: max(len(node.input), 2)]
    elif node.op_type == "SequenceMap":
        counts = _read_map(node, read["body"])
        own = tuple(node.input)
    else:
        counts = _read_scan(node, read["body"], skipped=1 if opset < _SCAN_WITHOUT_LENGTHS else 0)
        own = tuple(node.input)
    return {**_close(read), **counts}, (*own, *dict.fromkeys(chain.from_iterable(b.captures for b in read.values())))


def _read_body(reader: NodeReader, node: onnx.NodeProto, key: str, path: str, proto: onnx.GraphProto) -> _Body:
    inner = reader.open_body(proto, f"{path}/")
    try:
        read_constants(proto, inner, inner.problems)
        inputs = read_inputs(proto, inner, inner.problems)
        inner.read(sort_nodes(proto.node, inner.values, inner.is_visible))
        outputs = tuple(inner.find(info.name) for info in proto.output)
    except ModelError as error:
        raise locate(error, f"{describe_node(node)}, {key}", node.name) from None
    graph = Graph(inputs, outputs, tuple(inner.nodes), inner.constants, proto.name or key)
    return _Body(inputs, graph, inner.captures)


def _close(read: Mapping[str, _Body]) -> dict[str, Graph]:
    """Set the captures of all bodies of a node, in one order."""
    captures = dict.fromkeys(chain.from_iterable(body.captures for body in read.values()))
    graphs = {}
    for key, body in read.items():
        graph = body.graph
        taken = {value.name for value in (*graph.values(), *body.captures.values())}
        added = [body.captures.get(name) or Value(take_free(name, taken)) for name in captures]
        graphs[key] = Graph((*body.inputs, *added), graph.outputs, graph.nodes, graph.constants, graph.name)
    return graphs


def _read_if(node: onnx.NodeProto, read: Mapping[str, _Body]) -> dict[str, int]:
    for key, body in read.items():
        _check_count(node, f"{key} takes", len(body.inputs), 0, "inputs")
        _check_count(node, f"{key} gives", len(body.graph.outputs), len(node.output), "outputs")
    return {}


def _read_loop(node: onnx.NodeProto, body: _Body) -> dict[str, int]:
    carried = max(len(node.input) - 2, 0)
    _check_inputs_given(node, range(2, len(node.input)))
    _check_count(node, "body takes", len(body.inputs), carried + 2, "inputs")
    _check_count(node, "body gives", len(body.graph.outputs), len(node.output) + 1, "outputs")
    if len(node.output) < carried:
        raise ModelError(
            f"{describe_node(node)} carries {carried} values, got {len(node.output)} outputs.", node=node.name
        )
    return {"carried": carried}


def _read_scan(node: onnx.NodeProto, body: _Body, skipped: int) -> dict[str, int]:
    size = len(node.input) - skipped
    number = next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0)
    if not 1 <= number <= size:
        raise ModelError(
            f"{describe_node(node)} needs num_scan_inputs from 1 to {size}, its number of inputs, got {number}.",
            node=node.name,
        )
    _check_inputs_given(node, range(skipped, len(node.input)))
    _check_count(node, "body takes", len(body.inputs), size, "inputs")
    _check_count(node, "body gives", len(body.graph.outputs), len(node.output), "outputs")
    states = size - number
    if len(node.output) < states:
        raise ModelError(f"{describe_node(node)} has {states} states, got {len(node.output)} outputs.", node=node.name)
    return {"states": states}


def _read_map(node: onnx.NodeProto, body: _Body) -> dict[str, int]:
    _check_inputs_given(node, range(len(node.input)))
    _check_count(node, "body takes", len(body.inputs), len(node.input), "inputs")
    _check_count(node, "body gives", len(body.graph.outputs), len(node.output), "outputs")
    return {"given": len(node.input)}


def _check_inputs_given(node: onnx.NodeProto, positions: Sequence[int]) -> None:
    for index in positions:
        if not node.input[index]:
            raise ModelError(f"{describe_node(node)} lacks its input {index}.", node=node.name)


def _check_count(node: onnx.NodeProto, what: str, got: int, expected: int, of: str) -> None:
    if got != expected:
        message = f"{describe_node(node)}: {what} {got} values; by the node's {of}, expected {expected}."
        raise ModelError(message, node=node.name)
