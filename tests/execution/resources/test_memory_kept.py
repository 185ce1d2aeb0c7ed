"""Memory of runs: reuse, sizes up to a bound, release, and warnings about unclosed objects."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.devices.backend import Backend
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.ir.plan import Role
from tests.devices.backends import on
from tests.execution.held import held_worker, holding
from tests.model.small_models import affine, expect_affine, ramp, trace, two_layers
from tests.model.staged_models import MODELS, inputs
from tests.planner.towers import plan_of, tower, tower_proto


@pytest.mark.feature("E37", "T13")
def test_inputs_survive_runs(backend: Backend) -> None:
    x = ramp(64, 64)
    with gx.Worker(tower(6), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(x)[0], x)
        for _ in range(3):
            np.testing.assert_array_equal(worker.run()[0], x)
    with gx.Worker(affine(), backend=backend) as producer, gx.Worker(tower(6, 3), backend=backend) as worker:
        y = producer.schedule(ramp(4, 3)).peek_output()
        for _ in range(3):
            np.testing.assert_array_equal(worker.run(y)[0], expect_affine(ramp(4, 3)))
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(4, 3)))


@pytest.mark.feature("B47")
@on("tracer")
def test_blocks_are_lent_again_the_best_fit_first(backend: Backend) -> None:
    pool = ExchangePool(backend, backend.device.create_stream())
    lent = [pool.lend(nbytes) for nbytes in (300, 5000, 70000)]
    blocks = [each.memory for each in lent]
    held = pool.nbytes
    del lent
    assert pool.lend(400).memory is blocks[0] and pool.lend(6000).memory is blocks[1]
    again = [pool.lend(500), pool.lend(4097)]
    assert [each.memory for each in again] == blocks[:2] and pool.nbytes == held
    other = pool.lend(512)  # the smallest is taken, and the next is more than twice as large
    assert other.memory not in blocks and pool.nbytes > held
    del again, other
    pool.trim()
    assert pool.nbytes == 0
    pool.close()


@pytest.mark.feature("B47")
def test_runs_of_several_plans_allocate_nothing_once_warm(backend: Backend) -> None:
    with gx.Worker(MODELS["many"].load(), backend=backend) as worker:
        for number in (0, 1, 2, 0, 1, 2):
            worker.run(inputs(number))
        held = worker.memory_stats()["exchange"]
        assert held > 0
        for number in (2, 1, 0):
            worker.run(inputs(number))
        assert worker.memory_stats()["exchange"] == held


@pytest.mark.feature("S60")
@on("tracer")
def test_memory_of_smaller_sizes_is_used_again(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        for rows in (500, 500, 3, 3):
            worker.schedule(ramp(rows, 3))
        before = trace(backend).count("allocate")
        for rows in (400, 7, 500, 3):
            worker.schedule(ramp(rows, 3))
        assert trace(backend).count("allocate") == before


@pytest.mark.feature("S37")
def test_memory_goes_to_others_when_its_readers_are_done(backend: Backend) -> None:
    with held_worker(affine(), backend) as (worker, gate):
        requests = [worker.schedule(ramp(2, 3) + i).peek_output().readback_request() for i in range(5)]
        gate.set()
        for i, request in enumerate(requests):
            np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3) + i))


@pytest.mark.feature("E63", "E64")
def test_sizes_up_to_the_bound_run_without_planning(backend: Backend) -> None:
    model = gx.load(tower_proto(), dims={"n": (1, 64)})  # type: ignore[arg-type]
    with gx.Worker(model, backend=backend) as worker:
        planned: set[int] = set()
        for rows in (64, 1, 7, 33, 64):
            y = worker.schedule(ramp(rows, 64)).peek_output()
            assert y.shape == (rows, 64)
            np.testing.assert_array_equal(y.readback_and_clone(), ramp(rows, 64))
            planned.add(worker.report().plans)
        assert len(planned) == 1  # all at the first run: one, or one for each class with kernels of its own
        ends = [plan.buffers[plan.outputs[0].buffer or 0].nbytes for plan in worker.plans]
        assert max(ends) == 64 * 64 * 4
        for wrong, why in ((ramp(65, 64), "axis 0 must be 1 to 64"), (ramp(64), "1 axes, not 2")):
            with pytest.raises(gx.InputError, match=why):
                worker.schedule(wrong)
        np.testing.assert_array_equal(worker.run(ramp(2, 64))[0], ramp(2, 64))


@pytest.mark.feature("E64", "S40")
def test_shapes_that_depend_on_data_have_a_bound_and_then_a_value(backend: Backend) -> None:
    staged, x = MODELS["read"], inputs(0)
    expected = staged.expect(x)[0]
    with gx.Worker(staged.load(), backend=backend) as worker, holding(worker._engine.stream) as gate:
        y = worker.schedule(x).peek_output()
        assert (y.max_shape, y.dtype, y.ndim) == ((2, x.size), expected.dtype, 2)
        with pytest.raises(gx.PendingError, match=r"await y\.wait_async\(\)"):
            _ = y.shape
        gate.set()
        np.testing.assert_array_equal(y.readback_and_clone(), expected)
        assert y.shape == y.max_shape == expected.shape


@pytest.mark.feature("E40")
def test_the_arena_is_drawn_over_time(tmp_path: Path) -> None:
    source = tmp_path / "tower.onnx"
    onnx.save(tower_proto(), source)
    page = tmp_path / "tower.html"
    assert main(["explain", str(source), "--dims", "n=8", "--target", "sm_90", "--memory", str(page)]) == 0
    plan = plan_of(gx.load(source), (8, 64), "sm_90")
    drawn = [
        tuple(int(number) for number in found)
        for found in re.findall(r'data-buffer="(\d+)" data-offset="(\d+)" data-nbytes="(\d+)"', page.read_text())
    ]
    temporary = [buffer for buffer in plan.buffers if buffer.role is Role.TEMP]
    offsets = plan.layout.as_dict()
    assert drawn == [(buffer.id, offsets[buffer.id], buffer.nbytes) for buffer in temporary] and len(drawn) == 3


MAKERS: dict[str, Callable[[gx.Worker, gx.Program], Any]] = {
    "Worker": lambda worker, _: gx.Worker(worker.model, backend=worker.backend_type),
    "Method": lambda _, program: program.load_method("forward"),
    "Replay": lambda worker, _: worker.record((2, 3)),
}


@pytest.mark.feature("S57")
@pytest.mark.parametrize("kind", MAKERS)
def test_what_was_never_closed_is_reported_with_its_line(kind: str, backend: Backend) -> None:
    program = gx.Program.build({"forward": affine()}, backend=backend)
    make = MAKERS[kind]
    with gx.Worker(affine(), backend=backend) as worker, warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always", ResourceWarning)
        make(worker, program).close()
        gc.collect()
        assert [row for row in reported if row.filename == __file__] == []
        make(worker, program)
        gc.collect()
    own = [row for row in reported if row.filename == __file__]
    assert [row.lineno for row in own] == [make.__code__.co_firstlineno]
    assert re.match(rf"A {kind} .*made at .*test_memory_kept\.py:\d+, was never closed", str(own[0].message))
