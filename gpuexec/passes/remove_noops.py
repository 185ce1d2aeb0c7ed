"""Removal of nodes that return their input unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.graphs import Array, Graph, Node, Value
from gpuexec.mapped import bring
from gpuexec.spec import dtype_row

DTypes = Mapping[Value, np.dtype[Any]]

# With one input, these are that input.
_OF_ONE = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})
# Neutral second input. Adding 0.0 makes 0.0 of -0.0; adding -0.0 and subtracting 0.0 do not.
_NEUTRAL = {"Add": -0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
# Operators whose first output is of the type of their first input.
_KEEPS_DTYPE = frozenset(
    {"Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "Div", "Dropout"}
    | {
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Gather",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "Identity",
        "LayerNormalization",
    }
    | {"LeakyRelu", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Pad", "Pow", "ReduceMean", "ReduceSum", "Relu"}
    | {
        "Reshape",
        "Sigmoid",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tanh",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)


def remove_noops(graph: Graph) -> Graph:
    """Remove nodes whose output is their input: Identity, inference Dropout, Cast to the same type, adding nothing.

    A graph output keeps its name: the producer of the node's input then makes the output.
    """
    outputs, dtypes = set(graph.outputs), _find_dtypes(graph)
    used = outputs.union(value for node in graph.nodes for value in node.inputs if value is not None)
    stands_for: dict[Value, Value] = {}  # output of a node that goes -> what is read instead
    becomes: dict[Value, Value] = {}  # value -> graph output that its producer makes from now on
    made: set[Value] = set()
    nodes = []
    for node in graph.nodes:
        node = _redirect(node, stands_for)
        source = node.inputs[0] if node.inputs else None
        result = node.outputs[0] if node.outputs else None
        is_alone = source is not None and result is not None and used.isdisjoint(node.outputs[1:])
        if is_alone and _is_noop(node, graph.constants, dtypes):
            assert source is not None and result is not None
            is_renamed = result in outputs and source in made and source not in outputs and source not in becomes
            if is_renamed:
                becomes[source] = result
            if is_renamed or result not in outputs:
                stands_for[result] = source
                continue
        made.update(value for value in node.outputs if value is not None)
        nodes.append(node)
    return replace(graph, nodes=tuple(_redirect(node, becomes, outputs_too=True) for node in nodes))


def _redirect(node: Node, to: Mapping[Value, Value], outputs_too: bool = False) -> Node:
    inputs = tuple(value if value is None else to.get(value, value) for value in node.inputs)
    outputs = node.outputs
    if outputs_too:
        outputs = tuple(value if value is None else to.get(value, value) for value in outputs)
    return node if inputs == node.inputs and outputs == node.outputs else replace(node, inputs=inputs, outputs=outputs)


def _is_noop(node: Node, constants: Mapping[Value, Array], dtypes: DTypes) -> bool:
    """Return whether a node's first output always equals its first input, which is present."""
    name, operator = node.operator.name, node.operator
    given = [value for value in node.inputs if value is not None]
    second = None if len(node.inputs) < 2 or node.inputs[1] is None else constants.get(node.inputs[1])
    if name == "Identity" or (name in _OF_ONE and len(node.inputs) == 1):
        return True
    if name == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        return training is None or (training in constants and not constants[training].any())
    if name == "Cast":
        # NOTE: to NumPy, None equals float64.
        return given[0] in dtypes and dtypes[given[0]] == dtype_row(getattr(operator, "to")).numpy  # noqa: B009
    if name == "CastLike":
        return all(value in dtypes for value in given) and dtypes[given[0]] == dtypes[given[-1]]
    if name == "Transpose":
        perm = getattr(operator, "perm", None)
        return perm is not None and tuple(perm) == tuple(range(len(perm)))
    if name == "Pad":
        return second is not None and not bring(second).any()
    return name in _NEUTRAL and second is not None and _is_neutral(second, _NEUTRAL[name])


def _is_neutral(array: Array, neutral: float) -> bool:
    """Return whether the array is the number itself, sign included, and of rank 0, so that it stretches nothing."""
    if array.ndim or array != neutral:
        return False
    return array.dtype.kind in "iu" or bool(np.signbit(array.astype(np.float64))) == bool(np.signbit(neutral))


def _find_dtypes(graph: Graph) -> DTypes:
    """Return the certain types: of inputs, constants, casts, and results that keep a certain type."""
    dtypes = {value: value.declared.dtype for value in graph.inputs if value.declared is not None}
    dtypes.update({value: array.dtype for value, array in graph.constants.items()})
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        dtype = None
        if node.operator.name == "Cast":
            dtype = dtype_row(getattr(node.operator, "to")).numpy  # noqa: B009
        elif source is not None and node.operator.name in _KEEPS_DTYPE:
            dtype = dtypes.get(source)
        if dtype is not None and node.outputs and node.outputs[0] is not None:
            dtypes[node.outputs[0]] = dtype
    return dtypes
