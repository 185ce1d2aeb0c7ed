"""Unaligned arrays, by every way in and out: copied on the device where kernels need it, and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
import gpuexec.compat.onnxruntime as ort
from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.device import Region
from gpuexec.devices.recorder.tracer import TracerStream
from gpuexec.errors import PlanError
from gpuexec.execution.images.converter import ImageConverter
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.ir.operator import build as build_operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.template import plan_graph
from tests.devices.opening import make_simulator, open_living
from tests.execution.replay.replaying import SIMULATOR, ShiftedBuffer, float32
from tests.ir.graph_builder import GraphBuilder
from tests.model.control_models import NESTED, ControlModel
from tests.model.small_models import CPU, Array, affine, expect_affine, make_model, make_tracer, ramp
from tests.model.state_models import running_sum

SHIFTS = (1, 2, 3)
SHAPE, F32 = (8, 3), np.float32
SPLIT = """<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph (float[n] x) => (float[n] early, float[n] late) {
  early = Neg (x) host = test.NoKernel (early) late = Sub (host, early)
}"""


@pytest.fixture
def backend() -> Backend:
    """A simulator in check mode, where an access that is not aligned to its width ends the run."""
    return Backend(open_living("check"), SIMULATOR, "for a test")


def shifted(backend: Backend, array: Array, shift: int) -> ShiftedBuffer:
    """Return a filled array of another package, some elements past an aligned address."""
    buffer = ShiftedBuffer(backend, TensorSpec(array.shape, array.dtype), shift)
    stream = backend.device.create_stream()
    buffer.write(stream, array)
    stream.synchronize()
    return buffer


def content(buffer: ShiftedBuffer) -> Array:
    """Return the content of another package's array, whose work is done."""
    stream = buffer.backend.device.create_stream()
    array = buffer.read(stream)
    stream.synchronize()
    return array


class ShiftedDlpack:
    """The same array by DLPack."""

    def __init__(self, buffer: ShiftedBuffer) -> None:
        self._buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, 0)

    def __dlpack__(self, **_: Any) -> object:
        buffer = self._buffer
        return dlpack.give(buffer.memory.address, buffer.spec, (dlpack.CUDA, 0), buffer, is_versioned=False)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("form", [lambda buffer: buffer, ShiftedDlpack], ids=["interface", "dlpack"])
def test_input_of_a_worker(backend: Backend, form: Any, shift: int) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        for number in range(3):
            x = ramp(*SHAPE) + number
            worker.schedule(form(shifted(backend, x, shift)))
            np.testing.assert_array_equal(worker.read_output("y"), expect_affine(x))
        (row,) = worker.report().device_copies
        assert (row.value, row.nbytes, row.times) == ("x", 3 * 8 * 3 * 4, 3)
        assert row.why == f"the input starts {4 * shift} bytes past a multiple of 16"
        assert worker.report().host_syncs == ()
        assert "device copy x, 3 times, 288 B" in worker.summary()


def test_aligned_input_is_used_where_it_lies() -> None:
    backend = make_tracer()
    log: Any = backend.device
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(ShiftedBuffer(backend, float32(*SHAPE), 4))
        assert worker.report().device_copies == () and not [row for row in log.log if row[0] == "copy"]
        worker.schedule(ShiftedBuffer(backend, float32(*SHAPE), 5))
        assert len([row for row in log.log if row[0] == "copy"]) == 1


def test_input_below_the_alignment_of_its_type(backend: Backend) -> None:
    """No element could be read there, and bytes can be copied."""
    x = ramp(*SHAPE)
    raw = shifted(backend, x.reshape(-1).view(np.uint8), 3)
    raw.spec, raw.shape, raw.dtype = float32(*SHAPE), SHAPE, x.dtype
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(raw)
        np.testing.assert_array_equal(worker.read_output("y"), expect_affine(x))


def test_strides_that_are_no_whole_elements_are_refused(backend: Backend) -> None:
    class Odd(ShiftedBuffer):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return super().__cuda_array_interface__ | {"strides": (6,)}

    refused = pytest.raises(gx.InputError, match=r"must be dense, got strides \(6,\) of bytes")
    with gx.Worker(affine((4,)), backend=backend) as worker, refused:
        worker.schedule(Odd(backend, float32(4), 0))


def test_limit_of_memory_counts_the_copy() -> None:
    backend = Backend(make_simulator(), SIMULATOR, "for a test")
    given = ShiftedBuffer(backend, float32(1 << 12), 1)
    with gx.Worker(affine(("n",)), backend=backend, max_bytes=(1 << 15) + 4096) as worker:
        with pytest.raises(gx.OutOfMemoryError):
            worker.schedule(given)
        worker.schedule(ShiftedBuffer(backend, float32(1 << 12), 4))
    backend.device.close()


def test_state(backend: Backend) -> None:
    """A memory starts from an array given as an input, and from one that the state is set to."""
    x, held = ramp(*SHAPE), ramp(*SHAPE) * 3
    with gx.Worker(running_sum(), backend=backend) as worker:
        worker.schedule({"x": x, "held": shifted(backend, held, 1)})
        np.testing.assert_array_equal(worker.read_output("y"), 2 * (x + held))
        worker.schedule(shifted(backend, x, 3))
        np.testing.assert_array_equal(worker.read_output("y"), 2 * (2 * x + held))
        worker.state.set({"held": shifted(backend, held, 2)})
        worker.schedule(x)
        np.testing.assert_array_equal(worker.read_output("y"), 2 * (x + held))
        assert [(row.value, row.times) for row in worker.report().device_copies] == [("held", 1), ("x", 1)]


def test_inputs_that_loops_take_by_rows(backend: Backend) -> None:
    (feeds,) = ControlModel(NESTED, ((ramp(5, 4), np.array(3, np.float32)),)).feeds()
    model = gx.load(ControlModel(NESTED, ()).parse().SerializeToString())
    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=CPU) as host:
        host.schedule(feeds)
        worker.schedule({name: shifted(backend, array, 1) for name, array in feeds.items()})
        for name in ("total", "rows"):
            np.testing.assert_allclose(worker.read_output(name), host.read_output(name), rtol=1e-6)


@pytest.mark.parametrize("shift", SHIFTS)
def test_replay(backend: Backend, shift: int) -> None:
    """Both ends, in every submission; inputs are read anew, and outputs written to their bound memory."""
    device, y = backend.device, ShiftedBuffer(backend, float32(*SHAPE), shift)
    stream = device.create_stream()
    x = ShiftedBuffer(backend, float32(*SHAPE), shift)
    x.write(stream, ramp(*SHAPE))
    with gx.Worker(affine(), backend=backend) as worker, worker.record(x, outputs={"y": y}, stream=stream) as replay:
        for number in range(3):
            x.write(stream, ramp(*SHAPE) + number)
            made = replay.submit()["y"]
            assert made._content.region.address == y.memory.address
            got = y.read(stream)
            stream.synchronize()
            np.testing.assert_array_equal(got, expect_affine(ramp(*SHAPE) + number))
            np.testing.assert_array_equal(made.readback_and_clone(), got)
        rows = {row.value: row.times for row in worker.report().device_copies}
        assert rows == {"x": 3, "y": 3}


def test_replay_allocates_nothing_in_a_submission_and_copies_in_a_capture() -> None:
    backend = make_tracer()
    log: Any = backend.device
    x, y = (ShiftedBuffer(backend, float32(*SHAPE), 1) for _ in "xy")
    with gx.Worker(affine(), backend=backend) as worker, worker.record(x, outputs={"y": y}) as replay:
        replay.submit()
        log.log.clear()
        replay.submit()
        reported = [row[0] for row in log.log]
        assert "allocate" not in reported
        first, last = (i for i, row in enumerate(log.log) if row[0] == "copy")
        assert log.log[first][2] == x.memory.address and log.log[last][1] == y.memory.address
        assert first < min(i for i, name in enumerate(reported) if name == "graph launch") < last


def test_capture_of_a_replay_holds_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    log: Any = backend.device
    x, y = (ShiftedBuffer(backend, float32(*SHAPE), 1) for _ in "xy")
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(x, outputs={"y": y})
        log.log.clear()
        monkeypatch.setattr(TracerStream, "is_capturing", lambda self: True)
        replay.submit()
        reported = [row[0] for row in log.log]
        assert reported[0] == reported[-1] == "copy" and set(reported[1:-1]) == {"launch"}
        monkeypatch.undo()


@pytest.mark.parametrize("type", [CPU, SIMULATOR], ids=["cpu", "simulator"])
@pytest.mark.parametrize("shift", SHIFTS)
def test_method_inputs_and_outputs(type: gx.BackendType, shift: int) -> None:
    """Bytes past an aligned address on the CPU, whose longest word is an element; elements on a device."""
    program, backend = build_method(type)
    with program.load_method("forward") as method:
        y = place_output(backend, shift)
        method.set_output(0, y)
        for number in range(3):
            x = ramp(*SHAPE) + number
            method.set_input(0, unaligned(x) if type is CPU else shifted(backend, x, shift), copy=number > 0)
            method.execute()
            np.testing.assert_array_equal(y if isinstance(y, np.ndarray) else content(y), expect_affine(x))
            tensor = method.get_output("y")
            np.testing.assert_array_equal(tensor.readback_and_clone(), expect_affine(x))
        # What lies there is an input of others.
        with gx.Worker(affine(), backend=backend) as worker:
            worker.schedule(tensor)
            np.testing.assert_array_equal(worker.read_output("y"), expect_affine(expect_affine(x)))
        method.set_output(0, None)
        method.execute()
        np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), expect_affine(x))


@pytest.mark.parametrize("type", [CPU, SIMULATOR], ids=["cpu", "simulator"])
def test_method_of_planned_memory_says_what_an_output_needs(type: gx.BackendType) -> None:
    program, backend = build_method(type)
    arenas = gx.HierarchicalAllocator(program.method_meta("forward").allocate())
    with program.load_method("forward", gx.MemoryManager(planned_memory=arenas)) as method:
        method.set_input(0, ramp(*SHAPE) if type is CPU else shifted(backend, ramp(*SHAPE), 1))
        with pytest.raises(gx.InputError, match=r"'y': the memory given starts at no multiple of .* method_allocator"):
            method.set_output(0, place_output(backend, 1))
        method.execute()
        np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), expect_affine(ramp(*SHAPE)))


def test_method_of_several_plans(backend: Backend) -> None:
    """The host computes in between, and a plan before that makes an output which one behind it reads."""
    model = gx.load(parser.parse_model(SPLIT).SerializeToString())
    with gx.Worker(model, backend=CPU) as host:
        host.schedule(ramp(8))
        expected = {name: host.read_output(name) for name in ("early", "late")}
    program = gx.Program.build({"forward": model}, shapes={"forward": {"x": (8,)}}, backend=backend)
    with program.load_method("forward") as method:
        made = {name: ShiftedBuffer(backend, float32(8), shift) for name, shift in (("early", 1), ("late", 3))}
        for name, y in made.items():
            method.set_output(name, y)
        method.execute([shifted(backend, ramp(8), 3)])
        for name, y in made.items():
            tensor = method.get_output(name)
            assert tensor._content.region.address == y.memory.address
            np.testing.assert_array_equal(tensor.readback_and_clone(), expected[name])
            np.testing.assert_array_equal(content(y), expected[name])


@pytest.mark.parametrize(("start", "copies"), [(4, 0), (2, 1)], ids=["an element on", "half an element on"])
def test_images_are_read_and_written_by_element(backend: Backend, start: int, copies: int) -> None:
    image = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    expected = np.moveaxis(image, 2, 0)[None].astype(np.float32) * np.float32(1 / 255)
    out = ShiftedBuffer(backend, TensorSpec((start + expected.nbytes,), np.dtype(np.uint8)), 0)
    out.memory = BorrowedMemory(out.memory.address + start, expected.nbytes, out.memory)
    out.spec, out.shape, out.dtype = float32(*expected.shape), expected.shape, expected.dtype
    with ImageConverter(backend) as converter:
        made = converter.to_tensor(shifted(backend, image, 1), out=out)
        np.testing.assert_array_equal(made.readback_and_clone(), expected)
        np.testing.assert_array_equal(content(out), expected)
        (row,) = converter._recorded.values()
        assert len(row[0].report().device_copies) == copies
        back = converter.to_image(out)
        np.testing.assert_array_equal(back.readback_and_clone(), image)


def test_io_binding_by_address(tmp_path: Path) -> None:
    affine().save(tmp_path / "affine.onnx")
    session = ort.InferenceSession(str(tmp_path / "affine.onnx"), providers=["GpuexecSimulatorExecutionProvider"])
    for shift in SHIFTS:
        x, y = (ort.OrtValue.ortvalue_from_shape_and_type((SHAPE[0] * SHAPE[1] + 3,), F32, "simulator") for _ in "xy")
        x.update_inplace(np.pad(ramp(*SHAPE).reshape(-1), (shift, 3 - shift)))
        x.wait()
        binding = session.io_binding()
        binding.bind_input("x", "simulator", 0, F32, SHAPE, x.data_ptr() + 4 * shift)
        binding.bind_output("y", "simulator", 0, F32, SHAPE, y.data_ptr() + 4 * shift)
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        expected = expect_affine(ramp(*SHAPE))
        np.testing.assert_array_equal(y.numpy()[shift : shift + expected.size], expected.reshape(-1))


@pytest.mark.parametrize("type", [CPU, SIMULATOR], ids=["cpu", "simulator"])
def test_host_arrays_at_any_byte(type: gx.BackendType) -> None:
    """As `numpy.frombuffer` gives at odd offsets: taken by all that takes arrays, copied or borrowed."""
    x = unaligned(ramp(*SHAPE))
    assert not x.flags.aligned
    with gx.Worker(running_sum(), backend=type) as worker:
        for copy in (True, False):
            worker.state.set({"held": x})
            np.testing.assert_array_equal(worker.run(x, copy=copy)[0], 4 * x)
    with gx.Worker(affine(), backend=type) as worker:
        replay = worker.record(x)
        np.testing.assert_array_equal(replay.submit(x)["y"].readback_and_clone(), expect_affine(x))
        target = unaligned(np.zeros(SHAPE, np.float32))
        worker.schedule(x)
        worker.peek_output("y").readback_and_clone(target)
        np.testing.assert_array_equal(target, expect_affine(x))
    image = unaligned(np.ones((2, 3, 3), np.uint16) * 7)
    np.testing.assert_array_equal(
        gx.to_tensor(image, backend=type).readback_and_clone(),
        gx.to_tensor(image.copy(), backend=type).readback_and_clone(),
    )


def test_recording_refuses_what_no_kernel_may_touch() -> None:
    """On every device: the CPU below a simulator would let a wide word at such an address pass."""
    backend = make_tracer()
    build = GraphBuilder()
    value = build.input("x", 64)
    graph = build.graph(build.node(build_operator("Relu", {}), value))
    spec = float32(64)
    plan = plan_graph(graph, {"x": spec}, backend.device.target).plan
    backend.device.load(plan.kernels())
    recording = backend.device.record(plan.segment, {})
    buffers = [plan.inputs[0].buffer, plan.outputs[0].buffer]
    memory = backend.device.allocate(2 * spec.nbytes)
    stream = backend.device.create_stream()
    for shift in (4, 8, 12):
        regions = {buffer: Region(memory, shift, spec.nbytes) for buffer in buffers if buffer is not None}
        with pytest.raises(PlanError, match="no multiple of 16 bytes"):
            recording.submit(stream, regions)


def test_sizes_of_a_class_choose_words_by_their_own_offsets(backend: Backend) -> None:
    """A row begins at a multiple of 16 bytes at some sizes of a class and not at others, under the same kernels."""
    nodes = [
        helper.make_node("Slice", ["x", "one", "far", "axis"], ["rest"]),
        helper.make_node("Relu", ["rest"], ["y"]),
        helper.make_node("Gather", ["rest", "rows"], ["picked"], axis=0),
        helper.make_node("Transpose", ["rest"], ["turned"], perm=[1, 0]),
    ]
    constants = {"one": np.array([1]), "far": np.array([99]), "axis": np.array([0]), "rows": np.array([2, 0])}
    model = make_model(nodes, {"x": (4, "k")}, {"y": (3, "k"), "picked": (2, "k"), "turned": ("k", 3)}, **constants)
    with gx.Worker(model, backend=backend) as worker:
        for size in (64, 61, 62, 63, 60, 64):
            x = ramp(4, size)
            worker.schedule(shifted(backend, x, size % 4))
            for name, expected in (("y", np.maximum(x[1:], 0)), ("picked", x[[3, 1]]), ("turned", x[1:].T)):
                np.testing.assert_array_equal(worker.read_output(name), expected)
        assert (worker.report().plans, worker.report().variants) == (1, 5)


def unaligned(array: Array) -> Array:
    """Return the same array one byte past an aligned address."""
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    raw[...] = array.reshape(-1).view(np.uint8)
    return raw.view(array.dtype).reshape(array.shape)


def build_method(type: gx.BackendType) -> tuple[gx.Program, Backend]:
    """Return a program of one method, and where it runs: in check mode, where there are kernels."""
    backend = open_backend(CPU) if type is CPU else Backend(open_living("check"), SIMULATOR, "for a test")
    shapes = {"forward": {"x": ((1, SHAPE[0]), SHAPE[1])}}
    return gx.Program.build({"forward": affine()}, shapes=shapes, backend=backend), backend


def place_output(backend: Backend, shift: int) -> Any:
    """Return memory of the caller's that no kernel can write to as it is."""
    if backend.device.target.has_kernels:
        return ShiftedBuffer(backend, float32(*SHAPE), shift)
    raw = np.zeros(shift + 4 * SHAPE[0] * SHAPE[1] + 64, np.uint8)
    start = -raw.ctypes.data % 16 + shift
    return raw[start : start + 4 * SHAPE[0] * SHAPE[1]].view(np.float32).reshape(SHAPE)
