"""Pending outputs of runs of several plans, as inputs of others before their shapes are known."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.execution.held import holding
from tests.execution.segments.conftest import BACKENDS
from tests.model.control_models import ControlModel
from tests.model.small_models import CPU
from tests.model.staged_models import MODELS, StagedModel, inputs


@pytest.mark.parametrize("consuming", BACKENDS)
def test_outputs_of_unknown_shape_are_inputs_of_another_worker(
    staged: StagedModel, backend: Backend, consuming: str
) -> None:
    x = inputs(0)
    expected = staged.expect(x)[0]
    code = 7 if expected.dtype == np.int64 else 1
    dims = ", ".join("abc"[: expected.ndim])
    text = f"({'int64' if code == 7 else 'float'}[{dims}] y) => ({'int64' if code == 7 else 'float'}[{dims}] z)"
    negate = gx.load(ControlModel(text + " { z = Neg (y) }", ()).parse().SerializeToString())
    with (
        gx.Worker(staged.load(), backend=backend) as producer,
        gx.Worker(negate, backend=open_backend(BACKENDS[consuming])) as consumer,
    ):
        answer = consumer.schedule(producer.schedule(x).peek_output()).peek_output().readback_and_clone()
        np.testing.assert_allclose(answer, -expected, rtol=1e-4, atol=1e-4)
        # The consumer is planned for the shape: who asks for one that is not known yet waits for it, and it is counted.
        wait = ("y", "its shape is an input of another run")
        assert producer.report().host_syncs in ((), (wait,))


@pytest.mark.parametrize("name", ["host call", "scan"])
@pytest.mark.parametrize("consuming", BACKENDS)
def test_output_of_foreseen_shape_is_an_input_before_its_run_is_issued(
    name: str, backend: Backend, consuming: str
) -> None:
    x, staged = inputs(0), MODELS[name]
    rank = staged.expect(x)[0].ndim
    dims = ", ".join("abc"[:rank])
    negate = gx.load(
        ControlModel(f"(float[{dims}] y) => (float[{dims}] z) {{ z = Neg (y) }}", ()).parse().SerializeToString()
    )
    with (
        gx.Worker(staged.load(), backend=backend) as producer,
        gx.Worker(negate, backend=open_backend(BACKENDS[consuming])) as consumer,
    ):
        with holding(producer._engine.stream) as gate:
            pending = producer.schedule(x)
            chained = consumer.schedule(pending.peek_output())
            assert not pending.is_done() and not chained.is_done()
            gate.set()
        answer = chained.peek_output().readback_and_clone()
        np.testing.assert_allclose(answer, -staged.expect(x)[0], rtol=1e-4, atol=1e-4)
        assert producer.report().host_syncs == consumer.report().host_syncs == ()


def test_staged_runs_are_chained() -> None:
    x = np.abs(inputs(0)) + 1
    model = MODELS["host call"]
    with gx.Worker(model.load(), backend=CPU) as producer, gx.Worker(MODELS["read"].load(), backend=CPU) as consumer:
        made = consumer.run(producer.schedule(-x).peek_output())[0]
    np.testing.assert_array_equal(made, np.array(np.nonzero(np.ones_like(x))))


def test_copy_of_an_output_waits_for_its_shape_and_is_counted(backend: Backend) -> None:
    staged, x = MODELS["read"], inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker:
        worker.schedule(x)
        copy = worker.copy_output()
        worker.run(inputs(1))
        staged.check(x, [copy.readback_and_clone()])
        assert [what for what, _ in worker.report().host_syncs] == ["y"]
