"""Foreign streams of CuPy and PyTorch on every call, on a GPU: work in one order, without a caller's wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.model.small_models import Array, affine, expect_affine

pytestmark = pytest.mark.gpu

SHAPE = (4096, 1024)
ROUNDS = 8


@pytest.fixture
def worker() -> Iterator[gx.Worker]:
    with gx.Worker(affine(("n", SHAPE[1])), backend=gx.BackendType.GPU_COMPUTE) as made:
        made.run(np.ones(SHAPE, np.float32))
        yield made


def filled(value: float) -> Array:
    return np.full(SHAPE, value, np.float32)


def test_cupy_works_around_pending_runs_in_the_order_of_its_stream(worker: gx.Worker) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, sums = cupy.empty(SHAPE, np.float32), []
        for number in range(ROUNDS):
            x.fill(number)  # while the run before may not have begun
            y = worker.schedule(x, stream=stream).peek_output()
            sums.append(cupy.from_dlpack(y).max())
        assert worker.report().host_syncs == ()
        got = [float(each) for each in sums]
    assert got == [float(expect_affine(np.float32(number))) for number in range(ROUNDS)]


def test_torch_works_around_pending_runs_in_the_order_of_its_stream(worker: gx.Worker) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed.")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, sums = torch.empty(SHAPE, device="cuda"), []
        for number in range(ROUNDS):
            x.fill_(number)
            y = worker.schedule(x, stream=stream).peek_output()
            sums.append(torch.from_dlpack(y).max())
        got = [float(each) for each in sums]
    assert got == [float(expect_affine(np.float32(number))) for number in range(ROUNDS)]


def test_copies_are_in_the_order_of_a_stream(worker: gx.Worker) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    kept = worker.copy_output(stream=stream)
    with stream:
        seen = cupy.from_dlpack(kept)
        for number in range(ROUNDS):
            kept.upload(filled(number), stream=stream)
            seen += 1
            request = kept.readback_request(stream=stream)
            seen += 1  # after what is read
            np.testing.assert_array_equal(request.result(), filled(number + 1))
    worker.order_before(stream)
    worker.wait_for_completion()


def test_stream_that_captures_is_refused(worker: gx.Worker) -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
    try:
        with pytest.raises(gx.StateError, match="capturing a graph"):
            worker.schedule(filled(1), stream=stream)
    finally:
        stream.end_capture()
    np.testing.assert_array_equal(worker.run(filled(1), stream=stream)[0], expect_affine(filled(1)))


def test_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(gx.DeviceNotFoundError, match=r"There is no GPU 99; there is 0 \("):
        gx.Worker(affine(), backend=gx.BackendType.GPU_COMPUTE, device=99)


def test_every_gpu_runs() -> None:
    import cupy

    x = filled(3)
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        with gx.Worker(affine(), backend=gx.BackendType.GPU_COMPUTE, device=ordinal) as worker:
            small = x[:4, :3]
            np.testing.assert_array_equal(worker.run(small)[0], expect_affine(small))
            assert worker.peek_output().__dlpack_device__()[1] == ordinal
