"""Traces of operators and graphs with symbolic extents, held against what is planned with ints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuexec.errors import GpuexecError
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import UntraceableError
from gpuexec.ir.target import Target
from gpuexec.planner.symbolic_variant import SymbolicVariant, share_layout
from gpuexec.planner.template import Template
from tests.ir.graph_builder import GraphBuilder
from tests.ops.calls import Call
from tests.ops.every_call import list_asked

Axis = tuple[str, int]


def build_call(call: Call) -> tuple[Graph, dict[str, TensorSpec]]:
    """Return a graph of one node, constants where shapes depend on an input's content, and its inputs' specs."""
    build, values = GraphBuilder(), list[Value | None]()
    specs: dict[str, TensorSpec] = {}
    asked = list_asked(call.operator, call.inputs)
    for place, array in enumerate(call.inputs):
        if array is None:
            values.append(None)
        elif place in asked:
            values.append(build.constant(array, f"x{place}"))
        else:
            values.append(
                build.input(f"x{place}", *[f"x{place}.{axis}" for axis in range(array.ndim)], dtype=array.dtype)
            )
            specs[f"x{place}"] = TensorSpec(array.shape, array.dtype)
    count = len(call.operator.infer(*[None if x is None else TensorSpec.of(x) for x in call.inputs]))
    return build.graph(*build.nodes(call.operator, *values, count=count)), specs


def group_by_extent(specs: Mapping[str, TensorSpec]) -> list[list[Axis]]:
    """Return the axes of inputs that are longer than 1, those of one extent together."""
    groups: dict[int, list[Axis]] = {}
    for name, spec in specs.items():
        for axis, extent in enumerate(spec.shape):
            if extent > 1:
                groups.setdefault(extent, []).append((name, axis))
    return list(groups.values())


def check_trace(
    template: Template, specs: Mapping[str, TensorSpec], groups: Sequence[Sequence[Axis]]
) -> SymbolicVariant:
    """Trace a template; check that at the traced extents it gives what is planned with ints.

    Raises:
        GpuexecError, UntraceableError: It can't be traced.
    """
    symbolic = template.trace(specs, groups)
    share_layout([symbolic])
    extents = [specs[group[0][0]].shape[group[0][1]] for group in groups]
    exact, found = template.specialise(specs), symbolic.find(extents)
    assert found is not None, symbolic.guards
    assert found.commands == exact.commands
    assert (found.inputs, found.outputs) == (exact.inputs, exact.outputs)
    return symbolic


def find_obstacles(call: Call, target: Target) -> list[str]:
    """Return what ties an operator to the extents at hand: functions that need their digits, or why it is refused."""
    graph, specs = build_call(call)
    groups = group_by_extent(specs)
    try:
        template = Template(graph, specs, target)
    except GpuexecError:
        return []  # without symbols, too
    if not groups:
        return []
    try:
        return list(check_trace(template, specs, groups).tied)
    except (GpuexecError, UntraceableError, TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
