"""Where a run's profile meets its plans: what the layers are, and how they are issued one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from gpuexec.graphs import Graph, Node, Value
from gpuexec.phases import witnessed_by
from gpuexec.profiling.layers import Layer, PlanLayers, count_node_flops, describe_layers
from gpuexec.profiling.log import ProfileLog
from gpuexec.profiling.run_profile import RunProfile
from gpuexec.resources.holdings import Holdings
from gpuexec.running.bound import Bound
from gpuexec.running.held import Held
from gpuexec.running.plan_cache import Choice
from gpuexec.runtime.device import Stream
from gpuexec.spec import TensorSpec

_NOTHING = contextlib.nullcontext()


def following(profile: RunProfile | None) -> AbstractContextManager[None]:
    """Return a context in which a run's profile, if it has one, hears what is done."""
    return _NOTHING if profile is None else witnessed_by(profile)


def profile_run(bound: Bound, log: ProfileLog, model: str, stream: Stream, holdings: Holdings) -> None:
    """Have a profiler's log get a run that is bound, and readbacks of its outputs."""
    backend = bound.run._backend
    profile = log.open_run(model, backend.device, stream, holdings.count)
    bound.profile = profile
    for tensor in bound.run.outputs.values():
        tensor._content.lease.profile = profile


def issue_by_layer(
    profile: RunProfile, choice: Choice, graph: Graph, env: Mapping[Value, Held], advance: Callable[[int], None]
) -> Callable[[int], None]:
    """Return what issues the commands of a plan up to one, timing each layer.

    Args:
        profile: Of the run.
        choice: The plan and its size.
        graph: What it is the plan of.
        env: Where the inputs are.
        advance: Issues commands up to one.
    """

    def describe(number: int) -> PlanLayers:
        template = choice.prepared.template
        specs = template.infer({value.name: env[value].describe() for value in graph.inputs})
        return describe_layers(number, template.plan, choice.variant.commands, template.graph, specs)

    layers = profile.log.find_layers(choice.variant, choice.prepared.plan, describe)
    return profile.open_plan(layers, advance)


def upload_inputs(profile: RunProfile, stream: Stream, held: Sequence[Held], upload: Callable[[], None]) -> None:
    """Bring inputs to the device, timed."""
    nbytes = sum(each.spec.nbytes for each in held)
    with profile.time_transfer(stream, "upload", f"{len(held)} inputs", nbytes):
        upload()


def note_host_layer(profile: RunProfile, node: Node, env: Mapping[Value, Held], computed_ms: float) -> None:
    """Tell of a node that the host has computed."""
    specs: dict[Value, TensorSpec] = {
        value: env[value].spec for value in (*node.inputs, *node.outputs) if value is not None and value in env
    }
    flops = count_node_flops(node, specs)
    profile.add_host_layer(Layer(node.name, node.operator.name, (), 0, 0, flops, 0, ()), computed_ms)
