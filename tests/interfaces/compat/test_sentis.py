"""Programs of Unity Sentis, translated line by line, run over ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat.sentis import BackendType, ModelLoader, Tensor, Worker
from tests.model.small_models import affine, expect_affine, ramp, three_products, two_inputs

X = ramp(2, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    affine().save(tmp_path / "affine.onnx")
    return tmp_path / "affine.onnx"


def test_sample_that_polls_for_the_output(path: Path) -> None:
    model = ModelLoader.load(path)
    worker = Worker(model, BackendType.CPU)

    given = Tensor((2, 3), X.ravel().tolist())
    worker.schedule(given)
    output = worker.peek_output()
    assert not output.is_readback_request_done()
    output.readback_request()
    while not output.is_readback_request_done():
        pass
    np.testing.assert_array_equal(output.download_to_array(), expect_affine(X))

    given.dispose()
    worker.dispose()
    worker.dispose()


def test_sample_that_blocks_for_a_copy_on_the_cpu(path: Path) -> None:
    with Worker(path, BackendType.SIMULATOR) as worker:
        worker.schedule(Tensor((2, 3), X))
        output = worker.peek_output("y")
        with pytest.raises(gx.PendingError, match="lies on a device"):
            output[0, 0]
        with output.readback_and_clone() as copied:
            assert copied.backend_type is BackendType.CPU and (copied.shape, copied.count, len(copied)) == (
                (2, 3),
                6,
                2,
            )
            assert copied[1, 2] == expect_affine(X)[1, 2]
            np.testing.assert_array_equal(np.asarray(copied), expect_affine(X))
        assert output.backend_type is worker.backend_type is BackendType.SIMULATOR


def test_sample_that_awaits_the_output(path: Path) -> None:
    async def execute(worker: Worker) -> Tensor:
        worker.schedule(Tensor((2, 3), X))
        return await worker.peek_output().readback_and_clone_async()

    with Worker(path, BackendType.CPU) as worker:
        np.testing.assert_array_equal(asyncio.run(execute(worker)).download_to_native_array(), expect_affine(X))


def test_sample_of_several_inputs_and_outputs() -> None:
    with Worker(two_inputs(), BackendType.CPU) as worker:
        worker.schedule(Tensor((2, 3), 3 * X), Tensor((2, 3), X))
        np.testing.assert_array_equal(worker.peek_output(0).download_to_array(), 4 * X)
        worker.set_input("left", Tensor((2, 3), 5 * X))
        worker.schedule()
        np.testing.assert_array_equal(worker.peek_output(1).download_to_array(), 4 * X)
        kept = worker.copy_output("sum")
        assert worker.copy_output("difference", kept).tensor is kept.tensor
        with pytest.raises(gx.InputError, match="2 inputs, from 0; there is none in place 2"):
            worker.set_input(2, X)
        with pytest.raises(gx.InputError, match="2 outputs, from 0; there is none in place 2"):
            worker.peek_output(2)


def test_sample_that_goes_on_by_a_layer_each_frame(tmp_path: Path) -> None:
    path = tmp_path / "products.onnx"
    three_products().save(path)
    with Worker(path, BackendType.CPU) as worker:
        schedule = worker.schedule_iterable(Tensor((2, 3), X))
        assert worker.schedule_progress == 0
        assert len(list(schedule)) == 3
        output = worker.peek_output()
        output.complete_all_pending_operations()
        output.upload(np.zeros((2, 3), np.float32))
        out = np.empty((2, 3), np.float32)
        assert output.download_to_array(out) is out and not out.any()
