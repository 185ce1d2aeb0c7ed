"""Host nodes of a run: computed by NumPy between two plans."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.pacing import Pacer
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.profiled import note_host_layer
from gpuexec.execution.runs.run import CANCELLATION_POINT, MustWait, RunProgress
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.execution.runs.value_location import RunValues, ValueLocation
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.evaluate import evaluate_node
from gpuexec.planner.partition import Partition
from gpuexec.system.mapped import hold


def compute_nodes(
    context: ExecutionContext, prepared: PreparedRun, pacer: Pacer | None, stage: Stage, values: RunValues
) -> Iterator[RunProgress]:
    """Compute the host nodes of a partition: nodes without a kernel here, which are layers, and light ones."""
    partition, profile = stage.partition, prepared.profile
    if partition.host_calls:
        yield MustWait(lambda: False, lambda: None, is_work=True)
    left = count_layers(partition)
    for node in partition.host_nodes:
        is_layer = node in partition.host_calls
        if is_layer:
            yield CANCELLATION_POINT
        if is_layer and pacer is not None and not pacer.fits(stage.times, node):
            yield pacer.take(left)
        specs = [None if value is None else _describe(values[value]) for value in node.inputs]
        start = time.perf_counter()
        for value, spec in zip(node.outputs, evaluate_node(node, specs), strict=False):
            if value is None or spec is None or spec.value is None:
                continue
            # An output that a light node made on the device too stays there.
            location = values.setdefault(value, ValueLocation(TensorSpec(spec.shape, spec.dtype)))
            location.array, location.is_computed = spec.value.array, True
        inspection = prepared.run._inspection
        if inspection is not None:
            rows = prepared.exposure.rows_of(node, node.outputs)
            inspection._take_host_node(node, rows, {value: location.array for value, location in values.items()})
        if not is_layer:
            continue
        computed_ms = (time.perf_counter() - start) * 1e3
        context.syncs.note_call(node, partition.host_calls[node], computed_ms)
        if profile is not None:
            note_host_layer(profile, node, values, computed_ms)
        if pacer is not None:
            pacer.add(node.name, stage.times, node)
            stage.times.note(node, computed_ms)
            left -= 1
            if pacer.is_full:
                yield pacer.take(left)


def _describe(location: ValueLocation) -> TensorSpec:
    """Return the spec of an input, with its content; a weight that lies in a file is read once."""
    spec = location.describe()
    return spec.with_value(hold(location.array)) if location.is_weight and location.array is not None else spec


def count_layers(partition: Partition) -> int:
    """Return how many layers may follow the plan of a partition."""
    return len(partition.host_calls) + (0 if partition.rest is None else len(partition.rest.nodes))
