"""Fusion of a normalization with the rounding of its result, which is read as float too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.elementwise.epilogue import STORED
from gpuexec.ops.nn.norm import LayerNormalization, RMSNormalization, RoundedNormalization
from gpuexec.passes.known_specs import infer_known

_FLOAT = np.dtype(np.float32)


def fuse_rounding(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Fuse a normalization of rows with a Cast to 16 bits behind it, where others read its result as float.

    One kernel stores both: behind a residual, layers of a precision read the one, and the next residual the other. A
    result that nothing else reads is rounded by an epilogue (`gpuexec.passes.fuse_epilogues`). Results stay the same to
    the bit.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    readers, outputs = graph.consumers(), set(graph.outputs)
    pairs = {id(node): cast for node in graph.nodes if (cast := _find_cast(node, readers, outputs)) is not None}
    if not pairs:
        return graph
    known = infer_known(graph, specs)
    taken = {node.name for node in graph.nodes}
    gone: set[int] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        cast = pairs.get(id(node))
        inputs = [known.get(value) for value in node.inputs if value is not None]
        if cast is not None and all(spec is not None and spec.dtype == _FLOAT for spec in inputs):
            nodes.append(_make_node(node, cast, take_free(f"{node.name}+{cast.name}", taken)))
            gone.add(id(cast))
        elif id(node) not in gone:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if gone else graph


def _find_cast(node: Node, readers: Mapping[Value, list[Node]], outputs: set[Value]) -> Node | None:
    """Return the Cast to 16 bits that reads a normalization of rows beside others; None where there is none."""
    if not isinstance(node.operator, (LayerNormalization, RMSNormalization)):
        return None
    value, *statistics = node.outputs
    if value is None or any(each is not None and (each in readers or each in outputs) for each in statistics):
        return None
    found = readers.get(value, [])
    casts = [each for each in found if isinstance(each.operator, Cast)]
    narrow = [each for each in casts if dtype_row(each.operator.to).numpy in STORED]  # type: ignore[attr-defined]
    return narrow[0] if narrow and (len(found) > 1 or value in outputs) else None


def _make_node(node: Node, cast: Node, name: str) -> Node:
    """Return both as one node, which has the outputs of both."""
    norm, rounding = node.operator, cast.operator
    assert isinstance(norm, (LayerNormalization, RMSNormalization)) and isinstance(rounding, Cast)
    is_centered = int(isinstance(norm, LayerNormalization))
    operator = RoundedNormalization(norm.axis, norm.epsilon, norm.stash_type, is_centered, rounding.to)
    part_of = node.part_of if node.part_of == cast.part_of else ""
    outputs = (node.outputs[0], cast.outputs[0])
    return Node(operator, node.inputs, outputs, name_after(name, node.name), part_of)
