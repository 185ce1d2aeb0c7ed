"""Profiling of runs: layers of a plan issued one by one between timed events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from gpuexec.devices.device import Stream
from gpuexec.execution.profiling.layers import Layer, PlanLayers, count_node_flops, describe_layers
from gpuexec.execution.profiling.log import ProfileLog, RunProfile
from gpuexec.execution.resources.memory_usage import MemoryUsage
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.system.phases import send_events_to

_NOTHING = contextlib.nullcontext()


def following(profile: RunProfile | None) -> AbstractContextManager[None]:
    """Return a context whose phases go to a run's profile, if it has one."""
    return _NOTHING if profile is None else send_events_to(profile)


def profile_run(prepared: PreparedRun, log: ProfileLog, model: str, stream: Stream, memory_usage: MemoryUsage) -> None:
    """Profile a prepared run, and readbacks of its outputs."""
    backend = prepared.run._backend
    profile = log.open_run(model, backend.device, stream, memory_usage.count)
    prepared.profile = profile
    for tensor in prepared.run.outputs.values():
        tensor._content.lease.profile = profile


def issue_by_layer(
    profile: RunProfile,
    planned: PlannedVariant,
    graph: Graph,
    values: Mapping[Value, ValueLocation],
    advance: Callable[[int], None],
) -> Callable[[int], None]:
    """Return a function that issues the commands of a plan up to a number, timing each layer.

    Args:
        profile: Of the run.
        planned: The plan and its size.
        graph: What it is the plan of.
        values: Where the inputs are.
        advance: Issues commands up to one.
    """

    def describe(number: int) -> PlanLayers:
        template = planned.compiled.template
        specs = template.infer({value.name: values[value].describe() for value in graph.inputs})
        return describe_layers(number, template.plan, planned.variant.commands, template.graph, specs)

    layers = profile.log.find_layers(planned.variant, planned.compiled.plan, describe)
    return profile.open_plan(layers, advance)


def upload_inputs(
    profile: RunProfile, stream: Stream, location: Sequence[ValueLocation], upload: Callable[[], None]
) -> None:
    """Upload inputs, timed."""
    nbytes = sum(each.spec.nbytes for each in location)
    with profile.time_transfer(stream, "upload", f"{len(location)} inputs", nbytes):
        upload()


def note_host_layer(profile: RunProfile, node: Node, values: Mapping[Value, ValueLocation], computed_ms: float) -> None:
    """Record a host node in a profile."""
    specs: dict[Value, TensorSpec] = {
        value: values[value].spec for value in (*node.inputs, *node.outputs) if value is not None and value in values
    }
    flops = count_node_flops(node, specs)
    profile.add_host_layer(Layer(node.name, node.operator.name, (), 0, 0, flops, 0, ()), computed_ms)
