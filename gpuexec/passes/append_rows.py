"""In-place cache growth: a Concat of a memory with new rows as an Append."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ops.tensor.append import Append
from gpuexec.ops.tensor.copy import Concat


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of a memory: by the rows that ``node``, a Concat, puts behind it along ``axis``."""

    node: Node
    axis: int


def find_growth(graph: Graph, held: Value, output: Value) -> Growth | None:
    """Return the growth of an output from an input by rows put behind it; None where it is made in another way."""
    producers = graph.producers()
    made = output
    while (node := producers.get(made)) is not None and node.operator.name == "Identity":
        source = node.inputs[0]
        assert source is not None
        made = source
    rank = len(held.declared.dims or ()) if held.declared is not None else 0
    if (
        node is None
        or not isinstance(node.operator, Concat)
        or not rank
        or (made is not output and made in graph.outputs)
    ):
        return None
    if len(node.inputs) != 2 or node.inputs[0] is not held or node.inputs[1] is None:
        return None
    return Growth(node, normalize_axis(node.operator.axis, rank))


def append_rows(graph: Graph, held: Value, output: Value, growth: Growth, capacity: int) -> Graph:
    """Replace the Concat that makes an output of an input by an Append, which makes the output itself."""
    made = growth.node.outputs[0]
    assert made is not None
    producers = graph.producers()
    gone = set()
    between = output
    while between is not made:
        node = producers[between]
        gone.add(node)
        source = node.inputs[0]
        assert source is not None
        between = source
    append = replace(growth.node, operator=Append(growth.axis, capacity, held.name), outputs=(output,))
    # The output replaces all values equal to the Concat's result.
    stood = {made, *(value for node in gone for value in node.outputs if value is not None)}
    nodes = []
    for node in graph.nodes:
        if node in gone:
            continue
        if node is growth.node:
            nodes.append(append)
        elif any(value in stood for value in node.inputs):
            nodes.append(replace(node, inputs=tuple([output if value in stood else value for value in node.inputs])))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))
