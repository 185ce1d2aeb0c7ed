"""Division of a graph at its cut: a graph to plan now, and the graph of what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from gpuexec.ir.graphs import Array, Graph, Node, Value, list_needed
from gpuexec.planner.host_trace import HostTrace, Traces


@dataclass(slots=True)
class Sorting:
    """Nodes of a graph sorted by where and when they run.

    Attributes:
        nodes: All of them, in order, branches in place of the Ifs that took them.
        constants: Content of constants, those of branches too.
        ready: Nodes for the plan to come.
        on_host: Nodes that the host computes after that.
        calls: Those among them that the device has no kernel for, or of host objects, and why.
        repeat: A loop to run after that.
        light: Nodes that the host computes while planning the rest.
        later: Values that the ready part can't take: not made yet, or of extents that only this run has.
        unmade: Those not made yet.
        read: Values whose content the host fetches.
        objects: Strings and containers: they go from step to step on the host, and no plan holds one.
    """

    nodes: list[Node]
    constants: dict[Value, Array]
    ready: set[Node] = field(default_factory=set)
    on_host: set[Node] = field(default_factory=set)
    calls: dict[Node, str] = field(default_factory=dict)
    repeat: Node | None = None
    light: set[Node] = field(default_factory=set)
    later: set[Value] = field(default_factory=set)
    unmade: set[Value] = field(default_factory=set)
    read: set[Value] = field(default_factory=set)
    objects: set[Value] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class GraphSplit:
    """Graph to plan now, graph of what is left, and constants that are read outside of both."""

    ready: Graph | None
    rest: Graph | None
    constants: Mapping[Value, Array]


def divide(
    graph: Graph,
    sorting: Sorting,
    producers: Mapping[Value, Node],
    known: AbstractSet[Value],
    trace: HostTrace,
    *,
    is_body: bool,
) -> GraphSplit:
    """Return the parts of a graph whose nodes are sorted.

    Args:
        graph: Whose inputs and outputs they are.
        sorting: Its nodes.
        producers: The node that makes each value.
        known: Values that follow from shapes.
        trace: Finds the nodes that the host can compute by itself.
        is_body: Outputs that are inputs, or that the host or a loop makes, are taken from where they are.
    """
    return _GraphSplitter(graph, sorting, producers, known, trace, is_body).run()


class _GraphSplitter:
    def __init__(
        self,
        graph: Graph,
        sorting: Sorting,
        producers: Mapping[Value, Node],
        known: AbstractSet[Value],
        trace: HostTrace,
        is_body: bool,
    ) -> None:
        self._graph, self._sorting, self._producers = graph, sorting, producers
        self._known, self._trace, self._is_body = known, trace, is_body
        # Nodes that run after the ready part, and before the rest.
        self._between = [*sorting.on_host, *([sorting.repeat] if sorting.repeat is not None else [])]

    def run(self) -> GraphSplit:
        """Divide."""
        sorting, outputs = self._sorting, self._graph.outputs
        host_made = {v for node in sorting.on_host for v in node.outputs if v is not None}
        between_made = {v for node in self._between for v in node.outputs if v is not None}
        stays = between_made if self._is_body else between_made & sorting.objects
        rest_outputs = [v for v in outputs if v in sorting.unmade and v not in stays]
        rest_nodes, rest_inputs = self._find_rest(rest_outputs)
        wanted = dict.fromkeys([*rest_inputs, *sorting.read])
        wanted.update((v, None) for node in self._between for v in node.inputs if v is not None)
        passed = {*self._graph.inputs, *sorting.constants} if self._is_body else set()
        made = {v for node in sorting.ready for v in node.outputs if v is not None}
        given = [v for v in outputs if v not in sorting.unmade and v not in passed and v not in sorting.objects]
        if self._is_body:
            given = [v for v in given if v not in host_made]
        kept = [v for v in wanted if v in made and v not in host_made and v not in sorting.objects]
        ready_outputs = tuple(dict.fromkeys([*given, *kept]))
        ready_nodes, _ = list_needed([n for n in sorting.nodes if n in sorting.ready], ready_outputs)
        return GraphSplit(
            self._make_graph(ready_nodes, ready_outputs) if ready_outputs else None,
            self._make_graph(rest_nodes, tuple(rest_outputs)) if rest_outputs else None,
            {v: sorting.constants[v] for v in (*wanted, *outputs) if v in sorting.constants},
        )

    def _find_rest(self, outputs: Sequence[Value]) -> tuple[list[Node], list[Value]]:
        """Return the remaining nodes for outputs still to be made, and the values they take from this step.

        Values that follow from shapes, or from content that is read, are computed once more there.
        """
        sorting, chosen, traced = self._sorting, set[Node](), Traces()
        taken: dict[Value, None] = {}
        stack = list(outputs)
        while stack:
            value = stack.pop()
            node = self._producers.get(value)
            if value in sorting.constants:
                continue
            if (
                node is None
                or node in self._between
                or (node in sorting.ready and not self._is_anew(node, value, traced))
            ):
                taken[value] = None
            elif node not in chosen:
                chosen.add(node)
                stack += [v for v in node.inputs if v is not None]
        return [node for node in sorting.nodes if node in chosen], list(taken)

    def _is_anew(self, node: Node, value: Value, traced: Traces) -> bool:
        if node in self._sorting.light or value in self._known:
            return True
        return value not in self._sorting.later and self._trace.is_free(value, traced)

    def _make_graph(self, nodes: Sequence[Node], outputs: tuple[Value, ...]) -> Graph:
        made = {value for node in nodes for value in node.outputs}
        used = dict.fromkeys([v for node in nodes for v in node.inputs if v is not None] + list(outputs))
        constants = {value: self._sorting.constants[value] for value in used if value in self._sorting.constants}
        inputs = tuple([value for value in used if value not in made and value not in constants])
        return Graph(inputs, outputs, tuple(nodes), constants, self._graph.name)
