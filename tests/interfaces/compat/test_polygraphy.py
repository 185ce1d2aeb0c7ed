"""The runner for Polygraphy; its entry point is tried in `tests/system/test_packaging.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from polygraphy.comparator import Comparator
from polygraphy.exception import PolygraphyException

import gpuexec as gx
from gpuexec.compat.polygraphy import GpuexecRunner
from tests.model.small_models import affine, ramp

DIGITS = Path(__file__).resolve().parents[3] / "examples/models/digits.onnx"


@pytest.mark.parametrize("backend", ["cpu", "simulator"])
def test_runner_gives_outputs_by_name_and_its_time(backend: str) -> None:
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 1, 8, 8)
    with gx.Worker(DIGITS, backend=backend) as worker, GpuexecRunner(str(DIGITS), backend=backend) as runner:
        expected, found = worker.run(x), runner.infer({"image": x})
        assert list(found) == ["logits", "probabilities"] and runner.last_inference_time() > 0
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])


def test_model_may_be_made_when_the_runner_begins_and_is_closed_with_it() -> None:
    made = []

    def load() -> onnx.ModelProto:
        made.append(onnx.load(DIGITS))
        return made[-1]

    runner = GpuexecRunner(load, backend="cpu", name="ours")
    assert not made and runner.name == "ours"
    with runner:
        worker = runner.worker
        assert len(made) == 1 and not worker.is_closed
    assert worker.is_closed


def test_inputs_are_described_as_polygraphy_checks_them(tmp_path: Path) -> None:
    affine().save(tmp_path / "small.onnx")
    with GpuexecRunner(tmp_path / "small.onnx", backend="cpu") as runner:
        ((name, (dtype, shape)),) = runner.get_input_metadata(use_numpy_dtypes=False).items()
        assert (name, str(dtype), list(shape)) == ("x", "float32", [None, 3])
        with pytest.raises(PolygraphyException):
            runner.infer({"x": ramp(4, 5)})


def test_precision_reaches_the_worker() -> None:
    with GpuexecRunner(DIGITS, backend="cpu", precision="bf16") as runner:
        assert str(runner.worker.model.precision) == "bf16"
    results = Comparator.run([GpuexecRunner(DIGITS, "cpu"), GpuexecRunner(DIGITS, "cpu", "bf16")])
    assert not bool(Comparator.compare_accuracy(results))
