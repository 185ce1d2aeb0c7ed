"""Specs of a graph's values, as far as they follow from the specs of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, NeedsHostValue
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fold_constants import fold_node

Array = np.ndarray[Any, Any]
_CONTENT_NBYTES = 1 << 10  # of shapes and axes; longer content is no shape


class InputSpecs(dict[str, TensorSpec]):
    """Specs of inputs by name, with what followed from them in the graphs that passes made one of the other.

    A node that passes left as it is, with inputs of the specs it had, is not inferred anew.

    Args:
        specs: The specs.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        super().__init__(specs)
        self._bare: InputSpecs | None = None
        self._constants: dict[int, tuple[Array, TensorSpec]] = {}
        self._inferred: dict[Node, _Inferred] = {}

    @property
    def bare(self) -> InputSpecs:
        """The same without content."""
        if self._bare is None:
            self._bare = InputSpecs({name: TensorSpec(spec.shape, spec.dtype) for name, spec in self.items()})
        return self._bare

    def describe(self, constant: Array) -> TensorSpec:
        """Return the spec of a constant, the same one each time."""
        known = self._constants.get(id(constant))
        if known is None:
            known = self._constants[id(constant)] = constant, TensorSpec.of(constant)
        return known[1]

    def find(self, node: Node, specs: Sequence[TensorSpec | None], marks: Sequence[object]) -> _Inferred | None:
        """Return what was inferred of a node for the same specs, the very same where they have content, and marks."""
        found = self._inferred.get(node)
        if found is None or found.marks != marks:
            return None
        return found if all(map(_are_same, found.specs, specs)) else None

    def keep(self, node: Node, inferred: _Inferred) -> None:
        """Keep what was inferred of a node."""
        self._inferred[node] = inferred


def _are_same(one: TensorSpec | None, other: TensorSpec | None) -> bool:
    if one is other or one is None or other is None:
        return one is other
    return one.value is None and other.value is None and one.shape == other.shape and one.dtype == other.dtype


@dataclass(frozen=True, slots=True, eq=False)
class _Inferred:
    """What was inferred of a node.

    Attributes:
        specs: Of its inputs.
        marks: What else it depends on.
        made: Specs of outputs.
        on_host: Outputs whose content follows from shapes and constants alone.
        asked: Inputs whose content shapes depend on.
    """

    specs: Sequence[TensorSpec | None]
    marks: Sequence[object]
    made: Mapping[Value, TensorSpec]
    on_host: AbstractSet[Value]
    asked: AbstractSet[Value]


def infer_known(graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[Value, TensorSpec]:
    """Return the specs of those values whose shapes follow, with content where they are made of shapes.

    Content of inputs is not looked at; a node that can't be inferred is left for the planner to report.

    Args:
        graph: The graph.
        specs: Specs of its inputs, by name.
    """
    known = specs if isinstance(specs, InputSpecs) else InputSpecs(specs)
    return Shapes.of(graph, known.bare).specs


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
        known = inputs if isinstance(inputs, InputSpecs) else InputSpecs(inputs)
        found = cls({value: known[value.name] for value in graph.inputs})
        found.specs.update({value: known.describe(array) for value, array in graph.constants.items()})
        found.on_host.update(graph.constants)
        for node in graph.nodes:
            found._visit(node, known)
        return found

    def find_demanded(self, graph: Graph) -> set[Value]:
        """Return the values that a shape depends on, and those that they are made of."""
        demanded = set(self.asked)
        for node in reversed(graph.nodes):
            if not demanded.isdisjoint(node.outputs):
                demanded.update(value for value in node.inputs if value is not None)
        return demanded

    def _visit(self, node: Node, known: InputSpecs) -> None:
        """Infer a node, or take over what was inferred of it."""
        given = [value for value in node.inputs if value is not None]
        if any(value not in self.specs for value in given):
            self.asked.update(given)  # which of them it may ask for is not known
            return
        specs = [None if value is None else self.specs[value] for value in node.inputs]
        marks = [(value in self.on_host, value in self.asked) for value in given]
        inferred = known.find(node, specs, marks)
        if inferred is None:
            before = set(self.asked.intersection(given))
            self._infer(node, given, specs)
            outputs = [value for value in node.outputs if value in self.specs]
            made = {value: self.specs[value] for value in outputs if value is not None}
            on_host, asked = self.on_host.intersection(made), self.asked.intersection(given) - before
            known.keep(node, _Inferred(specs, marks, made, on_host, asked))
            return
        self.specs.update(inferred.made)
        self.on_host |= inferred.on_host
        self.asked |= inferred.asked

    def _infer(self, node: Node, given: Sequence[Value], specs: Sequence[TensorSpec | None]) -> None:
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
