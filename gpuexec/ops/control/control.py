"""If and Loop, operators whose attributes are graphs.

A body is a closed graph. A value that it takes from a graph around it, at any level, is a *capture*: an input
of the node and of the body, after those that ONNX knows. So a walk over a graph sees all that a node reads, and a
body can be planned by itself. The classes compute by interpreting their bodies; on a device the Worker runs them, which
plans the bodies and decides between them on the host, so none of them has a lowering.

`inline_branch` puts the branch that an If takes in its place.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from gpuexec.errors import InputError, ModelError, NeedsHostValue
from gpuexec.ir.graphs import Graph, Node, Value, bodies, find_free, list_needed, walk, with_bodies
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, build, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.containers.sequence_map import SequenceMap
from gpuexec.ops.control.interpret import compute_graph, infer_graph
from gpuexec.ops.control.scan import Scan
from gpuexec.ops.control.trips import (
    ARRAYS,
    IN_SEGMENTS,
    LoopValues,
    ScanOutputs,
    Trip,
    Trips,
    V,
    check_condition,
    check_count,
    compute_trips,
    describe_values,
    forget,
    infer_first_rows,
    infer_trip,
    read_count,
    read_flag,
    require_content,
    scalar_shape,
)

__all__ = ["LOOPS", "If", "Loop", "Scan", "SequenceMap", "bodies", "count_own_inputs", "inline_branch", "with_bodies"]
_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)


@operator("If")
@dataclass(frozen=True, slots=True)
class If(Operator):
    """One of two graphs, chosen by a condition of one element.

    A node's inputs are the condition and the captures; the inputs of both branches are one value for each capture, in
    the same order.
    """

    then_branch: Graph
    else_branch: Graph
    tolerance = Tolerance.REDUCTION
    takes_containers = True
    flops_per_output = None

    def __post_init__(self) -> None:
        sizes = [(len(branch.inputs), len(branch.outputs)) for branch in bodies(self)]
        if sizes[0] != sizes[1]:
            raise InputError(f"both branches must take and give as many values, got {sizes[0]} and {sizes[1]}.")

    def infer(self, condition: TensorSpec, *captures: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the branch that the condition picks; its content must be known."""
        check_condition(condition)
        branch = self.choose(require_const(condition, "condition", 0))
        try:
            return infer_graph(branch, captures)
        except NeedsHostValue as need:
            need.index += 1  # the condition stands before the captures
            raise

    def compute(self, condition: Array, *captures: Array, out: Out = None) -> tuple[Array, ...]:
        """Compute the branch that the condition picks."""
        return compute_graph(self.choose(condition), captures)

    def choose(self, condition: Array) -> Graph:
        """Return the branch for the content of the condition."""
        return self.then_branch if read_flag(condition) else self.else_branch


@operator("Loop")
@dataclass(frozen=True, slots=True)
class Loop(Operator):
    """Graph repeated while its condition holds, at most ``trip_count`` times, with values carried from trip to trip.

    A node's inputs are trip count (None: no limit), condition (None: true), the ``carried`` values and the captures;
    the body's are number of the trip, condition, carried values and captures. The body gives the condition, the carried
    values and one row of each scan output; the node gives the last carried values and the rows stacked along axis 0.
    """

    body: Graph
    carried: int
    tolerance = Tolerance.REDUCTION
    takes_containers = True
    flops_per_output = None

    def __post_init__(self) -> None:
        fixed = 2 + self.carried
        if len(self.body.inputs) < fixed or len(self.body.outputs) < fixed - 1:
            raise InputError(
                f"the body must take at least {fixed} values and give {fixed - 1} for {self.carried} carried ones, "
                f"got {len(self.body.inputs)} and {len(self.body.outputs)}."
            )

    def infer(self, trip_count: TensorSpec | None, condition: TensorSpec | None, *rest: Any) -> tuple[TensorSpec, ...]:
        """Infer specs that do not depend on the trips: carried values of constant shape, rows where trips are counted.

        Raises:
            InputError: It depends on them.
        """
        check_condition(condition)
        check_count(trip_count)
        carried, captures = [forget(spec) for spec in rest[: self.carried]], rest[self.carried :]
        number, again = (scalar_shape(value) for value in self.body.inputs[:2])
        # The body runs only where its condition is true.
        true = TensorSpec.of(np.ones(again, _BOOL))
        keeps, *made = infer_trip(self.body, (TensorSpec(number, _INT64), true, *carried), captures)
        for index, (before, after) in enumerate(zip(carried, made, strict=False)):
            if before != after:
                raise InputError(f"carried value {index} enters as {before} and leaves as {after}, {IN_SEGMENTS}.")
        rows = made[self.carried :]
        if not rows:
            return tuple(carried)
        trips = self._count_trips(trip_count, condition, keeps)
        return (*carried, *(TensorSpec((trips, *row.shape), row.dtype) for row in rows))

    def compute(
        self, trip_count: Array | None, condition: Array | None, *rest: Array, out: Out = None
    ) -> tuple[Array, ...]:
        """Compute the body again and again."""
        return compute_trips(self.body, self.make_trips((trip_count, condition, *rest), ARRAYS))

    def make_trips(self, inputs: Sequence[Any], values: LoopValues[V]) -> Trips[V]:
        """Make trips while the condition holds, until the trip count is reached.

        Args:
            inputs: Of the node.
            values: How they are read, sliced and stacked.
        """
        trip_count, condition, *rest = inputs
        limit = None if trip_count is None else read_count(require_content(values, trip_count))
        keeps = condition is None or read_flag(require_content(values, condition))
        carried, captures = rest[: self.carried], rest[self.carried :]
        number, again = (scalar_shape(value) for value in self.body.inputs[:2])
        scanned = len(self.body.outputs) - 1 - self.carried
        outputs = ScanOutputs(values, scanned, limit)

        def list_given(trip: int) -> list[V]:
            own = np.full(number, trip, _INT64), np.ones(again, _BOOL)
            return [*map(values.make, own), *carried, *captures]

        for trip in count():
            if not keeps or (limit is not None and trip >= limit):
                break
            flag, *made = yield Trip(list_given(trip))
            keeps = read_flag(require_content(values, flag))
            carried = made[: self.carried]
            outputs.add(made[self.carried :])
        if trip or not scanned:
            return [*carried, *outputs.stack()]
        rows = infer_first_rows(self.body, describe_values(values, list_given(0)), 1 + self.carried)
        return [*carried, *(values.make_empty(TensorSpec((0, *row.shape), row.dtype)) for row in rows)]

    def _count_trips(self, trip_count: TensorSpec | None, condition: TensorSpec | None, keeps: TensorSpec) -> int:
        if keeps.value is None:
            raise InputError(f"its body computes when it ends, {IN_SEGMENTS}.")
        if condition is not None and not read_flag(require_const(condition, "condition", 1)):
            return 0
        is_once = not read_flag(require_const(keeps, "condition"))
        if trip_count is None:
            if is_once:
                return 1
            raise InputError("it has no trip count, and its condition stays true: it never ends.")
        limit = read_count(require_const(trip_count, "trip_count", 0))
        return min(limit, 1) if is_once else limit


# Operators for which a run repeats a body.
LOOPS = (Loop, Scan, SequenceMap)


def count_own_inputs(op: Operator) -> int:
    """Return the number of a node's inputs that ONNX defines; the captures follow."""
    match op:
        case If():
            return 1
        case Loop():
            return 2 + op.carried
        case Scan():
            return op.states + op.num_scan_inputs
        case SequenceMap():
            return op.given
    raise TypeError(f"{op.name} has no bodies")


def check_arity(graph: Graph) -> None:
    """Check that a node and its bodies agree in the numbers of inputs and outputs.

    The importer builds them so; a graph from elsewhere may say anything.

    Raises:
        ModelError: One does not; names the node.
    """
    for inner in walk(graph):
        for node in inner.nodes:
            op = node.operator
            if isinstance(op, (If, Loop, Scan, SequenceMap)):
                _check_arity(node, op)


def inline_branch(
    node: Node, branch: Graph, taken: Container[str] = frozenset()
) -> tuple[tuple[Node, ...], dict[Value, Array]]:
    """Return a branch as nodes that read the inputs of the If and make its outputs.

    Values inside are made anew by every call, so a branch may be inlined twice. Names of nodes and values begin with
    the If's, so that errors tell where they stood. Bodies further in stay as they are, and nodes that no wanted output
    depends on are left out.

    Args:
        node: The If.
        branch: The one it takes.
        taken: Names that values of the graph have already.

    Returns:
        The nodes, and the branch's constants.
    """
    stands_for: dict[Value, Value] = dict(zip(branch.inputs, _given(node), strict=True))
    made = {value for each in branch.nodes for value in each.outputs if value is not None}
    identities, used = [], set[str]()
    for index, (inner, wanted) in enumerate(zip(branch.outputs, node.outputs, strict=True)):
        if wanted is None:
            continue
        if inner in made and inner not in stands_for:
            stands_for[inner] = wanted
        else:  # a capture, a constant, or given before under another name
            identities.append((index, inner, wanted))

    def name_value(value: Value) -> Value:
        if value not in stands_for:
            free = find_free(f"{node.name}/{value.name}", taken, used)
            used.add(free)
            stands_for[value] = Value(free, value.declared)
        return stands_for[value]

    nodes = [
        Node(
            each.operator,
            tuple(None if value is None else name_value(value) for value in each.inputs),
            tuple(None if value is None else name_value(value) for value in each.outputs),
            f"{node.name}/{each.name}",
        )
        for each in branch.nodes
    ]
    nodes += [
        Node(build("Identity", {}), (name_value(inner),), (wanted,), f"{node.name}/output{index}")
        for index, inner, wanted in identities
    ]
    kept, needed = list_needed(nodes, [value for value in node.outputs if value is not None])
    constants = {name_value(value): array for value, array in branch.constants.items()}
    return tuple(kept), {value: array for value, array in constants.items() if value in needed}


def _check_arity(node: Node, op: If | Loop | Scan | SequenceMap) -> None:
    body = bodies(op)[0]
    taken, made, optional = len(body.inputs), len(body.outputs), 0
    match op:
        case If():
            taken += 1
        case Loop():
            made, optional = made - 1, 2
            if op.carried < 0:
                raise ModelError(f"{node}: {op.carried} carried values can't be.", node=node.name)
        case Scan():
            if op.states < 0:
                raise ModelError(f"{node}: {op.states} states can't be.", node=node.name)
    if len(node.inputs) != taken or len(node.outputs) > made or None in node.inputs[optional:]:
        raise ModelError(
            f"{node}: expected {taken} inputs, all but the first {optional} of them given, and at most {made} outputs; "
            f"got {len(node.inputs)} and {len(node.outputs)}.",
            node=node.name,
        )


def _given(node: Node) -> tuple[Value, ...]:
    captures = tuple(value for value in node.inputs[1:] if value is not None)
    assert len(captures) == len(node.inputs) - 1, f"{node}: a capture is absent"
    return captures
