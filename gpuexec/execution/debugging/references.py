"""Reference results for layers: by NumPy, another engine, or another model.

Each reference computes two things: a whole run of its own on the same inputs (so that errors accumulate), and one node
on given inputs (so that they don't).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.errors import GpuexecError
from gpuexec.execution.debugging.observing import observe
from gpuexec.importer.export import choose_opset, to_model
from gpuexec.importer.oracle import run_oracle
from gpuexec.ir.apply import compute_arrays
from gpuexec.ir.graphs import Graph, Node, Value, walk
from gpuexec.ir.precision import OVERFLOWING, STRICT, Precision
from gpuexec.ir.spec import DeclaredSpec
from gpuexec.model.model import Model, choose_precision

Array = np.ndarray[Any, Any]
Arrays = Mapping[Value, Array]
# Every value made under a name, in order: a loop's body makes its values in every trip.
History = Mapping[str, Sequence[Array]]


class Reference(Protocol):
    """Protocol of a source of expected results.

    Attributes:
        name: For people.
    """

    name: str

    def run(self, inputs: Mapping[str, Array]) -> History:
        """Return the values of a run of the reference."""

    def compute(self, node: Node, arrays: Arrays) -> Sequence[Array | None] | None:
        """Return a node's expected outputs for given inputs; None where the reference can't compute it."""


class NumpyReference:
    """The operators' own NumPy forms; a run uses the CPU backend."""

    def __init__(self, model: Model, cpu: Backend) -> None:
        self.name = "NumPy"
        self._model, self._cpu = model, cpu

    def run(self, inputs: Mapping[str, Array]) -> History:
        """Run on the CPU."""
        return keep_all(self._model, inputs, self._cpu)

    def compute(self, node: Node, arrays: Arrays) -> Sequence[Array | None] | None:
        """Compute."""
        return compute_arrays(node.operator, [None if value is None else arrays[value] for value in node.inputs])


class EngineReference:
    """Another engine, given the graph as it was read, before any pass, and single nodes as models of their own."""

    def __init__(self, graph: Graph, engine: str) -> None:
        self.name = engine
        self._graph, self._engine = graph, engine

    def run(self, inputs: Mapping[str, Array]) -> History:
        """Run with all values of the outer graph as outputs."""
        graph = self._graph
        made = [value for node in graph.nodes for value in node.outputs if value is not None]
        whole = replace(graph, outputs=tuple(dict.fromkeys([*graph.outputs, *made])))
        _, arrays = run_oracle(to_model(whole, choose_opset(whole)), inputs, self._engine)
        return {name: [array] for name, array in arrays.items()}

    def compute(self, node: Node, arrays: Arrays) -> Sequence[Array | None] | None:
        """Run a model of the one node; None where the engine does not know the operator."""
        taken = {value: arrays[value] for value in node.inputs if value is not None}
        declared = {
            value: Value(f"i{i}", DeclaredSpec(array.dtype, array.shape))
            for i, (value, array) in enumerate(taken.items())
        }
        outputs = tuple([None if value is None else Value(f"o{i}") for i, value in enumerate(node.outputs)])
        inputs = tuple([None if value is None else declared[value] for value in node.inputs])
        single = Graph(
            tuple(declared.values()),
            tuple([value for value in outputs if value is not None]),
            (Node(node.operator, inputs, outputs, node.name),),
            {},
            "layer",
        )
        feeds = {declared[value].name: array for value, array in taken.items()}
        try:
            _, found = run_oracle(to_model(single, choose_opset(single)), feeds, self._engine)
        except GpuexecError:
            return None
        return [None if value is None else found[value.name] for value in outputs]


class ModelReference:
    """Another model with values of the same names: one with other weights, passes or types."""

    def __init__(self, model: Model, backend: Backend) -> None:
        self.name = f"model {model.graph.name!r}"
        self._model, self._backend = model, backend
        self._nodes = {
            value.name: (node, graph.constants)
            for graph in walk(model.graph)
            for node in graph.nodes
            for value in node.outputs
            if value is not None
        }

    def run(self, inputs: Mapping[str, Array]) -> History:
        """Run it."""
        return keep_all(self._model, inputs, self._backend)

    def compute(self, node: Node, arrays: Arrays) -> Sequence[Array | None] | None:
        """Compute the other model's node by NumPy, with its weights; None where it has none, or other inputs."""
        first = next((value.name for value in node.outputs if value is not None), "")
        if first not in self._nodes:
            return None
        other, constants = self._nodes[first]
        by_name = {value.name: array for value, array in arrays.items()}
        taken: list[Array | None] = []
        for value in other.inputs:
            array = None if value is None else constants.get(value, by_name.get(value.name))
            if value is not None and array is None:
                return None
            taken.append(array)
        made = compute_arrays(other.operator, taken)
        places = {value.name: array for value, array in zip(other.outputs, made, strict=False) if value is not None}
        return [None if value is None else places.get(value.name) for value in node.outputs]


class FloatReference(ModelReference):
    """The same model with products and convolutions in float, of one in a lower precision.

    A layer's inputs are those that the other side has before it rounds them: views, which it rounds in front of, are
    shown again.
    """

    def __init__(self, model: Model, backend: Backend) -> None:
        super().__init__(choose_precision(model, STRICT), backend)
        self.name = f"{STRICT} precision"

    def is_layer(self, node: Node) -> bool:
        """Return whether the model has a node, and it computes: roundings it has not, and views only show."""
        return not node.operator.makes_views and any(
            value is not None and value.name in self._nodes for value in node.outputs
        )

    def compute(self, node: Node, arrays: Arrays) -> Sequence[Array | None] | None:
        """Compute the node in float by NumPy; None where its inputs are not known."""
        by_name = {value.name: array for value, array in arrays.items()}
        found = next((self._nodes[value.name] for value in node.outputs if value is not None), None)
        return None if found is None else self._compute(*found, by_name)

    def find_overflows(self, precision: Precision, inputs: Mapping[str, Array], made: History) -> frozenset[str]:
        """Return the names of nodes that a precision rounds operands of which exceed its range.

        Args:
            precision: The precision of the other side.
            inputs: Of a run of this side, by name.
            made: Its values.
        """
        if precision.name != OVERFLOWING:
            return frozenset()
        found = set()
        for node, constants in self._nodes.values():
            if precision.keeps(node.name):
                continue
            for place in node.operator.multiplied or node.operator.rounded:
                value = node.inputs[place] if place < len(node.inputs) else None
                if value is None:
                    continue
                known = [constants[value]] if value in constants else made.get(value.name, [inputs.get(value.name)])
                if any(array is not None and _overflows(array) for array in known):
                    found.add(node.name)
        return frozenset(found)

    def _compute(self, node: Node, constants: Arrays, by_name: Mapping[str, Array]) -> Sequence[Array | None] | None:
        taken: list[Array | None] = []
        for value in node.inputs:
            array = None if value is None else self._find(value, constants, by_name)
            if value is not None and array is None:
                return None
            taken.append(array)
        return compute_arrays(node.operator, taken)

    def _find(self, value: Value, constants: Arrays, by_name: Mapping[str, Array]) -> Array | None:
        """Return the content of a value, that of a view from what it shows."""
        if value in constants:
            return constants[value]
        found = self._nodes.get(value.name)
        if found is None or not found[0].operator.makes_views:
            return by_name.get(value.name)
        made = self._compute(*found, by_name)
        return None if made is None else made[found[0].outputs.index(value)]


def _overflows(array: Array) -> bool:
    """Return whether fp16 has an infinity for a finite number of an array of floats."""
    if array.dtype != np.float32:
        return False
    with np.errstate(all="ignore"):
        return bool(np.any(np.isinf(array.astype(np.float16)) & np.isfinite(array)))


def keep_all(model: Model, inputs: Mapping[str, Array], backend: Backend) -> History:
    """Run a model and return all values of its nodes, on the host."""
    kept: dict[str, list[Array]] = defaultdict(list)

    def keep(node: Node, arrays: Arrays) -> None:
        for value in node.outputs:
            if value is not None:
                kept[value.name].append(arrays[value].copy())

    for name, array in observe(model, inputs, backend, keep).items():
        kept.setdefault(name, [array])
    return kept
