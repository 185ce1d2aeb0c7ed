"""Gathers of one constant index: views of what they pick from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import build
from gpuexec.ir.spec import dtypes_of
from gpuexec.ops.tensor.gather import Gather
from gpuexec.passes.remove_noops import find_dtypes

_TO_THE_END = np.iinfo(np.int64).max


def slice_gathers(graph: Graph) -> Graph:
    """Replace a Gather of floats by one constant index, a scalar, by a Slice and a Squeeze, which take no launch.

    So the first token of a classifier, or the last state, is read where it lies. An index beyond the axis is refused
    when sizes are known: no axis of extent 1 is left to drop. Integers are mostly shapes, which the host works out.
    """
    dtypes = find_dtypes(graph)
    value_names, node_names = ({each.name for each in row} for row in (graph.values(), graph.nodes))
    constants, nodes = dict(graph.constants), list[Node]()

    def add(source: Value, name: str, number: int) -> Value:
        value = Value(take_free(f"{source.name}.{name}", value_names))
        constants[value] = np.array([number], np.int64)
        return value

    for node in graph.nodes:
        data, result = node.inputs[0] if node.inputs else None, node.outputs[0] if node.outputs else None
        index = _find_index(node, graph)
        if index is None or data is None or result is None or not _is_float(dtypes.get(data)):
            nodes.append(node)
            continue
        assert isinstance(node.operator, Gather)
        end = index + 1 or _TO_THE_END  # behind the last element
        axis = add(result, "axis", node.operator.axis)
        slice_inputs = (data, add(result, "start", index), add(result, "end", end), axis)
        sliced = Value(take_free(f"{result.name}.slice", value_names))
        name = take_free(f"{node.name}.slice", node_names)
        nodes.append(Node(build("Slice", {}), slice_inputs, (sliced,), name, node.part_of))
        nodes.append(replace(node, operator=build("Squeeze", {}), inputs=(sliced, axis)))
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), constants=constants)


def _find_index(node: Node, graph: Graph) -> int | None:
    """Return the one index that a Gather picks; None where it is none, or picks another number of slices."""
    picked = node.inputs[1] if isinstance(node.operator, Gather) else None
    array = None if picked is None else graph.constants.get(picked)
    return int(array) if array is not None and array.ndim == 0 else None


def _is_float(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and dtype in dtypes_of("float")
