"""Device weights: one shared object, with a lifetime by its users."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.execution.resources.weights import weights_of
from gpuexec.ir.plan import Buffer, Role
from tests.model.small_models import affine, hold, make_tracer, ramp, two_layers

WIDE = np.ones(4096, np.float32)


@pytest.fixture(params=[gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(request.param)


def test_weights_are_one_object_per_model_and_backend() -> None:
    model, one, other = affine(), make_tracer(), make_tracer()
    assert weights_of(model, one) is weights_of(model, one)
    assert weights_of(model, one) is not weights_of(model, other)
    assert weights_of(model, one) is not weights_of(affine(), one)


def test_second_worker_waits_for_weights_still_on_their_way() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    slow = backend.device.create_stream()
    model, x = two_layers(), ramp(2, 3)
    gate = hold(slow)
    with gx.Worker(model, backend=backend, stream=slow) as first, gx.Worker(model, backend=backend) as second:
        early = first.schedule(x).peek_output().readback_request()
        late = second.schedule(x).peek_output().readback_request()
        assert not late.is_done()
        gate.set()
        np.testing.assert_array_equal(late.result(), early.result())


def test_what_is_uploaded_stays_as_long_as_a_share_needs_it(backend: Backend) -> None:
    weights, stream = weights_of(affine(), backend), backend.device.create_stream()
    one, two = weights.enter(), weights.enter()
    other = 2 * WIDE
    assert one.place_array(WIDE, stream) is two.place_array(WIDE, stream)
    one.place_array(other, stream)
    assert weights.nbytes == 2 * WIDE.nbytes
    stream.synchronize()
    one.leave()
    assert weights.nbytes == WIDE.nbytes
    del two
    assert weights.nbytes == 0


def test_leaving_twice_takes_nothing_from_others(backend: Backend) -> None:
    weights, stream = weights_of(affine(), backend), backend.device.create_stream()
    one, two = weights.enter(), weights.enter()
    for share in (one, two):
        share.place_array(WIDE, stream)
    stream.synchronize()
    one.leave()
    one.leave()
    assert weights.nbytes == WIDE.nbytes


def test_a_share_let_go_of_during_its_upload_leaves_the_bytes_until_that_is_over() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    weights, stream = weights_of(affine(), backend), backend.device.create_stream()
    go = hold(stream)
    share = weights.enter()
    region = share.place_array(WIDE, stream)
    memory = weakref.ref(region.memory)
    del region, share
    assert weights.nbytes == 0 and memory() is not None
    go.set()
    stream.synchronize()
    backend.deferred_free.prune()
    assert memory() is None


def test_bytes_are_reported_during_an_upload(backend: Backend) -> None:
    model, x, reported = two_layers(), ramp(2, 3), list[int]()
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as two:
        one.prepare(x, progress=lambda _: reported.append(two.memory_stats()["weights"]))
        assert set(reported) <= {0}
        assert (len(reported) > 0) == backend.device.target.has_kernels


def test_a_table_of_a_plan_is_known_by_its_content() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    weights, stream = weights_of(affine(), backend), backend.device.create_stream()
    share, data = weights.enter(), WIDE.tobytes()
    for _ in range(2):
        table = Buffer(0, Role.CONSTANT, WIDE.nbytes, "table", bytes(bytearray(data)))
        share.place([table], {}, stream)
        assert weights.count_missing(weights.measure([table], {})) == 0
    assert weights.nbytes == WIDE.nbytes
