"""Pairs of operators, the second the only reader of what the first makes, that become one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import Operator, build, describe
from gpuexec.ops.elementwise.fused import Fused
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.paired import PairedOperators, list_rows


def join_pairs(
    graph: Graph,
    operator: type[PairedOperators],
    is_first: Callable[[Node], bool],
    is_second: Callable[[Node], bool],
) -> Graph:
    """Return a graph with pairs as one node each: nothing else reads what the first makes, as its first output.

    Args:
        graph: The graph.
        operator: What a pair becomes.
        is_first: Whether a node may be the first of a pair.
        is_second: Whether a node may be the second, by its other inputs; its first one is what the first makes.
    """
    readers, outputs = graph.consumers(), set(graph.outputs)
    taken = {node.name for node in graph.nodes}
    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        made = node.outputs[0] if len(node.outputs) == 1 and is_first(node) else None
        reading = [] if made is None or made in outputs else readers.get(made, [])
        if made is None or len(reading) != 1:
            continue
        reader = reading[0]
        if reader.inputs.count(made) == 1 and reader.inputs[0] is made and is_second(reader):
            joined[id(reader)] = _join(operator, node, reader, made, taken)
            gone.add(id(node))
    if not joined:
        return graph
    nodes = [joined.get(id(node), node) for node in graph.nodes if id(node) not in gone]
    return replace(graph, nodes=tuple(nodes))


def find_conv(operator: Operator) -> Conv | None:
    """Return the convolution that an operator is, perhaps with an epilogue."""
    if isinstance(operator, Fused):
        operator = operator.parts.producer
    return operator if isinstance(operator, Conv) else None


def _join(operator: type[PairedOperators], first: Node, second: Node, made: Value, taken: set[str]) -> Node:
    """Return two nodes as one."""
    parts = [describe(node.operator) for node in (first, second)]
    rows, inputs = list_rows(parts, (first.inputs, second.inputs), made)
    name = name_after(take_free(f"{first.name}+{second.name}", taken), second.name)
    part_of = first.part_of if first.part_of == second.part_of else ""
    return Node(build(operator.name, {"steps": rows}), tuple(inputs), second.outputs, name, part_of)
