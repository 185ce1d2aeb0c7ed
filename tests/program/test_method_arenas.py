"""Arenas of a Method: allocators given or left out, and planned inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.model.small_models import ramp, trace
from tests.program.small_programs import build, expect_layers, own_memory, read

X = ramp(8, 3)


def aligned(nbytes: int, shift: int = 0) -> np.ndarray[Any, Any]:
    """Return host bytes that start ``shift`` past a multiple of 256."""
    raw = np.zeros(nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + shift
    return raw[start : start + nbytes]


def allocate(backend: Backend, meta: gx.MethodMeta) -> list[object]:
    """Return the planned buffers of a method from allocators of the user's own, host memory where it lies there."""
    allocator = gx.DeviceAllocator(backend)
    return [
        aligned(each.nbytes) if each.device == "host" else allocator.allocate(each.nbytes)
        for each in meta.memory_planned_buffers
    ]


def run(method: gx.Method, x: Any = X) -> Any:
    method.execute([x])
    return read(method)


@pytest.mark.feature("E21")
@pytest.mark.parametrize("given", range(8))
def test_each_of_three_allocators_may_be_left_out(given: int, backend: Backend) -> None:
    program = build(backend)
    meta = program.method_meta("forward")
    memory = gx.MemoryManager(
        method_allocator=gx.DeviceAllocator(backend) if given & 1 else None,
        planned_memory=gx.HierarchicalAllocator(meta.allocate()) if given & 2 else None,
        temp_allocator=gx.DeviceAllocator(backend) if given & 4 else None,
    )
    with program.load_method("forward", memory) as method:
        for rows in (8, 1, 5):
            np.testing.assert_array_equal(run(method, ramp(rows, 3)), expect_layers(ramp(rows, 3)))


@pytest.mark.feature("E26", "E27")
@on("tracer")
def test_with_arenas_of_the_users_nothing_is_allocated(backend: Backend) -> None:
    program = build(backend)
    memory = own_memory(program.method_meta("forward"))
    with program.load_method("forward"):  # brings the weights to the device
        before = len(trace(backend))
        with program.load_method("forward", memory) as method:
            method.set_input(0, X)
            for _ in range(3):
                method.execute(wait=False)
        assert "allocate" not in trace(backend)[before:]
        before = len(trace(backend))
        with program.load_method("forward") as method:  # memory of its own
            method.execute([X], wait=False)
        assert "allocate" in trace(backend)[before:]


@pytest.mark.feature("E25")
def test_allocators_give_what_they_have_and_say_when_it_is_all(backend: Backend) -> None:
    program = build(backend)
    meta = program.method_meta("forward", planned_outputs=False)

    def load(allocator: object) -> gx.Method:
        return program.load_method("forward", own_memory(meta, method_allocator=allocator), planned_outputs=False)

    enough = gx.DeviceAllocator(backend, 64)
    with load(enough) as method:
        np.testing.assert_array_equal(run(method), expect_layers(X))
        assert enough.nbytes == 64
    with pytest.raises(gx.OutOfMemoryError, match="64 bytes are too many: 0 of 63 are given") as caught:
        load(gx.DeviceAllocator(backend, 63))
    assert caught.value.code == 0x21
    bump = gx.BumpAllocator(aligned(320))
    assert [len(bump.allocate(nbytes)) for nbytes in (10, 64)] == [10, 64]  # type: ignore[arg-type]
    with pytest.raises(gx.OutOfMemoryError, match="1 bytes are needed, 0 of 320 are left"):
        bump.allocate(1)


@pytest.mark.feature("E33")
@pytest.mark.parametrize("planned_inputs", [True, False])
@pytest.mark.parametrize("planned_outputs", [True, False])
def test_inputs_and_outputs_are_planned_or_not(planned_inputs: bool, planned_outputs: bool, backend: Backend) -> None:
    program = build(backend)
    options: dict[str, bool] = {"planned_inputs": planned_inputs, "planned_outputs": planned_outputs}
    meta = program.method_meta("forward", **options)
    assert meta.input_tensor_meta(0).is_memory_planned is planned_inputs
    assert meta.output_tensor_meta(0).is_memory_planned is planned_outputs
    sizes = dict.fromkeys(("inputs", "outputs"), 0)
    sizes |= {each.purpose: each.nbytes for each in meta.memory_planned_buffers}
    assert (sizes["inputs"], sizes["outputs"]) == (planned_inputs * 96, planned_outputs * 64)
    kept = gx.DeviceAllocator(backend)
    with program.load_method("forward", own_memory(meta, method_allocator=kept), **options) as method:
        for rows in (8, 1, 5):
            np.testing.assert_array_equal(run(method, ramp(rows, 3)), expect_layers(ramp(rows, 3)))
    wanted = (not planned_outputs) or (not planned_inputs and backend.device.target.has_kernels)
    assert (kept.nbytes > 0) == wanted
    if wanted:
        with pytest.raises(gx.OutOfMemoryError, match="bytes are needed, and there is no method_allocator"):
            load_and_run(program, own_memory(meta), options)


def load_and_run(program: gx.Program, memory: gx.MemoryManager, options: dict[str, bool]) -> None:
    with program.load_method("forward", memory, **options) as method:  # type: ignore[arg-type]
        run(method)
