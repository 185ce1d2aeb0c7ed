"""SequenceMap: a graph computed for each element of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuexec.errors import InputError
from gpuexec.ir.containers import read_sequence
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import SEQUENCE, TensorSpec
from gpuexec.ops.containers.sequence import SEQUENCE_SPEC, check_sequence
from gpuexec.ops.control.trips import ARRAYS, Collect, LoopValues, Trip, Trips, V, compute_trips, require_content


@operator("SequenceMap")
@dataclass(frozen=True, slots=True)
class SequenceMap(Operator):
    """Graph computed for each element of the first input; each output is a sequence of the results.

    A node's inputs are the ``given`` ones that ONNX knows, then the captures. The body takes as many values: of each
    given sequence its element, everything else as it is.
    """

    body: Graph
    given: int
    tolerance = Tolerance.REDUCTION
    takes_containers = True
    flops_per_output = None

    def __post_init__(self) -> None:
        if not 1 <= self.given <= len(self.body.inputs):
            raise InputError(
                f"the body must take at least the {self.given} given values, of which there is one or more; it takes"
                f" {len(self.body.inputs)}."
            )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a sequence for each output."""
        check_sequence("SequenceMap", inputs[0])
        return (SEQUENCE_SPEC,) * len(self.body.outputs)

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Compute the body for each element."""
        return compute_trips(self.body, self.make_trips(inputs, ARRAYS))

    def make_trips(self, inputs: Sequence[V], values: LoopValues[V]) -> Trips[V]:
        """Make a trip for each element.

        Args:
            inputs: Of the node.
            values: How they are read, sliced and stacked.

        Raises:
            InputError: The sequences are not of one length.
        """
        specs = [values.find_spec(value) for value in inputs]
        check_sequence("SequenceMap", specs[0])
        items = {
            index: read_sequence(require_content(values, inputs[index]))
            for index, spec in enumerate(specs[: self.given])
            if spec.dtype == SEQUENCE
        }
        lengths = [len(each) for each in items.values()]
        if len(set(lengths)) != 1:
            raise InputError(f"all sequences must be equally long, got {lengths}.")
        columns: list[list[V]] = [[] for _ in self.body.outputs]
        for trip in range(lengths[0]):
            made = yield Trip(
                [values.make(items[index][trip]) if index in items else value for index, value in enumerate(inputs)]
            )
            for column, value in zip(columns, made, strict=True):
                column.append(value)
        return (yield Collect(columns))
