"""Random keys for nodes that draw random numbers: a memory of the model, with a stream per node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value, bodies, take_free, walk, with_bodies
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import DeclaredSpec
from gpuexec.ops.containers.element_keys import ElementKeys
from gpuexec.ops.control.control import Loop, Scan, SequenceMap
from gpuexec.ops.random.dropout import Dropout
from gpuexec.ops.random.multinomial import Multinomial
from gpuexec.ops.random.numpy_generator import has_seed
from gpuexec.ops.random.random import Bernoulli, RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike
from gpuexec.ops.random.random_key import KEY_DTYPE, NextKey
from gpuexec.ops.random.sample_token import SampleToken

NAME = "gpuexec.random_key"
_KEY = DeclaredSpec(KEY_DTYPE, (2,))
# How many inputs there are without the key, which is the next.
_KNOWN: dict[type[Operator], int] = {
    RandomNormal: 0,
    RandomUniform: 0,
    RandomNormalLike: 1,
    RandomUniformLike: 1,
    Bernoulli: 1,
    Multinomial: 1,
    Dropout: 3,
    SampleToken: 7,
}


def add_random_key(graph: Graph) -> tuple[Graph, tuple[Value, Value] | None]:
    """Add a graph input as the random key of nodes that draw random numbers and have none yet.

    Each has a stream by its place, so that no two draw the same. In the body of a Loop or Scan every trip has a key of
    its own, made of the run's and the trip's number, and in that of a SequenceMap every element. The key counts the
    runs: an output of the graph is that of the next run.

    Returns:
        The graph, and input and output of the key; None where there is nothing to do.
    """
    if not _needs_key(graph):
        return graph, None
    used = [getattr(node.operator, "stream", None) or 0 for inner in walk(graph) for node in inner.nodes]
    names = {value.name for value in graph.values()}
    key, left = (Value(take_free(name, names), _KEY) for name in (NAME, f"{NAME}.left"))
    nodes = _give_keys(graph, key, count(max(used) + 1))
    nodes += (Node(NextKey(), (key,), (left,), key.name),)
    changed = replace(graph, nodes=nodes, inputs=(*graph.inputs, key), outputs=(*graph.outputs, left))
    return changed, (key, left)


def find_keys(graph: Graph) -> tuple[str, ...]:
    """Return the names of those inputs that are keys."""
    inputs = set(graph.inputs)
    keys = [node.inputs[0] for node in graph.nodes if isinstance(node.operator, NextKey) and len(node.inputs) == 1]
    return tuple([key.name for key in keys if key in inputs])


def without_keys(graph: Graph) -> Graph:
    """Return the graph as ONNX has it, without what `add_random_key` added; as it is where bodies have keys."""
    keys = set(find_keys(graph))
    gone = {value for value in graph.inputs if value.name in keys}
    if not gone:
        return graph
    nodes, ends = [], set[Value | None]()
    for node in graph.nodes:
        known = _KNOWN.get(type(node.operator))
        if isinstance(node.operator, NextKey):
            ends.update(node.outputs)
        elif known is not None and any(value in gone for value in node.inputs[known:]):
            bare = replace(node.operator, stream=None)  # type: ignore[type-var]
            nodes.append(replace(node, operator=bare, inputs=_trim(node.inputs[:known])))
        else:
            nodes.append(node)
    if any(value in gone for node in nodes for value in node.inputs):
        return graph
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple([value for value in graph.inputs if value not in gone]),
        outputs=tuple([value for value in graph.outputs if value not in ends]),
    )


def _lacks_key(node: Node, constants: Mapping[Value, Array]) -> bool:
    known = _KNOWN.get(type(node.operator))
    if known is None or len(node.inputs) > known:
        return False
    if isinstance(node.operator, (Bernoulli, Dropout)) and has_seed(node.operator.seed):
        return False  # it draws from NumPy's generator, which starts anew with every run
    if not isinstance(node.operator, Dropout):
        return True
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    return mode is not None and (mode not in constants or bool(np.any(constants[mode])))


def _needs_key(graph: Graph) -> bool:
    for inner in walk(graph):
        for node in inner.nodes:
            if type(node.operator) in _KNOWN and _lacks_key(node, inner.constants):
                return True
    return False


def _give_keys(graph: Graph, key: Value, streams: Iterator[int]) -> tuple[Node, ...]:
    """Return the nodes of a graph with keys, those of its bodies too."""
    nodes = []
    for node in graph.nodes:
        if _lacks_key(node, graph.constants):
            known = _KNOWN[type(node.operator)]
            inputs = (*node.inputs, *(None,) * (known - len(node.inputs)), key)
            drawn = replace(node.operator, stream=next(streams))  # type: ignore[type-var]
            nodes.append(replace(node, operator=drawn, inputs=inputs))
        elif any(_needs_key(body) for body in bodies(node.operator)):
            is_map = isinstance(node.operator, SequenceMap)
            nodes += _give_elements(node, key, streams) if is_map else (_give_bodies(node, key, streams),)
        else:
            nodes.append(node)
    return tuple(nodes)


def _give_elements(node: Node, key: Value, streams: Iterator[int]) -> tuple[Node, Node]:
    """Return a SequenceMap whose body draws, with a sequence of keys that it walks too, and the node that makes it."""
    assert isinstance(node.operator, SequenceMap)
    body, at = node.operator.body, node.operator.given
    own = Value(take_free(NAME, {value.name for value in body.values()}), _KEY)
    keys = Value(f"{node.name}.{NAME}")
    body = replace(body, nodes=_give_keys(body, own, streams), inputs=(*body.inputs[:at], own, *body.inputs[at:]))
    mapped = replace(
        node,
        operator=SequenceMap(body, at + 1),
        inputs=(*node.inputs[:at], keys, *node.inputs[at:]),
    )
    return Node(ElementKeys(), (key, node.inputs[0]), (keys,), keys.name), mapped


def _give_bodies(node: Node, key: Value, streams: Iterator[int]) -> Node:
    """Return a node whose bodies draw: a Scan hands the key on as a state, the others capture it."""
    changed = []
    for body in bodies(node.operator):
        names = {value.name for value in body.values()}
        inner, own = Value(take_free(NAME, names), _KEY), Value(take_free(f"{NAME}.trip", names), _KEY)
        if isinstance(node.operator, Scan):
            # The first trip's key is mixed too, since nodes outside of the loop use the run's own.
            zero = Value(take_free(f"{NAME}.zero", names), DeclaredSpec(np.dtype(np.int64), ()))
            nodes = (Node(NextKey(), (inner, zero), (own,), own.name), *_give_keys(body, own, streams))
            at = node.operator.states
            changed.append(
                replace(
                    body,
                    nodes=nodes,
                    inputs=(*body.inputs[:at], inner, *body.inputs[at:]),
                    outputs=(*body.outputs[:at], own, *body.outputs[at:]),
                    constants={**body.constants, zero: np.zeros((), np.int64)},
                )
            )
            continue
        given, nodes = inner, ()
        if isinstance(node.operator, Loop):
            given, nodes = own, (Node(NextKey(), (inner, body.inputs[0]), (own,), own.name),)
        nodes += _give_keys(body, given, streams)
        changed.append(replace(body, nodes=nodes, inputs=(*body.inputs, inner)))
    operator = with_bodies(node.operator, changed)
    if not isinstance(node.operator, Scan):
        return replace(node, operator=operator, inputs=(*node.inputs, key))
    at = node.operator.states
    return replace(
        node,
        operator=replace(operator, states=at + 1),  # type: ignore[type-var]
        inputs=(*node.inputs[:at], key, *node.inputs[at:]),
        outputs=(*node.outputs[:at], None, *node.outputs[at:]),
    )


def _trim(inputs: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    """Return inputs without those at the end that are not given."""
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs
