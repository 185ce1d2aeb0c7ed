"""max_bytes: oversized plans are refused with both numbers, and growth releases memory first."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.ir.instances import kernel_table
from tests.model.small_models import CPU, affine, expect_affine, make_model, make_tracer, ramp, trace, two_inputs
from tests.model.state_models import running_sum

HELD = ("arena", "exchange", "weights", "frames")


def chain() -> gx.Model:
    """Return a model x ``[n, k]`` -> MatMul by 64 columns -> Exp -> MatMul by 4 columns."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"], name="widen"),
        helper.make_node("Relu", ["wide"], ["bent"], name="bend"),
        helper.make_node("MatMul", ["bent", "v"], ["y"], name="narrow"),
    ]
    weights = {"w": np.full((4, 64), 0.25, np.float32), "v": np.full((64, 4), 0.5, np.float32)}
    return make_model(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, **weights)


def expect_chain(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Return what the chain makes of x."""
    wide = x @ np.full((4, 64), 0.25, np.float32)
    return np.asarray(np.maximum(wide, 0) @ np.full((64, 4), 0.5, np.float32))


def find_needs(backend: Callable[[], Backend], rows: int, frames: int = 2) -> tuple[int, str]:
    """Return how many bytes runs of so many rows need, as the refusal tells, and its text."""
    with gx.Worker(chain(), backend=backend(), max_bytes=1, frames=frames) as worker:
        with pytest.raises(gx.OutOfMemoryError) as caught:
            worker.schedule(ramp(rows, 4))
        found = re.search(r"needs (\d+) bytes", str(caught.value))
        assert found is not None
        return int(found[1]), str(caught.value)


def held(worker: gx.Worker) -> int:
    """Return what a Worker holds on its device."""
    stats = worker.memory_stats()
    return sum(stats[name] for name in HELD)


def make_simulator() -> Backend:
    device = SimulatorDevice(lambda source: kernel_table()[source])
    return Backend(device, gx.BackendType.SIMULATOR, "for a test")


def test_refusal_reports_both_numbers_what_they_are_of_and_the_node_of_the_largest_buffer() -> None:
    worker = gx.Worker(chain(), backend=make_tracer(), max_bytes=5000, frames=3)
    with worker, pytest.raises(gx.OutOfMemoryError) as caught:
        worker.schedule(ramp(64, 4))
    arena, outputs, weights = 64 * 64 * 4, 64 * 4 * 4, 2 * 64 * 4 * 4
    text = str(caught.value)
    total = arena + 3 * outputs + weights
    assert f"needs {total} bytes (arena {arena}, outputs {outputs} in each of 3 frames" in text
    assert f"weights {weights}, state 0), and max_bytes allows 5000" in text
    assert caught.value.node == "widen+bend" and "a result of 'widen+bend', which takes 16384" in text


@pytest.mark.parametrize("backend", [make_tracer, make_simulator])
def test_as_many_bytes_as_are_needed_suffice_and_one_less_does_not(backend: Callable[[], Backend]) -> None:
    x = ramp(64, 4)
    needed, _ = find_needs(backend, 64)
    uploaded = 2 * x.nbytes
    with gx.Worker(chain(), backend=backend(), max_bytes=needed + uploaded) as worker:
        for _ in range(3):
            worker.run(x)
        assert held(worker) == needed + uploaded
    with gx.Worker(chain(), backend=backend(), max_bytes=needed + uploaded - 1) as worker:
        with pytest.raises(gx.OutOfMemoryError, match=rf"needs {needed + uploaded} bytes .*inputs 1024 in each"):
            worker.run(x)
        with pytest.raises(gx.OutOfMemoryError, match=rf"allows {needed + uploaded - 1};"):
            worker.prepare((64, 4))


def test_nothing_is_allocated_or_compiled_for_what_is_refused() -> None:
    backend = make_tracer()
    with gx.Worker(chain(), backend=backend, max_bytes=5000) as worker:
        for attempt in (worker.schedule, worker.run, worker.prepare):
            with pytest.raises(gx.OutOfMemoryError):
                attempt(ramp(64, 4))
        assert not {"allocate", "load"} & set(trace(backend))
        assert worker.plans == () and held(worker) == 0


@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
def test_worker_goes_on_with_smaller_shapes(backend: gx.BackendType) -> None:
    with gx.Worker(chain(), backend=backend, max_bytes=10_000) as worker:
        for _ in range(2):
            with pytest.raises(gx.OutOfMemoryError):
                worker.run(ramp(64, 4))
            np.testing.assert_allclose(worker.run(ramp(5, 4))[0], expect_chain(ramp(5, 4)), rtol=1e-6)
            assert held(worker) <= 10_000


def test_size_that_fits_though_its_class_does_not_is_planned_by_itself() -> None:
    needed, _ = find_needs(make_tracer, 33, frames=1)
    of_class, _ = find_needs(make_tracer, 64, frames=1)
    limit = needed + 33 * 4 * 4 + 500
    assert limit < of_class
    with gx.Worker(chain(), backend=make_simulator(), max_bytes=limit, frames=1) as worker:
        np.testing.assert_allclose(worker.run(ramp(33, 4))[0], expect_chain(ramp(33, 4)), rtol=1e-6)
        assert worker.plans[0].inputs[0].spec.shape == (33, 4)


def test_growing_gives_back_what_smaller_sizes_took_instead_of_going_beyond() -> None:
    peak = 0
    device = SimulatorDevice(lambda source: kernel_table()[source])
    backend = Backend(device, gx.BackendType.SIMULATOR, "for a test")
    needed, _ = find_needs(make_simulator, 256)
    limit = needed + 2 * 256 * 4 * 4
    with gx.Worker(chain(), backend=backend, max_bytes=limit) as worker:
        for rows in (16, 100, 200, 7, 256, 130):
            np.testing.assert_allclose(worker.run(ramp(rows, 4))[0], expect_chain(ramp(rows, 4)), rtol=1e-6)
            peak = max(peak, held(worker))
            assert held(worker) <= limit
        worker.prepare((256, 4))
        assert held(worker) <= limit
    assert peak > limit // 2


def test_output_of_a_run_stays_readable_when_the_next_one_needs_its_memory() -> None:
    needed, _ = find_needs(make_simulator, 256, frames=1)
    with gx.Worker(chain(), backend=make_simulator(), max_bytes=needed + 256 * 4 * 4, frames=1) as worker:
        request = worker.schedule(ramp(100, 4)).peek_output().readback_request()
        worker.schedule(ramp(256, 4))
        np.testing.assert_allclose(request.result(), expect_chain(ramp(100, 4)), rtol=1e-6)


def test_weights_shared_with_another_worker_count() -> None:
    model, backend = affine(), make_tracer()
    with gx.Worker(model, backend=backend) as first:
        first.run(ramp(2, 3))
        weights = first.memory_stats()["weights"]
        with gx.Worker(model, backend=backend, max_bytes=1) as second, pytest.raises(gx.OutOfMemoryError) as caught:
            second.run(ramp(2, 3))
    assert weights > 0 and f"weights {weights}, " in str(caught.value)


def test_limit_wide_enough_changes_nothing() -> None:
    with gx.Worker(affine(), backend=CPU, max_bytes=1 << 40) as worker:
        np.testing.assert_array_equal(worker.run(ramp(10, 3))[0], expect_affine(ramp(10, 3)))


def test_limit_below_one_byte_is_refused() -> None:
    with pytest.raises(gx.InputError, match="max_bytes must be at least 1, got 0"):
        gx.Worker(affine(), backend=CPU, max_bytes=0)


def test_size_that_is_refused_for_its_inputs_is_in_nobodys_way() -> None:
    with gx.Worker(two_inputs(), backend=make_simulator(), max_bytes=10_000, frames=1) as worker:
        for rows in (2, 400, 10, 300, 3):
            inputs = [ramp(rows, 3), ramp(rows, 3)]
            if rows < 300:
                np.testing.assert_array_equal(worker.run(inputs)[0], 2 * ramp(rows, 3))
            else:
                with pytest.raises(gx.OutOfMemoryError, match="max_bytes allows 10000"):
                    worker.run(inputs)


@pytest.mark.parametrize("planned", [False, True])
def test_method_beyond_the_limit_is_refused_when_it_is_loaded(planned: bool) -> None:
    backend = make_simulator()
    program = gx.Program.build({"forward": chain()}, shapes={"forward": {"x": ((1, 64), 4)}}, backend=backend)
    arenas = gx.HierarchicalAllocator(program.method_meta("forward").allocate())
    memory = gx.MemoryManager(planned_memory=arenas) if planned else None
    with pytest.raises(gx.OutOfMemoryError) as caught:
        program.load_method("forward", memory, max_bytes=1)
    needed = int(str(caught.value).split("needs ")[1].split()[0])
    assert f"needs {needed} bytes" in str(caught.value) and "max_bytes allows 1;" in str(caught.value)
    # What runs of the largest size bring from the host comes beside it.
    with program.load_method("forward", memory, max_bytes=needed + 64 * 4 * 4) as method:
        method.execute([ramp(64, 4)])
        assert method.get_output(0).shape[0] == 64
    with pytest.raises(gx.OutOfMemoryError, match="max_bytes allows"):
        program.load_method("forward", memory, max_bytes=needed - 1)


def test_places_of_inputs_count_and_are_given_back() -> None:
    nodes = [
        helper.make_node("ReduceMax", ["left"], ["high"], keepdims=0),
        helper.make_node("ReduceMin", ["right"], ["low"], keepdims=0),
    ]
    model = make_model(nodes, {"left": ["n", 4], "right": ["m", 4]}, {"high": [], "low": []})
    program = gx.Program.build({"forward": model}, backend=make_simulator())
    with program.load_method("forward", max_bytes=256 * 16 + 2048) as method:
        engine = method._engine
        for left, right in ((256, 1), (1, 256), (256, 1)):
            method.execute([ramp(left, 4), ramp(right, 4)])
            assert method.get_output("high").readback_and_clone() == ramp(left, 4).max()
            assert method.get_output("low").readback_and_clone() == ramp(right, 4).min()
            held = engine.arena.nbytes + engine.frames[0].nbytes + engine.pool.nbytes + engine.binder.nbytes
            assert 256 * 16 < held <= 256 * 16 + 2048


def test_method_without_bounds_goes_on_after_refusals() -> None:
    backend = make_simulator()
    program = gx.Program.build({"forward": two_inputs()}, backend=backend)
    with program.load_method("forward", max_bytes=20_000) as method:
        for rows in (300, 10, 5000, 3, 300, 100):
            inputs = [ramp(rows, 3), ramp(rows, 3)]
            if rows == 5000:
                with pytest.raises(gx.OutOfMemoryError, match="max_bytes allows 20000"):
                    method.execute(inputs)
                continue
            method.execute(inputs)
            np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), 2 * ramp(rows, 3))


def test_state_of_a_method_counts_when_it_is_loaded() -> None:
    program = gx.Program.build({"forward": running_sum()}, shapes={"forward": {"x": ((1, 4), 3)}}, backend=CPU)
    with pytest.raises(gx.OutOfMemoryError, match=r"state 768\), and max_bytes allows 700"):
        program.load_method("forward", max_bytes=700)
    with gx.Module(program, max_bytes=700) as module, pytest.raises(gx.OutOfMemoryError, match="max_bytes allows 700"):
        module.forward(ramp(2, 3))
    with pytest.raises(gx.InputError, match=r"max_bytes must be a whole number, got 1\.5"):
        program.load_method("forward", max_bytes=1.5)  # type: ignore[arg-type]
