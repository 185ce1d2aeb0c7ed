"""Rehearsal of a method without its device: finds the kernels of every subgraph.

A run plans a subgraph when it gets there, since its plan depends on content. Here NumPy computes what the device
would, the partitions and plans are those of a run, and nothing is recorded (`gpuexec.program.dry_run`). The choice of
most kernels depends on dtypes, ranks and attributes alone, so one dry run tells those of all sizes; kernels that are
chosen by extents are those of the size classes that the cases fall in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend, BackendType
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.errors import GpuexecError, UnsupportedError
from gpuexec.execution.resources.memory import Arena
from gpuexec.execution.resources.weights import Weights
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.subgraph import Subgraph
from gpuexec.ir.command import Kernel
from gpuexec.ir.containers import make_blank
from gpuexec.ir.graphs import Array, Graph, Node, Value, bodies, take_free, with_bodies
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ir.target import Target
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.ops.control.control import If
from gpuexec.passes import GENERATING
from gpuexec.planner.analyse import HOST_WORK_LIMIT
from gpuexec.program.dry_run import DryRun, Memo


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Kernels of all subgraphs, and gaps: in whole sentences what could not be reached, and why."""

    kernels: tuple[Kernel, ...]
    gaps: tuple[str, ...]


def rehearse(model: Model, target: Target, cases: Sequence[Mapping[str, Array]], memo: Memo | None = None) -> Rehearsal:
    """Dry-run a model for a target, with inputs on the host and on the device, through every branch of its Ifs.

    Args:
        model: What to follow.
        target: With kernels.
        cases: Inputs by name; each is followed.
        memo: What was computed for another target.

    Raises:
        UnsupportedError: Operators that nothing here can run; lists all.
    """
    memo = memo or Memo()
    found = _Rehearser(model, target, cases, memo).run()
    if not any(kernel.text for kernel in found.kernels):
        return found
    # Generated kernels follow from what is planned together, which content decides. What comes otherwise then runs
    # without them where there is no compiler (`PlanCache`).
    disabled = model.disabled_passes | GENERATING
    plain = model._derive(model.info, model._source_graph, model.dims, disabled, model.memories, model.precision)
    others = _Rehearser(plain, target, cases, memo).run()
    return replace(found, kernels=tuple(dict.fromkeys((*found.kernels, *others.kernels))))


def make_array(shape: tuple[int, ...], dtype: np.dtype[Any], random: np.random.Generator) -> Array:
    """Return normal floats; 0 and 1 where the type is none of floats; empty strings and containers."""
    if is_host_object(dtype):
        return make_blank(shape, dtype)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


class _Rehearser:
    def __init__(self, model: Model, target: Target, cases: Sequence[Mapping[str, Array]], memo: Memo) -> None:
        device = TracerDevice(target.name, is_writing=False, holds_content=True)
        backend = Backend(device, BackendType.GPU_COMPUTE, "nothing runs on it")
        self._model, self._memo = model, memo
        # What is light work for the host is the device's where tensors are larger.
        self._sites = [
            PlanningContext(model, backend, Weights(backend).enter(), Arena(backend), host_work=limit)
            for limit in (HOST_WORK_LIMIT, -1)
        ]
        self._cases = cases
        self._variants = _BranchVariants(model.graph)
        self._seen: set[tuple[int, bool]] = set()
        self._gaps: dict[str, None] = {}

    def run(self) -> Rehearsal:
        """Run all cases and branches."""
        known: set[tuple[int, bool]] = set()
        left: list[tuple[frozenset[int], tuple[int, bool] | None]] = [(frozenset(), None)]
        while left:
            negated, wanted = left.pop(0)
            if wanted in known:
                continue
            self._seen = set()
            error = self._run_cases(negated)
            if error is not None:
                self._note(error, wanted)
            if wanted is not None:
                known.add(wanted)
            known |= self._seen
            left += [(negated | {each}, (each, not side)) for each, side in sorted(self._seen)]
        reached = {each for each, _ in known}
        missed = [self._variants.name(number) for number in self._variants.numbers if number not in reached]
        if missed:
            names = ", ".join(missed[:5]) + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
            self._gaps[f"The kernels of {names} are not in the file: nothing led there."] = None
        plans = [plan for planning in self._sites for plan in planning.plans]
        kernels = dict.fromkeys(kernel for plan in plans for kernel in plan.kernels())
        return Rehearsal(tuple(kernels), tuple(self._gaps))

    def _note(self, error: GpuexecError, wanted: tuple[int, bool] | None) -> None:
        what, advice = "of some parts", " Compile with a case of inputs that fit."
        if wanted is not None:
            advice = ""
            branch = "then_branch" if wanted[1] else "else_branch"
            what = f"that {branch} of {self._variants.name(wanted[0])} leads to"
        self._gaps[f"Kernels {what} are not in the file: {error}{advice}"] = None

    def _run_cases(self, negated: frozenset[int]) -> GpuexecError | None:
        """Dry-run the graph with some Ifs negated, for each case; return the error of the last one that failed."""
        graph = self._variants.negate(negated)
        failure = None
        for planning in self._sites:
            subgraph, dry_run = Subgraph(graph, planning, grows=True), DryRun(planning, self._memo)
            for inputs, is_on_host in product(self._cases, (False, True)):
                given = {value: inputs[value.name] for value in graph.inputs if value.name in inputs}
                try:
                    dry_run.run(subgraph, given | self._find_initial(inputs), given if is_on_host else ())
                except UnsupportedError:
                    raise
                except GpuexecError as error:
                    failure = error
            self._seen.update((self._variants.number(node), side) for node, side in dry_run.branches)
            self._gaps.update(dry_run.gaps)
        return failure

    def _find_initial(self, inputs: Mapping[str, Array]) -> dict[Value, Array]:
        """Return the memories, which hold nothing yet; they never lie on the host."""
        model = self._model
        specs = {name: TensorSpec.of(array) for name, array in inputs.items()}
        initial = find_initial_specs(model.graph, model.memories, model.dims, specs) if model.memories else {}
        rows = [(value, initial[value.name]) for value in model.graph.inputs if value.name not in inputs]
        return {value: np.zeros(spec.shape, spec.dtype) for value, spec in rows}


class _BranchVariants:
    """Ifs of a graph, those in bodies too, by number, and the graph with some of them negated."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names: list[str] = []
        # By operator, which an inlined If keeps; the operator itself is kept, so that its id stays its own.
        self._numbers: dict[int, tuple[int, Operator]] = {}
        self._count(graph)

    @property
    def numbers(self) -> range:
        """The numbers of all."""
        return range(len(self._names))

    def name(self, number: int) -> str:
        """Return the name of an If, for messages."""
        return self._names[number]

    def number(self, node: Node) -> int:
        """Return the number of an If of the graph, or of one with some negated."""
        return self._numbers[id(node.operator)][0]

    def negate(self, chosen: AbstractSet[int]) -> Graph:
        """Return the graph with the condition of each of these negated.

        So a host reads what it would read, and every cut stays where it is.
        """
        return self._negate(self._graph, chosen) if chosen else self._graph

    def _count(self, graph: Graph) -> None:
        for node in graph.nodes:
            if isinstance(node.operator, If):
                self._numbers[id(node.operator)] = len(self._names), node.operator
                self._names.append(str(node))
            for body in bodies(node.operator):
                self._count(body)

    def _negate(self, graph: Graph, chosen: AbstractSet[int]) -> Graph:
        names = {value.name for value in graph.values()}
        nodes: list[Node] = []
        for node in graph.nodes:
            inner = bodies(node.operator)
            if not inner:
                nodes.append(node)
                continue
            operator = with_bodies(node.operator, [self._negate(body, chosen) for body in inner])
            changed = replace(node, operator=operator)
            if isinstance(node.operator, If):
                number = self.number(node)
                self._numbers[id(operator)] = number, operator
                if number in chosen:
                    condition, *captures = node.inputs
                    turned = Value(take_free(f"{node.name}/turned", names))
                    nodes.append(Node(build("Not", {}), (condition,), (turned,), turned.name))
                    changed = replace(changed, inputs=(turned, *captures))
            nodes.append(changed)
        return replace(graph, nodes=tuple(nodes))
