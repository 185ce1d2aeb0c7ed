"""Outputs of a Method: their order, and refused memory."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, ramp
from tests.program.small_programs import load, read

X = ramp(2, 3)
Y = expect_affine(X)
planned = pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "own"])


def make_floats(backend: Backend, rows: int = 8) -> gx.Tensor:
    """Return memory of the caller's on a device: zeros of float32[rows, 3]."""
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(ramp(rows, 3))
        tensor = worker.copy_output()
    tensor.upload(np.zeros((rows, 3), np.float32))
    return tensor


@pytest.mark.feature("E46")
def test_memory_that_does_not_fit_is_refused_with_both_numbers(backend: Backend) -> None:
    with load(backend) as method:
        allocator = gx.DeviceAllocator(backend)
        for index, given, message in (
            (0, make_floats(backend, 7), r"'y'.* needs 96 bytes, got 84"),
            (0, allocator.allocate(95), r"'y'.* needs 96 bytes, got 95"),
            (0, np.zeros((8, 3)), r"'y'.* float32, .* float64"),
            (1, allocator.allocate(96), "1 outputs, got index 1"),
            ("z", allocator.allocate(96), "no output 'z'; it has y"),
        ):
            with pytest.raises(gx.InputError, match=message):
                method.set_output(index, given)  # type: ignore[arg-type]
        method.execute([X])
        np.testing.assert_array_equal(read(method), Y)


@pytest.mark.feature("E55")
def test_all_outputs_come_in_order(backend: Backend) -> None:
    with load(backend, "pair") as method:
        method.execute([3 * X, X])
        total, difference = method.get_outputs()
        assert (total.name, difference.name) == ("sum", "difference")
        np.testing.assert_array_equal(total.readback_and_clone(), 4 * X)
        np.testing.assert_array_equal(difference.readback_and_clone(), 2 * X)
