"""Specs of a graph's values, as far as they follow from the specs of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuexec.errors import GpuexecError, NeedsHostValue
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fold_constants import fold_node

_CONTENT_NBYTES = 1 << 10  # of shapes and axes; longer content is no shape


def infer_known(graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[Value, TensorSpec]:
    """Return the specs of those values whose shapes follow, with content where they are made of shapes.

    Content of inputs is not looked at; a node that can't be inferred is left for the planner to report.

    Args:
        graph: The graph.
        specs: Specs of its inputs, by name.
    """
    bare = {name: TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()}
    return Shapes.of(graph, bare).specs


@dataclass(slots=True)
class Shapes:
    """Specs of a graph's values as they are with the content of the inputs that is on the host.

    Attributes:
        specs: Those that follow; with content where they are made of shapes, or of that content.
        on_host: Values whose content follows from shapes and constants alone.
        asked: Values whose content a shape depends on.
    """

    specs: dict[Value, TensorSpec]
    on_host: set[Value] = field(default_factory=set)
    asked: set[Value] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph, inputs: Mapping[str, TensorSpec]) -> Shapes:
        """Infer the nodes of a graph; one that can't be inferred is left for the planner to report.

        Args:
            graph: The graph.
            inputs: Specs of its inputs, by name.
        """
        found = cls({value: inputs[value.name] for value in graph.inputs})
        found.specs.update({value: TensorSpec.of(array) for value, array in graph.constants.items()})
        found.on_host.update(graph.constants)
        for node in graph.nodes:
            found._infer(node)
        return found

    def find_demanded(self, graph: Graph) -> set[Value]:
        """Return the values that a shape depends on, and those that they are made of."""
        demanded = set(self.asked)
        for node in reversed(graph.nodes):
            if not demanded.isdisjoint(node.outputs):
                demanded.update(value for value in node.inputs if value is not None)
        return demanded

    def _infer(self, node: Node) -> None:
        given = [value for value in node.inputs if value is not None]
        if any(value not in self.specs for value in given):
            self.asked.update(given)  # which of them it may ask for is not known
            return
        specs = [None if value is None else self.specs[value] for value in node.inputs]
        made = self._find_outputs(node, specs)
        if given and all(self._has_number(value) for value in given):
            arrays = [None if spec is None or spec.value is None else spec.value.array for spec in specs]
            folded = fold_node(node, arrays, _CONTENT_NBYTES)
            if folded is not None:
                made = {value: TensorSpec.of(array) for value, array in folded.items()}
        self.specs.update(made)
        if self.on_host.issuperset(given):
            self.on_host.update(value for value, spec in made.items() if spec.value is not None)

    def _has_number(self, value: Value) -> bool:
        """Return whether a value has content that sizes may be computed of; of inputs, integers alone."""
        spec = self.specs[value]
        return spec.value is not None and (value in self.on_host or spec.dtype.kind in "iub")

    def _find_outputs(self, node: Node, specs: Sequence[TensorSpec | None]) -> dict[Value, TensorSpec]:
        """Return the specs of a node's outputs as far as they follow, and note what its shapes ask for."""
        bare = [
            spec if spec is None or value in self.on_host else TensorSpec(spec.shape, spec.dtype)
            for value, spec in zip(node.inputs, specs, strict=True)
        ]
        for _ in range(len(specs) + 1):
            try:
                made = infer_specs(node.operator, bare)
            except NeedsHostValue as need:
                value = node.inputs[need.index] if 0 <= need.index < len(specs) else None
                if value is None:
                    break
                self.asked.add(value)
                if bare[need.index] is specs[need.index]:
                    return {}
                bare[need.index] = specs[need.index]
            except GpuexecError:
                break
            else:
                found = {value: spec for value, spec in zip(node.outputs, made) if value is not None}
                if self.asked.isdisjoint(node.inputs):  # Shape and its like
                    self.on_host.update(value for value, spec in found.items() if spec.value is not None)
                return found
        self.asked.update(value for value in node.inputs if value is not None)
        return {}
