"""Shape inference over a graph, with the values that the host can compute.

Values are propagated, not only shapes: what follows from shapes and constants alone (Shape, arithmetic on it) is
computed here and its nodes never run. The content of an input is looked at only on demand, when a shape can't be known
without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, InputError, NeedsHostValue, PlanError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.content_key import HOST_VALUE_LIMIT, are_same, content_key
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.inferences import Inferences, is_logged
from gpuexec.ir.plan import KeptOnHost, Read
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ir.symbolic_int import MemoTable, SymbolicInt, SymbolicTrace, UntraceableError
from gpuexec.planner.evaluate import compute_node, frozen

Array = np.ndarray[Any, Any]
Specs = tuple[TensorSpec | None, ...]
# By node: the specs of its inputs and outputs.
_Inferred = list[tuple[Specs, tuple[TensorSpec, ...]] | None]
# Bytes that the host touches in the time of one read from a device (about 20 us: copy, event, waking up).
HOST_WORK_LIMIT = 1 << 16


@dataclass(slots=True)
class Analysis:
    """Specs by value (with content where known), and the reads of content that they needed.

    ``known`` are the values whose content follows from shapes and constants. Content that was asked for stands in
    ``specs`` too, but belongs to one run: its nodes still run where a command wants it. ``reader`` is the node at work,
    that reads are attributed to.
    """

    specs: dict[Value, TensorSpec]
    known: AbstractSet[Value] = frozenset()
    reads: dict[Read, None] = field(default_factory=dict)
    reader: str = ""


class SizedContentError(UntraceableError):
    """Content that is known on the host has as many elements as symbolic extents say, so that no list can hold it.

    Attributes:
        values: Names of the values.
    """

    def __init__(self, values: frozenset[str]) -> None:
        super().__init__(f"content on the host grows with the sizes: {', '.join(sorted(values))}")
        self.values = values


class Analyser:
    """Repeated shape inference of one graph; nodes whose inputs did not change are not inferred anew.

    The first call, for the upper end of a size class, decides which values are known on the host; later ones keep to
    it.

    Args:
        graph: What is analysed.
        unknown: Names of values whose content is left to the device, though the host could know it.
        inferences: What is known already, for the first call; None: nothing.
    """

    def __init__(
        self, graph: Graph, unknown: AbstractSet[str] = frozenset(), inferences: Inferences | None = None
    ) -> None:
        self._graph = graph
        self._inferences = inferences or Inferences()
        made = [value for node in graph.nodes for value in node.outputs if value is not None]
        self._knowable = frozenset([value for value in made if value.name not in unknown]) if unknown else None
        self._producers = graph.producers()
        self._constants = {value: self._inferences.describe(array) for value, array in graph.constants.items()}
        self._last: _Inferred = [None] * len(graph.nodes)
        self._known: frozenset[Value] | None = None

    def run(self, inputs: Mapping[str, TensorSpec], *, is_symbolic: bool = False) -> Analysis:
        """Return specs and host values for inputs of these specs (with content where it is on the host).

        Args:
            inputs: Specs by name.
            is_symbolic: Whether extents are symbolic: the last analysis is not compared with, nor this one kept.

        Raises:
            InputError: The inputs don't fit the graph; the message names the node.
            NeedsHostValue: A shape depends on content that is not on the host.
            PlanError: What is known at the upper end is not known at this size.
        """
        given = {value: inputs[value.name] for value in self._graph.inputs}
        last: _Inferred = [None] * len(self._last) if is_symbolic else self._last
        knowable = self._knowable if self._known is None else self._known
        inferences = None if is_symbolic else self._inferences
        analysis = ShapeInference(self._producers, self._constants, given, knowable, inferences=inferences).run(
            self._graph.nodes, last
        )
        self._inferences = Inferences()
        if self._known is None:
            self._known = frozenset(analysis.known)
        elif not self._known <= analysis.known:
            if is_symbolic:
                raise SizedContentError(frozenset([value.name for value in self._known - analysis.known]))
            names = ", ".join(sorted(value.name for value in self._known - analysis.known))
            raise PlanError(f"The content of {names} is known on the host at the upper end, and not at this size.")
        analysis.known = self._known
        return analysis


def find_growing_content(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    axes: Mapping[tuple[str, int], str],
    inferences: Inferences | None = None,
) -> frozenset[str]:
    """Return the names of values that the host could know, whose elements are more where extents are.

    Args:
        graph: What is planned.
        inputs: Specs by name, of any size.
        axes: Axes (input, axis) whose extent may change, with the name of the dimension (empty: nameless).
        inferences: What is known already of the graph.
    """
    trace = SymbolicTrace()
    extents: dict[tuple[str, int], Any] = {}
    named: dict[str, Any] = {}
    for (name, axis), dim in axes.items():
        if axis < inputs[name].rank:
            made = named.get(dim) or trace.variable(inputs[name].shape[axis])
            extents[name, axis] = named.setdefault(dim, made) if dim else made
    given = {name: put_symbols(name, spec, extents) for name, spec in inputs.items()}
    try:
        known = Analyser(graph, inferences=inferences).run(inputs).known
        carried = Analyser(graph).run(given, is_symbolic=True).known
    except (GpuexecError, UntraceableError):
        return frozenset()  # it comes up again when it is planned
    return frozenset([value.name for value in known - carried])


def put_symbols(name: str, spec: TensorSpec, extents: Mapping[tuple[str, int], int]) -> TensorSpec:
    """Return the spec of an input with other, symbolic extents on some axes; content stays where there are none."""
    if not any((name, axis) in extents for axis in range(spec.rank)):
        return spec
    return spec.with_shape(tuple([extents.get((name, axis), extent) for axis, extent in enumerate(spec.shape)]))


class ShapeInference:
    """One pass over the nodes of a graph.

    Args:
        producers: The node that makes each value.
        constants: Specs of constants, with their content.
        inputs: Specs of the graph's inputs, with content where it is on the host.
        knowable: Values whose content may be propagated; None: all.
        host_work: Bytes that a node may touch to be computed on the host for its content.
        inferences: What is known already of specs without symbolic extents; None: nothing, and extents may be symbolic.
    """

    def __init__(
        self,
        producers: Mapping[Value, Node],
        constants: Mapping[Value, TensorSpec],
        inputs: Mapping[Value, TensorSpec],
        knowable: frozenset[Value] | None = None,
        host_work: int = HOST_WORK_LIMIT,
        inferences: Inferences | None = None,
    ) -> None:
        self._inferences = inferences
        self._producers, self._knowable, self._host_work = producers, knowable, host_work
        # Content of inputs is used only on demand.
        self._inputs = inputs
        specs = dict(constants)
        specs.update({value: TensorSpec(spec.shape, spec.dtype) for value, spec in inputs.items()})
        self.analysis = Analysis(specs)
        self._known: set[Value] = set()
        self.analysis.known = self._known
        # Demanded values; values in between may be visited many times.
        self._demanded: dict[Value, TensorSpec] = {}
        # Layers repeat: equal operators on equal specs are inferred once.
        self._seen: MemoTable[Hashable, tuple[TensorSpec, ...]] = (
            MemoTable() if inferences is None else inferences.alike
        )

    def run(self, nodes: Sequence[Node], last: _Inferred) -> Analysis:
        """Infer every node in order; those with the inputs of the ``last`` analysis are not inferred anew."""
        specs = self.analysis.specs
        for position, node in enumerate(nodes):
            inputs: Specs = tuple([None if value is None else specs[value] for value in node.inputs])
            before = last[position]
            # Nodes that read content are inferred anew, since their reads are logged once more.
            if before is not None and are_same(before[0], inputs) and not any(map(is_logged, inputs)):
                self._note(node, before[1])
            else:
                last[position] = self.visit(node)
        return self.analysis

    def visit(self, node: Node) -> tuple[Specs, tuple[TensorSpec, ...]]:
        """Infer one node; return the specs of its inputs, with the content that was demanded, and of its outputs.

        Raises:
            InputError: The inputs don't fit; the message names the node.
            NeedsHostValue: A shape depends on content that is not on the host; names the value.
        """
        specs = self.analysis.specs
        self.analysis.reader = node.name
        inputs, outputs = self._find_outputs(
            node, tuple([None if value is None else specs[value] for value in node.inputs])
        )
        self._note(node, outputs)
        return inputs, outputs

    def demand(self, reader: Node, value: Value, role: str) -> TensorSpec:
        """Return the spec of a value with its content, computed on the host from inputs whose content is there.

        Raises:
            NeedsHostValue: It follows from content that lies on a device, or is too much work for the host.
        """
        stack = [value]
        while stack:
            each = stack[-1]
            missing = [before for before in self._list_before(reader, each, role) if not self._has_content(before)]
            stack += missing
            if not missing:
                self._demanded[stack.pop()] = self._compute_content(each)
        return self._demanded[value]

    def is_light(self, node: Node) -> bool:
        """Return whether the host computes a node sooner than it could read the result from a device."""
        specs = self.analysis.specs
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        touched = sum(specs[value].nbytes for value in values if value in specs)
        return not node.operator.uses_all_cores and touched <= self._host_work

    def _has_content(self, value: Value) -> bool:
        return value in self._demanded or self.analysis.specs[value].value is not None

    def _list_before(self, reader: Node, value: Value, role: str) -> list[Value]:
        """Return the values to compute the content of a value from; none where it is there.

        Raises:
            NeedsHostValue: It lies on a device, or is too much work for the host.
        """
        given = self._inputs.get(value)
        if self._has_content(value) or (given is not None and given.value is not None):
            return []
        if given is not None:
            raise _needs(reader, value, role, "given")
        node = self._producers[value]
        if not self.is_light(node) or any(map(self._is_large_input, node.inputs)):
            raise _needs(reader, value, role, "computed")
        return [item for item in node.inputs if item is not None]

    def _compute_content(self, value: Value) -> TensorSpec:
        """Return the spec of a value with its content, those before it having theirs."""
        spec, given = self.analysis.specs[value], self._inputs.get(value)
        if self._has_content(value):
            return self._demanded.get(value, spec)
        if given is not None and given.value is not None:
            # Plans keep this content, and the caller may write to the array.
            content = given.value.array if is_host_object(spec.dtype) else frozen(given.value.array.copy())
            return spec.with_value(content, _Log(self.analysis, (value.name,), is_input=True))
        node = self._producers[value]
        specs = [None if v is None else self._demanded.get(v, self.analysis.specs[v]) for v in node.inputs]
        logs = [s.value.log for s in specs if s is not None and s.value is not None]
        names = dict.fromkeys(name for log in logs if isinstance(log, _Log) for name in log.inputs)
        array = compute_node(node, specs)[node.outputs.index(value)]
        assert array is not None
        return spec.with_value(frozen(array), _Log(self.analysis, tuple(names)) if names else None)

    def _is_large_input(self, value: Value | None) -> bool:
        """Return whether a value is an input whose content is too large for a plan's key."""
        return value is not None and value in self._inputs and self.analysis.specs[value].nbytes > HOST_VALUE_LIMIT

    def _note(self, node: Node, outputs: tuple[TensorSpec, ...]) -> None:
        if any(node.outputs[len(outputs) :]):
            got = f"got {len(node.outputs)}"
            raise InputError(f"{node}: expected at most {len(outputs)} outputs of such inputs, {got}.", node=node.name)
        for value, spec in zip(node.outputs, outputs, strict=False):
            if value is not None:
                self.analysis.specs[value] = spec
                if spec.value is not None:
                    self._known.add(value)

    def _find_outputs(self, node: Node, inputs: Specs) -> tuple[Specs, tuple[TensorSpec, ...]]:
        """Return the outputs' specs with known content, and the inputs' with demanded content."""
        may_know = self._knowable is None or self._knowable.issuperset([v for v in node.outputs if v is not None])
        kept = None if self._inferences is None else self._inferences.find(node, inputs, has_content=may_know)
        if kept is not None:
            return inputs, kept
        key = None if any(map(is_logged, inputs)) else (node.operator, may_know, content_key(inputs))
        outputs = None if key is None else self._seen.get(key)
        if outputs is None:
            given = inputs
            inputs, outputs = self._infer(node, inputs)
            if may_know:
                outputs = self._propagate(node, inputs, outputs)
            if key is None or inputs is not given:
                return inputs, outputs
            self._seen.keep(key, outputs)
        if self._inferences is not None:
            self._inferences.keep(node, inputs, outputs, has_content=may_know)
        return inputs, outputs

    def _infer(self, node: Node, inputs: Specs) -> tuple[Specs, tuple[TensorSpec, ...]]:
        """Return the outputs' specs, and the inputs' with the content that was demanded for them."""
        for _ in range(len(inputs) + 1):
            try:
                infer = infer_specs if self._inferences is None else self._inferences.infer
                return inputs, infer(node.operator, inputs)
            except NeedsHostValue as need:
                value = node.inputs[need.index] if 0 <= need.index < len(node.inputs) else None
                if value is None:
                    raise InputError(f"{node}: {need}", node=node.name) from need
                try:
                    self.analysis.specs[value] = self.demand(node, value, need.role)
                except NeedsHostValue as deeper:
                    deeper.index = need.index
                    raise
                inputs = tuple([None if item is None else self.analysis.specs[item] for item in node.inputs])
            except InputError as error:
                names = ", ".join("-" if v is None else f"{v}: {s}" for v, s in zip(node.inputs, inputs, strict=True))
                raise InputError(f"{node} ({names}): {error}", node=node.name, value=error.value) from error
        raise AssertionError(f"{node} asks for the same host value twice")

    def _propagate(self, node: Node, inputs: Specs, outputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Add content to the outputs where all inputs' content follows from shapes and constants, and is small."""
        if not inputs or not node.operator.is_foldable or all(spec.value is not None for spec in outputs):
            return outputs
        for spec in inputs:
            if spec is not None and (
                spec.value is None or spec.value.log is not None or spec.nbytes > HOST_VALUE_LIMIT
            ):
                return outputs
        if any(isinstance(extent, SymbolicInt) for spec in outputs for extent in spec.shape):
            return outputs
        if any(spec.nbytes > HOST_VALUE_LIMIT for spec in outputs):
            return outputs
        return tuple(
            spec if array is None or spec.value is not None else spec.with_value(frozen(array))
            for spec, array in zip(outputs, compute_node(node, inputs), strict=True)
        )


def _needs(reader: Node, value: Value, role: str, origin: str) -> NeedsHostValue:
    return NeedsHostValue(
        f"{reader} needs the content of {value} on the host ({role}), which is {origin} on a device.",
        index=-1,
        role=role,
        node=reader.name,
        value=value.name,
    )


@dataclass(frozen=True, slots=True)
class _Log:
    """Log of reads of content, by the graph inputs it comes from."""

    analysis: Analysis
    inputs: tuple[str, ...]
    is_input: bool = False

    def __call__(self, role: str, minimum: int | None) -> None:
        for name in self.inputs:
            self.analysis.reads[Read(name, self.analysis.reader, role, minimum if self.is_input else None)] = None


def list_kept(graph: Graph, analysis: Analysis) -> tuple[KeptOnHost, ...]:
    """Return the host values that running nodes take, each with the node and the reason."""
    kept: dict[KeptOnHost, None] = {}
    for node in graph.nodes:
        if all(value is None or value in analysis.known for value in node.outputs):
            continue
        for value in node.inputs:
            spec = None if value is None or value in graph.constants else analysis.specs[value]
            if value is not None and spec is not None and spec.value is not None:
                why = "given on the host" if spec.value.log is not None else "follows from shapes"
                kept[KeptOnHost(value.name, node.name, why, spec.nbytes)] = None
    return tuple(kept)
