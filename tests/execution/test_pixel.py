"""Workers on a device whose memory is textures: each layer one blit, issued as scheduled."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices import backend as backends
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.devices.cuda import driver
from gpuexec.ir.command import Launch, Slot
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.devices.foreign_arrays import DlpackArray, InterfaceArray
from tests.execution.held import held_worker
from tests.model.small_models import affine, expect_affine, make_model

PIXEL = gx.BackendType.SIMULATOR_PIXEL
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(params=["simulator", "standin"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """The simulator, and the code for GPUs over another one."""
    if request.param == "simulator":
        yield open_backend(PIXEL)
        return
    from gpuexec.devices.cuda.cuda_pixel import CudaPixelDevice
    from tests.devices.cupy_standin import Standin, install
    from tests.devices.opening import make_simulator

    below = make_simulator(target="pixel_80")
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    made = CudaPixelDevice()
    opened = Backend(made, gx.BackendType.GPU_PIXEL, "a stand-in")
    yield opened
    opened.transfers.close()
    made.close()
    below.close()


def small_network() -> gx.Model:
    """Layers of most families, with extents that fill no texel, a Concat by odd widths and a strided view."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["p", "p", "p"], ["c"], name="join", axis=1),
        helper.make_node("Transpose", ["c"], ["t"], name="turn", perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["t", "m"], ["d"], name="multiply"),
        helper.make_node("Softmax", ["d"], ["s"], name="softmax"),
        helper.make_node("ReduceMean", ["s", "axes"], ["y"], name="mean", keepdims=0),
    ]
    weights: dict[str, Any] = {
        "w": rng.standard_normal((3, 2, 3, 3)).astype(np.float32),
        "b": rng.standard_normal(3).astype(np.float32),
        "m": rng.standard_normal((9, 5)).astype(np.float32),
        "axes": np.array([1, 2], np.int64),
    }
    return make_model(nodes, {"x": ("n", 2, 7, 9)}, {"y": ("n", 5)}, **weights)


def test_network_gives_what_the_cpu_gives(backend: Backend) -> None:
    model = small_network()
    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=gx.BackendType.CPU) as cpu:
        for n in (2, 1, 3):
            x = np.random.default_rng(n).standard_normal((n, 2, 7, 9)).astype(np.float32)
            np.testing.assert_allclose(worker.run(x)[0], cpu.run(x)[0], rtol=1e-5, atol=1e-6)
        assert worker.report().host_calls == ()


@pytest.mark.long
def test_network_is_clean_in_check_mode() -> None:
    from tests.devices.opening import open_device

    checked = Backend(open_device("pixel_check"), PIXEL, "asked for")
    model, x = small_network(), np.random.default_rng(0).standard_normal((2, 2, 7, 9)).astype(np.float32)
    with gx.Worker(model, backend=checked) as worker, gx.Worker(model, backend=gx.BackendType.CPU) as cpu:
        np.testing.assert_allclose(worker.run(x)[0], cpu.run(x)[0], rtol=1e-5, atol=1e-6)
    checked.transfers.close()


def test_each_layer_is_one_blit_in_order() -> None:
    model = small_network()
    specs = {"x": TensorSpec((2, 2, 7, 9), np.dtype(np.float32))}
    segment = plan_graph(model.graph, specs, Target.named("pixel_90")).plan.segment
    assert all(isinstance(each, Launch) and each.kernel.source.startswith("pixel/") for each in segment.commands)
    assert all(each.shared_bytes == 0 for each in segment.commands if isinstance(each, Launch))
    # A Concat copies what its inputs have in one place each; a transpose is a view.
    layers = ["conv", "relu", "pool", "multiply", "softmax", "mean"]
    assert [origin for origin in segment.origins if origin != "join"] == layers


@pytest.mark.parametrize("width", [4, 3])
def test_no_blit_reads_texels_that_it_writes(width: int) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="negate"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Concat", ["b", "b", "x"], ["c"], name="join", axis=0),
        helper.make_node("Exp", ["c"], ["d"], name="exp"),
        helper.make_node("Neg", ["d"], ["y"], name="negate again"),
    ]
    model = make_model(nodes, {"x": (1, width)}, {"y": (3, width)})
    specs = {"x": TensorSpec((1, width), np.dtype(np.float32))}
    plan = plan_graph(model.graph, specs, Target.named("pixel_90")).plan
    starts = plan.layout.as_dict()

    def texels(slot: Slot) -> set[tuple[object, int]]:
        low, high = (at + starts.get(slot.buffer, 0) for at in slot.byte_range())
        place: object = "arena" if slot.buffer in starts else slot.buffer
        return {(place, texel) for texel in range(low // 16, -(-high // 16))}

    for command in plan.segment.commands:
        read = {texel for slot in command.reads_from() for texel in texels(slot)}
        assert not any(read & texels(slot) for slot in command.writes_to()), command


def test_layers_are_issued_as_scheduled_and_never_as_a_graph(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        assert [step.nodes for step in worker.schedule_iterable(X)] == [("double",), ("relu",), ("add",)]
    layers = 40
    names = ["x", *(f"a{i}" for i in range(1, layers)), "y"]
    chain = [helper.make_node("Neg", [a], [b], name=f"negate {b}") for a, b in pairwise(names)]
    with gx.Worker(make_model(chain, {"x": ("n", 3)}, {"y": ("n", 3)}), backend=backend) as worker:
        for _ in range(8):
            np.testing.assert_array_equal(worker.run(X)[0], X)
        assert worker.report().graphs == 0


def test_texels_beyond_the_first_block_are_written_wherever_a_tensor_begins(backend: Backend) -> None:
    nodes = [helper.make_node("Concat", ["x", "z"], ["y"], name="join", axis=0)]
    model = make_model(nodes, {"x": (1,), "z": (1024,)}, {"y": (1025,)})
    x, z = np.float32([-1]), np.arange(1024, dtype=np.float32)
    with gx.Worker(model, backend=backend) as worker:
        np.testing.assert_array_equal(worker.run({"x": x, "z": z})[0], np.concatenate([x, z]))


def test_gpu_reads_by_the_texture_and_writes_by_the_surface(backend: Backend) -> None:
    device: Any = backend.device
    if backend.type is PIXEL:
        assert not hasattr(device, "find_texture")  # its memory has addresses
        return
    seen: set[int] = set()
    held = [device.allocate(100), device.allocate(100)]
    for memory in held:
        handles, offset = device.space.find(memory.address)
        seen |= {handles.array, handles.texture, handles.surface}
        assert offset == 0
        assert device.find_texture(memory.address + 5, is_write=False) == (handles.texture, 5)
        assert device.find_texture(memory.address + 99, is_write=True) == (handles.surface, 99)
    assert len(seen) == 6


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_texture_goes_back_when_it_is_freed_and_when_nobody_holds_it(backend: Backend) -> None:
    """On the stand-in while its GPU is current, since CUDA's handles mean something else on another."""
    device: Any = backend.device
    freed, dropped = device.allocate(100), device.allocate(100)
    first, second = freed.address, dropped.address
    freed.free()
    freed.free()
    del dropped
    gc.collect()
    stream = device.create_stream()
    for address in (first, second):
        with pytest.raises(gx.DeviceError):
            stream.copy_to_device(address, np.zeros(4, np.uint8))


@pytest.mark.parametrize("backend", ["standin"], indirect=True)
def test_workers_leave_no_memory_behind(backend: Backend) -> None:
    device: Any = backend.device
    model, x = small_network(), np.ones((2, 2, 7, 9), np.float32)
    left = []
    for is_closed in (True, True, False, False):
        worker = gx.Worker(model, backend=backend)
        kept = worker.schedule(x).peek_output()
        kept.readback_and_clone()
        worker.wait_for_completion()  # what is dropped while it runs is let go of later
        if is_closed:
            worker.close()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            del worker, kept
            gc.collect()
            backend.deferred_free.prune()
        left.append(len(device.space))
    assert left == left[:1] * 4


def test_results_wait_for_the_layers_and_the_caller_does_not() -> None:
    with held_worker(affine(), open_backend(PIXEL)) as (worker, gate):
        run = worker.schedule(X)
        y = run.peek_output()
        request = y.readback_request()
        assert not run.is_done() and not request.is_done()
        gate.set()
        np.testing.assert_array_equal(request.result(), expect_affine(X))


def test_tensor_of_one_run_goes_into_the_next_without_leaving_the_device(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as first, gx.Worker(affine(), backend=backend) as second:
        y = second.schedule(first.schedule(X).peek_output()).peek_output()
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(expect_affine(X)))
        assert second.report().host_syncs == ()


def sorted_model() -> gx.Model:
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"], name="double"),
        helper.make_node("TopK", ["a", "k"], ["b", "places"], name="largest"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 2)}, two=np.float32(2), k=np.array([2], np.int64))


def test_operator_without_a_blit_runs_on_the_host_and_is_named(backend: Backend) -> None:
    with gx.Worker(sorted_model(), backend=backend) as worker:
        for _ in range(2):
            expected = np.maximum(-np.sort(-2 * X, axis=1)[:, :2], 0)
            np.testing.assert_array_equal(worker.run(X)[0], expected)
        assert {(row.operator, row.node) for row in worker.report().host_calls} == {("TopK", "largest")}


def test_operator_without_a_blit_is_refused_before_the_first_layer_if_strict() -> None:
    with gx.Worker(sorted_model(), backend=PIXEL, strict=True) as worker:
        with pytest.raises(gx.ImplicitSyncError, match="TopK 'largest'"):
            worker.schedule(X)
        assert worker.report().runs == 0


def test_type_without_a_blit_runs_on_the_host() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, helper.np_dtype_to_tensor_dtype(np.dtype(np.float64)))
    with gx.Worker(model, backend=PIXEL) as worker:
        np.testing.assert_array_equal(worker.run(X.astype(np.float64))[0], np.maximum(X, 0).astype(np.float64))
        assert [row.operator for row in worker.report().host_calls] == ["Relu"]


def test_plan_of_what_has_no_blit_is_refused_with_all_names() -> None:
    specs = {"x": TensorSpec((2, 3), np.dtype(np.float32))}
    with pytest.raises(gx.UnsupportedError, match=r"No PIXEL lowering for TopK \(1: largest\)"):
        plan_graph(sorted_model().graph, specs, Target.named("pixel_90"))


@pytest.mark.parametrize("kind", [InterfaceArray, DlpackArray])
def test_memory_with_an_address_is_refused_as_input_and_the_worker_goes_on(kind: Any) -> None:
    pixel = open_backend(PIXEL)
    with gx.Worker(affine(), backend=pixel) as worker:
        given = kind(pixel, X)
        with pytest.raises(gx.InputError, match=r"'x': it lies in ordinary memory, and simulator \(pixel_90\) reads"):
            worker.schedule(given)
        given.stream.synchronize()
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))


def test_tensor_in_a_texture_is_given_to_no_other_package(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        y = worker.schedule(X).peek_output()
        assert not hasattr(y, "__cuda_array_interface__")
        for give in (y.__dlpack__, y.__dlpack_device__):
            with pytest.raises(BufferError, match="lies in a texture; read it back"):
                give()
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(X))


def test_memory_beyond_a_texture_is_refused_with_the_limit(backend: Backend) -> None:
    with pytest.raises(gx.OutOfMemoryError, match="exceed what one texture holds, 4294967296"):
        backend.device.allocate((4 << 30) + 1)


def test_gpu_pixel_is_an_error_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = driver.Driver(found=False, version=0, devices=(), reason="There is no NVIDIA driver here.")
    monkeypatch.setattr(backends, "_open", {})
    monkeypatch.setattr(driver, "probe", lambda: nothing)
    with pytest.raises(gx.DeviceNotFoundError, match=r"no NVIDIA driver.*apt-get install nvidia-driver"):
        gx.Worker(affine(), backend=gx.BackendType.GPU_PIXEL)


def test_program_for_textures_is_refused() -> None:
    with pytest.raises(gx.InputError, match=r"architectures like sm_90; for pixel_90 blits"):
        gx.Program.build({"forward": affine()}, architectures=["pixel_90"])


@pytest.mark.gpu
def test_network_gives_what_the_cpu_gives_on_a_gpu() -> None:
    model = small_network()
    x = np.random.default_rng(0).standard_normal((2, 2, 7, 9)).astype(np.float32)
    with (
        gx.Worker(model, backend=gx.BackendType.GPU_PIXEL) as worker,
        gx.Worker(model, backend=gx.BackendType.CPU) as cpu,
    ):
        np.testing.assert_allclose(worker.run(x)[0], cpu.run(x)[0], rtol=1e-4, atol=1e-5)
