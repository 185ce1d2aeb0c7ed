"""Rows on inputs: accepted forms, checks before any work, and inputs that stay set."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import Array, affine, expect_affine, ramp, two_inputs

X = ramp(2, 3)


def test_b24_inputs_stay_set_and_are_not_moved(backend: Backend) -> None:
    left, right = ramp(2, 3), ramp(2, 3) * 3
    with gx.Worker(two_inputs(), backend=backend) as worker:
        worker.run([left, right])
        kept = left.copy()
        left[...] = 99  # the Worker has a copy of its own
        total, _ = worker.run({"right": right + 1})
        np.testing.assert_array_equal(total, kept + right + 1)
        np.testing.assert_array_equal(worker.run()[0], kept + right + 1)
        assert left.flags.owndata and (left == 99).all()


def test_b26_s20_a_missing_or_misspelt_input_is_named_before_any_work(backend: Backend) -> None:
    with gx.Worker(two_inputs(), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=r"input 'right' \(right: float32|input 'right'") as caught:
            worker.schedule({"left": X})
        assert caught.value.value == "right" and caught.value.code == 0x12
        with pytest.raises(gx.InputError, match=r"no input 'rigth'; it has left, right"):
            worker.schedule({"left": X, "rigth": X})
        assert worker.report().runs == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (X.astype(np.float64), r"'x' expects float32, got float64; cast it"),
        (X.astype(np.int32), r"'x' expects float32, got int32"),
        (X[0], r"'x' expects float32\[n,3\], got float32\[3\]: 1 axes, not 2"),
        (ramp(2, 4), r"'x' expects float32\[n,3\], got float32\[2,4\]: axis 1 must be 3"),
    ],
)
def test_s20_dtype_and_shape_are_checked_before_any_work(wrong: Array, message: str, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        with pytest.raises(gx.InputError, match=message):
            worker.schedule(wrong)
        assert worker.report().runs == 0
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))


def test_s20_a_tensor_given_as_input_stays_where_it_is(backend: Backend) -> None:
    other = gx.BackendType.CPU if backend.type is not gx.BackendType.CPU else gx.BackendType.SIMULATOR
    with gx.Worker(affine(), backend=other) as producer, gx.Worker(affine(), backend=backend) as consumer:
        y = producer.schedule(X).peek_output()
        np.testing.assert_array_equal(consumer.run(y)[0], expect_affine(expect_affine(X)))
        assert y.backend_type is other
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(X))


def test_s21_t9_checks_stay_when_python_leaves_asserts_out() -> None:
    script = """
import numpy as np, gpuexec as gx
from onnx import parser
text = '<ir_version: 10, opset_import: ["": 18]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }'
worker = gx.Worker(gx.load(parser.parse_model(text)), backend=gx.BackendType.CPU)
for wrong in (np.zeros((2, 3)), np.zeros(3, np.float32), {"z": np.zeros((2, 3), np.float32)}):
    try:
        worker.schedule(wrong)
    except gx.InputError:
        print("refused")
worker.close()
"""
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 3, done.stderr


@pytest.mark.parametrize("form", ["array", "list", "mapping"])
def test_s22_schedule_takes_arrays_lists_and_mappings(form: str, backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule({"array": X, "list": [X], "mapping": {"x": X}}[form])
        np.testing.assert_array_equal(worker.read_output(), expect_affine(X))
