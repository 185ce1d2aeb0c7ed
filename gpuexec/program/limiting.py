"""Loop limit of a graph: for made-up inputs, with which a Loop might never end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph, Node, bodies, with_bodies
from gpuexec.ir.operator import Operator
from gpuexec.ops.control.control import Loop


def limit_trips(graph: Graph, max_trips: int) -> Graph:
    """Return a graph whose Loops, to any depth, make at most ``max_trips`` trips together, each time it is made.

    It is for `compute_graph` alone: one more trip raises an InputError that names the Loop, and nothing else is
    changed.
    """
    return _limit(graph, _Trips(max_trips))


class _Trips:
    """Counts the trips that are left."""

    def __init__(self, max_trips: int) -> None:
        self._max_trips, self._left = max_trips, max_trips

    def take(self) -> None:
        if not self._left:
            raise InputError(f"Loops made {self._max_trips:,} trips without an end; give inputs with which they end.")
        self._left -= 1


@dataclass(frozen=True, slots=True, eq=False)
class _Trip(Operator):
    """Stands first in the body of a Loop, and counts."""

    trips: _Trips
    name: ClassVar[str] = "body"

    def compute(self, *inputs: Any, **named: Any) -> tuple[()]:
        """Count a trip."""
        self.trips.take()
        return ()


def _limit(graph: Graph, trips: _Trips) -> Graph:
    nodes = []
    for node in graph.nodes:
        inner = [_limit(body, trips) for body in bodies(node.operator)]
        if isinstance(node.operator, Loop):
            inner = [replace(body, nodes=(Node(_Trip(trips), (), (), body.name), *body.nodes)) for body in inner]
        nodes.append(replace(node, operator=with_bodies(node.operator, inner)) if inner else node)
    return replace(graph, nodes=tuple(nodes))
