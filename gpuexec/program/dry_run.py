"""Dry run of a graph: the executor of runs on a recorder device, with NumPy in place of the plans' commands.

So partitions, plans, reads and loops are those of a run with a device. What a run would not do is to look further: a
plan for extents of 0 is made for others too, a loop without trips tries one, and one without end is left.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, UnsupportedError
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.host_transfers import HostTransfers
from gpuexec.execution.runs.loops import Execute, LoopExecutor, Making, ReadToHost
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.run import CANCELLATION_POINT, Run, RunProgress
from gpuexec.execution.runs.run_executor import RunExecutor
from gpuexec.execution.runs.stopwatch import Stopwatch
from gpuexec.execution.runs.subgraph import Stage, Subgraph
from gpuexec.execution.runs.value_location import RunValues, ValueLocation
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ops.control.control import Loop, Scan, SequenceMap
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.system.mapped import hash_content, view_bytes

# What a Loop without end is left after, and every Loop, after a trip, once they made so many together.
_MAX_TRIPS = 1000
_MAX_TRIPS_TOGETHER = 5000
# Extents and counts in place of 0, where launches that write nothing would be left out.
_RAISED = (2, 1)


@dataclass(slots=True, eq=False)
class Memo:
    """Outputs of graphs computed already: partitions for two targets are mostly the same."""

    _rows: dict[object, tuple[object, Sequence[Array]]] = field(default_factory=dict)

    def compute(self, graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the outputs of a graph."""
        things = [*(node.operator for node in graph.nodes), *graph.outputs, *graph.constants.values()]
        contents = [(array.dtype, array.shape, hash_content(view_bytes(array))) for array in arrays]
        key = tuple(map(id, things)), tuple(contents)
        if key not in self._rows:
            # What it was made of is kept, so that no other object gets one of these ids.
            self._rows[key] = things, compute_graph(graph, arrays)
        return self._rows[key][1]


class DryRun:
    """Dry run of subgraphs. ``branches`` are the Ifs met, each with its condition; ``gaps`` name what was not planned.

    Args:
        planning: Where plans are made; its device is a recorder that holds content.
        memo: Results computed before.
    """

    def __init__(self, planning: PlanningContext, memo: Memo) -> None:
        backend = planning.backend
        stream = backend.device.create_stream()
        pool, stopwatch = ExchangePool(backend, stream), Stopwatch(backend.device, stream)
        transfers = HostTransfers(planning, stream, pool)
        self.context = ExecutionContext(planning, stream, threading.RLock(), pool, SyncLog(), stopwatch, transfers)
        self.memo = memo
        # Trips that Loops made in this run, all together.
        self.trips = 0
        self.branches: list[tuple[Node, bool]] = []
        self.gaps: dict[str, None] = {}

    def run(self, subgraph: Subgraph, inputs: Mapping[Value, Array], on_host: Container[Value]) -> None:
        """Run a subgraph.

        Args:
            subgraph: What to run.
            inputs: Content of its inputs.
            on_host: Those that the host knows; strings and containers it always does.

        Raises:
            GpuexecError: What a run would raise; names the node.
        """
        self.trips = 0
        backend = self.context.planning.backend
        run = Run(0, backend, lambda _: False)
        run._allows_syncs = True
        values = {value: _locate(array) if value in on_host else self.place(array) for value, array in inputs.items()}
        stage, planned = self.choose(subgraph, values)
        prepared = PreparedRun(run, stage, planned, Frame(backend), values=values)
        for _ in _DryExecutor(self, prepared).execute():
            pass  # No wait: a recorder is always done.

    def choose(self, subgraph: Subgraph, values: RunValues) -> tuple[Stage, PlannedVariant | None]:
        """Plan a subgraph as a run would; where a tensor is empty, plan once more with extents that launch."""
        known = {value: values[value] for value in subgraph.graph.inputs}
        specs = {value: each.describe() for value, each in known.items()}
        computed = {value for value, each in known.items() if each.is_computed}
        stage, planned = subgraph.choose(specs, computed)
        self.branches += stage.partition.branches
        made = planned.variant.outputs if planned is not None else ()
        is_empty = any(spec.size == 0 for spec in (*specs.values(), *made))
        counts = {value for value in computed if _is_none(specs[value])}
        if is_empty or counts:
            failure = self._choose_raised(subgraph, specs, computed, counts)
            if failure is not None and is_empty:
                nodes = ", ".join(map(str, subgraph.graph.nodes[:3]))
                self.gaps[f"Kernels of {nodes} for tensors that were empty may lack in the file: {failure}"] = None
        return stage, planned

    def _choose_raised(
        self, subgraph: Subgraph, specs: Mapping[Value, TensorSpec], computed: set[Value], counts: set[Value]
    ) -> GpuexecError | None:
        failure = None
        for extent in _RAISED:
            for raised_counts in (counts, set[Value]()):
                raised = {value: _raise(spec, extent, value in raised_counts) for value, spec in specs.items()}
                try:
                    subgraph.choose(raised, computed)
                except GpuexecError as error:
                    failure = error
                else:
                    return None
        return failure

    def place(self, array: Array) -> ValueLocation:
        """Return a value that lies on the device alone, but for strings and containers."""
        location = _locate(array)
        if not is_host_object(array.dtype):
            self.context.transfers.locate(location)
            location.array = None
        return location

    def read(self, locations: Sequence[ValueLocation]) -> list[Array]:
        """Return the content of values, of which the host goes on knowing no more than it does."""
        copies = [ValueLocation(each.spec, each.region, each.array) for each in locations]
        fetch = self.context.transfers.fetch([each for each in copies if each.array is None])
        fetch.finish()
        fetch.close()
        return [each.array for each in copies if each.array is not None]


class _DryExecutor(RunExecutor):
    """Executor that computes the graph of a plan in place of its commands."""

    def __init__(self, dry_run: DryRun, prepared: PreparedRun) -> None:
        super().__init__(dry_run.context, prepared, None)
        self._dry_run = dry_run

    def _choose(self, subgraph: Subgraph, values: RunValues) -> tuple[Stage, PlannedVariant | None]:
        return self._dry_run.choose(subgraph, values)

    def _issue(
        self, stage: Stage, planned: PlannedVariant, values: RunValues, *, is_main: bool
    ) -> Iterator[RunProgress]:
        graph = stage.partition.ready
        assert graph is not None
        compute = self._dry_run.memo.compute if is_main else compute_graph
        made = compute(graph, self._dry_run.read([values[value] for value in graph.inputs]))
        for value, array in zip(graph.outputs, made, strict=True):
            if value not in graph.inputs:
                values[value] = self._dry_run.place(array)
        yield CANCELLATION_POINT

    def _open_loop(self, read_to_host: ReadToHost) -> LoopExecutor:
        return _DryLoopExecutor(self._dry_run, self._execute_body, read_to_host)


class _DryLoopExecutor(LoopExecutor):
    """Executor of a loop that tries a body without trips, and leaves a Loop that makes too many."""

    def __init__(self, dry_run: DryRun, execute: Execute, read_to_host: ReadToHost) -> None:
        super().__init__(dry_run.context, execute, read_to_host)
        self._dry_run = dry_run
        self._begun = 0

    def _repeat(self, node: Node, inputs: Sequence[Any]) -> Making[Sequence[ValueLocation]]:
        try:
            return (yield from super()._repeat(node, inputs))
        finally:
            if not self._begun:
                yield from self._try_body(node, inputs)

    def _trip(self, op: Loop | Scan | SequenceMap, given: Sequence[ValueLocation]) -> Making[list[ValueLocation]]:
        self._begun += 1
        self._dry_run.trips += isinstance(op, Loop)
        made = yield from super()._trip(op, given)
        is_over = self._begun >= _MAX_TRIPS or self._dry_run.trips >= _MAX_TRIPS_TOGETHER
        if is_over and isinstance(op, Loop):
            made[0] = _locate(np.array(False), is_computed=True)
        return made

    def _try_body(self, node: Node, inputs: Sequence[Any]) -> Iterator[RunProgress]:
        """Run a Loop or Scan that makes no trip once more, with some."""
        match node.operator:
            case Loop():
                once = [_locate(np.array(each), is_computed=True) for each in (1, True)]
                inputs = [*once, *inputs[2:]]
            case Scan() as op:
                states, scanned, captures = op.divide(inputs)
                axes = op.find_axes([each.spec.shape for each in scanned])
                blank = [_make_blank(each.spec, axis) for each, axis in zip(scanned, axes, strict=True)]
                inputs = [*states, *map(self._dry_run.place, blank), *captures]
            case _:
                return
        try:
            yield from super()._repeat(node, inputs)
        except UnsupportedError:
            raise
        except GpuexecError as error:
            gap = f"Kernels of the body of {node} are not in the file, for no case runs it: {error}"
            self._dry_run.gaps[gap] = None


def _locate(array: Array, *, is_computed: bool = False) -> ValueLocation:
    return ValueLocation(TensorSpec(array.shape, array.dtype), array=array, is_computed=is_computed)


def _make_blank(spec: TensorSpec, axis: int) -> Array:
    """Return an array of two slices along an axis: moving that of one slice needs no kernel."""
    return np.zeros((*spec.shape[:axis], 2, *spec.shape[axis + 1 :]), spec.dtype)


def _is_none(spec: TensorSpec) -> bool:
    """Return whether a content is a count of nothing."""
    return spec.value is not None and spec.dtype.kind in "iu" and bool((spec.value.array == 0).any())


def _raise(spec: TensorSpec, extent: int, is_count: bool) -> TensorSpec:
    """Return a spec with an extent in place of those of 0, and of zeros in its content if it is a count."""
    if 0 in spec.shape:
        return TensorSpec(tuple([n or extent for n in spec.shape]), spec.dtype)
    if is_count and spec.value is not None:
        content = spec.value.array
        return spec.with_value(np.where(content == 0, np.asarray(extent, spec.dtype), content))
    return spec
