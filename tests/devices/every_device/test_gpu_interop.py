"""PyTorch and CuPy interoperation on a GPU: arrays in and out on streams of their own, without a caller's wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import BackendType

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 512, 1024
Array = np.ndarray[Any, Any]


def make_model() -> bytes:
    """Return y = relu(2 x) + 1 over float32 [n, 1024]."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("Relu", ["doubled"], ["positive"]),
        helper.make_node("Add", ["positive", "one"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", COLUMNS]) for name in "xy"]
    constants = [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in (("two", 2), ("one", 1))]
    graph = helper.make_graph(nodes, "affine", ports[:1], ports[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def expect(x: Array) -> Array:
    return np.maximum(2 * x, 0) + 1


@pytest.fixture
def worker() -> Iterator[gx.Worker]:
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE) as made:
        yield made


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed.")


X = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def test_torch_tensor_comes_in(worker: gx.Worker, torch: Any) -> None:
    np.testing.assert_array_equal(worker.run(torch.from_numpy(X).cuda())[0], expect(X))


def test_torch_work_still_under_way_is_waited_for(worker: gx.Worker, torch: Any) -> None:
    stream = torch.cuda.Stream()
    big = torch.ones(4096, 4096, device="cuda")
    x = torch.zeros(ROWS, COLUMNS, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(200):  # keeps the stream busy far longer than the caller needs to get to the run
            big = big @ big * 1e-4
        x.copy_(torch.from_numpy(X).pin_memory(), non_blocking=True)
        run = worker.schedule(x)
    np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect(X))


@pytest.mark.parametrize("take", ["from_dlpack", "as_tensor"])
def test_torch_takes_an_output_that_is_pending(worker: gx.Worker, torch: Any, take: str) -> None:
    output = worker.schedule(X).peek_output()
    given = torch.from_dlpack(output) if take == "from_dlpack" else torch.as_tensor(output, device="cuda")
    assert given.data_ptr() == output.__cuda_array_interface__["data"][0]
    np.testing.assert_array_equal((given + 1).cpu().numpy(), expect(X) + 1)


def test_torch_keeps_an_output_through_later_runs(worker: gx.Worker, torch: Any) -> None:
    given = torch.from_dlpack(worker.schedule(X).peek_output())
    for value in range(5):
        worker.run(np.full_like(X, value))
    np.testing.assert_array_equal(given.cpu().numpy(), expect(X))


def test_worker_runs_on_a_stream_of_torch(torch: Any) -> None:
    stream = torch.cuda.Stream()
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE, stream=stream.cuda_stream) as worker:
        output = worker.schedule(torch.from_numpy(X).cuda()).peek_output()
        with torch.cuda.stream(stream):
            given = torch.from_dlpack(output) * 3
        np.testing.assert_array_equal(given.cpu().numpy(), expect(X) * 3)


def test_cupy_array_comes_in_and_goes_out(worker: gx.Worker) -> None:
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.asarray(X) * 2
        run = worker.schedule(x)
        y = cupy.from_dlpack(run.peek_output()) - 1
        np.testing.assert_array_equal(cupy.asnumpy(y), expect(2 * X) - 1)


def test_worker_runs_on_a_stream_of_cupy() -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE, stream=stream.ptr) as worker:
        np.testing.assert_array_equal(worker.run(X)[0], expect(X))


def test_two_workers_chained_through_a_pending_tensor(worker: gx.Worker) -> None:
    with gx.Worker(gx.load(make_model()), backend=BackendType.GPU_COMPUTE) as second:
        run = second.schedule(worker.schedule(X).peek_output())
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect(expect(X)))


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed.")


def test_replay_is_in_the_order_of_a_cupy_stream(worker: gx.Worker, cupy: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, y = cupy.asarray(X), cupy.empty_like(X)
    with worker.record(x, outputs={"y": y}, stream=stream) as replay, stream:
        assert replay.has_graph
        results = []
        for number in range(5):
            x += np.float32(number)
            replay.submit()
            results.append(y.copy())
        mirror = X.copy()
        for number, result in enumerate(results):
            mirror += np.float32(number)
            np.testing.assert_array_equal(result.get(), expect(mirror))


def test_replay_is_captured_in_a_graph_of_the_callers(worker: gx.Worker, cupy: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, y = cupy.asarray(X), cupy.empty_like(X)
    with worker.record(x, outputs={"y": y}, stream=stream) as replay, stream:
        replay.submit()
        stream.synchronize()
        stream.begin_capture()
        replay.submit()
        graph = stream.end_capture()
        for number in range(3):
            x[...] = cupy.asarray(X + np.float32(number))
            graph.launch(stream)
            np.testing.assert_array_equal(y.get(), expect(X + np.float32(number)))
