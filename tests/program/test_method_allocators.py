"""Dynamic memory of a Method: the user's allocators, or a refusal without one."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from tests.model.small_models import CPU, affine, expect_affine, ramp
from tests.model.staged_models import MODELS, SIDE, inputs
from tests.program.arenas import aligned, build, expect_two_layers, manage, run
from tests.program.methods import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_and_inputs_may_be_the_users(backend: gx.BackendType) -> None:
    program = build(backend)
    meta = program.method_meta("forward", planned_inputs=False, planned_outputs=False)
    assert [buffer.nbytes > 0 for buffer in meta.memory_planned_buffers] == [True]
    assert not meta.input_tensor_meta(0).is_memory_planned and not meta.output_tensor_meta(0).is_memory_planned
    kept = gx.DeviceAllocator(backend)
    memory = manage(*meta.allocate(), method_allocator=kept)
    with program.load_method("forward", memory, planned_inputs=False, planned_outputs=False) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))
        assert kept.nbytes >= meta.output_nbytes(0)


def test_memory_that_nobody_gives_is_named() -> None:
    program = build()
    meta = program.method_meta("forward", planned_outputs=False)
    with pytest.raises(gx.OutOfMemoryError, match="64 bytes are needed, and there is no method_allocator"):
        program.load_method("forward", manage(*meta.allocate()), planned_outputs=False)


def test_allocators_that_have_no_room_say_so() -> None:
    class Empty:
        """Has nothing."""

        def allocate(self, nbytes: int) -> object:
            return None

    program = build()
    meta = program.method_meta("forward", planned_outputs=False)
    for allocator, message in (
        (Empty(), "the method_allocator has no room for 64 bytes"),
        (gx.BumpAllocator(aligned(63)), "64 bytes are needed, 63 of 63 are left"),
        (gx.DeviceAllocator(CPU, 63), "64 bytes are too many: 0 of 63 are given"),
    ):
        with pytest.raises(gx.OutOfMemoryError, match=message):
            program.load_method("forward", manage(*meta.allocate(), method_allocator=allocator), planned_outputs=False)


def test_bump_allocator_gives_slices() -> None:
    block = aligned(1024)
    bump = gx.BumpAllocator(block)
    first, second = bump.allocate(10), bump.allocate(100)
    assert isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    assert (first.ctypes.data, second.ctypes.data) == (block.ctypes.data, block.ctypes.data + 256)
    assert bump.nbytes == 356
    with pytest.raises(gx.InputError, match="one array of bytes"):
        gx.BumpAllocator(np.zeros(4, np.float32))


def test_method_without_bounds_needs_a_dynamic_allocator() -> None:
    program = gx.Program.build({"forward": affine()}, backend=CPU)
    meta = program.method_meta("forward")
    assert meta.input_tensor_meta(0).sizes == (None, 3)
    assert meta.num_memory_planned_buffers == 0
    assert meta.gaps == ("input 'x' has no bound on axis 0 (n)",)
    with pytest.raises(
        gx.InputError, match=r"needs memory whose size only a run knows: input 'x' has no bound on axis 0"
    ):
        program.load_method("forward", manage())
    temp, kept = gx.DeviceAllocator(CPU), gx.DeviceAllocator(CPU)
    for memory in (None, manage(temp_allocator=temp, method_allocator=kept)):
        with program.load_method("forward", memory) as method:
            for rows in (3, 40, 7):
                np.testing.assert_array_equal(run(method, rows), expect_affine(ramp(rows, 3)))
    assert kept.nbytes > 0


@pytest.mark.feature("E21", "E22")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_method_of_several_plans_takes_the_rest_from_its_allocators(name: str, backend: gx.BackendType) -> None:
    staged = MODELS[name]
    shapes = {"forward": {"x": (SIDE, SIDE)}}
    program = gx.Program.build({"forward": staged.load()}, shapes=shapes, backend=backend)
    meta = program.method_meta("forward")
    assert bool(meta.gaps) != staged.is_whole(open_backend(backend))
    if not meta.gaps:
        return
    with pytest.raises(
        gx.InputError, match=r"needs memory whose size only a run knows: .* Give MemoryManager\(temp_allocator=\.\.\."
    ):
        program.load_method("forward", manage(*meta.allocate()))
    temp, kept = gx.DeviceAllocator(backend), gx.DeviceAllocator(backend)
    memory = manage(*meta.allocate(), temp_allocator=temp, method_allocator=kept)
    with program.load_method("forward", memory) as method:
        for number in range(3):
            method.execute([inputs(number)])
            staged.check(inputs(number), [output.readback_and_clone() for output in method.get_outputs()])
        assert temp.nbytes > 0
