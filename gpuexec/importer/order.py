"""Topological order of nodes, and a single definition of every name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import lt

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.source_lines import name_node

_NAMES_SHOWN = 8
_GRAPHS = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS})


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
    needs = _list_producers(nodes, origin, is_visible, lost)
    if lost:
        rows = [f"{describe_node(node)}: input %{name} is made by no node" for node, name in lost[:_NAMES_SHOWN]]
        more = f"; and {len(lost) - _NAMES_SHOWN} more" if len(lost) > _NAMES_SHOWN else ""
        raise ModelError(f"{'; '.join(rows)}{more}.", node=name_node(lost[0][0]), value=lost[0][1])
    if all(map(lt, [max(producers, default=-1) for producers in needs], count())):
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


def list_graphs(nodes: Iterable[onnx.NodeProto]) -> list[onnx.GraphProto]:
    """Return all bodies in the nodes, and in the nodes of those; each stands before those in it."""
    graphs: list[onnx.GraphProto] = []
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type in _GRAPHS:
                for body in (attribute.g,) if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                    graphs += (body, *list_graphs(body.node))
    return graphs


def list_nodes(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes, then those of all bodies in them."""
    every = list(nodes)
    for body in list_graphs(every):
        every += body.node
    return every


def _list_producers(
    nodes: Sequence[onnx.NodeProto],
    origin: dict[str, int],
    is_visible: Callable[[str], bool],
    lost: list[tuple[onnx.NodeProto, str]],
) -> list[list[int]]:
    """Return for each node those it waits for; inputs that nothing makes are added to ``lost``."""
    needs: list[list[int]] = []
    for node in nodes:
        producers: list[int] = []
        for attribute in node.attribute:
            if attribute.type in _GRAPHS:
                captured = _list_captured(attribute)
                producers += [origin[name] for name in captured if origin.get(name, -1) >= 0]
        for name in node.input:
            index = origin.get(name)
            if index is None and name and not is_visible(name):
                lost.append((node, name))
            elif index is not None and index >= 0:
                producers.append(index)
        needs.append(producers)
    return needs


def _list_captured(attribute: onnx.AttributeProto) -> dict[str, None]:
    """Return the names that the bodies in an attribute, or those inside them, take from outside."""
    captured: dict[str, None] = {}
    for body in (attribute.g,) if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
        used = dict.fromkeys(info.name for info in body.output)
        own = {info.name for info in body.input}
        own.update(tensor.name for tensor in body.initializer)
        own.update(sparse.values.name for sparse in body.sparse_initializer)
        for node in body.node:
            used.update(dict.fromkeys(node.input))
            own.update(node.output)
            for inner in node.attribute:
                if inner.type in _GRAPHS:
                    used.update(_list_captured(inner))
        captured.update({name: None for name in used if name and name not in own})
    return captured


def _describe_cycle(cycle: Sequence[onnx.NodeProto]) -> str:
    names = ", ".join(map(describe_node, cycle[:_NAMES_SHOWN]))
    more = f", and {len(cycle) - _NAMES_SHOWN} more" if len(cycle) > _NAMES_SHOWN else ""
    return f"{len(cycle)} nodes wait in a circle, each for an output of the next: {names}{more}."
