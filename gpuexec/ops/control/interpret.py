"""Interpretation of graphs node by node: shapes and NumPy results of operators with bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuexec.errors import GpuexecError, InputError, NeedsHostValue, locate
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.graphs import Graph, Node, Value, bodies
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import TensorSpec

# The largest content, in bytes, that is propagated from node to node.
CONTENT_LIMIT = 2048


def compute_graph(graph: Graph, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Compute a graph's outputs in NumPy, node by node.

    Args:
        graph: Graph to compute.
        arrays: One for each input, in order.

    Raises:
        InputError: A node does not take what it is given; the message names it.
    """
    known: dict[Value, Array] = dict(graph.constants)
    known.update(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        try:
            outputs = compute_arrays(node.operator, [None if value is None else known[value] for value in node.inputs])
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        made = zip(node.outputs, outputs, strict=False)
        known.update((value, array) for value, array in made if value is not None and array is not None)
    return tuple(known[value] for value in graph.outputs)


def infer_graph(graph: Graph, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs of a graph's outputs, with their content where it is small and known.

    Args:
        graph: Graph to infer.
        specs: One for each input, in order, with content where it is known.

    Raises:
        InputError: A node does not take what it is given, or a shape depends on content that no input can supply.
        NeedsHostValue: A shape depends on the content of an input, whose position is the error's ``index``.
    """
    known = {value: TensorSpec.of(array) for value, array in graph.constants.items()}
    known.update(zip(graph.inputs, specs, strict=True))
    for node in graph.nodes:
        inputs = [None if value is None else known[value] for value in node.inputs]
        try:
            outputs = _propagate(node, inputs, infer_specs(node.operator, inputs))
        except NeedsHostValue as need:
            raise _attribute(graph, node, need, known) from need
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        known.update((value, spec) for value, spec in zip(node.outputs, outputs, strict=False) if value is not None)
    return tuple(known[value] for value in graph.outputs)


def _propagate(
    node: Node, inputs: Sequence[TensorSpec | None], outputs: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """Add content to the outputs where that of all inputs is known and small.

    To read such content is to read all it was made of.
    """
    if not inputs or bodies(node.operator) or any(spec is not None and spec.value is None for spec in inputs):
        return outputs
    if any(spec is not None and spec.nbytes > CONTENT_LIMIT for spec in (*inputs, *outputs)):
        return outputs
    values = [None if spec is None else spec.value for spec in inputs]
    computed = compute_arrays(node.operator, [None if value is None else value.array for value in values])
    logs = [value.log for value in values if value is not None and value.log is not None]

    def log(role: str, _minimum: int | None) -> None:
        for each in logs:
            each(role, None)

    return tuple(
        spec if array is None or spec.value is not None else spec.with_value(_freeze(array), log if logs else None)
        for spec, array in zip(outputs, computed, strict=True)
    )


def _attribute(graph: Graph, node: Node, need: NeedsHostValue, known: Mapping[Value, TensorSpec]) -> InputError:
    """Return the error that asks for the graph input from which the needed content follows."""
    wanted = node.inputs[need.index] if 0 <= need.index < len(node.inputs) else None
    producers, left, visited = graph.producers(), [wanted], set[Value]()
    while left:
        value = left.pop()
        if value is None or value in visited or known[value].value is not None:
            continue
        visited.add(value)
        if value in graph.inputs:
            index = graph.inputs.index(value)
            message = f"{node} needs the content of {value} on the host while planning ({need.role})"
            return NeedsHostValue(message, index=index, role=need.role, node=node.name, value=value.name)
        left += producers[value].inputs
    return InputError(f"{node}: {need}", node=node.name, value=None if wanted is None else wanted.name)


def _freeze(array: Array) -> Array:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
