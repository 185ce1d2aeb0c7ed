"""Loop, Scan and SequenceMap: a body run again and again by the host, what it carries staying on the device.

Each trip is a run of the body's plan, whose outputs are the next trip's inputs: their addresses are bound, nothing is
copied. Only the condition comes to the host, where the host can't count along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np

from gpuexec.containers import hold, make_sequence
from gpuexec.errors import GpuexecError, ModelError, locate
from gpuexec.graphs import Graph, Node, Value
from gpuexec.ops.control import Loop, Scan, SequenceMap, count_own_inputs
from gpuexec.ops.layout import Transpose
from gpuexec.ops.scan import infer_empty
from gpuexec.ops.trips import infer_first_rows, read_count, read_flag, scalar_shape
from gpuexec.planner.cut import HostRead
from gpuexec.resources.pool import ExchangePool
from gpuexec.running.held import Env, Held
from gpuexec.running.part import Part
from gpuexec.running.run import BETWEEN, Pause, Turn
from gpuexec.running.site import Site
from gpuexec.running.stacking import Stack
from gpuexec.runtime.device import ALIGNMENT, Event, Region, Stream
from gpuexec.spec import TensorSpec, is_host_object

_Result = TypeVar("_Result")
# Trips between two marks on the stream, and marks that may lie ahead of the device.
_TRIPS_MARKED, _MARKS_AHEAD = 16, 4
# Turns of a run, and then a result.
_Making = Generator[Turn, None, _Result]
# Stands for what lies on the device.
_NOTHING = np.empty(0, np.uint8)


class Looper:
    """Runs the loops of one run.

    Args:
        follow: Runs a part: after its turns, the environment holds the part's outputs.
        locate: Returns the bytes of a value on the device, bringing them there if need be.
        bring: Brings content to the host, as it is told who asks for what.
    """

    def __init__(
        self,
        site: Site,
        stream: Stream,
        pool: ExchangePool,
        follow: Callable[[Part, Env], Iterator[Turn]],
        locate: Callable[[Held], Region],
        bring: Callable[[Sequence[tuple[HostRead, Held]]], Iterator[Turn]],
    ) -> None:
        self._site, self._stream, self._pool = site, stream, pool
        self._follow, self._locate, self._bring = follow, locate, bring
        self._trips = 0
        self._marks: deque[Event] = deque()

    def repeat(self, node: Node, env: Env) -> Iterator[Turn]:
        """Run a Loop, Scan or SequenceMap; ``env`` holds its outputs then.

        Raises:
            GpuexecError: What a trip raised; names the node.
        """
        inputs = [None if value is None else env[value] for value in node.inputs]
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
        env.update({value: held for value, held in zip(node.outputs, made, strict=False) if value and held})

    def _loop(self, op: Loop, inputs: Sequence[Held | None]) -> _Making[list[Held | None]]:
        trip_count, condition, *rest = inputs
        limit = None if trip_count is None else read_count(_content(trip_count))
        keeps = condition is None or read_flag(_content(condition))
        carried: Sequence[Held | None] = rest[: op.carried]
        captures = rest[op.carried :]
        part = find_body(self._site, op)
        shapes = [scalar_shape(value) for value in op.body.inputs[:2]]
        stacks = [Stack(self._stream, self._pool, self._locate, limit) for _ in op.body.outputs[1 + op.carried :]]
        trips = 0
        for trip in count():
            if not keeps or (limit is not None and trip >= limit):
                break
            own = (_number(np.full(shapes[0], trip, np.int64)), _number(np.ones(shapes[1], np.bool_)))
            made = yield from self._trip(part, (*own, *carried, *captures))
            keeps = read_flag(_content(made[0]))
            carried = made[1 : 1 + op.carried]
            for index, (stack, row) in enumerate(zip(stacks, made[1 + op.carried :], strict=True)):
                stack.add(row, index)
            trips += 1
        if trips:
            return [*carried, *(stack.finish() for stack in stacks)]
        own = (_number(np.zeros(shapes[0], np.int64)), _number(np.ones(shapes[1], np.bool_)))
        return [*carried, *self._empty(op.body, (*own, *carried, *captures), 1 + op.carried)]

    def _scan(self, op: Scan, inputs: Sequence[Held | None]) -> _Making[list[Held | None]]:
        given = [held for held in inputs if held is not None]
        states: Sequence[Held]
        states, scanned, captures = op.divide(given)
        shapes = [held.spec.shape for held in scanned]
        length, axes = op.find_length(shapes), op.find_axes(shapes)
        moved: list[Held] = []
        for held, axis in zip(scanned, axes, strict=True):
            moved.append((yield from self._move_axis(held, axis, 0)))
        backwards = op.scan_input_directions or (0,) * len(moved)
        part = find_body(self._site, op)
        stacks = [Stack(self._stream, self._pool, self._locate, length) for _ in op.body.outputs[op.states :]]
        for step in range(length):
            slices = [
                self._slice(held, length - 1 - step if back else step)
                for held, back in zip(moved, backwards, strict=True)
            ]
            made = yield from self._trip(part, (*states, *slices, *captures))
            op.check_states([held.spec for held in states], [held.spec for held in made])
            states = made[: op.states]
            for index, (stack, row) in enumerate(zip(stacks, made[op.states :], strict=True)):
                stack.add(row, index)
        if not length:
            return [*states, *map(self._blank, infer_empty(op, [held.describe() for held in given]))]
        results: list[Held] = []
        directions = op.scan_output_directions or (0,) * len(stacks)
        for stack, back, axis in zip(stacks, directions, op.output_axes([row.spec.shape for row in made]), strict=True):
            results.append((yield from self._move_axis(stack.finish(is_reversed=bool(back)), 0, axis)))
        return [*states, *results]

    def _map(self, op: SequenceMap, inputs: Sequence[Held | None], node: Node) -> _Making[list[Held | None]]:
        given = [held for held in inputs if held is not None]
        arrays = [_NOTHING if held.array is None else held.array for held in given]
        part = find_body(self._site, op)
        columns: list[list[Held]] = [[] for _ in op.body.outputs]
        for trip in op.list_trips(arrays):
            own = [
                _number(item) if op.is_walked(index, arrays[index]) else held
                for index, (held, item) in enumerate(zip(given, trip, strict=True))
            ]
            for column, made in zip(columns, (yield from self._trip(part, own)), strict=True):
                column.append(made)
        wanted = zip(node.outputs, columns, strict=False)
        rows = [(HostRead(value, node.name, "elements"), each) for value, column in wanted if value for each in column]
        yield from self._bring(rows)
        return [
            None if value is None else _number(make_sequence([hold(_content(each)) for each in column]))
            for value, column in zip(node.outputs, columns, strict=False)
        ]

    def _trip(self, part: Part, given: Sequence[Held | None]) -> _Making[list[Held]]:
        """Run the body once; return what it gives."""
        env: Env = {}
        for value, held in zip(part.graph.inputs, given, strict=True):
            assert held is not None
            env[value] = held
        yield from self._follow(part, env)
        yield self._keep_pace()
        return [env[value] for value in part.graph.outputs]

    def _keep_pace(self) -> Pause:
        """Return where a run may be cancelled, or waits: the host must not run far ahead of the device."""
        self._trips += 1
        if self._trips % _TRIPS_MARKED == 0:
            event = self._site.backend.device.create_event()
            self._stream.record(event)
            self._marks.append(event)
        if len(self._marks) <= _MARKS_AHEAD:
            return BETWEEN
        oldest = self._marks.popleft()
        return Pause(oldest.is_done, oldest.synchronize)

    def _slice(self, held: Held, place: int) -> Held:
        """Return one slice along the first axis: the bytes where they lie, or a copy where they start at odd places."""
        spec = held.spec.with_shape(held.spec.shape[1:])
        content = None if held.array is None else held.array[place]
        if is_host_object(spec.dtype):
            return Held(spec, array=np.asarray(content, spec.dtype), is_computed=True)
        region = self._locate(held)
        start = region.offset + place * spec.nbytes
        if start % ALIGNMENT == 0:
            return Held(spec, Region(region.memory, start, spec.nbytes), content, is_computed=True, owner=held.owner)
        lent = self._pool.lend(spec.nbytes)
        if spec.nbytes:
            self._stream.copy(lent.region.address, region.address + place * spec.nbytes, spec.nbytes)
        return Held(spec, lent.region, content, is_computed=True, owner=lent)

    def _move_axis(self, held: Held, source: int, destination: int) -> _Making[Held]:
        if source == destination:
            return held
        order = [axis for axis in range(held.spec.rank) if axis != source]
        order.insert(destination, source)
        part = find_transpose(self._site, tuple(order))
        env = {part.graph.inputs[0]: Held(held.spec, held.region, held.array, is_computed=True, owner=held.owner)}
        yield from self._follow(part, env)
        return env[part.graph.outputs[0]]

    def _empty(self, body: Graph, given: Sequence[Held | None], first: int) -> list[Held]:
        """Return scan outputs of no rows."""
        specs = infer_first_rows(body, [held.describe() for held in given if held is not None], first)
        return [self._blank(TensorSpec((0, *spec.shape), spec.dtype)) for spec in specs]

    def _blank(self, spec: TensorSpec) -> Held:
        if is_host_object(spec.dtype):
            return Held(spec, array=np.empty(spec.shape, spec.dtype), is_computed=True)
        lent = self._pool.lend(spec.nbytes)
        return Held(spec, Region(lent.memory, 0, spec.nbytes), owner=lent)


def find_body(site: Site, op: Loop | Scan | SequenceMap) -> Part:
    """Return the part of a body, the same one for every run."""
    part = site.bodies.get(op.body)
    if part is None:
        condition = op.body.outputs[0] if isinstance(op, Loop) else None
        untold = frozenset((*op.body.inputs[: count_own_inputs(op)], *op.body.constants))
        part = site.bodies[op.body] = Part(op.body, site, is_body=True, condition=condition, untold=untold)
    assert isinstance(part, Part)
    return part


def find_transpose(site: Site, order: tuple[int, ...]) -> Part:
    """Return the part that reorders axes."""
    part = site.bodies.get(order)
    if part is None:
        source, result = Value("scan axis: source"), Value("scan axis: result")
        node = Node(Transpose(order), (source,), (result,), "scan axis")
        graph = Graph((source,), (result,), (node,), {}, "scan axis")
        part = site.bodies[order] = Part(graph, site, is_body=True)
    assert isinstance(part, Part)
    return part


def _number(array: Any) -> Held:
    """Return a value that the host counts."""
    return Held(TensorSpec(array.shape, array.dtype), array=array, is_computed=True)


def _content(held: Held) -> Any:
    if held.array is None:
        raise ModelError(f"The host was to know {held.spec} and does not.")
    return held.array
