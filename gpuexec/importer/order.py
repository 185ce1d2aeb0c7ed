"""Nodes in executable order, and every name with one origin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from gpuexec.errors import ModelError

_NAMES_SHOWN = 8


def sort_nodes(nodes: Sequence[onnx.NodeProto], given: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes so that every value is made before it is used; as they stand where that holds already.

    Args:
        nodes: In any order.
        given: Names that exist without a node: inputs and initializers.

    Raises:
        ModelError: A value is made twice or never, or nodes wait for each other.
    """
    origin = _origins(nodes, given)
    needs = [_producers_of(node, origin) for node in nodes]
    if all(producer < index for index, producers in enumerate(needs) for producer in producers):
        return list(nodes)
    order: list[int] = []
    state = [0] * len(nodes)  # 0: not met, 1: waits for its inputs, on the stack, 2: placed
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
                raise ModelError(_describe_cycle([nodes[each] for each in stack[stack.index(missing[0]) :]]))
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
                raise ModelError(message, node=node.name, value=name)
            origin[name] = index
    return origin


def _producers_of(node: onnx.NodeProto, origin: dict[str, int]) -> list[int]:
    producers = []
    for name in filter(None, node.input):
        index = origin.get(name)
        if index is None:
            raise ModelError(f"{describe_node(node)}: input %{name} is made by no node.", node=node.name, value=name)
        if index >= 0:
            producers.append(index)
    return producers


def _describe_cycle(cycle: Sequence[onnx.NodeProto]) -> str:
    names = ", ".join(map(describe_node, cycle[:_NAMES_SHOWN]))
    more = f", and {len(cycle) - _NAMES_SHOWN} more" if len(cycle) > _NAMES_SHOWN else ""
    return f"{len(cycle)} nodes wait in a circle, each for an output of the next: {names}{more}."
