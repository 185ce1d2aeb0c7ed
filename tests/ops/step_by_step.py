"""Steps of regions, computed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.devices.device import Device
from gpuexec.errors import UnsupportedError
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import Array, build
from gpuexec.ops.elementwise.region_steps import read_number
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import Case, build_operator, const_positions
from tests.ops.harness import IN_CHECK_MODE, plan_supported, run_planned
from tests.ops.tolerance import to_bits

Steps = tuple[tuple[str, tuple[tuple[str, Any], ...], tuple[int | str | None, ...]], ...]


def pick(
    given: Sequence[int | str | None], inputs: Sequence[Array | None], made: Sequence[Array]
) -> list[Array | None]:
    """Return the inputs of a step."""
    return [
        None if g is None else read_number(g) if isinstance(g, str) else inputs[g] if g >= 0 else made[-1 - g]
        for g in given
    ]


def apply_steps(steps: Steps, inputs: Sequence[Array | None]) -> list[Array]:
    """Return what each step makes, one after the other, in dense memory."""
    made: list[Array] = []
    for name, attributes, given in steps:
        result, *_ = build(name, dict(attributes)).compute(*pick(given, inputs, made))
        made.append(np.asarray(result, order="C"))
    return made


def check_blits(case: Case) -> None:
    """Check that the blits of a region give the bits of those of its steps, if it is planned for textures at all."""
    op, inputs = build_operator(case)
    device = open_living(IN_CHECK_MODE["pixel"])
    planned = plan_supported(case, op, inputs, const_positions(case, inputs), device.target)
    if planned is None:
        return
    made = run_steps(case.attributes["steps"], inputs, device)
    for got, step in zip(run_planned(planned, device), case.attributes["results"], strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(made[step]))


def run_steps(steps: Steps, inputs: Sequence[Array | None], device: Device) -> list[Array]:
    """Return what steps make, each by a plan of its own, or by NumPy where the device has no kernel for it."""
    made: list[Array] = []
    for name, attributes, given in steps:
        op, taken = build(name, dict(attributes)), pick(given, inputs, made)
        builder, values, arrays = GraphBuilder(), list[Value | None](), dict[str, Array]()
        for number, (source, x) in enumerate(zip(given, taken, strict=True)):
            if x is None:
                values.append(None)
            elif isinstance(source, str):
                values.append(builder.constant(np.array(x), f"x{number}"))
            else:
                arrays[f"x{number}"] = np.array(x, order="C")
                values.append(builder.input(f"x{number}", *x.shape, dtype=x.dtype))
        graph = builder.graph(builder.node(op, *values))
        try:
            template = plan_graph(graph, specs_of(arrays), device.target)
        except UnsupportedError:
            result, *_ = op.compute(*taken)
            made.append(np.asarray(result, order="C"))
        else:
            made += run_template(template, graph, arrays, device)
    return made
