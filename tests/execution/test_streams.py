"""Streams of the caller's and of other Workers: order of runs on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.execution.held import held_worker, holding
from tests.model.small_models import affine, expect_affine, ramp

X = ramp(2, 3)
Y = expect_affine(X)


@pytest.mark.feature("S38", "E82")
@on("simulator")
@pytest.mark.parametrize("form", ["stream", "handle", "protocol"])
def test_a_run_takes_its_place_on_the_callers_stream(form: str, backend: Backend) -> None:
    stream = backend.device.create_stream()
    protocol = type("Foreign", (), {"__cuda_stream__": lambda self: (0, stream.handle)})()
    given: Any = {"stream": stream, "handle": stream.handle, "protocol": protocol}[form]
    memory, out = backend.device.allocate(24), backend.device.allocate_pinned(24)
    assert out.array is not None
    with gx.Worker(affine(), backend=backend, stream=given) as worker, holding(stream) as gate:
        stream.copy_to_device(memory.address, X.reshape(-1).view(np.uint8))  # before the run
        source = type(
            "Source",
            (),
            {
                "__cuda_array_interface__": {
                    "shape": (2, 3),
                    "typestr": "<f4",
                    "data": (memory.address, False),
                    "version": 3,
                    "stream": stream.handle,
                }
            },
        )()
        y = worker.schedule(source).peek_output()
        stream.copy_to_host(out.array, y.__cuda_array_interface__["data"][0])  # and after it
        assert not y.is_done()
        gate.set()
        stream.synchronize()
        np.testing.assert_array_equal(out.array[:24].view(np.float32).reshape(2, 3), Y)


@pytest.mark.feature("S54")
def test_a_reader_waits_for_the_writer_and_nobody_else_does(backend: Backend) -> None:
    with (
        held_worker(affine(), backend) as (producer, gate),
        gx.Worker(affine(), backend=backend) as consumer,
        gx.Worker(affine(), backend=backend) as other,
    ):
        run = consumer.schedule(producer.schedule(X).peek_output())
        np.testing.assert_array_equal(other.run(X)[0], Y)
        assert not run.is_done()
        gate.set()
        np.testing.assert_array_equal(run.peek_output().readback_and_clone(), expect_affine(Y))
