"""Rows on running a Method: whole or in steps, repeatedly, cancelled, and after a failure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import GATES, expect_affine, gated, ramp, trace
from tests.system.features.held import opening
from tests.system.features.marks import on
from tests.system.features.programs import SHAPES, load, read

X = ramp(2, 3)
Y = expect_affine(X)
planned = pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "own"])


@on("cpu")
def test_e47_execute_returns_when_outputs_may_be_read_unless_told_otherwise(backend: Backend) -> None:
    model, number = gated()
    program = gx.Program.build({"forward": model}, shapes={"forward": SHAPES}, backend=backend)
    with program.load_method("forward") as method, opening(GATES.open[number]) as gate:
        run = method.execute([X], wait=False)
        assert GATES.entered[number].wait(30) and not run.is_done()
        gate.set()
        np.testing.assert_array_equal(read(method), X + 1)
        assert method.execute().is_done()


@planned
def test_e48_t13_a_second_execute_uses_the_inputs_of_the_first(is_planned: bool, backend: Backend) -> None:
    with load(backend, "forward", is_planned=is_planned) as method:
        method.execute([ramp(8, 3)])
        first = read(method)
        for _ in range(3):  # temporaries were written over and over; the inputs were not
            method.execute()
            np.testing.assert_array_equal(read(method), first)


def test_e48_an_input_never_set_is_named(backend: Backend) -> None:
    with load(backend, "pair") as method:
        method.set_input("left", X)
        for call in (method.execute, method.step):
            with pytest.raises(gx.InputError, match="'right'") as caught:
                call()
            assert caught.value.value == "right" and not method.in_progress()


@planned
def test_e50_e53_a_step_is_a_layer_and_the_end_is_told(is_planned: bool, backend: Backend) -> None:
    with load(backend, is_planned=is_planned) as method:
        method.set_input(0, X)
        assert not method.in_progress()
        seen = []
        while (step := method.step()) is not None:
            assert method.in_progress()
            seen.append(step.nodes)
        assert seen == [("double",), ("relu",), ("add",)]
        assert not method.in_progress() and method.step() is None
        np.testing.assert_array_equal(read(method), Y)


@on("tracer")
def test_e50_a_step_launches_its_layer_and_no_more(backend: Backend) -> None:
    with load(backend) as method:
        method.set_input(0, X)
        counts = []
        before = trace(backend).count("launch")
        while method.step() is not None:
            counts.append(trace(backend).count("launch") - before)
    assert counts == [1, 2, 3]


@planned
def test_e51_reset_is_legal_at_any_time(is_planned: bool, backend: Backend) -> None:
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


def test_t10_e52_a_step_that_fails_wedges_nothing(backend: Backend) -> None:
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
