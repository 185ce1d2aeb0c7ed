"""Dry run of a graph: partitioned and planned as a run would, with NumPy in place of the device.

`gpuexec.execution.runs.run_executor` and `gpuexec.execution.runs.loops` do the same with a device; the plans made
here are those that
they would make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from gpuexec.errors import GpuexecError, UnsupportedError
from gpuexec.execution.runs.loops import find_body, find_transpose
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.ir.containers import make_sequence
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ops.control.control import Loop, Scan, SequenceMap
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.ops.control.trips import read_count, read_flag, scalar_shape, stack_rows
from gpuexec.planner.evaluate import evaluate_node
from gpuexec.planner.partition import Partition

# What a Loop without end is left after, and every Loop, after a trip, once they made so many together.
_MOST_TRIPS = 1000
_MOST_TRIPS_TOGETHER = 5000
# Extents and counts in place of 0, where launches that write nothing would be left out.
_RAISED = (2, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value's content, whether a run would have it on the host, and whether the run made it."""

    array: Array
    is_on_host: bool = False
    is_computed: bool = False

    def placed(self) -> Known:
        """Return it where it must be: strings and containers are always on the host."""
        return Known(self.array, is_on_host=True, is_computed=True) if is_host_object(self.array.dtype) else self

    def describe(self) -> TensorSpec:
        """Return the spec, with the content where the host has it."""
        spec = TensorSpec(self.array.shape, self.array.dtype)
        return spec.with_value(self.array) if self.is_on_host else spec


RunValues = dict[Value, Known]


@dataclass(slots=True, eq=False)
class Memo:
    """Outputs of graphs computed already: partitions for two targets are mostly the same."""

    _rows: dict[tuple[int, ...], tuple[object, Sequence[Array]]] = field(default_factory=dict)

    def compute(self, graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the outputs of a graph."""
        things = [*(node.operator for node in graph.nodes), *arrays, *graph.outputs]
        key = tuple(map(id, things))
        if key not in self._rows:
            # What it was made of is kept, so that no other object gets one of these ids.
            self._rows[key] = things, compute_graph(graph, arrays)
        return self._rows[key][1]


class DryRun:
    """Dry run of subgraphs. ``branches`` are the Ifs met, each with its condition; ``gaps`` name what was not planned.

    Args:
        planning: Where plans are made.
        memo: Results computed before.
    """

    def __init__(self, planning: PlanningContext, memo: Memo) -> None:
        self._planning, self._memo = planning, memo
        self._trips = 0
        self.branches: list[tuple[Node, bool]] = []
        self.gaps: dict[str, None] = {}

    def run(self, subgraph: Subgraph, values: RunValues) -> None:
        """Run a subgraph from ``values``, which holds its outputs then.

        Raises:
            GpuexecError: What a run would raise; names the node.
        """
        self._trips = 0
        self._run(subgraph, values, is_main=True)

    def _run(self, subgraph: Subgraph, values: RunValues, *, is_main: bool) -> None:
        """Run a subgraph; ``values`` has its outputs then."""
        while True:
            stage, planned = self._choose(subgraph, values)
            partition = stage.partition
            self.branches += partition.branches
            for value, array in (partition.constants or {}).items():
                values.setdefault(value, Known(array, is_on_host=True))
            if partition.ready is not None and planned is not None:
                arrays = [values[value].array for value in partition.ready.inputs]
                made = (self._memo.compute if is_main else compute_graph)(partition.ready, arrays)
                values.update((value, Known(array)) for value, array in zip(partition.ready.outputs, made, strict=True))
            self._compute(partition, values)
            if partition.repeat is not None:
                self._repeat(partition.repeat, values)
            if stage.rest is None:
                return
            subgraph = stage.rest

    def _choose(self, subgraph: Subgraph, values: RunValues) -> tuple[Stage, PlannedVariant | None]:
        """Plan a subgraph; where a tensor is empty, plan once more with extents that launch."""
        known = {value: values[value] for value in subgraph.graph.inputs}
        specs = {value: each.describe() for value, each in known.items()}
        computed = {value for value, each in known.items() if each.is_computed}
        stage, planned = subgraph.choose(specs, computed)
        made = planned.variant.outputs if planned is not None else ()
        is_empty = any(spec.size == 0 for spec in (*specs.values(), *made))
        counts = {value for value in computed if _is_none(specs[value])}
        if is_empty or counts:
            failure = self._choose_raised(subgraph, specs, computed, counts)
            if failure is not None and is_empty:
                nodes = ", ".join(map(str, subgraph.graph.nodes[:3]))
                self.gaps[f"Kernels of {nodes} for tensors that were empty may lack in the file: {failure}"] = None
        return stage, planned

    def _choose_raised(
        self, subgraph: Subgraph, specs: Mapping[Value, TensorSpec], computed: set[Value], counts: set[Value]
    ) -> GpuexecError | None:
        failure = None
        for extent in _RAISED:
            for raised_counts in (counts, set[Value]()):
                raised = {value: _raise(spec, extent, value in raised_counts) for value, spec in specs.items()}
                try:
                    subgraph.choose(raised, computed)
                except GpuexecError as error:
                    failure = error
                else:
                    return None
        return failure

    def _compute(self, partition: Partition, values: RunValues) -> None:
        """Read values and compute host nodes."""
        for read in partition.reads:
            if not values[read.value].is_on_host:
                values[read.value] = Known(values[read.value].array, is_on_host=True, is_computed=True)
        for node in partition.host_nodes:
            specs = [None if value is None else values[value].describe() for value in node.inputs]
            for value, spec in zip(node.outputs, evaluate_node(node, specs), strict=False):
                if value is not None and spec is not None and spec.value is not None:
                    values[value] = Known(spec.value.array, is_on_host=True, is_computed=True)

    # ---- loops

    def _repeat(self, node: Node, values: RunValues) -> None:
        inputs = [None if value is None else values[value] for value in node.inputs]
        if isinstance(node.operator, Loop):
            made = self._loop(node, node.operator, inputs)
        elif isinstance(node.operator, SequenceMap):
            made = self._map(node.operator, [each for each in inputs if each is not None])
        else:
            assert isinstance(node.operator, Scan)
            made = self._scan(node, node.operator, [each for each in inputs if each is not None])
        rows = zip(node.outputs, made, strict=False)
        values.update((value, known.placed()) for value, known in rows if value is not None)

    def _map(self, op: SequenceMap, inputs: Sequence[Known]) -> Sequence[Known]:
        subgraph = find_body(self._planning, op)
        arrays = [each.array for each in inputs]
        columns: list[list[Array]] = [[] for _ in op.body.outputs]
        for trip in op.list_trips(arrays):
            given = [
                Known(item, is_on_host=True, is_computed=True) if op.is_walked(index, arrays[index]) else known
                for index, (known, item) in enumerate(zip(inputs, trip, strict=True))
            ]
            for column, made in zip(columns, self._trip(subgraph, given), strict=True):
                column.append(made.array)
        return [Known(make_sequence(column)) for column in columns]

    def _loop(self, node: Node, op: Loop, inputs: Sequence[Known | None]) -> Sequence[Known]:
        trip_count, condition, *rest = inputs
        given = [each for each in rest if each is not None]
        carried, captures = given[: op.carried], given[op.carried :]
        limit = _MOST_TRIPS if trip_count is None else min(read_count(trip_count.array), _MOST_TRIPS)
        keeps = condition is None or read_flag(condition.array)
        subgraph = find_body(self._planning, op)
        if not keeps or limit <= 0:
            self._try_body(node, subgraph, (*_number(op, 0), *carried, *captures))
            counted = [None if each is None else each.array for each in (trip_count, condition)]
            made = op.compute(counted[0], counted[1], *(each.array for each in given))
            return [*carried, *map(Known, made[op.carried :])]
        rows: list[list[Array]] = [[] for _ in op.body.outputs[1 + op.carried :]]
        for trip in count():
            if not keeps or trip >= limit or (trip and self._trips >= _MOST_TRIPS_TOGETHER):
                break
            self._trips += 1
            flag, *trip_made = self._trip(subgraph, (*_number(op, trip), *carried, *captures))
            keeps, carried = read_flag(flag.array), trip_made[: op.carried]
            for column, row in zip(rows, trip_made[op.carried :], strict=True):
                column.append(row.array)
        return [*carried, *(Known(stack_rows(column, index)) for index, column in enumerate(rows))]

    def _scan(self, node: Node, op: Scan, inputs: Sequence[Known]) -> Sequence[Known]:
        states, scanned, captures = op.divide(inputs)
        shapes = [each.array.shape for each in scanned]
        length, axes = op.find_length(shapes), op.find_axes(shapes)
        moved = [self._move_axis(each, axis, 0) for each, axis in zip(scanned, axes, strict=True)]
        subgraph = find_body(self._planning, op)
        if not length:
            blank = [np.zeros(each.array.shape[1:], each.array.dtype) for each in moved]
            self._try_body(node, subgraph, (*states, *(Known(each, is_computed=True) for each in blank), *captures))
            made = op.compute(*(each.array for each in inputs))
            return [*states, *map(Known, made[op.states :])]
        backwards = op.scan_input_directions or (0,) * len(moved)
        rows: list[list[Array]] = [[] for _ in op.body.outputs[op.states :]]
        for step in range(length):
            places = [length - 1 - step if back else step for back in backwards]
            slices = [
                Known(np.asarray(each.array[place]), each.is_on_host, is_computed=True)
                for each, place in zip(moved, places, strict=True)
            ]
            trip_made = self._trip(subgraph, (*states, *slices, *captures))
            states = trip_made[: op.states]
            for column, row in zip(rows, trip_made[op.states :], strict=True):
                column.append(row.array)
        directions = op.scan_output_directions or (0,) * len(rows)
        ends = op.output_axes([each.array.shape for each in trip_made])
        stacked = [
            self._move_axis(Known(stack_rows(column[::-1] if back else column, index)), 0, axis)
            for index, (column, back, axis) in enumerate(zip(rows, directions, ends, strict=True))
        ]
        return [*states, *stacked]

    def _trip(self, subgraph: Subgraph, given: Sequence[Known]) -> list[Known]:
        values = dict(zip(subgraph.graph.inputs, given, strict=True))
        self._run(subgraph, values, is_main=False)
        return [values[value] for value in subgraph.graph.outputs]

    def _try_body(self, node: Node, subgraph: Subgraph, given: Sequence[Known]) -> None:
        """Run one trip of a loop that makes none."""
        try:
            self._trip(subgraph, given)
        except UnsupportedError:
            raise
        except GpuexecError as error:
            self.gaps[f"Kernels of the body of {node} are not in the file, for no case runs it: {error}"] = None

    def _move_axis(self, known: Known, source: int, destination: int) -> Known:
        if source == destination:
            return known
        order = [axis for axis in range(known.array.ndim) if axis != source]
        order.insert(destination, source)
        subgraph = find_transpose(self._planning, tuple(order))
        (moved,) = self._trip(subgraph, [Known(known.array, known.is_on_host, is_computed=True)])
        return moved


def _number(op: Loop, trip: int) -> Iterator[Known]:
    """Return the own inputs of a trip: its number, and the condition, true."""
    number, again = (scalar_shape(value) for value in op.body.inputs[:2])
    for array in (np.full(number, trip, np.int64), np.ones(again, np.bool_)):
        yield Known(array, is_on_host=True, is_computed=True)


def _is_none(spec: TensorSpec) -> bool:
    """Return whether a content is a count of nothing."""
    return spec.value is not None and spec.dtype.kind in "iu" and bool((spec.value.array == 0).any())


def _raise(spec: TensorSpec, extent: int, is_count: bool) -> TensorSpec:
    """Return a spec with an extent in place of those of 0, and of zeros in its content if it is a count."""
    if 0 in spec.shape:
        return TensorSpec(tuple([n or extent for n in spec.shape]), spec.dtype)
    if is_count and spec.value is not None:
        content = spec.value.array
        return spec.with_value(np.where(content == 0, np.asarray(extent, spec.dtype), content))
    return spec
