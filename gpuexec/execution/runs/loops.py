"""Loops run by the host (Loop, Scan, SequenceMap): each trip is a run of the body, carried values stay on the device.

Each trip is a run of the body's plan, whose outputs are the next trip's inputs: their addresses are bound, nothing is
copied. Only the condition comes to the host, where the host can't count along. On devices that record calls, trips like
those of a loop before are calls over arrays; see `gpuexec.execution.runs.bound_body`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from gpuexec.devices.device import Event
from gpuexec.errors import GpuexecError, locate
from gpuexec.execution.runs.bound_body import BoundBodies, BoundTrips
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.loop_values import LocatedValues
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.run import CANCELLATION_POINT, MustWait, RunProgress
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.execution.runs.value_location import RunValues, ValueLocation
from gpuexec.ir.containers import hold, make_sequence
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ops.control.control import LOOPS, Loop, Scan, SequenceMap, count_own_inputs
from gpuexec.ops.control.trips import Collect, MoveAxis, Trip, Trips, require_content
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.planner.partition import HostRead

Array = np.ndarray[Any, Any]
_Result = TypeVar("_Result")
# Trips between two marks on the stream, and marks that may lie ahead of the device.
_TRIPS_MARKED, _MARKS_AHEAD = 16, 4
# Progress of a run, and then a result.
Making = Generator[RunProgress, None, _Result]
Execute = Callable[[Subgraph, RunValues], Making[tuple[Stage, PlannedVariant | None]]]
ReadToHost = Callable[[Sequence[tuple[HostRead, ValueLocation]]], Iterator[RunProgress]]


class LoopExecutor:
    """Executor of one loop of a run.

    Args:
        context: Where bodies are planned and put on the stream.
        execute: Executes a subgraph; its outputs are among the values then. Returns its first stage, and that planned.
        read_to_host: Reads values back; each comes with the node that asks for it.
        bodies: Binds bodies for trips that come again; None: nothing is bound.
    """

    def __init__(
        self,
        context: ExecutionContext,
        execute: Execute,
        read_to_host: ReadToHost,
        bodies: BoundBodies | None = None,
    ) -> None:
        self._planning, self._stream, self._bodies, self._context = context.planning, context.stream, bodies, context
        self._execute, self._read_to_host = execute, read_to_host
        self._values = LocatedValues(context.stream, context.pool, context.transfers.locate)
        self._trips = 0
        self._marks: deque[Event] = deque()

    def repeat(self, node: Node, values: RunValues) -> Iterator[RunProgress]:
        """Run a Loop, Scan or SequenceMap; ``values`` holds its outputs then.

        Raises:
            GpuexecError: What a trip raised; names the node.
        """
        inputs = [None if value is None else values[value] for value in node.inputs]
        try:
            bound = yield from self._repeat_bound(node, inputs)
            made = (yield from self._repeat(node, inputs)) if bound is None else bound
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        values.update({value: location for value, location in zip(node.outputs, made, strict=False) if value})

    def _repeat_bound(self, node: Node, inputs: Sequence[ValueLocation | None]) -> Making[list[ValueLocation] | None]:
        """Run a loop whose trips are like those of a loop before; None: they are not, or one fails."""
        op = node.operator
        if self._bodies is None or not isinstance(op, Loop | Scan) or not self._bodies.has_seen(op.body):
            return None
        given = [value for value in inputs if value is not None]
        if any(is_host_object(value.spec.dtype) for value in given):
            return None
        event = self._planning.backend.device.create_event()
        with self._context.lock:
            for value in given:
                if value.is_weight:
                    self._context.transfers.locate(value)
            self._stream.record(event)
        yield MustWait(event.is_done, event.synchronize)
        event.synchronize()
        arrays = [None if value is None else _view(value) for value in inputs]
        weights = {
            position: value.region
            for position, value in enumerate(inputs)
            if position >= count_own_inputs(op) and value is not None and value.is_weight and value.region is not None
        }
        trips = BoundTrips(self._bodies, op, find_body(self._planning, op), arrays, weights)
        try:
            while (made := trips.advance(_TRIPS_MARKED)) is None:
                yield CANCELLATION_POINT
        except Exception:
            return None  # without arrays, whatever is wrong is said with names
        return [self._place(array) for array in made]

    def _place(self, array: Array) -> ValueLocation:
        """Return a value with the content of an array, in memory of the pool."""
        spec = TensorSpec(array.shape, array.dtype)
        lent = self._values.pool.lend(spec.nbytes)
        lent.region.view(spec)[...] = array
        return ValueLocation(spec, lent.region, owner=lent)

    def _repeat(self, node: Node, inputs: Sequence[Any]) -> Making[Sequence[ValueLocation]]:
        """Answer what a loop of these inputs requests; return its outputs."""
        op = node.operator
        assert isinstance(op, LOOPS)
        trips: Trips[ValueLocation] = op.make_trips(inputs, self._values)
        answer: Sequence[ValueLocation] | None = None
        while True:
            try:
                request = next(trips) if answer is None else trips.send(answer)
            except StopIteration as end:
                made: Sequence[ValueLocation] = end.value
                return made
            match request:
                case Trip():
                    answer = yield from self._trip(op, request.given)
                case MoveAxis():
                    answer = [(yield from self._move_axis(request.value, request.source, request.destination))]
                case Collect():
                    answer = yield from self._collect(node, request.columns)

    def _trip(self, op: Loop | Scan | SequenceMap, given: Sequence[ValueLocation]) -> Making[list[ValueLocation]]:
        """Run the body once; return what it gives."""
        subgraph = find_body(self._planning, op)
        values = dict(zip(subgraph.graph.inputs, given, strict=True))
        stage, planned = yield from self._execute(subgraph, values)
        if self._bodies is not None:
            self._bodies.note(op.body, given, stage, planned)
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

    def _move_axis(self, location: ValueLocation, source: int, destination: int) -> Making[ValueLocation]:
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

    def _collect(self, node: Node, columns: Sequence[Sequence[ValueLocation]]) -> Making[list[ValueLocation]]:
        """Read what is wanted of the columns, all at once."""
        wanted = [(value, column if value else ()) for value, column in zip(node.outputs, columns, strict=False)]
        yield from self._read_to_host(
            [(HostRead(value, node.name, "elements"), each) for value, column in wanted if value for each in column]
        )
        return [
            self._values.make(make_sequence([hold(require_content(self._values, each)) for each in column]))
            for _, column in wanted
        ]


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


def _view(value: ValueLocation) -> Array:
    """Return the content of a value in memory of the host, where it lies."""
    if value.array is not None or value.region is None:
        assert value.array is not None, "a value is nowhere"
        return value.array
    return value.region.view(value.spec)
