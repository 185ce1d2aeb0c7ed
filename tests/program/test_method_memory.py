"""User memory of a Method: accepted and refused buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode
from tests.model.small_models import CPU, ramp, two_layers
from tests.program.arenas import SIMULATOR, CudaArray, aligned, build, expect_two_layers, manage, run
from tests.program.methods import BACKENDS


@pytest.mark.feature("E19", "E23", "E26", "E27", "E28")
@pytest.mark.parametrize("backend", BACKENDS)
def test_planned_memory_is_exactly_what_is_asked_for(backend: gx.BackendType) -> None:
    program = build(backend)
    meta = program.method_meta("forward")
    sizes = [meta.memory_planned_buffer_size(index) for index in range(meta.num_memory_planned_buffers)]
    inputs, outputs = meta.input_tensor_meta(0), meta.output_tensor_meta(0)
    assert sizes[1:3] == [inputs.nbytes, outputs.nbytes] == [8 * 3 * 4, 8 * 2 * 4]
    with gx.Worker(two_layers(), backend=backend) as worker:
        plan = worker.prepare({"x": (8, 3)})
        assert plan is not None
        assert sizes[0] == plan.layout.nbytes > 0
    with program.load_method("forward", manage(*meta.allocate())) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))
    for index, nbytes in enumerate(sizes):
        if not nbytes:
            continue
        buffers = meta.allocate()
        is_host = meta.memory_planned_buffer_device(index) == "host"
        buffers[index] = aligned(nbytes - 1) if is_host else gx.DeviceAllocator(backend).allocate(nbytes - 1)
        with pytest.raises(
            gx.InputError, match=rf"Planned buffer {index} .* needs {nbytes} bytes, got {nbytes - 1}"
        ) as caught:
            program.load_method("forward", manage(*buffers))
        assert caught.value.code == ErrorCode.MEMORY_ALLOCATION_FAILED


@pytest.mark.feature("E26", "E27")
def test_numpy_arrays_are_arenas_on_the_cpu() -> None:
    program = build()
    meta = program.method_meta("forward")
    buffers = [aligned(buffer.nbytes) for buffer in meta.memory_planned_buffers]
    with program.load_method("forward", manage(*buffers)) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))
        x, y = buffers[1].view(np.float32), buffers[2].view(np.float32)
        np.testing.assert_array_equal(x, ramp(8, 3).reshape(-1))
        np.testing.assert_array_equal(y.reshape(8, 2), expect_two_layers(8))


def test_buffers_and_dlpack_are_arenas_on_the_cpu() -> None:
    class Offered:
        """An array of another package."""

        def __init__(self, array: np.ndarray[Any, Any]) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    program = build()
    sizes = [buffer.nbytes for buffer in program.method_meta("forward").memory_planned_buffers]
    buffers = [Offered(aligned(sizes[0])), memoryview(aligned(sizes[1])), aligned(sizes[2])]
    with program.load_method("forward", manage(*buffers)) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))


@pytest.mark.feature("E27")
def test_device_arrays_of_other_packages_are_arenas() -> None:
    program = build(SIMULATOR)
    meta = program.method_meta("forward")
    own = gx.DeviceAllocator(SIMULATOR)
    buffers: list[object] = [
        CudaArray(own.allocate(each.nbytes), each.nbytes) for each in meta.memory_planned_buffers[:4]
    ]
    with program.load_method("forward", manage(*buffers, aligned(meta.memory_planned_buffer_size(4)))) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))


@pytest.mark.feature("E23", "E26", "E27")
def test_larger_blocks_will_do_and_none_where_nothing_is_needed() -> None:
    program = build(SIMULATOR)
    meta = program.method_meta("forward")
    assert meta.memory_planned_buffer_size(3) == 0
    own = gx.DeviceAllocator(SIMULATOR)
    outputs = own.allocate(1000)
    buffers = [own.allocate(1000), own.allocate(1000), outputs, None, bytearray(1000)]
    with program.load_method("forward", manage(*buffers)) as method:
        np.testing.assert_array_equal(run(method, 3), expect_two_layers(3))
        written = outputs.readback_and_clone()[: 3 * 2 * 4].view(np.float32)
        np.testing.assert_array_equal(written.reshape(3, 2), expect_two_layers(3))


@pytest.mark.parametrize("shift", [1, 4, 15, 16, 255])
@pytest.mark.parametrize("backend", [CPU, SIMULATOR])
def test_blocks_with_room_for_it_may_start_anywhere(backend: gx.BackendType, shift: int) -> None:
    program = build(backend)
    meta, own = program.method_meta("forward"), gx.DeviceAllocator(backend)
    buffers = meta.allocate()
    for index in range(3):
        nbytes = meta.memory_planned_buffer_size(index) + 15
        whole = own.allocate(nbytes + shift)
        buffers[index] = aligned(nbytes, shift) if backend is CPU else CudaArray(whole, nbytes, offset=shift)
    with program.load_method("forward", manage(*buffers)) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))


def test_memory_lives_as_long_as_the_method() -> None:
    program = build()
    method = program.load_method("forward", manage(*program.method_meta("forward").allocate()))
    junk = [np.full(300, 7, np.uint8) for _ in range(50)]
    np.testing.assert_array_equal(run(method), expect_two_layers(8))
    assert len(junk) == 50
    method.close()


@pytest.mark.feature("E23")
@pytest.mark.parametrize(
    ("index", "block", "message"),
    [
        (
            2,
            aligned(64, 4),
            "must start at a multiple of 16 bytes; .* is 4 past one, and 64 bytes from .* need 76, got 64",
        ),
        (1, np.zeros((64, 64), np.uint8).T[::2], "not contiguous: strides"),
        (2, bytes(1 << 16), "is read-only|must start"),
        (0, memoryview(aligned(1 << 12)).toreadonly(), "read-only"),
        (2, aligned(63), r"Planned buffer 2 \(outputs\) of method 'forward' needs 64 bytes, got 63"),
        (0, None, "a NoneType can't be it"),
        (0, "memory", "a str can't be it"),
    ],
)
def test_bad_block_is_refused_on_the_cpu(index: int, block: object, message: str) -> None:
    program = build()
    buffers = program.method_meta("forward").allocate()
    buffers[index] = block
    with pytest.raises(gx.InputError, match=message):
        program.load_method("forward", manage(*buffers))
    program.load_method("forward").close()


@pytest.mark.feature("E23")
def test_bad_block_is_refused_on_a_device() -> None:
    program = build(SIMULATOR)
    meta = program.method_meta("forward")
    own = gx.DeviceAllocator(SIMULATOR)
    other = gx.DeviceAllocator(CPU).allocate(1000)
    for block, message in (
        (aligned(1000), "it lies on the host, expected on simulator"),
        (other, "it lies on cpu, expected on simulator"),
        (CudaArray(own.allocate(1000), meta.memory_planned_buffer_size(0), offset=4), "is 4 past one"),
        (CudaArray(own.allocate(1000), 1000, is_read_only=True), "read-only"),
    ):
        buffers = meta.allocate()
        buffers[0] = block
        with pytest.raises(gx.InputError, match=message):
            program.load_method("forward", manage(*buffers))
    buffers = meta.allocate()
    buffers[4] = own.allocate(1000)
    with pytest.raises(gx.InputError, match="expected on the host"):
        program.load_method("forward", manage(*buffers))


@pytest.mark.feature("E23")
@pytest.mark.parametrize(
    ("backend", "reported"),
    [
        (CPU, r"3 planned buffers \(activations, inputs, outputs\)"),
        (SIMULATOR, r"5 planned buffers \(activations, inputs, outputs, state, staging\)"),
    ],
)
def test_number_of_blocks_is_reported(backend: gx.BackendType, reported: str) -> None:
    program = build(backend)
    with pytest.raises(gx.InputError, match=f"{reported}, got 1 blocks"):
        program.load_method("forward", manage(aligned(1000)))


@pytest.mark.feature("E21")
def test_memory_manager_takes_what_it_names() -> None:
    with pytest.raises(gx.InputError, match=r"method_allocator must have allocate\(nbytes\); a int has not"):
        gx.MemoryManager(method_allocator=3)  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match=r"HierarchicalAllocator\(arenas\)"):
        gx.MemoryManager(planned_memory=[aligned(3)])  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match=r"temp_allocator must have allocate\(nbytes\)"):
        gx.MemoryManager(temp_allocator="none")  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match="memory must be a MemoryManager, got a list"):
        build().load_method("forward", [aligned(8)])  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match="a list with one block for each buffer"):
        gx.HierarchicalAllocator(aligned(3))  # type: ignore[arg-type]


def test_wrong_option_names_the_error_code() -> None:
    program = build()
    buffers = program.method_meta("forward").allocate()
    buffers[0] = aligned(1)
    with pytest.raises(gx.InputError) as caught:
        program.load_method("forward", manage(*buffers))
    assert caught.value.code == ErrorCode.MEMORY_ALLOCATION_FAILED
