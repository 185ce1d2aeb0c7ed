"""Graph intermediate representation: Value, Node and Graph.

    Graph    = inputs: Value*, outputs: Value*, nodes: Node*, constants: {Value: array}
    Node     = operator, inputs: (Value | None)*, outputs: (Value | None)*, name
    Value    = name, declared spec or None                 (equal only to itself)

Nodes stand in an order in which every value is made before it is used; every value has one origin: an input, a
constant, or one output of one node. An operator may have graphs among its attributes, its bodies (If, Loop, Scan): they
are closed: every value that a body takes from outside is one of its inputs. Names of values are unique in a graph, not
across bodies. `check` holds exactly this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain, count
from typing import Any

import numpy as np

from gpuexec.errors import ModelError, locate
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import DeclaredSpec

Array = np.ndarray[Any, Any]
# Words of types that are no graph.
_PLAIN = frozenset({"bool", "bytes", "float", "int", "None", "str", "tuple"})


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the graph. Two values are equal only if they are the same object; names are for people."""

    name: str
    declared: DeclaredSpec | None = None

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One application of an operator. None stands for an optional input not given, or an unused output.

    ``part_of`` says in words which node of the model this one was drawn for; messages begin with it. ``metadata`` are
    texts by key, as the file has them, which nothing computes with.
    """

    operator: Operator
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    name: str
    part_of: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        own = f"{self.operator.name} {self.name!r}"
        return f"{self.part_of}, in its {own}" if self.part_of else own


@dataclass(frozen=True, slots=True)
class RawNode:
    """A node as the file has it, before its operator is built; what upgrades rewrite.

    ``inputs`` and ``outputs`` are names (``""``: absent). ``constants`` are arrays an upgrade adds, by new input
    name: an attribute that became an input in a later opset. ``before`` are nodes an upgrade puts in front, already in
    their newest form; nobody else reads what they make.
    """

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    constants: Mapping[str, Array] = field(default_factory=dict)
    before: tuple[RawNode, ...] = ()

    def without(self, *names: str) -> RawNode:
        """Return the node without these attributes."""
        return replace(self, attributes={k: v for k, v in self.attributes.items() if k not in names})

    def with_attributes(self, **attributes: Any) -> RawNode:
        """Return the node with these attributes added or replaced."""
        return replace(self, attributes={**self.attributes, **attributes})

    def with_input(self, index: int, array: Array) -> RawNode:
        """Return the node with a constant as its input ``index`` (gaps are filled with absent inputs)."""
        name = f"{self.name or self.outputs[0]}.{self.op_type}.input{index}"
        inputs = list(self.inputs) + [""] * (index + 1 - len(self.inputs))
        inputs[index] = name
        return replace(self, inputs=tuple(inputs), constants={**self.constants, name: array})


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in executable order, with named inputs and outputs and constant arrays (read-only)."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[Value, Array]
    name: str = ""

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.nodes)} nodes)"

    def producers(self) -> dict[Value, Node]:
        """Return the node that makes each value."""
        return {value: node for node in self.nodes for value in node.outputs if value is not None}

    def consumers(self) -> dict[Value, list[Node]]:
        """Return the nodes that read each value (a node once for each use)."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    users.setdefault(value, []).append(node)
        return users

    def values(self) -> list[Value]:
        """Return every value once: inputs, constants, node outputs."""
        values = [*self.inputs, *self.constants]
        for node in self.nodes:
            for value in node.outputs:
                if value is not None:
                    values.append(value)
        return values


def list_made(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the names of the outputs of each node, by its name; of nodes of one name, those of the last."""
    return {node.name: tuple([v.name for v in node.outputs if v is not None]) for node in graph.nodes}


def bodies(operator: Operator) -> tuple[Graph, ...]:
    """Return the graphs among an operator's attributes, in the order of its fields; none for most operators."""
    names = body_fields(type(operator))
    if not names:
        return ()
    given = (getattr(operator, name) for name in names)
    return tuple(value for value in given if isinstance(value, Graph))


def walk(graph: Graph) -> list[Graph]:
    """Return the graph and the bodies of its nodes, to any depth."""
    graphs = [graph]
    for node in graph.nodes:
        if body_fields(type(node.operator)):
            for body in bodies(node.operator):
                graphs += walk(body)
    return graphs


def with_bodies(operator: Operator, graphs: Sequence[Graph]) -> Operator:
    """Return the operator with other bodies, as many and in the order of `bodies`."""
    every = body_fields(type(operator))
    names = [name for name in every if isinstance(getattr(operator, name), Graph)]
    changed: Operator = replace(operator, **dict(zip(names, graphs, strict=True)))  # type: ignore[type-var]
    return changed


def _list_body_fields(cls: type[Any]) -> tuple[str, ...]:
    """Return the fields of an operator's class that may hold a graph.

    Those are fields whose type, as written, is made of more than plain types.
    """
    return tuple(f.name for f in fields(cls) if not set(re.findall(r"\w+", str(f.type))) <= _PLAIN)


# Found once for a class. A loop over all nodes asks for these before it asks for the `bodies`: most classes have none.
body_fields: Callable[[type[Any]], tuple[str, ...]] = cache(_list_body_fields)  # type: ignore[assignment]


def list_needed(
    nodes: Sequence[Node], outputs: Iterable[Value], given: Container[Value] = frozenset()
) -> tuple[list[Node], set[Value]]:
    """Return the nodes that outputs depend on, in order, and the values these use, the outputs among them.

    Args:
        nodes: In order.
        outputs: The wanted values.
        given: Values that are there already: what makes them is left out.
    """
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if any(value in needed and value not in given for value in node.outputs if value is not None):
            kept.append(node)
            needed.update(value for value in node.inputs if value is not None)
    return kept[::-1], needed


def find_free(name: str, *taken: Container[str]) -> str:
    """Return a name that is in none of these sets: the name itself, or with the first free number from 2."""
    names = chain((name,), (f"{name}.{number}" for number in count(2)))
    return next(each for each in names if all(each not in row for row in taken))


def take_free(name: str, taken: set[str]) -> str:
    """Return an unused name as `find_free` does, and add it to the used ones."""
    free = name if name not in taken else find_free(name, taken)
    taken.add(free)
    return free


def name_values(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the names of each node's values, those of bodies too, by node name."""
    rows: dict[str, tuple[str, ...]] = {}
    for each in walk(graph):
        for node in each.nodes:
            made = tuple(value.name for value in node.outputs if value is not None)
            rows[node.name] = rows.get(node.name, ()) + made
    return rows


def check(graph: Graph) -> None:
    """Check that every value has one origin and a unique name and is made before it is used; in bodies too.

    Raises:
        ModelError: It is not so; the message names node and value.
    """
    known: set[Value] = set()
    names: set[str] = set()
    for value in (*graph.inputs, *graph.constants):
        if value in known:
            raise ModelError(
                f"Graph {graph.name!r}: value {value} is listed twice among inputs and constants.", value=value.name
            )
        known.add(value)
    for value in graph.inputs:
        if value.name in names:
            raise ModelError(f"Graph {graph.name!r}: two inputs are called {value.name!r}.", value=value.name)
        names.add(value.name)
    for node in graph.nodes:
        for body in bodies(node.operator) if body_fields(type(node.operator)) else ():
            try:
                check(body)
            except ModelError as error:
                raise locate(error, node, node.name) from None
        for item in node.inputs:
            if item is not None and item not in known:
                raise ModelError(
                    f"{node}: input {item} is not made before it is used.", node=node.name, value=item.name
                )
        for item in node.outputs:
            if item is None:
                continue
            if item in known:
                raise ModelError(f"{node}: output {item} is made twice.", node=node.name, value=item.name)
            known.add(item)
    names = set()
    for value in known:
        if value.name in names:
            raise ModelError(f"Graph {graph.name!r}: two values are called {value.name!r}.", value=value.name)
        names.add(value.name)
    for value in graph.outputs:
        if value not in known:
            raise ModelError(f"Graph {graph.name!r}: output {value} is made by no node.", value=value.name)
