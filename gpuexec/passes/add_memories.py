"""Recurrent state: initial and final states of LSTM, GRU and RNN as graph inputs and outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.errors import UnsupportedError
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import find_operator
from gpuexec.ir.spec import DeclaredSpec, Dim
from gpuexec.ops.nn.rnn import Recurrent

# Where the parts of the state stand among the inputs of a layer; they are the outputs from the second on.
_FIRST_STATE = 5
_PARTS = ("h", "c")


def add_memories(graph: Graph) -> tuple[Graph, tuple[tuple[Value, Value], ...]]:
    """Add an input for the initial state of each LSTM, GRU and RNN of the graph that starts from nothing.

    Layers in bodies are left alone: how often they run depends on data. Names come from the node's: ``lstm.initial_h``
    and ``lstm.Y_h``.

    Returns:
        The graph, and the pairs (input, output).

    Raises:
        UnsupportedError: Nothing tells the type of a layer's state.
    """
    names = {value.name for value in graph.values()}
    shapes = {value: array.shape for value, array in graph.constants.items()}
    dtypes: dict[Value | None, np.dtype[Any]] = {value: array.dtype for value, array in graph.constants.items()}
    dtypes.update({value: value.declared.dtype for value in graph.inputs if value.declared is not None})
    identity = find_operator("Identity")
    assert identity is not None
    pairs: list[tuple[Value, Value]] = []
    nodes: list[Node] = []
    for node in graph.nodes:
        op = node.operator
        count = op.states if isinstance(op, Recurrent) else 0
        inputs = [*node.inputs, *(None,) * (_FIRST_STATE + count - len(node.inputs))]
        if not isinstance(op, Recurrent) or any(inputs[_FIRST_STATE : _FIRST_STATE + count]):
            nodes.append(node)
            continue
        known = [value for value in node.inputs[:4] if value in dtypes]
        if not known:
            raise UnsupportedError(
                f"{node}: its state can't be kept, since none of X, W, R and B is an input or constant that tells its"
                " type.",
                node=node.name,
            )
        directions: int = 2 if op.direction == "bidirectional" else 1
        hidden: Dim = op.hidden_size or next((shapes[value][2] for value in node.inputs[2:3] if value in shapes), None)
        dims: tuple[Dim, ...] = (None, directions, hidden) if op.layout else (directions, None, hidden)
        declared = DeclaredSpec(dtypes[known[0]], dims)
        outputs = [*node.outputs, *(None,) * (1 + count - len(node.outputs))]
        copies = []
        for part in range(count):
            start = Value(_name(f"{node.name}.initial_{_PARTS[part]}", names), declared)
            end = Value(_name(f"{node.name}.Y_{_PARTS[part]}", names), declared)
            inputs[_FIRST_STATE + part] = start
            made = outputs[1 + part]
            if made is None:
                outputs[1 + part] = end
            else:
                copies.append(Node(identity(), (made,), (end,), end.name))
            pairs.append((start, end))
        nodes += [replace(node, inputs=tuple(inputs), outputs=tuple(outputs)), *copies]
    added_inputs, added_outputs = tuple(start for start, _ in pairs), tuple(end for _, end in pairs)
    changed = replace(
        graph,
        nodes=tuple(nodes),
        inputs=(*graph.inputs, *added_inputs),
        outputs=(*graph.outputs, *added_outputs),
    )
    return changed, tuple(pairs)


def without_memories(graph: Graph, starts: frozenset[Value]) -> tuple[Node, ...]:
    """Return a graph's nodes without the initial states of their layers."""
    nodes = []
    for node in graph.nodes:
        if any(value in starts for value in node.inputs):
            nodes.append(replace(node, inputs=tuple([None if v in starts else v for v in node.inputs])))
        else:
            nodes.append(node)
    return tuple(nodes)


def _name(wanted: str, names: set[str]) -> str:
    """Return a name that no value has yet, and note it."""
    name, number = wanted, 2
    while name in names:
        name, number = f"{wanted}_{number}", number + 1
    names.add(name)
    return name
