"""Loops run by the host (Loop, Scan, SequenceMap): each trip is a run of the body, carried values stay on the device.

Each trip is a run of the body's plan, whose outputs are the next trip's inputs: their addresses are bound, nothing is
copied. Only the condition comes to the host, where the host can't count along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np

from gpuexec.devices.device import ALIGNMENT, Event, Region, Stream
from gpuexec.errors import GpuexecError, ModelError, locate
from gpuexec.execution.resources.pool import ExchangePool
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.run import CANCELLATION_POINT, MustWait, RunProgress
from gpuexec.execution.runs.stacking import Stack
from gpuexec.execution.runs.subgraph import Subgraph
from gpuexec.execution.runs.value_location import RunValues, ValueLocation
from gpuexec.ir.containers import hold, make_sequence
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ops.control.control import Loop, Scan, SequenceMap, count_own_inputs
from gpuexec.ops.control.scan import infer_empty
from gpuexec.ops.control.trips import infer_first_rows, read_count, read_flag, scalar_shape
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.planner.partition import HostRead

_Result = TypeVar("_Result")
# Trips between two marks on the stream, and marks that may lie ahead of the device.
_TRIPS_MARKED, _MARKS_AHEAD = 16, 4
# Progress of a run, and then a result.
_Making = Generator[RunProgress, None, _Result]
# Stands for what lies on the device.
_NOTHING = np.empty(0, np.uint8)


class LoopExecutor:
    """Runs the loops of one run.

    Args:
        execute: Executes a subgraph; its outputs are among the values then.
        locate: Returns the bytes of a value on the device, uploaded if need be.
        read_to_host: Reads values back; each comes with the node that asks for it.
    """

    def __init__(
        self,
        planning: PlanningContext,
        stream: Stream,
        pool: ExchangePool,
        execute: Callable[[Subgraph, RunValues], Iterator[RunProgress]],
        locate: Callable[[ValueLocation], Region],
        read_to_host: Callable[[Sequence[tuple[HostRead, ValueLocation]]], Iterator[RunProgress]],
    ) -> None:
        self._planning, self._stream, self._pool = planning, stream, pool
        self._execute, self._locate, self._read_to_host = execute, locate, read_to_host
        self._trips = 0
        self._marks: deque[Event] = deque()

    def repeat(self, node: Node, values: RunValues) -> Iterator[RunProgress]:
        """Run a Loop, Scan or SequenceMap; ``values`` holds its outputs then.

        Raises:
            GpuexecError: What a trip raised; names the node.
        """
        inputs = [None if value is None else values[value] for value in node.inputs]
        try:
            if isinstance(node.operator, Loop):
                made = yield from self._loop(node.operator, inputs)
            elif isinstance(node.operator, SequenceMap):
                made = yield from self._map(node.operator, inputs, node)
            else:
                assert isinstance(node.operator, Scan)
                made = yield from self._scan(node.operator, inputs)
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        values.update(
            {value: location for value, location in zip(node.outputs, made, strict=False) if value and location}
        )

    def _loop(self, op: Loop, inputs: Sequence[ValueLocation | None]) -> _Making[list[ValueLocation | None]]:
        trip_count, condition, *rest = inputs
        limit = None if trip_count is None else read_count(_content(trip_count))
        keeps = condition is None or read_flag(_content(condition))
        carried: Sequence[ValueLocation | None] = rest[: op.carried]
        captures = rest[op.carried :]
        subgraph = find_body(self._planning, op)
        shapes = [scalar_shape(value) for value in op.body.inputs[:2]]
        stacks = [Stack(self._stream, self._pool, self._locate, limit) for _ in op.body.outputs[1 + op.carried :]]
        trips = 0
        for trip in count():
            if not keeps or (limit is not None and trip >= limit):
                break
            own = (_number(np.full(shapes[0], trip, np.int64)), _number(np.ones(shapes[1], np.bool_)))
            made = yield from self._trip(subgraph, (*own, *carried, *captures))
            keeps = read_flag(_content(made[0]))
            carried = made[1 : 1 + op.carried]
            for index, (stack, row) in enumerate(zip(stacks, made[1 + op.carried :], strict=True)):
                stack.add(row, index)
            trips += 1
        if trips:
            return [*carried, *(stack.finish() for stack in stacks)]
        own = (_number(np.zeros(shapes[0], np.int64)), _number(np.ones(shapes[1], np.bool_)))
        return [*carried, *self._empty(op.body, (*own, *carried, *captures), 1 + op.carried)]

    def _scan(self, op: Scan, inputs: Sequence[ValueLocation | None]) -> _Making[list[ValueLocation | None]]:
        given = [location for location in inputs if location is not None]
        states: Sequence[ValueLocation]
        states, scanned, captures = op.divide(given)
        shapes = [location.spec.shape for location in scanned]
        length, axes = op.find_length(shapes), op.find_axes(shapes)
        moved: list[ValueLocation] = []
        for location, axis in zip(scanned, axes, strict=True):
            moved.append((yield from self._move_axis(location, axis, 0)))
        backwards = op.scan_input_directions or (0,) * len(moved)
        subgraph = find_body(self._planning, op)
        stacks = [Stack(self._stream, self._pool, self._locate, length) for _ in op.body.outputs[op.states :]]
        for step in range(length):
            slices = [
                self._slice(location, length - 1 - step if back else step)
                for location, back in zip(moved, backwards, strict=True)
            ]
            made = yield from self._trip(subgraph, (*states, *slices, *captures))
            op.check_states([location.spec for location in states], [location.spec for location in made])
            states = made[: op.states]
            for index, (stack, row) in enumerate(zip(stacks, made[op.states :], strict=True)):
                stack.add(row, index)
        if not length:
            return [*states, *map(self._blank, infer_empty(op, [location.describe() for location in given]))]
        results: list[ValueLocation] = []
        directions = op.scan_output_directions or (0,) * len(stacks)
        for stack, back, axis in zip(stacks, directions, op.output_axes([row.spec.shape for row in made]), strict=True):
            results.append((yield from self._move_axis(stack.finish(is_reversed=bool(back)), 0, axis)))
        return [*states, *results]

    def _map(
        self, op: SequenceMap, inputs: Sequence[ValueLocation | None], node: Node
    ) -> _Making[list[ValueLocation | None]]:
        given = [location for location in inputs if location is not None]
        arrays = [_NOTHING if location.array is None else location.array for location in given]
        subgraph = find_body(self._planning, op)
        columns: list[list[ValueLocation]] = [[] for _ in op.body.outputs]
        for trip in op.list_trips(arrays):
            own = [
                _number(item) if op.is_walked(index, arrays[index]) else location
                for index, (location, item) in enumerate(zip(given, trip, strict=True))
            ]
            for column, made in zip(columns, (yield from self._trip(subgraph, own)), strict=True):
                column.append(made)
        wanted = zip(node.outputs, columns, strict=False)
        rows = [(HostRead(value, node.name, "elements"), each) for value, column in wanted if value for each in column]
        yield from self._read_to_host(rows)
        return [
            None if value is None else _number(make_sequence([hold(_content(each)) for each in column]))
            for value, column in zip(node.outputs, columns, strict=False)
        ]

    def _trip(self, subgraph: Subgraph, given: Sequence[ValueLocation | None]) -> _Making[list[ValueLocation]]:
        """Run the body once; return what it gives."""
        values: RunValues = {}
        for value, location in zip(subgraph.graph.inputs, given, strict=True):
            assert location is not None
            values[value] = location
        yield from self._execute(subgraph, values)
        yield self._keep_pace()
        return [values[value] for value in subgraph.graph.outputs]

    def _keep_pace(self) -> MustWait:
        """Return a cancellation point, or a wait: the host must not run far ahead of the device."""
        self._trips += 1
        if self._trips % _TRIPS_MARKED == 0:
            event = self._planning.backend.device.create_event()
            self._stream.record(event)
            self._marks.append(event)
        if len(self._marks) <= _MARKS_AHEAD:
            return CANCELLATION_POINT
        oldest = self._marks.popleft()
        return MustWait(oldest.is_done, oldest.synchronize)

    def _slice(self, location: ValueLocation, place: int) -> ValueLocation:
        """Return one slice along the first axis: the bytes where they lie, or a copy where they start at odd places."""
        spec = location.spec.with_shape(location.spec.shape[1:])
        content = None if location.array is None else location.array[place]
        if is_host_object(spec.dtype):
            return ValueLocation(spec, array=np.asarray(content, spec.dtype), is_computed=True)
        region = self._locate(location)
        start = region.offset + place * spec.nbytes
        if start % ALIGNMENT == 0:
            return ValueLocation(
                spec, Region(region.memory, start, spec.nbytes), content, is_computed=True, owner=location.owner
            )
        lent = self._pool.lend(spec.nbytes)
        if spec.nbytes:
            self._stream.copy(lent.region.address, region.address + place * spec.nbytes, spec.nbytes)
        return ValueLocation(spec, lent.region, content, is_computed=True, owner=lent)

    def _move_axis(self, location: ValueLocation, source: int, destination: int) -> _Making[ValueLocation]:
        if source == destination:
            return location
        order = [axis for axis in range(location.spec.rank) if axis != source]
        order.insert(destination, source)
        subgraph = find_transpose(self._planning, tuple(order))
        values = {
            subgraph.graph.inputs[0]: ValueLocation(
                location.spec, location.region, location.array, is_computed=True, owner=location.owner
            )
        }
        yield from self._execute(subgraph, values)
        return values[subgraph.graph.outputs[0]]

    def _empty(self, body: Graph, given: Sequence[ValueLocation | None], first: int) -> list[ValueLocation]:
        """Return scan outputs of no rows."""
        specs = infer_first_rows(body, [location.describe() for location in given if location is not None], first)
        return [self._blank(TensorSpec((0, *spec.shape), spec.dtype)) for spec in specs]

    def _blank(self, spec: TensorSpec) -> ValueLocation:
        if is_host_object(spec.dtype):
            return ValueLocation(spec, array=np.empty(spec.shape, spec.dtype), is_computed=True)
        lent = self._pool.lend(spec.nbytes)
        return ValueLocation(spec, Region(lent.memory, 0, spec.nbytes), owner=lent)


def find_body(planning: PlanningContext, op: Loop | Scan | SequenceMap) -> Subgraph:
    """Return the subgraph of a loop body, the same one for every run."""
    subgraph = planning.bodies.get(op.body)
    if subgraph is None:
        condition = op.body.outputs[0] if isinstance(op, Loop) else None
        unreported = frozenset((*op.body.inputs[: count_own_inputs(op)], *op.body.constants))
        subgraph = planning.bodies[op.body] = Subgraph(
            op.body, planning, is_body=True, condition=condition, unreported=unreported
        )
    assert isinstance(subgraph, Subgraph)
    return subgraph


def find_transpose(planning: PlanningContext, order: tuple[int, ...]) -> Subgraph:
    """Return a subgraph that reorders axes."""
    subgraph = planning.bodies.get(order)
    if subgraph is None:
        source, result = Value("scan axis: source"), Value("scan axis: result")
        node = Node(Transpose(order), (source,), (result,), "scan axis")
        graph = Graph((source,), (result,), (node,), {}, "scan axis")
        subgraph = planning.bodies[order] = Subgraph(graph, planning, is_body=True)
    assert isinstance(subgraph, Subgraph)
    return subgraph


def _number(array: Any) -> ValueLocation:
    """Return a value computed by the host."""
    return ValueLocation(TensorSpec(array.shape, array.dtype), array=array, is_computed=True)


def _content(location: ValueLocation) -> Any:
    if location.array is None:
        raise ModelError(f"The host was to know {location.spec} and does not.")
    return location.array
