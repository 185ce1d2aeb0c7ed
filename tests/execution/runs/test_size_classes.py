"""Size classes of Workers: kernels of a class, whatever was met before; ranges; the order of sums within a class."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.execution.runs import plan_cache
from tests.execution.runs.divided_sum import COLUMNS, draw, names, remembering, summing
from tests.model.small_models import make_tracer, trace

RANGE = {"rows": (1, 64)}
FEW, MANY = "divided_sum<0>", "divided_sum<1>"


@pytest.fixture
def simulator() -> Backend:
    return open_backend(gx.BackendType.SIMULATOR)


def first_row(worker: gx.Worker, rows: int) -> float:
    x = draw(rows)
    (y,) = worker.run(x)
    np.testing.assert_allclose(y, x.sum(1, dtype=np.float64), rtol=1e-4)
    return float(y[0])


def kernel_of(worker: gx.Worker, rows: int) -> str:
    """Return the kernel that runs these rows."""
    plan = worker.prepare(draw(rows))
    assert plan is not None
    return plan.kernels()[-1].expression


@pytest.mark.parametrize("order", list(permutations((3, 200, 5, 20))))
def test_the_kernel_of_a_size_does_not_depend_on_sizes_met_before(order: Sequence[int]) -> None:
    with gx.Worker(summing(), backend=make_tracer()) as worker:
        for rows in order:
            worker.run(draw(rows))
        assert [kernel_of(worker, rows) for rows in (3, 5, 20, 200)] == [FEW, MANY, MANY, MANY]


def test_sizes_that_choose_alike_share_the_plan_of_the_largest() -> None:
    with gx.Worker(summing(), backend=make_tracer()) as worker:
        for rows in (200, 100, 20, 9, 8):
            worker.run(draw(rows))
        assert names(worker) == [(MANY, 256)]
        for rows in (4, 3, 2, 1):
            worker.run(draw(rows))
        assert names(worker) == [(FEW, 4), (MANY, 256)]


def test_a_range_is_planned_at_once_by_its_end_and_its_classes() -> None:
    with gx.Worker(summing(RANGE), backend=make_tracer()) as worker:
        worker.run(draw(20))
        assert names(worker) == [(FEW, 4), (MANY, 64)]
        assert [kernel_of(worker, rows) for rows in (1, 4, 5, 16, 17, 64)] == [FEW, FEW, MANY, MANY, MANY, MANY]


@pytest.mark.parametrize("order", [(3, 64, 1, 20, 2), (64, 1, 2, 3), (1, 2, 60, 64, 5, 3)])
def test_a_range_takes_no_memory_and_no_kernels_after_its_first_runs(order: Sequence[int]) -> None:
    backend, frames = make_tracer(), 2
    assert isinstance(backend.device, TracerDevice)
    with gx.Worker(summing(RANGE), backend=backend, frames=frames) as worker:
        for rows in order[:frames]:
            worker.schedule(draw(rows))
        held, plans, loaded = worker.memory_stats(), worker.report().plans, len(backend.device.loaded)
        before = trace(backend).count("allocate")
        for rows in order[frames:]:
            worker.schedule(draw(rows))
        assert trace(backend).count("allocate") == before > 0
        assert len(backend.device.loaded) == loaded == 3
        assert worker.report().plans == plans
        now = worker.memory_stats()
        assert {name: now[name] for name in ("arena", "frames", "weights")} == {
            name: held[name] for name in ("arena", "frames", "weights")
        }


def test_classes_of_wide_ranges_are_planned_when_they_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_CLASSES_AT_ONCE", 1)
    backend = make_tracer()
    with gx.Worker(summing(RANGE), backend=backend, frames=1) as worker:
        worker.run(draw(20))
        assert names(worker) == [(MANY, 64)]
        held = worker.memory_stats()["arena"], worker.memory_stats()["frames"]
        worker.run(draw(3))
        assert names(worker) == [(FEW, 4), (MANY, 64)]
        assert (worker.memory_stats()["arena"], worker.memory_stats()["frames"]) == held


@pytest.mark.parametrize("order", [(3, 64, 1), (64, 3, 1)])
def test_other_weights_take_over_the_plans_of_a_range(order: Sequence[int], simulator: Backend) -> None:
    with gx.Worker(summing(RANGE), backend=simulator) as worker:
        worker.run(draw(order[0]))
        plans, held = names(worker), worker.memory_stats()["arena"]
        worker.replace_weights({"w": np.full(COLUMNS, 2, np.float32)})
        for rows in order:
            x = draw(rows)
            np.testing.assert_allclose(worker.run(x)[0], 2 * x.sum(1), rtol=1e-4)
        assert names(worker) == plans and worker.memory_stats()["arena"] == held
        assert worker.report().plans_refused == ()


def test_a_class_without_memory_for_it_runs_by_the_plan_of_the_range() -> None:
    with gx.Worker(summing(RANGE), backend=make_tracer(), frames=1) as worker:
        worker.run(draw(64))
        needed = worker.memory_stats()
    limit = sum(needed[name] for name in ("arena", "frames", "weights"))
    with gx.Worker(summing(RANGE), backend=make_tracer(), frames=1, max_bytes=limit) as worker:
        for rows in (64, 1, 3, 64):
            worker.run(draw(rows))
        assert worker.memory_stats()["arena"] == needed["arena"]


@pytest.mark.parametrize("dims", [None, RANGE])
def test_every_size_gives_its_sums(dims: object, simulator: Backend) -> None:
    with gx.Worker(summing(dims), backend=simulator) as worker:
        for rows in (64, 3, 1, 17, 4, 16, 2):
            first_row(worker, rows)


def test_the_order_of_sums_depends_on_the_size_by_default(simulator: Backend) -> None:
    with gx.Worker(summing(), backend=simulator) as worker:
        assert len({first_row(worker, rows) for rows in (32, 20, 17)}) > 1


@pytest.mark.parametrize("dims", [None, RANGE])
@pytest.mark.parametrize("order", [(64, 40, 33, 16, 9, 13), (9, 16, 64, 33, 40, 13), (13, 40, 9, 64, 16, 33)])
def test_the_order_of_sums_is_that_of_the_class(dims: object, order: Sequence[int], simulator: Backend) -> None:
    with gx.Worker(summing(dims), backend=simulator, deterministic="size") as worker:
        sums = {rows: first_row(worker, rows) for rows in order}
    assert sums[64] == sums[40] == sums[33]
    assert sums[16] == sums[9] == sums[13]
    assert sums[64] != sums[16]
    with gx.Worker(summing(), backend=simulator) as worker:
        assert first_row(worker, 64) == sums[64] and first_row(worker, 16) == sums[16]


def test_steps_of_decoding_have_kernels_of_their_own_after_a_prompt() -> None:
    with gx.Worker(remembering(64), backend=make_tracer()) as worker:
        worker.run({"x": draw(30)})
        for _ in range(20):
            worker.run({"x": draw(1)})
        assert [kernel for kernel, _ in names(worker)] == [FEW, MANY]


@pytest.mark.parametrize("dims", [None, RANGE])
def test_plans_are_the_same_whether_the_order_is_fixed_or_not(dims: object) -> None:
    plans = []
    for deterministic in (None, "size"):
        with gx.Worker(summing(dims), backend=make_tracer(), deterministic=deterministic) as worker:
            plans.append(worker.prepare(draw(64)))
    assert plans[0] == plans[1]


def test_deterministic_is_checked() -> None:
    with pytest.raises(gx.InputError, match="deterministic takes None or 'size', got True"):
        gx.Worker(summing(), deterministic=True)  # type: ignore[arg-type]


def check_method(method: gx.Method) -> None:
    with method:
        for rows in (64, 3, 1):
            x = draw(rows)
            method.set_input(0, x)
            method.execute()
            np.testing.assert_allclose(method.get_output(0).readback_and_clone(), x.sum(1), rtol=1e-4)
        assert [plan.kernels()[-1].expression for plan in method._engine.planning.plans] == [MANY]


def test_a_method_in_planned_memory_keeps_one_plan_for_its_range(simulator: Backend) -> None:
    program = gx.Program.build({"forward": summing(RANGE)}, backend=simulator)
    meta = program.method_meta("forward")
    memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(meta.allocate()))
    check_method(program.load_method("forward", memory))


def test_a_program_with_kernels_needs_no_others(tmp_path: Path, simulator: Backend) -> None:
    path = tmp_path / "sums.gxp"
    gx.Program.build({"forward": summing(RANGE)}, architectures=["sm_90"]).save(path)
    check_method(gx.Program.load(path, backend=simulator).load_method("forward"))


def test_the_host_has_one_plan_for_all_sizes() -> None:
    with gx.Worker(summing(), backend="cpu") as worker:
        for rows in (200, 3, 20):
            first_row(worker, rows)
        assert worker.report().plans == 1
