"""Repeated runs and steps of a Method: kept inputs, resets, and failures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.devices.backends import on
from tests.model.small_models import GATES, expect_affine, gated, ramp, trace
from tests.program.small_programs import SHAPES, load, read

X = ramp(2, 3)
Y = expect_affine(X)
planned = pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "own"])


@pytest.mark.feature("E48", "T13")
@planned
def test_a_second_execute_uses_the_inputs_of_the_first(is_planned: bool, backend: Backend) -> None:
    with load(backend, "forward", is_planned=is_planned) as method:
        method.execute([ramp(8, 3)])
        first = read(method)
        for _ in range(3):  # temporaries were written over and over; the inputs were not
            method.execute()
            np.testing.assert_array_equal(read(method), first)


@pytest.mark.feature("E50")
@on("tracer")
def test_a_step_launches_its_layer_and_no_more(backend: Backend) -> None:
    with load(backend) as method:
        method.set_input(0, X)
        counts = []
        before = trace(backend).count("launch")
        while method.step() is not None:
            counts.append(trace(backend).count("launch") - before)
    assert counts == [1, 2, 3]


@pytest.mark.feature("E51")
@planned
def test_reset_is_legal_at_any_time(is_planned: bool, backend: Backend) -> None:
    with load(backend, is_planned=is_planned) as method:
        method.reset()
        method.set_input(0, X)
        method.reset()
        for taken in range(1, 4):
            for _ in range(taken):
                assert method.step() is not None
            method.reset()
            assert not method.in_progress()
        assert [step.nodes for step in iter(method.step, None)] == [("double",), ("relu",), ("add",)]
        method.reset()
        method.reset()
        assert method.step() is not None
        method.reset()
        method.execute()
        np.testing.assert_array_equal(read(method), Y)


@pytest.mark.feature("T10", "E52")
def test_a_step_that_fails_wedges_nothing(backend: Backend) -> None:
    model, number = gated()
    program = gx.Program.build({"forward": model}, shapes={"forward": SHAPES}, backend=backend)
    GATES.open[number].set()

    def step_to_the_end(method: gx.Method) -> None:
        for _ in iter(method.step, None):
            pass
        read(method)  # where steps are only put on a stream, whoever reads is told

    again: tuple[Callable[[gx.Method], object], ...] = (
        lambda method: method.execute(),
        lambda method: (method.reset(), step_to_the_end(method)),
    )
    with program.load_method("forward") as method:
        method.set_input(0, X)
        for retry in again:
            method.reset()
            GATES.failures[number] = ValueError("on purpose")
            with pytest.raises(gx.GpuexecError, match="on purpose"):
                step_to_the_end(method)
            assert not method.in_progress()
            retry(method)
            np.testing.assert_array_equal(read(method), X + 1)
