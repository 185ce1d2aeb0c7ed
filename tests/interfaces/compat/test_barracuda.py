"""Programs of Unity Barracuda, translated line by line, run over ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.compat.barracuda import ModelLoader, Tensor, Worker, WorkerFactory
from tests.model.small_models import affine, expect_affine, ramp, three_products, two_inputs

X, W = ramp(2, 3), ramp(3, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    affine().save(tmp_path / "affine.onnx")
    return tmp_path / "affine.onnx"


def make_worker(path: Path) -> Worker:
    return WorkerFactory.create_worker(WorkerFactory.Type.CSHARP_BURST, ModelLoader.load(path))


def test_sample_that_executes_and_peeks(path: Path) -> None:
    model = ModelLoader.load(path)
    worker = WorkerFactory.create_worker(WorkerFactory.Type.CSHARP_BURST, model)

    given = Tensor((2, 3), X.ravel().tolist())
    worker.execute(given)
    output = worker.peek_output()
    assert output.shape == (2, 3) and output.length == 6
    assert output[1, 2] == expect_affine(X)[1, 2]
    np.testing.assert_array_equal(output.to_read_only_array(), expect_affine(X))

    given.dispose()
    output.dispose()
    worker.dispose()


def test_sample_of_several_inputs_by_name() -> None:
    with WorkerFactory.create_worker(WorkerFactory.Type.CSHARP, two_inputs()) as worker:
        left, right = Tensor((2, 3), 3 * X), Tensor((2, 3), X)
        total = worker.execute({"left": left, "right": right}).peek_output("sum")
        np.testing.assert_array_equal(total.to_read_only_array(), 4 * X)
        worker.set_input("left", right)
        worker.set_input(1, left)
        worker.execute()
        np.testing.assert_array_equal(np.asarray(worker.peek_output("difference")), -2 * X)


def test_sample_that_goes_on_by_a_layer_each_frame(tmp_path: Path) -> None:
    path = tmp_path / "products.onnx"
    three_products().save(path)
    with make_worker(path) as worker:
        enumerator = worker.start_manual_schedule(Tensor((2, 3), X))
        frames = 0
        while next(enumerator, None) is not None:
            frames += 1
            worker.flush_schedule()
        worker.flush_schedule(blocking=True)
        assert (frames, worker.schedule_progress) == (3, 1.0)
        kept = worker.copy_output("y")
        worker.execute(Tensor((2, 3)))
        worker.wait_for_completion()
        np.testing.assert_array_equal(kept.to_read_only_array(), X @ W @ W @ W)
        assert len(list(worker.execute_async(Tensor((2, 3), X)))) == 3
        assert "runs 3" in worker.summary()


def test_kinds_of_workers_are_backends() -> None:
    assert {kind.backend for kind in WorkerFactory.Type} == {
        gx.BackendType.AUTO,
        gx.BackendType.GPU_COMPUTE,
        gx.BackendType.GPU_PIXEL,
        gx.BackendType.CPU,
    }


def test_what_does_not_fit_is_refused(path: Path) -> None:
    with pytest.raises(gx.InputError, match=r"shape \[2, 3\] has 6 elements, got 4"):
        Tensor((2, 3), [1, 2, 3, 4])
    with make_worker(path) as worker:
        with pytest.raises(gx.InputError, match="1 inputs, from 0; there is none in place 1"):
            worker.set_input(1, Tensor((2, 3)))
        with pytest.raises(gx.InputError, match="'z'"):
            worker.execute({"z": Tensor((2, 3))})
        worker.execute(X)
        np.testing.assert_array_equal(worker.peek_output().to_read_only_array(), expect_affine(X))
