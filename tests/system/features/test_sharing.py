"""Rows on sharing between Methods of one program: arenas, stale outputs, and state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, ramp, two_layers
from tests.model.state_models import recurrent, running_sum
from tests.system.features.held import holding
from tests.system.features.marks import on
from tests.system.features.programs import SHAPES, build, expect_layers, read

X = ramp(8, 3)


def run(method: gx.Method, x: Any = X) -> Any:
    method.execute([x])
    return read(method)


def test_e38_e57_methods_go_on_from_one_state_where_asked(backend: Backend) -> None:
    program = build(backend, forward=running_sum(), other=running_sum())
    with program.load_method("forward") as first, program.load_method("forward") as apart:
        with program.load_method("other", state=first.state) as second:
            for number, method in enumerate((first, second, second, first), 1):
                np.testing.assert_array_equal(run(method), 2 * number * X)
            second.set_attribute("held", -X)
            np.testing.assert_array_equal(run(first), 0 * X)
        np.testing.assert_array_equal(run(apart), 2 * X)
    model = gx.load(recurrent(), memories="implicit")
    with (
        gx.Worker(model, backend=backend) as foreign,
        pytest.raises(gx.InputError, match=r"holds lstm.* expected held <- total"),
    ):
        program.load_method("other", state=foreign.state)


def test_e69_methods_that_share_arenas_make_each_others_outputs_stale(backend: Backend) -> None:
    program = build(backend, forward=two_layers(), other=affine())
    with (
        program.load_method("forward", share_arenas=True) as first,
        program.load_method("other", share_arenas=True) as second,
    ):
        first.execute([X])
        output = first.get_output(0)
        np.testing.assert_array_equal(run(second), expect_affine(X))
        for use in (output.readback_and_clone, output.readback_request, lambda: first.get_output(0)):
            with pytest.raises(gx.StaleError):
                use()
        first.execute()  # its inputs are its own
        np.testing.assert_array_equal(read(first), expect_layers(X))
        with pytest.raises(gx.StaleError):
            second.get_output(0)


def test_e69_runs_over_shared_arenas_come_one_behind_the_other(backend: Backend) -> None:
    program = build(backend, forward=two_layers(), other=affine())
    stream = backend.device.create_stream()
    with (
        program.load_method("forward", share_arenas=True, stream=stream) as first,
        program.load_method("other", share_arenas=True) as second,
    ):
        second.set_input(0, X)
        first.set_input(0, X)
        with holding(stream) as gate:
            first.execute(wait=False)
            request = first.get_output(0).readback_request()
            later = second.execute(wait=False)
            assert not later.is_done()
            gate.set()
            np.testing.assert_array_equal(read(second), expect_affine(X))
            np.testing.assert_array_equal(request.result(), expect_layers(X))


@on("tracer")
def test_e69_shared_arenas_are_as_large_as_the_largest_needs(backend: Backend) -> None:
    models = {"small": two_layers(), "large": two_layers()}
    shapes = {"small": SHAPES, "large": {"x": ((1, 800), 3)}}
    program = gx.Program.build(models, shapes=shapes, backend=backend)
    largest = program.method_meta("large").memory_planned_buffer_size(0)
    with program.load_method("small", share_arenas=True):
        sizes = [row[2] for row in backend.device.log if row[0] == "allocate"]  # type: ignore[attr-defined]
        assert sizes.count(largest) == 1
        with program.load_method("large", share_arenas=True):
            sizes = [row[2] for row in backend.device.log if row[0] == "allocate"]  # type: ignore[attr-defined]
    assert sizes.count(largest) == 1
