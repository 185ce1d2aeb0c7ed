"""Reverse-mode differentiation: Gradient nodes replaced by the computation of their derivatives.

A Gradient at other values than those it names recomputes the nodes between them from its inputs.
The derivative of a tensor is that of the sum of its elements; values it does not depend on have derivative 0.
Gradients of gradients follow, since earlier Gradients are plain nodes already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuexec.errors import ModelError, UnsupportedError, locate
from gpuexec.ir.graphs import Array, Graph, Node, Value, list_needed
from gpuexec.ir.operator import build, decomposition_for
from gpuexec.ir.spec import dtype_row
from gpuexec.ops.nn.gradient import Gradient
from gpuexec.passes.derivatives import OF_ALL_OUTPUTS, PARTS, RULES, Tape


def differentiate(graph: Graph) -> Graph:
    """Replace each Gradient by the operators that compute it.

    Raises:
        ModelError: The values that a Gradient names do not determine ``y``.
        UnsupportedError: An operator between has no rule in `gpuexec.passes.derivatives`.
    """
    if not any(isinstance(node.operator, Gradient) for node in graph.nodes):
        return graph
    taken = {value.name for value in graph.values()}
    nodes: list[Node] = []
    constants: dict[Value, Array] = dict(graph.constants)
    for node in graph.nodes:
        if not isinstance(node.operator, Gradient):
            nodes.append(node)
            continue
        tape = Tape(node.name, taken)
        try:
            _differentiate_one(tape, node, node.operator, nodes, set(graph.inputs))
        except ModelError as error:
            raise locate(error, node, node.name) from None
        tape.keep_needed(node.outputs)
        nodes += tape.nodes
        constants.update(tape.constants)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _differentiate_one(tape: Tape, node: Node, op: Gradient, before: Sequence[Node], inputs: set[Value]) -> None:
    """Add the computation of a Gradient to its tape."""
    count = len(op.xs) + len(op.zs)
    given, (*named, y) = node.inputs[:count], _require(node.inputs[count:])
    if len(named) != count:
        raise ModelError(
            f"expected an input for each of xs and zs, and those themselves and y; got {len(node.inputs)}."
        )
    twice = sorted({value.name for value in named if named.count(value) > 1})
    if twice:
        raise ModelError(f"%{twice[0]} is several of xs and zs; give each a value of its own.", value=twice[0])
    xs = named[: len(op.xs)]
    for value in (*xs, y):
        _check_type(value)
    path = _find_path(before, y, named, inputs)
    # Replacements are new values: one value may replace several, and lie on the path to y.
    pairs = zip(named, _require(given), strict=True)
    stands_for = {value: tape.apply("Identity", at) for value, at in pairs if at is not value}
    if stands_for:
        path = _repeat(tape, path, stands_for)
    y, xs = stands_for.get(y, y), [stands_for.get(x, x) for x in xs]
    slopes: dict[Value, Value] = {y: tape.full(1, y)}
    _pass_back(tape, path, slopes, set(xs))
    for x, output in zip(xs, node.outputs, strict=False):
        if output is not None:
            slope = slopes[x] if x in slopes else tape.full(0, x)
            # SumTo sums nothing here; it refuses types without derivatives.
            tape.nodes.append(Node(build("gpuexec.SumTo", {}), (slope, x), (output,), f"{node.name}/{output.name}"))


def _require(values: Iterable[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]


def _check_type(value: Value) -> None:
    dtype = value.declared.dtype if value.declared is not None else None
    if dtype is not None and dtype_row(dtype).kind != "float":
        raise UnsupportedError(
            f"there are no derivatives of or by {value}, of {dtype_row(dtype).name}; put a Cast to float before it.",
            value=value.name,
        )


def _find_path(nodes: Sequence[Node], y: Value, given: Sequence[Value], inputs: set[Value]) -> list[Node]:
    """Return the nodes that make y of the given values, in order.

    Raises:
        ModelError: They need an input of the graph beside these.
    """
    path, needed = list_needed(nodes, [y], given)
    beside = sorted(value.name for value in needed.intersection(inputs).difference(given))
    if beside:
        raise ModelError(f"{y} depends on %{beside[0]} too; name it in xs, or in zs where it is held.", value=beside[0])
    return path


def _repeat(tape: Tape, path: Sequence[Node], stands_for: dict[Value, Value]) -> list[Node]:
    """Copy the nodes that follow from replaced values to the tape, and enter their replaced outputs."""
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


def _pass_back(tape: Tape, path: Sequence[Node], slopes: dict[Value, Value], moving: set[Value]) -> None:
    """Add up derivatives from the end of a path back to its beginning.

    Args:
        tape: For the nodes that compute them.
        path: Nodes in order.
        slopes: The derivatives by values, to which others are added.
        moving: Values that depend on those differentiated by; values that follow from them are added.
    """
    for node in path:
        if moving.intersection(node.inputs) and node.operator.has_slope:
            moving.update(value for value in node.outputs if value is not None)
    for node in reversed(path):
        outputs = [None if value is None else slopes.get(value) for value in node.outputs]
        is_passed = any(slope is not None for slope in outputs) and moving.intersection(node.inputs)
        if not is_passed or not node.operator.has_slope:
            continue
        if node.operator.name not in RULES and node.operator.name not in OF_ALL_OUTPUTS:
            _pass_back_parts(tape, node, slopes, moving)
            continue
        for value, slope in zip(node.inputs, _apply_rule(tape, node, outputs, moving), strict=False):
            if slope is not None and value is not None and value in moving:
                slopes[value] = tape.apply("Add", slopes[value], slope) if value in slopes else slope


def _apply_rule(tape: Tape, node: Node, slopes: Sequence[Value | None], moving: set[Value]) -> Iterable[Value | None]:
    """Return the derivatives by a node's inputs."""
    name = node.operator.name
    for index in node.operator.fixed_inputs:
        if index < len(node.inputs) and node.inputs[index] in moving:
            raise UnsupportedError(f"{node} has no derivative here by its input {node.inputs[index]}.")
    if name in OF_ALL_OUTPUTS:
        return OF_ALL_OUTPUTS[name](tape, node, slopes)
    first, *rest = slopes
    if first is None or any(slope is not None for slope in rest):
        raise UnsupportedError(f"{node} has no derivative here of its outputs behind the first.")
    return RULES[name](tape, node, first)


def _pass_back_parts(tape: Tape, node: Node, slopes: dict[Value, Value], moving: set[Value]) -> None:
    """Add a node's decomposition to the tape and pass derivatives back through it."""
    name, first = node.operator.name, len(tape.nodes)
    if name in PARTS:
        made: Sequence[Value | None] = PARTS[name](tape, node)
    else:
        made = _decompose(tape, node)
    for old, new in zip(node.outputs, made, strict=False):
        if old in slopes and new is not None:
            slopes[new] = slopes[old]
    if any(value in slopes for value in node.outputs[len(made) :]):
        raise UnsupportedError(f"{node} has no derivative here of its outputs behind {node.outputs[0]}.")
    _pass_back(tape, tape.nodes[first:], slopes, moving)


def _decompose(tape: Tape, node: Node) -> tuple[Value | None, ...]:
    """Add the decomposition of a node to the tape, and return its outputs.

    Raises:
        UnsupportedError: It is not said in others.
    """
    name, function = node.operator.name, decomposition_for(node.operator.name)
    outputs = tuple(None if value is None else tape.make_value() for value in node.outputs)
    title = next(value.name for value in outputs if value is not None)
    parts = () if function is None else function(replace(node, outputs=outputs, name=title))
    if not parts or any(part.operator.name == name for part in parts):
        known = ", ".join(sorted({*RULES, *OF_ALL_OUTPUTS, *PARTS}))
        raise UnsupportedError(f"{node} has no derivative here; known are {known}.")
    tape.add(parts)
    return outputs
