"""Topological order of nodes, and a single definition of every name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.source_lines import name_node

_NAMES_SHOWN = 8


def sort_nodes(
    nodes: Sequence[onnx.NodeProto],
    given: Iterable[str],
    is_visible: Callable[[str], bool] = lambda name: False,
) -> list[onnx.NodeProto]:
    """Sort nodes topologically; the present order is kept where it is valid.

    Captures of a node's bodies count as its inputs.

    Args:
        nodes: In any order.
        given: Names that exist without a node: inputs and initializers.
        is_visible: In a body, whether a name stands for a value of the graphs around it; the body may use it anew.

    Raises:
        ModelError: A value is made twice or never, or nodes wait for each other.
    """
    origin = _origins(nodes, given)
    lost: list[tuple[onnx.NodeProto, str]] = []
    needs = [_producers_of(node, origin, is_visible, lost) for node in nodes]
    if lost:
        rows = [f"{describe_node(node)}: input %{name} is made by no node" for node, name in lost[:_NAMES_SHOWN]]
        more = f"; and {len(lost) - _NAMES_SHOWN} more" if len(lost) > _NAMES_SHOWN else ""
        raise ModelError(f"{'; '.join(rows)}{more}.", node=name_node(lost[0][0]), value=lost[0][1])
    if all(producer < index for index, producers in enumerate(needs) for producer in producers):
        return list(nodes)
    order: list[int] = []
    state = [0] * len(nodes)  # 0: not visited, 1: waits for its inputs, on the stack, 2: placed
    for first in range(len(nodes)):
        stack = [first] if state[first] == 0 else []
        while stack:
            index = stack[-1]
            missing = [producer for producer in needs[index] if state[producer] != 2]
            if not missing:
                state[stack.pop()] = 2
                order.append(index)
                continue
            state[index] = 1
            if state[missing[0]] == 1:
                cycle = [nodes[each] for each in stack[stack.index(missing[0]) :]]
                raise ModelError(_describe_cycle(cycle), node=name_node(cycle[0]), value=cycle[0].output[0])
            stack.append(missing[0])
    return [nodes[index] for index in order]


def describe_node(node: onnx.NodeProto) -> str:
    """Return a node in words, also where it has no name."""
    return f"{node.op_type} {node.name or (node.output[0] if node.output else '')!r}"


def _origins(nodes: Sequence[onnx.NodeProto], given: Iterable[str]) -> dict[str, int]:
    origin = dict.fromkeys(given, -1)
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in origin:
                other = describe_node(nodes[origin[name]]) if origin[name] >= 0 else "an input or initializer"
                message = f"{describe_node(node)}: output %{name} is made by {other} already."
                raise ModelError(message, node=name_node(node), value=name)
            origin[name] = index
    return origin


def walk_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """Yield all bodies in the nodes, and in the nodes of those."""
    for node in nodes:
        for body in _bodies_of(node):
            yield body
            yield from walk_graphs(body.node)


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes, then those of all bodies in them."""
    nodes = list(nodes)
    yield from nodes
    for body in walk_graphs(nodes):
        yield from body.node


def _bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _names_from_outside(body: onnx.GraphProto) -> dict[str, None]:
    """Return the names that a body, or one inside it, captures."""
    used = dict.fromkeys(info.name for info in body.output)
    own = {info.name for info in body.input}
    own.update(tensor.name for tensor in body.initializer)
    own.update(sparse.values.name for sparse in body.sparse_initializer)
    for node in body.node:
        used.update(dict.fromkeys(node.input))
        own.update(node.output)
        for inner in _bodies_of(node):
            used.update(_names_from_outside(inner))
    return {name: None for name in used if name and name not in own}


def _producers_of(
    node: onnx.NodeProto,
    origin: dict[str, int],
    is_visible: Callable[[str], bool],
    lost: list[tuple[onnx.NodeProto, str]],
) -> list[int]:
    """Return the nodes a node waits for; inputs that nothing makes are added to ``lost``."""
    producers = [origin[name] for body in _bodies_of(node) for name in _names_from_outside(body) if name in origin]
    producers = [index for index in producers if index >= 0]
    for name in filter(None, node.input):
        index = origin.get(name)
        if index is None and is_visible(name):
            continue
        if index is None:
            lost.append((node, name))
        elif index >= 0:
            producers.append(index)
    return producers


def _describe_cycle(cycle: Sequence[onnx.NodeProto]) -> str:
    names = ", ".join(map(describe_node, cycle[:_NAMES_SHOWN]))
    more = f", and {len(cycle) - _NAMES_SHOWN} more" if len(cycle) > _NAMES_SHOWN else ""
    return f"{len(cycle)} nodes wait in a circle, each for an output of the next: {names}{more}."
