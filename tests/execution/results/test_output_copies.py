"""Copies of outputs, on the host and on the device."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.model.small_models import affine, expect_affine, ramp, trace

X = ramp(2, 3)
Y = expect_affine(X)


@pytest.mark.feature("B34", "T2")
def test_what_is_read_is_a_copy_of_the_callers_own(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X)
        array = worker.read_output()
        array[...] = 7
        np.testing.assert_array_equal(worker.read_output(), Y)
        np.testing.assert_array_equal(worker.peek_output().readback_and_clone(), Y)


@pytest.mark.feature("S25")
@on("tracer")
def test_copy_output_downloads_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        worker.schedule(X)
        worker.copy_output()
        assert "copy_to_host" not in trace(backend)
