"""Templates restored from the stored plans of a program: laid out already, checked against the inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuexec.errors import GpuexecError, PlanError
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.model import Model
from gpuexec.passes import run_passes
from gpuexec.planner.template import Template


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """A template made from a stored plan, and the graph it is of."""

    template: Template
    graph: Graph


def restore(
    model: Model, graph: Graph, specs: Mapping[str, TensorSpec], target: Target, tried: Collection[Plan] = ()
) -> tuple[Restored | None, list[tuple[Plan, str]]]:
    """Return a template for inputs of these specs from one of the model's stored plans, and those that don't fit.

    A plan does not fit where operators are lowered in another way than when it was made; it comes with the reason.

    Args:
        model: Whose plans.
        graph: What is to be planned: the model's graph, or a part of it.
        specs: Of its inputs.
        target: What to plan for.
        tried: Plans to leave out.
    """
    refused = []
    plans = [plan for plan in model._plans.get(target.name, ()) if all(plan is not each for each in tried)]
    for plan in sorted(plans, key=lambda plan: plan.layout.nbytes):
        ends = _find_ends(plan, graph, specs)
        if ends is None:
            continue
        try:
            planned = run_passes(graph, model._plan_passes, model.disabled_passes, ends)
            template = Template(planned, ends, target, stored=plan)
            template.specialise(specs)
        except PlanError as error:
            refused.append((plan, str(error)))
        except (GpuexecError, ValueError):
            # A fault of the inputs comes up again when they are planned by themselves.
            continue
        else:
            return Restored(template, planned), refused
    return None, refused


def _find_ends(plan: Plan, graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec] | None:
    """Return the specs that a plan was laid out for, if the inputs are within them, else None."""
    if [port.name for port in plan.outputs] != [value.name for value in graph.outputs]:
        return None
    if [port.name for port in plan.inputs] != [value.name for value in graph.inputs]:
        return None
    reads = {read.input for read in plan.reads}
    ends = {}
    for port in plan.inputs:
        spec = specs[port.name]
        if spec.dtype != port.spec.dtype or len(spec.shape) != len(port.spec.shape):
            return None
        if any(have > most for have, most in zip(spec.shape, port.spec.shape, strict=True)):
            return None
        # What planning read then, it shall read now: the same content gives the same plan.
        ends[port.name] = spec if port.name in reads and spec.shape == port.spec.shape else port.spec
    return ends
