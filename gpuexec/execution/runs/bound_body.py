"""Loop bodies bound once, whose trips are calls over arrays; on devices that record calls.

A trip like one before it takes over that one's plan, and where its inputs and outputs lie. What a loop carries, slices
and stacks are arrays meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream
from gpuexec.execution.runs.bound_plan import BoundPlan, bind_plan
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.apply import compute_arrays
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.control import Loop, Scan
from gpuexec.ops.control.trips import Collect, MoveAxis, Trip, Trips
from gpuexec.system.threads import computing

Array = np.ndarray[Any, Any]
# Shapes and types of what a trip is given.
_Given = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]

# Sizes of one body that are kept: what a trip is given may grow from trip to trip.
_MOST_SIZES = 64
_FIRST_ROWS = 16


class UnboundTripError(Exception):
    """Raised by a trip that can't be bound."""


class BoundBodies:
    """Bodies of an engine's loops, bound for what their trips are given.

    Args:
        backend: Of the engine.
        stream: Its stream.
        lock: Held by whoever issues.
    """

    def __init__(self, backend: Backend, stream: Stream, lock: threading.RLock) -> None:
        self._backend, self._stream, self._lock = backend, stream, lock
        self._seen: dict[Graph, dict[_Given, tuple[Stage, PlannedVariant | None]]] = {}
        self._bound: dict[object, BoundBody] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of what trips are given and give."""
        return sum(body.plan.nbytes for body in [*self._bound.values()] if body.plan is not None)

    def forget(self) -> None:
        """Let go of all that is bound: memory or weights are others now."""
        self._seen.clear()
        self._bound.clear()

    def note(self, body: Graph, given: Sequence[ValueLocation], stage: Stage, planned: PlannedVariant | None) -> None:
        """Note how a trip was run."""
        seen = self._seen.setdefault(body, {})
        key = tuple([(value.spec.shape, value.spec.dtype) for value in given])
        if len(seen) < _MOST_SIZES or key in seen:
            seen[key] = stage, planned

    def has_seen(self, body: Graph) -> bool:
        """Return whether a trip of a body was noted."""
        return body in self._seen

    def find(self, subgraph: Subgraph, given: _Given, weights: Mapping[int, Region], step: int) -> BoundBody:
        """Return the body for what a trip is given, bound if it is not.

        Args:
            subgraph: The body.
            given: Shapes and types of its inputs.
            weights: Where inputs lie that are weights, by position.
            step: How many places behind an output the input is that it becomes.

        Raises:
            UnboundTripError: It can't be.
        """
        key = subgraph.graph, given, tuple([region.address for region in weights.values()])
        body = self._bound.get(key)
        if body is not None and (body.plan is None or body.plan.is_valid):
            return body
        stage, planned = self._seen.get(subgraph.graph, {}).get(given, (None, None))
        if stage is None:
            raise UnboundTripError
        body = self._bind(subgraph.graph, stage, planned, weights, step)
        if len(self._bound) >= _MOST_SIZES:
            self._bound.clear()
        self._bound[key] = body
        self._backend.memory_revision.number += 1
        return body

    def _bind(
        self,
        graph: Graph,
        stage: Stage,
        planned: PlannedVariant | None,
        weights: Mapping[int, Region],
        step: int,
    ) -> BoundBody:
        partition = stage.partition
        if stage.rest is not None or partition.repeat is not None or stage.conditions or stage.exposed is not None:
            raise UnboundTripError
        if partition.ready is None:
            return BoundBody(graph, stage, None, step)
        if planned is None or planned.variant.reads:
            raise UnboundTripError
        positions = {value: position for position, value in enumerate(graph.inputs)}
        elsewhere = {
            value: weights[positions[value]] for value in partition.ready.inputs if positions.get(value) in weights
        }
        with self._lock:
            plan = bind_plan(self._backend.device, self._stream, stage, planned, elsewhere)
        if plan is None:
            raise UnboundTripError
        return BoundBody(graph, stage, plan, step)


class BoundTrips:
    """The trips of one loop, over arrays.

    Args:
        bodies: Where bodies are bound.
        op: The loop.
        subgraph: Its body.
        inputs: Of the node, as arrays.
        weights: Where captures lie that are weights, by position.
    """

    def __init__(
        self,
        bodies: BoundBodies,
        op: Loop | Scan,
        subgraph: Subgraph,
        inputs: Sequence[Any],
        weights: Mapping[int, Region],
    ) -> None:
        self._bodies, self._subgraph = bodies, subgraph
        # The node's inputs are the body's, one for one, and so are its outputs but for a condition.
        self._weights, self._step = weights, int(isinstance(op, Loop))
        self._requests: Trips[Array] = op.make_trips(inputs, LoopArrays())
        self._answer: Sequence[Array] | None = None
        self._given: _Given = ()
        self._body: BoundBody | None = None

    def advance(self, count: int) -> Sequence[Array] | None:
        """Compute trips, so many at most; return what the loop gives where it has ended.

        Raises:
            UnboundTripError: One can't be bound.
            Exception: What an operator raised.
        """
        with np.errstate(all="ignore"), computing(self._bodies._backend.threads):
            for _ in range(count):
                try:
                    request = next(self._requests) if self._answer is None else self._requests.send(self._answer)
                except StopIteration as end:
                    made: Sequence[Array] = end.value
                    return made
                match request:
                    case Trip():
                        self._answer = self._run(request.given)
                    case MoveAxis():
                        self._answer = [np.moveaxis(request.value, request.source, request.destination)]
                    case Collect():
                        raise UnboundTripError
        return None

    def _run(self, given: Sequence[Array]) -> list[Array]:
        """Compute a trip; the next may overwrite what it gives, once it has taken its inputs."""
        key = tuple([(array.shape, array.dtype) for array in given])
        body = self._body
        if body is None or key != self._given:
            body = self._body = self._bodies.find(self._subgraph, key, self._weights, self._step)
            self._given = key
        return body.run(given)


class BoundBody:
    """A body whose inputs are copied to where its plan reads them, and whose outputs are where that leaves them.

    Args:
        graph: The body.
        stage: All of it: its ready part, and what the host computes then.
        plan: The ready part; None where the host computes all.
        step: As for `BoundBodies.find`.

    Raises:
        UnboundTripError: The plan leaves an output where it reads an input.
    """

    def __init__(self, graph: Graph, stage: Stage, plan: BoundPlan | None, step: int) -> None:
        self.plan, self._nodes, self._outputs = plan, stage.partition.host_nodes, graph.outputs
        positions = {value: position for position, value in enumerate(graph.inputs)}
        self._made: dict[Value, Array] = dict(stage.partition.constants or {})
        self._copies: list[tuple[int, Array]] = []
        if plan is not None:
            ready = stage.partition.ready
            assert ready is not None
            rows = zip(ready.inputs, plan.inputs, strict=True)
            self._copies = [(positions[value], array) for value, array in rows if array is not None]
            made = {value: y for value, y in zip(ready.outputs, plan.outputs, strict=True) if y is not None}
            self._made.update(made)
            read = {array.ctypes.data for _, array in self._copies}
            if any(array.ctypes.data in read for array in made.values()):
                raise UnboundTripError
        # Inputs that are passed on to where they came from stay the arrays they are. Other inputs that are used behind
        # the plan are copied before it, which may overwrite what the trip before gave.
        passed = {value for place, value in enumerate(graph.outputs) if positions.get(value) == place + step}
        used = {value for node in self._nodes for value in node.inputs if value is not None}
        used |= {value for value in graph.outputs if value not in passed}
        self._passed = [(value, positions[value]) for value in graph.inputs if value in passed and value not in used]
        self._used = [(value, positions[value]) for value in graph.inputs if value in used]

    def run(self, given: Sequence[Array]) -> list[Array]:
        """Compute a trip of these inputs; the next may overwrite what it gives, once it has taken its inputs."""
        made = self._made
        if self._passed or self._used:
            made = made.copy()
            for value, position in self._passed:
                made[value] = given[position]
            for value, position in self._used:
                made[value] = given[position].copy()
        for position, array in self._copies:
            array[...] = given[position]
        if self.plan is not None:
            for call in self.plan.calls:
                call()
        for node in self._nodes:
            arrays = [None if value is None else made[value] for value in node.inputs]
            computed = zip(node.outputs, compute_arrays(node.operator, arrays), strict=False)
            made.update((value, array) for value, array in computed if value is not None and array is not None)
        return [made[value] for value in self._outputs]


class LoopArrays:
    """Values of a loop as arrays, as `gpuexec.ops.control.trips.LoopValues` wants them; rows are copied."""

    def __init__(self) -> None:
        self._specs: dict[tuple[tuple[int, ...], np.dtype[Any]], TensorSpec] = {}

    def find_spec(self, value: Array) -> TensorSpec:
        """Return the shape and type of an array."""
        key = value.shape, value.dtype
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = TensorSpec(*key)
        return spec

    def find_content(self, value: Array) -> Array:
        """Return the array."""
        return value

    def make(self, array: Array) -> Array:
        """Return the array."""
        return array

    def make_empty(self, spec: TensorSpec) -> Array:
        """Return an array without elements."""
        return np.empty(spec.shape, spec.dtype)

    def take_slice(self, value: Array, place: int) -> Array:
        """Return a view of one slice along the first axis."""
        return value[place, ...]

    def open_rows(self, max_rows: int | None) -> ArrayRows:
        """Return the rows of a scan output, none yet."""
        return ArrayRows(max_rows)


class ArrayRows:
    """Rows of a scan output in an array that doubles when it is full.

    Args:
        max_rows: How many rows there will be at most, where that is known.
    """

    def __init__(self, max_rows: int | None) -> None:
        self._max_rows, self._length, self._capacity = max_rows, 0, 0
        self._rows: Array = np.empty(0)

    def add(self, row: Array) -> None:
        """Copy a row behind those there are."""
        if self._length == self._capacity:
            before = self._rows
            wanted = 2 * self._capacity or _FIRST_ROWS
            self._capacity = wanted if self._max_rows is None else max(1, min(wanted, self._max_rows))
            self._rows = np.empty((self._capacity, *row.shape), row.dtype)
            if self._length:
                self._rows[: self._length] = before
        self._rows[self._length] = row
        self._length += 1

    def stack(self, *, is_reversed: bool) -> Array:
        """Return the rows stacked along a new first axis."""
        rows = self._rows[: self._length]
        return rows[::-1] if is_reversed else rows
