"""Where a graph has to be cut: what can be planned now, and what must reach the host before the rest can be.

    find_cut(graph, inputs, target) -> Cut(ready, reads, host_nodes, repeat, rest)

``ready`` runs on the device. Then the content of ``reads`` is fetched, ``host_nodes`` are computed by NumPy, the loop
``repeat`` is run, and ``rest`` is cut in its turn, with all of that known. A graph that needs nothing of the kind is
ready as it stands. An If whose condition is on the host is replaced by the branch it takes.

Placement is by cost: a light producer of a small value runs on the host, from content read further up; a heavy one
stays on the device and its result is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuexec.apply import infer_specs
from gpuexec.errors import GpuexecError, NeedsHostValue, PlanError, locate
from gpuexec.graph import Array, Graph, Node, Value
from gpuexec.ops.control import If, Loop, Scan, inline_branch
from gpuexec.planner.analyse import HOST_VALUE_LIMIT, Walk, evaluate_node, is_light
from gpuexec.planner.bounds import find_bound
from gpuexec.spec import TensorSpec
from gpuexec.target import Target

# Pads have two entries for each axis, and few tensors more than eight axes.
_MOST_EXTENTS = 16
_Traces = dict[Value, tuple[list[Value], list[Node]]]


@dataclass(frozen=True, slots=True)
class HostRead:
    """Content that the host needs before it can go on: which value, which node asks, and what for."""

    value: Value
    reader: str
    role: str


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """One step through a graph; see the module docstring.

    Attributes:
        ready: What to plan and run now; None where nothing is.
        reads: Content to fetch after that.
        host_nodes: Nodes to compute on the host after that, in order.
        host_calls: Those among them that the device has no kernel for; the others are light.
        repeat: A Loop or Scan to run after that.
        rest: What is left then; None where nothing is.
        foreseen: Specs of the graph's outputs that will not differ, though they may not be made yet.
        bounds: Largest specs of outputs whose extents depend on data, where they are known.
        decided_by: Names of inputs whose content decided which branch is taken.
        is_by_shape: Whether extents decided one, beyond dtypes and ranks.
        constants: Content of constants that host nodes and the loop take, or that a body gives.
    """

    ready: Graph | None
    reads: tuple[HostRead, ...] = ()
    host_nodes: tuple[Node, ...] = ()
    host_calls: frozenset[Node] = frozenset()
    repeat: Node | None = None
    rest: Graph | None = None
    foreseen: Mapping[Value, TensorSpec] | None = None
    bounds: Mapping[Value, TensorSpec] | None = None
    decided_by: tuple[str, ...] = ()
    is_by_shape: bool = False
    constants: Mapping[Value, Array] | None = None


def find_cut(
    graph: Graph,
    inputs: Mapping[Value, TensorSpec],
    target: Target,
    *,
    computed: AbstractSet[Value] = frozenset(),
    is_body: bool = False,
    condition: Value | None = None,
) -> Cut:
    """Cut a graph for inputs of these specs, with content where it is on the host.

    Args:
        graph: What to cut.
        inputs: Specs of its inputs.
        target: What the ready part is planned for.
        computed: Inputs whose content was computed by the run itself. Extents that follow from it change from run to
            run, so what uses them is planned apart, for a size class.
        is_body: The graph is the body of a Loop or Scan, or what is left of it: counters stay on the host, and
            outputs that are inputs are passed on as they are.
        condition: The output of a body that says whether to go on: it is wanted on the host.

    Raises:
        InputError: The inputs don't fit the graph; names the node.
        PlanError: Nothing can be run next.
    """
    return _Cutter(graph, inputs, target, computed, is_body, condition).run()


class _Cutter:
    """Walks the graph once, and keeps apart what runs now (ready) and what can't yet (later)."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[Value, TensorSpec],
        target: Target,
        computed: AbstractSet[Value],
        is_body: bool,
        condition: Value | None,
    ) -> None:
        self._graph, self._inputs, self._target = graph, inputs, target
        self._is_body, self._condition = is_body, condition
        self._computed = {value.name for value in computed}
        self._producers = graph.producers()
        self._constants: dict[Value, Array] = dict(graph.constants)
        constants = {value: TensorSpec.of(array) for value, array in self._constants.items()}
        self._walk = Walk(self._producers, constants, inputs)
        self._specs = self._walk.analysis.specs
        self._nodes: list[Node] = []
        self._inlined: set[Node] = set()
        self._names = {value.name for value in graph.values()}
        self._ready: set[Node] = set()
        # What the rest can't take from this step's plan: values not made yet, or whose extents are news of this run.
        self._later: set[Value] = set()
        self._unmade: set[Value] = set()
        self._bounded: set[Value] = set()
        self._reads: dict[Value, HostRead] = {}
        # Nodes that the host computes: for the step itself, and (light ones on the way to a read) in the rest again.
        self._on_host: set[Node] = set()
        self._calls: set[Node] = set()
        self._light: set[Node] = set()
        self._repeat: Node | None = None
        self._decided_by: dict[str, None] = {}
        self._is_by_shape = False

    def run(self) -> Cut:
        """Return the cut."""
        waiting = list(reversed(self._graph.nodes))
        is_changed = False
        while waiting:
            node = waiting.pop()
            taken = self._take_branch(node) if isinstance(node.operator, If) else None
            if taken is None:
                if not self._fold(node):
                    self._nodes.append(node)
                    self._visit(node)
            else:
                waiting.extend(reversed(taken))
                is_changed = True
        if self._is_body:
            self._keep_counters()
        passes_on = self._is_body and any(v in self._constants or v in self._inputs for v in self._graph.outputs)
        if not (is_changed or self._later or self._on_host or passes_on):
            return Cut(self._graph, foreseen=self._find_foreseen())
        return self._finish()

    # ---- one node

    def _take_branch(self, node: Node) -> Sequence[Node] | None:
        """Return the nodes of the branch an If takes, or None while the host does not know."""
        assert isinstance(node.operator, If)
        condition = node.inputs[0]
        assert condition is not None
        if condition in self._later:
            return None
        try:
            content = self._walk.demand(node, condition, "condition").value
        except NeedsHostValue:
            self._read(node, condition, "condition")
            return None
        assert content is not None
        if condition not in self._constants:
            self._decided_by.update(dict.fromkeys(getattr(content.log, "inputs", ())))
            self._is_by_shape |= content.log is None
        is_true = bool(content.array.reshape(-1)[0])
        nodes, constants = inline_branch(
            node, node.operator.then_branch if is_true else node.operator.else_branch, self._names
        )
        self._constants.update(constants)
        self._names.update(v.name for n in nodes for v in n.outputs if v is not None)
        self._names.update(value.name for value in constants)
        self._specs.update({value: TensorSpec.of(array) for value, array in constants.items()})
        self._inlined.update(nodes)
        for each in nodes:
            self._producers.update({value: each for value in each.outputs if value is not None})
        return nodes

    def _fold(self, node: Node) -> bool:
        """Compute a node of a branch that follows from constants alone, now that they are there."""
        if (
            node not in self._inlined
            or not node.inputs
            or not all(v is None or v in self._constants for v in node.inputs)
        ):
            return False
        if isinstance(node.operator, (If, Loop, Scan)) or node.operator.uses_all_cores:
            return False
        specs = evaluate_node(node, [None if v is None else self._specs[v] for v in node.inputs])
        for value, spec in zip(node.outputs, specs, strict=False):
            if value is not None and spec is not None and spec.value is not None:
                self._constants[value] = spec.value.array
                self._specs[value] = spec
        return all(value is None or value in self._constants for value in node.outputs)

    def _visit(self, node: Node) -> None:
        values = [value for value in node.inputs if value is not None]
        if any(value in self._later for value in values) or isinstance(node.operator, If):
            self._postpone(node)
        elif isinstance(node.operator, (Loop, Scan)):
            self._visit_loop(node)
        else:
            self._visit_plain(node, values)

    def _visit_plain(self, node: Node, values: Sequence[Value]) -> None:
        known_reads = len(self._walk.analysis.reads)
        try:
            self._walk.visit(node)
        except NeedsHostValue as need:
            for position, role in self._list_needs(node, need).items():
                value = node.inputs[position]
                assert value is not None
                self._read(node, value, role)
            self._postpone(node)
            return
        made = [value for value in node.outputs if value is not None]
        is_known = all(value in self._walk.analysis.known for value in made)
        if self._target.has_kernels and node.operator.lower is None and not is_known:
            for value in values:
                self._fetch(node, value, "input of a host call")
            self._on_host.add(node)
            self._calls.add(node)
            self._put_off(made)
            return
        self._ready.add(node)
        news = [read.input for read in list(self._walk.analysis.reads)[known_reads:]]
        if any(name in self._computed for name in news):
            self._later.update(made)

    def _visit_loop(self, node: Node) -> None:
        if self._repeat is None:
            self._repeat = node
            if isinstance(node.operator, Loop):
                for value, role in zip(node.inputs[:2], ("trip count", "condition"), strict=True):
                    if value is not None:
                        self._fetch(node, value, role)
        self._postpone(node)

    def _postpone(self, node: Node) -> None:
        """Leave a node for later; what its outputs will be like may be known already."""
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
            bound = find_bound(node.operator, inputs, need)
            if bound is None:
                return
            outputs, is_bounded = bound, True
        except GpuexecError as error:
            if is_bounded or isinstance(node.operator, (If, Loop, Scan)):
                return  # the largest sizes need not fit together, and a loop tells its extents as it runs
            raise locate(error, node, node.name) from None
        for value, spec in zip(node.outputs, outputs, strict=False):
            if value is not None:
                self._specs[value] = TensorSpec(spec.shape, spec.dtype)
                if is_bounded:
                    self._bounded.add(value)

    def _put_off(self, values: Iterable[Value]) -> None:
        self._later.update(values)
        self._unmade.update(values)

    # ---- content for the host

    def _list_needs(self, node: Node, need: NeedsHostValue) -> dict[int, str]:
        """Return the positions of all inputs whose content a node asks for, with what for: one wait serves them all.

        An operator asks for one after the other, so it is shown ones in place of content that is not known.
        """
        asked = {need.index: need.role}
        shown: list[TensorSpec | None] = []
        for position, value in enumerate(node.inputs):
            spec = None if value is None else self._specs[value]
            if spec is not None and spec.value is None and spec.nbytes <= HOST_VALUE_LIMIT:
                spec = spec.with_value(np.ones(spec.shape, spec.dtype), partial(_note_role, asked, position))
            shown.append(spec)
        with contextlib.suppress(GpuexecError):
            infer_specs(node.operator, shown)
        return asked

    def _read(self, node: Node, value: Value, role: str) -> None:
        """Fetch what the content of a value follows from; the rest computes it while planning."""
        sources, chain = self._trace(value)
        self._light.update(chain)
        for source in sources:
            self._reads.setdefault(source, HostRead(source, node.name, role))

    def _fetch(self, node: Node, value: Value, role: str) -> None:
        """Fetch what the content of a value follows from, and compute it in this step."""
        sources, chain = self._trace(value)
        self._on_host.update(chain)
        for source in sources:
            self._reads.setdefault(source, HostRead(source, node.name, role))

    def _trace(self, value: Value, traced: _Traces | None = None) -> tuple[list[Value], list[Node]]:
        """Return values to read, and light nodes that the host computes from them, so that it knows a value.

        ``traced`` remembers what was found for the values on the way, which may be met many times.
        """
        traced = {} if traced is None else traced
        stack = [value]
        while stack:
            before = self._list_before(stack[-1])
            missing = [each for each in before if each not in traced]
            if missing:
                stack += missing
            else:
                each = stack.pop()
                traced[each] = self._trace_one(each, before, traced)
        return traced[value]

    def _list_before(self, value: Value) -> list[Value]:
        """Return the values that the host would compute a value from; none where it would not, or has it."""
        node = self._producers.get(value)
        if value in self._constants or value in self._inputs or node is None:
            return []
        if value in self._walk.analysis.known:
            return [v for v in node.inputs if v is not None and v in self._walk.analysis.known]
        return [] if node in self._on_host or self._is_much(node) else [v for v in node.inputs if v is not None]

    def _trace_one(self, value: Value, before: Sequence[Value], traced: _Traces) -> tuple[list[Value], list[Node]]:
        if value in self._constants:
            return [], []
        given = self._inputs.get(value)
        if given is not None:
            return ([] if given.value is not None else [value]), []
        node = self._producers[value]
        if node in self._on_host and value not in self._walk.analysis.known:
            return [], []
        sources = dict.fromkeys(source for each in before for source in traced[each][0])
        chain = dict.fromkeys(link for each in before for link in traced[each][1])
        if value not in self._walk.analysis.known and (
            self._is_much(node) or sum(map(self._nbytes, sources)) > HOST_VALUE_LIMIT
        ):
            return [value], []
        return list(sources), [*chain, node]

    def _is_much(self, node: Node) -> bool:
        """Return whether a node is too much work for the host, or its content too large."""
        values = [v for v in node.inputs if v in self._inputs] + [v for v in node.outputs if v is not None]
        return any(v and self._nbytes(v) > HOST_VALUE_LIMIT for v in values) or not is_light(node, self._specs)

    def _is_extents(self, value: Value, traced: _Traces) -> bool:
        """Return whether a value may be meant for the host, which can compute it without a read."""
        is_small = value in self._specs and self._specs[value].size <= _MOST_EXTENTS
        return is_small and value not in self._later and not self._trace(value, traced)[0]

    def _nbytes(self, value: Value) -> int:
        return self._specs[value].nbytes

    def _keep_counters(self) -> None:
        """Keep on the host what it needs of a body: the condition, and numbers it can count along without reading."""
        for value in self._graph.outputs:
            if value in self._later or value in self._inputs or value in self._constants:
                continue
            spec = self._specs[value]
            sources, chain = self._trace(value)
            if value is self._condition:
                self._on_host.update(chain)
                for source in sources:
                    self._reads.setdefault(source, HostRead(source, self._producers[value].name, "condition"))
            elif not sources and spec.size == 1 and spec.dtype.kind in "iub":
                self._on_host.update(chain)

    # ---- the parts

    def _find_foreseen(self) -> dict[Value, TensorSpec]:
        rows = {v: self._specs[v] for v in self._graph.outputs if v in self._specs and v not in self._bounded}
        return {value: TensorSpec(spec.shape, spec.dtype) for value, spec in rows.items()}

    def _finish(self) -> Cut:
        outputs = self._graph.outputs
        passed = {*self._inputs, *self._constants} if self._is_body else set()
        host_made = {v for node in self._on_host for v in node.outputs if v is not None}
        repeat_made = set(self._repeat.outputs) if self._repeat is not None else set()
        rest_outputs = [v for v in outputs if v in self._unmade]
        if self._is_body:
            rest_outputs = [v for v in rest_outputs if v not in host_made and v not in repeat_made]
        rest_nodes, rest_inputs = self._find_rest(rest_outputs, host_made)
        wanted = dict.fromkeys(rest_inputs)
        wanted.update(dict.fromkeys(self._reads))
        for node in (*self._on_host, *((self._repeat,) if self._repeat is not None else ())):
            wanted.update((v, None) for v in node.inputs if v is not None)
        made = {v for node in self._ready for v in node.outputs if v is not None}
        is_kept = [v for v in wanted if v in made and v not in host_made]
        given = [v for v in outputs if v not in self._unmade and v not in passed and v not in host_made]
        if not self._is_body:
            given += [v for v in outputs if v in host_made and v not in self._unmade]
        ready_outputs = tuple(dict.fromkeys([*given, *is_kept]))
        ready_nodes = _lead_to([n for n in self._nodes if n in self._ready], ready_outputs)
        ready = self._make_graph(ready_nodes, ready_outputs) if ready_outputs else None
        has_rest = bool(rest_nodes or rest_outputs)
        rest = self._make_graph(rest_nodes, tuple(rest_outputs)) if has_rest else None
        if ready is None and not (self._reads or self._on_host or self._repeat) and has_rest:
            names = ", ".join(map(str, rest_nodes[:3]))
            raise PlanError(f"Nothing can be run next: {names} wait for what none of them makes.")
        bounds = {v: self._specs[v] for v in outputs if v in self._bounded}
        return Cut(
            ready,
            tuple(self._reads.values()),
            tuple([n for n in self._nodes if n in self._on_host]),
            frozenset(self._calls),
            self._repeat,
            rest,
            self._find_foreseen(),
            bounds,
            tuple(self._decided_by),
            self._is_by_shape,
            {v: self._constants[v] for v in (*wanted, *outputs) if v in self._constants},
        )

    def _find_rest(self, outputs: Sequence[Value], host_made: AbstractSet[Value]) -> tuple[list[Node], list[Value]]:
        """Return the nodes left for the outputs still to be made, and the values they take from this step.

        What follows from shapes, and what the host computes from content that is read, is computed anew there.
        """
        done = self._on_host | ({self._repeat} if self._repeat is not None else set())
        chosen: set[Node] = set()
        taken: dict[Value, None] = {}
        traced: _Traces = {}
        stack = list(outputs)
        while stack:
            value = stack.pop()
            node = self._producers.get(value)
            if value in self._constants:
                continue
            again = node is not None and (
                node in self._light or value in self._walk.analysis.known or self._is_extents(value, traced)
            )
            if node is None or node in done or (node in self._ready and not again):
                taken[value] = None
            elif node not in chosen:
                chosen.add(node)
                stack += [v for v in node.inputs if v is not None]
        return [node for node in self._nodes if node in chosen], list(taken)

    def _make_graph(self, nodes: Sequence[Node], outputs: tuple[Value, ...]) -> Graph:
        made = {value for node in nodes for value in node.outputs}
        used = dict.fromkeys([v for node in nodes for v in node.inputs if v is not None] + list(outputs))
        constants = {value: self._constants[value] for value in used if value in self._constants}
        inputs = tuple([value for value in used if value not in made and value not in constants])
        return Graph(inputs, outputs, tuple(nodes), constants, self._graph.name)


def _note_role(asked: dict[int, str], position: int, role: str) -> None:
    asked.setdefault(position, role)


def _lead_to(nodes: Sequence[Node], outputs: Iterable[Value]) -> list[Node]:
    """Return the nodes that these outputs follow from."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(value in wanted for value in node.outputs):
            kept.append(node)
            wanted.update(value for value in node.inputs if value is not None)
    return kept[::-1]
