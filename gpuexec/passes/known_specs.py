"""Specs of a graph's values, as far as they follow from the specs of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gpuexec.errors import GpuexecError, NeedsHostValue
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.inferences import Inferences
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fold_constants import fold_node

Array = np.ndarray[Any, Any]
_Found = TypeVar("_Found")
_CONTENT_NBYTES = 1 << 10  # of shapes and axes; longer content is no shape


class InputSpecs(dict[str, TensorSpec]):
    """Specs of inputs by name, with what followed from them in the graphs that passes made one of the other.

    A node that passes left as it is, with inputs of the specs it had, is not inferred anew.

    Args:
        specs: The specs.
        inferences: What is known already, and keeps what is inferred.

    Attributes:
        inferences: Those given.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], inferences: Inferences | None = None) -> None:
        super().__init__(specs)
        self.inferences = inferences or Inferences()
        self._derived: dict[Callable[..., object], tuple[Graph, Any]] = {}
        self._bare: InputSpecs | None = None
        self._inferred: dict[Node, _Inferred] = {}

    @property
    def bare(self) -> InputSpecs:
        """The same without content."""
        if self._bare is None:
            bare = {name: TensorSpec(spec.shape, spec.dtype) for name, spec in self.items()}
            self._bare = InputSpecs(bare, self.inferences)
        return self._bare

    def derive(self, graph: Graph, make: Callable[[Graph, InputSpecs], _Found]) -> _Found:
        """Return what a function makes of a graph and these specs; the same again for the graph that it had last."""
        last = self._derived.get(make)
        if last is None or last[0] is not graph:
            last = self._derived[make] = graph, make(graph, self)
        found: _Found = last[1]
        return found

    def find(self, node: Node, shapes: Shapes) -> _Inferred | None:
        """Return what was inferred of a node whose inputs have the same specs now, the very same if with content."""
        found = self._inferred.get(node)
        if found is None:
            return None
        specs, on_host, asked = shapes.specs, shapes.on_host, shapes.asked
        for value, (spec, is_on_host, is_asked) in found.given.items():
            now = specs.get(value)
            if now is not spec and (now is None or not _are_same(now, spec)):
                return None
            if (value in on_host) is not is_on_host or (value in asked) is not is_asked:
                return None
        return found

    def keep(self, node: Node, inferred: _Inferred) -> None:
        """Keep what was inferred of a node."""
        self._inferred[node] = inferred


def _are_same(one: TensorSpec, other: TensorSpec) -> bool:
    return one.value is None and other.value is None and one.shape == other.shape and one.dtype == other.dtype


@dataclass(frozen=True, slots=True, eq=False)
class _Inferred:
    """What was inferred of a node.

    Attributes:
        given: Of each of its inputs the spec, whether its content follows from shapes and constants alone, and whether
            a shape depended on that already.
        made: Specs of outputs.
        on_host: Outputs whose content follows from shapes and constants alone.
        asked: Inputs whose content shapes depend on.
    """

    given: Mapping[Value, tuple[TensorSpec, bool, bool]]
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
        return known.derive(graph, cls._infer_all)

    @classmethod
    def _infer_all(cls, graph: Graph, known: InputSpecs) -> Shapes:
        found = cls({value: known[value.name] for value in graph.inputs})
        describe = known.inferences.describe
        found.specs.update({value: describe(array) for value, array in graph.constants.items()})
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
        inferred = known.find(node, self)
        if inferred is None:
            given = [value for value in node.inputs if value is not None]
            if any(value not in self.specs for value in given):
                self.asked.update(given)  # which of them it may ask for is not known
                return
            specs = [None if value is None else self.specs[value] for value in node.inputs]
            marked = {value: (self.specs[value], value in self.on_host, value in self.asked) for value in given}
            before = set(self.asked.intersection(given))
            self._infer(node, given, specs, known.inferences)
            outputs = [value for value in node.outputs if value in self.specs]
            made = {value: self.specs[value] for value in outputs if value is not None}
            on_host, asked = self.on_host.intersection(made), self.asked.intersection(given) - before
            known.keep(node, _Inferred(marked, made, on_host, asked))
            return
        self.specs.update(inferred.made)
        if inferred.on_host:
            self.on_host |= inferred.on_host
        if inferred.asked:
            self.asked |= inferred.asked

    def _infer(
        self, node: Node, given: Sequence[Value], specs: Sequence[TensorSpec | None], inferences: Inferences
    ) -> None:
        if given and self.on_host.issuperset(given):
            kept = inferences.find(node, specs, has_content=True)
            if kept is not None and all(spec.value is not None and spec.nbytes <= _CONTENT_NBYTES for spec in kept):
                made = {value: spec for value, spec in zip(node.outputs, kept, strict=False) if value is not None}
                self.specs.update(made)
                self.on_host.update(made)
                return
        made = self._find_outputs(node, specs, inferences)
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

    def _find_outputs(
        self, node: Node, specs: Sequence[TensorSpec | None], inferences: Inferences
    ) -> dict[Value, TensorSpec]:
        """Return the specs of a node's outputs as far as they follow, and note what its shapes ask for."""
        bare = [
            spec if spec is None or spec.value is None or value in self.on_host else TensorSpec(spec.shape, spec.dtype)
            for value, spec in zip(node.inputs, specs, strict=True)
        ]
        for _ in range(len(specs) + 1):
            try:
                made = inferences.infer(node.operator, bare)
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
