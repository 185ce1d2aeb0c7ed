"""Graph value edits: lookup by name, substitution, and unique renaming."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuexec.errors import InputError
from gpuexec.importer.output_selection import shorten
from gpuexec.ir.graphs import Graph, Value, bodies, list_needed, walk, with_bodies


def find_values(graph: Graph, names: Sequence[str], what: str) -> list[Value]:
    """Return the values of these names, in order; a node's name stands for all its outputs.

    Args:
        graph: Where to look; a value's name comes before a node's.
        names: Each at most once.
        what: Name of the operation, for messages.

    Raises:
        InputError: There is no such value, or it is listed twice; or nothing is listed.
    """
    if not names or isinstance(names, str):
        raise InputError(f"{what} takes a list of names, at least one; got {names!r}.")
    values = {value.name: value for value in graph.values()}
    nodes = {node.name: [value for value in node.outputs if value is not None] for node in graph.nodes}
    found: dict[Value, None] = {}
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{what} takes names, got a {type(name).__name__} {name!r:.60}.")
        if name not in values and name not in nodes:
            raise _unknown(graph, name, what)
        for value in (values[name],) if name in values else nodes[name]:
            if value in found:
                raise InputError(f"{what}: {value.name!r} is listed twice.", value=value.name)
            found[value] = None
    return list(found)


def exchange(graph: Graph, others: Mapping[Value, Value]) -> Graph:
    """Substitute values of a graph by others wherever they are used."""
    if not others:
        return graph

    def swap(values: Iterable[Value | None]) -> tuple[Value | None, ...]:
        return tuple([None if value is None else others.get(value, value) for value in values])

    nodes = tuple([replace(node, inputs=swap(node.inputs), outputs=swap(node.outputs)) for node in graph.nodes])
    return Graph(
        tuple([others.get(value, value) for value in graph.inputs]),
        tuple([others.get(value, value) for value in graph.outputs]),
        nodes,
        {others.get(value, value): array for value, array in graph.constants.items()},
        graph.name,
    )


def copy_graph(graph: Graph) -> Graph:
    """Copy a graph with new values, in bodies too; constants are the same arrays."""
    others = {value: Value(value.name, value.declared) for value in graph.values()}
    return exchange(exchange_bodies(graph, copy_graph), others)


def exchange_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with ``change`` applied to the bodies of its nodes."""
    nodes = []
    for node in graph.nodes:
        inner = [change(body) for body in bodies(node.operator)]
        nodes.append(replace(node, operator=with_bodies(node.operator, inner)) if inner else node)
    return replace(graph, nodes=tuple(nodes))


def keep_needed(graph: Graph, outputs: Sequence[Value], given: frozenset[Value] = frozenset()) -> Graph:
    """Return the graph with these outputs, and only the nodes, inputs and constants they need.

    Args:
        graph: The graph to reduce.
        outputs: Values of it.
        given: Values that are there already; what only they need goes too.
    """
    nodes, needed = list_needed(graph.nodes, outputs, given)
    return Graph(
        tuple([value for value in graph.inputs if value in needed]),
        tuple(outputs),
        tuple(nodes),
        {value: array for value, array in graph.constants.items() if value in needed and value not in given},
        graph.name,
    )


def _unknown(graph: Graph, name: str, what: str) -> InputError:
    inner = {value.name: body for body in walk(graph) if body is not graph for value in body.values()}
    if name in inner:
        message = f"{what}: {name!r} is a value in the body {inner[name].name!r}, which has as many as it has trips."
        return InputError(message, value=name)
    outputs = [value.name for value in graph.outputs]
    last = [value.name for node in reversed(graph.nodes) for value in node.outputs if value is not None]
    return InputError(
        f"{what}: the model has no value or node {name!r}; its outputs are {shorten(outputs)}; its last nodes make"
        f" {shorten(last)}.",
        value=name,
    )
