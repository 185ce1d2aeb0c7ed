"""State of Methods: carried from run to run, shared, set by hand, and in planned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.device import Region
from gpuexec.execution.resources.fence import Fence
from gpuexec.ir.spec import TensorSpec
from gpuexec.program.method_memory import StateBlocks
from gpuexec.program.method_plan import MemoryNeed, find_need, lay_out_state
from tests.model.small_models import CPU, GATES, affine, expect_affine, hold, make_tracer, ramp, trace
from tests.model.state_models import cache, gated_sum, recurrent, running_sum

BACKENDS = [CPU, gx.BackendType.SIMULATOR]
SUM_SHAPES = {"x": ((1, 4), 3)}


def load(
    model: gx.Model,
    backend: gx.BackendType | Backend,
    shapes: Any = SUM_SHAPES,
    *,
    planned: bool = True,
    **options: Any,
) -> gx.Method:
    program = gx.Program.build({"forward": model}, shapes={"forward": shapes}, backend=backend)
    memory = None
    if planned:
        arenas = program.method_meta("forward").allocate()
        memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(arenas), **options)
    return program.load_method("forward", memory)


@pytest.mark.feature("E16", "E33", "E38", "E57")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("planned", [False, True])
def test_state_is_carried_from_run_to_run(backend: gx.BackendType, planned: bool) -> None:
    with load(running_sum(), backend, planned=planned) as method:
        assert method.method_meta.num_attributes == 1
        total = np.zeros((2, 3), np.float32)
        for turn in range(20):
            x = ramp(2, 3) * np.float32(turn)
            total = total + x
            method.execute([x], wait=bool(turn % 3))
            np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), 2 * total)
        np.testing.assert_array_equal(method.get_attribute("held"), total)
        np.testing.assert_array_equal(method.get_attribute("total"), total)
        np.testing.assert_array_equal(method.state.get(), total)
        constant = method.get_attribute("two")
        assert constant.item() == 2 and not constant.flags.writeable
        for call in (method.get_attribute, lambda name: method.set_attribute(name, total)):
            with pytest.raises(gx.InputError, match="'gone'"):
                call("gone")
        method.set_attribute("held", 5 * ramp(2, 3))
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), 2 * (5 * ramp(2, 3) + x))
        method.state.reset()
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), 2 * x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("planned", [False, True])
def test_array_set_for_a_memory_serves_one_run(backend: gx.BackendType, planned: bool) -> None:
    with load(running_sum(), backend, planned=planned) as method:
        method.set_input(0, ramp(2, 3))
        start = 7 * ramp(2, 3)
        method.set_input("held", start)
        start[...] = 0
        for times in (8, 9, 10):
            method.execute()
            np.testing.assert_array_equal(method.get_attribute("held"), times * ramp(2, 3))
        with pytest.raises(gx.InputError, match="'held' expects"):
            method.set_input("held", ramp(2, 4))
        with pytest.raises(gx.InputError, match="float32"):
            method.set_input("held", ramp(2, 3).astype(np.int32))
        method.execute()
        np.testing.assert_array_equal(method.get_attribute("held"), 11 * ramp(2, 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("planned", [False, True])
def test_memory_grows_where_it_lies(backend: gx.BackendType, planned: bool) -> None:
    model = cache().bind_state({"present": "past"}, capacity=8)
    with load(model, backend, {"x": (2, 1, 3)}, planned=planned) as method:
        rows = np.zeros((2, 0, 3), np.float32)
        for turn in range(8):
            x = ramp(2, 1, 3) * np.float32(turn + 1)
            rows = np.concatenate([rows, 2 * x], 1)
            method.execute([x])
            np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), rows.sum(1))
        np.testing.assert_array_equal(method.get_attribute("past"), rows)
        with pytest.raises(gx.GpuexecError, match="capacity"):
            method.execute()
        method.state.reset()
        method.execute([x])
        np.testing.assert_array_equal(method.get_attribute("past"), 2 * x)
        method.set_attribute("past", rows[:, :5])
        method.execute([x])
        np.testing.assert_array_equal(method.get_attribute("past"), np.concatenate([rows[:, :5], 2 * x], 1))


def test_planned_state_allocates_nothing_on_the_device() -> None:
    for model, shapes in (
        (running_sum(), SUM_SHAPES),
        (cache().bind_state({"present": "past"}, capacity=40), {"x": (2, 1, 3)}),
    ):
        backend = make_tracer()
        with load(model, backend, shapes) as method:
            x = np.zeros((2, 1, 3) if "past" in str(model.memories) else (4, 3), np.float32)
            before = trace(backend).count("allocate")
            for turn in range(36):
                method.execute([x], wait=bool(turn % 4))
            method.state.reset()
            method.execute()
            assert trace(backend).count("allocate") == before


def test_runs_that_are_not_sure_yet_never_exceed_planned_state(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open_backend(CPU).device.create_stream()
    program = gx.Program.build({"forward": running_sum()}, shapes={"forward": SUM_SHAPES}, backend=CPU)
    arenas = gx.HierarchicalAllocator(program.method_meta("forward").allocate())
    with program.load_method("forward", gx.MemoryManager(planned_memory=arenas), stream=stream) as method:
        method.set_input(0, ramp(2, 3))
        gate, settle = hold(stream), Fence.settle

        def let_go(fence: Fence) -> None:
            gate.set()
            settle(fence)

        monkeypatch.setattr(Fence, "settle", let_go)
        try:
            for _ in range(8):
                method.execute(wait=False)
        finally:
            gate.set()
        np.testing.assert_array_equal(method.get_attribute("held"), 8 * ramp(2, 3))


@pytest.mark.feature("E33")
@pytest.mark.parametrize(("backend", "nbytes"), [(CPU, 3 * 256), (gx.BackendType.SIMULATOR, 4 * 256)])
def test_planned_state_is_of_the_size_given(backend: gx.BackendType, nbytes: int) -> None:
    program = gx.Program.build({"forward": running_sum()}, shapes={"forward": SUM_SHAPES}, backend=backend)
    meta = program.method_meta("forward")
    assert meta.memory_planned_buffers[3].purpose == "state"
    assert meta.memory_planned_buffer_size(3) == nbytes
    buffers = meta.allocate()
    buffers[3] = gx.DeviceAllocator(backend).allocate(nbytes - 1)
    reported = rf"Planned buffer 3 \(state\) of method 'forward' needs {nbytes} bytes, got {nbytes - 1}"
    with pytest.raises(gx.InputError, match=reported):
        program.load_method("forward", gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(buffers)))


def run_and_keep(method: gx.Method, kept: list[object], times: int) -> None:
    for _ in range(times):
        method.execute()
        kept.append(method.state.snapshot())


def test_snapshot_that_planned_memory_has_no_room_for_says_what_helps() -> None:
    kept: list[object] = []
    with load(running_sum(), CPU) as method:
        method.set_input(0, ramp(2, 3))
        with pytest.raises(gx.OutOfMemoryError, match=r"planned for state has 768 bytes; .* temp_allocator"):
            run_and_keep(method, kept, 6)
        np.testing.assert_array_equal(method.get_attribute("held"), len(kept) * ramp(2, 3))
        kept.clear()
        method.execute()


def test_snapshots_beyond_planned_memory_lie_with_the_temp_allocator() -> None:
    temp, kept = gx.DeviceAllocator(CPU), []  # type: ignore[var-annotated]
    with load(running_sum(), CPU, temp_allocator=temp) as method:
        method.set_input(0, ramp(2, 3))
        run_and_keep(method, kept, 6)
        method.state.restore(kept[2])
        np.testing.assert_array_equal(method.get_attribute("held"), 3 * ramp(2, 3))
        assert temp.nbytes > 0


def test_memory_that_grows_without_end_is_no_planned_one() -> None:
    model = cache().bind_state({"present": "past"})
    program = gx.Program.build({"forward": model}, shapes={"forward": {"x": (2, 1, 3)}}, backend=CPU)
    meta = program.method_meta("forward")
    assert "memory 'past' grows without a capacity" in meta.gaps
    with pytest.raises(gx.InputError, match="'past' grows without a capacity"):
        program.load_method("forward", gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(meta.allocate())))


@pytest.mark.feature("E38", "E57")
@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_go_on_from_one_state(backend: gx.BackendType) -> None:
    models = {"forward": running_sum(), "other": running_sum()}
    program = gx.Program.build(models, shapes=dict.fromkeys(models, SUM_SHAPES), backend=backend)
    with program.load_method("forward") as first, program.load_method("other", state=first.state) as second:
        for turn in range(1, 6):
            (first if turn % 2 else second).execute([ramp(2, 3)], wait=False)
            np.testing.assert_array_equal(second.get_attribute("held"), turn * ramp(2, 3))
        assert first.state is second.state
        second.set_attribute("held", -ramp(2, 3))
        first.execute()
        np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), 0 * ramp(2, 3))
        with program.load_method("forward") as apart:
            apart.execute([ramp(2, 3)])
            np.testing.assert_array_equal(apart.get_output(0).readback_and_clone(), 2 * ramp(2, 3))
    with (
        gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as foreign,
        pytest.raises(gx.InputError, match=r"holds lstm.* expected held <- total"),
    ):
        program.load_method("other", state=foreign.state)
    other = next(each for each in BACKENDS if each is not backend)
    with program.load_method("forward", backend=other) as far, pytest.raises(gx.InputError, match="another device"):
        program.load_method("other", state=far.state)


def test_state_is_refused_by_a_model_without_memories() -> None:
    with gx.Worker(affine(), backend=CPU) as plain, gx.Worker(running_sum(), backend=CPU) as worker:
        with pytest.raises(gx.InputError, match="has no memories"):
            plain.state = worker.state
        np.testing.assert_array_equal(plain.run(ramp(2, 3))[0], expect_affine(ramp(2, 3)))


def test_failed_run_leaves_the_state_as_it_was() -> None:
    model, gate = gated_sum()
    GATES.open[gate].set()
    with load(model, CPU) as method:
        method.execute([ramp(2, 3)])
        GATES.failures[gate] = ValueError("on purpose")
        with pytest.raises(gx.GpuexecError, match="on purpose"):
            method.execute()
        np.testing.assert_array_equal(method.get_attribute("held"), ramp(2, 3))
        method.execute()
        np.testing.assert_array_equal(method.get_attribute("held"), 2 * ramp(2, 3))


def test_steps_given_up_leave_the_state_as_it_was() -> None:
    with load(running_sum(), gx.BackendType.SIMULATOR) as method:
        method.execute([ramp(2, 3)])
        method.step()
        method.reset()
        np.testing.assert_array_equal(method.get_attribute("held"), ramp(2, 3))
        list(iter(method.step, None))
        np.testing.assert_array_equal(method.get_attribute("held"), 2 * ramp(2, 3))


def test_state_blocks_are_given_apart_and_taken_back() -> None:
    memory = gx.DeviceAllocator(CPU).allocate(1024)._content.region.memory

    def refuse(nbytes: int) -> Any:
        raise gx.OutOfMemoryError("no more.")

    blocks = StateBlocks(Region(memory, 0, 1024), refuse)
    rows = [blocks.allocate(nbytes) for nbytes in (256, 300, 1)]
    assert [row.address - memory.address for row in rows] == [0, 256, 768]
    with pytest.raises(gx.OutOfMemoryError, match="no more"):
        blocks.allocate(1)
    rows[1].free()
    rows[1].free()
    assert blocks.allocate(512).address - memory.address == 256
    rows.clear()
    assert blocks.allocate(1024).address == memory.address


def test_needs_of_memories() -> None:
    swapped, grown = running_sum().memories[0], cache().bind_state({"present": "past"}, capacity=8).memories[0]
    start, end = TensorSpec((2, 3), np.dtype(np.float32)), TensorSpec((9, 3), np.dtype(np.float32))
    assert find_need(swapped, start, end) == MemoryNeed("held", 108, False)
    assert find_need(swapped, end, None).held_nbytes == 3 * 256
    need = find_need(grown, TensorSpec((2, 0, 3), np.dtype(np.float32)), None)
    assert (need.nbytes, need.grows, need.held_nbytes) == (2 * 8 * 3 * 4, True, 512)
    assert lay_out_state((need, need), has_kernels=True) == ({"past": (256, 192)}, 512, 512 + 1024)
    assert lay_out_state((need,), has_kernels=False) == ({}, 0, 512)
