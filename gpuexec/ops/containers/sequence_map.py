"""SequenceMap: a graph computed for each element of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuexec.errors import InputError
from gpuexec.ir.containers import hold, make_sequence, read_sequence
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Array, Operator, Tolerance, operator
from gpuexec.ir.spec import SEQUENCE, TensorSpec
from gpuexec.ops.containers.sequence import SEQUENCE_SPEC, check_sequence
from gpuexec.ops.control.interpret import compute_graph


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

    def compute(self, *inputs: Array, out: Any = None) -> tuple[Array, ...]:
        """Compute the body for each element."""
        columns: list[list[Array]] = [[] for _ in self.body.outputs]
        for given in self.list_trips(inputs):
            for column, array in zip(columns, compute_graph(self.body, given), strict=True):
                column.append(hold(array))
        return tuple(map(make_sequence, columns))

    def list_trips(self, inputs: Sequence[Array]) -> list[list[Array]]:
        """Return the body's inputs for each element.

        Args:
            inputs: Of the node; of those that are no sequence among the given ones, any array will do.

        Raises:
            InputError: The sequences are not of one length.
        """
        check_sequence("SequenceMap", TensorSpec(inputs[0].shape, inputs[0].dtype))
        items = [read_sequence(array) if self.is_walked(index, array) else None for index, array in enumerate(inputs)]
        lengths = [len(each) for each in items if each is not None]
        if len(set(lengths)) != 1:
            raise InputError(f"all sequences must be equally long, got {lengths}.")
        return [
            [array if each is None else each[trip] for array, each in zip(inputs, items, strict=True)]
            for trip in range(lengths[0])
        ]

    def is_walked(self, index: int, array: Array) -> bool:
        """Return whether an input is a sequence that the body runs over."""
        return index < self.given and array.dtype == SEQUENCE
