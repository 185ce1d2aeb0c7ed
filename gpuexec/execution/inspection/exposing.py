"""Graph instrumentation: inner values and their statistics as additional outputs.

    Exposure.expose(graph) -> Exposed(graph, nodes, rows, words, counts, tensors)

To compare nodes, all values become outputs. To count NaN or take statistics, `StatisticsOperator` nodes are added
beside the observed nodes, and their words joined into one output; so observation is part of the plan, on every device,
and a value's lifetime grows by one read only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import Operator
from gpuexec.ops.elementwise.elementwise_cast import Identity
from gpuexec.ops.reduce.statistics import HistogramOperator, StatisticsOperator
from gpuexec.ops.tensor.copy import Concat

BINS = 64


@dataclass(frozen=True, slots=True)
class Tap:
    """A request for a value, or all outputs of a node, by name; ``tensor``: in full, to the host."""

    name: str
    moments: bool = False
    histogram: bool = False
    tensor: bool = False


@dataclass(frozen=True, slots=True)
class ExposedValue:
    """An observed value: the node that makes it (None: an input), and its taps.

    ``taker`` is the name of the node that takes its statistics, where one does.
    """

    value: Value
    node: Node | None
    taps: tuple[Tap, ...]
    taker: str = ""

    @property
    def has_histogram(self) -> bool:
        """True if a tap asks for a histogram."""
        return any(tap.histogram for tap in self.taps)

    @property
    def has_tensor(self) -> bool:
        """True if a tap asks for the whole tensor."""
        return any(tap.tensor for tap in self.taps)

    @property
    def operator(self) -> StatisticsOperator:
        """The Statistics operator for the value; a watch alone needs fewer statistics."""
        return StatisticsOperator(moments=int(any(tap.moments for tap in self.taps)), floats_only=int(not self.taps))


@dataclass(frozen=True, slots=True, eq=False)
class Exposed:
    """A graph with observed values among its outputs.

    Attributes:
        graph: The graph.
        nodes: Its original nodes, without those added for observation.
        rows: The values with statistics, in the order of their words.
        words: The output that joins them; None where there are none.
        counts: The output that joins the histograms of those rows that have one.
        tensors: Outputs that are copies of those values wanted whole.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    rows: tuple[ExposedValue, ...] = ()
    words: Value | None = None
    counts: Value | None = None
    tensors: Mapping[Value, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exposure:
    """The observed values of a graph.

    Attributes:
        keeps_all: All values are outputs.
        watches: NaN and infinities are looked for in every value.
        taps: The requested statistics.
    """

    keeps_all: bool = False
    watches: bool = False
    taps: tuple[Tap, ...] = ()

    def __bool__(self) -> bool:
        return self.keeps_all or self.watches or bool(self.taps)

    def expose(self, graph: Graph, unreported: AbstractSet[Value]) -> Exposed:
        """Return an equivalent graph with the observed values as additional outputs, after those it has.

        Args:
            graph: The graph to be planned.
            unreported: Those of its inputs and weights that no tap has reported before.
        """
        exposed = self._add_statistics(graph, unreported) if self.watches or self.taps else Exposed(graph, graph.nodes)
        if self.keeps_all:
            made = [value for node in graph.nodes for value in node.outputs if value is not None]
            exposed = replace(exposed, graph=_with_outputs(exposed.graph, made))
        return exposed

    def rows_of(self, node: Node | None, values: Iterable[Value | None]) -> list[ExposedValue]:
        """Return the observed values that a node makes (None: inputs)."""
        name = "" if node is None else node.name
        rows = []
        for value in values:
            taps = tuple([tap for tap in self.taps if value is not None and tap.name in (value.name, name)])
            if value is not None and (self.watches or taps):
                rows.append(ExposedValue(value, node, taps))
        return rows

    def _add_statistics(self, graph: Graph, unreported: AbstractSet[Value]) -> Exposed:
        names = {value.name for value in graph.values()}
        rows: list[ExposedValue] = []
        nodes: list[Node] = []
        words: list[Value] = []
        counts: list[Value] = []
        tensors: dict[Value, Value] = {}

        def add(operator: Operator, *taken: Value) -> Value:
            made = Value(take_free(f"{taken[0].name}: {operator.name.rpartition('.')[2]}", names))
            nodes.append(Node(operator, taken, (made,), made.name))
            return made

        def look(found: list[ExposedValue]) -> None:
            for row in found:
                words.append(add(row.operator, row.value))
                rows.append(replace(row, taker=words[-1].name))
                if row.has_histogram:
                    counts.append(add(HistogramOperator(BINS), row.value, words[-1]))
                if row.has_tensor:
                    tensors[row.value] = add(Identity(), row.value)

        given = [row if row.value in unreported else replace(row, taps=()) for row in self.rows_of(None, graph.inputs)]
        look([row for row in given if row.taps or self.watches])
        look([row for row in self.rows_of(None, graph.constants) if row.taps and row.value in unreported])
        for node in graph.nodes:
            nodes.append(node)
            look(self.rows_of(node, node.outputs))
        all_words, all_counts = (add(Concat(0), *values) if values else None for values in (words, counts))
        shown = [value for value in (all_words, all_counts, *tensors.values()) if value is not None]
        return Exposed(
            _with_outputs(replace(graph, nodes=tuple(nodes)), shown),
            graph.nodes,
            tuple(rows),
            all_words,
            all_counts,
            tensors,
        )


def _with_outputs(graph: Graph, values: Iterable[Value]) -> Graph:
    return replace(graph, outputs=tuple(dict.fromkeys([*graph.outputs, *values])))
