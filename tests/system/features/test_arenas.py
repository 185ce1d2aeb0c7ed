"""Rows on a Method's memory: ownership, accepted and refused buffers, planned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU, ramp, trace, two_layers
from tests.model.staged_models import MODELS, inputs
from tests.model.state_models import running_sum
from tests.system.features.marks import on
from tests.system.features.programs import build, expect_layers, own_memory, read

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


def manage(blocks: list[object]) -> gx.MemoryManager:
    return gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(blocks))


def run(method: gx.Method, x: Any = X) -> Any:
    method.execute([x])
    return read(method)


@pytest.mark.parametrize("given", range(8))
def test_e21_each_of_three_allocators_may_be_left_out(given: int, backend: Backend) -> None:
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


def test_e21_what_is_no_allocator_is_refused() -> None:
    for options, message in (
        ({"method_allocator": 3}, r"method_allocator must have allocate\(nbytes\)"),
        ({"temp_allocator": "none"}, r"temp_allocator must have allocate\(nbytes\)"),
        ({"planned_memory": [aligned(8)]}, r"HierarchicalAllocator\(arenas\)"),
    ):
        with pytest.raises(gx.InputError, match=message):
            gx.MemoryManager(**options)  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match="memory must be a MemoryManager, got a list"):
        build(CPU).load_method("forward", [aligned(8)])  # type: ignore[arg-type]


def test_e21_e22_what_is_not_planned_comes_from_the_allocators(backend: Backend) -> None:
    staged = MODELS["read"]  # several plans, whose sizes only a run knows
    program = gx.Program.build({"forward": staged.load()}, backend=backend)
    meta = program.method_meta("forward")
    assert meta.gaps
    with pytest.raises(gx.InputError, match=r"size only a run knows.*temp_allocator"):
        program.load_method("forward", own_memory(meta))
    kept, temp = gx.DeviceAllocator(backend), gx.DeviceAllocator(backend)
    memory = own_memory(meta, method_allocator=kept, temp_allocator=temp)
    with program.load_method("forward", memory) as method:
        for number in range(3):
            staged.check(inputs(number), [run(method, inputs(number))])
    assert temp.nbytes > 0


@on("tracer")
def test_e26_e27_with_arenas_of_the_users_nothing_is_allocated(backend: Backend) -> None:
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


def test_e26_e27_arenas_are_the_users_or_the_methods_own(backend: Backend) -> None:
    program = build(backend)
    blocks = allocate(backend, program.method_meta("forward"))
    with program.load_method("forward", manage(blocks)) as users, program.load_method("forward") as own:
        for rows in (8, 3):
            for method in (users, own):
                np.testing.assert_array_equal(run(method, ramp(rows, 3)), expect_layers(ramp(rows, 3)))
        run(users)
        outputs = blocks[2]
        assert isinstance(outputs, gx.Tensor)
        np.testing.assert_array_equal(  # the result lies in the user's bytes
            outputs.readback_and_clone()[:64].view(np.float32).reshape(8, 2), expect_layers(X)
        )


class CudaArray:
    """Bytes of a device as other packages offer them."""

    def __init__(self, tensor: gx.Tensor, nbytes: int) -> None:
        self.owner = tensor
        where = (tensor._content.region.address, False)
        described = {"shape": (nbytes,), "typestr": "|u1", "data": where, "strides": None}
        self.__cuda_array_interface__ = {**described, "stream": None, "version": 3}


@on("simulator")
def test_e27_arenas_are_device_memory_of_other_packages(backend: Backend) -> None:
    program = build(backend)
    meta = program.method_meta("forward")
    blocks: list[object] = [
        CudaArray(block, each.nbytes) if isinstance(block, gx.Tensor) else block
        for block, each in zip(allocate(backend, meta), meta.memory_planned_buffers, strict=True)
    ]
    with program.load_method("forward", manage(blocks)) as method:
        np.testing.assert_array_equal(run(method), expect_layers(X))


@pytest.mark.parametrize("index", range(5))
def test_e23_a_block_too_small_is_refused_with_both_numbers(index: int, backend: Backend) -> None:
    program = build(backend, forward=two_layers())
    meta = program.method_meta("forward")
    blocks = allocate(backend, meta)
    nbytes = meta.memory_planned_buffer_size(index) if index < len(blocks) else 0
    if not nbytes:  # nothing is needed there, so nothing will do
        blocks[index : index + 1] = [None] if index < len(blocks) else []
        with program.load_method("forward", manage(blocks)) as method:
            np.testing.assert_array_equal(run(method), expect_layers(X))
        return
    is_host = meta.memory_planned_buffer_device(index) == "host"
    blocks[index] = aligned(nbytes - 1) if is_host else gx.DeviceAllocator(backend).allocate(nbytes - 1)
    with pytest.raises(
        gx.InputError, match=rf"Planned buffer {index} .* needs {nbytes} bytes, got {nbytes - 1}"
    ) as caught:
        program.load_method("forward", manage(blocks))
    assert caught.value.code == 0x21
    with program.load_method("forward", manage(allocate(backend, meta))) as method:
        np.testing.assert_array_equal(run(method), expect_layers(X))


def test_e23_the_number_of_blocks_is_checked(backend: Backend) -> None:
    program = build(backend)
    meta = program.method_meta("forward")
    with pytest.raises(gx.InputError, match=rf"{meta.num_memory_planned_buffers} planned buffers .*, got 1 blocks"):
        program.load_method("forward", manage(meta.allocate()[:1]))


@on("cpu")
def test_e23_alignment_and_kind_are_checked_on_the_cpu(backend: Backend) -> None:
    program = build(backend)
    read_only = aligned(1 << 12)
    read_only.flags.writeable = False
    for block, message in (
        (
            aligned(program.method_meta("forward").memory_planned_buffer_size(0), 4),
            "multiple of 16 bytes; .* is 4 past",
        ),
        (read_only, "read-only"),
        ("memory", "a str can't be it"),
        (None, "a NoneType can't be it"),
    ):
        blocks = program.method_meta("forward").allocate()
        blocks[0] = block
        with pytest.raises(gx.InputError, match=message):
            program.load_method("forward", manage(blocks))


@on("simulator")
def test_e23_memory_of_another_device_is_refused(backend: Backend) -> None:
    program = build(backend)
    for block, message in (
        (aligned(1 << 12), "lies on the host, expected on simulator"),
        (gx.DeviceAllocator(CPU).allocate(1 << 12), "lies on cpu, expected on simulator"),
    ):
        blocks = program.method_meta("forward").allocate()
        blocks[0] = block
        with pytest.raises(gx.InputError, match=message):
            program.load_method("forward", manage(blocks))


def test_e25_allocators_give_what_they_have_and_say_when_it_is_all(backend: Backend) -> None:
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


@pytest.mark.parametrize("planned_inputs", [True, False])
@pytest.mark.parametrize("planned_outputs", [True, False])
def test_e33_inputs_and_outputs_are_planned_or_not(
    planned_inputs: bool, planned_outputs: bool, backend: Backend
) -> None:
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


def test_e33_e38_state_is_planned_too(backend: Backend) -> None:
    program = gx.Program.build({"forward": running_sum()}, shapes={"forward": {"x": (8, 3)}}, backend=backend)
    meta = program.method_meta("forward")
    state = next(each for each in meta.memory_planned_buffers if each.purpose == "state")
    assert state.nbytes >= 96
    with program.load_method("forward", manage(allocate(backend, meta))) as method:
        for number in range(1, 5):
            np.testing.assert_array_equal(run(method), 2 * number * X)
        np.testing.assert_array_equal(method.state.get(), 4 * X)
