"""Memory of the user's under a Method: what is taken, what is refused, what is not planned, and what is shared."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import ErrorCode
from gpuexec.runtime.backend import Backend, open_backend
from tests.small_models import CPU, affine, expect_affine, hold, make_tracer, ramp, trace, two_layers
from tests.staged_models import MODELS, SIDE, inputs

SIMULATOR = gx.BackendType.SIMULATOR
BACKENDS = [CPU, SIMULATOR]
SHAPES = {"x": ((1, 8), 3)}


def build(backend: gx.BackendType | Backend = CPU, **models: gx.Model) -> gx.Program:
    models = models or {"forward": two_layers()}
    return gx.Program.build(models, shapes=dict.fromkeys(models, SHAPES), backend=backend)


def manage(*buffers: object, **options: Any) -> gx.MemoryManager:
    return gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(list(buffers)), **options)


def aligned(nbytes: int, shift: int = 0) -> np.ndarray[Any, Any]:
    """Return bytes that start ``shift`` past a multiple of 256."""
    raw = np.zeros(nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + shift
    return raw[start : start + nbytes]


def run(method: gx.Method, rows: int = 8) -> np.ndarray[Any, Any]:
    method.execute([ramp(rows, 3)])
    return method.get_output(0).readback_and_clone()


def expect_two_layers(rows: int) -> np.ndarray[Any, Any]:
    with gx.Worker(two_layers(), backend=CPU) as worker:
        answer = worker.run(ramp(rows, 3))
    assert isinstance(answer, np.ndarray)
    return answer


class CudaArray:
    """Bytes of a device as other packages offer them."""

    def __init__(self, tensor: gx.Tensor, nbytes: int, *, offset: int = 0, is_read_only: bool = False) -> None:
        address = tensor._content.region.address + offset
        self.owner = tensor
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, is_read_only),
            "strides": None,
            "stream": None,
            "version": 3,
        }


# ---- what is taken


@pytest.mark.parametrize("backend", BACKENDS)
def test_planned_memory_is_exactly_what_is_told(backend: gx.BackendType) -> None:
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
        buffers[index] = aligned(nbytes - 1)
        with pytest.raises(
            gx.InputError, match=rf"Planned buffer {index} .* needs {nbytes} bytes, got {nbytes - 1}|host"
        ):
            program.load_method("forward", manage(*buffers))


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


def test_device_arrays_of_other_packages_are_arenas() -> None:
    program = build(SIMULATOR)
    meta = program.method_meta("forward")
    own = gx.DeviceAllocator(SIMULATOR)
    buffers: list[object] = [
        CudaArray(own.allocate(each.nbytes), each.nbytes) for each in meta.memory_planned_buffers[:4]
    ]
    with program.load_method("forward", manage(*buffers, aligned(meta.memory_planned_buffer_size(4)))) as method:
        np.testing.assert_array_equal(run(method), expect_two_layers(8))


def test_larger_blocks_will_do_and_none_where_nothing_is_needed() -> None:
    program = build(SIMULATOR)
    meta = program.method_meta("forward")
    assert meta.memory_planned_buffer_size(3) == 0
    own = gx.DeviceAllocator(SIMULATOR)
    buffers = [own.allocate(1000), own.allocate(1000), own.allocate(1000), None, bytearray(1000)]
    with program.load_method("forward", manage(*buffers)) as method:
        np.testing.assert_array_equal(run(method, 3), expect_two_layers(3))


def test_memory_lives_as_long_as_the_method() -> None:
    program = build()
    method = program.load_method("forward", manage(*program.method_meta("forward").allocate()))
    junk = [np.full(300, 7, np.uint8) for _ in range(50)]
    np.testing.assert_array_equal(run(method), expect_two_layers(8))
    assert len(junk) == 50
    method.close()


# ---- what is refused


@pytest.mark.parametrize(
    ("index", "block", "message"),
    [
        (0, aligned(1 << 16, 16), "must start at a multiple of 256 bytes; .* is 16 past one"),
        (1, np.zeros((64, 64), np.uint8).T[::2], "not contiguous: strides"),
        (2, bytes(1 << 16), "is read-only|must start"),
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


def test_bad_block_is_refused_on_a_device() -> None:
    program = build(SIMULATOR)
    meta = program.method_meta("forward")
    own = gx.DeviceAllocator(SIMULATOR)
    other = gx.DeviceAllocator(CPU).allocate(1000)
    for block, message in (
        (aligned(1000), "it lies on the host, expected on simulator"),
        (other, "it lies on cpu, expected on simulator"),
        (CudaArray(own.allocate(1000), 900, offset=16), "is 16 past one"),
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


def test_number_of_blocks_is_told() -> None:
    program = build()
    with pytest.raises(gx.InputError, match=r"3 planned buffers \(activations, inputs, outputs\), got 1 blocks"):
        program.load_method("forward", manage(aligned(1000)))


def test_memory_manager_takes_what_it_names() -> None:
    with pytest.raises(gx.InputError, match=r"method_allocator must have allocate\(nbytes\); a int has not"):
        gx.MemoryManager(method_allocator=3)  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match=r"HierarchicalAllocator\(arenas\)"):
        gx.MemoryManager(planned_memory=[aligned(3)])  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match="a list with one block for each buffer"):
        gx.HierarchicalAllocator(aligned(3))  # type: ignore[arg-type]


# ---- what is not planned


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
        assert temp.nbytes + kept.nbytes > 0


# ---- sharing


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_users", [False, True])
def test_shared_arenas_make_outputs_stale_and_keep_results_right(backend: gx.BackendType, is_users: bool) -> None:
    program = build(backend, forward=two_layers(), other=affine())
    if is_users:
        rows = [program.method_meta(name).allocate() for name in program.method_names]
        sizes = [
            [each.nbytes for each in program.method_meta(name).memory_planned_buffers] for name in program.method_names
        ]
        buffers = [a if m >= n else b for a, b, m, n in zip(*rows, *sizes, strict=True)]
        memory = manage(*buffers)
        first, second = (program.load_method(name, memory) for name in program.method_names)
    else:
        first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    first.execute([ramp(8, 3)])
    output = first.get_output(0)
    np.testing.assert_array_equal(run(second), expect_affine(ramp(8, 3)))
    with pytest.raises(gx.StaleError):
        output.readback_and_clone()
    with pytest.raises(gx.StaleError):
        first.get_output(0)
    if is_users:
        with pytest.raises(gx.StaleError, match=r"'x' lay in memory that another Method has used since; set it again"):
            first.execute()
    else:
        first.execute()
        np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), expect_two_layers(8))
    for rows in range(1, 9):
        first.execute([ramp(rows, 3)], wait=False)
        request = first.get_output(0).readback_request()
        second.execute([ramp(rows, 3)], wait=False)
        np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expect_affine(ramp(rows, 3)))
        np.testing.assert_array_equal(request.result(), expect_two_layers(rows))
    first.close()
    np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expect_affine(ramp(8, 3)))
    second.close()


def test_output_of_one_is_the_input_of_another_over_the_same_memory() -> None:
    program = build(SIMULATOR, forward=affine(), other=affine())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    expected = ramp(8, 3)
    first.execute([expected])
    for _ in range(2):
        second.execute([first.get_output(0)])
        first.execute([second.get_output(0)])
        expected = expect_affine(expect_affine(expected))
    np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), expect_affine(expected))
    second.execute()
    np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expected)
    first.close()
    second.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_over_shared_memory_follow_one_another(backend: gx.BackendType) -> None:
    program = build(backend, forward=two_layers(), other=two_layers())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    for method in (first, second):
        method.set_input(0, ramp(8, 3))
    gate = hold(first._engine.stream)
    first.execute(wait=False)
    # Nothing but the memory orders the two, which are on streams of their own.
    run = second.execute(wait=False)
    assert not run.is_done()
    gate.set()
    np.testing.assert_array_equal(second.get_output(0).readback_and_clone(), expect_two_layers(8))
    first.close()
    second.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_memory_is_used_from_many_threads(backend: gx.BackendType) -> None:
    program = build(backend, forward=two_layers(), other=affine())
    expected = {("forward", rows): expect_two_layers(rows) for rows in range(1, 9)}
    expected |= {("other", rows): expect_affine(ramp(rows, 3)) for rows in range(1, 9)}
    wrong: list[object] = []
    right: list[int] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        methods = {name: program.load_method(name, share_arenas=True) for name in program.method_names}
        for _ in range(40):
            name, rows = choose.choice(program.method_names), choose.randint(1, 8)
            try:
                methods[name].execute([ramp(rows, 3)], wait=choose.random() < 0.5)
                got = methods[name].get_output(0).readback_and_clone()
                (right if np.array_equal(got, expected[name, rows]) else wrong).append(rows)
            except gx.StaleError:
                pass
            except BaseException as error:
                wrong.append(error)
            if choose.random() < 0.1:
                methods[name].close()
                methods[name] = program.load_method(name, share_arenas=True)
        for method in methods.values():
            method.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and right


def test_method_is_closed_while_another_is_in_steps_over_the_same_memory() -> None:
    program = build(CPU, forward=affine(), other=affine())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    run(second)
    first.set_input(0, ramp(2, 3))
    first.step()
    second.close()
    list(iter(first.step, None))
    np.testing.assert_array_equal(first.get_output(0).readback_and_clone(), expect_affine(ramp(2, 3)))
    first.close()


def test_steps_over_shared_memory_are_finished_first() -> None:
    program = build(CPU, forward=affine(), other=affine())
    first, second = (program.load_method(name, share_arenas=True) for name in program.method_names)
    second.set_input(0, ramp(2, 3))
    first.set_input(0, ramp(2, 3))
    first.step()
    with pytest.raises(gx.StateError, match="shares this Method's memory and is in the middle of steps"):
        second.execute()
    first.reset()
    np.testing.assert_array_equal(run(second), expect_affine(ramp(8, 3)))
    first.close()
    second.close()


def test_shared_memory_is_as_large_as_the_largest_needs() -> None:
    backend = make_tracer()
    models = {"forward": two_layers(), "other": two_layers()}
    shapes = {"forward": {"x": ((1, 8), 3)}, "other": {"x": ((1, 80), 3)}}
    program = gx.Program.build(models, shapes=shapes, backend=backend)
    needs = {name: program.method_meta(name).memory_planned_buffer_size(0) for name in models}
    assert needs["forward"] < needs["other"]
    before = len(trace(backend))
    methods = [program.load_method(name, share_arenas=True) for name in models]
    taken = [row[2] for row in backend.device.log[before:] if row[0] == "allocate"]  # type: ignore[attr-defined]
    assert taken.count(needs["other"]) == 1 and needs["forward"] not in taken
    for method in methods:
        method.execute([ramp(2, 3)])
    with pytest.raises(gx.InputError, match="share_arenas=True shares memory of the program's"):
        program.load_method("other", manage(), share_arenas=True)


def test_wrong_option_names_the_error_code() -> None:
    program = build()
    buffers = program.method_meta("forward").allocate()
    buffers[0] = aligned(1)
    with pytest.raises(gx.InputError) as caught:
        program.load_method("forward", manage(*buffers))
    assert caught.value.code == ErrorCode.MEMORY_ALLOCATION_FAILED
