"""Stored plans of a program: reused where lowering agrees, else made again."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.execution.runs.planning_context import PlanCounters
from gpuexec.ir.plan import ArenaLayout, Plan
from gpuexec.model.model import Model
from gpuexec.planner import template as templates
from gpuexec.program.building import build_contents
from gpuexec.program.container import read_contents, write_contents
from gpuexec.program.data_loader import BufferDataLoader
from tests.program.program_seeds import load_linear, load_text

Array = np.ndarray[Any, Any]
CPU = gx.BackendType.CPU
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)


def restored_model(architectures: tuple[str, ...] = ()) -> Model:
    """Return the linear model, planned for n of 1 to 8, after a file."""
    file = io.BytesIO()
    models = {"forward": load_linear(dims={"n": (1, 8)})}
    write_contents(build_contents(models, architectures=architectures), file)
    return read_contents(BufferDataLoader(file.getvalue())).methods["forward"].model


def run(model: Model, x: Array, backend: Any = CPU) -> tuple[Array, PlanCounters, tuple[Plan, ...]]:
    with gx.Worker(model, backend=backend) as worker:
        y = worker.run(x)[0]
        assert isinstance(y, np.ndarray)
        return y, worker._engine.planning.counters, tuple(worker.plans)


def test_stored_plan_serves_all_sizes_and_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = restored_model()
    expected = [run(load_linear(), X[:n])[0] for n in (8, 3, 1)]
    monkeypatch.setattr(templates, "lay_out", lambda *_: pytest.fail("a plan was packed"))
    monkeypatch.setattr(templates, "Conflicts", lambda *_: pytest.fail("edges were drawn"))
    with gx.Worker(model, backend=CPU) as worker:
        for n, y in zip((8, 3, 1), expected, strict=True):
            np.testing.assert_array_equal(worker.run(X[:n])[0], y)
        counters = worker._engine.planning.counters
        assert (counters.plans, counters.restored, counters.refused) == (1, 1, [])
        assert worker.plans[0] == model._plans["cpu"][0]


def test_stored_plan_of_an_architecture_is_taken_there() -> None:
    model = restored_model(("sm_90",))
    backend = Backend(TracerDevice(), CPU, "test")
    name = backend.device.target.name
    assert name == "sm_90"
    _, counters, plans = run(model, X, backend)
    assert counters.restored == 1 and plans[0] == model._plans["sm_90"][0] and plans[0].kernels()


def test_inputs_beyond_the_bounds_are_refused() -> None:
    model = restored_model()
    with pytest.raises(gx.InputError, match="1 to 8"):
        run(model, np.zeros((9, 4), np.float32))


def grow(plan: Plan) -> Plan:
    buffers = tuple(replace(b, nbytes=b.nbytes + 256) for b in plan.buffers)
    return replace(plan, buffers=buffers)


def drop_command(plan: Plan) -> Plan:
    segment = replace(plan.segment, commands=plan.segment.commands[1:], origins=plan.segment.origins[1:], edges=())
    return replace(plan, segment=segment)


def swap_operator(plan: Plan) -> Plan:
    first, *rest = plan.segment.commands
    changed = replace(first, operator="Abs")  # type: ignore[call-arg]
    return replace(plan, segment=replace(plan.segment, commands=(changed, *rest)))


def swell(plan: Plan) -> Plan:
    return replace(plan, layout=ArenaLayout(plan.layout.offsets, 1 << 40, plan.layout.lower_bound))


def collapse(plan: Plan) -> Plan:
    """Forget the order that keeps commands apart."""
    return replace(plan, segment=replace(plan.segment, edges=()))


def scatter(plan: Plan) -> Plan:
    return replace(plan, layout=ArenaLayout(((0, 0),), plan.layout.nbytes, 0))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (grow, r"buffer %0 of other size, role or content"),
        (drop_command, r"The stored plan has \d commands on \d buffers, lowering gives \d"),
        (swap_operator, "another command 0 than"),
        (swell, "an arena of 1099511627776 bytes for"),
        (collapse, "no path of edges orders|no command before it writes"),
        (scatter, "places to other buffers|lie in the arena"),
    ],
)
def test_plan_that_lowering_does_not_give_is_made_anew_and_reported(spoil: Callable[[Plan], Plan], why: str) -> None:
    model = restored_model()
    (plan,) = model._plans["cpu"]
    model._plans = {"cpu": (spoil(plan),)}
    y, counters, plans = run(model, X)
    np.testing.assert_array_equal(y, run(load_linear(), X)[0])
    assert counters.restored == 0 and plans[0] == plan
    assert len(counters.refused) == 1
    assert re.search(why, counters.refused[0]), counters.refused


def test_plan_that_does_not_do_is_tried_once() -> None:
    model = restored_model()
    model.dims = {}
    model._plans = {"cpu": tuple(swell(plan) for plan in model._plans["cpu"])}
    with gx.Worker(model, backend=CPU) as worker:
        for n in (1, 2, 4, 8):
            worker.run(X[:n])
        assert len(worker._engine.planning.counters.refused) == 1


def test_plans_of_other_ports_are_left_aside() -> None:
    model = restored_model()
    (plan,) = model._plans["cpu"]
    model._plans = {"cpu": (replace(plan, outputs=(replace(plan.outputs[0], name="q"),)),)}
    _, counters, _ = run(model, X)
    assert (counters.restored, counters.refused) == (0, [])


@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
def test_plan_stored_before_there_were_regions_is_taken_as_it_is(backend: gx.BackendType) -> None:
    text = "(float[n, 4] x) => (float[n, 4] y) { a = Neg (x) y = Exp (a) }"
    file = io.BytesIO()
    made = load_text(text, dims={"n": (1, 8)})
    apart = made._derive(made.info, made.graph, made.dims, frozenset({"fuse_rows", "fuse_regions"}), made.memories)
    write_contents(build_contents({"forward": apart}, architectures=("sm_90",)), file)
    model = read_contents(BufferDataLoader(file.getvalue())).methods["forward"].model
    model.disabled_passes = frozenset()  # as of a release that did not have the pass
    y, counters, plans = run(model, X, backend)
    assert counters.restored == 1 and not counters.refused and len(plans[0].segment.commands) == 2
    np.testing.assert_array_equal(y, run(made, X, backend)[0])
