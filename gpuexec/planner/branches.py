"""Resolution of If nodes with known conditions during the walk of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.errors import InputError, locate
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.control import LOOPS, If, inline_branch
from gpuexec.ops.control.trips import check_condition
from gpuexec.planner.analyse import ShapeInference
from gpuexec.planner.evaluate import evaluate_node


class Branches:
    """Branches taken, and constants computed from what follows in them.

    Args:
        graph: The graph that is walked.
        inference: The shape inference under way.
        constants: Content of constants; those of branches are put there.
        producers: The node that makes each value; those of branches are put there.

    Attributes:
        decided_by: Names of inputs whose content decided which branch is taken.
        is_by_shape: Whether extents decided one, beyond dtypes and ranks.
        taken: The Ifs that were decided, each with whether its condition held.
    """

    def __init__(
        self, graph: Graph, inference: ShapeInference, constants: dict[Value, Array], producers: dict[Value, Node]
    ) -> None:
        self._inference, self._constants, self._producers = inference, constants, producers
        self._graph = graph
        # Names of all values, listed once an If takes a branch.
        self._names: set[str] | None = None
        self._inlined: set[Node] = set()
        self.decided_by: dict[str, None] = {}
        self.is_by_shape = False
        self.taken: list[tuple[Node, bool]] = []

    def take(self, node: Node, condition: Value) -> Sequence[Node]:
        """Return the nodes of the branch an If takes.

        Raises:
            NeedsHostValue: The condition is not on the host.
            InputError: The condition is none.
        """
        assert isinstance(node.operator, If)
        try:
            check_condition(self._inference.analysis.specs[condition])
            content = self._inference.demand(node, condition, "condition").value
        except InputError as error:
            raise locate(error, node, node.name) from None
        assert content is not None
        if condition not in self._constants:
            self.decided_by.update(dict.fromkeys(getattr(content.log, "inputs", ())))
            self.is_by_shape |= content.log is None
        is_true = bool(content.array.reshape(-1)[0])
        self.taken.append((node, is_true))
        if self._names is None:
            self._names = {value.name for value in self._graph.values()}
        nodes, constants = inline_branch(
            node, node.operator.then_branch if is_true else node.operator.else_branch, self._names
        )
        self._constants.update(constants)
        self._names.update(v.name for n in nodes for v in n.outputs if v is not None)
        self._names.update(value.name for value in constants)
        self._inference.analysis.specs.update({value: TensorSpec.of(array) for value, array in constants.items()})
        self._inlined.update(nodes)
        for each in nodes:
            self._producers.update({value: each for value in each.outputs if value is not None})
        return nodes

    def fold(self, node: Node) -> bool:
        """Compute a node of a branch that follows from constants alone, now that they are there."""
        if (
            node not in self._inlined
            or not node.inputs
            or not all(v is None or v in self._constants for v in node.inputs)
        ):
            return False
        if isinstance(node.operator, (If, *LOOPS)) or node.operator.uses_all_cores:
            return False
        specs = evaluate_node(node, [None if v is None else self._inference.analysis.specs[v] for v in node.inputs])
        for value, spec in zip(node.outputs, specs, strict=False):
            if value is not None and spec is not None and spec.value is not None:
                self._constants[value] = spec.value.array
                self._inference.analysis.specs[value] = spec
        return all(value is None or value in self._constants for value in node.outputs)
