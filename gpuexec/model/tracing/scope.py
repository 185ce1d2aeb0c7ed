"""Scope of a graph under construction: the program's, or that of a body in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.model.tracing.symbolic import SymbolicArray


@dataclass(eq=False)
class Scope:
    """Graph under construction: the program's, or a body's, which takes values of ``outer`` as captures."""

    outer: Scope | None = None
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Value, Array] = field(default_factory=dict)
    made: set[Value] = field(default_factory=set)
    captures: dict[Value, Value] = field(default_factory=dict)
    small: dict[Any, Value] = field(default_factory=dict)
    shared: dict[int, tuple[Any, Value]] = field(default_factory=dict)
    results: dict[Any, tuple[SymbolicArray, ...]] = field(default_factory=dict)

    def close(self, outputs: Sequence[Value], captures: Sequence[Value], name: str) -> Graph:
        """Return the graph; ``captures`` are values of the outer scope, whose stand-ins are its last inputs."""
        inputs = (*self.inputs, *(self.captures[value] for value in captures))
        return Graph(tuple(inputs), tuple(outputs), tuple(self.nodes), dict(self.constants), name)
