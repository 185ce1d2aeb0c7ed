"""CUDA streams by handle and by object, over a stand-in for CuPy where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, ramp

X = ramp(2, 3)


class Protocol:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


@pytest.mark.parametrize("form", [lambda each: each, lambda each: each.handle, lambda each: Protocol(each.handle)])
def test_run_is_in_the_order_of_a_stream(standin_device: Any, form: Any) -> None:
    backend = Backend(standin_device, gx.BackendType.GPU_COMPUTE, "for a test")
    stream, own = standin_device.create_stream(), standin_device.create_stream()
    with gx.Worker(affine(), backend=backend, stream=own) as worker:
        worker.run(X + 1)
        gate = stream.stream.below.hold()
        run = worker.schedule(X, stream=form(stream))
        assert not run.is_done() and not own.is_done()
        gate.set()
        stream.synchronize()
        assert run.is_done()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(X))


def test_stream_that_captures_is_refused(standin_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(standin_device, gx.BackendType.GPU_COMPUTE, "for a test")
    stream = standin_device.create_stream()
    with gx.Worker(affine(), backend=backend) as worker:
        with monkeypatch.context() as patch:
            patch.setattr(type(stream.stream), "is_capturing", lambda self: True)
            with pytest.raises(gx.StateError, match="capturing a graph"):
                worker.schedule(X, stream=stream.handle)
        np.testing.assert_array_equal(worker.run(X, stream=stream)[0], expect_affine(X))


def test_device_knows_its_streams_and_its_number(standin_device: Any) -> None:
    assert standin_device.ordinal == 0
    stream = standin_device.create_stream()
    assert standin_device.owns(stream) and standin_device.owns(standin_device.external_stream(stream.handle))
    assert not standin_device.owns(stream.handle) and not standin_device.owns(Protocol(stream.handle))
