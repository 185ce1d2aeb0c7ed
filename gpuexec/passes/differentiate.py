"""Gradient nodes become what computes them: the derivatives of a value by others, from it backwards to them.

Where a Gradient is asked at other values than those it names, what lies between them is computed anew from its inputs.
A value that is no number alone counts by the sum of its elements. Gradients of gradients follow, since a Gradient that
came before is plain nodes already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuexec.errors import ModelError, UnsupportedError
from gpuexec.graph import Array, Graph, Node, Value
from gpuexec.operator import build
from gpuexec.ops.gradient import Gradient
from gpuexec.passes.derivatives import CONSTANT_INPUTS, RULES, WITHOUT_SLOPE, Tape


def differentiate(graph: Graph) -> Graph:
    """Replace each Gradient by the operators that compute it.

    Raises:
        ModelError: A Gradient names a value that nothing makes before it.
        UnsupportedError: An operator between has no rule in `gpuexec.passes.derivatives`.
    """
    if not any(isinstance(node.operator, Gradient) for node in graph.nodes):
        return graph
    values = {value.name: value for value in (*graph.inputs, *graph.constants)}
    taken = {*values, *(value.name for node in graph.nodes for value in node.outputs if value is not None)}
    nodes: list[Node] = []
    constants: dict[Value, Array] = dict(graph.constants)
    for node in graph.nodes:
        made = [node]
        if isinstance(node.operator, Gradient):
            tape = Tape(node.name, taken)
            _differentiate_one(tape, node, node.operator, nodes, values)
            made = tape.nodes
            constants.update(tape.constants)
        nodes.extend(made)
        values.update((value.name, value) for each in made for value in each.outputs if value is not None)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _differentiate_one(
    tape: Tape, node: Node, op: Gradient, before: Sequence[Node], values: Mapping[str, Value]
) -> None:
    """Put what a Gradient computes on its tape."""
    for name in (*op.xs, *op.zs, op.y):
        if name not in values:
            raise ModelError(f"{node} names %{name}, which nothing makes before it.", node=node.name, value=name)
    if len(node.inputs) != len(op.xs) + len(op.zs):
        raise ModelError(f"{node} expects an input for each of xs and zs, got {len(node.inputs)}.", node=node.name)
    xs, y = [values[name] for name in op.xs], values[op.y]
    given = {values[name]: value for name, value in zip((*op.xs, *op.zs), node.inputs, strict=True)}
    stands_for = {value: at for value, at in given.items() if at is not None and at is not value}
    path = _find_path(before, y, given)
    if stands_for:
        path = _repeat(tape, path, stands_for)
    y, xs = stands_for.get(y, y), [stands_for.get(x, x) for x in xs]
    slopes: dict[Value, Value] = {y: tape.full(1, y)}
    moving = _find_moving(path, xs)
    for each in reversed(path):
        _pass_back(tape, node, each, slopes, moving)
    for x, output in zip(xs, node.outputs, strict=False):
        if output is not None:
            slope = slopes[x] if x in slopes else tape.full(0, x)
            tape.nodes.append(Node(build("Identity", {}), (slope,), (output,), f"{node.name}/{output.name}"))


def _find_path(nodes: Sequence[Node], y: Value, given: Mapping[Value, Value | None]) -> list[Node]:
    """Return the nodes that make y of the given values, in order."""
    needed = set() if y in given else {y}
    path = []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            path.append(node)
            needed.update(value for value in node.inputs if value is not None and value not in given)
    return path[::-1]


def _repeat(tape: Tape, path: Sequence[Node], stands_for: dict[Value, Value]) -> list[Node]:
    """Put the nodes that follow from values with a stand-in on the tape anew; fill in what stands for their outputs."""
    repeated = []
    for node in path:
        if stands_for.keys() & set(node.inputs):
            outputs = tuple(None if value is None else tape.make_value() for value in node.outputs)
            inputs = tuple(value if value is None else stands_for.get(value, value) for value in node.inputs)
            stands_for.update((old, new) for old, new in zip(node.outputs, outputs, strict=True) if old and new)
            node = Node(node.operator, inputs, outputs, next(value.name for value in outputs if value is not None))
            tape.nodes.append(node)
        repeated.append(node)
    return repeated


def _find_moving(path: Sequence[Node], xs: Sequence[Value]) -> set[Value]:
    """Return the values that change with the xs."""
    moving = set(xs)
    for node in path:
        if moving.intersection(node.inputs) and node.operator.name not in WITHOUT_SLOPE:
            moving.update(value for value in node.outputs if value is not None)
    return moving


def _pass_back(tape: Tape, gradient: Node, node: Node, slopes: dict[Value, Value], moving: set[Value]) -> None:
    """Add what a node passes back to the derivatives by its inputs."""
    g, name = slopes.get(node.outputs[0]) if node.outputs[0] is not None else None, node.operator.name
    if name in WITHOUT_SLOPE or not moving.intersection(node.inputs):
        return
    if name not in RULES or any(value in slopes for value in node.outputs[1:] if value is not None):
        raise UnsupportedError(f"{gradient}: {node} has no derivative here; known are {', '.join(sorted(RULES))}.")
    if any(node.inputs[at] in moving for at in CONSTANT_INPUTS.get(name, ()) if at < len(node.inputs)):
        raise UnsupportedError(f"{gradient}: {node} has no derivative by its inputs {CONSTANT_INPUTS[name]} here.")
    if g is None:
        return
    for value, slope in zip(
        (each for each in node.inputs if each is not None), RULES[name](tape, node, g), strict=False
    ):
        if slope is not None and value in moving:
            slopes[value] = tape.apply("Add", slopes[value], slope) if value in slopes else slope
