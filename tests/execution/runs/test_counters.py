"""Counters of blocks beside arenas: 0 before each run, whichever plans, replays and Methods take turns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region
from gpuexec.execution.resources.memory import Arena, BorrowedMemory
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.devices.execute import specs_of
from tests.devices.opening import make_simulator
from tests.model.small_models import make_model, make_tracer, trace

Array = np.ndarray[Any, Any]
DEPTH = 2048


def matrix(seed: int, *shape: int) -> Array:
    """Return small integers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def sliced(columns: int = 8) -> gx.Model:
    """Return a product whose inner extent is divided into slices, which count each other."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    shapes = {"x": ["n", DEPTH]}, {"y": ["n", columns]}
    return make_model([node], *shapes, TensorProto.FLOAT, w=matrix(columns, DEPTH, columns))


def expect(x: Array, columns: int = 8) -> Array:
    return x @ matrix(columns, DEPTH, columns)


def find_nbytes(rows: int) -> tuple[int, int]:
    """Return the bytes of the arena and of the counters of the plan for so many rows."""
    model = sliced()
    plan = plan_graph(model.graph, specs_of({"x": matrix(0, rows, DEPTH)}), Target.named("sm_80"), model.dims).plan
    return plan.layout.nbytes, plan.counters_nbytes


@pytest.fixture
def simulator() -> Backend:
    return Backend(make_simulator(check_kernels=True), gx.BackendType.SIMULATOR, "")


def test_plans_of_one_engine_take_turns_with_its_counters(simulator: Backend) -> None:
    """Some need more of them than others, and more than those before."""
    assert find_nbytes(3)[1] and find_nbytes(40)[1] > find_nbytes(3)[1]
    with gx.Worker(sliced(), backend=simulator) as worker:
        for rows in (3, 40, 3, 40, 33, 3):
            x = matrix(rows, rows, DEPTH)
            np.testing.assert_array_equal(worker.run(x)[0], expect(x))


def test_replays_have_counters_of_their_own(simulator: Backend) -> None:
    x = matrix(1, 40, DEPTH)
    with gx.Worker(sliced(), backend=simulator) as worker, worker.record(x) as first, worker.record(x) as second:
        streams = [simulator.device.create_stream() for _ in range(2)]
        for number in range(4):
            given = x + np.float32(number)
            run = worker.schedule(given)
            made = [each.submit(given, stream=streams[(number + n) % 2]) for n, each in enumerate((first, second))]
            for tensors in (run.peek_output(), *[each["y"] for each in made]):
                assert isinstance(tensors, gx.Tensor)
                np.testing.assert_array_equal(tensors.readback_and_clone(), expect(given))


@pytest.mark.parametrize("is_users", [False, True])
def test_methods_over_the_same_memory_clear_their_counters(simulator: Backend, is_users: bool) -> None:
    models = {"forward": sliced(), "other": sliced(16)}
    program = gx.Program.build(models, shapes={key: {"x": ((1, 40), DEPTH)} for key in models}, backend=simulator)
    metas = [program.method_meta(name) for name in models]
    if is_users:
        largest = [max(metas, key=lambda meta: meta.memory_planned_buffers[n].nbytes) for n in range(3)]
        blocks = [meta.allocate()[n] for n, meta in enumerate(largest)]
        blocks += metas[0].allocate()[3:]
        memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(blocks))
        methods = [program.load_method(name, memory) for name in models]
    else:
        methods = [program.load_method(name, share_arenas=True) for name in models]
    for rows, (method, columns) in itertools.product((40, 3), zip(methods, (8, 16), strict=True)):
        x = matrix(rows, rows, DEPTH)
        for _ in range(2):
            method.execute([x])
            np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(x, columns))
    for method in methods:
        method.close()


def test_planned_memory_has_room_for_counters(simulator: Backend) -> None:
    program = gx.Program.build({"forward": sliced()}, shapes={"forward": {"x": ((1, 40), DEPTH)}}, backend=simulator)
    arena, counters = find_nbytes(40)
    activations = program.method_meta("forward").memory_planned_buffers[0]
    assert activations.nbytes == -(-arena // 256) * 256 + counters


def test_limit_counts_counters(simulator: Backend) -> None:
    x = matrix(2, 40, DEPTH)
    with gx.Worker(sliced(), backend=simulator, frames=1) as worker:
        worker.run(x)
        needed = worker.memory_stats()["arena"]
    arena, counters = find_nbytes(40)
    assert needed == arena + counters


def test_counters_are_set_to_0_where_they_get_memory_and_whenever_others_may_have_written() -> None:
    backend = make_tracer()
    stream = backend.device.create_stream()
    arena = Arena(backend)
    arena.reserve(1000)
    assert arena.reserve_counters(0, 1000, stream) is None and trace(backend) == trace(backend)
    small = arena.reserve_counters(64, 1000, stream)
    generation = arena.generation
    assert small is not None and arena.reserve_counters(16, 1000, stream) is small
    arena.clear_counters(stream)
    assert arena.generation == generation
    large = arena.reserve_counters(128, 1000, stream)
    assert large is not None and large.memory is not small.memory and arena.generation == generation + 1
    assert arena.nbytes == 1000 + 64 + 128
    arena.release_retired()
    assert arena.nbytes == 1000 + 128
    arena.free()
    assert arena.nbytes == 0

    given = BorrowedMemory(4096, 1024 + 64, None)
    arena = Arena(backend, None, given)
    assert arena.reserve(1000) is given
    held = arena.reserve_counters(64, 1000, stream)
    assert held == Region(given, 1024, 64) and arena.reserve_counters(16, 900, stream) is held
    beyond = arena.reserve_counters(128, 1000, stream)
    assert beyond is not None and beyond.memory is not given
