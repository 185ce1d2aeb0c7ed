"""Scan: a graph repeated over the slices of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuexec.errors import InputError
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.graphs import Graph, Node, RawNode, Value
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator, upgrade
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.trips import (
    ARRAYS,
    LoopValues,
    MoveAxis,
    ScanOutputs,
    Trip,
    Trips,
    V,
    compute_trips,
    describe_values,
    forget,
    infer_first_rows,
    infer_trip,
)


@operator("Scan")
@dataclass(frozen=True, slots=True)
class Scan(Operator):
    """Graph repeated along an axis of each scan input, with states carried from slice to slice and results stacked.

    A node's inputs are the ``states``, the ``num_scan_inputs`` scan inputs and the captures; the body's are states, one
    slice of each scan input, and captures. Axes and directions (1: from the back) are 0 where they are not given.
    """

    body: Graph
    num_scan_inputs: int
    states: int
    scan_input_axes: tuple[int, ...] = ()
    scan_input_directions: tuple[int, ...] = ()
    scan_output_axes: tuple[int, ...] = ()
    scan_output_directions: tuple[int, ...] = ()
    tolerance = Tolerance.REDUCTION
    takes_containers = True
    flops_per_output = None

    def __post_init__(self) -> None:
        fixed = self.states + self.num_scan_inputs
        if self.num_scan_inputs < 1 or len(self.body.inputs) < fixed or len(self.body.outputs) < self.states:
            raise InputError(
                f"the body must take {self.states} states and at least 1 scan input, and give the states, got "
                f"num_scan_inputs={self.num_scan_inputs} and {len(self.body.inputs)} inputs, "
                f"{len(self.body.outputs)} outputs."
            )
        scan_outputs = len(self.body.outputs) - self.states
        for role, given, expected in (
            ("scan_input_axes", self.scan_input_axes, self.num_scan_inputs),
            ("scan_input_directions", self.scan_input_directions, self.num_scan_inputs),
            ("scan_output_axes", self.scan_output_axes, scan_outputs),
            ("scan_output_directions", self.scan_output_directions, scan_outputs),
        ):
            if given and len(given) != expected:
                raise InputError(f"{role} must have one entry for each of {expected} values, got {list(given)}.")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the body for one slice; states keep their shape."""
        states, scanned, captures = self.divide(inputs)
        length = self.find_length([spec.shape for spec in scanned])
        made = infer_trip(self.body, (*map(forget, states), *_take_slices(self, scanned)), captures)
        self.check_states(states, made)
        outputs = [
            TensorSpec((*row.shape[:axis], length, *row.shape[axis:]), row.dtype)
            for row, axis in zip(made[self.states :], self.output_axes([row.shape for row in made]), strict=True)
        ]
        return (*map(forget, states), *outputs)

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Compute the body for each slice."""
        return compute_trips(self.body, self.make_trips(inputs, ARRAYS))

    def make_trips(self, inputs: Sequence[V], values: LoopValues[V]) -> Trips[V]:
        """Make a trip for each slice.

        Args:
            inputs: Of the node.
            values: How they are read, sliced and stacked.
        """
        states, scanned, captures = self.divide(inputs)
        shapes = [values.find_spec(value).shape for value in scanned]
        length = self.find_length(shapes)
        moved: list[V] = []
        for value, axis in zip(scanned, self.find_axes(shapes), strict=True):
            moved += (yield MoveAxis(value, axis, 0)) if axis else [value]
        backwards = _fill(self.scan_input_directions, len(moved))
        outputs = ScanOutputs(values, len(self.body.outputs) - self.states, length)
        made: Sequence[V] = ()
        for step in range(length):
            slices = [
                values.take_slice(value, length - 1 - step if back else step)
                for value, back in zip(moved, backwards, strict=True)
            ]
            made = yield Trip([*states, *slices, *captures])
            self.check_states(*([values.find_spec(value) for value in row] for row in (states, made)))
            states = made[: self.states]
            outputs.add(made[self.states :])
        if not length:
            return [*states, *map(values.make_empty, _infer_empty(self, describe_values(values, inputs)))]
        stacked: list[V] = []
        axes = self.output_axes([values.find_spec(value).shape for value in made])
        for value, axis in zip(outputs.stack(self.scan_output_directions), axes, strict=True):
            stacked += (yield MoveAxis(value, 0, axis)) if axis else [value]
        return [*states, *stacked]

    def divide(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Divide a node's inputs into states, scan inputs and captures."""
        fixed = self.states + self.num_scan_inputs
        return inputs[: self.states], inputs[self.states : fixed], inputs[fixed:]

    def find_axes(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the axis along which each scan input is walked, from 0 up."""
        axes = _fill(self.scan_input_axes, len(shapes))
        named = zip(axes, shapes, strict=True)
        return tuple(normalize_axis(axis, len(shape), name="scan_input_axes") for axis, shape in named)

    def find_length(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the number of slices.

        Raises:
            InputError: Not equally many in all scan inputs.
        """
        lengths = [shape[axis] for shape, axis in zip(shapes, self.find_axes(shapes), strict=True)]
        if len(set(lengths)) != 1:
            raise InputError(f"all scan inputs must be equally long along their axes, got {lengths}.")
        return lengths[0]

    def output_axes(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the axis each scan output is stacked along, from the shapes of all outputs of the body."""
        rows = shapes[self.states :]
        axes = _fill(self.scan_output_axes, len(rows))
        named = zip(axes, rows, strict=True)
        return tuple(normalize_axis(axis, len(shape) + 1, name="scan_output_axes") for axis, shape in named)

    def check_states(self, before: Sequence[TensorSpec], after: Sequence[TensorSpec]) -> None:
        """Check that the states (first among the body's outputs) keep their specs.

        Raises:
            InputError: One does not.
        """
        for index, (came, left) in enumerate(zip(before, after[: self.states], strict=True)):
            if came != left:
                raise InputError(f"state {index} must keep its shape and type, enters as {came} and leaves as {left}.")


@upgrade("Scan", below=9)
def walk_batch(raw: RawNode) -> RawNode:
    """Walk a leading batch axis too: as a Scan over the batch, whose body is the Scan over a sequence."""
    lengths, *inputs = raw.inputs
    if lengths:
        raise InputError("sequence_lens of opset 8 is not supported.")
    attributes = dict(raw.attributes)
    body, states, number = attributes["body"], attributes["states"], attributes["num_scan_inputs"]
    inner = Scan(body, number, states, scan_input_directions=tuple(attributes.get("directions", ())))
    given = tuple(Value(f"given{index}") for index in range(len(body.inputs)))
    made = tuple(Value(f"made{index}") for index in range(len(body.outputs)))
    batch = Graph(given, made, (Node(inner, given, made, "sequence"),), {}, body.name)
    return replace(
        raw,
        inputs=tuple(inputs),
        attributes={"body": batch, "states": 0, "num_scan_inputs": states + number},
    )


def _infer_empty(op: Scan, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the specs of a Scan's scan outputs where there are no slices.

    Args:
        op: Whose.
        inputs: Specs of the node's inputs, with content where it is known.

    Raises:
        InputError: A first slice would fail, and the body declares no rank.
    """
    states, scanned, captures = op.divide(inputs)
    rows = infer_first_rows(op.body, (*map(forget, states), *_take_slices(op, scanned), *captures), op.states)
    axes = op.output_axes([*[()] * op.states, *(row.shape for row in rows)])
    return [row.with_shape((*row.shape[:at], 0, *row.shape[at:])) for row, at in zip(rows, axes, strict=True)]


def _take_slices(op: Scan, scanned: Sequence[TensorSpec]) -> list[TensorSpec]:
    axes = op.find_axes([spec.shape for spec in scanned])
    return [
        spec.with_shape((*spec.shape[:axis], *spec.shape[axis + 1 :])) for spec, axis in zip(scanned, axes, strict=True)
    ]


def _fill(given: tuple[int, ...], size: int) -> tuple[int, ...]:
    return given or (0,) * size
