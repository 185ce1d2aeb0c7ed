"""Walk of a graph for its partition, which splits nodes into those that run now and those that can't yet.

`gpuexec.planner.partition` has the result's type.

An If whose condition is known gives way to the nodes of the branch it takes. All content that a node needs on the host
is gathered for one wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import numpy as np

from gpuexec.errors import GpuexecError, InputError, NeedsHostValue, PlanError, locate
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.content_key import HOST_VALUE_LIMIT
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.inferences import Inferences
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ir.target import Target
from gpuexec.ops.control.control import LOOPS, If, Loop, inline_branch
from gpuexec.ops.control.trips import check_condition
from gpuexec.planner.analyse import HOST_WORK_LIMIT, ShapeInference
from gpuexec.planner.divide import Sorting, divide
from gpuexec.planner.evaluate import evaluate_node
from gpuexec.planner.host_fallback import explain_call, is_of_host, lacks_kernel
from gpuexec.planner.host_trace import HostTrace
from gpuexec.planner.partition import HostRead, Partition

_INDICES = np.dtype(np.int64)
# Operators whose outputs are never larger than their first input, along any axis.
_SHRINKING = frozenset({"Slice", "TopK"})


def find_partition(
    graph: Graph,
    inputs: Mapping[Value, TensorSpec],
    target: Target,
    *,
    computed: AbstractSet[Value] = frozenset(),
    is_body: bool = False,
    condition: Value | None = None,
    host_work: int = HOST_WORK_LIMIT,
    inferences: Inferences | None = None,
) -> Partition:
    """Cut a graph for inputs of these specs, with content where it is on the host.

    Args:
        graph: Graph to cut.
        inputs: Specs of its inputs.
        target: Target of the ready part.
        computed: Inputs whose content was computed by the run itself. Extents that follow from it change from run to
            run, so what uses them is planned apart, for a size class.
        is_body: The graph is the body of a Loop or Scan, or what is left of it: counters stay on the host, and
            outputs that are inputs are passed on as they are.
        condition: The output of a body that says whether to go on: it is wanted on the host.
        host_work: Bytes that a node may touch to be light; -1: none is.
        inferences: Keeps what is inferred, for those who plan the ready part.

    Raises:
        InputError: The inputs don't fit the graph; names the node.
        PlanError: Nothing can be run next.
    """
    return _Partitioner(
        graph, inputs, target, computed, is_body, condition, host_work, inferences or Inferences()
    ).run()


class _Partitioner:
    """Walk over a graph that splits nodes into those that run now (ready) and those that can't yet (later)."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Value, TensorSpec],
        target: Target,
        computed: AbstractSet[Value],
        is_body: bool,
        condition: Value | None,
        host_work: int,
        inferences: Inferences,
    ) -> None:
        self._graph, self._inputs, self._target = graph, inputs, target
        self._is_body, self._condition = is_body, condition
        self._computed = {value.name for value in computed}
        self._producers = graph.producers()
        constants = {value: inferences.describe(array) for value, array in graph.constants.items()}
        self._inference = ShapeInference(self._producers, constants, inputs, host_work=host_work, inferences=inferences)
        self._specs = self._inference.analysis.specs
        sorting = self._sorting = Sorting([], dict(graph.constants))
        self._trace = HostTrace(self._inference, self._producers, sorting.constants, inputs, sorting.on_host)
        self._branches = _Branches(graph, self._inference, sorting.constants, self._producers)
        self._bounded: set[Value] = set()
        self._reads: dict[Value, HostRead] = {}

    def run(self) -> Partition:
        """Return the partition."""
        waiting = list(reversed(self._graph.nodes))
        is_changed = False
        while waiting:
            node = waiting.pop()
            taken = self._take_branch(node) if isinstance(node.operator, If) else None
            if taken is None:
                if not self._branches.fold(node):
                    self._sorting.nodes.append(node)
                    self._visit(node)
            else:
                waiting.extend(reversed(taken))
                is_changed = True
        if self._is_body:
            self._keep_counters()
        sorting = self._sorting
        sorting.objects.update(value for value, spec in self._specs.items() if is_host_object(spec.dtype))
        passes_on = self._is_body and any(v in sorting.constants or v in self._inputs for v in self._graph.outputs)
        if not (is_changed or self._reads or sorting.later or sorting.on_host or sorting.objects or passes_on):
            return Partition(self._graph, foreseen=self._find_foreseen())
        return self._finish()

    def _take_branch(self, node: Node) -> Sequence[Node] | None:
        """Return the nodes of the branch an If takes, or None while the host does not know."""
        condition = node.inputs[0]
        assert condition is not None
        if condition in self._sorting.later:
            return None
        try:
            return self._branches.take(node, condition)
        except NeedsHostValue:
            self._read(node, condition, "condition")
            return None

    def _visit(self, node: Node) -> None:
        values = [value for value in node.inputs if value is not None]
        late = [value for value in values if value in self._sorting.later]
        if isinstance(node.operator, If):
            self._postpone(node)
        elif isinstance(node.operator, LOOPS):
            self._postpone(node) if late else self._visit_loop(node)
        elif is_of_host(node, self._specs) and all(map(self._is_made_on_host, late)):
            self._call_host(node)
            self._postpone(node)
        elif late:
            self._postpone(node)
        else:
            self._visit_plain(node, values)

    def _visit_plain(self, node: Node, values: Sequence[Value]) -> None:
        known_reads = len(self._inference.analysis.reads)
        try:
            self._inference.visit(node)
        except NeedsHostValue as need:
            for position, role in _list_host_inputs(node, self._specs, need).items():
                value = node.inputs[position]
                assert value is not None
                self._read(node, value, role)
            self._postpone(node)
            return
        made = [value for value in node.outputs if value is not None]
        is_known = all(value in self._inference.analysis.known for value in made)
        if is_of_host(node, self._specs) or (not is_known and lacks_kernel(node, self._specs, self._target)):
            self._call_host(node)
            self._put_off(made)
            return
        self._sorting.ready.add(node)
        news = [read.input for read in list(self._inference.analysis.reads)[known_reads:]]
        if any(name in self._computed for name in news):
            self._sorting.later.update(made)

    def _is_made_on_host(self, value: Value) -> bool:
        return self._producers.get(value) in self._sorting.on_host

    def _call_host(self, node: Node) -> None:
        for value in node.inputs:
            if value is not None:
                self._fetch(node, value, "input of a host call")
        self._sorting.on_host.add(node)
        self._sorting.calls[node] = explain_call(node, self._specs)

    def _visit_loop(self, node: Node) -> None:
        if self._sorting.repeat is None:
            self._sorting.repeat = node
            if isinstance(node.operator, Loop):
                for value, role in zip(node.inputs[:2], ("trip count", "condition"), strict=True):
                    if value is not None:
                        self._fetch(node, value, role)
        self._postpone(node)

    def _postpone(self, node: Node) -> None:
        """Postpone a node; the specs of its outputs may be known already."""
        made = [value for value in node.outputs if value is not None]
        self._put_off(made)
        values = [value for value in node.inputs if value is not None]
        if any(value not in self._specs for value in values):
            return
        inputs = [None if value is None else self._specs[value] for value in node.inputs]
        is_bounded = any(value in self._bounded for value in values)
        try:
            outputs = infer_specs(node.operator, inputs)
        except NeedsHostValue as need:
            bound = _find_bound(node.operator, inputs, need)
            if bound is None:
                return
            outputs, is_bounded = bound, True
        except GpuexecError as error:
            if is_bounded or isinstance(node.operator, (If, *LOOPS)):
                return  # the largest sizes need not fit together, and a loop's extents are known only as it runs
            raise locate(error, node, node.name) from None
        for value, spec in zip(node.outputs, outputs, strict=False):
            if value is not None:
                self._specs[value] = TensorSpec(spec.shape, spec.dtype)
                if is_bounded:
                    self._bounded.add(value)

    def _put_off(self, values: Iterable[Value]) -> None:
        self._sorting.later.update(values)
        self._sorting.unmade.update(values)

    def _read(self, node: Node, value: Value, role: str) -> None:
        """Read the sources of a value's content; the rest computes it while planning."""
        sources, chain = self._trace.find(value)
        self._sorting.light.update(chain)
        self._add_reads(sources, node.name, role)

    def _fetch(self, node: Node, value: Value, role: str) -> None:
        """Read the sources of a value's content, and compute it in this step."""
        sources, chain = self._trace.find(value)
        self._sorting.on_host.update(chain)
        self._add_reads(sources, node.name, role)

    def _add_reads(self, sources: Iterable[Value], reader: str, role: str) -> None:
        for source in sources:
            if not is_host_object(self._specs[source].dtype):
                self._reads.setdefault(source, HostRead(source, reader, role))

    def _keep_counters(self) -> None:
        """Keep a body's condition on the host, and numbers that can be counted along without a read."""
        for value in self._graph.outputs:
            if value in self._sorting.later or value in self._inputs or value in self._sorting.constants:
                continue
            spec = self._specs[value]
            sources, chain = self._trace.find(value)
            if value is self._condition:
                self._sorting.on_host.update(chain)
                self._add_reads(sources, self._producers[value].name, "condition")
            elif not sources and spec.size == 1 and spec.dtype.kind in "iub":
                self._sorting.on_host.update(chain)

    def _find_foreseen(self) -> dict[Value, TensorSpec]:
        rows = {v: self._specs[v] for v in self._graph.outputs if v in self._specs and v not in self._bounded}
        return {value: TensorSpec(spec.shape, spec.dtype) for value, spec in rows.items()}

    def _finish(self) -> Partition:
        sorting, outputs = self._sorting, self._graph.outputs
        sorting.read.update(self._reads)
        known = self._inference.analysis.known
        split = divide(self._graph, sorting, self._producers, known, self._trace, is_body=self._is_body)
        if split.rest is not None and not (split.ready or self._reads or sorting.on_host or sorting.repeat):
            names = ", ".join(map(str, split.rest.nodes[:3]))
            raise PlanError(f"Nothing can be run next: {names} wait for values that none of them makes.")
        return Partition(
            split.ready,
            tuple(self._reads.values()),
            tuple([n for n in sorting.nodes if n in sorting.on_host]),
            sorting.calls,
            sorting.repeat,
            split.rest,
            self._find_foreseen(),
            {v: self._specs[v] for v in outputs if v in self._bounded},
            tuple(self._branches.decided_by),
            self._branches.is_by_shape,
            split.constants,
            tuple(self._branches.taken),
        )


def _find_bound(
    op: Operator, inputs: Sequence[TensorSpec | None], need: NeedsHostValue
) -> tuple[TensorSpec, ...] | None:
    """Return upper bounds of outputs whose shapes depend on content the host does not know; None: there are none."""
    first = inputs[0] if inputs else None
    if op.name not in _SHRINKING or first is None or need.index == 0:
        return None
    largest = TensorSpec(first.shape, first.dtype)
    return (largest, TensorSpec(first.shape, _INDICES)) if op.name == "TopK" else (largest,)


class _Branches:
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


def _list_host_inputs(node: Node, specs: Mapping[Value, TensorSpec], need: NeedsHostValue) -> dict[int, str]:
    """Return the positions of all inputs whose content a node needs, with its purpose.

    An operator asks for one after the other, so it is shown ones in place of content that is not known.

    Args:
        node: Which.
        specs: Of its inputs.
        need: The first content it asked for.
    """
    roles = {need.index: need.role}
    shown: list[TensorSpec | None] = []
    for position, value in enumerate(node.inputs):
        spec = None if value is None else specs[value]
        if spec is not None and spec.value is None and spec.nbytes <= HOST_VALUE_LIMIT:
            spec = spec.with_value(np.ones(spec.shape, spec.dtype), partial(_note_role, roles, position))
        shown.append(spec)
    with contextlib.suppress(GpuexecError):
        infer_specs(node.operator, shown)
    return roles


def _note_role(roles: dict[int, str], position: int, role: str, _minimum: int | None) -> None:
    roles.setdefault(position, role)
